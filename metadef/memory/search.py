"""From one pool's bodies to offsets: heuristics first, search only where they do not meet the bound or the capacity.

The budget is counted in work, not by a clock, so that one schedule always gives one plan. The compiled search is
imported only when the quick planners have failed to reach the goal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from metadef.memory import heuristics
from metadef.memory.bodies import Body, BodySet, LegalPair, take_pairs
from metadef.memory.live import StepOrder
from metadef.memory.problem import Problem, lower_bound, theory_min
from metadef.memory.relations import solve_relations

VISITS_PER_S = 2_500_000
"""Conflict entries a first-fit placement visits in a second of budget (interpreted Python)."""

PLANNERS: dict[str, Callable[[Problem], list[int] | None]] = {
    "greedy-by-size": heuristics.greedy_by_size,
    "greedy-by-breadth": heuristics.greedy_by_breadth,
    "execution-order": heuristics.execution_order,
    "block-pool": heuristics.block_pool,
}
QUICK = ("greedy-by-size", "execution-order", "greedy-by-breadth")
METHODS = ("best", *PLANNERS, "hill-climb", "exact")

SMALL_BODIES = 40
RELATION_NODES_PER_S = 6_000
SHARE_OF_HILL_CLIMB = 0.2


@dataclass
class Solution:
    """The best placement found so far for one pool."""

    bodies: list[Body]
    taken: list[LegalPair]
    offsets: list[int]
    total: int
    method: str
    theory_min: int = 0
    no_reuse: int = 0
    floor: int = 0
    optimal: bool = False
    exhausted: bool = field(default=False)


@dataclass(frozen=True)
class Wish:
    """What the caller wants: planner, capacity (bytes or None), budget, whether to go on below the capacity."""

    method: str = "best"
    capacity: int | None = None
    budget_s: float = 1.0
    reuse: bool = True
    minimise: bool = False

    def goal(self, floor: int) -> int:
        """Peak at which the search may stop."""
        return floor if self.capacity is None or self.minimise else max(floor, self.capacity)


def solve_pool(
    joined: BodySet, pairs: Sequence[LegalPair], order: StepOrder, steps: int, wish: Wish, times: Sequence[int] = ()
) -> Solution:
    """Place the bodies of one pool. Bodies pinned on each other must have been refused before."""
    plain = Problem(joined.bodies, order, times)
    naive = heuristics.pack_in_order(plain)
    no_reuse = plain.peak(naive)
    live_set = theory_min(joined.bodies, pairs, steps)
    floor = lower_bound(joined.bodies, live_set)
    found = Solution(plain.bodies, [], naive, no_reuse, "no-reuse", live_set, no_reuse, floor)
    if wish.reuse:
        _Search(joined, list(pairs), order, times, wish, found).run()
    found.optimal = found.optimal or found.total == floor
    return found


class _Search:
    """One pool's search; ``found`` is improved in place."""

    def __init__(
        self,
        joined: BodySet,
        pairs: list[LegalPair],
        order: StepOrder,
        times: Sequence[int],
        wish: Wish,
        found: Solution,
    ) -> None:
        self.joined, self.pairs, self.order, self.times, self.wish, self.found = (
            joined,
            pairs,
            order,
            times,
            wish,
            found,
        )
        self.goal = wish.goal(found.floor)

    def run(self) -> None:
        variants = self._variants()
        for bodies, taken in variants:
            problem = Problem(bodies, self.order, self.times)
            for name in self._planners():
                self._offer(problem, taken, PLANNERS[name](problem), name)
                if self._done():
                    return
        if self.wish.method in PLANNERS:
            return
        ranked = [(Problem(bodies, self.order, self.times), taken) for bodies, taken in variants]
        ranked.sort(key=lambda entry: min(self._quick_peak(entry[0]), self.found.no_reuse))
        if self.wish.method != "exact":
            for problem, taken in ranked[:2]:
                self._climb(problem, taken, self.wish.budget_s * SHARE_OF_HILL_CLIMB / 2)
                if self._done():
                    return
        if self.wish.method != "hill-climb":
            self._exact(ranked)

    def _planners(self) -> tuple[str, ...]:
        return (self.wish.method,) if self.wish.method in PLANNERS else QUICK

    def _done(self) -> bool:
        return self.found.total <= self.goal

    def _offer(self, problem: Problem, taken: list[LegalPair], offsets: list[int] | None, name: str) -> None:
        if offsets is None:
            return
        peak = problem.peak(offsets)
        if peak < self.found.total or (self.found.method == "no-reuse" and peak == self.found.total):
            found = self.found
            found.bodies, found.taken, found.offsets, found.total, found.method = (
                problem.bodies,
                taken,
                list(offsets),
                peak,
                name,
            )

    def _quick_peak(self, problem: Problem) -> int:
        offsets = heuristics.greedy_by_size(problem)
        return self.found.no_reuse if offsets is None else problem.peak(offsets)

    def _variants(self) -> list[tuple[list[Body], list[LegalPair]]]:
        """Choices of in-place pairs, best first: all by saving, all with the other operand at joins, none."""
        if not self.pairs:
            return [(list(self.joined.bodies), [])]
        turned = sorted(self.pairs, key=lambda pair: (pair.step, pair.saving, -pair.read))
        variants = [take_pairs(self.joined, order, self.order) for order in (self.pairs, turned)]
        if {*variants[0][1]} == {*variants[1][1]}:
            del variants[1]
        return [*variants, (list(self.joined.bodies), [])]

    def _climb(self, problem: Problem, taken: list[LegalPair], budget_s: float) -> None:
        visits = sum(map(len, problem.near)) + 4 * len(problem)
        tries = int(budget_s * VISITS_PER_S / max(visits, 1))
        start = heuristics.by_size(problem)
        self._offer(problem, taken, heuristics.hill_climb(problem, start, self.goal, lambda n: n < tries), "hill-climb")

    def _exact(self, ranked: list[tuple[Problem, list[LegalPair]]]) -> None:
        small = len(self.joined.bodies) <= SMALL_BODIES
        if small:
            nodes = int(self.wish.budget_s * RELATION_NODES_PER_S)
            plain = Problem(self.joined.bodies, self.order, self.times)
            answer = solve_relations(plain, self.joined, self.pairs, self.found.total, self.goal, nodes)
            if answer.offsets is not None:
                bodies, taken = take_pairs(self.joined, answer.taken, self.order)
                self._offer(*self._rebased(plain, answer.offsets, bodies, taken), "exact")
            self.found.exhausted = answer.exhausted
            self.found.optimal = answer.exhausted
            if self._done() or answer.exhausted:
                return
        for problem, taken in ranked:
            if problem.single and len(problem):
                from metadef.memory.exact import search

                result = search(problem, self.found.total, self.goal, self.found.floor, self.wish.budget_s)
                self._offer(problem, taken, result.offsets, "exact")
                proved = result.lower >= self.found.total
                self.found.optimal = self.found.optimal or (
                    proved and (not self.pairs or self.found.total == self.found.floor)
                )
                self.found.exhausted = self.found.optimal
                if self._done() or self.found.optimal:
                    return

    def _rebased(
        self, plain: Problem, offsets: list[int], bodies: list[Body], taken: list[LegalPair]
    ) -> tuple[Problem, list[LegalPair], list[int]]:
        """Offsets of the joined bodies from those of their parts."""
        start = {key: offset + rel for body, offset in zip(plain.bodies, offsets) for key, rel in body.places.items()}
        return (
            Problem(bodies, self.order, self.times),
            taken,
            [start[key] - rel for body in bodies for key, rel in [next(iter(body.places.items()))]],
        )
