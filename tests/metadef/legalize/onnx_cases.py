"""One-operator ONNX models and their comparison with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from metadef.frontend.onnx import load_onnx
from metadef.graph import Graph
from metadef.legalize import legalize
from metadef.ops.evaluate import evaluate
from npusim.reference import exact_session

REL_L2 = 1e-5


@dataclass(frozen=True)
class Const:
    """An operand that becomes an initializer."""

    value: np.ndarray


@dataclass(frozen=True)
class Case:
    """A node to test: arrays are fed, ``Const`` operands stored, None is absent."""

    label: str
    op_type: str
    operands: Sequence[Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1
    ascend: Sequence[str] | None = None
    """Operator types expected after legalisation, in order; None leaves them open."""

    def model(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        names, feeds, stored = [], {}, []
        for position, operand in enumerate(self.operands):
            name = "" if operand is None else f"x{position}"
            names.append(name)
            if isinstance(operand, Const):
                stored.append(numpy_helper.from_array(operand.value, name))
            elif operand is not None:
                feeds[name] = operand
        made = [f"y{index}" for index in range(self.outputs)]
        node = helper.make_node(self.op_type, names, made, name=f"layer/{self.op_type}", **self.attrs)
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in feeds.items()
        ]
        graph = helper.make_graph(
            [node], "case", inputs, [helper.make_empty_tensor_value_info(name) for name in made], stored
        )
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8), feeds


def run_ort(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    pytest.importorskip("onnxruntime", reason="differential tests need onnxruntime")
    return exact_session(model.SerializeToString(), threads=1).run(None, dict(feeds))


def assert_close(got: np.ndarray, want: np.ndarray, label: str) -> None:
    assert got.shape == want.shape, label
    assert got.dtype == want.dtype, label
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=label)
        return
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=label)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite], err_msg=label)
    real, wanted = got[finite].astype(np.float64), want[finite].astype(np.float64)
    distance = np.linalg.norm(real - wanted)
    assert distance <= REL_L2 * max(np.linalg.norm(wanted), 1e-30), f"{label}: {distance}"


def check_against_ort(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], label: str = "") -> Graph:
    """Legalise, evaluate, compare with ONNX Runtime; the legal graph."""
    graph = legalize(load_onnx(model, shapes={name: value.shape for name, value in feeds.items()}))
    hosts = [f"{node.path}: {node.engine_reason}" for node in graph.nodes if node.opdef is None]
    assert not hosts, hosts
    got = evaluate(graph, feeds)
    for name, want in zip(graph.output_names, run_ort(model, feeds), strict=True):
        assert_close(got[name], want, f"{label} {name}")
    return graph
