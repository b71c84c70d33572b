"""The checker's tables: every access of a schedule to bytes of a plan, in order, as flat columns.

Made from schedule and plan rows alone; nothing of the planner's. Owners are tensors by position, then workspaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from metadef.memory.placement import Facts
from metadef.memory.plan import MemoryPlan, PlanRow
from metadef.schedule import Schedule, Step

READ, WRITE, PART = 0, 1, 2
"""Kinds of touches. A part is a value that a step reads through the group that nobody writes as a whole."""


class Touches:
    """Columns over the touches of all steps, reads before writes in each: step, owner, kind, and the name to report.

    ``low`` and ``high`` are ranks of addresses (see ``replay``); the last step is the end of the run, which reads
    what must have survived it.
    """

    def __init__(self, schedule: Schedule, plan: MemoryPlan, facts: Facts) -> None:
        self.schedule, self.facts = schedule, facts
        self.place = {tensor.id: k for k, tensor in enumerate(schedule.tensors)}
        self.families, self.pairs = _families(schedule, self.place)
        self.through = _written_through(schedule, self.place)
        self.end = len(schedule.steps)
        self._collect(plan)
        self._rank(plan)

    @cached_property
    def clocks(self) -> np.ndarray:
        """``[i, s]``: the last step of stream s that surely ends before step i (-1: none)."""
        return clocks_of(self.schedule.steps)

    @cached_property
    def streams(self) -> np.ndarray:
        """The stream of every step, numbered by first appearance."""
        return stream_numbers(self.schedule.steps)

    def _collect(self, plan: MemoryPlan) -> None:
        place, through = self.place, self.through
        columns: list[tuple[int, int, int, int]] = []
        scratch_rows = {(row.step, row.workspace): row for row in plan.rows if row.tensor < 0}
        tensors = len(self.schedule.tensors)
        self.scratch: list[tuple[PlanRow, int]] = []
        for k, step in enumerate(self.schedule.steps):
            for t in dict.fromkeys(step.reads):
                if t is not None:
                    columns.append((k, place[t], READ, place[t]))
                    if through:
                        columns += [(k, part, PART, place[t]) for part in self._parts(place[t])]
            columns += [(k, place[t], WRITE, place[t]) for t in dict.fromkeys(step.writes)]
            for number in range(len(step.workspaces)):
                owner = tensors + len(self.scratch)
                columns.append((k, owner, WRITE, owner))
                self.scratch.append((scratch_rows[step.id, number], step.workspaces[number].bytes))
        kept = {tensor.id for tensor in self.schedule.tensors if tensor.no_reuse} | self.facts.outputs
        for t in sorted(kept):
            parts = list(self._parts(place[t])) if place[t] in through else [place[t]]
            columns += [(self.end, part, PART, place[t]) for part in parts]
        table = np.array(columns, np.int64).reshape(-1, 4).T
        self.step, self.owner, self.kind, self.shown = (np.ascontiguousarray(column) for column in table)
        self.scratch_names = [row.name for row, _ in self.scratch]

    def _parts(self, tensor: int) -> Iterable[int]:
        for part in self.through.get(tensor, ()):
            if part in self.through:
                yield from self._parts(part)
            else:
                yield part

    def _rank(self, plan: MemoryPlan) -> None:
        """Borders of all owners as ranks, memory space by space; families of workspaces are their own."""
        by_tensor = {row.tensor: row for row in plan.rows if row.tensor >= 0}
        rows = [by_tensor[tensor.id] for tensor in self.schedule.tensors] + [row for row, _ in self.scratch]
        sizes = np.concatenate([self.facts.sizes, np.array([size for _, size in self.scratch], np.int64)])
        low = np.array([row.offset for row in rows], np.int64)
        spaces: dict[tuple[str, str], int] = {}
        space = np.array([spaces.setdefault((row.region, row.pool), len(spaces)) for row in rows], np.int64)
        self.sizes, self.low, self.high = sizes, np.zeros_like(low), np.zeros_like(low)
        firsts, base = [], 0
        for number in range(len(spaces)):
            mine = np.flatnonzero(space == number)
            marks = np.unique(np.concatenate([low[mine], low[mine] + sizes[mine]]))
            self.low[mine] = base + np.searchsorted(marks, low[mine])
            self.high[mine] = base + np.searchsorted(marks, low[mine] + sizes[mine])
            firsts.append(base)
            base += len(marks)
        self.borders, self.space_starts = base, np.array(firsts, np.int64)
        count = int(self.families.max(initial=-1)) + 1
        self.families = np.concatenate([self.families, np.arange(count, count + len(self.scratch))])
        self.family_count = count + len(self.scratch)
        self.linked = np.unique(np.array([a * self.family_count + b for a, b in self.pairs], np.int64))


def stream_numbers(steps: list[Step]) -> np.ndarray:
    """Streams numbered by first appearance, step by step."""
    known: dict[int, int] = {}
    return np.array([known.setdefault(step.stream, len(known)) for step in steps], np.int64)


def clocks_of(steps: list[Step]) -> np.ndarray:
    """``[i, s]``: the last step of stream s that surely ends before step i (-1: none).

    A step comes after the one before it on its stream, and after every earlier step that records what it waits for.
    """
    streams = stream_numbers(steps)
    clocks = np.full((len(steps), int(streams.max(initial=-1)) + 1), -1, np.int64)
    latest: dict[int, np.ndarray] = {}
    recorded: dict[int, np.ndarray] = {}
    for i, step in enumerate(steps):
        stream = streams[i]
        known = [latest[stream]] if stream in latest else []
        known += [recorded[event] for event in step.waits if event in recorded]
        for other in known:
            np.maximum(clocks[i], other, out=clocks[i])
        done = clocks[i].copy()
        done[stream] = i
        latest[stream] = done
        for event in step.records:
            recorded[event] = np.maximum(recorded[event], done) if event in recorded else done
    return clocks


def _families(schedule: Schedule, place: dict[int, int]) -> tuple[np.ndarray, set[tuple[int, int]]]:
    """A number for every tensor, the same for views of one base; and the pairs that a group with a parent links."""
    parent = list(range(len(place)))

    def root(tensor: int) -> int:
        while parent[tensor] != tensor:
            parent[tensor] = parent[parent[tensor]]
            tensor = parent[tensor]
        return tensor

    for view in schedule.views:
        parent[root(place[view.tensor])] = root(place[view.base])
    roots = np.array([root(tensor) for tensor in range(len(place))] if schedule.views else parent, np.int64)
    linked = set()
    for group in schedule.groups:
        for member in group.members if group.parent >= 0 else ():
            one, other = int(roots[place[group.parent]]), int(roots[place[member]])
            linked |= {(one, other), (other, one)}
    return roots, linked


def _written_through(schedule: Schedule, place: dict[int, int]) -> dict[int, list[int]]:
    """Parents of groups that nobody writes as a whole, and their members, by position."""
    if not schedule.groups:
        return {}
    written = {t for step in schedule.steps for t in step.writes}
    written |= {view.base for view in schedule.views if view.tensor in written}
    return {
        place[group.parent]: [place[member] for member in group.members]
        for group in schedule.groups
        if group.parent >= 0 and group.parent not in written
    }
