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

TIMING_ONLY = "timing only"
"""``Kernel.algorithm`` of such operators."""


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
_PLANE_ROWS = {"rows": Rows.PLANES, "deal": Deal.SAMPLES, "fp32": True}
_LAST_ROWS = {"rows": Rows.LAST, "deal": Deal.ROWS}

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
    Signature(("ReduceMax",), _times(19), row_calls=19, **_LAST_ROWS),
    # normalisation in training
    Signature(("FusedBNTrainingReduce",), _times(11), fp32=True),
    Signature(("BNTrainingReduce",), _times(4), row_calls=4, **_PLANE_ROWS),
    Signature(("BNTrainingReduceGrad",), _times(5), row_calls=3, wide_work=_times(6), **_PLANE_ROWS),
    Signature(("BNTrainingUpdate",), _times(2), row_calls=3, **_PLANE_ROWS),
    Signature(("FusionOp_BNTrainingUpdate_ReLUV2",), _times(5), row_calls=3, **_PLANE_ROWS),
    Signature(("FusionOp_BNTrainingUpdate_Add_ReLUV2",), _times(3), row_calls=4, **_PLANE_ROWS),
    Signature(("BNTrainingUpdateGrad",), _times(7), row_calls=8, wide_work=_times(8), serial=True, **_PLANE_ROWS),
    Signature(("LayerNorm",), _times(10), row_calls=19, fp32=True, **_LAST_ROWS),
    Signature(("LayerNormXBackpropV2",), _times(1), row_calls=40, fp32=True, rows=Rows.EVERY, deal=Deal.ROWS),
    Signature(("LayerNormBetaGammaBackpropV2",), _times(6), row_calls=2, fp32=True, **_LAST_ROWS),
    # softmax family
    Signature(("LogSoftmax",), _times(4, "exp", "ln", "reduce_sum", "reduce_max"), **_LAST_ROWS),
    Signature(("LogSoftmaxGrad",), _times(2, "exp", "reduce_sum"), **_LAST_ROWS),
    Signature(("SoftmaxGradExt", "ConfusionSoftmaxGrad"), _times(20), **_LAST_ROWS),
    Signature(("SoftmaxCrossEntropyWithLogits",), _times(60), row_calls=60, **_LAST_ROWS),
    # parts, rows by index, windows
    Signature(("StridedSlice", "Slice", "Split", "Concat", "Tile", "StridedSliceGrad"), moves=Moves.PARTS),
    Signature(("Gather", "OneHot"), moves=Moves.PICKED),
    Signature(("UnsortedSegmentSum",), moves=Moves.SCATTERED),
    Signature(("ResizeNearestNeighbor",), _times(2), **_PLANE_ROWS),
    Signature(("ResizeNearestNeighborGrad",), _times(18), row_calls=10, **_PLANE_ROWS),
    Signature(("AvgPool",), _times(33), moves=Moves.WINDOWS),
    Signature(("AvgPoolGradVm",), _times(10), row_calls=3, rows=Rows.PLANES, deal=Deal.SAMPLES),
    Signature(("MaxPoolWithArgmax",), _times(12), moves=Moves.WINDOWS),
    Signature(("MaxPoolGradWithArgmax",), _times(40), moves=Moves.WINDOWS),
    Signature(("Transpose",), moves=Moves.ELEMENTS),
    Signature(("TransposeNOD",), _times(34)),
    Signature(("ConfusionTransposeD",), _times(4)),
    Signature(("NPUAllocFloatStatus", "NPUClearFloatStatus", "NPUGetFloatStatus"), ("copy",)),
)

SIGNATURES: dict[str, Signature] = {name: signature for signature in TABLE for name in signature.types}
"""By operator type."""


def find_signature(op_type: str) -> Signature | None:
    """The signature of a timing-only operator, or None."""
    return SIGNATURES.get(op_type)
