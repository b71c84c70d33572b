"""ControlCopyPass: results of subgraphs get memory of their own, so that they are made where the parent reads them.

A branch makes each result where the If has it; a loop keeps what it carries in one place, and the node that renews a
value writes over the old one where nothing reads that any more. Wherever this is not possible (a value handed through,
a constant, a view, an old value that is still read), an Identity copies.
"""

from __future__ import annotations

from dataclasses import dataclass

from metadef.control import BODY, WHILE
from metadef.graph import Graph, Node, Tensor
from metadef.kernel import Engine
from metadef.passes.notask import JOINS
from metadef.passes.placement import place
from metadef.rewrite import Pass, PassContext

COPY_OP = "Identity"


@dataclass(frozen=True)
class ControlCopyPass(Pass):
    """Inserts the copies that operators with subgraphs need."""

    def run(self, graph: Graph, context: PassContext) -> bool:
        before = context.record.effect_times
        for node in [node for node in graph.nodes if node.subgraphs]:
            if node.op_type == WHILE:
                _prepare_operands(graph, node, context)
                _prepare_body(node, context)
            else:
                for inner in node.subgraphs.values():
                    _prepare_side(inner, context)
        return context.record.effect_times > before


def _prepare_side(side: Graph, context: PassContext) -> None:
    """Every result of a branch is made by a task of its own."""
    for position, tensor in enumerate(side.outputs):
        if not _has_place(tensor) or tensor in side.outputs[:position]:
            side.outputs[position] = _copy(side, tensor, None, context, "a branch hands it through")


def _prepare_operands(graph: Graph, node: Node, context: PassContext) -> None:
    """What a loop starts with is made for it alone: the loop writes over it."""
    for slot in range(len(node.outputs)):
        tensor = node.inputs[slot]
        assert tensor is not None
        maker = tensor.producer
        alone = len(tensor.uses) == 1 and tensor not in graph.outputs and maker is not None and not maker.subgraphs
        if not (alone and _has_place(tensor)):
            copied = _copy(graph, tensor, node, context, f"'{node.name}' writes over it")
            graph.set_input(node, slot, copied)


def _prepare_body(node: Node, context: PassContext) -> None:
    """Renewed values are written over the old ones; what is read later than that is copied first."""
    body = node.subgraphs[BODY]
    carried = body.inputs[: len(node.outputs)]
    for position, tensor in enumerate(body.outputs):
        source = _bytes_of(tensor)
        if tensor is not carried[position] and source in carried:
            after = tensor.producer if tensor.producer is not None else None
            text = "it moves to another carried value"
            body.outputs[position] = _copy(body, tensor, _first_task(body, after), context, text)
    for position, tensor in enumerate(body.outputs):
        if tensor is carried[position]:
            continue
        renews = _has_place(tensor) and tensor not in body.outputs[:position]
        if not (renews and _may_overwrite(body, tensor, carried[position])):
            body.outputs[position] = _copy(body, tensor, None, context, "the old value is still read when it is made")


def _first_task(body: Graph, after: Node | None) -> Node | None:
    """The node that follows ``after`` (None: the first one)."""
    at = body.nodes.index(after) + 1 if after is not None else 0
    return body.nodes[at] if at < len(body.nodes) else None


def _has_place(tensor: Tensor) -> bool:
    """Whether a task makes the tensor, and no contiguous group holds it."""
    maker = tensor.producer
    if maker is None or maker.engine is Engine.GE_LOCAL or (maker.subgraphs and maker.op_type == WHILE):
        return False
    return not _is_member(tensor)


def _is_member(tensor: Tensor) -> bool:
    """Whether a concatenation without a task holds the tensor, or a view of it."""
    local = [user for user in tensor.users if user.engine is Engine.GE_LOCAL]
    return any(user.op_type in JOINS or any(map(_is_member, user.outputs)) for user in local)


def _bytes_of(tensor: Tensor) -> Tensor:
    """The tensor at the bottom of a chain of views and cuts."""
    while (maker := tensor.producer) is not None and maker.engine is Engine.GE_LOCAL and maker.op_type not in JOINS:
        first = maker.inputs[0]
        assert first is not None
        tensor = first
    return tensor


def _may_overwrite(body: Graph, tensor: Tensor, old: Tensor) -> bool:
    """Whether ``tensor`` may be made in the memory of ``old``: all its readers come first, or read it element-wise."""
    maker = tensor.producer
    assert maker is not None
    limit = body.nodes.index(maker)
    waiting = [old]
    while waiting:
        held = waiting.pop()
        if held is not old and any(held is item for item in body.outputs):
            return False
        for user, slot in held.uses:
            if user.engine is Engine.GE_LOCAL and user.op_type not in JOINS:
                waiting += user.outputs
            elif user is maker:
                if held is not old or not reads_in_place(maker, slot, tensor):
                    return False
            elif body.nodes.index(user) >= limit:
                return False
    return True


def reads_in_place(node: Node, slot: int, result: Tensor) -> bool:
    """Whether a node reads ``slot`` element by element before it writes ``result`` there."""
    opdef, read = node.opdef, node.inputs[slot]
    if opdef is None or read is None or result is not node.outputs[0]:
        return False
    pairs = [*opdef.inplace, *((item.operand, 0) for item in node.fused if item.operand is not None)]
    same = (read.desc.shape, read.desc.dtype.bytes, read.desc.format, read.desc.c0)
    return (slot, 0) in pairs and same == (
        result.desc.shape,
        result.desc.dtype.bytes,
        result.desc.format,
        result.desc.c0,
    )


def _copy(graph: Graph, tensor: Tensor, before: Node | None, context: PassContext, why: str) -> Tensor:
    node = graph.add_node(COPY_OP, [tensor], name=f"{tensor.name}_{COPY_OP}", before=before)
    if tensor.producer is not None:
        node.layer, node.origins = tensor.producer.layer, tensor.producer.origins
    node.engine, node.engine_reason = place(node, context.target.coupled)
    context.record.note(node.name, why)
    context.record.effect_times += 1
    return node.output
