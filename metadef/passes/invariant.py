"""LoopInvariantPass: what no iteration changes is computed once, before the loop.

A node of a loop's subgraph whose operands are constants or values that the loop hands through moves to the graph
around; its result becomes one more invariant value of the loop. Casts that the settled types put at the border of a
loop are the usual case. Nodes that may fault on their values stay: a loop of no iterations must not run them.
"""

from __future__ import annotations

from dataclasses import dataclass

from metadef.control import WHILE
from metadef.graph import Graph, Node, Tensor
from metadef.op import CostClass
from metadef.rewrite import Pass, PassContext

_STAY = frozenset({CostClass.HOST, CostClass.GATHER})


@dataclass(frozen=True)
class LoopInvariantPass(Pass):
    """Moves nodes out of the loops of a graph."""

    def run(self, graph: Graph, context: PassContext) -> bool:
        before = context.record.effect_times
        for node in [node for node in graph.nodes if node.op_type == WHILE and node.subgraphs]:
            for inner in node.subgraphs.values():
                for candidate in list(inner.nodes):
                    if _is_invariant(candidate, inner, node):
                        _move_out(candidate, inner, node, graph)
                        context.record.note(candidate.name, f"computed once, before '{node.name}'")
                        context.record.effect_times += 1
        return context.record.effect_times > before


def _is_invariant(node: Node, inner: Graph, loop: Node) -> bool:
    opdef = node.opdef if node.domain == "ascend" else None
    if opdef is None or node.subgraphs or node.fused or node.control_inputs or opdef.cost in _STAY:
        return False
    fixed = inner.inputs[len(loop.outputs) :]
    return any(tensor in fixed for tensor in node.inputs) and all(
        tensor is None or tensor.is_const or tensor in fixed for tensor in node.inputs
    )


def _move_out(node: Node, inner: Graph, loop: Node, graph: Graph) -> None:
    outside = {id(formal): given for formal, given in zip(inner.inputs, loop.inputs)}
    operands = [_outside(graph, outside, tensor) for tensor in node.inputs]
    results = [tensor.desc for tensor in node.outputs]
    made = graph.add_foreign_node(
        node.domain,
        node.op_type,
        operands,
        results,
        node.attrs,
        node.name,
        layer=loop.layer,
        origins=node.origins,
        before=loop,
    )
    made.device_mark = node.device_mark
    for old, new in zip(node.outputs, made.outputs):
        graph.set_input(loop, len(loop.inputs), new)
        for each in loop.subgraphs.values():
            formal = each.add_input(f"{loop.name}/{new.name}", new.desc.origin_shape, new.desc.dtype)
            formal.desc = new.desc
            if each is inner:
                each.replace_uses(old, formal)
    inner.remove_node(node)


def _outside(graph: Graph, outside: dict[int, Tensor | None], tensor: Tensor | None) -> Tensor | None:
    if tensor is None or tensor.const is None:
        return tensor if tensor is None else outside[id(tensor)]
    made = graph.add_const(tensor.name, tensor.const, tensor.desc.origin_format, tensor.desc.dtype)
    made.desc = tensor.desc
    return made
