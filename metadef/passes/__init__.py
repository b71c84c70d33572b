"""The pipeline from a legalised graph to one that kernels can be chosen for: a table of contents, in the order of work.

Names are GE's where the meaning agrees; ``fusion_switch.cfg`` and ``PassOptions.disabled`` know passes by them.
"""

from __future__ import annotations

from metadef.graph import Graph
from metadef.passes.aipp_conv import FuseAipp
from metadef.passes.channel_shuffle import JoinShuffle
from metadef.passes.cleanup import (
    CommonSubexpressionEliminationPass,
    FoldConstants,
    JoinCasts,
    PrunePass,
    RemoveNeutral,
)
from metadef.passes.control import ControlCopyPass
from metadef.passes.depthwise import GroupDepthwise
from metadef.passes.fractal import HeavyFormatPropagation
from metadef.passes.graph_fusion import (
    CONVOLUTIONS,
    FoldBatchNorm,
    FoldBias,
    FoldPadding,
    FoldScale,
    JoinAffine,
    SplitBatchNorm,
)
from metadef.passes.insert_aipp import InsertAipp
from metadef.passes.invariant import LoopInvariantPass
from metadef.passes.layout import CancelTransData, RefineRunningFormat
from metadef.passes.notask import ConcatNotaskPass, SplitNotaskPass
from metadef.passes.pattern_fusion import JoinGate, JoinGelu, JoinHardSwish, JoinLayerNorm
from metadef.passes.placement import EnginePlacer
from metadef.passes.precision import RefineRunningPrecision
from metadef.passes.small_channel import SmallChannelPass
from metadef.passes.stream_split import StreamSplitPass
from metadef.passes.ub_fusion import CLIPS, VECTOR_ACTIVATIONS, FuseActivation, FuseElementwise, FuseResidual, FuseScale
from metadef.passes.views import FoldTranspose, JoinTransposes, JoinViews, SinkView
from metadef.rewrite import (
    GRAPH_FUSION,
    UB_FUSION,
    Pass,
    PassContext,
    PassHook,
    PassOptions,
    PassRecord,
    PassReport,
    Rule,
    RulePass,
    run_passes,
)
from metadef.target import Target

__all__ = ["PIPELINE", "Pass", "PassContext", "PassOptions", "PassRecord", "PassReport", "find_pass", "run_pipeline"]


def _prepare(name: str, reason: str, *rules: Rule) -> RulePass:
    return RulePass(name, reason, rules=rules)


def _fusion(name: str, reason: str, *rules: Rule) -> RulePass:
    return RulePass(name, reason, GRAPH_FUSION, rules=rules)


def _epilogue(name: str, reason: str, *rules: Rule) -> RulePass:
    return RulePass(name, reason, UB_FUSION, rules=rules)


_ACTIVATIONS = VECTOR_ACTIVATIONS - CLIPS

PIPELINE: tuple[Pass, ...] = (
    InsertAipp("InsertAipp", "inputs that take pictures, as --insert_op_conf says", required=True),
    # Prepare: less graph, same values.
    RulePass("DepthwiseToConv2DPass", "one form of grouped convolutions", required=True, rules=(GroupDepthwise(),)),
    _prepare("ConstantFoldingPass", "what depends on constants only is computed now", FoldConstants()),
    _prepare("IdentityPass", "nodes that hand on an operand", RemoveNeutral("Identity", "ConcatD", "AccumulateNV2")),
    _prepare("UnchangedTransposeRemovePass", "transposes that move nothing", RemoveNeutral("TransposeD")),
    _prepare("PermuteFusionPass", "transposes in a row are one", JoinTransposes(), RemoveNeutral("TransposeD")),
    _prepare("NoUseReshapeRemovePass", "views of views are one view", JoinViews()),
    _prepare("ViewSinkingPass", "views go behind element-wise operators (our own pass)", SinkView(), JoinViews()),
    _prepare("CastRemovePass", "casts that change nothing or undo each other", RemoveNeutral("Cast"), JoinCasts()),
    _prepare(
        "AlgebraicSimplificationPass",
        "x + 0, x * 1 and their like",
        RemoveNeutral("Add", "Sub", "Mul", "RealDiv", "Pow", "PadD", "TileD", "BroadcastToD"),
    ),
    CommonSubexpressionEliminationPass("CommonSubexpressionEliminationPass", "what is computed twice is computed once"),
    PrunePass("PrunePass", "nodes that no output needs"),
    # OptimizeOriginalGraph: operators that were spelled out are joined, constants recomputed so that operators vanish.
    _fusion("LayerNormONNXFusionPass", "a layer norm in nine steps is one operator", JoinLayerNorm()),
    _fusion("GeluFusion", "Gelu spelled out with Erf is one operator (our own pass)", JoinGelu()),
    _fusion("SwishFusion", "x times its sigmoid, hard or not, is one (our own pass)", JoinGate(), JoinHardSwish()),
    _fusion("ShuffleChannelFusion", "a channel shuffle spelled out by views is one operator (our own)", JoinShuffle()),
    _fusion("MatMulTransposeFusion", "a transpose is the product's flag (our own pass)", FoldTranspose()),
    _fusion("PaddConv2dFusionPass", "zero padding is the convolution's own", FoldPadding()),
    _fusion("ConvBatchnormFusionPass", "normalisation goes into filter and bias", FoldBatchNorm()),
    _fusion("ConvScaleFusionPass", "a factor a channel goes into the filter", FoldScale("Mul", "RealDiv")),
    _fusion("AABiasaddConvFusion", "a summand a channel is the bias", FoldScale("Add", "Sub")),
    _fusion("HostBNFusionPass", "a lone normalisation is one factor and one summand a channel", SplitBatchNorm()),
    _fusion("AffineChainFusion", "constant factors and summands in a row are one each (our own pass)", JoinAffine()),
    _fusion("MatMulBiasAddFusionPass", "a constant row behind a product is its bias", FoldBias()),
    # Element types, storage formats, engines.
    RefineRunningPrecision("RefineRunningPrecision", "the types that the device computes in", required=True),
    _prepare("CastRemoveFusionPass", "casts that the new types made idle", RemoveNeutral("Cast"), JoinCasts()),
    RefineRunningFormat("RefineRunningFormat", "the formats that the kernels read", required=True),
    _prepare("TransOpSymmetryEliminationPass", "format changes that undo each other", CancelTransData()),
    LoopInvariantPass("LoopInvariantPass", "what no iteration changes is computed before the loop (our own pass)"),
    HeavyFormatPropagation("HeavyFormatPropagation", "fractals stay fractals between matrix products"),
    EnginePlacer("EnginePlacer", "which unit runs which node", required=True),
    SmallChannelPass("SmallChannelPass", "pictures are not padded to a channel block (our own pass)"),
    # UB fusion: epilogues on the chip.
    _epilogue("TbeConvDoubleInFusionPass", "a residual sum in the epilogue", FuseResidual(CONVOLUTIONS)),
    _epilogue("TbeConvSingleInFusionPass", "an activation in the epilogue", FuseActivation(CONVOLUTIONS, _ACTIVATIONS)),
    _epilogue("ConvClipByValueFusionPass", "a clip in the epilogue", FuseActivation(CONVOLUTIONS, CLIPS)),
    _epilogue("TbeAippConvReluMaxpoolingFusion", "AIPP in the first convolution's load, pooling apart", FuseAipp()),
    _epilogue(
        "ATbeMatMulElemwiseFusionPass",
        "a residual sum and an activation behind a matrix product",
        FuseResidual(("MatMulV2",)),
        FuseActivation(("MatMulV2",), VECTOR_ACTIVATIONS),
    ),
    _epilogue(
        "TbeBatchMatmulElementWiseFusionPass",
        "the same behind products of stacks, and a factor before them",
        FuseScale(("BatchMatMulV2",)),
        FuseResidual(("BatchMatMulV2",)),
        FuseActivation(("BatchMatMulV2",), VECTOR_ACTIVATIONS),
    ),
    _epilogue("TbeEltwiseFusionPass", "element-wise operators in a row", FuseElementwise()),
    StreamSplitPass("StreamSplitPass", "huge streamed weights are loaded in pieces (our own pass)"),
    # No task where bytes need not move.
    SplitNotaskPass("SplitNotaskPass", "results of a split are read where they lie (our own pass)"),
    ConcatNotaskPass("ConcatNotaskPass", "operands of a concatenation are made at their places"),
    ControlCopyPass("ControlCopyPass", "results of branches and loops have memory of their own", required=True),
)


def run_pipeline(
    graph: Graph, target: Target, options: PassOptions | None = None, on_pass: PassHook | None = None
) -> PassReport:
    """Run :data:`PIPELINE` over an Ascend graph, which is changed; ``on_pass(name, graph)`` follows every pass.

    Raises:
        TargetError: cube operators of a type the chip lacks, all of them. UsageError: a required pass is switched off.
    """
    return run_passes(PIPELINE, graph, target, options or PassOptions(), on_pass)


def find_pass(name: str) -> Pass:
    """A pass of the pipeline by name. Raises UsageError with near misses."""
    from metadef.error import UsageError, suggest

    for item in PIPELINE:
        if item.name == name:
            return item
    raise UsageError(f"unknown pass '{name}'", hint=suggest(name, [item.name for item in PIPELINE]))
