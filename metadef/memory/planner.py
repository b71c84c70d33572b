"""plan_memory: Schedule -> MemoryPlan. Weights, the arena of features and workspaces, graph inputs and outputs.

Live ranges and bodies are derived, every pool of the arena is solved on its own, weights and the io region are packed
in order. A capacity that cannot be kept is refused with the step, its live tensors, the shortfall and what to try.
"""

from __future__ import annotations

from metadef.memory.pause import collector_paused
from metadef.memory.plan import MemoryPlan
from metadef.memory.pool import Solution, Wish, pools_of
from metadef.memory.refusal import capacity_error, pin_error
from metadef.memory.rows import assemble
from metadef.memory.search import solve_pool
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
    made = pools_of(schedule, inplace and wish.reuse)
    solved: dict[str, Solution] = {}
    for name, pool in made.pools.items():
        pin_error(schedule, pool, wish.capacity)
        solved[name] = solve_pool(pool, wish)
        if wish.capacity is not None and solved[name].total > wish.capacity:
            raise capacity_error(schedule, made.live, pool, solved[name], wish.capacity, name)
    return assemble(schedule, made.live, made.bodies, solved)
