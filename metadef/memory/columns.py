"""A schedule, and the rows of a plan, as NumPy columns: every field is read once, nothing is derived from it.

Planner and checker each make their own. Tensors are counted by position; ``place`` leads there from their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from metadef.memory.plan import PlanRow
from metadef.schedule import Schedule, TensorKind

FREE = -(1 << 62)
"""In place of None: a tensor that is not pinned."""


def column(items: Sequence[Any], name: str) -> np.ndarray:
    """One whole-numbered attribute of all items."""
    return np.fromiter(map(attrgetter(name), items), np.int64, len(items))


def filled(items: Sequence[Any], name: str) -> np.ndarray:
    """Of which items a text, or a tuple, is not empty."""
    return np.fromiter(map(bool, map(attrgetter(name), items)), np.bool_, len(items))


def numbered(values: Iterable[Any], known: dict[Any, int]) -> np.ndarray:
    """Values as numbers by first appearance; ``known`` holds the numbers."""
    listed = list(values)
    for value in dict.fromkeys(listed):
        known.setdefault(value, len(known))
    return np.fromiter(map(known.__getitem__, listed), np.int64, len(listed))


class ScheduleColumns:
    """Tensors and accesses of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.tensors, self.steps = schedule.tensors, schedule.steps
        self.ids = column(self.tensors, "id")
        self.payload = column(self.tensors, "payload_bytes")
        self.slot = column(self.tensors, "slot_bytes")
        self.alignment = column(self.tensors, "alignment")
        self.residue = column(self.tensors, "residue")
        self.kept = filled(self.tensors, "no_reuse")
        self._kinds = list(map(attrgetter("kind"), self.tensors))
        self._in_order = bool((self.ids == np.arange(len(self.ids))).all())

    @cached_property
    def place(self) -> Mapping[int, int]:
        return dict(zip(self.ids.tolist(), range(len(self.ids))))

    def of_kind(self, kind: TensorKind) -> np.ndarray:
        """Which tensors are of a kind."""
        if not self._kinds.count(kind):
            return np.zeros(len(self._kinds), np.bool_)
        return np.fromiter((known is kind for known in self._kinds), np.bool_, len(self._kinds))

    @cached_property
    def pinned(self) -> np.ndarray:
        pins = list(map(attrgetter("pinned"), self.tensors))
        if pins.count(None) == len(pins):
            return np.full(len(pins), FREE, np.int64)
        return np.array([FREE if pin is None else pin for pin in pins], np.int64)

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
        return self._accesses("reads")

    @cached_property
    def writes(self) -> tuple[np.ndarray, np.ndarray]:
        """Step and tensor of every writing, in order."""
        return self._accesses("writes")

    def _accesses(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        named = list(map(attrgetter(name), self.steps))
        counts = np.fromiter(map(len, named), np.int64, len(named))
        step, flat = np.repeat(np.arange(len(named)), counts), list(chain.from_iterable(named))
        if None in flat:
            there = np.fromiter((tensor is not None for tensor in flat), np.bool_, len(flat))
            step, flat = step[there], [tensor for tensor in flat if tensor is not None]
        return step, self.places(flat)


class RowColumns:
    """Rows of a plan. ``space`` numbers pairs of region and pool, listed in ``spaces``."""

    def __init__(self, rows: Sequence[PlanRow]) -> None:
        self.rows = rows
        self.tensor = column(rows, "tensor")
        self.offset = column(rows, "offset")
        self.slot = column(rows, "slot_bytes")
        self.payload = column(rows, "payload_bytes")
        self.first, self.last = column(rows, "first"), column(rows, "last")
        known: dict[tuple[str, str], int] = {}
        self.space = numbered(map(attrgetter("region", "pool"), rows), known)
        self.spaces = list(known)

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Positions of the rows of tensors. Raises KeyError for a tensor without one."""
        if np.array_equal(self.tensor[: len(ids)], ids):
            return np.arange(len(ids))
        place = dict(zip(self.tensor.tolist(), range(len(self.tensor))))
        return np.fromiter(map(place.__getitem__, ids.tolist()), np.int64, len(ids))
