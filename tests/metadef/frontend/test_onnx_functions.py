"""Quantised operators of onnxruntime's domain: what we make of them is what onnxruntime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from metadef.error import OperatorError
from metadef.frontend.onnx import load_onnx
from metadef.legalize import legalize
from metadef.ops.evaluate import evaluate
from tests.metadef.legalize.onnx_cases import run_ort

SCALES = {"a_scale": 0.02, "b_scale": 0.03, "y_scale": 0.05}
ZEROS = {"a_zero": 113, "b_zero": 90, "y_zero": 120}


def model_of(op_type: str, shape: tuple[int, ...], sides: str, attrs: dict[str, Any]):
    stored = {name: np.float32(value) for name, value in SCALES.items() if name[0] in (*sides, "y")}
    names = []
    for side in (*sides, "y"):
        names += ([] if side == "y" else [side]) + [f"{side}_scale", f"{side}_zero"]
    stored |= {name: np.uint8(value) for name, value in ZEROS.items() if name in names}
    node = helper.make_node(op_type, names, ["y"], domain="com.microsoft", **attrs)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(side, TensorProto.UINT8, shape) for side in sides],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


@pytest.mark.parametrize(
    ("op_type", "sides", "attrs", "allowed"),
    [
        ("QLinearAdd", "ab", {}, 0),
        ("QLinearMul", "ab", {}, 1),  # onnxruntime multiplies the scales first
        ("QLinearSigmoid", "a", {}, 0),
        ("QLinearLeakyRelu", "a", {"alpha": 0.2}, 0),
        ("QLinearSoftmax", "a", {"axis": -1, "opset": 17}, 1),  # onnxruntime sums a table of its own
        ("QLinearGlobalAveragePool", "a", {"channels_last": 0}, 1),  # onnxruntime averages the bytes
    ],
)
def test_results_are_onnxruntimes(
    op_type: str, sides: str, attrs: dict[str, Any], allowed: int, rng: np.random.Generator
) -> None:
    model = model_of(op_type, (2, 3, 5, 7), sides, attrs)
    feeds = {side: rng.integers(0, 256, (2, 3, 5, 7)).astype(np.uint8) for side in sides}
    (wanted,) = run_ort(model, feeds)
    graph = legalize(load_onnx(model))
    assert all(node.domain == "ascend" for node in graph.nodes)
    got = evaluate(graph, feeds)["y"]
    assert got.dtype == wanted.dtype
    assert np.abs(got.astype(int) - wanted.astype(int)).max() <= allowed


@pytest.mark.parametrize(
    ("op_type", "attrs"),
    [("QLinearSoftmax", {"axis": 1, "opset": 12}), ("QLinearGlobalAveragePool", {"channels_last": 1}), ("Gelu2", {})],
)
def test_what_is_not_expressed_stays_unknown(op_type: str, attrs: dict[str, Any]) -> None:
    with pytest.raises(OperatorError, match=op_type):
        load_onnx(model_of(op_type, (2, 3, 5, 7), "a", attrs))


def test_a_model_of_another_domain_alone_loads() -> None:
    node = helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.5)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (3,)) for name in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 3)], ir_version=8)
    assert [node.op_type for node in load_onnx(model).nodes] == ["Binarizer"]
