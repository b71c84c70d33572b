"""The checker's tables: every access of a schedule to bytes of a plan, in order, as flat columns.

Made from schedule and plan rows alone; nothing of the planner's. Owners are tensors by position, then workspaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from metadef.memory import replay
from metadef.memory.columns import numbered
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
        self.families = _families(facts)
        self.through = _written_through(facts)
        self.end = len(schedule.steps)
        self._collect()
        self._rank()

    @cached_property
    def clocks(self) -> np.ndarray:
        """``[i, s]``: the last step of stream s that surely ends before step i (-1: none)."""
        return clocks_of(self.schedule.steps, self.streams)

    @cached_property
    def streams(self) -> np.ndarray:
        """The stream of every step, numbered by first appearance."""
        return self.facts.columns.stream

    def _collect(self) -> None:
        """In every step: reads and the parts that they find, writes, workspaces; then what the end of the run reads."""
        given = self.facts.columns
        scratch = self._workspaces()
        reads, writes = _once_a_step(*given.reads), _once_a_step(*given.writes)
        kept = given.kept | self.facts.outputs
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
        step, number, self.scratch_bytes, _ = self.facts.columns.workspaces
        self.scratch_rows = np.flatnonzero(rows.tensor < 0)
        if not self.facts.scratch_in_order:
            row_of = {(rows.step[k], rows.workspace[k]): k for k in self.scratch_rows.tolist()}
            listed = [row_of[self.schedule.steps[at].id, k] for at, k in zip(step.tolist(), number.tolist())]
            self.scratch_rows = np.array(listed, np.int64)
        return step, len(self.schedule.tensors) + np.arange(len(step))

    @property
    def scratch_names(self) -> list[str]:
        """What the rows of workspaces are called."""
        return [self.facts.rows.rows[k].name for k in self.scratch_rows.tolist()]

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
        rows = np.concatenate([self.facts.row, self.scratch_rows])
        sizes = np.concatenate([self.facts.sizes, self.scratch_bytes])
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
        self.linked = self._linked()

    def _linked(self) -> np.ndarray:
        """Codes of the families that a group with a parent links, both ways round, sorted."""
        within = self.facts.parent >= 0
        parent, member = self.families[self.facts.parent[within]], self.families[self.facts.columns.groups[2][within]]
        count = self.family_count
        return np.unique(np.concatenate([parent * count + member, member * count + parent]))


def clocks_of(steps: list[Step], streams: np.ndarray) -> np.ndarray:
    """``[i, s]``: the last step of stream s that surely ends before step i (-1: none).

    A step comes after the one before it on its stream, and after every earlier step that records what it waits for.
    """
    width = int(streams.max(initial=-1)) + 1
    events: dict[int, int] = {}
    records = numbered([event for step in steps for event in step.records], events)
    waits = numbered([event for step in steps for event in step.waits], events)
    record_counts = np.fromiter((len(step.records) for step in steps), np.int64, len(steps))
    wait_counts = np.fromiter((len(step.waits) for step in steps), np.int64, len(steps))
    clocks = np.full((len(steps), width), -1, np.int64)
    latest, recorded = (np.full((count, width), -1, np.int64) for count in (width, len(events)))
    columns = (streams, wait_counts, waits, record_counts, records)
    replay.run(replay.clocks, len(steps), *columns, latest, recorded, clocks)
    return clocks


def _families(facts: Facts) -> np.ndarray:
    """A number for every tensor, the same for views of one base."""
    parent = list(range(len(facts.payload)))

    def root(tensor: int) -> int:
        while parent[tensor] != tensor:
            parent[tensor] = parent[parent[tensor]]
            tensor = parent[tensor]
        return tensor

    tensors, bases, _ = facts.columns.views
    for tensor, base in zip(tensors.tolist(), bases.tolist()):
        parent[root(tensor)] = root(base)
    families = np.array(parent, np.int64)
    touched = np.unique(np.concatenate([tensors, bases]))
    families[touched] = [root(tensor) for tensor in touched.tolist()]
    return families


def _written_through(facts: Facts) -> dict[int, list[int]]:
    """Parents of groups that nobody writes as a whole, and their members, by position."""
    given = facts.columns
    parents, starts, members = given.groups
    written = np.zeros(len(given.ids), np.bool_)
    written[given.writes[1]] = True
    view, base, _ = given.views
    written[base[written[view]]] = True
    return {
        int(parents[k]): members[starts[k] : starts[k + 1]].tolist()
        for k in np.flatnonzero(parents >= 0).tolist()
        if not written[parents[k]]
    }


def _once_a_step(step: np.ndarray, tensor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Accesses without those that a step has made before."""
    width = int(tensor.max(initial=0)) + 1
    first = np.sort(np.unique(step * width + tensor, return_index=True)[1])
    return step[first], tensor[first]
