"""Passes that take work away without changing a value: folding, idle nodes, joined views and casts, dead nodes.

All of them hold in any precision, before or after formats are chosen: a rule that joins nodes asks for plain layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from metadef.dtype import DType
from metadef.graph import Graph, Node, Tensor
from metadef.op import CostClass
from metadef.ops.evaluate import constant_value, evaluate_node
from metadef.ops.numeric import condensed, numbers
from metadef.rewrite import Nodes, Pass, PassContext, Rule, bypass, inherit

# -- constants ---------------------------------------------------------------------------------------------------------


class FoldConstants(Rule):
    """A node of which all operands are constants becomes a constant, computed by the operator's reference."""

    max_growth_bytes = 1 << 20
    """A result may be larger than all operands together by this much; beyond, the model file would swell."""

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        operands = [tensor for tensor in node.inputs if tensor is not None]
        constant = bool(operands) and all(tensor.is_const for tensor in operands)
        return (node,) if constant and node.opdef is not None and not node.fused and not node.subgraphs else None

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        (node,) = nodes
        read = sum(tensor.desc.payload_bytes for tensor in node.inputs if tensor is not None)
        made = sum(tensor.desc.payload_bytes for tensor in node.outputs)
        if made > read + self.max_growth_bytes:
            return f"the constant would grow from {read} to {made} bytes"
        if not all(tensor.desc.is_plain for tensor in (*node.inputs, *node.outputs) if tensor is not None):
            return "it changes a storage format"
        return ""

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        (node,) = nodes
        operands = [None if item is None else constant_value(item) for item in node.inputs]
        results = evaluate_node(node, operands, overflow=context.target.overflow)
        for tensor, value in zip(node.outputs, results, strict=True):
            constant = graph.add_const(tensor.name, value.reshape(tensor.desc.origin_shape), dtype=tensor.desc.dtype)
            constant.desc, constant.name = tensor.desc, tensor.name
            graph.replace_uses(tensor, constant)
        graph.remove_node(node)


# -- nodes without effect ----------------------------------------------------------------------------------------------


def _constant_is(node: Node, slot: int, value: float) -> bool:
    """Whether an operand is a constant with that value everywhere and does not widen the result."""
    if slot >= len(node.inputs):
        return False
    tensor, other = node.inputs[slot], node.inputs[1 - slot]
    if tensor is None or other is None or tensor.const is None or tensor.const.size == 0:
        return False
    if other.desc.origin_shape != node.output.desc.origin_shape:
        return False
    first = numbers(tensor.const.flat[:1], tensor.desc.dtype)[0]
    return bool(first == value) and bool(np.all(numbers(condensed(tensor.const), tensor.desc.dtype) == value))


def _zeros(values: tuple[int, ...]) -> bool:
    return not any(values)


_NEUTRAL: dict[str, Callable[[Node], int | None]] = {
    "Identity": lambda node: 0,
    "Cast": lambda node: 0 if operand(node).desc.dtype is node.attrs["dst_type"] else None,
    "TransposeD": lambda node: 0 if node.attrs["perm"] == tuple(range(len(node.attrs["perm"]))) else None,
    "PadD": lambda node: 0 if _zeros(node.attrs["paddings"]) else None,
    "TileD": lambda node: 0 if set(node.attrs["multiples"]) <= {1} else None,
    "BroadcastToD": lambda node: 0 if same_shape(node) else None,
    "ConcatD": lambda node: 0 if len(node.inputs) == 1 else None,
    "AccumulateNV2": lambda node: 0 if len(node.inputs) == 1 else None,
    "Add": lambda node: 0 if _constant_is(node, 1, 0) else 1 if _constant_is(node, 0, 0) else None,
    "Sub": lambda node: 0 if _constant_is(node, 1, 0) else None,
    "Mul": lambda node: 0 if _constant_is(node, 1, 1) else 1 if _constant_is(node, 0, 1) else None,
    "RealDiv": lambda node: 0 if _constant_is(node, 1, 1) else None,
    "Pow": lambda node: 0 if _constant_is(node, 1, 1) else None,
}
"""Operator type -> position of the operand that equals the result, or None if this node has an effect."""


def operand(node: Node, slot: int = 0) -> Tensor:
    tensor = node.inputs[slot]
    assert tensor is not None
    return tensor


def same_shape(node: Node) -> bool:
    return operand(node).desc.origin_shape == node.output.desc.origin_shape


class RemoveNeutral(Rule):
    """Takes out nodes of the given types whose result equals an operand."""

    def __init__(self, *roots: str) -> None:
        self.roots = roots

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        if len(node.outputs) != 1 or node.fused:
            return None
        slot = _NEUTRAL[node.op_type](node)
        return None if slot is None or operand(node, slot).desc != node.output.desc else (node,)

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        return feeds_output_directly(graph, nodes[0])

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        (node,) = nodes
        slot = _NEUTRAL[node.op_type](node)
        assert slot is not None
        bypass(graph, node, operand(node, slot))


def feeds_output_directly(graph: Graph, node: Node) -> str:
    """An output of the graph must be made by a node: the device cannot hand out an input or a constant as a result."""
    if is_output(graph, node.output):
        for tensor in node.inputs:
            if tensor is not None and (tensor.producer is None or is_output(graph, tensor)):
                kind = "an output itself" if tensor.producer is not None else "made by no node"
                return f"it makes an output of the graph from '{tensor.name}', which is {kind}"
    return ""


def is_output(graph: Graph, tensor: Tensor) -> bool:
    return any(tensor is item for item in graph.outputs)


_FAITHFUL = {
    DType.FLOAT16: (DType.FLOAT, DType.DOUBLE),
    DType.BF16: (DType.FLOAT, DType.DOUBLE),
    DType.FLOAT: (DType.DOUBLE,),
    DType.INT8: (DType.INT16, DType.INT32, DType.INT64, DType.FLOAT16, DType.FLOAT, DType.DOUBLE),
    DType.UINT8: (DType.INT16, DType.INT32, DType.INT64, DType.FLOAT16, DType.FLOAT, DType.DOUBLE),
    DType.INT16: (DType.INT32, DType.INT64, DType.FLOAT, DType.DOUBLE),
    DType.INT32: (DType.INT64, DType.DOUBLE),
    DType.BOOL: (DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64, DType.FLOAT16, DType.FLOAT),
}
"""Element types that hold every value of the key exactly."""


class JoinCasts(Rule):
    """a -> b -> c becomes a -> c where b holds every value of a."""

    roots = ("Cast",)

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        above = operand(node).producer
        found = above is not None and above.domain == "ascend" and above.op_type == "Cast" and not above.fused
        return (node, above) if found and above is not None else None

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        node, above = nodes
        first, middle = operand(above).desc.dtype, above.output.desc.dtype
        if middle not in _FAITHFUL.get(first, ()):
            return f"{middle.label} between them rounds values of {first.label}"
        return "" if operand(above).desc.format == node.output.desc.format else "the storage formats differ"

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        node, above = nodes
        graph.set_input(node, 0, operand(above))
        inherit(node, above)
        if not above.output.uses and not is_output(graph, above.output):
            graph.remove_node(above)


# -- whole-graph passes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PrunePass(Pass):
    """Removes nodes that no output needs."""

    def run(self, graph: Graph, context: PassContext) -> bool:
        outputs = {id(tensor) for tensor in graph.outputs}
        held = {id(item) for node in graph.nodes for item in node.control_inputs}
        removed = 0
        for node in reversed(list(graph.nodes)):
            if id(node) not in held and not any(tensor.uses or id(tensor) in outputs for tensor in node.outputs):
                graph.remove_node(node)
                removed += 1
        context.record.effect_times += removed
        return bool(removed)


@dataclass(frozen=True)
class CommonSubexpressionEliminationPass(Pass):
    """Of nodes with equal type, attributes and operands the first one stays. Small constants compare by value."""

    max_constant_bytes: int = 4096

    def run(self, graph: Graph, context: PassContext) -> bool:
        seen: dict[object, Node] = {}
        effects = context.record.effect_times
        for node in list(graph.nodes):
            key = self._key(node)
            first = seen.setdefault(key, node) if key is not None else node
            if first is node:
                continue
            if is_output(graph, node.outputs[0]) and is_output(graph, first.outputs[0]):
                context.record.refuse(node, f"both '{first.name}' and this node make an output of the graph")
                continue
            for mine, other in zip(node.outputs, first.outputs, strict=True):
                graph.replace_uses(mine, other)
            graph.remove_node(node)
            inherit(first, node)
            context.record.effect_times += 1
            context.record.note(first.name, f"also serves the readers of '{node.name}', which computed the same")
        return context.record.effect_times > effects

    def _key(self, node: Node) -> object | None:
        opdef = node.opdef
        if opdef is None or opdef.cost is CostClass.HOST or node.subgraphs or node.control_inputs:
            return None
        operands = tuple(self._operand_key(tensor) for tensor in node.inputs)
        attrs = tuple(sorted(node.attrs.items()))
        fused = tuple((item.op_type, tuple(sorted(item.attrs.items())), item.operand) for item in node.fused)
        return node.op_type, attrs, fused, operands, tuple(tensor.desc for tensor in node.outputs), node.device_mark

    def _operand_key(self, tensor: Tensor | None) -> object:
        if tensor is not None and tensor.const is not None and tensor.const.nbytes <= self.max_constant_bytes:
            return tensor.desc, tensor.const.tobytes()
        return id(tensor)
