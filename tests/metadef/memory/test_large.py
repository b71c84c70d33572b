"""Thousands of bodies: the compiled code gives the plain code's conflicts and placements, and what it ejects
and places anew keeps every rule.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from metadef.memory import check_plan, heuristics, plan_memory
from metadef.memory import problem as problem_module
from metadef.memory.body_table import Body, BodyTable, Rect
from metadef.memory.ejection import eject_misfits
from metadef.memory.live import StepOrder
from metadef.memory.pairs import Pairs
from metadef.memory.problem import Problem, lower_bound, theory_min
from tools.bench.plan_shapes import mixed, skips


def random_bodies(seed: int, *, pins: bool = False) -> list[Body]:
    """Bodies of one or two rectangles on several grids, some of them empty or pinned."""
    draw = random.Random(seed)
    bodies = []
    for i in range(120):
        first = draw.randrange(60)
        rects = [Rect(0, draw.choice((0, 8, 64, 200)), first, first + draw.choice((0, 1, 2, 20)))]
        if draw.random() < 0.2:
            rects.append(Rect(draw.choice((16, 300)), 40, first + 2, first + 30))
        modulus = draw.choice((1, 16, 512))
        pinned = i * 4096 if pins and i % 40 == 0 else None
        bodies.append(Body({i: 0}, rects, modulus, draw.choice((0, 8)) % modulus if pinned is None else 0, pinned))
    return bodies


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Body]], tuple[Problem, Problem]]:
    """One problem for the plain code and one for the compiled code."""

    def make(bodies: list[Body]) -> tuple[Problem, Problem]:
        plain = Problem(bodies, StepOrder(linear=True))
        assert plain.large is None
        monkeypatch.setattr(problem_module, "LARGE_BODIES", 0)
        large = Problem(bodies, StepOrder(linear=True))
        assert large.large is not None
        return plain, large

    return make


@pytest.mark.parametrize("seed", range(4))
def test_conflicts_and_placements_are_those_of_the_plain_code(seed: int, both: Callable):
    plain, large = both(random_bodies(seed, pins=seed == 3))
    assert [sorted(entries) for entries in large.near] == [sorted(entries) for entries in plain.near]
    assert large.entries == plain.entries > 0
    planners = (
        heuristics.greedy_by_size, heuristics.first_fit_by_size, heuristics.execution_order,
        heuristics.greedy_by_area, heuristics.greedy_by_breadth,
    )  # fmt: skip
    for planner in planners:
        placed = planner(plain)
        assert planner(large) == placed and placed is not None
        assert large.overlaps(placed) is None
        worse = [0] * len(placed)
        assert large.overlaps(worse) is not None and plain.overlaps(worse) is not None


def test_pins_in_the_way_are_noticed(both: Callable):
    bodies = [Body({i: 0}, [Rect(0, 10, 0, 3)], pinned=pin) for i, pin in enumerate((0, 5, None))]
    plain, large = both(bodies)
    assert heuristics.greedy_by_size(plain) is None and heuristics.greedy_by_size(large) is None
    assert eject_misfits(large, 10, 1000) is None


@pytest.mark.parametrize("seed", range(4))
def test_ejection_keeps_to_conflicts_grids_pins_and_target(seed: int, both: Callable):
    bodies = random_bodies(seed, pins=seed == 3)
    _, large = both(bodies)
    conflicts = large.large
    start = np.array(heuristics.execution_order(large), np.int64)
    weight = np.ones(len(bodies), np.int64)
    lower = lower_bound(BodyTable.of(bodies), theory_min(BodyTable.of(bodies), Pairs.none(), 100))
    lowered = 0
    for target in (large.peak(start.tolist()), 2 * lower, lower):
        moved, spent = conflicts.eject(start, weight, target, 20_000, seed)
        assert (moved is None) <= (spent >= 20_000)
        if moved is None:
            continue
        offsets = moved.tolist()
        lowered += 1
        assert large.overlaps(offsets) is None and large.peak(offsets) <= target
        assert all((offset - body.residue) % body.modulus == 0 for offset, body in zip(offsets, bodies))
        assert all(body.pinned in (None, offset) for offset, body in zip(offsets, bodies))
    assert lowered


@pytest.mark.parametrize("reach", [0, 200])
def test_a_long_chain_is_planned_in_its_live_set(reach: int):
    plan = plan_memory(skips(2_500, reach))
    assert plan.optimal and plan.total_size == plan.theory_min


@pytest.mark.parametrize("how", [{"streams": 3}, {"branches": True}])
def test_streams_and_branches_at_size_are_planned_safely(how: dict[str, object]):
    schedule = mixed(2_500, **how)
    plan = plan_memory(schedule)
    check_plan(schedule, plan)
    assert plan.total_size <= 1.01 * plan.theory_min
