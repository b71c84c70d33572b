"""A small compiled network that program, model and file tests share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from metadef.compiler import Compilation, CompileOptions, compile_model
from metadef.dtype import DType
from metadef.format import Format
from metadef.graph import Graph


def residual_network(seed: int = 0) -> Graph:
    """Convolution + Relu, a residual block whose two filters are equal, global pooling, matrix product, softmax."""
    rng = np.random.default_rng(seed)

    def const(name: str, *shape: int, fmt: Format = Format.ND):
        return graph.add_const(name, rng.normal(0, 0.3, shape).astype(np.float32), fmt)

    def conv(x, weight, bias, name: str):
        attrs = {"strides": (1, 1, 1, 1), "pads": (1, 1, 1, 1)}
        return graph.add_node("Conv2D", [x, weight, bias], attrs, name, layer="body", origins=(f"onnx_{name}",)).output

    graph = Graph("small")
    x = graph.add_input("image", (2, 3, 9, 9), DType.FLOAT, Format.NCHW)
    first = conv(x, const("w0", 20, 3, 3, 3, fmt=Format.NCHW), const("b0", 20), "stem")
    first = graph.add_node("Relu", [first], name="stem_relu").output
    weight = const("w1", 20, 20, 3, 3, fmt=Format.NCHW)
    twin = graph.add_const("w1_again", weight.const.copy(), Format.NCHW)
    inner = graph.add_node("Relu", [conv(first, weight, const("b1", 20), "left")], name="left_relu").output
    inner = conv(inner, twin, const("b2", 20), "right")
    joined = graph.add_node(
        "Relu", [graph.add_node("Add", [inner, first], name="join").output], name="join_relu"
    ).output
    pooled = graph.add_node("GlobalAveragePool", [joined], name="pool").output
    flat = graph.add_node("Reshape", [pooled], {"shape": (2, 20)}, "flat").output
    product = graph.add_node("MatMulV2", [flat, const("w2", 20, 10), const("b3", 10)], name="classes").output
    graph.set_outputs([graph.add_node("SoftmaxV2", [product], name="probabilities").output], ["scores"])
    return graph


@pytest.fixture(scope="session")
def small_compilation() -> Callable[..., Compilation]:
    """``small_compilation(soc)`` compiles :func:`residual_network` once per chip and precision."""
    known: dict[tuple[str, str], Compilation] = {}

    def compiled(soc: str = "Ascend910B3", precision: str = "fp16") -> Compilation:
        if (soc, precision) not in known:
            options = CompileOptions(soc=soc, precision=precision)
            known[soc, precision] = compile_model(residual_network(), options)
        return known[soc, precision]

    return compiled
