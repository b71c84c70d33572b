"""A channel shuffle spelled out by views and a transpose is one ShuffleChannel, which works in NC1HWC0 too."""

from __future__ import annotations

from math import prod

from metadef.format import Shape
from metadef.graph import Graph, Node
from metadef.passes.cleanup import is_output, operand
from metadef.passes.views import VIEW_TYPES, view_above
from metadef.rewrite import Nodes, PassContext, Rule, inherit, other_readers


class JoinShuffle(Rule):
    """(N, C, ...) seen as (N, groups, C / groups, ...), two axes exchanged, seen as (N, C, ...) again."""

    roots = ("TransposeD",)

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        view, users = view_above(node.inputs[0]), node.output.users
        last = users[0] if users else None
        if view is None or last is None or last.domain != "ascend" or last.op_type not in VIEW_TYPES:
            return None
        shape = operand(view).desc.origin_shape
        same = shape == last.output.desc.origin_shape
        if not same or not shuffle_groups(shape, view.output.desc.origin_shape, node.attrs["perm"]):
            return None
        return last, node, view

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        last, node, view = nodes
        if not operand(view).desc.is_plain:
            return "the tensor is not in a plain format"
        return other_readers(graph, node.output, last)

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        last, node, view = nodes
        shape = operand(view).desc.origin_shape
        group = shuffle_groups(shape, view.output.desc.origin_shape, node.attrs["perm"])
        last.op_type, last.attrs = "ShuffleChannel", {"group": group}
        graph.set_input(last, 0, operand(view))
        inherit(last, node, view)
        graph.remove_node(node)
        if not view.output.uses and not is_output(graph, view.output):
            graph.remove_node(view)


def shuffle_groups(shape: Shape, seen: Shape, perm: tuple[int, ...]) -> int:
    """Groups of a shuffle of (N, C, ...) seen under another shape and transposed; 0 if it is none."""
    if len(shape) < 3:
        return 0
    for axis in range(len(seen) - 1):
        swapped = (*range(axis), axis + 1, axis, *range(axis + 2, len(seen)))
        split = prod(seen[:axis]) == shape[0] and seen[axis] * seen[axis + 1] == shape[1]
        if split and tuple(perm) == swapped and min(seen[axis], seen[axis + 1]) > 1:
            return seen[axis]
    return 0
