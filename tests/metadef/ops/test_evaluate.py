"""The evaluator: storage types, epilogues with one rounding, and its errors."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.error import InferError, UsageError
from metadef.frontend.builder import GraphBuilder
from metadef.kernel import FusedOp
from metadef.ops.evaluate import evaluate, round_trip


def test_half_values_round_once_behind_the_epilogue(rng: np.random.Generator) -> None:
    b = GraphBuilder("fused")
    x = b.input("x", (1, 3, 6, 7), DType.FLOAT16)
    weight = rng.standard_normal((5, 3, 3, 3)).astype(np.float16)
    residual = b.input("r", (1, 5, 6, 7), DType.FLOAT16)
    y = b.conv2d(x, weight, pads=1)
    b.output(y, "y")
    graph = b.build()
    (node,) = graph.nodes
    graph.set_input(node, 2, None)
    graph.set_input(node, 3, residual)
    node.fused = (FusedOp("Add", operand=3), FusedOp("Relu"))
    feeds = {"x": rng.standard_normal((1, 3, 6, 7)), "r": rng.standard_normal((1, 5, 6, 7))}
    got = evaluate(graph, feeds, compute=np.float64)["y"]

    plain = GraphBuilder("plain")
    w = plain.input("w", (5, 3, 3, 3))
    plain.output(plain.conv2d(plain.input("x", (1, 3, 6, 7)), w, pads=1), "y")
    halves = {name: round_trip(value, DType.FLOAT16) for name, value in feeds.items()}
    product = evaluate(plain.build(), {"x": halves["x"], "w": weight}, compute=np.float64)["y"]
    expected = np.maximum(product + halves["r"], 0).astype(np.float16)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=1e-3, atol=1e-3)


def test_bfloat16_feeds_may_be_bits_or_numbers() -> None:
    b = GraphBuilder("bf16")
    x = b.input("x", (4,), DType.BF16)
    b.output(b.op("Add", x, x), "y")
    graph = b.build()
    value = np.array([1.0, -2.5, 0.1, 3e5], np.float32)
    from_numbers = evaluate(graph, {"x": value})["y"]
    bits = (value.view(np.uint32) + 0x8000 >> 16).astype(np.uint16)
    np.testing.assert_array_equal(from_numbers, evaluate(graph, {"x": bits})["y"])


def test_keep_returns_every_tensor() -> None:
    b = GraphBuilder("chain")
    y = b.op("Relu", b.op("Neg", b.input("x", (3,))))
    b.output(y, "out")
    values = evaluate(b.build(), {"x": np.array([1, -2, 3])}, keep=True)
    assert values["Neg"].tolist() == [-1, 2, -3]
    assert values["out"].tolist() == [0, 2, 0]


def test_feeds_are_checked() -> None:
    b = GraphBuilder("feeds")
    b.output(b.op("Relu", b.input("image", (3,))), "y")
    graph = b.build()
    with pytest.raises(UsageError, match="did you mean 'image'"):
        evaluate(graph, {"imag": np.zeros(3)})
    with pytest.raises(UsageError, match="not fed"):
        evaluate(graph, {})
    with pytest.raises(UsageError, match="another shape"):
        evaluate(graph, {"image": np.zeros(4)})


def test_rules_name_what_does_not_fit() -> None:
    b = GraphBuilder("bad")
    x = b.input("x", (1, 3, 8, 8))
    with pytest.raises(InferError, match=r"node 'Conv2D'.*port 'filter'"):
        b.conv2d(x, np.zeros((4, 2, 3, 3), np.float32))
    with pytest.raises(InferError, match="may only act on H and W"):
        b.op("MaxPoolV3", x, ksize=(1, 3, 3, 3), strides=(1, 1, 1, 1))
    with pytest.raises(InferError, match="element types differ"):
        b.op("Add", x, np.zeros(8, np.float16))
    with pytest.raises(InferError, match="does not split evenly"):
        b.multi("SplitD", x, split_dim=1, num_split=2)
    with pytest.raises(InferError, match="only differ along concat_dim"):
        b.op("ConcatD", x, np.zeros((1, 3, 7, 8), np.float32), concat_dim=1)
