"""ONNX models that several tests build."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def detector(seed: int = 0, batch: Any = "n", height: Any = "h", width: Any = "w") -> onnx.ModelProto:
    """Convolutions with a residual sum and a stride, fully convolutional, and a pooled score."""
    rng = np.random.default_rng(seed)

    def const(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(rng.normal(0, 0.2, shape).astype(np.float32), name)

    conv = dict(kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], "stem", **conv),
        helper.make_node("Relu", ["c0"], ["r0"], "stem_relu"),
        helper.make_node("Conv", ["r0", "w1", "b1"], ["c1"], "left", **conv),
        helper.make_node("Add", ["c1", "r0"], ["s"], "join"),
        helper.make_node("Conv", ["s", "w2", "b2"], ["map"], "head", strides=[2, 2], **conv),
        helper.make_node("GlobalAveragePool", ["s"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["score"], "flat"),
    ]
    weights = [const("w0", 16, 3, 3, 3), const("b0", 16), const("w1", 16, 16, 3, 3), const("b1", 16),
               const("w2", 8, 16, 3, 3), const("b2", 8)]  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, height, width])
    outs = [helper.make_tensor_value_info("map", TensorProto.FLOAT, [batch, 8, None, None]),
            helper.make_tensor_value_info("score", TensorProto.FLOAT, [batch, 16])]  # fmt: skip
    graph = helper.make_graph(nodes, "detector", [x], outs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
