"""Graph fusion: batch normalisation, scales, biases and padding move into the cube operator beside them.

These rules work on values: they compute new constants once, at compile time, so they run before precision and formats
are settled. A rule changes a constant only where nobody else reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.graph import Graph, Node, Tensor
from metadef.ops.numeric import narrow, widen
from metadef.rewrite import Nodes, PassContext, Rule, bypass, inherit, other_readers

CONVOLUTIONS = ("Conv2D", "Conv2DTransposeD")
PRODUCTS = ("MatMulV2", "BatchMatMulV2")
_WEIGHT, _BIAS = 1, 2


def values(tensor: Tensor | None, compute: type = np.float64) -> np.ndarray:
    """Elements of a float constant, widened for computing."""
    assert tensor is not None and tensor.const is not None
    return widen(tensor.const, tensor.desc.dtype).astype(compute, copy=False)


def constant_like(graph: Graph, name: str, value: np.ndarray, dtype: DType) -> Tensor:
    """A new constant, rounded once to ``dtype``."""
    return graph.add_const(name, narrow(value, dtype), dtype=dtype)


def above(node: Node, slot: int, types: tuple[str, ...]) -> Node | None:
    """The Ascend node of one of ``types``, without an epilogue, that makes operand ``slot``."""
    tensor = node.inputs[slot] if slot < len(node.inputs) else None
    maker = tensor.producer if tensor is not None else None
    found = maker is not None and maker.domain == "ascend" and maker.op_type in types and not maker.fused
    return maker if found else None


def weight_problem(graph: Graph, node: Node) -> str:
    """Why filter and bias of a cube operator cannot be rewritten; "" if they can."""
    for slot, port in ((_WEIGHT, "filter"), (_BIAS, "bias")):
        tensor = node.inputs[slot] if slot < len(node.inputs) else None
        if tensor is None:
            continue
        if not tensor.is_const:
            return f"the {port} '{tensor.name}' is computed at run time, not a constant"
        others = [user.name for user in tensor.users if user is not node]
        if others:
            return f"the {port} '{tensor.name}' is shared with '{others[0]}'"
        if any(tensor is item for item in graph.outputs):
            return f"the {port} '{tensor.name}' is an output of the graph"
    return ""


def scale_filter(graph: Graph, node: Node, factor: np.ndarray | None, offset: np.ndarray) -> None:
    """conv(x) * factor + offset as a convolution: the factor (OC,) goes into filter and bias, the sum into the bias."""
    weight = node.inputs[_WEIGHT]
    bias = node.inputs[_BIAS] if len(node.inputs) > _BIAS else None
    assert weight is not None
    old_bias = np.zeros(1) if bias is None else values(bias)
    if factor is not None:
        weight.const = narrow(values(weight, np.float32) * _per_output(node, factor), weight.desc.dtype)
        old_bias = old_bias * factor
    sums = np.broadcast_to(old_bias + offset, (node.output.desc.origin_shape[1],)).astype(np.float32)
    if bias is None:
        graph.set_input(node, _BIAS, graph.add_const(f"{node.name}_bias", sums))
    else:
        bias.const, bias.desc = sums, bias.desc.with_dtype(DType.FLOAT)
    graph.revision += 1


def _per_output(node: Node, factor: np.ndarray) -> np.ndarray:
    """float32 factors (OC,) of the outputs, shaped to multiply a convolution's filter."""
    weight = node.inputs[_WEIGHT]
    assert weight is not None
    shape, factor = weight.desc.origin_shape, factor.astype(np.float32)
    if node.op_type == "Conv2D":
        return factor.reshape(-1, *(1,) * (len(shape) - 1))
    # (C, OC / groups, KH, KW): the rows of a group's input channels share its outputs.
    groups = node.attrs["groups"]
    return factor.reshape(groups, -1).repeat(shape[0] // groups, axis=0)[:, :, None, None]


class FoldBatchNorm(Rule):
    """Conv + BNInfer: y = conv(x) * a + (offset - mean * a) with a = scale / sqrt(variance + epsilon)."""

    roots = ("BNInfer",)

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        conv = above(node, 0, CONVOLUTIONS)
        return (node, conv) if conv is not None else None

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        norm, conv = nodes
        for tensor in norm.inputs[1:]:
            if tensor is None or not tensor.is_const:
                return "statistics of the normalisation are computed at run time, not constants"
        return other_readers(graph, conv.output, norm) or weight_problem(graph, conv)

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        norm, conv = nodes
        factor, offset = affine_of(norm)
        scale_filter(graph, conv, factor, offset)
        _take_over(graph, conv, norm)


def affine_of(norm: Node) -> tuple[np.ndarray, np.ndarray]:
    """(factor, offset) of a BNInfer with constant statistics, in double precision."""
    scale, offset, mean, variance = (values(tensor) for tensor in norm.inputs[1:5])
    factor = scale / np.sqrt(variance + norm.attrs["epsilon"])
    return factor, offset - mean * factor


def _take_over(graph: Graph, base: Node, folded: Node) -> None:
    """Remove ``folded``; ``base`` makes its result, under the folded result's name."""
    label = folded.output.name
    bypass(graph, folded, base.output)
    base.output.name = label
    inherit(base, folded)


class FoldScale(Rule):
    """Conv followed by Mul, RealDiv, Add or Sub with one constant a channel: into filter and bias."""

    def __init__(self, *roots: str) -> None:
        self.roots = roots

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        if node.fused:
            return None
        for slot in (0, 1):
            other = node.inputs[1 - slot]
            conv = above(node, slot, CONVOLUTIONS)
            if conv is not None and other is not None and other.is_const and (slot == 0 or _commutes(node)):
                return (node, conv)
        return None

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        node, conv = nodes
        constant = _other(node, conv)
        shape, result = constant.desc.origin_shape, conv.output.desc.origin_shape
        padded = (1,) * (len(result) - len(shape)) + shape
        if len(shape) > len(result) or any(size != 1 for axis, size in enumerate(padded) if axis != 1):
            return f"the constant '{constant.name}' of shape {shape} is not one value a channel"
        if padded[1] not in (1, result[1]):
            return f"the constant '{constant.name}' widens the channels"
        return other_readers(graph, conv.output, node) or weight_problem(graph, conv)

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        node, conv = nodes
        channels = conv.output.desc.origin_shape[1]
        given = np.broadcast_to(values(_other(node, conv)).reshape(-1), (channels,))
        if node.op_type in ("Add", "Sub"):
            scale_filter(graph, conv, None, given if node.op_type == "Add" else -given)
        else:
            scale_filter(graph, conv, given if node.op_type == "Mul" else 1 / given, np.zeros(1))
        _take_over(graph, conv, node)


def _commutes(node: Node) -> bool:
    return node.op_type in ("Add", "Mul")


def _other(node: Node, maker: Node) -> Tensor:
    """The operand of a two-operand node that ``maker`` does not make."""
    tensor = node.inputs[1] if node.inputs[0] is maker.output else node.inputs[0]
    assert tensor is not None
    return tensor


class FoldPadding(Rule):
    """Zero padding of H and W in front of a convolution becomes its own padding."""

    roots = ("Conv2D",)

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        pad = above(node, 0, ("PadD",))
        return (node, pad) if pad is not None else None

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        conv, pad = nodes
        if pad.attrs["mode"] != "constant" or pad.attrs["constant_values"] != 0:
            return "the padding is not with zeros, as the convolution's is"
        if any(pad.attrs["paddings"][:4]):
            return "it pads images or channels, not only H and W"
        if max(self._pads(conv, pad)) > 255:
            return "the chip's convolution pads at most 255 on a side"
        return ""

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        conv, pad = nodes
        conv.attrs["pads"] = self._pads(conv, pad)
        graph.set_input(conv, 0, pad.inputs[0])
        inherit(conv, pad)
        if not pad.output.uses and not any(pad.output is item for item in graph.outputs):
            graph.remove_node(pad)

    @staticmethod
    def _pads(conv: Node, pad: Node) -> tuple[int, ...]:
        return tuple(own + more for own, more in zip(conv.attrs["pads"], pad.attrs["paddings"][4:8]))


class SplitBatchNorm(Rule):
    """A batch normalisation that stands alone becomes Mul and Add with one constant a channel."""

    roots = ("BNInfer",)

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        return (node,) if not node.fused else None

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        if any(tensor is None or not tensor.is_const for tensor in nodes[0].inputs[1:]):
            return "statistics of the normalisation are computed at run time, not constants"
        return ""

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        (norm,) = nodes
        x = norm.inputs[0]
        assert x is not None
        shape = (1, -1, *(1,) * (len(x.desc.origin_shape) - 2))
        common: dict[str, Any] = {"layer": norm.layer, "origins": norm.origins, "before": norm}
        tensor = x
        for op_type, suffix, value in zip(("Mul", "Add"), ("scale", "offset"), affine_of(norm), strict=True):
            constant = constant_like(graph, f"{norm.name}_{suffix}", value.reshape(shape), x.desc.dtype)
            tensor = graph.add_node(op_type, [tensor, constant], name=f"{norm.name}_{op_type}", **common).output
        label = norm.output.name
        bypass(graph, norm, tensor)
        tensor.name = label


class FoldBias(Rule):
    """Matrix product followed by Add of a constant row: the constant becomes the bias."""

    roots = ("Add",)

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        if node.fused:
            return None
        for slot in (0, 1):
            product = above(node, slot, PRODUCTS)
            other = node.inputs[1 - slot]
            if product is not None and other is not None and other.is_const:
                return (node, product)
        return None

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        node, product = nodes
        constant = _other(node, product)
        columns = product.output.desc.origin_shape[-1]
        shape = constant.desc.origin_shape
        if constant.desc.elements != columns or not shape or shape[-1] != columns:
            return f"the constant '{constant.name}' of shape {shape} is not one value a column of {columns}"
        if node.output.desc.origin_shape != product.output.desc.origin_shape:
            return f"the constant '{constant.name}' adds axes to the result"
        if len(product.inputs) > _BIAS and product.inputs[_BIAS] is not None:
            return f"'{product.name}' has a bias already"
        return other_readers(graph, product.output, node)

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        node, product = nodes
        constant = _other(node, product)
        bias = constant_like(graph, constant.name, values(constant).reshape(-1), DType.FLOAT)
        if len(constant.uses) == 1:
            bias.name = constant.name
        graph.set_input(product, _BIAS, bias)
        _take_over(graph, product, node)


class JoinAffine(Rule):
    """Factors and summands that are constants, in a row: x * a * b, x + a + b, (x * a + b) * c become one of each."""

    roots = ("Mul", "Add")

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        first = self._above(node)
        if first is None or first.op_type == node.op_type:
            return (node, first) if first is not None else None
        second = self._above(first) if node.op_type == "Mul" else None
        return (node, first, second) if second is not None and second.op_type == "Mul" else None

    @staticmethod
    def _above(node: Node) -> Node | None:
        """The Mul or Add that a node combines with a constant of its own, if that one does the same."""
        for slot in (0, 1):
            maker = above(node, slot, ("Mul", "Add"))
            other = node.inputs[1 - slot]
            if maker is None or other is None or not other.is_const or node.fused:
                continue
            if any(tensor is not None and tensor.is_const for tensor in maker.inputs):
                return maker
        return None

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        node, *chain = nodes
        if not node.output.desc.dtype.is_float:
            return f"{node.output.desc.dtype.label} does not round, and may wrap"
        constants = [own_constant(item) for item in nodes]
        shape = np.broadcast_shapes(*(tensor.desc.origin_shape for tensor in constants))
        if np.prod(shape) > max(tensor.desc.elements for tensor in constants):
            return "the joined constant would be larger than both"
        if any(item.output.desc.origin_shape != node.output.desc.origin_shape for item in nodes):
            return "a constant widens the tensor on the way"
        return next((reason for a, b in zip(chain, nodes) if (reason := other_readers(graph, a.output, b))), "")

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        node, first, *rest = nodes
        outer, inner = own_constant(node), own_constant(first)
        if rest:
            # (x * a + b) * c = x * (a * c) + b * c
            self._set_constant(graph, first, values(inner) * values(outer))
            (factor,) = rest
            self._set_constant(graph, factor, values(own_constant(factor)) * values(outer))
            _take_over(graph, first, node)
            return
        joined = values(inner) * values(outer) if node.op_type == "Mul" else values(inner) + values(outer)
        self._set_constant(graph, first, joined)
        _take_over(graph, first, node)

    @staticmethod
    def _set_constant(graph: Graph, node: Node, value: np.ndarray) -> None:
        tensor = own_constant(node)
        new = constant_like(graph, tensor.name, value, tensor.desc.dtype)
        if len(tensor.uses) == 1:
            new.name = tensor.name
        graph.set_input(node, node.inputs.index(tensor), new)


def own_constant(node: Node) -> Tensor:
    """The constant operand of a two-operand node."""
    return next(tensor for tensor in node.inputs if tensor is not None and tensor.is_const)
