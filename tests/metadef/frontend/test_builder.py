"""The graph builder: scopes, short forms, checks where the mistake is made."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.error import InferError, OperatorError, UsageError
from metadef.format import Format
from metadef.frontend import builder
from metadef.frontend.builder import GraphBuilder


def test_the_documented_example_runs() -> None:
    failed, tried = doctest.testmod(builder)
    assert tried > 5 and failed == 0


def test_scopes_nest_and_names_stay_unique() -> None:
    b = GraphBuilder("net")
    x = b.input("x", (2, 8))
    with b.layer("Block12"):
        with b.layer("FFN/"):
            x = b.op("MatMulV2", x, np.ones((8, 4), np.float32), name="up")
        x = b.op("Relu", x)
        x = b.op("Relu", x)
    b.output(x)
    graph = b.build()
    assert [node.path for node in graph.nodes] == ["Block12/FFN/up", "Block12/Relu", "Block12/Relu_1"]
    assert [node.layer for node in graph.nodes] == ["Block12/FFN", "Block12", "Block12"]
    assert graph.constants()[0].name == "Block12/FFN/up_x2"
    assert graph.output_names == ["Block12/Relu_1"]


def test_short_forms_of_windows() -> None:
    b = GraphBuilder("net")
    x = b.input("x", (1, 3, 16, 16), DType.FLOAT16)
    weight = np.ones((4, 3, 3, 3), np.float16)
    y = b.conv2d(x, weight, np.zeros(4, np.float32), strides=(2, 1), pads=(1, 2), dilations=2)
    node = b.graph.nodes[0]
    assert node.attrs["strides"] == (1, 1, 2, 1) and node.attrs["pads"] == (1, 1, 2, 2)
    assert node.attrs["dilations"] == (1, 1, 2, 2)
    z = b.pool("AvgPoolV2", y, 2, strides=2, exclusive=False)
    assert b.graph.nodes[1].attrs["ksize"] == (1, 1, 2, 2) and b.graph.nodes[1].attrs["exclusive"] is False
    assert z.desc.dtype is DType.FLOAT16 and z.desc.format is Format.NCHW


def test_several_results() -> None:
    b = GraphBuilder("net")
    x = b.input("x", (6, 2))
    parts = b.multi("SplitD", x, split_dim=0, num_split=3)
    assert [part.desc.origin_shape for part in parts] == [(2, 2)] * 3
    with pytest.raises(UsageError, match="3 results"):
        b.op("SplitD", x, split_dim=0, num_split=3)


def test_numbers_and_absent_operands() -> None:
    b = GraphBuilder("net")
    x = b.input("x", (3,))
    y = b.op("Mul", x, 2.0)
    assert b.graph.nodes[0].inputs[1].const == np.float32(2)  # type: ignore[union-attr]
    b.op("MatMulV2", b.input("a", (2, 3)), b.input("w", (3, 4)), None)
    assert len(b.graph.nodes[1].inputs) == 2
    assert y.desc.origin_shape == (3,)


def test_mistakes_are_reported_where_they_are_made() -> None:
    b = GraphBuilder("net")
    x = b.input("x", (1, 3, 8, 8))
    with pytest.raises(OperatorError, match="did you mean 'Relu'"):
        b.op("ReLU", x)
    with pytest.raises(InferError, match="no attribute 'negative_slop'"):
        b.op("LeakyRelu", x, negative_slop=0.1)
    with pytest.raises(UsageError, match="no device type"):
        b.const(np.array(["a"]))
    with pytest.raises(UsageError, match="no outputs"):
        b.build()
