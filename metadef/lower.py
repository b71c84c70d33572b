"""Lowering: schedule and memory plan become a program, constants become one blob of weights.

Every operand gets an absolute address (weights, then arena, then inputs and outputs, all on 512-byte lines); constants
are packed into the storage format of their descriptor at the place the plan gave them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from metadef.error import ContractError
from metadef.format import SLOT_BYTES, TensorDesc, pack, round_up
from metadef.graph import Graph, Tensor
from metadef.memory.plan import MemoryPlan, PlanRow
from metadef.program import Binding, Operand, Program, Region, Span, Task
from metadef.schedule import Schedule, ScheduleTensor, Step, TensorKind
from metadef.target import Target


def lower(
    graph: Graph, schedule: Schedule, plan: MemoryPlan, target: Target, precision: str
) -> tuple[Program, np.ndarray]:
    """Put a planned schedule into device memory.

    Returns:
        The program and its weights, uint8 of ``program.weights_bytes``: each constant in storage format at its address.

    Raises:
        ContractError: schedule or plan belong to another revision of the graph or to another chip, or a tensor has no
            place.
    """
    _check_revisions(graph, schedule, plan, target)
    layout = _Layout(schedule, plan)
    tasks = [_task(step, layout) for step in schedule.steps]
    program = Program(
        name=schedule.name,
        soc=schedule.soc,
        tasks=tasks,
        inputs=[Binding(tensor.name, layout.operand(item)) for tensor, item in zip(graph.inputs, schedule.inputs)],
        outputs=[Binding(name, layout.operand(item)) for name, item in zip(graph.output_names, schedule.outputs)],
        weights_bytes=layout.weights_bytes,
        arena_bytes=layout.arena_bytes,
        io_bytes=layout.io_bytes,
        total_size=plan.total_size,
        theory_min=plan.theory_min,
        no_reuse=plan.no_reuse,
        precision=precision,
        streamed_bytes=layout.streamed_bytes,
    )
    return program, _weights(graph, schedule, layout)


class _Layout:
    """Where everything lies: rows of the plan by tensor and by step, bases of the regions."""

    def __init__(self, schedule: Schedule, plan: MemoryPlan) -> None:
        self.tensors = {tensor.id: tensor for tensor in schedule.tensors}
        self.rows = {row.tensor: row for row in plan.rows if row.tensor >= 0}
        self.workspaces: dict[int, list[PlanRow]] = {}
        for row in plan.rows:
            if row.tensor < 0:
                self.workspaces.setdefault(row.step, []).append(row)
        self.inside = {view.tensor: (view.base, view.offset_bytes) for view in schedule.views}
        self.holders = {
            member: group.parent for group in schedule.groups if group.parent >= 0 for member in group.members
        }
        resident = self._region_bytes(Region.WEIGHTS, plan.weights_bytes)
        self.streamed: dict[int, int] = {}
        self.weights_bytes = resident
        for weight in sorted(set(_loads(schedule).values())):
            self.streamed[weight] = self.weights_bytes
            self.weights_bytes += round_up(_desc_of(self.tensors[weight]).payload_bytes, SLOT_BYTES)
        self.streamed_bytes = self.weights_bytes - resident
        self.arena_bytes = self._region_bytes(Region.ARENA, plan.total_size)
        self.io_bytes = self._region_bytes(Region.IO, plan.io_bytes)
        self.bases = {
            Region.WEIGHTS: 0,
            Region.ARENA: self.weights_bytes,
            Region.IO: self.weights_bytes + self.arena_bytes,
        }

    def _region_bytes(self, region: Region, planned: int) -> int:
        rows = [*self.rows.values(), *(row for rows in self.workspaces.values() for row in rows)]
        end = max((row.offset + row.slot_bytes for row in rows if row.region == region.value), default=0)
        return round_up(max(planned, end), SLOT_BYTES)

    def owner(self, tensor: int) -> int:
        """The tensor whose memory this one is a must-be part of: roots of views and parents of groups."""
        while tensor in self.inside or tensor in self.holders:
            tensor = self.inside[tensor][0] if tensor in self.inside else self.holders[tensor]
        return tensor

    def place(self, tensor: int) -> tuple[Region, int]:
        """Region and absolute address. Raises ContractError if the plan has no row for it."""
        if tensor in self.streamed:
            return Region.WEIGHTS, self.streamed[tensor]
        if tensor in self.rows:
            row = self.rows[tensor]
            region = Region(row.region)
            return region, self.bases[region] + row.offset
        if tensor in self.inside:
            base, offset = self.inside[tensor]
            region, address = self.place(base)
            return region, address + offset
        name = self.tensors[tensor].name if tensor in self.tensors else str(tensor)
        raise ContractError(f"the plan has no place for tensor '{name}'")

    def operand(self, tensor: int) -> Operand:
        """The tensor at its place. ``Operand.tensor`` is the owner of the bytes, so views carry their base's id."""
        item = self.tensors[tensor]
        desc = _desc_of(item)
        region, address = self.place(tensor)
        size = desc.payload_bytes if tensor in self.streamed else item.payload_bytes
        return Operand(self.owner(tensor), item.name, region, address, size, desc)


def _desc_of(tensor: ScheduleTensor) -> TensorDesc:
    if tensor.desc is None:
        raise ContractError(f"tensor '{tensor.name}' has no descriptor", hint="planner cases cannot be lowered")
    return tensor.desc


def _loads(schedule: Schedule) -> dict[int, int]:
    """The streamed weight that every load step copies, by the copy."""
    loads = [step for step in schedule.steps if step.is_load]
    return {step.writes[0]: step.reads[0] for step in loads if step.reads[0] is not None}


def _check_revisions(graph: Graph, schedule: Schedule, plan: MemoryPlan, target: Target) -> None:
    for what, revision in (("schedule", schedule.graph_revision), ("memory plan", plan.graph_revision)):
        if revision != graph.revision:
            raise ContractError(
                f"the {what} belongs to another revision of graph '{graph.name}'",
                expected=f"revision {graph.revision}",
                got=f"revision {revision}",
                hint="select and plan again after the last change",
            )
    if schedule.soc != target.soc:
        raise ContractError("the schedule was made for another chip", expected=target.soc, got=schedule.soc)


def _task(step: Step, layout: _Layout) -> Task:
    if step.kernel is None:
        raise ContractError(f"step '{step.name}' has no kernel", hint="planner cases cannot be lowered")
    rows = sorted(layout.workspaces.get(step.id, []), key=lambda row: row.workspace)
    if len(rows) != len(step.workspaces):
        expected, got = str(len(step.workspaces)), str(len(rows))
        raise ContractError(f"the plan lacks workspaces of step '{step.name}'", expected=expected, got=got)
    arena = layout.bases[Region.ARENA]
    return Task(
        step.id,
        step.name,
        step.kernel,
        tuple(None if tensor is None else layout.operand(tensor) for tensor in step.reads),
        tuple(layout.operand(tensor) for tensor in step.writes),
        tuple(Span(arena + row.offset, need.bytes) for row, need in zip(rows, step.workspaces)),
        step.origins,
        step.layer,
        step.stream,
        step.waits,
        step.records,
        step.jumps,
    )


def _weights(graph: Graph, schedule: Schedule, layout: _Layout) -> np.ndarray:
    """Constants in storage format; bytes between them are zero. A constant that several nodes share is packed once."""
    blob = np.zeros(layout.weights_bytes, np.uint8)
    constants = constants_by_id(graph, schedule)
    for item in schedule.tensors:
        held = item.kind is TensorKind.WEIGHT or item.id in layout.streamed
        if not held or item.id in layout.inside:
            continue
        values = _values(item, constants)
        assert item.desc is not None
        stored = pack(values, item.desc)
        _, address = layout.place(item.id)
        blob[address : address + stored.nbytes] = stored.reshape(-1).view(np.uint8)
    return blob


def constants_by_id(graph: Graph, schedule: Schedule) -> dict[int, Tensor]:
    """A constant of the graph for every weight of the schedule, found through the operands of steps and views.

    Steps without a node copy a graph output that is an input or a constant.
    """
    steps = {step.name: step for step in schedule.steps}
    bases = {view.tensor: view.base for view in schedule.views}
    nodes = {node.name for each in graph.graphs() for node in each.nodes}
    loads = _loads(schedule)
    copies = {step.writes[0]: step.reads[0] for step in schedule.steps if step.writes and step.name not in nodes}
    ids: dict[int, int] = {}
    found: dict[int, Tensor] = {}
    for tensor, item in zip(graph.outputs, schedule.outputs):
        source = copies.get(item)
        if source is not None:
            ids[id(tensor)] = source
            if tensor.is_const:
                found[source] = tensor
    for node in (node for each in graph.graphs() for node in reversed(each.nodes)):
        step = steps.get(node.name)
        reads = step.reads if step else tuple(bases.get(ids.get(id(tensor), -1)) for tensor in node.outputs[:1])
        for operand, place in zip(node.inputs, reads):
            place = place if place is None else loads.get(place, place)
            if operand is not None and place is not None:
                ids[id(operand)] = place
                if operand.is_const:
                    found[place] = operand
    return found


def _values(item: ScheduleTensor, constants: Mapping[int, Tensor]) -> np.ndarray:
    tensor = constants.get(item.id)
    if tensor is None or tensor.const is None:
        raise ContractError(f"weight '{item.name}' of the schedule is no constant of the graph")
    stored = item.desc is not None and tensor.desc.stored_as(item.desc.format, item.desc.c0) == item.desc
    if not stored or tensor.const.dtype != tensor.desc.dtype.numpy:
        expected, got = str(item.desc), f"{tensor.desc} with values of {tensor.const.dtype}"
        raise ContractError(f"weight '{item.name}' changed since it was scheduled", expected=expected, got=got)
    return tensor.const
