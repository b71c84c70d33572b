"""The checker's loops give the same findings as plain Python and compiled, on every shape and on broken plans."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from metadef.error import PlanError
from metadef.memory import MemoryPlan, check_plan, loops, plan_memory
from metadef.memory.touches import clocks_of
from metadef.schedule import Schedule, Step
from tests.metadef.memory.test_mutants import mutant
from tools.bench.plan_shapes import mixed


def verdict(schedule: Schedule, plan: MemoryPlan) -> list[str]:
    try:
        check_plan(schedule, plan)
    except PlanError as error:
        return [f"{problem.node}: {problem.message}" for problem in error.problems]
    return []


@pytest.mark.parametrize("seed", range(6))
def test_compiled_loops_find_what_plain_ones_find(seed: int, monkeypatch: pytest.MonkeyPatch):
    schedule = mixed(40 + seed, streams=1 + seed % 3, branches=seed > 3)
    if seed == 2:
        schedule.steps = [replace(step, loop_depth=step.id // 10 % 3) for step in schedule.steps]
    plan, draw = plan_memory(schedule, budget_s=0.02), random.Random(seed)
    cases = [(schedule, plan), *(mutant(draw, schedule, plan) for _ in range(12))]
    plain = [verdict(*case) for case in cases]
    monkeypatch.setattr(loops, "PLAIN_ITEMS", -1)
    assert [verdict(*case) for case in cases] == plain
    assert plain[0] == [] and any(plain)


def test_clocks_follow_streams_and_events():
    steps = [
        Step(0, "a", (), (), stream=7, records=(1,)), Step(1, "b", (), (), stream=2),
        Step(2, "c", (), (), stream=2, waits=(1,), records=(2,)), Step(3, "d", (), (), stream=7),
        Step(4, "e", (), (), stream=5, waits=(2,)),
    ]  # fmt: skip
    streams = np.array([0, 1, 1, 0, 2])
    assert clocks_of(steps, streams).tolist() == [[-1, -1, -1], [-1, -1, -1], [0, 1, -1], [0, -1, -1], [0, 2, -1]]
