"""From solved pools to a MemoryPlan: offsets of every tensor and workspace, regions, aliases, the three numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metadef.memory.bodies import ARENA, IO, WEIGHTS, Body, BodySet
from metadef.memory.heuristics import pack_in_order
from metadef.memory.live import LiveTable
from metadef.memory.plan import MemoryPlan, PlanRow, PoolFigures
from metadef.memory.problem import Problem
from metadef.memory.search import Solution
from metadef.schedule import Schedule

REGION_REASONS = {IO: "graph input or output", WEIGHTS: "weight", ARENA: ""}


def assemble(schedule: Schedule, live: LiveTable, bodies: BodySet, solved: Mapping[str, Solution]) -> MemoryPlan:
    """The plan of a schedule: weights and the io region packed in order, each pool of the arena as solved."""
    offsets: dict[int | tuple[int, int], int] = {}
    sizes = {WEIGHTS: 0, IO: 0}
    regions: dict[int | tuple[int, int], str] = {}
    slots = bodies.slots
    for body in bodies.bodies:
        for key in body.places:
            regions[key] = body.region
    for region in sizes:
        problem = Problem([body for body in bodies.bodies if body.region == region], live.order)
        packed = pack_in_order(problem)
        sizes[region] = problem.peak(packed)
        offsets.update(_spread(problem.bodies, packed))
    for solution in solved.values():
        offsets.update(_spread(solution.bodies, solution.offsets))
    rows = _tensor_rows(schedule, live, offsets, regions, slots, _aliases(schedule, live, solved))
    for step in schedule.steps:
        for k, scratch in enumerate(step.workspaces):
            name, at, slot = f"{step.name}:workspace{k}", offsets[step.id, k], slots[step.id, k]
            rows.append(PlanRow(-1, name, ARENA, at, slot, scratch.bytes, step.id, step.id, step=step.id, workspace=k))
    plan = MemoryPlan(schedule.name, schedule.graph_revision, rows, sizes[WEIGHTS], sizes[IO])
    plan.pools = {
        pool: PoolFigures(s.theory_min, s.total, s.no_reuse, s.optimal, s.method) for pool, s in sorted(solved.items())
    }
    figures = list(plan.pools.values())
    plan.theory_min = sum(pool.theory_min for pool in figures)
    plan.total_size = sum(pool.total_size for pool in figures)
    plan.no_reuse = sum(pool.no_reuse for pool in figures)
    plan.optimal = all(pool.optimal for pool in figures)
    plan.method = " + ".join(dict.fromkeys(pool.method for pool in figures)) or "none"
    return plan


def _spread(bodies: Sequence[Body], offsets: Sequence[int]) -> dict[int | tuple[int, int], int]:
    return {key: offset + rel for body, offset in zip(bodies, offsets) for key, rel in body.places.items()}


def _aliases(schedule: Schedule, live: LiveTable, solved: Mapping[str, Solution]) -> dict[int, tuple[int, str]]:
    """Whose memory a tensor shares, and by which relation."""
    aliases = {t: (root, "view") for t, root in live.base.items() if t != root}
    direct = {view.tensor: view.base for view in schedule.views}
    aliases.update((t, (direct[t], "view")) for t in aliases)
    for solution in solved.values():
        for pair in solution.taken:
            aliases.setdefault(live.base[pair.write], (pair.read, "inplace"))
    for group in schedule.groups:
        if group.parent >= 0:
            aliases.update((member, (group.parent, "group")) for member in group.members if member not in aliases)
    return aliases


def _tensor_rows(
    schedule: Schedule,
    live: LiveTable,
    offsets: Mapping[int | tuple[int, int], int],
    regions: Mapping[int | tuple[int, int], str],
    slots: Mapping[int | tuple[int, int], int],
    aliases: Mapping[int, tuple[int, str]],
) -> list[PlanRow]:
    rows = []
    none = (-1, "")
    for tensor in schedule.tensors:
        key, region = tensor.id, regions[tensor.id]
        root = live.base[key]
        alias, kind = aliases.get(key, none)
        whole = live.base_spans[root]
        own = whole if root == key else live.spans[key]
        # Nobody writes a view itself: it begins with its base, not at the start as other values that only are read do.
        first = max(own.first, whole.first)
        slot = tensor.payload_bytes if kind == "view" else slots[key]
        reason = tensor.no_reuse or REGION_REASONS[region]
        rows.append(
            PlanRow(
                key, tensor.name, region, offsets[key], slot, tensor.payload_bytes, first, own.last, alias, kind,
                reason, tensor.pool,
            )
        )  # fmt: skip
    return rows
