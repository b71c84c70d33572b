"""The search of large pools: safe, deterministic, better with more visits, and near the live set on random lives."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from metadef.memory import check_plan, heuristics, plan_memory
from metadef.memory import problem as problem_module
from metadef.memory.body_table import BodyTable
from metadef.memory.ejection import eject_misfits
from metadef.memory.live import StepOrder
from metadef.memory.pairs import Pairs
from metadef.memory.pool import pools_of
from metadef.memory.problem import Problem, lower_bound, theory_min
from tests.metadef.memory.test_large import random_bodies
from tools.bench.plan_shapes import lives


@pytest.mark.parametrize("pins", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_more_visits_never_give_a_worse_placement(seed: int, pins: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(problem_module, "LARGE_BODIES", 0)
    bodies = random_bodies(seed, pins=pins)
    problem = Problem(bodies, StepOrder(linear=True))
    goal, peaks = lower_bound(BodyTable.of(bodies), theory_min(BodyTable.of(bodies), Pairs.none(), 100)), []
    for visits in (0, 5_000, 100_000, 400_000):
        offsets = eject_misfits(problem, goal, visits)
        assert offsets is not None and problem.overlaps(offsets) is None
        assert all((offset - body.residue) % body.modulus == 0 for offset, body in zip(offsets, bodies))
        assert all(body.pinned in (None, offset) for offset, body in zip(offsets, bodies))
        assert offsets == eject_misfits(problem, goal, visits)
        peaks.append(problem.peak(offsets))
    assert all(later <= earlier for earlier, later in pairwise(peaks))


def test_busy_steps_count_more_than_long_lives():
    (pool,) = pools_of(lives(2_100), False).pools.values()
    problem = Problem(pool.joined.bodies, pool.order)
    row = problem.table.columns
    assert np.allclose(heuristics.crowding(problem, 0), row.last - row.first + 1)
    assert (np.diff(heuristics.crowding(problem, 32)[heuristics.by_crowding(problem, 32)]) <= 0).all()


def test_random_lives_come_near_the_live_set():
    schedule = lives(2_500)
    plan = plan_memory(schedule)
    check_plan(schedule, plan)
    assert plan.total_size <= 1.01 * plan.theory_min
    assert [row.offset for row in plan.rows] == [row.offset for row in plan_memory(schedule).rows]
