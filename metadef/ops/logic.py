"""Comparisons, logic and selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from metadef.dtype import DType
from metadef.format import TensorDesc
from metadef.op import ALL_TYPES, NUMBERS, Attrs, OpDef, Port, VectorWork, register
from metadef.ops.common import Y, array, binary_reference, broadcast_rule, operand, unary_reference
from metadef.ops.geometry import Descs, broadcast_shapes

_TRUTH = Port("y", (DType.BOOL,))
_COMPARE = VectorWork(("compare", "dup", "select", "cast"))


def _comparison(op_type: str, function: Callable[..., np.ndarray], types: tuple[DType, ...], doc: str) -> None:
    ports = (Port("x1", types, type_var="T"), Port("x2", types, type_var="T"))
    rule = broadcast_rule(DType.BOOL)
    register(
        OpDef(op_type, ports, (_TRUTH,), rule, binary_reference(function), f"{doc}; the result is bool.", work=_COMPARE)
    )


def _logical(op_type: str, function: Callable[..., np.ndarray], work: tuple[str, ...], doc: str) -> None:
    ports = (Port("x1", (DType.BOOL,)), Port("x2", (DType.BOOL,)))
    rule = broadcast_rule(DType.BOOL)
    register(OpDef(op_type, ports, (_TRUTH,), rule, binary_reference(function), doc, work=VectorWork(work)))


def _infer_select(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    (shape,) = broadcast_rule()(inputs, attrs)
    return [TensorDesc(shape.origin_shape, operand(inputs, 1).dtype, shape.origin_format, shape.origin_format)]


def _select_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    condition, then, other = (array(inputs, position) for position in range(3))
    shape = broadcast_shapes(condition.shape, then.shape, other.shape)
    return [np.where(np.broadcast_to(condition, shape), then, other)]


_comparison("Equal", np.equal, ALL_TYPES, "x1 == x2")
_comparison("NotEqual", np.not_equal, ALL_TYPES, "x1 != x2")
_comparison("Greater", np.greater, NUMBERS, "x1 > x2")
_comparison("GreaterEqual", np.greater_equal, NUMBERS, "x1 >= x2")
_comparison("Less", np.less, NUMBERS, "x1 < x2")
_comparison("LessEqual", np.less_equal, NUMBERS, "x1 <= x2")
_logical("LogicalAnd", np.logical_and, ("and",), "Both operands are true.")
_logical("LogicalOr", np.logical_or, ("or",), "At least one operand is true.")
_logical("LogicalXor", np.logical_xor, ("or", "and", "not", "and"), "Exactly one operand is true.")

register(
    OpDef(
        "LogicalNot",
        (Port("x", (DType.BOOL,)),),
        (_TRUTH,),
        broadcast_rule(DType.BOOL),
        unary_reference(np.logical_not),
        "The operand is false.",
        inplace=((0, 0),),
        work=VectorWork(("not",)),
    )
)
register(
    OpDef(
        "SelectV2",
        (
            Port("condition", (DType.BOOL,)),
            Port("then", ALL_TYPES, type_var="T"),
            Port("else", ALL_TYPES, type_var="T"),
        ),
        (Y,),
        _infer_select,
        _select_reference,
        "then where condition holds, otherwise else; all three broadcast.",
        inplace=((1, 0), (2, 0)),
        work=VectorWork(("cast", "compare_scalar", "select")),
    )
)
register(
    OpDef(
        "IsNan",
        (Port("x", tuple(dtype for dtype in ALL_TYPES if dtype.is_float)),),
        (_TRUTH,),
        broadcast_rule(DType.BOOL),
        unary_reference(np.isnan),
        "x is not a number.",
        work=_COMPARE,
    )
)
