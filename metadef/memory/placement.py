"""Row by row: is everything placed once, in its region, on its grid, and where relations want it?

First half of the checker. It works from the schedule alone: sizes, grids and member distances are derived here anew.
All rows are screened as columns; texts are made for the few that fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from metadef.error import Problem
from metadef.format import SLOT_BYTES, slot_bytes
from metadef.memory.columns import FREE, RowColumns, ScheduleColumns, numbered
from metadef.memory.plan import MemoryPlan, PlanRow
from metadef.schedule import Group, Schedule, ScheduleTensor, TensorKind

INNER_ERROR = "E19999"
ALIAS_KINDS = ("", "view", "inplace", "group")
REGIONS = ("weights", "arena", "io")
WEIGHTS, ARENA, IO = range(3)


class Facts:
    """What the checker needs of every tensor of a schedule, derived once; columns are by position of the tensor.

    ``rows`` are those of the plan in question.
    """

    def __init__(self, schedule: Schedule, plan: MemoryPlan) -> None:
        self.columns = given = ScheduleColumns(schedule)
        self.rows = RowColumns(plan.rows)
        self.place = given.place
        view, base, _ = given.views
        parents, starts, members = given.groups
        self.parent = np.repeat(parents, np.diff(starts))
        padded = np.array([group.padded for group in schedule.groups], np.bool_)
        self.padded = np.repeat(padded, np.diff(starts))
        first = np.zeros(len(members), np.bool_)
        first[starts[:-1][np.diff(starts) > 0]] = True
        packed, following = members[~self.padded], members[~self.padded & ~(first & (self.parent < 0))]
        self.views, self.free = self._mask(view), self._mask(view, following)
        self.related = self._mask(view, base, members, parents[parents >= 0])
        self.outputs = given.of_kind(TensorKind.OUTPUT) | self._mask(given.places(schedule.outputs))
        self.io = self.outputs | given.of_kind(TensorKind.INPUT) | self._mask(given.places(schedule.inputs))
        self.weight, self.payload = given.of_kind(TensorKind.WEIGHT), given.payload
        self.sizes = self._required(given.slot, self._mask(packed))
        self.first, self.last = self._accesses(len(schedule.steps))

    def _mask(self, *places: np.ndarray) -> np.ndarray:
        """Which tensors are among these."""
        mask = np.zeros(len(self.columns.ids), np.bool_)
        for some in places:
            mask[some] = True
        return mask

    @cached_property
    def row(self) -> np.ndarray:
        """The position of every tensor's row. Raises KeyError for a tensor without one."""
        return self.rows.of(self.columns.ids)

    @cached_property
    def scratch_in_order(self) -> bool:
        """Whether the rows of workspaces are those of the steps, one by one."""
        mine = self.rows.tensor < 0
        step, number = self.columns.workspaces[:2]
        return np.array_equal(self.rows.step[mine], step) and np.array_equal(self.rows.workspace[mine], number)

    def _required(self, own_slot: np.ndarray, packed: np.ndarray) -> np.ndarray:
        """Bytes that belong to a tensor alone: its slot, but only its payload inside a view or an unpadded group."""
        weight_slot = -(-self.payload // SLOT_BYTES) * SLOT_BYTES
        sizes = np.where(self.weight, weight_slot, slot_bytes(self.payload))  # type: ignore[arg-type]
        sizes = np.where(self.payload == 0, 0, sizes)
        sizes[packed] = self.payload[packed]
        sizes = np.where(own_slot > 0, own_slot, sizes)
        sizes[self.views] = self.payload[self.views]
        return np.asarray(sizes, np.int64)

    def _accesses(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """First and last step that touches each tensor (of one that nobody does: none, as an empty range)."""
        first, last = np.full(len(self.place), steps), np.full(len(self.place), -1)
        for step, place in (self.columns.reads, self.columns.writes):
            np.minimum.at(first, place, step)
            np.maximum.at(last, place, step)
        return first, last


def placement_problems(schedule: Schedule, plan: MemoryPlan, facts: Facts) -> Iterator[Problem]:
    """Everything that is wrong with the rows by themselves; nothing is simulated."""
    wanted, made_for = schedule.graph_revision, plan.graph_revision
    if made_for != wanted:
        yield Problem(
            "the plan belongs to another revision of the graph", code=INNER_ERROR, node=schedule.name,
            expected=f"revision {wanted}", got=f"revision {made_for}", hint="plan the schedule again",
        )  # fmt: skip
    yield from _missing_rows(schedule, plan, facts)
    if not np.isin(facts.columns.ids, facts.rows.tensor).all():
        return
    for k in _suspects(plan, facts):
        yield from _row_problems(schedule.tensors[k], plan.rows[facts.row[k]], plan, facts)
    for k in _displaced_views(facts):
        view = schedule.views[k]
        base, row = (plan.rows[facts.row[facts.place[t]]] for t in (view.base, view.tensor))
        yield _fault(
            f"view of '{base.name}' is not in its base", row.name, f"{base.offset + view.offset_bytes}", f"{row.offset}"
        )
    for k in _displaced_groups(facts):
        yield from _group_problems(schedule, schedule.groups[k], plan, facts)
    for k in _suspect_workspaces(plan, facts):
        yield from _workspace_problems(schedule, plan.rows[k], plan)
    yield from _alias_problems(plan, facts)
    yield from _no_reuse_problems(schedule, plan, facts)
    yield from _total_problems(plan)


def _displaced_views(facts: Facts) -> list[int]:
    """The views that do not lie in their base."""
    view, base, distance = facts.columns.views
    offset, space = facts.rows.offset[facts.row], facts.rows.space[facts.row]
    wrong: list[int] = np.flatnonzero((space[view] != space[base]) | (offset[view] != offset[base] + distance)).tolist()
    return wrong


def _displaced_groups(facts: Facts) -> list[int]:
    """The groups of which a member does not lie where the one before it ends, or is padded to."""
    given = facts.columns
    parents, starts, members = given.groups
    if not len(members):
        return []
    counts = np.diff(starts)
    groups = np.repeat(np.arange(len(parents)), counts)
    offset, space = facts.rows.offset[facts.row], facts.rows.space[facts.row]
    anchor = np.where(facts.parent >= 0, facts.parent, members[starts[:-1][groups]])
    taken = np.where(facts.padded | (given.slot[members] != 0), facts.sizes[members], given.payload[members])
    cursor = np.concatenate([[0], (offset[members] + taken)[:-1]])
    first = starts[:-1][counts > 0]
    cursor[first] = offset[anchor[first]]
    wanted_pad = np.repeat(np.array([group.pad_to for group in given.schedule.groups], np.int64), counts)
    multiple = np.maximum(np.where(wanted_pad != 0, wanted_pad, given.alignment[members]), 1)
    distance = cursor - offset[anchor]
    cursor = np.where(facts.padded, offset[anchor] - -distance // multiple * multiple, cursor)
    wrong = (space[members] != space[anchor]) | (offset[members] != cursor)
    found: list[int] = np.unique(groups[wrong]).tolist()
    return found


def _suspect_workspaces(plan: MemoryPlan, facts: Facts) -> list[int]:
    """Rows of workspaces that fail one of the checks of :func:`_workspace_problems`, by columns."""
    made = facts.rows
    mine = np.flatnonzero(made.tensor < 0)
    if not facts.scratch_in_order:
        rows: list[int] = mine.tolist()
        return rows
    step, _, size, alignment = facts.columns.workspaces
    room = np.array([_region_bytes(plan, name, pool) for name, pool in made.spaces] or [0], np.int64)
    arena = np.array([name == REGIONS[ARENA] for name, _ in made.spaces] or [False], np.bool_)
    offset, space = made.offset[mine], made.space[mine]
    bad = ~arena[space] | (offset < 0) | ((size > 0) & (offset + size > room[space]))
    bad |= (made.payload[mine] != size) | (made.slot[mine] < size) | (offset % np.maximum(alignment, 1) != 0)
    bad |= (made.first[mine] > step) | (made.last[mine] < step)
    found: list[int] = mine[bad].tolist()
    return found


def _suspects(plan: MemoryPlan, facts: Facts) -> list[int]:
    """Positions of tensors whose row fails one of the checks of :func:`_row_problems`, by columns."""
    given, made = facts.columns, facts.rows
    row = facts.row
    offset, space = made.offset[row], made.space[row]
    room = np.array([_region_bytes(plan, name, pool) for name, pool in made.spaces] or [0], np.int64)
    bad = (made.payload[row] != facts.payload) | (made.slot[row] < facts.sizes) | (offset < 0)
    bad |= (facts.sizes > 0) & (offset + facts.sizes > room[space])
    regions = np.array([REGIONS.index(name) if name in REGIONS else -1 for name, _ in made.spaces] or [0], np.int64)
    expected = np.where(facts.weight, WEIGHTS, np.where(facts.io, IO, ARENA))
    bad |= regions[space] != expected
    known = {pool: k for k, (_, pool) in enumerate(reversed(made.spaces))}
    pools = np.array([known[pool] for _, pool in made.spaces] or [0], np.int64)
    bad |= pools[space] != np.array([known.setdefault(pool, len(known)) for pool in given.pools], np.int64)[given.pool]
    bad |= (given.pinned != FREE) & (given.pinned != offset) & (regions[space] == ARENA)
    grid = np.maximum(given.alignment, np.where(given.residue, SLOT_BYTES, 1))
    bad |= ~facts.free & ((offset - given.residue) % grid != 0)
    bad |= (made.first[row] > facts.first) | (made.last[row] < facts.last)
    found: list[int] = np.flatnonzero(bad).tolist()
    return found


def _fault(message: str, name: str, expected: str = "", got: str = "") -> Problem:
    return Problem(message, code=INNER_ERROR, node=name, expected=expected, got=got)


def _missing_rows(schedule: Schedule, plan: MemoryPlan, facts: Facts) -> Iterator[Problem]:
    made = facts.rows
    placed = made.tensor[made.tensor >= 0]
    if not np.array_equal(placed, facts.columns.ids):
        yield from _wrong_counts(schedule, Counter(facts.columns.ids.tolist()), Counter(placed.tolist()))
    if facts.scratch_in_order:
        return
    scratch = Counter((step.id, k) for step in schedule.steps for k in range(len(step.workspaces)))
    rows = (plan.rows[k] for k in np.flatnonzero(made.tensor < 0).tolist())
    placed_scratch = Counter((row.step, row.workspace) for row in rows)
    for step, k in sorted((scratch - placed_scratch) | (placed_scratch - scratch)):
        yield _fault(
            f"workspace {k} of step {step} has {placed_scratch[step, k]} rows", schedule.name, str(scratch[step, k])
        )


def _wrong_counts(schedule: Schedule, wanted: Counter[int], placed: Counter[int]) -> Iterator[Problem]:
    for key in sorted((wanted - placed) | (placed - wanted)):
        yield _fault(f"tensor {key} has {placed[key]} rows", schedule.name, str(wanted[key]), str(placed[key]))


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
    if not facts.free[place] and (row.offset - tensor.residue) % modulus:
        yield _fault(
            "tensor is misaligned", tensor.name, f"{tensor.residue % modulus} modulo {modulus}", f"{row.offset}"
        )
    first, last = int(facts.first[place]), int(facts.last[place])
    if first <= last and (row.first > first or row.last < last):
        yield _fault(
            "row's life does not cover its accesses", tensor.name, f"{first}..{last}", f"{row.first}..{row.last}"
        )
    expected = _expected_region(tensor, facts)
    either = facts.related[place] and (facts.io[place] or expected == "arena")
    if row.region != expected and not either:
        yield _fault("row lies in the wrong region", tensor.name, expected, row.region)


def _expected_region(tensor: ScheduleTensor, facts: Facts) -> str:
    if tensor.kind == TensorKind.WEIGHT:
        return REGIONS[WEIGHTS]
    return REGIONS[IO if facts.io[facts.place[tensor.id]] else ARENA]


def _group_problems(schedule: Schedule, group: Group, plan: MemoryPlan, facts: Facts) -> Iterator[Problem]:
    start = plan.rows[facts.row[facts.place[group.parent if group.parent >= 0 else group.members[0]]]]
    cursor = start.offset
    for member in group.members:
        place = facts.place[member]
        tensor, row = schedule.tensors[place], plan.rows[facts.row[place]]
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


def _alias_problems(plan: MemoryPlan, facts: Facts) -> Iterator[Problem]:
    place, rows, suspects = facts.place, plan.rows, _suspect_aliases(facts)
    granted = set(map(tuple, facts.columns.inplace[:, 1:].tolist())) if suspects else set()
    for k in suspects:
        row = rows[k]
        source = rows[facts.row[place[row.alias_of]]] if row.alias_of in place else None
        if row.alias_kind not in ALIAS_KINDS:
            yield _fault("unknown kind of alias", row.name, ", ".join(filter(None, ALIAS_KINDS)), row.alias_kind)
        elif source is None or (row.alias_of, row.tensor) not in granted:
            expected = "a permission of the schedule"
            yield _fault("in-place without permission", row.name, expected, f"over tensor {row.alias_of}")
        else:
            message = f"in-place tensor does not start where '{source.name}' starts"
            yield _fault(message, row.name, f"{source.offset}", f"{row.offset}")


def _suspect_aliases(facts: Facts) -> list[int]:
    """Rows of tensors with an alias of unknown kind, or in place without permission or at another offset."""
    given, made = facts.columns, facts.rows
    kinds = dict(zip(ALIAS_KINDS, range(len(ALIAS_KINDS))))
    kind = numbered([row.alias_kind for row in made.rows], kinds)
    bad = (kind >= len(ALIAS_KINDS)) & (made.tensor >= 0)
    mine = np.flatnonzero((kind == ALIAS_KINDS.index("inplace")) & (made.tensor >= 0))
    known = np.isin(made.alias_of[mine], given.ids) & np.isin(made.tensor[mine], given.ids)
    bad[mine[~known]] = True
    mine = mine[known]
    source, written, count = given.places(made.alias_of[mine]), given.places(made.tensor[mine]), len(given.ids)
    pairs = given.inplace[np.isin(given.inplace[:, 1:], given.ids).all(axis=1)]
    granted = given.places(pairs[:, 1]) * count + given.places(pairs[:, 2])
    bad[mine] |= ~np.isin(source * count + written, granted) | (made.offset[facts.row[source]] != made.offset[mine])
    found: list[int] = np.flatnonzero(bad).tolist()
    return found


def _no_reuse_problems(schedule: Schedule, plan: MemoryPlan, facts: Facts) -> Iterator[Problem]:
    """What may not be reused shares no byte with anything outside its own relations, at any time."""
    guarded = [schedule.tensors[k] for k in np.flatnonzero(facts.columns.kept).tolist()]
    if not guarded:
        return
    related: dict[int, set[int]] = {}
    for one, other in (
        *((view.tensor, view.base) for view in schedule.views),
        *((group.parent, member) for group in schedule.groups for member in group.members),
    ):
        related.setdefault(one, {one}).add(other)
        related.setdefault(other, {other}).add(one)
    low, size, space = facts.rows.offset, facts.rows.slot, facts.rows.space
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
