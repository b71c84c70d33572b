"""Joins and cuts without a task: the operands of a concatenation are made where they belong, pieces are read in place.

Where the axes before the joined one have size 1, the pieces lie one after another in the whole. A ConcatD of which
every operand has memory of its own then needs no copy: its operands become a contiguous group (GE's
ConcatNotaskPass). A split needs none either: its results are views (our own pass). Both are marked by the engine
GE_LOCAL, as views are; what stands in the way is recorded for every other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from metadef.format import BLOCK_BYTES
from metadef.graph import Graph, Node, Tensor
from metadef.kernel import Engine
from metadef.op import CostClass
from metadef.rewrite import UB_FUSION, Pass, PassContext

JOINS, CUTS = ("ConcatD",), ("SplitD", "SplitVD")


def memory_root(tensor: Tensor) -> Tensor:
    """The tensor whose bytes a chain of whole-tensor views shows."""
    while (maker := tensor.producer) is not None and is_whole_view(maker) and maker.inputs[0] is not None:
        tensor = maker.inputs[0]
    return tensor


def is_whole_view(node: Node) -> bool:
    """Whether the node's result is its operand under another shape."""
    opdef = node.opdef if node.domain == "ascend" else None
    return node.engine is Engine.GE_LOCAL and opdef is not None and opdef.cost is CostClass.VIEW


def is_part(tensor: Tensor) -> bool:
    """Whether a tensor lies inside another one that was split."""
    maker = tensor.producer
    return maker is not None and maker.engine is Engine.GE_LOCAL and maker.op_type in CUTS


@dataclass(frozen=True)
class ConcatNotaskPass(Pass):
    """Marks the concatenations that take no task."""

    group: str = UB_FUSION

    def run(self, graph: Graph, context: PassContext) -> bool:
        handed_out = {id(memory_root(tensor)) for tensor in graph.outputs}
        claimed: set[int] = set()
        before = context.record.effect_times
        for node in graph.nodes:
            if node.domain != "ascend" or node.op_type not in JOINS or not _is_task(node):
                continue
            operands = [tensor for tensor in node.inputs if tensor is not None]
            roots = [memory_root(tensor) for tensor in operands]
            if reason := _why_copied(node, operands, roots, handed_out, claimed):
                context.record.refuse(node, reason)
                continue
            claimed.update(map(id, roots))
            node.engine = Engine.GE_LOCAL
            context.record.effect_times += 1
            context.record.note(node.name, f"{len(roots)} operands are made at their places in the result")
        return context.record.effect_times > before


@dataclass(frozen=True)
class SplitNotaskPass(Pass):
    """Marks the splits of which all results can be read where they lie."""

    group: str = UB_FUSION

    def run(self, graph: Graph, context: PassContext) -> bool:
        handed_out = {id(memory_root(tensor)) for tensor in graph.outputs}
        before = context.record.effect_times
        for node in graph.nodes:
            if node.domain != "ascend" or node.op_type not in CUTS or not _is_task(node):
                continue
            x = node.inputs[0]
            assert x is not None
            if reason := _why_cut(node, x, handed_out):
                context.record.refuse(node, reason)
                continue
            node.engine = Engine.GE_LOCAL
            context.record.effect_times += 1
            context.record.note(node.name, f"{len(node.outputs)} results are read inside '{x.name}'")
        return context.record.effect_times > before


def _is_task(node: Node) -> bool:
    return node.engine is not None and node.engine.on_device


def _why_copied(
    node: Node, operands: list[Tensor], roots: list[Tensor], handed_out: set[int], claimed: set[int]
) -> str:
    """Why a concatenation has to copy; "" if it need not."""
    if node.fused:
        return "it computes an epilogue"
    if reason := _why_apart(node.output, node.attrs["concat_dim"], operands[:-1]):
        return reason
    if id(node.output) in handed_out:
        return "its result is an output of the graph, which has memory of its own"
    if len({id(root) for root in roots}) < len(roots):
        return "it joins a tensor with itself"
    for tensor, root in zip(operands, roots):
        if root.producer is None:
            return f"'{root.name}' is {'a constant' if root.is_const else 'an input of the graph'}"
        if is_part(root) or root.desc.payload_bytes != tensor.desc.payload_bytes:
            return f"'{tensor.name}' lies inside another tensor"
        if not (_is_task(root.producer) or root.producer.op_type in JOINS):
            return f"'{root.name}' is made by the host"
        if id(root) in claimed:
            return f"'{root.name}' has its place in another concatenation already"
        if reason := _why_no_part(root, handed_out):
            return reason
    return ""


def _why_cut(node: Node, x: Tensor, handed_out: set[int]) -> str:
    """Why a split has to copy; "" if it need not."""
    if node.fused:
        return "it computes an epilogue"
    if reason := _why_apart(x, node.attrs["split_dim"], node.outputs[:-1]):
        return reason
    return next(filter(None, (_why_no_part(tensor, handed_out) for tensor in node.outputs)), "")


def _why_no_part(tensor: Tensor, handed_out: set[int]) -> str:
    """Why a tensor cannot lie inside another one, whatever that is; "" if it can."""
    if id(tensor) in handed_out:
        return f"'{tensor.name}' is an output of the graph, which has memory of its own"
    if tensor.desc.payload_bytes % BLOCK_BYTES or not tensor.desc.payload_bytes:
        return f"'{tensor.name}' takes {tensor.desc.payload_bytes} bytes, no multiple of {BLOCK_BYTES}"
    return ""


def _why_apart(whole: Tensor, axis: int, inner: Sequence[Tensor]) -> str:
    """Why the pieces along an axis do not lie one after another in the whole; "" if they do.

    ``inner`` are all pieces but the last.
    """
    axis %= len(whole.desc.origin_shape)
    if not whole.desc.is_plain and axis == 1 and any(tensor.desc.origin_shape[1] % whole.desc.c0 for tensor in inner):
        return f"its pieces end inside blocks of {whole.desc.c0} channels"
    outer = prod(whole.desc.shape[:axis])
    return f"{outer} rows lie before axis {axis}, so that the pieces interleave" if outer != 1 else ""
