"""From solved pools to a MemoryPlan: offsets of every tensor and workspace, regions, aliases, the three numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from metadef.memory.body_table import ARENA, IO, REGIONS, WEIGHTS, BodySet
from metadef.memory.heuristics import pack_in_order
from metadef.memory.live import LiveTable
from metadef.memory.plan import MemoryPlan, PlanRow, PoolFigures
from metadef.memory.pool import Solution
from metadef.memory.problem import Problem
from metadef.schedule import Schedule

REGION_REASONS = {IO: "graph input or output", WEIGHTS: "weight", ARENA: ""}
OWN, VIEW, IN_PLACE, GROUP = range(4)
ALIAS_KINDS = ("", "view", "inplace", "group")


def assemble(schedule: Schedule, live: LiveTable, bodies: BodySet, solved: Mapping[str, Solution]) -> MemoryPlan:
    """The plan of a schedule: weights and the io region packed in order, each pool of the arena as solved."""
    table, sizes = bodies.bodies, {}
    offset, region = np.zeros(len(table.keys), np.int64), table.columns.region[table.home]
    for name in (WEIGHTS, IO):
        problem = Problem(table.chosen(table.columns.region == REGIONS.index(name)), live.order)
        packed = pack_in_order(problem)
        sizes[name] = problem.peak(packed)
        there, found = problem.table.offsets_of_keys(packed)
        offset[there] = found
    for solution in solved.values():
        there, found = solution.bodies.offsets_of_keys(solution.offsets)
        offset[there] = found
    tensors = len(live.bases)
    rows = _tensor_rows(live, offset[:tensors], region[:tensors], bodies.slots[:tensors], *_aliases(live, solved))
    rows += _workspace_rows(live, offset[tensors:], bodies.slots[tensors:])
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


def _aliases(live: LiveTable, solved: Mapping[str, Solution]) -> tuple[np.ndarray, np.ndarray]:
    """Whose memory each tensor shares (-1: its own), and by which relation.

    A view is one first of all; what is written in place names what it is written over, also inside a group.
    """
    given = live.given
    alias, kind = np.full(len(live.bases), -1, np.int64), np.full(len(live.bases), OWN)
    parents, starts, members = given.groups
    parent = np.repeat(parents, np.diff(starts))
    inside = np.flatnonzero(parent >= 0)[::-1]
    alias[members[inside]], kind[members[inside]] = given.ids[parent[inside]], GROUP
    for solution in solved.values():
        written = live.bases[solution.taken.write_at][::-1]
        alias[written], kind[written] = solution.taken.read[::-1], IN_PLACE
    tensor, base, _ = given.views
    alias[tensor], kind[tensor] = given.ids[base], VIEW
    return alias, kind


def _tensor_rows(
    live: LiveTable, offset: np.ndarray, region: np.ndarray, slot: np.ndarray, alias: np.ndarray, kind: np.ndarray
) -> list[PlanRow]:
    given, whole, own = live.given, live.whole, live.own
    # Nobody writes a view itself: it begins with its base, not at the start as other values that only are read do.
    is_base = live.bases == np.arange(len(live.bases))
    first = np.where(is_base, whole.first, np.maximum(own.first, whole.first[live.bases]))
    last = np.where(is_base, whole.last, own.last)
    regions = list(map(REGIONS.__getitem__, region.tolist()))
    reasons = [reason or REGION_REASONS[where] for reason, where in zip(given.reasons, regions)]
    numbers = (column.tolist() for column in (offset, slot, given.payload, first, last, alias))
    names, pools = [tensor.name for tensor in given.tensors], map(given.pools.__getitem__, given.pool.tolist())
    kinds = map(ALIAS_KINDS.__getitem__, kind.tolist())
    return list(map(PlanRow, given.ids.tolist(), names, regions, *numbers, kinds, reasons, pools))


def _workspace_rows(live: LiveTable, offset: np.ndarray, slot: np.ndarray) -> list[PlanRow]:
    steps = live.given.steps
    number_of, size_of = (live.given.workspaces[k].tolist() for k in (1, 2))
    return [
        PlanRow(-1, f"{steps[at].name}:workspace{k}", ARENA, where, taken, size, at, at, step=at, workspace=k)
        for at, k, where, taken, size in zip(
            live.given.workspaces[0].tolist(), number_of, offset.tolist(), slot.tolist(), size_of
        )
    ]
