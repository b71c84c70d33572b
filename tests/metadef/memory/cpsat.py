"""The optimum of a small schedule by CP-SAT, from a model of its own: intervals in pairs, nothing of the planner's.

Streams, branches, memory pools, views, contiguous groups without a parent, pins, grids and no-reuse; no loops. Lives
are derived here from steps; an in-place permission allows its two tensors to start at one address.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from metadef.format import slot_bytes
from metadef.schedule import Group, Schedule, ScheduleTensor, TensorKind


class Item:
    """A tensor with its views, or a workspace: bytes, life, grid, and the branches of its writers."""

    def __init__(self, schedule: Schedule, members: list[ScheduleTensor], workspace: tuple[int, int] | None = None):
        last = len(schedule.steps) - 1
        self.ids, self.pin, self.fixed, self.pool = {t.id for t in members}, None, False, "HBM"
        self.step = 0
        if workspace is not None:
            step, size = workspace
            self.first = self.last = step
            self.touched, self.size, self.grid = [step], -(-size // 512) * 512, (512, 0)
            branch = schedule.steps[step].branch
            self.labels = [branch] if branch else []
            return
        base = members[0]
        self.pool = base.pool
        size = base.slot_bytes or (slot_bytes(base.payload_bytes) if base.payload_bytes else 0)
        self.size, self.pin, self.fixed = size, base.pinned, bool(base.no_reuse)
        self.grid = (max(base.alignment, 512), base.residue) if base.residue else (max(base.alignment, 1), 0)
        self.touched = [s.id for s in schedule.steps if self.ids & {*s.reads, *s.writes}]
        writers = [s for s in schedule.steps if self.ids & {*s.writes}]
        self.first, self.last = (self.touched[0], self.touched[-1]) if self.touched else (0, 0)
        labels = {s.branch for s in writers}
        self.labels = [] if "" in labels else sorted(labels)
        if self.fixed:
            self.first, self.last, self.labels = 0, last, []

    def excludes(self, other: Item) -> bool:
        """Whether the two never exist in one run."""
        return bool(self.labels and other.labels) and all(_apart(a, b) for a in self.labels for b in other.labels)


def _sides(label: str) -> dict[str, str]:
    return dict(part.split(":") for part in label.split("/"))  # type: ignore[misc]


def _apart(one: str, other: str) -> bool:
    a, b = _sides(one), _sides(other)
    return any(a[condition] != b[condition] for condition in a.keys() & b.keys())


def items_of(schedule: Schedule) -> list[Item]:
    """What is placed in the arena: features that are no view, and workspaces."""
    bases = {view.tensor: view.base for view in schedule.views}
    items = []
    for tensor in schedule.tensors:
        if tensor.kind != TensorKind.FEATURE or tensor.id in bases:
            continue
        views = [t for t in schedule.tensors if bases.get(t.id) == tensor.id]
        items.append(Item(schedule, [tensor, *views]))
    for step in schedule.steps:
        items += [Item(schedule, [], (step.id, scratch.bytes)) for scratch in step.workspaces]
    for group in schedule.groups:
        _lay_out(schedule, group, [next(item for item in items if member in item.ids) for member in group.members])
    return [item for item in items if item.size]


def _lay_out(schedule: Schedule, group: Group, rows: list[Item]) -> None:
    """Steps from one member of a group to the next; padding belongs to the member before it."""
    cursor = 0
    for k, (item, member) in enumerate(zip(rows, group.members)):
        tensor = schedule.tensors[member]
        item.step = item.size if group.padded else tensor.slot_bytes or tensor.payload_bytes
        if group.padded and k + 1 < len(rows):
            pad = group.pad_to or schedule.tensors[group.members[k + 1]].alignment
            item.step = -(-(cursor + item.step) // pad) * pad - cursor
        if not group.padded and k:
            item.grid = (1, 0)
        if k + 1 < len(rows):
            item.size = item.step
        cursor += item.step


def ordered_pairs(schedule: Schedule) -> set[tuple[int, int]]:
    """Pairs of steps of which the first surely ends before the second starts."""
    before: set[tuple[int, int]] = set()
    for late in schedule.steps:
        for early in schedule.steps[: late.id]:
            if early.stream == late.stream or {*early.records} & {*late.waits}:
                before |= {(early.id, late.id)} | {(first, late.id) for first, mid in before if mid == early.id}
    return before


def optimum(schedule: Schedule) -> int | None:
    """Least bytes of the arena, its pools summed up, proved; None where pins make it impossible."""
    items = items_of(schedule)
    pools = [_optimum(schedule, [item for item in items if item.pool == pool]) for pool in {i.pool for i in items}]
    return None if None in pools else sum(pools)  # type: ignore[arg-type]


def _optimum(schedule: Schedule, items: list[Item]) -> int | None:
    from ortools.sat.python import cp_model

    before = ordered_pairs(schedule)
    roof = sum(item.size + item.grid[0] for item in items) + max([item.pin or 0 for item in items], default=0)
    model = cp_model.CpModel()
    peak = model.new_int_var(0, roof, "peak")
    starts = []
    for item in items:
        turn = model.new_int_var(0, roof // item.grid[0], "")
        start: Any = turn * item.grid[0] + item.grid[1]
        if item.pin is not None:
            model.add(start == item.pin)
        model.add(start + item.size <= peak)
        starts.append(start)
    same: dict[tuple[int, int], Any] = {}
    for i, one in enumerate(items):
        for j, other in enumerate(items[:i]):
            if not meet(schedule, one, other, before):
                continue
            below, above = model.new_bool_var(""), model.new_bool_var("")
            ways = [below, above]
            model.add(starts[i] + one.size <= starts[j]).only_enforce_if(below)
            model.add(starts[j] + other.size <= starts[i]).only_enforce_if(above)
            if hands_over(schedule, other, one, before) or hands_over(schedule, one, other, before):
                same[i, j] = model.new_bool_var("")
                ways.append(same[i, j])
                model.add(starts[i] == starts[j]).only_enforce_if(same[i, j])
            model.add_bool_or(ways)
    _once_each(model, items, same)
    for group in schedule.groups:
        rows = [k for m in group.members for k, item in enumerate(items) if m in item.ids]
        for one, other in pairwise(rows):
            model.add(starts[other] == starts[one] + items[one].step)
    model.minimize(peak)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.random_seed = 1, 1
    state = solver.solve(model)
    if state == cp_model.INFEASIBLE:
        return None
    assert state == cp_model.OPTIMAL
    return int(solver.objective_value)


def _once_each(model: Any, items: list[Item], same: dict[tuple[int, int], Any]) -> None:
    """A tensor hands its memory to one heir at most, and inherits from one at most."""
    for k in range(len(items)):
        heirs = [
            t for (i, j), t in same.items() if k in (i, j) and items[k].last == max(items[i].first, items[j].first)
        ]
        sources = [
            t for (i, j), t in same.items() if k in (i, j) and items[k].first == max(items[i].first, items[j].first)
        ]
        for chosen in (heirs, sources):
            if len(chosen) > 1:
                model.add_at_most_one(chosen)


def meet(schedule: Schedule, one: Item, other: Item, before: set[tuple[int, int]]) -> bool:
    if one.excludes(other):
        return False
    if one.fixed or other.fixed or len({step.stream for step in schedule.steps}) <= 1:
        return one.first <= other.last and other.first <= one.last
    forward = all((a, b) in before for a in one.touched for b in other.touched)
    backward = all((b, a) in before for a in one.touched for b in other.touched)
    return not forward and not backward


def hands_over(schedule: Schedule, old: Item, new: Item, before: set[tuple[int, int]]) -> bool:
    """Whether a permission lets ``new`` start where ``old`` ends its life."""
    tensors = {tensor.id: tensor for tensor in schedule.tensors}
    starts = {tensor: 0 for tensor in old.ids} | {v.tensor: v.offset_bytes for v in schedule.views}
    for pair in schedule.inplace:
        if pair.read not in old.ids or pair.write not in new.ids or starts[pair.read]:
            continue
        step = schedule.steps[pair.step]
        others = [t for t in step.reads if t in old.ids and t != pair.read]
        same_place = all(
            (starts[t], tensors[t].payload_bytes) == (0, tensors[pair.read].payload_bytes)
            for t in others
            if t is not None
        )
        fits = tensors[pair.write].payload_bytes <= tensors[pair.read].payload_bytes and new.size <= old.size
        ends = old.last == pair.step == new.first and all(
            t == pair.step or (t, pair.step) in before for t in old.touched
        )
        if same_place and fits and ends and not old.fixed and not new.fixed:
            return True
    return False
