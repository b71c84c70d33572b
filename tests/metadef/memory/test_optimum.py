"""Small schedules with all constraints mixed: the planner's answer is CP-SAT's optimum, proved."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from metadef.error import PlanError
from metadef.memory import check_plan, plan_memory
from metadef.schedule import Group, Schedule, ScheduleTensor, TensorKind, View
from tests.metadef.memory.cpsat import optimum
from tests.metadef.memory.schedules import Maker

pytest.importorskip("ortools", reason="CP-SAT is the oracle: install the test extra (ortools)")


def mixed_schedule(seed: int) -> Schedule:
    """Up to 12 tensors: every relation and constraint but loops, drawn from a seed."""
    draw = random.Random(seed)
    make, schedule = Maker(f"seed{seed}"), Schedule("", "")
    schedule = make.schedule
    exact, branchy = draw.random() < 0.6, draw.random() < 0.3
    grain = draw.choice((1, 16, 512))
    alive = [make.tensor("x", 64, TensorKind.INPUT)]
    while len(schedule.tensors) + sum(len(s.workspaces) for s in schedule.steps) < draw.randint(5, 12):
        reads = draw.sample(alive[-5:], min(len(alive), 5, draw.randint(1, 3)))
        features = [t for t in reads if schedule.tensors[t].kind == TensorKind.FEATURE]
        same = bool(features) and draw.random() < 0.5
        size = schedule.tensors[features[0]].payload_bytes if same else draw.randint(1, 40) * grain
        heirs = tuple(t for t in features if t not in {v.tensor for v in schedule.views}) if same else ()
        kind = TensorKind.OUTPUT if draw.random() < 0.08 else TensorKind.FEATURE
        label = draw.choice(("", "c0:then", "c0:else", "c0:else/c1:then", "c0:else/c1:else")) if branchy else ""
        work = draw.choice((0, 0, 0, 0, 100, 700))
        alive.append(
            make.step(f"s{len(schedule.steps)}", reads, size, kind=kind, inplace=heirs, workspace=work, branch=label)
        )
        if size > 1 and draw.random() < 0.12:
            view = make.tensor(f"v{len(schedule.tensors)}", size // 2)
            schedule.views.append(View(view, alive[-1], draw.choice((0, size - size // 2))))
            alive.append(view)
    _vary(draw, schedule, exact)
    _group(draw, schedule)
    if draw.random() < 0.25:
        _streams(draw, schedule)
    return schedule


def _vary(draw: random.Random, schedule: Schedule, exact: bool) -> None:
    viewed = {t for view in schedule.views for t in (view.tensor, view.base)}
    for i, tensor in enumerate(schedule.tensors):
        if tensor.kind != TensorKind.FEATURE or tensor.id in viewed:
            continue
        free = ScheduleTensor(i, tensor.name, tensor.payload_bytes, alignment=512)
        if exact:
            free = replace(free, alignment=draw.choice((1, 16, 32, 64)), slot_bytes=tensor.payload_bytes)
        chance = draw.random()
        if chance < 0.06:
            free = replace(free, residue=32)
        elif chance < 0.12:
            free = replace(free, no_reuse="asked for")
        elif chance < 0.18:
            free = replace(free, pinned=draw.randint(0, 4) * 512)
        elif chance < 0.24:
            free = replace(free, pool="P2P")
        schedule.tensors[i] = free


def _group(draw: random.Random, schedule: Schedule) -> None:
    """Two plain features one after the other."""
    taken = {t for view in schedule.views for t in (view.tensor, view.base)}
    taken |= {t for pair in schedule.inplace for t in (pair.read, pair.write)}
    plain = [
        t.id for t in schedule.tensors
        if t.kind == TensorKind.FEATURE and t.id not in taken
        and not (t.no_reuse or t.residue or t.pinned is not None or t.pool != "HBM")
    ]  # fmt: skip
    if len(plain) >= 2 and draw.random() < 0.4:
        schedule.groups.append(Group(-1, tuple(draw.sample(plain, 2)), padded=draw.random() < 0.5))


def _streams(draw: random.Random, schedule: Schedule) -> None:
    """Two streams; every reader waits for its producer."""
    bases = {view.tensor: view.base for view in schedule.views}
    writer: dict[int, int] = {}
    for i, step in enumerate(schedule.steps):
        sources = {writer.get(bases.get(t, t)) for t in step.reads if t is not None} - {None}
        schedule.steps[i] = replace(
            step, stream=draw.randint(0, 1), waits=tuple(sorted(sources)), records=(i,)  # type: ignore[type-var, arg-type]
        )  # fmt: skip
        writer.update(dict.fromkeys(step.writes, i))


def agrees(seed: int) -> str:
    """What differs from CP-SAT for one seed ("" = nothing)."""
    schedule = mixed_schedule(seed)
    best = optimum(schedule)
    try:
        plan = plan_memory(schedule, budget_s=5.0)
    except PlanError as error:
        return "" if best is None else f"seed {seed}: refused, optimum {best}: {error}"
    check_plan(schedule, plan)
    if plan.total_size == best and plan.optimal:
        return ""
    return f"seed {seed}: {plan.total_size} (proved: {plan.optimal}), CP-SAT {best}, {plan.method}"


def test_a_few_seeds_reach_the_optimum():
    assert [found for found in map(agrees, range(100)) if found] == []


@pytest.mark.slow
def test_500_seeds_reach_the_optimum():
    assert [found for found in map(agrees, range(500)) if found] == []
