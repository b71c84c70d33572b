"""Attention heads between products in fractals: split off and joined again without a copy.

[B, S, H*D] and [B, H, S, D] lie in the same fractals where S and D fill them, as FRACTAL_NZ keeps columns of fractals
outermost. The vendor's fusion of a product with ConfusionTransposeD (MatmulConfusiontransposeUbFusion) spares the same
copies: there the product stores its result in the other order. A transposed key becomes the product's flag.
"""

from __future__ import annotations

from metadef.graph import Graph, Node, Tensor
from metadef.passes.cleanup import is_output, operand
from metadef.passes.fractal_nodes import HEADS, is_product
from metadef.passes.views import view_above
from metadef.rewrite import PassContext, inherit

_SPLIT, _TURNED = (0, 2, 1, 3), (0, 2, 3, 1)
_FRACTAL = 16


def join_heads(graph: Graph, context: PassContext) -> bool:
    """Replace views and transposes between products by ``FractalHeads``; whether any was."""
    changed = False
    for node in [node for node in graph.nodes if node.domain == "ascend" and node.op_type == "TransposeD"]:
        if not node.output.uses or is_output(graph, node.output):
            continue
        done = _split(graph, node) or _join(graph, node)
        if done is not None:
            changed = True
            context.record.effect_times += 1
            context.record.note(done.name, "heads lie as they are in fractals: no transpose")
    return changed


def _split(graph: Graph, node: Node) -> Node | None:
    """[B, S, H*D] seen as [B, S, H, D] and transposed to heads, or to heads with the last two axes exchanged."""
    view, perm = view_above(node.inputs[0]), tuple(node.attrs["perm"])
    if view is None or perm not in (_SPLIT, _TURNED):
        return None
    x, shape = operand(view), operand(node).desc.origin_shape
    whole = x.desc.origin_shape == (*shape[:2], shape[2] * shape[3])
    if not whole or not _fills(shape[1], shape[3]) or not _is_made(x):
        return None
    uses = list(node.output.uses)
    if not all(is_product(user) and slot < 2 for user, slot in uses):
        return None
    if perm == _TURNED and not all(_may_turn(user, slot) for user, slot in uses):
        return None
    made = _made(graph, node, x, {"heads": shape[2], "join": False})
    for user, slot in uses:
        graph.set_input(user, slot, made.output)
        if perm == _TURNED:
            user.attrs["adj_x2"] = not user.attrs["adj_x2"]
    _drop(graph, node, view)
    return made


def _join(graph: Graph, node: Node) -> Node | None:
    """[B, H, S, D] transposed and seen as [B, S, H*D]."""
    x, users = operand(node), node.output.users
    view = users[0] if len(users) == 1 else None
    if tuple(node.attrs["perm"]) != _SPLIT or view is None or view is not view_above(view.outputs[0]):
        return None
    batch, heads, rows, depth = x.desc.origin_shape
    whole = view.output.desc.origin_shape == (batch, rows, heads * depth)
    if not whole or not _fills(rows, depth) or not _is_made(x) or is_output(graph, view.output):
        return None
    if not all(is_product(user) and slot < 2 for user, slot in view.output.uses):
        return None
    made = _made(graph, node, x, {"heads": heads, "join": True})
    graph.replace_uses(view.output, made.output)
    graph.remove_node(view)
    graph.remove_node(node)
    return made


def _fills(rows: int, depth: int) -> bool:
    return rows % _FRACTAL == 0 and depth % _FRACTAL == 0


def _is_made(tensor: Tensor) -> bool:
    return tensor.producer is not None and tensor.desc.is_plain and is_product(tensor.producer)


def _may_turn(user: Node, slot: int) -> bool:
    return slot == 1 and user.inputs[0] is not user.inputs[1]


def _made(graph: Graph, node: Node, x: Tensor, attrs: dict[str, object]) -> Node:
    made = graph.add_node(HEADS, [x], attrs, node.name, layer=node.layer, before=node)
    inherit(made, node)
    return made


def _drop(graph: Graph, node: Node, view: Node) -> None:
    graph.remove_node(node)
    if not view.output.uses and not is_output(graph, view.output):
        graph.remove_node(view)
