"""Framework nodes on HOST_CPU: ONNX operators computed by ONNX's own reference implementation, one node at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from metadef.dtype import DType
from metadef.error import DeviceFault, OperatorError
from metadef.format import TensorDesc
from metadef.kernel import Kernel
from metadef.ops.numeric import narrow
from npusim.device import public_array

if TYPE_CHECKING:
    from onnx import AttributeProto, ModelProto, ValueInfoProto

CAPTURED = "captured_names"
"""Attribute of nodes with subgraphs: outer values they read, after the node's own operands (frontend.onnx_write)."""
ABSENT = "absent_results"
"""Attribute of nodes that leave results out: their positions (frontend.onnx_write)."""


def run_framework_node(kernel: Kernel, inputs: Sequence[np.ndarray | None], name: str) -> Sequence[np.ndarray | None]:
    """Results of an ONNX node by ONNX's own reference implementation; shapes must be those the compiler inferred.

    A result that the node leaves out is None.

    Raises:
        OperatorError: the reference has no such operator, or its result has another shape than was inferred.
        DeviceFault: the reference refused the operands' values.
    """
    evaluator = _evaluator(_FrozenKernel(kernel, name))
    feeds = {
        label: _as_numpy(array, desc)
        for label, array, desc in zip(_operand_names(kernel), inputs, kernel.inputs, strict=True)
        if array is not None and desc is not None
    }
    try:
        with np.errstate(all="ignore"):
            results = evaluator.run(None, feeds)
    except (ValueError, TypeError, IndexError, ArithmeticError, RuntimeError) as error:
        text = f"{kernel.op_type} on HOST_CPU failed: {error}"
        raise DeviceFault(text, node=name, hint="check the values this node is given") from error
    made = iter(results)
    absent = kernel.attrs.get(ABSENT, ())
    return [
        None if slot in absent else _checked(np.asarray(next(made)), desc, kernel, name)
        for slot, desc in enumerate(kernel.outputs)
    ]


def _checked(array: np.ndarray, desc: TensorDesc, kernel: Kernel, name: str) -> np.ndarray:
    if array.shape != desc.origin_shape:
        raise OperatorError(
            f"{kernel.op_type} gave a result whose shape depends on its values",
            node=name,
            expected=str(desc.origin_shape),
            got=str(array.shape),
            hint="give the node constant operands, so that the shape is known when the model is compiled",
        )
    return narrow(array, desc.dtype)


class _FrozenKernel:
    """A kernel as a cache key: kernels live as long as their program, so identity is enough."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name

    def __hash__(self) -> int:
        return id(self.kernel)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _FrozenKernel) and other.kernel is self.kernel


@lru_cache(maxsize=256)
def _evaluator(key: _FrozenKernel) -> Any:
    from onnx.reference import ReferenceEvaluator

    from npusim.host_ops import host_operators

    model = single_node_model(key.kernel, key.name)
    opset = next(item.version for item in model.opset_import if not item.domain)
    try:
        return ReferenceEvaluator(model, new_ops=host_operators(opset))
    except Exception as error:  # its constructors check attributes, each in its own way
        text = f"{key.kernel.domain or 'ai.onnx'}::{key.kernel.op_type} has no place to run"
        hint = "ONNX's reference implementation does not know it either, or not with these attributes"
        raise OperatorError(text, node=key.name, got=str(error), hint=hint) from error


def single_node_model(kernel: Kernel, name: str) -> ModelProto:
    """The ONNX model of one framework kernel; its operands are called x0, x1, …, or by the name a subgraph captured."""
    from onnx import defs, helper

    opset = kernel.opset or defs.onnx_opset_version()
    labels = _operand_names(kernel)
    own = labels[: len(labels) - len(kernel.attrs.get(CAPTURED, ()))]
    absent = kernel.attrs.get(ABSENT, ())
    results = ["" if slot in absent else f"y{slot}" for slot in range(len(kernel.outputs))]
    node = helper.make_node(kernel.op_type, own, results, name=name, domain=kernel.domain)
    node.attribute.extend(
        _attribute(kernel, key, value, opset) for key, value in kernel.attrs.items() if key not in (CAPTURED, ABSENT)
    )
    inputs = [_value_info(label, desc) for label, desc in zip(labels, kernel.inputs, strict=True) if desc is not None]
    outputs = [_value_info(label, desc) for label, desc in zip(results, kernel.outputs, strict=True) if label]
    graph = helper.make_graph([node], name or kernel.op_type, inputs, outputs)
    opsets = [helper.make_opsetid(kernel.domain, opset)]
    if kernel.domain:
        opsets.append(helper.make_opsetid("", defs.onnx_opset_version()))
    return helper.make_model(graph, opset_imports=opsets)


def _operand_names(kernel: Kernel) -> list[str]:
    captured = list(kernel.attrs.get(CAPTURED, ()))
    own = len(kernel.inputs) - len(captured)
    return ["" if desc is None else f"x{slot}" for slot, desc in enumerate(kernel.inputs[:own])] + captured


def _value_info(label: str, desc: TensorDesc) -> ValueInfoProto:
    from onnx import helper

    return helper.make_tensor_value_info(label, desc.dtype.onnx_enum, desc.origin_shape)


def _attribute(kernel: Kernel, name: str, value: Any, opset: int) -> AttributeProto:
    """A plain value as the kind of attribute the operator declares: graphs and types were kept as bytes."""
    from onnx import AttributeProto, GraphProto, TypeProto, defs, helper, numpy_helper

    kind = None
    if defs.has(kernel.op_type, opset, kernel.domain):
        declared = defs.get_schema(kernel.op_type, opset, kernel.domain).attributes
        if name in declared:
            kind = AttributeProto.AttributeType.Value(declared[name].type.name)  # type: ignore[attr-defined]
    if isinstance(value, np.ndarray):
        value = numpy_helper.from_array(value)
    elif kind == AttributeProto.GRAPH:
        value = GraphProto.FromString(value)
    elif kind == AttributeProto.TYPE_PROTO:
        value = TypeProto.FromString(value)
    return helper.make_attribute(name, value, attr_type=kind)


def _as_numpy(array: np.ndarray, desc: TensorDesc) -> np.ndarray:
    return public_array(array, desc.dtype) if desc.dtype is DType.BF16 else array.copy()
