"""HeavyFormatPropagation: FRACTAL_NZ around and between matrix products on chips whose cube makes fractals.

Without a fixpipe a product reads fractals and leaves fractals; what is plain on the other side is turned by TransData.
Element-wise operators, softmax and layer normalisation over the last axis work on fractals as well: sixteen rows lie
side by side, so that they reduce together, and rows of odd length need no scalar code. Connected groups of such
operators move to FRACTAL_NZ where that takes fewer cycles, format changes at their borders included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from metadef.error import TargetError
from metadef.format import Format, TensorDesc
from metadef.graph import Graph, Node, Tensor
from metadef.passes.fractal_nodes import is_able, is_heavy, neighbours, stretched, wants_fractals
from metadef.passes.heads import join_heads
from metadef.rewrite import GRAPH_FUSION, Pass, PassContext

if TYPE_CHECKING:
    from metadef.select.trial import Trial


@dataclass(frozen=True)
class HeavyFormatPropagation(Pass):
    """Puts products, and the row-wise operators between them, on FRACTAL_NZ."""

    group: str = GRAPH_FUSION

    def run(self, graph: Graph, context: PassContext) -> bool:
        from metadef.select.trial import Trial  # selection imports passes itself

        if context.target.has_fixpipe:
            return False
        trial = Trial(context.target, context.options.conv)
        join_heads(graph, context)
        heavy = {id(node): node for node in graph.nodes if is_heavy(node)}
        if not heavy:
            return False
        for group in _groups(graph):
            if _is_faster(group, context, trial):
                heavy.update((id(node), node) for node in group)
        _Writer(graph, context, heavy).write()
        return True


def _groups(graph: Graph) -> list[list[Node]]:
    """Connected operators that can work on fractals and have a product beside them, in the graph's order."""
    able = {id(node): node for node in graph.nodes if is_able(node)}
    taken: set[int] = set()
    found = []
    for node in able.values():
        if id(node) in taken:
            continue
        stack, members = [node], {id(node)}
        while stack:
            for other in neighbours(stack.pop()):
                if id(other) in able and id(other) not in members:
                    members.add(id(other))
                    stack.append(other)
        taken |= members
        group = [item for item in able.values() if id(item) in members]
        if any(is_heavy(other) for item in group for other in neighbours(item)):
            found.append(group)
    return found


def _fractal(desc: TensorDesc, context: PassContext) -> TensorDesc:
    return desc.stored_as(Format.FRACTAL_NZ, context.target.c0(desc.dtype))


def _operand(node: Node, slot: int, context: PassContext) -> TensorDesc:
    """How a node on fractals reads an operand that must lie in them."""
    tensor = node.inputs[slot]
    assert tensor is not None
    shape = tensor.desc.origin_shape
    if not is_heavy(node) and node.op_type != "Reshape":
        shape = stretched(shape, node.output.desc)
    return _fractal(replace(tensor.desc, origin_shape=shape), context)


def _is_faster(group: list[Node], context: PassContext, trial: Trial) -> bool:
    """Whether a group takes fewer cycles in fractals, changes at its borders included; says so in the record."""
    try:
        plain, fractal = _cycles(group, context, trial)
    except TargetError as error:
        context.record.refuse(group[0], error.problems[0].message)
        return False
    figures = f"{fractal} cycles in FRACTAL_NZ, {plain} in plain layout, format changes included"
    if fractal >= plain:
        context.record.refuse(group[0], f"not faster: {figures}")
        return False
    context.record.effect_times += 1
    for node in group:
        context.record.note(node.name, f"FRACTAL_NZ: {figures}")
    return True


def _cycles(group: list[Node], context: PassContext, trial: Trial) -> tuple[int, int]:
    """Cycles of a group in plain layout and in fractals, each with its TransData at the borders."""
    inside = {id(node) for node in group}
    totals = [0, 0]
    for node in group:
        slots = [slot for slot in range(len(node.inputs)) if wants_fractals(node, slot)]
        if node.op_type != "Reshape":
            totals[0] += trial.cycles(node)
            reads = {slot: _operand(node, slot, context) for slot in slots}
            totals[1] += trial.cycles(node, reads, _fractal(node.output.desc, context))
        for slot in slots:
            tensor = node.inputs[slot]
            assert tensor is not None
            maker = tensor.producer
            if maker is None or id(maker) in inside:
                continue
            fractal = _operand(node, slot, context)
            flat = replace(tensor.desc, origin_shape=fractal.origin_shape)
            if is_heavy(maker):
                totals[0] += trial.change(fractal, flat)
            else:
                totals[1] += trial.change(flat, fractal)
        outside = [(user, slot) for user, slot in node.output.uses if id(user) not in inside]
        flat, fractal = node.output.desc, _fractal(node.output.desc, context)
        to_products = any(is_heavy(user) and wants_fractals(user, slot) for user, slot in outside)
        totals[0] += trial.change(flat, fractal) if to_products else 0
        elsewhere = not all(is_heavy(user) and wants_fractals(user, slot) for user, slot in outside)
        totals[1] += trial.change(fractal, flat) if elsewhere else 0
    return totals[0], totals[1]


class _Writer:
    """Sets formats and inserts TransData; each tensor changes its format once for all its readers."""

    def __init__(self, graph: Graph, context: PassContext, heavy: dict[int, Node]) -> None:
        self.graph, self.context, self.heavy = graph, context, heavy
        self._made: dict[tuple[int, TensorDesc], Tensor] = {}

    def write(self) -> None:
        uses = [(tensor, list(tensor.uses)) for node in self.graph.nodes for tensor in node.outputs]
        uses += [(tensor, list(tensor.uses)) for tensor in self.graph.inputs]
        uses += [(tensor, list(tensor.uses)) for tensor in self._constants()]
        wanted = {
            (id(node), slot): _operand(node, slot, self.context)
            for node in self.heavy.values()
            for slot in range(len(node.inputs))
            if wants_fractals(node, slot)
        }
        flat = {id(node.output): node.output.desc for node in self.heavy.values()}
        for node in self.heavy.values():
            node.output.desc = _fractal(node.output.desc, self.context)
        for tensor, readers in uses:
            for user, slot in readers:
                desc = wanted.get((id(user), slot), flat.get(id(tensor)))
                if desc is not None and desc != tensor.desc:
                    self.graph.set_input(user, slot, self._as(tensor, desc, user))
        for position, tensor in enumerate(self.graph.outputs):
            if id(tensor) in flat:
                self.graph.outputs[position] = self._as(tensor, flat[id(tensor)], None)

    def _constants(self) -> list[Tensor]:
        """Constants that nodes on fractals read, each once."""
        operands = [tensor for node in self.heavy.values() for tensor in node.inputs if tensor is not None]
        return list({id(tensor): tensor for tensor in operands if tensor.is_const}.values())

    def _as(self, tensor: Tensor, desc: TensorDesc, user: Node | None) -> Tensor:
        """A tensor in another format; a row is stretched over all rows before it becomes fractals."""
        key = (id(tensor), desc)
        if key in self._made:
            return self._made[key]
        if tensor.is_const:
            assert tensor.const is not None
            made = self.graph.add_const(f"{tensor.name}_{desc.format.name}", tensor.const, dtype=tensor.desc.dtype)
            made.desc = desc
        else:
            layer = user.layer if user is not None else ""
            source = tensor
            if source.desc.origin_shape != desc.origin_shape:
                shape = {"shape": desc.origin_shape}
                source = self.graph.add_node("BroadcastToD", [tensor], shape, "rows", layer=layer, before=user).output
            attrs = {"src_format": _label(source.desc), "dst_format": _label(desc)}
            node = self.graph.add_node("TransData", [source], attrs, "trans_TransData", layer=layer, before=user)
            node.output.desc = desc
            self.context.record.note(node.name, f"{attrs['src_format']} -> {attrs['dst_format']}: {_why(user, desc)}")
            made = node.output
        self._made[key] = made
        return made


def _why(user: Node | None, desc: TensorDesc) -> str:
    if user is None:
        return "outputs of the graph are plain"
    return f"'{user.name}' ({user.op_type}) reads {'fractals' if not desc.is_plain else 'a plain tensor'}"


def _label(desc: TensorDesc) -> str:
    """A format's name as TransData states it: plain tensors count as NCHW."""
    return Format.NCHW.name if desc.format is Format.ND else desc.format.name
