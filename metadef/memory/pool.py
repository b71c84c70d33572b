"""What the search works on: the bodies, pairs and order of each memory pool; what is asked of it, a Wish;
and what it gives, a Solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metadef.error import UsageError, suggest
from metadef.memory.bodies import make_bodies
from metadef.memory.body_table import BodySet, BodyTable
from metadef.memory.heuristics import PLANNERS
from metadef.memory.live import LiveTable, StepOrder, live_table
from metadef.memory.pairs import Pairs, legal_pairs
from metadef.schedule import Schedule

METHODS = ("best", *PLANNERS, "hill-climb", "exact")


@dataclass(frozen=True)
class Wish:
    """What the caller wants: planner, capacity (bytes or None), budget, whether to go on below the capacity."""

    method: str = "best"
    capacity: int | None = None
    budget_s: float = 1.0
    reuse: bool = True
    minimise: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            known = ", ".join(METHODS)
            raise UsageError(
                f"no planner '{self.method}'", expected=f"one of {known}", hint=suggest(self.method, METHODS)
            )

    def goal(self, lower: int) -> int:
        """Peak at which the search may stop."""
        return lower if self.capacity is None or self.minimise else max(lower, self.capacity)


@dataclass(frozen=True)
class Pool:
    """The bodies of one pool, the pairs that may be joined, the order of the steps and their number.

    ``times``, if given, holds the instant of every step and of the end.
    """

    joined: BodySet
    pairs: Pairs
    order: StepOrder
    steps: int
    times: Sequence[int] = ()


@dataclass
class Solution:
    """The best placement found so far for one pool; ``lower`` is the proved lower bound of the peak (bytes)."""

    bodies: BodyTable
    taken: Pairs
    offsets: list[int]
    total: int
    method: str
    theory_min: int
    no_reuse: int
    lower: int

    @property
    def optimal(self) -> bool:
        return self.total <= self.lower


@dataclass(frozen=True)
class Pools:
    """A schedule ready to be planned: its live ranges, all its bodies, and the pools of the arena by name."""

    live: LiveTable
    bodies: BodySet
    pools: dict[str, Pool]


def pools_of(schedule: Schedule, inplace: bool) -> Pools:
    """The pools of a schedule. Raises ContractError where it contradicts itself."""
    live = live_table(schedule)
    bodies = make_bodies(schedule, live)
    pairs = legal_pairs(schedule, live, bodies)[0] if inplace else Pairs.none()
    pools, steps = {}, max(len(schedule.steps), 1)
    for name, subset in bodies.by_pool().items():
        own = pairs if subset is bodies else pairs.picked(np.flatnonzero(subset.bodies.home[pairs.read_at] >= 0))
        pools[name] = Pool(subset, own, live.order, steps, schedule.times)
    return Pools(live, bodies, pools)
