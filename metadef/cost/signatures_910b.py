"""Timing-only operators of the 910B family's libraries: fused kernels, lists of tensors, quantisation, routing."""

from __future__ import annotations

from metadef.cost.signature import SIGMOID, Moves, Signature, last, times

SECOND_GENERATION: tuple[Signature, ...] = (
    # fused and list kernels of the 910B libraries
    Signature(("LpNormV2", "LpNormReduceV2", "ForeachNorm", "ReduceSumD"), times(5, "mul", "reduce_sum"), fp32=True),
    Signature(("ApplyAdamW", "ApplyAdamWV2"), times(52, "sqrt", "div", "div", "mul", "mul", "add"), fp32=True),
    Signature(("ForeachAddList", "ForeachMulScalar"), ("mul", "add")),
    Signature(("ForeachAddcdiv",), times(18, "div", "mul", "add"), fp32=True),
    Signature(("DropOutDoMask", "MaskedScale"), times(5, "select", "muls")),
    Signature(("BroadcastTo", "AsStrided", "Tril", "Index"), ("copy",)),
    Signature(("FastGelu", "Pows"), ("muls", "exp", "adds", "div", "mul"), fp32=True),
    Signature(("AbsScaleExp",), ("muls", "adds", "exp"), fp32=True),
    Signature(("GreaterEqual", "NotEqual"), times(17)),
    Signature(("RotaryPositionEmbedding", "RotaryPositionEmbeddingGrad"), times(8), fp32=True),
    Signature(("MaxPoolWithArgmaxV1",), times(12), moves=Moves.WINDOWS),
    Signature(("MaxPoolGradWithArgmaxV1",), times(40), moves=Moves.WINDOWS),
    Signature(("ConcatD",), moves=Moves.PARTS),
    Signature(("GatherV2",), moves=Moves.PICKED),
    last(("SwiGlu", "SwiGluGrad"), (*SIGMOID, "mul", "mul"), 20, fp32=True),
    last(("RmsNormGrad",), times(14, "mul", "reduce_sum"), 12, fp32=True),
    last(("ScaledMaskedSoftmax",), times(8, "reduce_max", "exp", "reduce_sum", "div"), 15, fp32=True),
    last(("DynamicQuant",), ("abs", "reduce_max", "muls", "cast", "cast"), 25, fp32=True),
    last(("AddRmsNormDynamicQuant",), times(20, "reduce_sum", "reduce_max", "div"), 21, fp32=True),
    last(("DequantSwigluQuant",), times(14, *SIGMOID, "reduce_max"), 30, fp32=True),
    last(("GroupNorm",), times(10, "reduce_sum", "reduce_sum"), 36, fp32=True),
    last(("MoeReRouting",), ("copy",), 3),
    last(("MoeFinalizeRouting",), times(6), 18, fp32=True),
)
