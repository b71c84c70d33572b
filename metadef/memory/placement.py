"""Row by row: is everything placed once, in its region, on its grid, and where relations want it?

First half of the checker. It works from the schedule alone: sizes, grids and member distances are derived here anew.
All rows are screened as columns; texts are made for the few that fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from metadef.error import Problem
from metadef.format import SLOT_BYTES, slot_bytes
from metadef.memory.plan import MemoryPlan, PlanRow
from metadef.schedule import Group, Schedule, ScheduleTensor, TensorKind

INNER_ERROR = "E19999"
ALIAS_KINDS = ("", "view", "inplace", "group")


class Facts:
    """What the checker needs of every tensor of a schedule, derived once; columns are by position of the tensor."""

    def __init__(self, schedule: Schedule) -> None:
        tensors = schedule.tensors
        self.place = {tensor.id: k for k, tensor in enumerate(tensors)}
        self.views = {view.tensor for view in schedule.views}
        self.packed = {t for group in schedule.groups if not group.padded for t in group.members}
        self.free = self.views | {
            t for g in schedule.groups if not g.padded for t in g.members[0 if g.parent >= 0 else 1 :]
        }
        self.related = {t for view in schedule.views for t in (view.tensor, view.base)}
        self.related |= {t for group in schedule.groups for t in (group.parent, *group.members)}
        kinds = [tensor.kind for tensor in tensors]
        self.outputs = {t.id for t, kind in zip(tensors, kinds) if kind == TensorKind.OUTPUT} | {*schedule.outputs}
        self.io = self.outputs | {*schedule.inputs}
        self.io |= {t.id for t, kind in zip(tensors, kinds) if kind == TensorKind.INPUT}
        self.weight = np.array([kind == TensorKind.WEIGHT for kind in kinds], np.bool_)
        self.payload = np.array([tensor.payload_bytes for tensor in tensors], np.int64)
        self.sizes = self._required(np.array([tensor.slot_bytes for tensor in tensors], np.int64))
        self.first, self.last = self._accesses(schedule)

    def _required(self, own_slot: np.ndarray) -> np.ndarray:
        """Bytes that belong to a tensor alone: its slot, but only its payload inside a view or an unpadded group."""
        weight_slot = -(-self.payload // SLOT_BYTES) * SLOT_BYTES
        sizes = np.where(self.weight, weight_slot, slot_bytes(self.payload))  # type: ignore[arg-type]
        sizes = np.where(self.payload == 0, 0, sizes)
        packed = np.fromiter(map(self.place.__getitem__, self.packed), np.int64, len(self.packed))
        sizes[packed] = self.payload[packed]
        sizes = np.where(own_slot > 0, own_slot, sizes)
        views = np.fromiter(map(self.place.__getitem__, self.views), np.int64, len(self.views))
        sizes[views] = self.payload[views]
        return np.asarray(sizes, np.int64)

    def _accesses(self, schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
        """First and last step that touches each tensor (of one that nobody does: none, as an empty range)."""
        first, last = [len(schedule.steps)] * len(self.place), [-1] * len(self.place)
        for k, step in enumerate(schedule.steps):
            for tensors in (step.reads, step.writes):
                for tensor in tensors:
                    if tensor is not None:
                        place = self.place[tensor]
                        last[place] = k
                        if first[place] > k:
                            first[place] = k
        return np.array(first, np.int64), np.array(last, np.int64)


def placement_problems(schedule: Schedule, plan: MemoryPlan, facts: Facts) -> Iterator[Problem]:
    """Everything that is wrong with the rows by themselves; nothing is simulated."""
    wanted, made_for = schedule.graph_revision, plan.graph_revision
    if made_for != wanted:
        yield Problem(
            "the plan belongs to another revision of the graph", code=INNER_ERROR, node=schedule.name,
            expected=f"revision {wanted}", got=f"revision {made_for}", hint="plan the schedule again",
        )  # fmt: skip
    yield from _missing_rows(schedule, plan)
    rows = {row.tensor: row for row in plan.rows if row.tensor >= 0}
    if facts.place.keys() - rows.keys():
        return
    in_order = [rows[tensor.id] for tensor in schedule.tensors]
    for k in _suspects(schedule, in_order, plan, facts):
        yield from _row_problems(schedule.tensors[k], in_order[k], plan, facts)
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
        yield from _group_problems(schedule, group, rows, facts)
    for row in plan.rows:
        if row.tensor < 0:
            yield from _workspace_problems(schedule, row, plan)
    yield from _alias_problems(schedule, rows)
    yield from _no_reuse_problems(schedule, plan)
    yield from _total_problems(plan)


def _suspects(schedule: Schedule, rows: Sequence[PlanRow], plan: MemoryPlan, facts: Facts) -> list[int]:
    """Positions of tensors whose row fails one of the checks of :func:`_row_problems`, by columns."""
    tensors = schedule.tensors
    offset = np.array([row.offset for row in rows], np.int64)
    slot = np.array([row.slot_bytes for row in rows], np.int64)
    payload = np.array([row.payload_bytes for row in rows], np.int64)
    known: dict[tuple[str, str], int] = {}
    region = np.array([known.setdefault((row.region, row.pool), len(known)) for row in rows], np.int64)
    room = np.array([_region_bytes(plan, name, pool) for name, pool in known] or [0], np.int64)
    bad = (payload != facts.payload) | (slot < facts.sizes) | (offset < 0)
    bad |= (facts.sizes > 0) & (offset + facts.sizes > room[region])
    expected = [_expected_region(tensor, facts) for tensor in tensors]
    odd = [
        row.pool != tensor.pool
        or row.region != name
        or (tensor.pinned is not None and tensor.pinned != row.offset and row.region == "arena")
        for row, tensor, name in zip(rows, tensors, expected)
    ]
    bad |= np.array(odd, np.bool_)
    residue = np.array([tensor.residue for tensor in tensors], np.int64)
    grid = np.maximum(np.array([tensor.alignment for tensor in tensors], np.int64), np.where(residue, SLOT_BYTES, 1))
    free = np.array([tensor.id in facts.free for tensor in tensors], np.bool_)
    bad |= ~free & ((offset - residue) % grid != 0)
    bad |= np.array([row.first for row in rows], np.int64) > facts.first
    bad |= np.array([row.last for row in rows], np.int64) < facts.last
    found: list[int] = np.flatnonzero(bad).tolist()
    return found


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


def _region_bytes(plan: MemoryPlan, region: str, pool: str) -> int:
    if region == "weights":
        return plan.weights_bytes
    if region == "io":
        return plan.io_bytes
    return plan.pools[pool].total_size if pool in plan.pools else plan.total_size


def _row_problems(tensor: ScheduleTensor, row: PlanRow, plan: MemoryPlan, facts: Facts) -> Iterator[Problem]:
    place = facts.place[tensor.id]
    need = int(facts.sizes[place])
    if row.payload_bytes != tensor.payload_bytes or row.slot_bytes < need:
        yield _fault("row is smaller than its tensor", tensor.name, f"{tensor.payload_bytes} in a slot of {need}",
                     f"{row.payload_bytes} in {row.slot_bytes}")  # fmt: skip
    if row.pool != tensor.pool:
        yield _fault("row lies in another memory pool", tensor.name, tensor.pool, row.pool)
    size = _region_bytes(plan, row.region, row.pool)
    if row.offset < 0 or (need and row.offset + need > size):
        yield _fault(
            f"row leaves its region {row.region}", tensor.name, f"[0, {size})", f"[{row.offset}, {row.offset + need})"
        )
    if tensor.pinned is not None and row.region == "arena" and row.offset != tensor.pinned:
        yield _fault("pinned tensor lies elsewhere", tensor.name, str(tensor.pinned), str(row.offset))
    modulus = max(tensor.alignment, SLOT_BYTES if tensor.residue else 1, 1)
    if tensor.id not in facts.free and (row.offset - tensor.residue) % modulus:
        yield _fault(
            "tensor is misaligned", tensor.name, f"{tensor.residue % modulus} modulo {modulus}", f"{row.offset}"
        )
    first, last = int(facts.first[place]), int(facts.last[place])
    if first <= last and (row.first > first or row.last < last):
        yield _fault(
            "row's life does not cover its accesses", tensor.name, f"{first}..{last}", f"{row.first}..{row.last}"
        )
    expected = _expected_region(tensor, facts)
    related = tensor.id in facts.related
    either = related and (tensor.id in facts.io or expected == "arena")
    if row.region != expected and not either:
        yield _fault("row lies in the wrong region", tensor.name, expected, row.region)


def _expected_region(tensor: ScheduleTensor, facts: Facts) -> str:
    if tensor.kind == TensorKind.WEIGHT:
        return "weights"
    return "io" if tensor.id in facts.io else "arena"


def _group_problems(schedule: Schedule, group: Group, rows: dict[int, PlanRow], facts: Facts) -> Iterator[Problem]:
    if not group.members:
        return
    start = rows[group.parent if group.parent >= 0 else group.members[0]]
    cursor = start.offset
    for member in group.members:
        place = facts.place[member]
        tensor, row = schedule.tensors[place], rows[member]
        if group.padded:
            step = max(group.pad_to or tensor.alignment, 1)
            cursor = start.offset + -(-(cursor - start.offset) // step) * step
        if (row.region, row.pool, row.offset) != (start.region, start.pool, cursor):
            yield _fault("member of a contiguous group is out of line", tensor.name, str(cursor), str(row.offset))
        cursor = row.offset + (int(facts.sizes[place]) if group.padded or tensor.slot_bytes else tensor.payload_bytes)


def _workspace_problems(schedule: Schedule, row: PlanRow, plan: MemoryPlan) -> Iterator[Problem]:
    scratch = schedule.steps[row.step].workspaces[row.workspace]
    size = _region_bytes(plan, row.region, row.pool)
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
    guarded = [tensor for tensor in schedule.tensors if tensor.no_reuse]
    if not guarded:
        return
    known: dict[tuple[str, str], int] = {}
    low = np.array([row.offset for row in plan.rows], np.int64)
    size = np.array([row.slot_bytes for row in plan.rows], np.int64)
    space = np.array([known.setdefault((row.region, row.pool), len(known)) for row in plan.rows], np.int64)
    places = {row.tensor: k for k, row in enumerate(plan.rows) if row.tensor >= 0}
    for tensor in guarded:
        mine = places[tensor.id]
        touching = (low < low[mine] + size[mine]) & (low[mine] < low + size) & (size > 0) & (space == space[mine])
        if not size[mine] or np.count_nonzero(touching) <= 1:
            continue
        kin, frontier = {tensor.id}, [tensor.id]
        while frontier:
            new = related.get(frontier.pop(), set()) - kin
            kin |= new
            frontier += sorted(new)
        for k in np.flatnonzero(touching).tolist():
            if plan.rows[k].tensor not in kin:
                why = f"although it may not be reused ({tensor.no_reuse})"
                yield _fault(f"shares bytes with '{plan.rows[k].name}' {why}", tensor.name)


def _total_problems(plan: MemoryPlan) -> Iterator[Problem]:
    if not plan.theory_min <= plan.total_size <= plan.no_reuse:
        yield _fault("the three sizes are out of order", plan.schedule, "theory_min <= total_size <= no_reuse",
                     f"{plan.theory_min}, {plan.total_size}, {plan.no_reuse}")  # fmt: skip
