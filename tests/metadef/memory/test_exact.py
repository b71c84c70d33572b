"""The compiled exact search: known optima of hard instances, proofs of infeasibility, grids and pins."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadef.memory import check_plan, plan_memory
from metadef.memory.body_table import Body, Rect
from metadef.memory.cases import load_case
from metadef.memory.exact import search
from metadef.memory.heuristics import pack_in_order, place
from metadef.memory.live import StepOrder
from metadef.memory.problem import Problem, live_bytes

CAPACITY = 1_048_576

rects = st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 9))
grids = st.sampled_from([(1, 0), (1, 0), (2, 0), (4, 1)])


def problem_of(lives: list[tuple[int, int, int]], placed: list[tuple[int, int]]) -> Problem:
    bodies = [
        Body({i: 0}, [Rect(0, size, first, first + length)], modulus, residue)
        for i, ((first, length, size), (modulus, residue)) in enumerate(zip(lives, placed))
    ]
    return Problem(bodies, StepOrder(linear=True))


def best_of_all_orders(problem: Problem) -> int:
    """The optimum by first fit in every order: some order leads to every left-justified placement."""
    placements = (place(problem, order, best_fit=False) for order in permutations(range(len(problem))))
    return min(problem.peak(offsets) for offsets in placements if offsets is not None)


@settings(max_examples=40)
@given(st.lists(rects, min_size=1, max_size=6), st.data())
def test_small_problems_reach_the_optimum_of_all_orders(lives: list[tuple[int, int, int]], data: st.DataObject):
    problem = problem_of(lives, data.draw(st.lists(grids, min_size=len(lives), max_size=len(lives))))
    lower = max(live_bytes(problem.table, {}, 10))
    start = problem.peak(pack_in_order(problem))
    result = search(problem, start + 1, lower, lower, 1.0, False)
    assert result.offsets is not None and problem.overlaps(result.offsets) is None
    assert problem.peak(result.offsets) == result.lower == best_of_all_orders(problem)
    assert all((at - body.residue) % body.modulus == 0 for at, body in zip(result.offsets, problem.bodies))


def test_pinned_bodies_stay_and_infeasibility_is_proved():
    bodies = [Body({i: 0}, [Rect(0, size, 0, 3)]) for i, size in enumerate((4, 4, 2))]
    bodies[2].pinned = 3
    problem = Problem(bodies, StepOrder(linear=True))
    result = search(problem, 100, 10, 10, 1.0, False)
    assert result.offsets is not None and result.offsets[2] == 3 and problem.overlaps(result.offsets) is None
    assert problem.peak(result.offsets) == result.lower == 13
    refused = search(problem, 13, 12, 10, 1.0, True)
    assert refused.offsets is None and refused.lower == 13


@pytest.mark.parametrize("name", "ABCDFHIK")
def test_hard_instances_fit_their_capacity(name: str, need_data: Callable[[str], Path]):
    case = load_case(need_data(f"planner/minimalloc/{name}.1048576.csv"))
    plan = plan_memory(case.schedule, capacity=CAPACITY)
    check_plan(case.schedule, plan)
    assert plan.total_size <= CAPACITY
    assert plan.optimal == (name not in "CD")


def test_minimising_proves_the_optimum(need_data: Callable[[str], Path]):
    case = load_case(need_data("planner/minimalloc/C.1048576.csv"))
    plan = plan_memory(case.schedule, capacity=CAPACITY, minimise=True, budget_s=2)
    check_plan(case.schedule, plan)
    assert plan.total_size == 1_039_360 and plan.optimal


@pytest.mark.slow
def test_minimising_an_open_instance_reports_the_gap(need_data: Callable[[str], Path]):
    case = load_case(need_data("planner/minimalloc/D.1048576.csv"))
    plan = plan_memory(case.schedule, minimise=True, budget_s=30)
    check_plan(case.schedule, plan)
    assert plan.theory_min == 986_112
    assert plan.total_size <= 1_026_048 and not plan.optimal
