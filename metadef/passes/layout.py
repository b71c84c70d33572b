"""RefineRunningFormat: which storage format every tensor has, and the TransData at the borders.

Convolution, pooling and channel-wise normalisation want NC1HWC0. Element-wise operators take any format: each connected
group of them takes the side that moves fewer bytes, borders and the operators' own traffic counted. Everything else
works on plain tensors. Filters become FRACTAL_Z, a constant right operand of a matrix product FRACTAL_NZ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from metadef.format import Format, TensorDesc, ceil_div
from metadef.graph import Graph, Node, Tensor
from metadef.op import CostClass, FormatRule
from metadef.ops.channels import CHANNEL_MOVES, channel_maps, why_lanes_move
from metadef.passes.ub_fusion import cube_activations, is_cube
from metadef.rewrite import Nodes, Pass, PassContext, Rule, bypass, inherit

if TYPE_CHECKING:
    from metadef.target import Target

BLOCK_MOVES = frozenset({"ConcatD", "SplitD", "SplitVD"})
"""Types that join or cut along one axis: in NC1HWC0 too."""

IMAGE_MOVES = ("PadD", "ResizeBilinearV2D", "ResizeNearestNeighborV2D", "StridedSliceD")
"""Types that move pixels: in NC1HWC0 too, where they leave the channels alone or take whole blocks of them."""

MOVES = CHANNEL_MOVES.union(BLOCK_MOVES, IMAGE_MOVES)
"""All types that move and may take either side: single channels too, where nothing else moves."""

NOT_ZERO_SAFE = frozenset({"Log", "Reciprocal", "Rsqrt", "RealDiv", "Pow", "FloorMod"})
"""Types that make infinities or NaN of the zeros in padding lanes; only tensors without such lanes may be blocked."""

_BLOCKED = (FormatRule.CONV, FormatRule.CHANNEL, FormatRule.PICTURE)
"""Rules of operators that make NC1HWC0 only."""
_FILTERED = (FormatRule.CONV, FormatRule.PICTURE)
"""Rules of operators whose second operand, if they have one, is a filter."""
_WEIGHT = 1
_MOST_ROUNDS = 8
"""Rounds of moving single nodes to the other side: enough in practice, and linear in the size of the graph."""


@dataclass(frozen=True)
class RefineRunningFormat(Pass):
    """Settles storage formats and inserts TransData, each with a note that says what it is for."""

    def run(self, graph: Graph, context: PassContext) -> bool:
        sides, reasons = choose_sides(graph, context)
        writer = _FormatWriter(graph, context, sides, reasons)
        for node in list(graph.nodes):
            writer.settle(node)
        writer.outputs()
        return writer.changed


# -- which side of the border a node is on -----------------------------------------------------------------------------


def choose_sides(graph: Graph, context: PassContext) -> tuple[dict[int, bool], dict[int, str]]:
    """id(node) -> whether its full-rank operands and results lie in NC1HWC0, and id(node) -> why it would be plain."""
    reasons: dict[int, str] = {}
    sides: dict[int, bool] = {}
    free: list[Node] = []
    for node in graph.nodes:
        sides[id(node)] = wants_blocks(node)
        if is_free(node):
            reason = reasons[id(node)] = why_not_blocked(node, context.target)
            if not reason:
                free.append(node)
            elif node.op_type != "Cast" and any(_next_to_blocks(tensor) for tensor in (*node.inputs, *node.outputs)):
                context.record.refuse(node, f"stays plain: {reason}")
    cost = _Cost(graph, context.target, sides)
    for group in _groups(free):
        cost.settle(group)
    for node in free:
        saved = cost.spared[id(node)]
        reasons[id(node)] = f"that moves {saved} bytes less around it" if saved > 0 else "one node moves fewer bytes so"
    return sides, reasons


def _next_to_blocks(tensor: Tensor | None) -> bool:
    """Whether an operator that needs NC1HWC0 makes or reads the tensor."""
    if tensor is None:
        return False
    return any(wants_blocks(node) for node in (*tensor.users, *([tensor.producer] if tensor.producer else [])))


def wants_blocks(node: Node) -> bool:
    """Whether the operator's kernels make NC1HWC0 only."""
    opdef = node.opdef if node.domain == "ascend" else None
    if opdef is None or opdef.formats not in _BLOCKED:
        return False
    x = node.inputs[0]
    return x is not None and len(x.desc.origin_shape) == 4 and x.desc.elements > 0


def is_free(node: Node) -> bool:
    opdef = node.opdef if node.domain == "ascend" else None
    any_format = opdef is not None and opdef.formats is FormatRule.ANY and opdef.cost is not CostClass.HOST
    return any_format or (opdef is not None and node.op_type in MOVES)


def why_not_blocked(node: Node, target: Target) -> str:
    """Why a node that may take any format cannot work on NC1HWC0; "" if it can."""
    if node.op_type in MOVES:
        return _why_not_moved(node, target)
    shape = node.outputs[0].desc.origin_shape
    if len(shape) != 4 or 0 in shape:
        return "its result has not four axes"
    if any(tensor.desc.origin_shape != shape for tensor in node.outputs):
        return "its results differ in shape"
    blocks = {target.c0(tensor.desc.dtype) for tensor in node.outputs}
    for tensor in node.inputs:
        if tensor is None or is_scalar(tensor):
            continue
        own = tensor.desc.origin_shape
        if len(own) != 4 and not tensor.is_const:
            return f"operand '{tensor.name}' has {len(own)} axes"
        if (1,) * (4 - len(own)) + own != shape and channels(own) != shape[1]:
            return f"operand '{tensor.name}' is broadcast over the channels"
        blocks.add(target.c0(tensor.desc.dtype))
    if len(blocks) > 1:
        return f"its element types have channel blocks of {' and '.join(map(str, sorted(blocks)))}"
    if node.op_type in NOT_ZERO_SAFE and not _divides_by_number(node) and shape[1] % blocks.pop():
        return f"{node.op_type} would make infinities of the padding lanes of {shape[1]} channels"
    return ""


def _divides_by_number(node: Node) -> bool:
    """A quotient by a constant other than zero keeps zeros."""
    divisor = node.inputs[1] if node.op_type == "RealDiv" else None
    return divisor is not None and divisor.const is not None and bool(np.all(divisor.const)) and is_scalar(divisor)


def _why_not_moved(node: Node, target: Target) -> str:
    """Why a node that joins or cuts tensors cannot do so in NC1HWC0; "" if it can."""
    operands = [tensor for tensor in node.inputs if tensor is not None]
    for tensor in (*operands, *node.outputs):
        shape = tensor.desc.origin_shape
        if len(shape) != 4 or 0 in shape or is_scalar(tensor):
            return f"'{tensor.name}' has not four axes with elements"
    shapes, made = ([tensor.desc.origin_shape for tensor in side] for side in (operands, node.outputs))
    if node.op_type in BLOCK_MOVES or channel_maps(node.op_type, shapes, made, node.attrs) is not None:
        return ""
    return why_lanes_move(node.op_type, shapes[0], node.attrs, target.c0(node.outputs[0].desc.dtype))


def is_scalar(tensor: Tensor) -> bool:
    """One element: read as a number, in whatever format the other operand has."""
    return tensor.desc.elements == 1


def channels(shape: tuple[int, ...]) -> int:
    """Size of the channel axis of a shape that is broadcast to rank 4."""
    return shape[-3] if len(shape) >= 3 else 1


def _groups(free: list[Node]) -> list[list[Node]]:
    """Connected groups of nodes that may take either side, in order of their first node."""
    leader = {id(node): node for node in free}

    def find(node: Node) -> Node:
        while leader[id(node)] is not node:
            leader[id(node)] = leader[id(leader[id(node)])]
            node = leader[id(node)]
        return node

    for node in free:
        for tensor in node.inputs:
            maker = tensor.producer if tensor is not None and not is_scalar(tensor) else None
            if maker is not None and id(maker) in leader:
                leader[id(find(node))] = find(maker)
    groups: dict[int, list[Node]] = {}
    for node in free:
        groups.setdefault(id(find(node)), []).append(node)
    return list(groups.values())


class _Cost:
    """Bytes moved by TransData at the borders and by the free nodes themselves, as a function of the sides."""

    def __init__(self, graph: Graph, target: Target, sides: dict[int, bool]) -> None:
        self._target = target
        self._sides = sides
        self._outputs = {id(tensor) for tensor in graph.outputs}
        self.spared: dict[int, int] = {}

    def settle(self, group: list[Node]) -> None:
        """Put a group on its cheaper side (blocked on a tie), then move single nodes over where that saves."""
        totals = {}
        for side in (True, False):
            self._put(group, side)
            totals[side] = self._total(group)
        self.spared.update(dict.fromkeys(map(id, group), totals[True] - totals[False]))
        self._put(group, totals[True] <= totals[False])
        for _ in range(_MOST_ROUNDS):
            flipped = [node for node in group if self._flip(node)]
            if not flipped:
                return

    def _flip(self, node: Node) -> bool:
        """Move a node to the other side if that costs less, or no more and is the blocked one."""
        side = self._sides[id(node)]
        before = self._total([node])
        self._put([node], not side)
        after = self._total([node])
        if after < before or (after == before and not side):
            return True
        self._put([node], side)
        return False

    def _put(self, nodes: list[Node], side: bool) -> None:
        for node in nodes:
            self._sides[id(node)] = side

    def _total(self, nodes: list[Node]) -> int:
        own, tensors = 0, {}
        for node in nodes:
            blocked = self._sides[id(node)]
            rides = blocked and self._rides(node)
            for tensor in (*node.inputs, *node.outputs):
                if tensor is None or is_scalar(tensor):
                    continue
                own += 0 if rides else self._bytes(tensor, blocked)
                if not tensor.is_const:
                    tensors[id(tensor)] = tensor
        return own + sum(self._border(tensor) for tensor in tensors.values())

    def _rides(self, node: Node) -> bool:
        """Whether a node will be an epilogue of the cube operator above it, and then moves nothing itself."""
        if node.op_type not in cube_activations(self._target) or node.inputs[0] is None:
            return False
        maker = node.inputs[0].producer
        return maker is not None and is_cube(maker) and wants_blocks(maker) and len(maker.output.uses) == 1

    def _border(self, tensor: Tensor) -> int:
        """Traffic of the TransData behind a tensor: read in one format, written in the other."""
        made = tensor.producer is not None and self._sides.get(id(tensor.producer), False)
        wanted = {self._sides.get(id(user), False) and reads_blocked(user, slot) for user, slot in tensor.uses}
        if id(tensor) in self._outputs:
            wanted.add(False)
        crosses = (not made) in wanted
        return self._bytes(tensor, True) + self._bytes(tensor, False) if crosses else 0

    def _bytes(self, tensor: Tensor, blocked: bool) -> int:
        desc = tensor.desc
        if not blocked:
            return desc.elements * desc.dtype.bytes
        shape = (1,) * (4 - len(desc.origin_shape)) + desc.origin_shape
        c0 = self._target.c0(desc.dtype)
        return prod((shape[0], ceil_div(shape[1], c0), c0, shape[2], shape[3])) * desc.dtype.bytes


def reads_blocked(node: Node, slot: int) -> bool:
    """Whether a node on the blocked side reads this operand in NC1HWC0: not so filters, biases and scalars."""
    opdef = node.opdef
    tensor = node.inputs[slot]
    if opdef is None or tensor is None:
        return False
    if opdef.formats is FormatRule.CONV:
        return slot == 0
    if opdef.formats is FormatRule.PICTURE:
        return False
    if opdef.formats is FormatRule.CHANNEL:
        return len(tensor.desc.origin_shape) == 4
    return not is_scalar(tensor)


# -- writing it down ---------------------------------------------------------------------------------------------------


class _FormatWriter:
    """Gives tensors their storage formats in node order and converts operands that lie on the other side."""

    def __init__(self, graph: Graph, context: PassContext, sides: dict[int, bool], reasons: dict[int, str]) -> None:
        self.graph = graph
        self.context = context
        self.changed = False
        self._sides = sides
        self._reasons = reasons
        self._versions: dict[tuple[int, Format], Tensor] = {}

    def settle(self, node: Node) -> None:
        opdef = node.opdef if node.domain == "ascend" else None
        if opdef is not None and opdef.formats is FormatRule.TRANS:
            return
        blocked = self._sides[id(node)]
        for slot, fmt in self._operand_formats(node, blocked):
            self._connect(node, slot, fmt)
        if blocked:
            for tensor in node.outputs:
                tensor.desc = self._desc(tensor, Format.NC1HWC0)
            self.changed = True

    def outputs(self) -> None:
        """Graph outputs are plain."""
        for position, tensor in enumerate(self.graph.outputs):
            if not tensor.desc.is_plain:
                name = self.graph.output_names[position]
                plain = self._version(tensor, Format.NCHW, None, f"output '{name}' of the graph is plain")
                self.graph.outputs[position] = plain

    def _operand_formats(self, node: Node, blocked: bool) -> Iterator[tuple[int, Format]]:
        opdef = node.opdef if node.domain == "ascend" else None
        for slot, tensor in enumerate(node.inputs):
            if tensor is None:
                continue
            if blocked and reads_blocked(node, slot):
                yield slot, Format.NC1HWC0
            elif blocked and opdef is not None and opdef.formats in _FILTERED and slot == _WEIGHT:
                yield slot, Format.FRACTAL_Z
            elif opdef is not None and opdef.formats is FormatRule.MATMUL and slot == _WEIGHT and _is_matrix(tensor):
                yield slot, Format.FRACTAL_NZ
            elif not tensor.desc.is_plain:
                yield slot, Format.NCHW

    def _connect(self, node: Node, slot: int, fmt: Format) -> None:
        tensor = node.inputs[slot]
        assert tensor is not None
        if tensor.desc.format is fmt:
            return
        self.changed = True
        if tensor.is_const:
            self.graph.set_input(node, slot, self._constant(tensor, fmt))
        else:
            read, maker = fmt.name, tensor.producer
            if fmt is Format.NCHW:
                read = f"a plain tensor: {self._why_plain(node)}"
            elif maker is not None:
                read += f", '{maker.name}' ({maker.op_type}) makes a plain tensor: {self._why_plain(maker)}"
            why = f"'{node.name}' ({node.op_type}) reads {read}"
            self.graph.set_input(node, slot, self._version(tensor, fmt, node, why))

    def _why_plain(self, node: Node) -> str:
        """Why a node does not work on NC1HWC0."""
        return self._reasons.get(id(node), f"{node.op_type} knows no other layout")

    def _desc(self, tensor: Tensor, fmt: Format) -> TensorDesc:
        desc = tensor.desc
        if fmt is Format.NCHW:
            return replace(desc, format=desc.origin_format, c0=0)
        origin = Format.NCHW if fmt is not Format.FRACTAL_NZ else desc.origin_format
        return replace(desc, origin_format=origin, format=fmt, c0=self.context.target.c0(desc.dtype))

    def _constant(self, tensor: Tensor, fmt: Format) -> Tensor:
        """A constant in another format: itself if nobody else reads it, else a second one over the same elements."""
        version = self._versions.get((id(tensor), fmt))
        if version is not None:
            return version
        value = tensor.const
        assert value is not None
        if fmt is Format.NC1HWC0 and value.ndim < 4:
            value = value.reshape((1,) * (4 - value.ndim) + value.shape)
        alone = len(tensor.uses) == 1 and not any(tensor is item for item in self.graph.outputs)
        version = tensor if alone else self.graph.add_const(f"{tensor.name}_{fmt.name}", value, dtype=tensor.desc.dtype)
        version.const = value
        version.desc = replace(tensor.desc, origin_shape=value.shape)
        version.desc = self._desc(version, fmt)
        self._versions[id(tensor), fmt] = version
        return version

    def _version(self, tensor: Tensor, fmt: Format, before: Node | None, why: str) -> Tensor:
        """A tensor in another format through one TransData that all its readers share."""
        version = self._versions.get((id(tensor), fmt))
        if version is None:
            desc = self._desc(tensor, fmt)
            source = tensor.desc.format if tensor.desc.format is not Format.ND else Format.NCHW
            attrs = {"src_format": source.name, "dst_format": fmt.name}
            maker = before if before is not None else tensor.producer
            layer = maker.layer if maker is not None else ""
            node = self.graph.add_node("TransData", [tensor], attrs, "trans_TransData", layer=layer, before=before)
            node.output.desc = desc
            self.context.record.note(node.name, f"{source.name} -> {fmt.name}: {why}")
            self.context.record.effect_times += 1
            self.changed = True
            version = self._versions[id(tensor), fmt] = node.output
        return version


def _is_matrix(tensor: Tensor) -> bool:
    return tensor.is_const and len(tensor.desc.origin_shape) >= 2 and tensor.desc.elements > 0


class CancelTransData(Rule):
    """TransData a -> b behind TransData b -> a: readers take the first one's operand."""

    roots = ("TransData",)

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        source = node.inputs[0]
        above = source.producer if source is not None else None
        if above is None or above.op_type != "TransData" or above.inputs[0] is None:
            return None
        return (node, above) if above.inputs[0].desc == node.output.desc else None

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        node, above = nodes
        source = above.inputs[0]
        assert source is not None
        bypass(graph, node, source)
        if source.producer is not None:
            inherit(source.producer, node)
        if not above.output.uses and not any(above.output is item for item in graph.outputs):
            graph.remove_node(above)
