"""StreamSplitPass: matrix products with a huge streamed weight become several, each with some of its columns.

A weight that is loaded just before its use needs room in the arena. Split by output columns it needs room for two
pieces only, and the next piece is loaded while one is multiplied. Columns do not depend on each other, so values stay
the same bit for bit. Does nothing unless weights are streamed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metadef.format import TensorDesc, ceil_div
from metadef.graph import Graph, Node, Tensor
from metadef.passes.placement import place
from metadef.rewrite import Pass, PassContext, inherit

PIECE_BYTES = 16 << 20
"""Bytes of weights that one product takes at most: a load of 0.7 ms on a 25 GB/s link."""
_COLUMNS = 16
"""Columns of a fractal; pieces hold whole ones, which are a block of bytes in any element type."""


@dataclass(frozen=True)
class StreamSplitPass(Pass):
    """Splits MatMulV2 with a constant second operand."""

    def run(self, graph: Graph, context: PassContext) -> bool:
        least = context.options.stream_weights
        before = context.record.effect_times
        for node in list(graph.nodes) if least is not None else []:
            if node.domain != "ascend" or node.op_type != "MatMulV2":
                continue
            weight = node.inputs[1]
            if weight is None or not weight.is_const or weight.desc.payload_bytes <= max(PIECE_BYTES, least or 0):
                continue
            if reason := _why_whole(node):
                context.record.refuse(node, reason)
                continue
            count, size = _split(graph, node, weight, context), weight.desc.payload_bytes
            context.record.note(node.name, f"the weight of {size} bytes is streamed in {count} pieces")
            context.record.effect_times += 1
        return context.record.effect_times > before


def _why_whole(node: Node) -> str:
    """Why a product has to stay whole; "" if it need not."""
    if any(item.operand is not None for item in node.fused):
        return "its epilogue reads another tensor"
    if not node.output.desc.is_plain:
        return f"its result is stored as {node.output.desc.format.name}"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and not bias.is_const:
        return "its bias is computed"
    return ""


def _split(graph: Graph, node: Node, weight: Tensor, context: PassContext) -> int:
    """Replace the product by products of column pieces and a concatenation; how many."""
    out = node.output.desc
    columns = out.origin_shape[-1]
    wanted = ceil_div(weight.desc.payload_bytes, PIECE_BYTES)
    width = ceil_div(ceil_div(columns, wanted), _COLUMNS) * _COLUMNS
    axis = 0 if node.attrs["transpose_x2"] else 1
    pieces = []
    for first in range(0, columns, width):
        cut = slice(first, min(first + width, columns))
        inputs = list(node.inputs)
        inputs[1] = _columns(graph, weight, axis, cut)
        if len(inputs) > 2 and inputs[2] is not None:
            inputs[2] = _columns(graph, inputs[2], len(inputs[2].desc.origin_shape) - 1, cut)
        desc = TensorDesc((*out.origin_shape[:-1], cut.stop - first), out.dtype, out.origin_format, out.format)
        piece = graph.add_foreign_node(
            "ascend", node.op_type, inputs, [desc], node.attrs, f"{node.name}_part", layer=node.layer,
            origins=node.origins, before=node,
        )  # fmt: skip
        piece.fused, piece.engine, piece.engine_reason = node.fused, node.engine, node.engine_reason
        pieces.append(piece.output)
    joint = {"concat_dim": len(out.origin_shape) - 1}
    whole = graph.add_node("ConcatD", pieces, joint, f"{node.name}_ConcatD", before=node)
    whole.engine, whole.engine_reason = place(whole, context.target.coupled)
    inherit(whole, node)
    name = node.output.name
    graph.replace_uses(node.output, whole.output)
    graph.remove_node(node)
    whole.output.name = name
    return len(pieces)


def _columns(graph: Graph, tensor: Tensor, axis: int, cut: slice) -> Tensor:
    """A constant's part along an axis, stored in the same format; a view of its elements where it can be."""
    assert tensor.const is not None
    shape = tensor.desc.origin_shape
    at = tuple(cut if each == axis else slice(None) for each in range(len(shape)))
    values = np.ascontiguousarray(tensor.const.reshape(shape)[at])
    made = graph.add_const(f"{tensor.name}_part", values, tensor.desc.origin_format, tensor.desc.dtype)
    made.desc = made.desc.stored_as(tensor.desc.format, tensor.desc.c0)
    return made
