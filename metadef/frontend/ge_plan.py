"""GE's own memory plan, as a build recorded it in the offsets of its operators: for comparison with ours."""

from __future__ import annotations

from dataclasses import replace

from metadef.frontend.ge_schedule import GeSchedule
from metadef.memory import MemoryPlan, PlanRow, PoolFigures, plan_memory

METHOD = "GE"


def recorded_plan(source: GeSchedule) -> MemoryPlan | None:
    """The plan that GE made, counted as ours are (slots, features and workspaces in the arena); None before a build.

    ``total_size`` ends with the last slot of the arena; bounds are those of the schedule.
    """
    if not source.offsets:
        return None
    naive = plan_memory(source.schedule, reuse=False)
    bounds = plan_memory(source.schedule, budget_s=0.0)
    starts: dict[str, list[int]] = {}
    for row in naive.rows:
        offset = _recorded(source, row)
        if offset is not None and row.region != "arena":
            starts.setdefault(row.region, []).append(offset)
    bases = {region: min(offsets) for region, offsets in starts.items()}
    rows, ends = [], {"arena": 0, "weights": 0, "io": 0}
    for row in naive.rows:
        offset = _recorded(source, row)
        if offset is None:
            return None
        rows.append(replace(row, offset=offset - bases.get(row.region, 0), alias_of=-1, alias_kind=""))
        ends[row.region] = max(ends[row.region], rows[-1].offset + row.slot_bytes)
    plan = MemoryPlan(naive.schedule, naive.graph_revision, rows, ends["weights"], ends["io"])
    plan.total_size, plan.theory_min, plan.no_reuse = ends["arena"], bounds.theory_min, naive.no_reuse
    plan.optimal = plan.total_size <= plan.theory_min
    plan.method = METHOD
    for pool in dict.fromkeys(row.pool for row in rows if row.region == "arena"):
        end = max(row.offset + row.slot_bytes for row in rows if row.region == "arena" and row.pool == pool)
        plan.pools[pool] = PoolFigures(
            bounds.pools[pool].theory_min, end, naive.pools[pool].no_reuse, end <= bounds.pools[pool].theory_min, METHOD
        )
    return plan


def _recorded(source: GeSchedule, row: PlanRow) -> int | None:
    if row.tensor < 0:
        return source.scratch.get((row.step, row.workspace))
    found = source.offsets.get(row.tensor)
    return 0 if found is None and not row.slot_bytes else found
