"""Questions about a memory plan: what if something were off, and who holds an address when.

They stand behind ``npusim plan``; the first plans the same schedule, or the same model, several times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from metadef.memory import MemoryPlan, PlanRow, plan_memory
from metadef.memory_pool import replay
from metadef.reorder import reorder
from metadef.schedule import Schedule

if TYPE_CHECKING:
    from metadef.compiler import CompileOptions

RUN_TIME = "allocated at run time"


@dataclass(frozen=True)
class WhatIf:
    """One way to plan and its figures (bytes)."""

    name: str
    steps: int
    theory_min: int
    total_size: int
    no_reuse: int
    optimal: bool


def what_if(schedule: Schedule, unfused: Callable[[], Schedule] | None = None, budget_s: float = 1.0) -> list[WhatIf]:
    """The plan as it is, and with one thing changed: in-place off, reuse off, steps reordered, fusion off.

    The last row is no plan: a growing pool serves the same tensors at run time, and its segments are counted.
    ``unfused`` makes the schedule without fusion; None where there is no model to compile again.
    """
    ways: list[tuple[str, Callable[[], tuple[Schedule, MemoryPlan]]]] = [
        ("as planned", lambda: (schedule, plan_memory(schedule, budget_s=budget_s))),
        ("in-place off", lambda: (schedule, plan_memory(schedule, budget_s=budget_s, inplace=False))),
        ("reuse off", lambda: (schedule, plan_memory(schedule, reuse=False))),
        ("steps reordered", lambda: _planned(reorder(schedule), budget_s)),
    ]
    if unfused is not None:
        ways.append(("fusion off", lambda: _planned(unfused(), budget_s)))
    rows = []
    for name, make in ways:
        made, plan = make()
        rows.append(WhatIf(name, len(made.steps), plan.theory_min, plan.total_size, plan.no_reuse, plan.optimal))
    pool = replay(schedule)
    rows.append(WhatIf(RUN_TIME, len(schedule.steps), rows[0].theory_min, pool.reserved, rows[0].no_reuse, False))
    return rows


def _planned(schedule: Schedule, budget_s: float) -> tuple[Schedule, MemoryPlan]:
    return schedule, plan_memory(schedule, budget_s=budget_s)


def unfused_schedule(source: Any, options: CompileOptions) -> Schedule:
    """The schedule of a model with every fusion pass switched off. Errors as in ``schedule_model``."""
    from metadef.compiler import schedule_model
    from metadef.passes import PIPELINE
    from metadef.rewrite import GRAPH_FUSION, UB_FUSION

    fusions = {step.name for step in PIPELINE if step.group in (GRAPH_FUSION, UB_FUSION) and not step.required}
    return schedule_model(source, replace(options, disabled_passes=options.disabled_passes | fusions)).schedule


@dataclass(frozen=True)
class AddressWindow:
    """Bytes [offset, offset + size) of a pool and who holds them: (first step, last step, name), in order of time."""

    pool: str
    offset: int
    size: int
    holders: tuple[tuple[int, int, str], ...]


def address_windows(plan: MemoryPlan) -> list[AddressWindow]:
    """Lazy binding seen: the arena cut into pieces that are handed on as a whole, and the holders of each.

    Views and members of groups are part of what holds them and not listed.
    """
    windows: list[AddressWindow] = []
    for pool in dict.fromkeys(row.pool for row in plan.rows if row.region == "arena"):
        rows = [row for row in plan.rows if _holds_memory(row) and row.pool == pool]
        marks = sorted({edge for row in rows for edge in (row.offset, row.offset + row.slot_bytes)})
        pieces: list[AddressWindow] = []
        for start, end in pairwise(marks):
            holders = _holders(rows, start, end)
            if holders and pieces and pieces[-1].holders == holders and pieces[-1].offset + pieces[-1].size == start:
                pieces[-1] = replace(pieces[-1], size=pieces[-1].size + end - start)
            elif holders:
                pieces.append(AddressWindow(pool, start, end - start, holders))
        windows += pieces
    return windows


def _holds_memory(row: PlanRow) -> bool:
    return row.region == "arena" and row.slot_bytes > 0 and row.alias_kind in ("", "inplace")


def _holders(rows: Sequence[PlanRow], start: int, end: int) -> tuple[tuple[int, int, str], ...]:
    inside = [row for row in rows if row.offset < end and start < row.offset + row.slot_bytes]
    return tuple(sorted((row.first, row.last, row.name) for row in inside))
