"""Timing-only operators: what kernels of training and of fused libraries move and execute, without an implementation.

The first generation's, and those that both generations have; :data:`SIGNATURES` holds all by operator type.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from metadef.cost.signature import ELEMENTWISE, SIGMOID, SLOW, Deal, Moves, Rows, Signature, last, planes, times
from metadef.cost.signatures_910b import SECOND_GENERATION

__all__ = ["SIGNATURES", "TABLE", "Deal", "Moves", "Rows", "Signature", "default_signature", "find_signature"]

TABLE: tuple[Signature, ...] = (
    # element-wise
    Signature(("FusedMulAddN",), ("mul", "add")),
    Signature(("FusionOp_Mul_Neg", "FusionOp_Mul_Square", "Square"), ("mul", "mul")),
    Signature(("FusionOp_RealDiv_Sqrt",), ("div", "sqrt")),
    Signature(("FusionOp_RealDiv_Neg",), ("div", "muls")),
    Signature(("FusionOp_Add_Floor",), ("add", "cast", "cast")),
    Signature(("Reciprocal",), ("div",)),
    Signature(("BiasAdd",), ("add",), rows=Rows.PLANES, row_calls=2),
    Signature(("Less", "Greater", "LessEqual", "Equal", "LogicalAnd", "LogicalOr", "LogicalNot"), times(17)),
    Signature(("Select",), ("compare", "select", "cast")),
    Signature(("ReluGrad", "TanhGrad"), ("compare", "select", "mul", *times(9))),
    Signature(("ReluGradV2",), times(15)),
    Signature(("SigmoidGrad",), ("muls", "adds", "mul", "mul", *times(7))),
    Signature(("SigmoidCrossEntropyWithLogits",), ("abs", "muls", "exp", "adds", "ln", "max", "mul", "sub")),
    Signature(("SigmoidCrossEntropyWithLogitsGrad",), (*SIGMOID, "sub", "mul")),
    Signature(("MaximumGrad", "MinimumGrad"), times(19)),
    Signature(("GeLU",), times(11, *SIGMOID), fp32=True),
    Signature(("GeLUGrad",), times(29, *SIGMOID), fp32=True),
    Signature(("DropoutDoMask",), times(13), wide_work=times(21)),
    Signature(("Assign", "AssignAdd", "TensorMove"), ("copy",)),
    Signature(("AtomicAddrClean", "ZerosLike", "OnesLike", "MemSet"), (), moves=Moves.WRITTEN),
    # optimisers
    Signature(
        ("Adam",), ("muls", "mul", "muls", "add", "muls", "add", "muls", "sqrt", "adds", "div", "sub", *times(3))
    ),
    Signature(("ApplyRMSProp",), ("mul", "sub", "muls", "add", "sqrt", "div", "muls", "add", "sub", "add")),
    Signature(("FusedMulApplyMomentum",), times(20)),
    Signature(("LambApplyOptimizerAssign",), ("mul", "muls", "add", "muls", "add", *("div",) * 3, "sqrt", *times(29))),
    Signature(("LambApplyWeightAssign",), times(8)),
    Signature(("ClipByNormNoDivSum",), ("compare", "select", "sqrt", "max")),
    Signature(("FusedAddNReluGradV2",), ("add", "compare", "select", "mul", "mul"), fp32=True),
    # reductions
    Signature(("BiasAddGrad",), times(6)),
    Signature(("ReduceSum", "SquareSumV1", "SquareSumV2", "FusionOp_ReduceSum_Square"), times(4)),
    Signature(("ReduceMean",), ("reduce_sum", "muls")),
    last(("ReduceMax",), times(3), 19),
    # normalisation in training
    Signature(("FusedBNTrainingReduce",), times(9), fp32=True),
    planes(("BNTrainingReduce",), times(4), 4),
    planes(("BNTrainingReduceGrad",), times(5), 3, wide=times(6)),
    planes(("BNTrainingUpdate",), times(2), 3),
    planes(("FusionOp_BNTrainingUpdate_ReLUV2",), times(4), 3, odd=times(11)),
    planes(("FusionOp_BNTrainingUpdate_Add_ReLUV2",), times(3), 4),
    planes(("BNTrainingUpdateGrad",), times(7), 8, wide=times(8), serial=True),
    last(("LayerNorm",), times(10), 19, fp32=True),
    Signature(("LayerNormXBackpropV2",), times(1), row_calls=40, fp32=True, rows=Rows.EVERY, deal=Deal.ROWS),
    last(("LayerNormBetaGammaBackpropV2",), times(6), 2, fp32=True),
    # softmax family
    last(("LogSoftmax",), ("exp", "ln", "reduce_sum", "reduce_max"), 0),
    last(("LogSoftmaxGrad",), ("exp", "reduce_sum"), 0),
    last(("SoftmaxGradExt", "ConfusionSoftmaxGrad"), times(20), 0),
    last(("SoftmaxCrossEntropyWithLogits",), times(60), 60),
    # parts, rows by index, windows
    Signature(("StridedSlice", "Slice", "Split", "Concat", "Tile", "StridedSliceGrad"), moves=Moves.PARTS),
    Signature(("Gather", "OneHot"), moves=Moves.PICKED),
    Signature(("UnsortedSegmentSum",), moves=Moves.SCATTERED),
    planes(("ResizeNearestNeighbor",), times(2), 0),
    planes(("ResizeNearestNeighborGrad",), times(18), 10),
    Signature(("AvgPool",), times(33), moves=Moves.WINDOWS),
    Signature(("AvgPoolGradVm",), times(10), row_calls=3, rows=Rows.PLANES, deal=Deal.SAMPLES),
    Signature(("MaxPoolWithArgmax",), times(12), moves=Moves.WINDOWS),
    Signature(("MaxPoolGradWithArgmax",), times(40), moves=Moves.WINDOWS),
    Signature(("Transpose",), moves=Moves.ELEMENTS, setup=9000),
    Signature(("TransposeNOD",), times(34)),
    Signature(("ConfusionTransposeD",), times(3)),
    Signature(("NPUAllocFloatStatus", "NPUClearFloatStatus", "NPUGetFloatStatus"), ("copy",)),
)

SIGNATURES: dict[str, Signature] = {
    name: signature for signature in (*TABLE, *SECOND_GENERATION) for name in signature.types
}
"""By operator type."""


def find_signature(op_type: str) -> Signature | None:
    """The signature of a timing-only operator, or None."""
    return SIGNATURES.get(op_type)


def default_signature(kind: str, without: str = "") -> Signature:
    """A cost class's list for a type that nobody declared: the median of the class's other types.

    Where the class has no other type the element-wise list stands in, moved as the class moves.
    """
    known = {item for item in (*TABLE, *SECOND_GENERATION) if item.kind == kind and without not in item.types}
    if not known:
        stand_in = default_signature(ELEMENTWISE)
        return replace(stand_in, moves=Moves(kind)) if kind in {item.value for item in Moves} else stand_in
    most = max(known, key=lambda item: (sum(item.deal is other.deal for other in known), item.types))
    wide = 2 * sum(item.fp32 for item in known) >= len(known)
    return replace(
        most,
        types=("",),
        work=times(_usual([sum(SLOW.get(name, 1) for name in item.work) for item in known])),
        row_calls=_usual([item.row_calls for item in known]),
        fp32=wide,
        serial=False,
        wide_work=(),
        odd_work=(),
        scalar=_usual([item.scalar for item in known]),
        setup=_usual([item.setup for item in known]),
    )


def _usual(values: list[Any]) -> Any:
    """The median; of two the smaller, so that one type with scalar code beside its list is no rule."""
    return sorted(values)[(len(values) - 1) // 2]
