"""Damaged model files: refused with a clear error, or run to onnxruntime's answer. A few here, many in tools/."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime", reason="the verdict compares with onnxruntime")

import fuzz_models
from metadef.error import LabError
from metadef.frontend.onnx import load_onnx


@pytest.fixture(scope="module")
def found() -> list[fuzz_models.Subject]:
    fuzz_models.warm_up()
    return fuzz_models.subjects()


def test_damage_is_the_same_for_a_seed_and_touches_no_weights(found):
    one, other = (fuzz_models.mutants(found[:4], 24, seed=3) for _ in range(2))
    assert [item.data for item in one] == [item.data for item in other]
    originals = {item.name: item.data for item in found}
    for item in one:
        original = originals[item.name.split("-")[1]]
        assert item.data != original or item.name.endswith("swap")
        if item.name.endswith("flip"):
            changed = np.flatnonzero(np.frombuffer(item.data, np.uint8) != np.frombuffer(original, np.uint8))
            weights = [tensor.raw_data for tensor in onnx.load_from_string(original).graph.initializer]
            spans = [(original.find(raw), len(raw)) for raw in weights if len(raw) >= 16]
            assert not any(start <= place < start + size for place in changed for start, size in spans)


@pytest.mark.slow
def test_damaged_files_are_refused_or_right():
    """In a process of its own: a file's peak of memory counts what its process already holds."""
    command = [sys.executable, fuzz_models.__file__, "--count", "60", "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(fuzz_models.__file__).parents[1]
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["good"] == 60


def damaged(change) -> bytes:
    from make_models import conv_zoo

    model = conv_zoo(0)
    change(model.graph)
    return model.SerializeToString()


def _same_upper(graph) -> onnx.NodeProto:
    return next(node for node in graph.node if "same_upper" in node.output)


def _negative_size(graph):
    graph.initializer[1].dims[0] = -1


def _kernel_of_another_filter(graph):
    next(item for item in _same_upper(graph).attribute if item.name == "kernel_shape").ints[1] = 7


def _unknown_padding(graph):
    next(item for item in _same_upper(graph).attribute if item.name == "auto_pad").s = b"SAME_UPPEX"


def _second_result(graph):
    graph.node[0].output.append("surplus")


def _bias_for_a_filter(graph):
    graph.node[0].input[1] = graph.node[0].input[2]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_negative_size, "negative dimension"),
        (_kernel_of_another_filter, "kernel_shape"),
        (_unknown_padding, "auto_pad"),
        (_second_result, "too many results"),
        (_bias_for_a_filter, "Conv"),
    ],
)
def test_damage_that_once_went_through(change, text):
    from metadef.legalize import legalize

    with pytest.raises(LabError, match=text):
        legalize(load_onnx(damaged(change)))
