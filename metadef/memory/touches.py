"""The checker's tables: every access of a schedule to bytes of a plan, in order, as flat columns.

Made from schedule and plan rows alone; nothing of the planner's. Owners are tensors by position, then workspaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np

from metadef.memory.placement import Facts
from metadef.schedule import Schedule, Step

READ, WRITE, PART = 0, 1, 2
"""Kinds of touches. A part is a value that a step reads through the group that nobody writes as a whole."""


class Touches:
    """Columns over the touches of all steps, reads before writes in each: step, owner, kind, and the name to report.

    ``low`` and ``high`` are ranks of addresses (see ``replay``); the last step is the end of the run, which reads
    what must have survived it.
    """

    def __init__(self, schedule: Schedule, facts: Facts) -> None:
        self.schedule, self.facts = schedule, facts
        self.place = facts.place
        self.families, self.pairs = _families(schedule, self.place)
        self.through = _written_through(schedule, facts)
        self.end = len(schedule.steps)
        self._collect()
        self._rank()

    @cached_property
    def clocks(self) -> np.ndarray:
        """``[i, s]``: the last step of stream s that surely ends before step i (-1: none)."""
        return clocks_of(self.schedule.steps)

    @cached_property
    def streams(self) -> np.ndarray:
        """The stream of every step, numbered by first appearance."""
        return stream_numbers(self.schedule.steps)

    def _collect(self) -> None:
        """In every step: reads and the parts that they find, writes, workspaces; then what the end of the run reads."""
        given = self.facts.columns
        scratch = self._workspaces()
        reads, writes = _once_a_step(*given.reads), _once_a_step(*given.writes)
        kept = self.facts.marked({*given.ids[given.kept].tolist(), *self.facts.outputs})
        final = [(self.end, part, place) for place in np.flatnonzero(kept).tolist() for part in self._ends(place)]
        parts = self._parts_read(*reads)
        table = [(*reads, reads[1], READ), (*parts, PART), (*writes, writes[1], WRITE), (*scratch, scratch[1], WRITE),
                 (*np.array(final, np.int64).reshape(-1, 3).T, PART)]  # fmt: skip
        step, owner, shown = (np.concatenate([entry[k] for entry in table]) for k in range(3))
        kind = np.concatenate([np.full(len(entry[0]), entry[3]) for entry in table])
        order = np.argsort(step, kind="stable")
        self.step, self.owner, self.shown, self.kind = step[order], owner[order], shown[order], kind[order]

    def _workspaces(self) -> tuple[np.ndarray, np.ndarray]:
        """Step and owner of every workspace; notes their rows and bytes."""
        rows = self.facts.rows
        placed = np.flatnonzero(rows.tensor < 0).tolist()
        row_of = {(row.step, row.workspace): k for k, row in ((k, rows.rows[k]) for k in placed)}
        steps: list[int] = []
        self.scratch_rows: list[int] = []
        self.scratch_bytes: list[int] = []
        for k, step in enumerate(self.schedule.steps):
            for number, scratch in enumerate(step.workspaces):
                steps.append(k)
                self.scratch_rows.append(row_of[step.id, number])
                self.scratch_bytes.append(scratch.bytes)
        self.scratch_names = [rows.rows[k].name for k in self.scratch_rows]
        owner = len(self.schedule.tensors) + np.arange(len(steps))
        return np.array(steps, np.int64), owner

    def _parts_read(self, step: np.ndarray, tensor: np.ndarray) -> tuple[np.ndarray, ...]:
        """Step, part and tensor, for the parts of every read that is written through them."""
        if not self.through:
            return (np.zeros(0, np.int64),) * 3
        known = np.zeros(len(self.place), np.bool_)
        known[list(self.through)] = True
        at = np.flatnonzero(known[tensor])
        found = [(k, part, t) for k, t in zip(step[at].tolist(), tensor[at].tolist()) for part in self._parts(t)]
        return tuple(np.array(found, np.int64).reshape(-1, 3).T)

    def _ends(self, tensor: int) -> Iterable[int]:
        return self._parts(tensor) if tensor in self.through else (tensor,)

    def _parts(self, tensor: int) -> Iterable[int]:
        for part in self.through.get(tensor, ()):
            if part in self.through:
                yield from self._parts(part)
            else:
                yield part

    def _rank(self) -> None:
        """Borders of all owners as ranks, memory space by space; families of workspaces are their own."""
        made = self.facts.rows
        rows = np.concatenate([made.of(self.facts.columns.ids), np.array(self.scratch_rows, np.int64)])
        sizes = np.concatenate([self.facts.sizes, np.array(self.scratch_bytes, np.int64)])
        low, space = made.offset[rows], made.space[rows]
        self.sizes, self.low, self.high = sizes, np.zeros_like(low), np.zeros_like(low)
        firsts, base = [], 0
        for number in range(len(made.spaces)):
            mine = np.flatnonzero(space == number)
            marks = np.unique(np.concatenate([low[mine], low[mine] + sizes[mine]]))
            self.low[mine] = base + np.searchsorted(marks, low[mine])
            self.high[mine] = base + np.searchsorted(marks, low[mine] + sizes[mine])
            firsts.append(base)
            base += len(marks)
        self.borders, self.space_starts = base, np.array(firsts, np.int64)
        count = int(self.families.max(initial=-1)) + 1
        self.families = np.concatenate([self.families, np.arange(count, count + len(self.scratch_rows))])
        self.family_count = count + len(self.scratch_rows)
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


def _families(schedule: Schedule, place: Mapping[int, int]) -> tuple[np.ndarray, set[tuple[int, int]]]:
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


def _written_through(schedule: Schedule, facts: Facts) -> dict[int, list[int]]:
    """Parents of groups that nobody writes as a whole, and their members, by position."""
    if not schedule.groups:
        return {}
    place = facts.place
    written = {*facts.columns.ids[facts.columns.writes[1]].tolist()}
    written |= {view.base for view in schedule.views if view.tensor in written}
    return {
        place[group.parent]: [place[member] for member in group.members]
        for group in schedule.groups
        if group.parent >= 0 and group.parent not in written
    }


def _once_a_step(step: np.ndarray, tensor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Accesses without those that a step has made before."""
    width = int(tensor.max(initial=0)) + 1
    first = np.sort(np.unique(step * width + tensor, return_index=True)[1])
    return step[first], tensor[first]
