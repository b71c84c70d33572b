"""A thousand plans that break a rule are refused by the checker, and mutants that break none are accepted.

Which is which is decided by an oracle in pairs: lives, grids and permissions from the schedule, bytes from the rows. A
workspace needs the bytes it asked for, and its slot only beside what may not be reused. Views and branches are left to
``test_check``: there the checker, which follows the bytes of every run, rightly allows more than lives in pairs do.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from metadef.error import PlanError
from metadef.memory import MemoryPlan, check_plan, plan_memory
from metadef.schedule import Schedule
from tests.metadef.memory.cpsat import Item, hands_over, items_of, meet, ordered_pairs
from tests.metadef.memory.test_optimum import mixed_schedule


def breaks_a_rule(schedule: Schedule, plan: MemoryPlan) -> bool:
    """Whether a plan's arena breaks a rule: range, grid, pin, distance in a group, overlap while both live."""
    at = {row.tensor: row for row in plan.rows if row.tensor >= 0}
    scratch = [(row.offset, row.step) for row in plan.rows if row.tensor < 0]
    items = items_of(schedule)
    starts = []
    for item in items:
        if not item.ids:
            item.step, item.size = (
                item.size,
                next(row.payload_bytes for row in plan.rows if row.tensor < 0 and row.step == item.first),
            )
        if item.ids:
            starts.append(at[min(item.ids)].offset)
        else:
            starts.append(next(offset for offset, step in scratch if step == item.first))
        roof, (modulus, residue) = plan.pools[item.pool].total_size, item.grid
        if starts[-1] < 0 or starts[-1] + item.size > roof or (starts[-1] - residue) % modulus:
            return True
        if item.pin is not None and item.pin != starts[-1]:
            return True
    if any(row.alias_kind == "inplace" and at[row.alias_of].offset != row.offset for row in at.values()):
        return True
    for group in schedule.groups:
        one, other = (next(k for k, item in enumerate(items) if m in item.ids) for m in group.members)
        if starts[other] != starts[one] + items[one].step:
            return True
    return _overlap(schedule, items, starts)


def _overlap(schedule: Schedule, items: list[Item], starts: list[int]) -> bool:
    before = ordered_pairs(schedule)
    for i, one in enumerate(items):
        for j, other in enumerate(items[:i]):
            high, top = (
                s + (a.step if b.fixed and not a.ids else a.size)
                for s, a, b in ((starts[i], one, other), (starts[j], other, one))
            )
            apart = high <= starts[j] or top <= starts[i]
            if apart or one.pool != other.pool or not meet(schedule, one, other, before):
                continue
            handed = hands_over(schedule, one, other, before) or hands_over(schedule, other, one, before)
            if starts[i] != starts[j] or not handed:
                return True
    return False


def mutant(draw: random.Random, schedule: Schedule, plan: MemoryPlan) -> tuple[Schedule, MemoryPlan]:
    """One thing changed: an offset (shifted, as another row has it, anywhere), or a life widened by a later reader."""
    movable = [i for i, row in enumerate(plan.rows) if row.region == "arena" and row.slot_bytes]
    if draw.random() < 0.25 and len(schedule.steps) > 1:
        step = draw.choice(schedule.steps[1:])
        early = [t for s in schedule.steps[: step.id] for t in s.writes if t not in step.reads]
        if early and len({s.stream for s in schedule.steps}) == 1:
            late = draw.choice(early)
            changed = replace(schedule, steps=[*schedule.steps])
            changed.steps[step.id] = replace(step, reads=(*step.reads, late))
            rows = [r if r.tensor != late else replace(r, last=max(r.last, step.id)) for r in plan.rows]
            return changed, replace(plan, rows=rows)
    index = draw.choice(movable)
    row = plan.rows[index]
    offset = draw.choice(
        (
            row.offset + draw.choice((-512, -16, -1, 1, 16, 32, 512)),
            plan.rows[draw.choice(movable)].offset,
            draw.randrange(0, plan.total_size + 1),
            draw.randrange(0, plan.total_size // 512 + 1) * 512,
        )
    )
    moved = replace(row, offset=offset, alias_kind="" if row.alias_kind == "inplace" else row.alias_kind)
    return schedule, replace(plan, rows=[*plan.rows[:index], moved, *plan.rows[index + 1 :]])


def verdicts(wanted: int) -> tuple[int, int, list[str]]:
    """Mutants that break a rule and that break none, until there are so many of the former; wrong verdicts."""
    broken = sound = seed = 0
    wrong = []
    while broken < wanted:
        schedule, draw = mixed_schedule(seed), random.Random(seed)
        seed += 1
        if schedule.views or any(step.branch for step in schedule.steps):
            continue
        try:
            plan = plan_memory(schedule, budget_s=0.05)
        except PlanError:
            continue
        if not any(row.region == "arena" and row.slot_bytes for row in plan.rows):
            continue
        for turn in range(8):
            changed, made = mutant(draw, schedule, plan)
            guilty = breaks_a_rule(changed, made)
            broken, sound = broken + guilty, sound + (not guilty)
            try:
                check_plan(changed, made)
                refused = ""
            except PlanError as error:
                refused = str(error)
            if bool(refused) != guilty:
                wrong.append(f"seed {seed - 1} mutant {turn}: breaks a rule: {guilty}, checker: {refused or 'accepts'}")
    return broken, sound, wrong


def test_a_hundred_mutants():
    broken, sound, wrong = verdicts(100)
    assert wrong == [] and broken >= 100 and sound >= 10


@pytest.mark.slow
def test_a_thousand_mutants():
    broken, sound, wrong = verdicts(1000)
    assert wrong == [] and broken >= 1000 and sound >= 100
