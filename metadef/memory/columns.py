"""A schedule, and the rows of a plan, as NumPy columns: every field is read once, nothing is derived from it.

Planner and checker each make their own. Tensors are counted by position; ``place`` leads there from their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from metadef.memory.plan import PlanRow
from metadef.schedule import Schedule, TensorKind

FREE = -(1 << 62)
"""In place of None: a tensor that is not pinned."""

NO_LABEL = 0
"""The number of the empty branch label."""


def numbered(values: Iterable[Any], known: dict[Any, int]) -> np.ndarray:
    """Values as numbers by first appearance; ``known`` holds the numbers."""
    listed = list(values)
    for value in dict.fromkeys(listed):
        known.setdefault(value, len(known))
    if len(known) == 1:
        return np.full(len(listed), next(iter(known.values())), np.int64)
    return np.fromiter(map(known.__getitem__, listed), np.int64, len(listed))


def starts_of(counts: np.ndarray) -> np.ndarray:
    """Where the items of each of several lists begin, laid end to end, and where the last ends."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


# Fields are read by comprehensions that name them: the interpreter reads those several times as fast as by attrgetter.


class ScheduleColumns:
    """Tensors, steps and relations of a schedule.

    ``pool`` and ``label`` are numbers; ``pools`` and ``labels`` list what they stand for (label 0 is the empty one).
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.tensors, self.steps = schedule, schedule.tensors, schedule.steps
        count = len(self.tensors)
        table = [v for t in self.tensors for v in (t.id, t.payload_bytes, t.slot_bytes, t.alignment, t.residue)]
        self.ids, self.payload, self.slot, self.alignment, self.residue = (
            np.fromiter(table, np.int64, 5 * count).reshape(count, 5).T.copy()
        )
        rest = list(zip(*[(t.kind, t.pinned, t.no_reuse, t.pool, t.branch) for t in self.tensors])) or [()] * 5
        self._kinds, pins, self.reasons, pools, branches = rest
        self.pinned = np.full(count, FREE, np.int64)
        if pins.count(None) < count:
            self.pinned[:] = [FREE if pin is None else pin for pin in pins]
        self.kept = self._filled(self.reasons)
        known: dict[str, int] = {}
        self.pool = numbered(pools, known)
        self.pools = list(known)
        self._labels: dict[str, int] = {"": NO_LABEL}
        self.label = numbered(branches, self._labels)
        self._in_order = bool((self.ids == np.arange(count)).all())

    @staticmethod
    def _filled(texts: Sequence[str]) -> np.ndarray:
        if texts.count("") == len(texts):
            return np.zeros(len(texts), np.bool_)
        return np.array([bool(text) for text in texts], np.bool_)

    @cached_property
    def place(self) -> Mapping[int, int]:
        return dict(zip(self.ids.tolist(), range(len(self.ids))))

    def of_kind(self, kind: TensorKind) -> np.ndarray:
        """Which tensors are of a kind."""
        if not self._kinds.count(kind):
            return np.zeros(len(self._kinds), np.bool_)
        return np.array([known is kind for known in self._kinds], np.bool_)

    def places(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Positions of tensors. Raises KeyError for an id that no tensor has."""
        wanted = np.asarray(ids, np.int64)
        if self._in_order and wanted.size and wanted.min() >= 0 and wanted.max() < len(self.ids):
            return wanted
        return np.fromiter(map(self.place.__getitem__, wanted.tolist()), np.int64, len(wanted))

    @property
    def complete(self) -> bool:
        """Whether all that steps touch is there."""
        try:
            return bool(self.reads and self.writes)
        except KeyError:
            return False

    @cached_property
    def reads(self) -> tuple[np.ndarray, np.ndarray]:
        """Step and tensor of every reading, in order; absent ones are left out."""
        return self._accesses([step.reads for step in self.steps])

    @cached_property
    def writes(self) -> tuple[np.ndarray, np.ndarray]:
        """Step and tensor of every writing, in order."""
        return self._accesses([step.writes for step in self.steps])

    def _accesses(self, named: Sequence[Sequence[int | None]]) -> tuple[np.ndarray, np.ndarray]:
        counts = np.fromiter(map(len, named), np.int64, len(named))
        step, flat = np.repeat(np.arange(len(named)), counts), list(chain.from_iterable(named))
        if None in flat:
            there = np.array([tensor is not None for tensor in flat], np.bool_)
            step, flat = step[there], [tensor for tensor in flat if tensor is not None]
        return step, self.places(np.fromiter(flat, np.int64, len(flat)))

    @cached_property
    def step_label(self) -> np.ndarray:
        """The branch label of every step, as a number."""
        return numbered([step.branch for step in self.steps], self._labels)

    @property
    def labels(self) -> list[str]:
        """The branch labels of tensors and steps by number."""
        assert self.step_label is not None
        return list(self._labels)

    @property
    def labelled(self) -> np.ndarray:
        """Which tensors have a branch label of their own."""
        return self.label != NO_LABEL

    @cached_property
    def stream(self) -> np.ndarray:
        """The stream of every step, numbered by first appearance."""
        return numbered([step.stream for step in self.steps], {})

    @cached_property
    def workspaces(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Step, number within it, bytes and alignment of every workspace, in order."""
        table = [
            (at, number, scratch.bytes, scratch.alignment)
            for at, step in enumerate(self.steps)
            if step.workspaces
            for number, scratch in enumerate(step.workspaces)
        ]
        flat = np.fromiter(chain.from_iterable(table), np.int64, 4 * len(table))
        step, number, size, alignment = flat.reshape(-1, 4).T.copy()
        return step, number, size, alignment

    @cached_property
    def views(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tensor, base and distance (bytes) of every view, in order."""
        views = self.schedule.views
        table = np.array([(v.tensor, v.base, v.offset_bytes) for v in views], np.int64).reshape(-1, 3).T
        return self.places(table[0]), self.places(table[1]), table[2].copy()

    @cached_property
    def groups(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Parent of every contiguous group (-1: none), where its members begin (one more: the end), and the members."""
        groups = self.schedule.groups
        parents = np.array([group.parent for group in groups], np.int64)
        there = parents >= 0
        parents[there] = self.places(parents[there])
        parents[~there] = -1
        starts = starts_of(np.array([len(group.members) for group in groups], np.int64))
        flat = [member for group in groups for member in group.members]
        return parents, starts, self.places(np.array(flat, np.int64))

    @cached_property
    def inplace(self) -> np.ndarray:
        """Rows (step, read, write) of the in-place permissions, in order; tensors by id."""
        pairs = self.schedule.inplace
        flat = [v for p in pairs for v in (p.step, p.read, p.write)]
        return np.fromiter(flat, np.int64, 3 * len(pairs)).reshape(-1, 3)


class RowColumns:
    """Rows of a plan. ``space`` numbers pairs of region and pool, listed in ``spaces``."""

    def __init__(self, rows: Sequence[PlanRow]) -> None:
        self.rows = rows
        count = len(rows)
        table = [
            v
            for r in rows
            for v in (
                r.tensor, r.offset, r.slot_bytes, r.payload_bytes, r.first, r.last, r.step, r.workspace, r.alias_of,
            )
        ]  # fmt: skip
        whole = np.fromiter(table, np.int64, 9 * count).reshape(count, 9).T.copy()
        self.tensor, self.offset, self.slot, self.payload, self.first, self.last = whole[:6]
        self.step, self.workspace, self.alias_of = whole[6:]
        known: dict[tuple[str, str], int] = {}
        self.space = numbered([(row.region, row.pool) for row in rows], known)
        self.spaces = list(known)

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Positions of the rows of tensors. Raises KeyError for a tensor without one."""
        if np.array_equal(self.tensor[: len(ids)], ids):
            return np.arange(len(ids))
        place = dict(zip(self.tensor.tolist(), range(len(self.tensor))))
        return np.fromiter(map(place.__getitem__, ids.tolist()), np.int64, len(ids))
