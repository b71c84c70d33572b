"""From solved pools to a MemoryPlan: offsets of every tensor and workspace, regions, aliases, the three numbers."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

import numpy as np

from metadef.memory.body_table import ARENA, IO, WEIGHTS, BodySet, Key
from metadef.memory.heuristics import pack_in_order
from metadef.memory.live import LiveTable
from metadef.memory.plan import MemoryPlan, PlanRow, PoolFigures
from metadef.memory.pool import Solution
from metadef.memory.problem import Problem
from metadef.schedule import Schedule

REGION_REASONS = {IO: "graph input or output", WEIGHTS: "weight", ARENA: ""}


def assemble(schedule: Schedule, live: LiveTable, bodies: BodySet, solved: Mapping[str, Solution]) -> MemoryPlan:
    """The plan of a schedule: weights and the io region packed in order, each pool of the arena as solved."""
    offsets: dict[Key, int] = {}
    sizes = {WEIGHTS: 0, IO: 0}
    regions: dict[Key, str] = {}
    slots, objects = bodies.slots, bodies.bodies.made.values()
    for region in sizes:
        problem = Problem([body for body in objects if body.region == region], live.order)
        packed = pack_in_order(problem)
        sizes[region] = problem.peak(packed)
        offsets.update(problem.table.spread(packed))
        regions.update((key, region) for body in problem.bodies for key in body.places)
    for solution in solved.values():
        offsets.update(solution.bodies.spread(solution.offsets))
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


def _aliases(schedule: Schedule, live: LiveTable, solved: Mapping[str, Solution]) -> dict[int, tuple[int, str]]:
    """Whose memory a tensor shares, and by which relation."""
    aliases = {view.tensor: (view.base, "view") for view in schedule.views}
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
    offsets: Mapping[Key, int],
    regions: Mapping[Key, str],
    slots: Mapping[Key, int],
    aliases: Mapping[int, tuple[int, str]],
) -> list[PlanRow]:
    tensors, place = schedule.tensors, live.given.place
    ids, payload = live.given.ids.tolist(), live.given.payload.tolist()
    first, last = live.first.tolist(), live.last.tolist()
    for k in np.flatnonzero(~live.plain).tolist():
        whole = live.base_spans[live.base[ids[k]]]
        own = whole if live.base[ids[k]] == ids[k] else live.spans[ids[k]]
        # Nobody writes a view itself: it begins with its base, not at the start as other values that only are read do.
        first[k], last[k] = max(own.first, whole.first), own.last
    alias, kind = [-1] * len(ids), [""] * len(ids)
    for tensor, entry in aliases.items():
        alias[place[tensor]], kind[place[tensor]] = entry
    region = [regions.get(tensor, ARENA) for tensor in ids]
    slot = [slots.get(tensor, size) for tensor, size in zip(ids, payload)]
    names, reasons, pools = (map(attrgetter(name), tensors) for name in ("name", "no_reuse", "pool"))
    reason = [reason or REGION_REASONS[where] for reason, where in zip(reasons, region)]
    offset = map(offsets.__getitem__, ids)
    return list(map(PlanRow, ids, names, region, offset, slot, payload, first, last, alias, kind, reason, pools))
