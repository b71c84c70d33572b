"""plan_memory: Schedule -> MemoryPlan. Weights, the arena of features and workspaces, graph inputs and outputs.

Live ranges and bodies are derived, every pool of the arena is solved on its own, weights and the io region are packed
in order. A capacity that cannot be kept is refused with the step, its live tensors, the shortfall and what to try.
"""

from __future__ import annotations

from collections.abc import Sequence

from metadef.memory.bodies import ARENA, Body, BodySet, legal_pairs, make_bodies
from metadef.memory.live import live_table
from metadef.memory.pause import collector_paused
from metadef.memory.plan import MemoryPlan
from metadef.memory.refusal import capacity_error, pin_error
from metadef.memory.rows import assemble
from metadef.memory.search import Solution, Wish, solve_pool
from metadef.schedule import Schedule


def plan_memory(
    schedule: Schedule,
    *,
    method: str = "best",
    capacity: int | None = None,
    budget_s: float = 1.0,
    inplace: bool = True,
    reuse: bool = True,
    minimise: bool = False,
) -> MemoryPlan:
    """Place every tensor and workspace of a schedule.

    ``capacity`` bounds each pool of the arena (bytes); unless ``minimise`` is set the search stops once it is kept.
    ``budget_s`` bounds search beyond the quick planners, in seconds of CPU time on a common machine; it is counted in
    work, so that the same call gives the same plan. Without ``reuse`` every tensor gets its own memory, in-place off.

    Raises:
        PlanError: pins contradict each other, or no plan within ``capacity`` was found (exit code 1).
        UsageError: unknown method. ContractError: the schedule contradicts itself.
    """
    wish = Wish(method, capacity, budget_s, reuse, minimise)
    with collector_paused():
        return _planned(schedule, wish, inplace)


def _planned(schedule: Schedule, wish: Wish, inplace: bool) -> MemoryPlan:
    live = live_table(schedule)
    bodies = make_bodies(schedule, live)
    pairs = legal_pairs(schedule, live, bodies)[0] if inplace and wish.reuse else []
    steps = max(len(schedule.steps), 1)
    solved: dict[str, Solution] = {}
    for pool, subset in _pools(bodies).items():
        pin_error(schedule, subset.bodies, live.order, wish.capacity)
        own = [pair for pair in pairs if pair.read in subset.of]
        solved[pool] = solve_pool(subset, own, live.order, steps, wish, schedule.times)
        if wish.capacity is not None and solved[pool].total > wish.capacity:
            raise capacity_error(schedule, live, subset, own, solved[pool], wish.capacity, pool)
    return assemble(schedule, live, bodies, solved)


def _pools(bodies: BodySet) -> dict[str, BodySet]:
    """The arena's bodies by pool, pools in order of appearance."""
    by_pool: dict[str, list[Body]] = {}
    for body in bodies.bodies:
        if body.region == ARENA:
            by_pool.setdefault(body.pool, []).append(body)
    return {pool: _subset(chosen) for pool, chosen in by_pool.items()}


def _subset(chosen: Sequence[Body]) -> BodySet:
    of = {key: i for i, body in enumerate(chosen) for key in body.places if isinstance(key, int)}
    return BodySet(list(chosen), of)
