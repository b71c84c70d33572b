"""From one pool's bodies to offsets: heuristics first, search only where they do not meet the bound or the capacity.

The budget is counted in work, not by a clock, so that one schedule always gives one plan. The compiled search is
imported only when the quick planners have failed to reach the goal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from metadef.memory import heuristics
from metadef.memory.heuristics import PLANNERS, QUICK
from metadef.memory.pairs import Pairs, take_pairs
from metadef.memory.pool import Pool, Solution, Wish
from metadef.memory.problem import Problem, lower_bound, theory_min
from metadef.memory.relations import solve_relations

VISITS_PER_S = 2_500_000
"""Conflict entries a first-fit placement visits in a second of budget (interpreted Python)."""

EJECTION_VISITS_PER_S = 4_000_000
"""Conflicts that the search of large pools visits in a second of budget."""

LATER_CHOICES = 4
"""The second and third choice of in-place pairs get this part of it."""

SMALL_BODIES = 40
"""Pools of at most so many bodies are searched by relations."""

RELATION_NODES_PER_S = 6_000
"""Nodes of that search in a second of budget."""

SHARE_OF_HILL_CLIMB, LONGEST_HILL_CLIMB_S, MOST_TRIES = 0.2, 0.25, 20_000
"""What the hill climb gets of the budget where the exact search can follow (where not, it gets all), and its tries."""


def solve_pool(pool: Pool, wish: Wish) -> Solution:
    """Place the bodies of one pool. Bodies pinned on each other must have been refused before."""
    bodies = pool.joined.bodies
    plain = Problem(bodies, pool.order, pool.times)
    naive = heuristics.pack_in_order(plain)
    no_reuse = plain.peak(naive)
    live_set = theory_min(bodies, pool.pairs, pool.steps)
    found = Solution(
        bodies, Pairs.none(), naive, no_reuse, "no-reuse", live_set, no_reuse, lower_bound(bodies, live_set)
    )
    if wish.reuse:
        _Search(pool, plain, wish, found).run()
    return found


class _Search:
    """One pool's search; ``found`` is improved in place."""

    def __init__(self, pool: Pool, plain: Problem, wish: Wish, found: Solution) -> None:
        if wish.capacity is not None and wish.capacity < found.lower:
            # Nothing fits: what is left to answer is the smallest capacity that would do.
            wish = replace(wish, capacity=None)
        self.joined, self.pairs, self.plain, self.wish, self.found = pool.joined, pool.pairs, plain, wish, found
        self.goal = wish.goal(found.lower)

    def run(self) -> None:
        """Quick planners on every choice of in-place pairs, relations for small pools, hill climb, exact search."""
        ranked: list[tuple[int, Problem, Pairs]] = []
        for problem, taken in self._variants():
            if problem.large and self.wish.method not in PLANNERS:
                peak = self._eject(problem, taken, bool(ranked))
            else:
                peak = self._quick(problem, taken)
            if self.found.optimal or self._done():
                return
            ranked.append((peak, problem, taken))
        if self.wish.method in PLANNERS:
            return
        ranked.sort(key=lambda entry: entry[0])
        if self.wish.method != "hill-climb":
            self._by_relations()
        for _, problem, taken in ranked[:2] if self.wish.method != "exact" else ():
            if not self._done() and not problem.large:
                self._climb(problem, taken)
        for _, problem, taken in ranked if self.wish.method != "hill-climb" else ():
            if not self._done() and not self.found.optimal and problem.order.linear:
                self._exact(problem, taken)

    def _done(self) -> bool:
        return self.found.total <= max(self.goal, self.found.lower)

    def _offer(self, problem: Problem, taken: Pairs, offsets: list[int] | None, name: str) -> int:
        """Keep a placement if it is the best so far; its peak."""
        found = self.found
        if offsets is None:
            return found.no_reuse
        peak = problem.peak(offsets)
        if peak < found.total or (found.method == "no-reuse" and peak == found.total):
            found.bodies, found.taken, found.offsets = problem.table, taken, list(offsets)
            found.total, found.method = peak, name
        return peak

    def _variants(self) -> Iterator[tuple[Problem, Pairs]]:
        """Choices of in-place pairs: those that save most first, the other operand at joins, none."""
        order, times = self.plain.order, self.plain.times
        known: list[Pairs] = []
        for turned in (False, True):
            pairs = self.pairs
            if turned:
                pairs = pairs.picked(np.lexsort((-pairs.read, pairs.saving, pairs.step)))
            bodies, taken = take_pairs(self.joined, pairs)
            if len(taken) and not any(map(taken.same_as, known)):
                known.append(taken)
                yield Problem(bodies, order, times), taken
        yield self.plain, Pairs.none()

    def _quick(self, problem: Problem, taken: Pairs) -> int:
        """The quick planners, or the one that was asked for, up to a proved optimum; the best peak."""
        peaks = []
        for name in (self.wish.method,) if self.wish.method in PLANNERS else QUICK:
            peaks.append(self._offer(problem, taken, PLANNERS[name](problem), name))
            if self.found.optimal:
                break
        return min(peaks)

    def _eject(self, problem: Problem, taken: Pairs, again: bool) -> int:
        """A large pool: first fit, then what does not fit at the cost of what does; the peak."""
        from metadef.memory.ejection import eject_misfits

        part = self.wish.budget_s / (LATER_CHOICES if again else 1)
        offsets = eject_misfits(problem, self.goal, int(part * EJECTION_VISITS_PER_S))
        return self._offer(problem, taken, offsets, "ejection")

    def _climb(self, problem: Problem, taken: Pairs) -> None:
        """Half of the hill climb's share for one problem."""
        budget_s = self.wish.budget_s / 2
        if self.wish.method == "best" and problem.order.linear:
            budget_s = min(budget_s * SHARE_OF_HILL_CLIMB, LONGEST_HILL_CLIMB_S)
        visits = problem.entries + 4 * len(problem)
        tries = min(int(budget_s * VISITS_PER_S / max(visits, 1)), MOST_TRIES)
        start = heuristics.by_size(problem)
        self._offer(problem, taken, heuristics.hill_climb(problem, start, self.goal, tries), "hill-climb")

    def _by_relations(self) -> None:
        """Small pools: every constraint and every choice of in-place pairs at once."""
        if len(self.joined.bodies) > SMALL_BODIES:
            return
        nodes, found = int(self.wish.budget_s * RELATION_NODES_PER_S), self.found
        answer = solve_relations(self.plain, self.joined, self.pairs, found.total, self.goal, nodes)
        proved = answer.exhausted
        if answer.offsets is not None:
            chosen = self.pairs.picked(sorted(map(self.pairs.index, answer.taken)))
            bodies, taken = take_pairs(self.joined, chosen)
            problem = Problem(bodies, self.plain.order, self.plain.times)
            offsets = _rebased(self.plain, answer.offsets, problem)
            if len(taken) == len(answer.taken) and problem.overlaps(offsets) is None:
                self._offer(problem, taken, offsets, "exact")
            else:
                proved = False
        if proved:
            found.lower = max(found.lower, found.total)

    def _exact(self, problem: Problem, taken: Pairs) -> None:
        """The compiled search; bodies of several rectangles count as their hulls (sound, but no proof)."""
        from metadef.memory.exact import search

        found = self.found
        boxed = problem if problem.single else problem.boxed()
        only_goal = self.wish.capacity is not None and not self.wish.minimise
        result = search(boxed, found.total, self.goal, found.lower, self.wish.budget_s, only_goal)
        self._offer(problem, taken, result.offsets, "exact")
        if problem.single and not len(self.pairs):
            found.lower = max(found.lower, result.lower)


def _rebased(plain: Problem, offsets: Sequence[int], joined: Problem) -> list[int]:
    """Offsets of joined bodies from those of their parts."""
    start = plain.table.spread(offsets)
    anchors = [next(iter(body.places.items())) for body in joined.bodies]
    return [start[key] - rel for key, rel in anchors]
