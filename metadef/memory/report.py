"""What a plan is worth and where its bytes go: tables, the peak, bytes over steps, and rectangles for pictures.

Last step of planning: (Schedule, MemoryPlan) -> plain values that the command line prints, stores as JSON or draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metadef.memory.plan import MemoryPlan, PlanRow
from metadef.schedule import Schedule, Step

TOP_CONSUMERS = 10


@dataclass(frozen=True)
class TimelineRect:
    """One rectangle of a memory picture: bytes [offset, offset + size) of the arena over steps first..last (inclusive).

    ``kind`` is "feature", "workspace", or how the memory is shared: "inplace", "view", "group".
    """

    name: str
    kind: str
    offset: int
    size: int
    first: int
    last: int
    pool: str
    tensor: int


@dataclass(frozen=True)
class MemoryTimeline:
    """Rectangles of the arena, occupied bytes at every step, the step with the most and its tensors, largest first."""

    rects: list[TimelineRect]
    live_bytes: list[int]
    peak_step: int
    peak_tensors: list[str]


def memory_timeline(schedule: Schedule, plan: MemoryPlan) -> MemoryTimeline:
    """The arena over the steps. Bytes that several rows share at a step (in-place, views, groups) count once."""
    rects = [_rect(row) for row in plan.rows if row.region == "arena"]
    steps = max(len(schedule.steps), 1)
    series = [0] * steps
    for pool in sorted({rect.pool for rect in rects}):
        for step, size in enumerate(_occupied([rect for rect in rects if rect.pool == pool], steps)):
            series[step] += size
    peak = max(range(steps), key=lambda step: (series[step], -step))
    alive = [rect for rect in rects if rect.first <= peak <= rect.last and rect.kind != "view"]
    alive.sort(key=lambda rect: (-rect.size, rect.offset, rect.name))
    return MemoryTimeline(rects, series, peak, [rect.name for rect in alive])


def reuse_rate(plan: MemoryPlan) -> float:
    """Share of the naive size that sharing saves, 0 to 1."""
    return 1.0 - plan.total_size / plan.no_reuse if plan.no_reuse else 0.0


def fragmentation(plan: MemoryPlan) -> float:
    """Share of the plan that no live set fills even at the peak, 0 to 1."""
    return 1.0 - plan.theory_min / plan.total_size if plan.total_size else 0.0


def top_consumers(plan: MemoryPlan, count: int = TOP_CONSUMERS) -> list[PlanRow]:
    """The arena's rows that hold most bytes x steps, largest first; shared memory counts for its first owner only."""
    owners = [row for row in plan.rows if row.region == "arena" and row.alias_of < 0 and row.slot_bytes]
    return sorted(owners, key=lambda row: (-byte_steps(row), row.offset, row.name))[:count]


def byte_steps(row: PlanRow) -> int:
    """Bytes of a row times the steps it holds them."""
    return row.slot_bytes * (row.last - row.first + 1)


def source_nodes(schedule: Schedule, rows: Iterable[PlanRow]) -> list[tuple[str, ...]]:
    """For each row the source model's nodes whose result or workspace it is (the step's name where there are none).

    A view, and a parent of a group that no step writes, belong to whom their base or members belong to.
    """
    writers: dict[int, list[Step]] = {}
    for step in schedule.steps:
        for tensor in step.writes:
            writers.setdefault(tensor, []).append(step)
    for group in schedule.groups:
        if group.parent not in writers:
            writers[group.parent] = [step for member in group.members for step in writers.get(member, ())]
    bases = {view.tensor: view.base for view in schedule.views}
    found = []
    for row in rows:
        tensor = row.tensor
        while tensor not in writers and tensor in bases:
            tensor = bases[tensor]
        steps = [schedule.steps[row.step]] if row.tensor < 0 else writers.get(tensor, [])
        found.append(tuple(dict.fromkeys(name for step in steps for name in step.origins or (step.name,))))
    return found


def allocation_rows(schedule: Schedule, plan: MemoryPlan) -> list[dict[str, Any]]:
    """One dictionary per row of the plan, by region, offset and first step: what a table or a CSV file shows."""
    names = {tensor.id: tensor.name for tensor in schedule.tensors}
    order = {"weights": 0, "arena": 1, "io": 2}
    rows = sorted(plan.rows, key=lambda row: (order.get(row.region, 3), row.pool, row.offset, row.first, row.name))
    sources = source_nodes(schedule, rows)
    return [
        {
            "name": row.name,
            "region": row.region,
            "pool": row.pool,
            "offset": row.offset,
            "size": row.slot_bytes,
            "payload": row.payload_bytes,
            "first": row.first,
            "last": row.last,
            "alias": f"{row.alias_kind} of {names[row.alias_of]}" if row.alias_of >= 0 else "",
            "no_reuse": row.no_reuse,
            "sources": "; ".join(nodes),
        }
        for row, nodes in zip(rows, sources)
    ]


def plan_to_json(schedule: Schedule, plan: MemoryPlan) -> dict[str, Any]:
    """The object of ``npusim plan --json``. Keys are added to, never renamed. Sizes are bytes, steps inclusive.

    ``tensors`` lists the arena, then graph inputs and outputs; a tensor's ``id`` is its name. With several memory pools
    the three numbers are sums, ``pools`` has each pool's own, and offsets count from the start of the pool.
    """
    timeline = memory_timeline(schedule, plan)
    names = {tensor.id: tensor.name for tensor in schedule.tensors}
    regions = ("arena", "io")
    rows = sorted((row for row in plan.rows if row.region in regions), key=lambda row: regions.index(row.region))
    return {
        "schedule": plan.schedule,
        "theory_min": plan.theory_min,
        "total_size": plan.total_size,
        "no_reuse": plan.no_reuse,
        "optimal": plan.optimal,
        "method": plan.method,
        "weights_bytes": plan.weights_bytes,
        "io_bytes": plan.io_bytes,
        "reuse_rate": reuse_rate(plan),
        "fragmentation": fragmentation(plan),
        "pools": {
            name: {
                "theory_min": pool.theory_min,
                "total_size": pool.total_size,
                "no_reuse": pool.no_reuse,
                "optimal": pool.optimal,
                "method": pool.method,
            }
            for name, pool in plan.pools.items()
        },
        "peak_step": timeline.peak_step,
        "peak_step_name": schedule.steps[timeline.peak_step].name if schedule.steps else "",
        "peak_tensors": timeline.peak_tensors,
        "live_bytes": timeline.live_bytes,
        "top_consumers": _json_consumers(schedule, plan),
        "tensors": [_json_row(names, row) for row in rows],
    }


def _json_consumers(schedule: Schedule, plan: MemoryPlan) -> list[dict[str, Any]]:
    rows = top_consumers(plan)
    return [
        {
            "id": row.name,
            "size": row.slot_bytes,
            "first": row.first,
            "last": row.last,
            "byte_steps": byte_steps(row),
            "sources": list(nodes),
        }
        for row, nodes in zip(rows, source_nodes(schedule, rows))
    ]


def _json_row(names: Mapping[int, str], row: PlanRow) -> dict[str, Any]:
    return {
        "id": row.name,
        "offset": row.offset,
        "size": row.slot_bytes,
        "first": row.first,
        "last": row.last,
        "pool": row.pool,
        "region": row.region,
        "payload": row.payload_bytes,
        "kind": "workspace" if row.tensor < 0 else "tensor",
        "alias_of": names.get(row.alias_of, ""),
        "alias_kind": row.alias_kind,
        "no_reuse": row.no_reuse,
    }


def _rect(row: PlanRow) -> TimelineRect:
    kind = row.alias_kind or ("workspace" if row.tensor < 0 else "feature")
    return TimelineRect(row.name, kind, row.offset, row.slot_bytes, row.first, row.last, row.pool, row.tensor)


def _occupied(rects: Sequence[TimelineRect], steps: int) -> list[int]:
    """Bytes covered at each step by the union of the live rectangles of one pool."""
    born: dict[int, list[TimelineRect]] = {}
    for rect in rects:
        if rect.size:
            born.setdefault(rect.first, []).append(rect)
    alive: list[TimelineRect] = []
    series = []
    for step in range(steps):
        alive = [rect for rect in alive if rect.last >= step] + born.get(step, [])
        series.append(_union((rect.offset, rect.offset + rect.size) for rect in alive))
    return series


def _union(intervals: Iterable[tuple[int, int]]) -> int:
    covered, reach = 0, 0
    for low, high in sorted(intervals):
        covered += max(high - max(low, reach), 0)
        reach = max(reach, high)
    return covered
