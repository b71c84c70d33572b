"""Bodies: what the planner moves, as columns, and one by one when somebody asks.

A body is one tensor, or several that relations hold together at fixed distances: a set of rectangles (bytes x steps);
the holes between them are free for others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

import numpy as np

from metadef.memory.columns import FREE, NO_LABEL, numbered, starts_of
from metadef.memory.live import NOWHERE, Labels, Reach

WEIGHTS, IO, ARENA = "weights", "io", "arena"
REGIONS = (WEIGHTS, IO, ARENA)
"""By number. What relations hold together lies in the first of its regions."""

Key = int | tuple[int, int]
"""A tensor by its id, or a workspace by step and number."""


@dataclass(slots=True)
class Rect:
    """Bytes [rel, rel + size) of a body, alive from step ``first`` to ``last``; ``reach`` as in :class:`Span`."""

    rel: int
    size: int
    first: int
    last: int
    labels: Labels = ()
    reach: Reach = NOWHERE


@dataclass(slots=True)
class Body:
    """Tensors and workspaces by key, with their distance from the body's start.

    Its offset is ``residue`` modulo ``modulus``; ``pinned`` is its only possible offset (None: free).
    """

    places: dict[Key, int]
    rects: list[Rect]
    modulus: int = 1
    residue: int = 0
    pinned: int | None = None
    pool: str = "HBM"
    region: str = ARENA
    no_reuse: str = ""

    @property
    def extent(self) -> int:
        """Bytes from the body's start to its end."""
        return max((rect.rel + rect.size for rect in self.rects), default=0)

    def up(self, offset: int) -> int:
        """The least legal offset that is not below ``offset``."""
        return offset + (self.residue - offset) % self.modulus


@dataclass
class Columns:
    """What is known of every body; ``first`` and ``last`` enclose the lives of all its rectangles.

    ``pool`` is a number (see ``BodyTable.pools``), ``region`` one of ``REGIONS``, ``pin`` an offset or ``FREE``.
    """

    extent: np.ndarray
    first: np.ndarray
    last: np.ndarray
    modulus: np.ndarray
    residue: np.ndarray
    pin: np.ndarray
    pool: np.ndarray
    region: np.ndarray

    def __getitem__(self, chosen: np.ndarray) -> Columns:
        return Columns(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


@dataclass
class Rects:
    """Rectangles, body by body: those of body i are ``start[i]:start[i + 1]``.

    ``label`` numbers the branches they exist in (``labels`` lists them, 0 = all); ``latest`` and ``known`` are their
    reaches, one column for each stream (none: steps are in one order).
    """

    start: np.ndarray
    rel: np.ndarray
    size: np.ndarray
    first: np.ndarray
    last: np.ndarray
    label: np.ndarray
    labels: list[Labels]
    latest: np.ndarray
    known: np.ndarray

    @property
    def owner(self) -> np.ndarray:
        """The body of every rectangle."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def picked(self, start: np.ndarray, order: np.ndarray) -> Rects:
        """These rectangles, in this order, for bodies that start so."""
        rel, size, first, last, label, latest, known = (
            column[order]
            for column in (self.rel, self.size, self.first, self.last, self.label, self.latest, self.known)
        )
        return Rects(start, rel, size, first, last, label, self.labels, latest, known)

    def hulls(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Extent, first and last step of every body (0 for one without rectangles)."""
        if np.array_equal(self.start, np.arange(len(self.rel) + 1)):
            return self.rel + self.size, self.first, self.last
        some = np.flatnonzero(np.diff(self.start))
        hulls = np.zeros((3, len(self.start) - 1), np.int64)
        if len(some):
            at = self.start[some]
            hulls[0, some] = np.maximum.reduceat(self.rel + self.size, at)
            hulls[1, some] = np.minimum.reduceat(self.first, at)
            hulls[2, some] = np.maximum.reduceat(self.last, at)
        return hulls[0], hulls[1], hulls[2]


@dataclass
class BodyTable(Sequence[Body]):
    """Bodies in order. ``home`` is the body of each of the ``keys`` (-1: none of these), ``rel`` its distance from the
    body's start; ``reasons`` say of some bodies why they may not be reused."""

    columns: Columns
    rects: Rects
    keys: Sequence[Key]
    home: np.ndarray
    rel: np.ndarray
    pools: list[str]
    reasons: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, bodies: Sequence[Body]) -> BodyTable:
        """A table of any bodies."""
        if isinstance(bodies, BodyTable):
            return bodies
        rects = _rects_of(bodies)
        pools: dict[str, int] = {}
        pool = numbered([body.pool for body in bodies], pools)
        table = [
            (b.modulus, b.residue, FREE if b.pinned is None else b.pinned, REGIONS.index(b.region)) for b in bodies
        ]
        modulus, residue, pin, region = np.array(table, np.int64).reshape(-1, 4).T.copy()
        columns = Columns(*rects.hulls(), modulus, residue, pin, pool, region)
        places = [(key, i, rel) for i, body in enumerate(bodies) for key, rel in body.places.items()]
        home, rel = (np.array([place[k] for place in places], np.int64) for k in (1, 2))
        reasons = {i: body.no_reuse for i, body in enumerate(bodies) if body.no_reuse}
        return cls(columns, rects, [key for key, _, _ in places], home, rel, list(pools), reasons)

    def __len__(self) -> int:
        return len(self.columns.extent)

    @overload
    def __getitem__(self, place: int) -> Body: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Body]: ...

    def __getitem__(self, place: int | slice) -> Body | Sequence[Body]:
        return self._objects[place]

    def __iter__(self) -> Iterator[Body]:
        return iter(self._objects)

    @cached_property
    def _objects(self) -> list[Body]:
        row, rects = self.columns, self.rects
        there = np.flatnonzero(self.home >= 0)
        members = there[np.argsort(self.home[there], kind="stable")]
        places = list(zip(map(self.keys.__getitem__, members.tolist()), self.rel[members].tolist()))
        member_start = starts_of(np.bincount(self.home[there], minlength=len(self))).tolist()
        labels = map(rects.labels.__getitem__, rects.label.tolist())
        reaches = zip(map(tuple, rects.latest.tolist()), map(tuple, rects.known.tolist()))
        columns = (column.tolist() for column in (rects.rel, rects.size, rects.first, rects.last))
        made, rect_start = list(map(Rect, *columns, labels, reaches)), rects.start.tolist()
        pins = [None if pin == FREE else pin for pin in row.pin.tolist()]
        return [
            Body(
                dict(places[member_start[i] : member_start[i + 1]]), made[rect_start[i] : rect_start[i + 1]],
                modulus, residue, pins[i], self.pools[pool], REGIONS[region], self.reasons.get(i, ""),
            )
            for i, (modulus, residue, pool, region) in enumerate(
                zip(row.modulus.tolist(), row.residue.tolist(), row.pool.tolist(), row.region.tolist())
            )
        ]  # fmt: skip

    def chosen(self, mask: np.ndarray) -> BodyTable:
        """The bodies of a mask, in order."""
        if mask.all():
            return self
        place = np.where(mask, np.cumsum(mask) - 1, -1)
        counts = np.diff(self.rects.start)
        rects = self.rects.picked(starts_of(counts[mask]), np.flatnonzero(np.repeat(mask, counts)))
        home = np.where(self.home >= 0, place[self.home], -1)
        reasons = {int(place[i]): text for i, text in self.reasons.items() if mask[i]}
        return BodyTable(self.columns[mask], rects, self.keys, home, self.rel, self.pools, reasons)

    def pinned(self) -> list[Body]:
        """The bodies that are pinned."""
        return list(self.chosen(self.columns.pin != FREE))

    def offsets_of_keys(self, offsets: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Which keys are here, and the offset of each of them, from those of the bodies (bytes)."""
        there = np.flatnonzero(self.home >= 0)
        return there, np.asarray(offsets, np.int64)[self.home[there]] + self.rel[there]

    def spread(self, offsets: Sequence[int]) -> dict[Key, int]:
        """The offset of every tensor and workspace, from those of the bodies (bytes)."""
        there, found = self.offsets_of_keys(offsets)
        return dict(zip(map(self.keys.__getitem__, there.tolist()), found.tolist()))


@dataclass
class BodySet:
    """All bodies of a schedule before any in-place pair is joined.

    Keys are the tensors by position, then the workspaces; ``slots`` is what each takes (a view: its payload, bytes).
    """

    bodies: BodyTable
    slots: np.ndarray

    @cached_property
    def of(self) -> dict[int, int]:
        """The position of each tensor's body."""
        table = self.bodies
        return {key: i for key, i in zip(table.keys, table.home.tolist()) if i >= 0 and isinstance(key, int)}

    def by_pool(self) -> dict[str, BodySet]:
        """The arena's bodies by memory pool, pools in order of appearance."""
        table = self.bodies
        arena = table.columns.region == REGIONS.index(ARENA)
        pool = table.columns.pool
        numbers, at = np.unique(pool[arena], return_index=True)
        found = {}
        for number in numbers[np.argsort(at)].tolist():
            chosen = table.chosen(arena & (pool == number))
            found[table.pools[number]] = self if chosen is table else BodySet(chosen, self.slots)
        return found


def _rects_of(bodies: Sequence[Body]) -> Rects:
    known: dict[Labels, int] = {(): NO_LABEL}
    rects = [rect for body in bodies for rect in body.rects]
    label = [known.setdefault(rect.labels, len(known)) for rect in rects]
    table = np.array([(r.rel, r.size, r.first, r.last) for r in rects], np.int64).reshape(-1, 4)
    rel, size, first, last = table.T.copy()
    width = max((len(rect.reach[0]) for rect in rects), default=0)
    latest, before = (np.array([r.reach[k] for r in rects], np.int64).reshape(len(rects), width) for k in (0, 1))
    start = starts_of(np.array([len(body.rects) for body in bodies], np.int64))
    return Rects(start, rel, size, first, last, np.array(label, np.int64), list(known), latest, before)
