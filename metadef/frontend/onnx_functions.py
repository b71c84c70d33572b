"""Functions of a model: its own, and those that quantised operators of onnxruntime's own domain stand for.

onnxruntime's quantiser writes such operators into models. Each stands for its operands as numbers, the operation, and
the result quantised anew; they are expanded like a model's own functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, helper

from metadef.error import ModelError

DOMAIN = "com.microsoft"
_UNARY = {"QLinearSoftmax": "Softmax", "QLinearSigmoid": "Sigmoid", "QLinearLeakyRelu": "LeakyRelu"} | {
    "QLinearGlobalAveragePool": "GlobalAveragePool"
}
_BINARY = {"QLinearAdd": "Add", "QLinearMul": "Mul"}
_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "QLinearSoftmax": {"axis": -1, "opset": 13},
    "QLinearLeakyRelu": {"alpha": 0.01},
    "QLinearGlobalAveragePool": {"channels_last": 0},
}
_PASSED = {"Softmax": "axis", "LeakyRelu": "alpha"}
_ONE_AXIS_SINCE = 13
"""Before that opset, softmax ran over all trailing axes."""


def with_functions(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model with definitions of what it uses of the domain; the model itself if there is nothing to add.

    ``opset`` is the version of the main domain that the model imports.
    """
    local = {(item.domain, item.name) for item in model.functions}
    used = {
        node.op_type
        for node in model.graph.node
        if node.domain == DOMAIN and (DOMAIN, node.op_type) not in local and _is_expressed(node)
    }
    if not used:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    result.functions.extend(_function(name, opset) for name in sorted(used))
    return result


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its local functions expanded. Raises ModelError if they call each other in a circle."""
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        raise ModelError(
            f"the model's functions cannot be expanded: {str(error).splitlines()[0]}",
            code="E14001",
            got=f"{len(model.functions)} functions",
        ) from error


def _is_expressed(node: NodeProto) -> bool:
    if node.op_type not in _UNARY and node.op_type not in _BINARY:
        return False
    given = {item.name: item.i for item in node.attribute}
    return given.get("opset", _ONE_AXIS_SINCE) >= _ONE_AXIS_SINCE and not given.get("channels_last", 0)


def _function(name: str, opset: int) -> FunctionProto:
    inner = _UNARY.get(name) or _BINARY[name]
    sides = ("a", "b") if name in _BINARY else ("a",)
    quantised = {side: [side, f"{side}_scale", f"{side}_zero"] for side in sides}
    nodes = [helper.make_node("DequantizeLinear", parts, [f"{side}_real"]) for side, parts in quantised.items()]
    work = helper.make_node(inner, [f"{side}_real" for side in sides], ["real"])
    if inner in _PASSED:
        defaults = _ATTRIBUTES[name]
        kind = AttributeProto.FLOAT if isinstance(defaults[_PASSED[inner]], float) else AttributeProto.INT
        work.attribute.append(AttributeProto(name=_PASSED[inner], ref_attr_name=_PASSED[inner], type=kind))
    nodes += [work, helper.make_node("QuantizeLinear", ["real", "y_scale", "y_zero"], ["y"])]
    return helper.make_function(
        DOMAIN,
        name,
        [*(part for parts in quantised.values() for part in parts), "y_scale", "y_zero"],
        ["y"],
        nodes,
        [helper.make_opsetid("", opset)],
        attribute_protos=list(_defaults(_ATTRIBUTES.get(name, {}))),
    )


def _defaults(values: Mapping[str, Any]) -> Iterable[AttributeProto]:
    return (helper.make_attribute(name, value) for name, value in values.items())
