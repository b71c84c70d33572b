"""Timing-only operators: what kernels of training and of fused libraries move and execute, without an implementation.

A :class:`Signature` states an operator's instruction list, how its rows are counted and how whole units are dealt to
cores; ``metadef.cost.signature_view`` turns it into a :class:`VectorView`. Such operators are timed and cannot run.
Lists count vector instructions of one 256-byte repeat of the computed width over the largest operand, casts of 16-bit
operands included; ``row_calls`` counts the dependent instructions that every row starts anew. Lists that are no known
formula were set so that published tasks of the type agree (training steps of the first generation, 910B traces).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Rows(Enum):
    """How an operator's rows are counted: along the last axis (fractals of FRACTAL_NZ hold sixteen rows, which run
    together, unless EVERY), by planes of NC1HWC0, or not at all."""

    NONE = "none"
    LAST = "last"
    EVERY = "every"
    PLANES = "planes"


class Deal(Enum):
    """What goes whole to a core: 512-byte pieces, rows, samples (first axis) or channel blocks (second axis)."""

    FLAT = "flat"
    ROWS = "rows"
    SAMPLES = "samples"
    CHANNELS = "channels"


class Moves(Enum):
    """What passes global memory: every operand once, results only, parts of rows, picked or scattered rows, or the
    elements of a transpose one by one."""

    ALL = "all"
    WRITTEN = "written"
    PARTS = "parts"
    PICKED = "picked"
    SCATTERED = "scattered"
    WINDOWS = "windows"
    ELEMENTS = "elements"


@dataclass(frozen=True)
class Signature:
    """What a timing-only operator executes. ``serial`` says that a core with one unit uses one set of buffers."""

    types: tuple[str, ...]
    work: tuple[str, ...] = ()
    row_calls: int = 0
    rows: Rows = Rows.NONE
    deal: Deal = Deal.FLAT
    moves: Moves = Moves.ALL
    fp32: bool = False
    serial: bool = False
    wide_work: tuple[str, ...] = ()
    """The list for 32-bit operands, where it is another one."""


def _times(count: int, *rest: str) -> tuple[str, ...]:
    """``count`` plain instructions, one cycle a repeat each, and ``rest``."""
    return ("add",) * count + rest


_SIGMOID = ("muls", "exp", "adds", "div")


def _planes(
    types: tuple[str, ...], work: tuple[str, ...], calls: int, *, wide: tuple[str, ...] = (), serial: bool = False
) -> Signature:
    """Kernels over planes of NC1HWC0 in fp32, whole samples to a core."""
    return Signature(types, work, calls, Rows.PLANES, Deal.SAMPLES, fp32=True, serial=serial, wide_work=wide)


def _last(types: tuple[str, ...], work: tuple[str, ...], calls: int = 0, *, fp32: bool = False) -> Signature:
    """Kernels over rows of the last axis, whole rows to a core."""
    return Signature(types, work, calls, Rows.LAST, Deal.ROWS, fp32=fp32)


TABLE: tuple[Signature, ...] = (
    # element-wise
    Signature(("FusedMulAddN",), ("mul", "add")),
    Signature(("FusionOp_Mul_Neg", "FusionOp_Mul_Square", "Square"), ("mul", "mul")),
    Signature(("FusionOp_RealDiv_Sqrt",), ("div", "sqrt")),
    Signature(("FusionOp_RealDiv_Neg",), ("div", "muls")),
    Signature(("FusionOp_Add_Floor",), ("add", "cast", "cast")),
    Signature(("Reciprocal",), ("div",)),
    Signature(("BiasAdd",), ("add",), rows=Rows.PLANES, row_calls=2),
    Signature(("Less", "Greater", "LessEqual", "Equal", "LogicalAnd", "LogicalOr", "LogicalNot"), _times(17)),
    Signature(("Select",), ("compare", "select", "cast")),
    Signature(("ReluGrad", "TanhGrad"), ("compare", "select", "mul", "add")),
    Signature(("ReluGradV2",), _times(15)),
    Signature(("SigmoidGrad",), ("muls", "adds", "mul", "mul", *_times(7))),
    Signature(
        ("SigmoidCrossEntropyWithLogits",), ("abs", "muls", "exp", "adds", "ln", "max", "mul", "sub", *_times(2))
    ),
    Signature(("SigmoidCrossEntropyWithLogitsGrad",), (*_SIGMOID, "sub", "mul", *_times(10))),
    Signature(("MaximumGrad", "MinimumGrad"), _times(19)),
    Signature(("GeLU",), _times(20, *_SIGMOID), fp32=True),
    Signature(("GeLUGrad",), _times(44, *_SIGMOID), fp32=True),
    Signature(("DropoutDoMask",), _times(12), wide_work=_times(18)),
    Signature(("Assign", "AssignAdd", "TensorMove"), ("copy",)),
    Signature(("AtomicAddrClean", "ZerosLike", "OnesLike", "MemSet"), (), moves=Moves.WRITTEN),
    # optimisers
    Signature(
        ("Adam",), ("muls", "mul", "muls", "add", "muls", "add", "muls", "sqrt", "adds", "div", "sub", *_times(6))
    ),
    Signature(("ApplyRMSProp",), ("mul", "sub", "muls", "add", "sqrt", "div", "muls", "add", "sub", *_times(3))),
    Signature(("FusedMulApplyMomentum",), _times(22)),
    Signature(("LambApplyOptimizerAssign",), ("mul", "muls", "add", "muls", "add", *("div",) * 3, "sqrt", *_times(32))),
    Signature(("LambApplyWeightAssign",), _times(12)),
    Signature(("ClipByNormNoDivSum",), ("compare", "select", "sqrt", "max")),
    # reductions
    Signature(("BiasAddGrad",), _times(6)),
    Signature(("ReduceSum", "SquareSumV1", "SquareSumV2", "FusionOp_ReduceSum_Square"), _times(4)),
    Signature(("ReduceMean",), ("reduce_sum", "muls")),
    _last(("ReduceMax",), _times(19), 19),
    # normalisation in training
    Signature(("FusedBNTrainingReduce",), _times(11), fp32=True),
    _planes(("BNTrainingReduce",), _times(4), 4),
    _planes(("BNTrainingReduceGrad",), _times(5), 3, wide=_times(6)),
    _planes(("BNTrainingUpdate",), _times(2), 3),
    _planes(("FusionOp_BNTrainingUpdate_ReLUV2",), _times(5), 3),
    _planes(("FusionOp_BNTrainingUpdate_Add_ReLUV2",), _times(3), 4),
    _planes(("BNTrainingUpdateGrad",), _times(7), 8, wide=_times(8), serial=True),
    _last(("LayerNorm",), _times(10), 19, fp32=True),
    Signature(("LayerNormXBackpropV2",), _times(1), row_calls=40, fp32=True, rows=Rows.EVERY, deal=Deal.ROWS),
    _last(("LayerNormBetaGammaBackpropV2",), _times(6), 2, fp32=True),
    # softmax family
    _last(("LogSoftmax",), _times(4, "exp", "ln", "reduce_sum", "reduce_max"), 0),
    _last(("LogSoftmaxGrad",), _times(2, "exp", "reduce_sum"), 0),
    _last(("SoftmaxGradExt", "ConfusionSoftmaxGrad"), _times(20), 0),
    _last(("SoftmaxCrossEntropyWithLogits",), _times(60), 60),
    # parts, rows by index, windows
    Signature(("StridedSlice", "Slice", "Split", "Concat", "Tile", "StridedSliceGrad"), moves=Moves.PARTS),
    Signature(("Gather", "OneHot"), moves=Moves.PICKED),
    Signature(("UnsortedSegmentSum",), moves=Moves.SCATTERED),
    _planes(("ResizeNearestNeighbor",), _times(2), 0),
    _planes(("ResizeNearestNeighborGrad",), _times(18), 10),
    Signature(("AvgPool",), _times(33), moves=Moves.WINDOWS),
    Signature(("AvgPoolGradVm",), _times(10), row_calls=3, rows=Rows.PLANES, deal=Deal.SAMPLES),
    Signature(("MaxPoolWithArgmax",), _times(12), moves=Moves.WINDOWS),
    Signature(("MaxPoolGradWithArgmax",), _times(40), moves=Moves.WINDOWS),
    Signature(("Transpose",), moves=Moves.ELEMENTS),
    Signature(("TransposeNOD",), _times(34)),
    Signature(("ConfusionTransposeD",), _times(4)),
    Signature(("NPUAllocFloatStatus", "NPUClearFloatStatus", "NPUGetFloatStatus"), ("copy",)),
)

SECOND_GENERATION: tuple[Signature, ...] = (
    # fused and list kernels of the 910B libraries
    Signature(("LpNormV2", "LpNormReduceV2", "ForeachNorm", "ReduceSumD"), _times(5, "mul", "reduce_sum"), fp32=True),
    Signature(("ApplyAdamW", "ApplyAdamWV2"), _times(52, "sqrt", "div", "div", "mul", "mul", "add"), fp32=True),
    Signature(("ForeachAddList", "ForeachMulScalar"), ("mul", "add")),
    Signature(("ForeachAddcdiv",), _times(18, "div", "mul", "add"), fp32=True),
    Signature(("DropOutDoMask", "MaskedScale"), _times(5, "select", "muls")),
    Signature(("BroadcastTo", "AsStrided", "Tril", "Index"), ("copy",)),
    Signature(("FastGelu", "Pows"), ("muls", "exp", "adds", "div", "mul"), fp32=True),
    Signature(("AbsScaleExp",), ("muls", "adds", "exp"), fp32=True),
    Signature(("GreaterEqual", "NotEqual"), _times(17)),
    Signature(("RotaryPositionEmbedding", "RotaryPositionEmbeddingGrad"), _times(8), fp32=True),
    Signature(("MaxPoolWithArgmaxV1",), _times(12), moves=Moves.WINDOWS),
    Signature(("MaxPoolGradWithArgmaxV1",), _times(40), moves=Moves.WINDOWS),
    Signature(("ConcatD",), moves=Moves.PARTS),
    Signature(("GatherV2",), moves=Moves.PICKED),
    _last(("SwiGlu", "SwiGluGrad"), (*_SIGMOID, "mul", "mul"), 20, fp32=True),
    _last(("RmsNormGrad",), _times(14, "mul", "reduce_sum"), 12, fp32=True),
    _last(("ScaledMaskedSoftmax",), _times(8, "reduce_max", "exp", "reduce_sum", "div"), 15, fp32=True),
    _last(("DynamicQuant",), ("abs", "reduce_max", "muls", "cast", "cast"), 25, fp32=True),
    _last(("AddRmsNormDynamicQuant",), _times(20, "reduce_sum", "reduce_max", "div"), 21, fp32=True),
    _last(("DequantSwigluQuant",), _times(14, *_SIGMOID, "reduce_max"), 30, fp32=True),
    _last(("GroupNorm",), _times(10, "reduce_sum", "reduce_sum"), 36, fp32=True),
    _last(("MoeReRouting",), ("copy",), 3),
    _last(("MoeFinalizeRouting",), _times(6), 18, fp32=True),
)

SIGNATURES: dict[str, Signature] = {
    name: signature for signature in (*TABLE, *SECOND_GENERATION) for name in signature.types
}
"""By operator type."""


def find_signature(op_type: str) -> Signature | None:
    """The signature of a timing-only operator, or None."""
    return SIGNATURES.get(op_type)
