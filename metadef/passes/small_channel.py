"""SmallChannelPass: convolutions over at most four channels read NC1HWC0_C04 where the cost model says it is faster.

In NC1HWC0 the three channels of a picture are padded to a whole block: most of what is loaded and multiplied is zero.
With C0 = 4 a pixel takes four elements, and several taps share a fractal of the filter (FRACTAL_Z_C04). Switched on in
ATC by ``enable_small_channel``; here it is taken wherever the chip can (``cube.small_channels``) and the conversion and
the convolutions behind it take fewer cycles together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from metadef.error import TargetError
from metadef.format import SMALL_CHANNELS, Format, TensorDesc
from metadef.graph import Graph, Node, Tensor
from metadef.kernel import Engine
from metadef.rewrite import GRAPH_FUSION, Pass, PassContext

if TYPE_CHECKING:
    from metadef.select.trial import Trial


_MAKERS = ("TransData", "Aipp")
"""What makes images of plain tensors, in either format."""


@dataclass(frozen=True)
class SmallChannelPass(Pass):
    """Moves first layers, and the TransData or AIPP in front of them, to the C04 formats."""

    group: str = GRAPH_FUSION

    def run(self, graph: Graph, context: PassContext) -> bool:
        from metadef.select.trial import Trial  # selection imports passes itself

        trial = Trial(context.target, context.options.conv)
        layers: dict[int, list[Node]] = {}
        for node in graph.nodes:
            x = node.inputs[0] if node.op_type == "Conv2D" and node.engine is Engine.AICORE else None
            if x is None or x.desc.format is not Format.NC1HWC0 or x.desc.origin_shape[1] > SMALL_CHANNELS:
                continue
            if reason := _why_not(node, x, context, trial):
                context.record.refuse(node, reason)
            else:
                layers.setdefault(id(x), []).append(node)
        return any([_settle(graph, nodes, context, trial) for nodes in layers.values()])


def _why_not(node: Node, x: Tensor, context: PassContext, trial: Trial) -> str:
    """Why a convolution cannot read C04; "" if it can."""
    target = context.target
    if "cube.small_channels" not in target.constants:
        return f"{target.soc} reads whole channel blocks only (load3d v1)"
    if not x.desc.dtype.is_float:
        return f"no kernel reads four channels of {x.desc.dtype.label}"
    if node.attrs["groups"] != 1:
        return "its channels are grouped"
    if node.inputs[1] is None or not node.inputs[1].is_const:
        return "its filter is no constant"
    maker = x.producer
    if maker is None or maker.op_type not in _MAKERS or maker.inputs[0] is None or not maker.inputs[0].desc.is_plain:
        made = f"'{maker.name}' ({maker.op_type})" if maker is not None else "a constant"
        return f"its operand is made in NC1HWC0 by {made}"
    if trial.must_be_winograd(node):
        return "Winograd's algorithm, which works on NC1HWC0, is asked for"
    return ""


def _settle(graph: Graph, nodes: list[Node], context: PassContext, trial: Trial) -> bool:
    """Move convolutions that read one tensor to C04 if that is faster."""
    x = nodes[0].inputs[0]
    assert x is not None and x.producer is not None
    small_x = x.desc.stored_as(Format.NC1HWC0_C04, SMALL_CHANNELS)
    whole = sum(map(trial.cycles, nodes)) + (0 if _read_by_others(graph, nodes) else trial.cycles(x.producer))
    try:
        small = sum(trial.cycles(node, {0: small_x, 1: _small_filter(node)}) for node in nodes)
    except TargetError as error:
        for node in nodes:
            context.record.refuse(node, error.problems[0].message)
        return False
    small += trial.cycles(x.producer, result=small_x)
    figures = f"{small} cycles with NC1HWC0_C04, {whole} with NC1HWC0, the format change included"
    if small >= whole:
        for node in nodes:
            context.record.refuse(node, f"not faster: {figures}")
        return False
    _rewrite(graph, nodes, small_x, figures, context)
    return True


def _small_filter(node: Node) -> TensorDesc:
    filters = node.inputs[1]
    assert filters is not None
    return replace(filters.desc, format=Format.FRACTAL_Z_C04)


def _rewrite(graph: Graph, nodes: list[Node], desc: TensorDesc, figures: str, context: PassContext) -> None:
    """One maker of C04 for all of them, of its own if somebody else reads the old one; filters in FRACTAL_Z_C04."""
    x = nodes[0].inputs[0]
    assert x is not None and x.producer is not None
    made, attrs = x.producer, dict(x.producer.attrs)
    if "dst_format" in attrs:
        attrs["dst_format"] = Format.NC1HWC0_C04.name
    if _read_by_others(graph, nodes):
        old = made
        name = "trans_TransData" if old.op_type == "TransData" else old.name
        made = graph.add_node(old.op_type, old.inputs, attrs, name, layer=old.layer, before=old)
        made.engine, made.origins = old.engine, old.origins
    source = made.inputs[0]
    assert source is not None
    made.attrs, made.output.desc = attrs, desc
    before = attrs.get("src_format", source.desc.format.name)
    context.record.note(made.name, f"{before} -> NC1HWC0_C04: '{nodes[0].name}' (Conv2D) is faster so")
    for node in nodes:
        if node.inputs[0] is not made.output:
            graph.set_input(node, 0, made.output)
        filters = node.inputs[1]
        assert filters is not None and filters.const is not None
        if len(filters.uses) > 1:
            copy = graph.add_const(f"{filters.name}_C04", filters.const, dtype=filters.desc.dtype)
            copy.desc = filters.desc
            graph.set_input(node, 1, copy)
            filters = copy
        filters.desc = _small_filter(node)
        context.record.note(node.name, figures)
        context.record.effect_times += 1


def _read_by_others(graph: Graph, nodes: list[Node]) -> bool:
    """Whether the operand that these nodes share has other readers."""
    x = nodes[0].inputs[0]
    assert x is not None
    return any(user not in nodes for user in x.users) or any(x is item for item in graph.outputs)
