"""Quick planners: the traps they fall into and the ones they avoid."""

from __future__ import annotations

import pytest

from metadef.memory import heuristics
from metadef.memory.body_table import Body, Rect
from metadef.memory.live import StepOrder
from metadef.memory.problem import Problem


def problem_of(*lives: tuple[int, int, int], pins: dict[int, int] | None = None, modulus: int = 1) -> Problem:
    """Bodies from (first, last, size)."""
    bodies = [
        Body({i: 0}, [Rect(0, size, first, last)], modulus, pinned=(pins or {}).get(i))
        for i, (first, last, size) in enumerate(lives)
    ]
    return Problem(bodies, StepOrder(linear=True))


TRAP = ((3, 5, 32), (4, 5, 32), (1, 4, 32), (3, 5, 16), (5, 5, 96), (0, 3, 96))


def test_greedy_by_size_falls_into_the_trap_and_others_do_not():
    problem = problem_of(*TRAP)
    assert problem.peak(heuristics.greedy_by_size(problem) or []) == 208
    assert problem.peak(heuristics.execution_order(problem) or []) == 176
    climbed = heuristics.hill_climb(problem, heuristics.by_size(problem), 176, 500)
    assert climbed is not None and problem.overlaps(climbed) is None and problem.peak(climbed) == 176


@pytest.mark.parametrize(
    "planner",
    [heuristics.greedy_by_size, heuristics.greedy_by_breadth, heuristics.execution_order, heuristics.block_pool],
)
def test_placements_do_not_overlap(planner):
    problem = problem_of(*TRAP, *((i, i + 3, 7 * i + 1) for i in range(8)), modulus=4)
    offsets = planner(problem)
    assert problem.overlaps(offsets) is None
    assert all(offset % 4 == 0 for offset in offsets)


def test_best_fit_takes_the_tightest_gap():
    problem = problem_of((0, 9, 10), (0, 0, 50), (0, 9, 10), (0, 0, 20), (0, 9, 10), (5, 5, 20))
    pinned = problem_of(
        (0, 9, 10), (0, 0, 50), (0, 9, 10), (0, 0, 20), (0, 9, 10), (5, 5, 20), pins={0: 0, 1: 10, 2: 60, 3: 70, 4: 90}
    )
    assert len(problem) == 6
    assert (heuristics.place(pinned, [5], best_fit=True) or [])[5] == 70
    assert (heuristics.place(pinned, [5], best_fit=False) or [])[5] == 10


def test_pins_are_kept_or_refused():
    problem = problem_of((0, 1, 10), (0, 1, 10), (0, 1, 5), pins={0: 7})
    offsets = heuristics.greedy_by_size(problem)
    assert offsets is not None and offsets[0] == 7 and problem.overlaps(offsets) is None
    assert heuristics.greedy_by_size(problem_of((0, 1, 10), (0, 1, 10), pins={0: 0, 1: 5})) is None
    assert heuristics.pack_in_order(problem) == [7, 17, 27]
    assert heuristics.block_pool(problem) is None


def test_block_pool_doubles_its_classes():
    problem = problem_of((0, 0, 512), (1, 1, 500), (1, 1, 1024), (2, 2, 700), modulus=512)
    assert heuristics.block_pool(problem) == [0, 0, 512, 512]
