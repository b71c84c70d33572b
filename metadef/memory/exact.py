"""The exact search for pools of plain rectangles: within a capacity a placement, or the proof that there is none.

Drives the compiled search (``exact_kernel``): sections of the time line, orders of ranks in turn, which capacity next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metadef.memory.exact_kernel import (
    FOUND,
    LIMIT,
    NONE,
    TOTAL_AREA_WIDTH,
    TOTAL_WIDTH_AREA,
    WIDTH_AREA_TOTAL,
    solve,
)
from metadef.memory.problem import Problem

VISITS_PER_S = 250_000_000
"""Work in a second of budget: a placement visits all bodies' sections, and the bodies some ten times (measured)."""

FIRST_LIMIT = 2_500
"""Placements tried before the next order of ranks gets its turn; doubled after each round of all."""

FIRST_SHARE, WINDOW, LUCKY_ORDERS = 24, 8, 2
"""The first round gives each capacity this part of the budget; later rounds search this part of the gap."""

SECTIONS, BIRTHS, DEATHS, NEIGHBOURS, TIMES = range(5)
ORDERS = (
    (BIRTHS, False, TOTAL_WIDTH_AREA),
    (BIRTHS, True, TOTAL_WIDTH_AREA),
    (BIRTHS, False, TOTAL_AREA_WIDTH),
    (NEIGHBOURS, False, WIDTH_AREA_TOTAL),
    (TIMES, False, TOTAL_WIDTH_AREA),
    (NEIGHBOURS, False, TOTAL_AREA_WIDTH),
    (DEATHS, False, TOTAL_WIDTH_AREA),
    (SECTIONS, False, TOTAL_WIDTH_AREA),
    (BIRTHS, False, WIDTH_AREA_TOTAL),
    (DEATHS, False, WIDTH_AREA_TOTAL),
    (SECTIONS, False, WIDTH_AREA_TOTAL),
    (NEIGHBOURS, True, WIDTH_AREA_TOTAL),
    (DEATHS, True, TOTAL_WIDTH_AREA),
    (TIMES, False, WIDTH_AREA_TOTAL),
)
"""How to rank: what a width counts, whether every node ranks anew (else only after a split), the order of the keys.

No single order solves all known hard instances; each of these solves some in a few thousand placements."""


@dataclass(frozen=True)
class SearchResult:
    """Best offsets found (None: nothing below the incumbent), and a proved lower bound of the peak (bytes)."""

    offsets: list[int] | None
    lower: int
    candidates: int


def search(problem: Problem, incumbent: int, goal: int, lower: int, budget_s: float, only_goal: bool) -> SearchResult:
    """Look for a peak below ``incumbent`` bytes, at best ``goal``; ``lower`` is a known lower bound.

    Only for problems that are :attr:`Problem.single`. The goal is tried first, then what lies between it and the best
    placement is halved; later rounds halve a window below the best with twice the placements. With ``only_goal`` the
    whole budget goes into the goal. The budget is counted in placements, so that results repeat;
    problems of which it cannot place every body once are left alone.
    """
    if budget_s * VISITS_PER_S < 11 * len(problem) ** 2:
        return SearchResult(None, lower, 0)
    first, last = _sections(problem.first, problem.last)
    left = int(budget_s * VISITS_PER_S / (int((last - first + 1).sum()) + 10 * len(problem) + 1))
    if left < len(problem):
        return SearchResult(None, lower, 0)
    table = _Instance(problem, first, last)
    grain = table.granule
    used, share = 0, left if only_goal else max(left // FIRST_SHARE, FIRST_LIMIT)
    best: list[int] | None = None
    undecided, capacity = lower - grain, max(goal, lower)
    while used < left and incumbent > max(goal, lower):
        state, offsets, tried = table.solve(capacity, min(share, left - used))
        used += tried
        if state == FOUND:
            best, incumbent = offsets, problem.peak(offsets)
        else:
            undecided = capacity
            lower = max(lower, capacity + grain) if state == NONE else lower
        if incumbent - undecided <= grain:
            share, gap = 2 * share, (incumbent - lower) // grain
            undecided = incumbent - min(max(gap // WINDOW, 4), gap + 1) * grain
        capacity = max(undecided + (incumbent - undecided) // (2 * grain) * grain, undecided + grain, lower)
    return SearchResult(best, min(lower, incumbent), used)


class _Instance:
    """A problem as arrays: sizes, sections of the time line, grids, pins, and who overlaps whom."""

    def __init__(self, problem: Problem, first: np.ndarray, last: np.ndarray) -> None:
        bodies = problem.bodies
        sizes = np.array(problem.extents, np.int64)
        modulus = np.array([body.modulus for body in bodies], np.int64)
        residue = np.array([body.residue for body in bodies], np.int64)
        pins = np.array([-1 if body.pinned is None else body.pinned for body in bodies], np.int64)
        near_start = np.cumsum([0, *map(len, problem.near)]).astype(np.int64)
        near = np.array([j for entries in problem.near for j, _, _ in entries], np.int64)
        self.bodies = (sizes, first, last, modulus, residue, pins, near_start, near)
        self.widths = _widths(problem, last - first + 1)
        values = np.concatenate([sizes, modulus[modulus > 1], residue, np.maximum(pins, 0)])
        self.granule = int(np.gcd.reduce(values)) or 1
        self.turns: dict[int, int] = {}
        self.lucky: list[int] = []

    def solve(self, capacity: int, limit: int) -> tuple[int, list[int], int]:
        """FOUND with offsets, NONE (proved), or LIMIT after ``limit`` placements tried; and how many were tried."""
        spent = 0
        while True:
            turn = self.turns.get(capacity, 0)
            order, seed, allowance = self._ticket(turn)
            metric, always, keys = ORDERS[order]
            ranking = (self.widths[metric], keys, seed)
            allowance = min(allowance, max(limit - spent, 1))
            offsets, state, tried = solve(self.bodies, capacity, allowance, always, ranking)
            spent += tried
            if state == FOUND:
                self.lucky = [order, *(known for known in self.lucky if known != order)][:LUCKY_ORDERS]
            if state != LIMIT or spent >= limit:
                return state, [int(offset) for offset in offsets], spent
            self.turns[capacity] = turn + 1

    def _ticket(self, turn: int) -> tuple[int, int, int]:
        """Order, seed and placements of a try: all orders in turn, each round twice as long.

        Every other try goes, with ever new seeds, to the orders that found the latest placements.
        """
        if self.lucky:
            turn, bonus = divmod(turn, 2)
            if bonus:
                return self.lucky[turn % len(self.lucky)], turn // len(self.lucky), FIRST_LIMIT
        rounds, order = divmod(turn, len(ORDERS))
        return order, rounds, FIRST_LIMIT << min(rounds, 20)


def _sections(first: list[int], last: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Lives in maximal sections: a section ends at the first death after a birth, and its live set is a largest one."""
    births, ends, position = sorted(set(first)), [], 0
    for death in sorted(set(last)):
        if position < len(births) and births[position] <= death:
            ends.append(death)
            while position < len(births) and births[position] <= death:
                position += 1
    low = np.searchsorted(ends, first, side="left")
    high = np.searchsorted(ends, last, side="right") - 1
    return low.astype(np.int64), high.astype(np.int64)


def _widths(problem: Problem, sections: np.ndarray) -> list[np.ndarray]:
    """How wide every body is: in sections, in distinct births or deaths during its life, in neighbours, in time."""
    counted = [sections]
    for marks in (sorted(set(problem.first)), sorted(set(problem.last))):
        low = np.searchsorted(marks, problem.first, side="left")
        counted.append(np.searchsorted(marks, problem.last, side="right") - low)
    counted += [np.array([len(near) for near in problem.near]), np.array(problem.durations)]
    return [width.astype(np.int64) for width in counted]
