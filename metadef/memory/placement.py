"""Row by row: is everything placed once, in its region, on its grid, and where relations want it?

First half of the checker. It works from the schedule alone: sizes, grids and member distances are derived here anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from metadef.error import Problem
from metadef.format import SLOT_BYTES, slot_bytes
from metadef.memory.plan import MemoryPlan, PlanRow
from metadef.schedule import Group, Schedule, ScheduleTensor, TensorKind

INNER_ERROR = "E19999"
ALIAS_KINDS = ("", "view", "inplace", "group")


def placement_problems(schedule: Schedule, plan: MemoryPlan) -> Iterator[Problem]:
    """Everything that is wrong with the rows by themselves; nothing is simulated."""
    wanted, made_for = schedule.graph_revision, plan.graph_revision
    if made_for != wanted:
        yield Problem(
            "the plan belongs to another revision of the graph", code=INNER_ERROR, node=schedule.name,
            expected=f"revision {wanted}", got=f"revision {made_for}", hint="plan the schedule again",
        )  # fmt: skip
    yield from _missing_rows(schedule, plan)
    rows = {row.tensor: row for row in plan.rows if row.tensor >= 0}
    if {tensor.id for tensor in schedule.tensors} - {*rows}:
        return
    for tensor in schedule.tensors:
        yield from _row_problems(schedule, tensor, rows[tensor.id], plan)
    for view in schedule.views:
        base, row = rows[view.base], rows[view.tensor]
        if (row.region, row.pool, row.offset) != (base.region, base.pool, base.offset + view.offset_bytes):
            yield _fault(
                f"view of '{base.name}' is not in its base",
                row.name,
                f"{base.offset + view.offset_bytes}",
                f"{row.offset}",
            )
    for group in schedule.groups:
        yield from _group_problems(schedule, group, rows)
    for row in plan.rows:
        if row.tensor < 0:
            yield from _workspace_problems(schedule, row, plan)
    yield from _alias_problems(schedule, rows)
    yield from _no_reuse_problems(schedule, plan)
    yield from _total_problems(plan)


def required_bytes(schedule: Schedule, tensor: ScheduleTensor) -> int:
    """Bytes that belong to a tensor alone: its slot, but only its payload inside a view or an unpadded group."""
    inside = any(view.tensor == tensor.id for view in schedule.views)
    inside = inside or any(tensor.id in group.members and not group.padded for group in schedule.groups)
    if tensor.slot_bytes and not any(view.tensor == tensor.id for view in schedule.views):
        return tensor.slot_bytes
    if inside or tensor.payload_bytes == 0:
        return tensor.payload_bytes
    if tensor.kind == TensorKind.WEIGHT:
        return -(-tensor.payload_bytes // SLOT_BYTES) * SLOT_BYTES
    return slot_bytes(tensor.payload_bytes)


def _fault(message: str, name: str, expected: str = "", got: str = "") -> Problem:
    return Problem(message, code=INNER_ERROR, node=name, expected=expected, got=got)


def _missing_rows(schedule: Schedule, plan: MemoryPlan) -> Iterator[Problem]:
    wanted = Counter([tensor.id for tensor in schedule.tensors])
    scratch = Counter((step.id, k) for step in schedule.steps for k in range(len(step.workspaces)))
    placed = Counter(row.tensor for row in plan.rows if row.tensor >= 0)
    placed_scratch = Counter((row.step, row.workspace) for row in plan.rows if row.tensor < 0)
    for key in sorted((wanted - placed) | (placed - wanted)):
        yield _fault(f"tensor {key} has {placed[key]} rows", schedule.name, str(wanted[key]), str(placed[key]))
    for step, k in sorted((scratch - placed_scratch) | (placed_scratch - scratch)):
        yield _fault(
            f"workspace {k} of step {step} has {placed_scratch[step, k]} rows", schedule.name, str(scratch[step, k])
        )


def _region_bytes(plan: MemoryPlan, row: PlanRow) -> int:
    if row.region == "weights":
        return plan.weights_bytes
    if row.region == "io":
        return plan.io_bytes
    return plan.pools[row.pool].total_size if row.pool in plan.pools else plan.total_size


def _row_problems(schedule: Schedule, tensor: ScheduleTensor, row: PlanRow, plan: MemoryPlan) -> Iterator[Problem]:
    need = required_bytes(schedule, tensor)
    if row.payload_bytes != tensor.payload_bytes or row.slot_bytes < need:
        yield _fault("row is smaller than its tensor", tensor.name, f"{tensor.payload_bytes} in a slot of {need}",
                     f"{row.payload_bytes} in {row.slot_bytes}")  # fmt: skip
    if row.pool != tensor.pool:
        yield _fault("row lies in another memory pool", tensor.name, tensor.pool, row.pool)
    size = _region_bytes(plan, row)
    if row.offset < 0 or (need and row.offset + need > size):
        yield _fault(
            f"row leaves its region {row.region}", tensor.name, f"[0, {size})", f"[{row.offset}, {row.offset + need})"
        )
    if tensor.pinned is not None and row.region == "arena" and row.offset != tensor.pinned:
        yield _fault("pinned tensor lies elsewhere", tensor.name, str(tensor.pinned), str(row.offset))
    modulus = max(tensor.alignment, SLOT_BYTES if tensor.residue else 1, 1)
    free = any(view.tensor == tensor.id for view in schedule.views)
    free = free or any(tensor.id in g.members[0 if g.parent >= 0 else 1 :] and not g.padded for g in schedule.groups)
    if not free and (row.offset - tensor.residue) % modulus:
        yield _fault(
            "tensor is misaligned", tensor.name, f"{tensor.residue % modulus} modulo {modulus}", f"{row.offset}"
        )
    touched = [step.id for step in schedule.steps if tensor.id in step.reads or tensor.id in step.writes]
    if touched and (row.first > touched[0] or row.last < touched[-1]):
        yield _fault(
            "row's life does not cover its accesses",
            tensor.name,
            f"{touched[0]}..{touched[-1]}",
            f"{row.first}..{row.last}",
        )
    yield from _region_problems(schedule, tensor, row)


def _region_problems(schedule: Schedule, tensor: ScheduleTensor, row: PlanRow) -> Iterator[Problem]:
    io = tensor.kind in (TensorKind.INPUT, TensorKind.OUTPUT) or tensor.id in (*schedule.inputs, *schedule.outputs)
    related = any(tensor.id in (view.tensor, view.base) for view in schedule.views)
    related = related or any(tensor.id in (group.parent, *group.members) for group in schedule.groups)
    if tensor.kind == TensorKind.WEIGHT:
        expected = "weights"
    elif io:
        expected = "io"
    elif related:
        return
    else:
        expected = "arena"
    if row.region != expected and not (io and related):
        yield _fault("row lies in the wrong region", tensor.name, expected, row.region)


def _group_problems(schedule: Schedule, group: Group, rows: dict[int, PlanRow]) -> Iterator[Problem]:
    tensors = {tensor.id: tensor for tensor in schedule.tensors}
    if not group.members:
        return
    start = rows[group.parent if group.parent >= 0 else group.members[0]]
    cursor = start.offset
    for member in group.members:
        tensor, row = tensors[member], rows[member]
        if group.padded:
            step = max(group.pad_to or tensor.alignment, 1)
            cursor = start.offset + -(-(cursor - start.offset) // step) * step
        if (row.region, row.pool, row.offset) != (start.region, start.pool, cursor):
            yield _fault("member of a contiguous group is out of line", tensor.name, str(cursor), str(row.offset))
        cursor = row.offset + (
            required_bytes(schedule, tensor) if group.padded or tensor.slot_bytes else tensor.payload_bytes
        )


def _workspace_problems(schedule: Schedule, row: PlanRow, plan: MemoryPlan) -> Iterator[Problem]:
    scratch = schedule.steps[row.step].workspaces[row.workspace]
    size = _region_bytes(plan, row)
    if row.region != "arena" or row.offset < 0 or (scratch.bytes and row.offset + scratch.bytes > size):
        yield _fault(
            "workspace leaves the arena", row.name, f"[0, {size})", f"[{row.offset}, {row.offset + scratch.bytes})"
        )
    if row.payload_bytes != scratch.bytes or row.slot_bytes < scratch.bytes:
        yield _fault("row is smaller than its workspace", row.name, str(scratch.bytes), str(row.slot_bytes))
    if row.offset % max(scratch.alignment, 1):
        yield _fault("workspace is misaligned", row.name, f"a multiple of {scratch.alignment}", str(row.offset))
    if not row.first <= row.step <= row.last:
        yield _fault("row's life misses its step", row.name, str(row.step), f"{row.first}..{row.last}")


def _alias_problems(schedule: Schedule, rows: dict[int, PlanRow]) -> Iterator[Problem]:
    granted = {(pair.read, pair.write) for pair in schedule.inplace}
    for row in rows.values():
        if row.alias_kind not in ALIAS_KINDS:
            yield _fault("unknown kind of alias", row.name, ", ".join(filter(None, ALIAS_KINDS)), row.alias_kind)
        elif row.alias_kind == "inplace":
            source = rows.get(row.alias_of)
            if (row.alias_of, row.tensor) not in granted or source is None:
                yield _fault(
                    "in-place without permission",
                    row.name,
                    "a permission of the schedule",
                    f"over tensor {row.alias_of}",
                )
            elif source.offset != row.offset:
                yield _fault(
                    f"in-place tensor does not start where '{source.name}' starts",
                    row.name,
                    f"{source.offset}",
                    f"{row.offset}",
                )


def _no_reuse_problems(schedule: Schedule, plan: MemoryPlan) -> Iterator[Problem]:
    """What may not be reused shares no byte with anything outside its own relations, at any time."""
    related: dict[int, set[int]] = {}
    for one, other in (
        *((view.tensor, view.base) for view in schedule.views),
        *((group.parent, member) for group in schedule.groups for member in group.members),
    ):
        related.setdefault(one, {one}).add(other)
        related.setdefault(other, {other}).add(one)
    rows = {row.tensor: row for row in plan.rows if row.tensor >= 0}
    for tensor in schedule.tensors:
        if not tensor.no_reuse or not rows[tensor.id].slot_bytes:
            continue
        mine, kin, frontier = rows[tensor.id], {tensor.id}, [tensor.id]
        while frontier:
            new = related.get(frontier.pop(), set()) - kin
            kin |= new
            frontier += sorted(new)
        for row in plan.rows:
            apart = row.offset + row.slot_bytes <= mine.offset or mine.offset + mine.slot_bytes <= row.offset
            if (
                not apart
                and row.slot_bytes
                and (row.region, row.pool) == (mine.region, mine.pool)
                and row.tensor not in kin
            ):
                yield _fault(
                    f"shares bytes with '{row.name}' although it may not be reused ({tensor.no_reuse})", tensor.name
                )


def _total_problems(plan: MemoryPlan) -> Iterator[Problem]:
    if not plan.theory_min <= plan.total_size <= plan.no_reuse:
        yield _fault("the three sizes are out of order", plan.schedule, "theory_min <= total_size <= no_reuse",
                     f"{plan.theory_min}, {plan.total_size}, {plan.no_reuse}")  # fmt: skip
