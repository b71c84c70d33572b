"""Bodies: what the planner moves, one by one or as columns.

A body is one tensor, or several that relations hold together at fixed distances: a set of rectangles (bytes x steps);
the holes between them are free for others. Most bodies are a single rectangle without more to say; a table keeps those
as columns and makes the object when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import overload

import numpy as np

from metadef.memory.columns import FREE
from metadef.memory.live import NOWHERE, Labels, Reach

WEIGHTS, ARENA, IO = "weights", "arena", "io"

Key = int | tuple[int, int]
"""A tensor by its id, or a workspace by step and number."""

NO_KEY = (-1, -1)
"""In the column of keys, for bodies whose object has them."""


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
        if len(self.rects) == 1:
            return self.rects[0].rel + self.rects[0].size
        return max((rect.rel + rect.size for rect in self.rects), default=0)

    def up(self, offset: int) -> int:
        """The least legal offset that is not below ``offset``."""
        return offset + (self.residue - offset) % self.modulus


@dataclass
class Columns:
    """What is known of every body; ``first`` and ``last`` enclose the lives of all its rectangles."""

    extent: np.ndarray
    first: np.ndarray
    last: np.ndarray
    modulus: np.ndarray
    residue: np.ndarray
    pin: np.ndarray

    def __getitem__(self, chosen: np.ndarray) -> Columns:
        return Columns(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    def extended(self, made: Mapping[int, Body], more: np.ndarray) -> Columns:
        """With more rows (one column of ``more`` each); what objects say replaces what is here."""
        whole = np.concatenate([np.stack([getattr(self, name) for name in self.__dataclass_fields__]), more], axis=1)
        if made:
            objects = Columns.of(list(made.values()))
            whole[:, list(made)] = np.stack([getattr(objects, name) for name in self.__dataclass_fields__])
        return Columns(*whole)

    def with_objects(self, made: Mapping[int, Body]) -> Columns:
        """With what these objects say in place of what is here."""
        return self.extended(made, np.zeros((len(self.__dataclass_fields__), 0), np.int64))

    @classmethod
    def of(cls, bodies: Sequence[Body]) -> Columns:
        table = [
            (body.extent, rects[0].first, rects[0].last, body.modulus, body.residue, _pin(body))
            if len(rects := body.rects) == 1
            else (body.extent, _least_first(body), _most_last(body), body.modulus, body.residue, _pin(body))
            for body in bodies
        ]
        return cls(*np.array(table, np.int64).reshape(-1, 6).T.copy())


@dataclass
class Rects:
    """Rectangles that are not empty, by body: columns, their labels as numbers (``known`` lists them) and reaches."""

    owner: np.ndarray
    rel: np.ndarray
    size: np.ndarray
    first: np.ndarray
    last: np.ndarray
    label: np.ndarray
    known: list[Labels]
    reach: list[Reach]


class BodyTable(Sequence[Body]):
    """Bodies in order. ``made`` holds those that take an object to describe; the others are plain.

    A plain body is one rectangle from its start, in the arena, without labels, reach or reason not to be reused. It is
    the one of ``keys``, or those that ``joined`` lists, all at distance 0, in the memory pool of ``pools``.
    """

    def __init__(
        self,
        columns: Columns,
        keys: list[Key],
        pools: list[str],
        made: Mapping[int, Body],
        joined: Mapping[int, list[Key]] | None = None,
    ) -> None:
        self.columns, self.pools, self.made = columns, pools, dict(made)
        self.keys = [NO_KEY if i in self.made else key for i, key in enumerate(keys)] if self.made else keys
        self.joined = dict(joined or {})
        self._asked: dict[int, Body] = {}

    @classmethod
    def of(cls, bodies: Sequence[Body]) -> BodyTable:
        """A table of any bodies."""
        if isinstance(bodies, BodyTable):
            return bodies
        return cls(Columns.of(bodies), [NO_KEY] * len(bodies), [body.pool for body in bodies], dict(enumerate(bodies)))

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, place: int) -> Body: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Body]: ...

    def __getitem__(self, place: int | slice) -> Body | Sequence[Body]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        body = self.made.get(place) or self._asked.get(place)
        if body is None:
            body = self._asked[place] = self._object(place)
        return body

    def __iter__(self) -> Iterator[Body]:
        return (self[place] for place in range(len(self)))

    def _object(self, place: int) -> Body:
        if not 0 <= place < len(self):
            raise IndexError(place)
        row = self.columns
        rect = Rect(0, int(row.extent[place]), int(row.first[place]), int(row.last[place]))
        pin = int(row.pin[place])
        places: dict[Key, int] = dict.fromkeys(self.joined.get(place) or (self.keys[place],), 0)
        grid = (int(row.modulus[place]), int(row.residue[place]))
        return Body(places, [rect], *grid, None if pin == FREE else pin, self.pools[place])

    @property
    def plain(self) -> np.ndarray:
        """Which bodies are plain."""
        mask = np.ones(len(self), np.bool_)
        mask[list(self.made)] = False
        return mask

    def chosen(self, mask: np.ndarray) -> BodyTable:
        """The bodies of a mask, in order."""
        if mask.all():
            return self
        place = (np.cumsum(mask) - 1).tolist()
        made = {place[i]: body for i, body in self.made.items() if mask[i]}
        joined = {place[i]: keys for i, keys in self.joined.items() if mask[i]}
        kept = mask.tolist()
        return BodyTable(
            self.columns[mask], list(compress(self.keys, kept)), list(compress(self.pools, kept)), made, joined
        )

    def pinned(self) -> list[Body]:
        """The bodies that are pinned."""
        return [self[i] for i in np.flatnonzero(self.columns.pin != FREE).tolist()]

    def of_tensors(self) -> dict[int, int]:
        """The position of each tensor's body."""
        found = {key: i for i, key in enumerate(self.keys) if isinstance(key, int)}
        found.update((key, i) for i, keys in self.joined.items() for key in keys if isinstance(key, int))
        found.update((key, i) for i, body in self.made.items() for key in body.places if isinstance(key, int))
        return found

    def spread(self, offsets: Sequence[int]) -> dict[Key, int]:
        """The offset of every tensor and workspace, from those of the bodies (bytes)."""
        found = dict(zip(self.keys, offsets))
        found.update((key, offsets[i]) for i, keys in self.joined.items() for key in keys)
        found.update((key, offsets[i] + rel) for i, body in self.made.items() for key, rel in body.places.items())
        return found

    def rects(self) -> Rects:
        """All rectangles that are not empty, sorted by body."""
        row = self.columns
        plain = np.flatnonzero(self.plain & (row.extent > 0))
        held = [(i, rect) for i, body in self.made.items() for rect in body.rects if rect.size]
        known: dict[Labels, int] = {(): 0}
        table = [
            (i, r.rel, r.size, r.first, r.last, known.setdefault(r.labels, len(known)) if r.labels else 0)
            for i, r in held
        ]
        none = np.zeros(len(plain), np.int64)
        ours = np.stack([plain, none, row.extent[plain], row.first[plain], row.last[plain], none])
        whole = np.concatenate([ours, np.array(table, np.int64).reshape(-1, 6).T], axis=1)
        order = np.argsort(whole[0], kind="stable")
        reach = [NOWHERE] * len(plain) + [rect.reach for _, rect in held]
        owner, rel, size, first, last, label = whole[:, order]
        return Rects(owner, rel, size, first, last, label, list(known), [reach[k] for k in order.tolist()])


@dataclass
class BodySet:
    """All bodies of a schedule before any in-place pair is joined; ``of`` maps a tensor to its body's position.

    ``slots`` is what each tensor that is no view, and each workspace, takes (bytes).
    """

    bodies: BodyTable
    of: dict[int, int]
    slots: dict[Key, int] = field(default_factory=dict)

    def by_pool(self) -> dict[str, BodySet]:
        """The arena's bodies by memory pool, pools in order of appearance."""
        table = self.bodies
        arena = np.ones(len(table), np.bool_)
        arena[[i for i, body in table.made.items() if body.region != ARENA]] = False
        names = list(dict.fromkeys(compress(table.pools, arena.tolist())))
        found = {}
        for name in names:
            mine = arena if len(names) == 1 else arena & (np.array(table.pools) == name)
            chosen = table.chosen(mine)
            found[name] = self if chosen is table else BodySet(chosen, chosen.of_tensors(), self.slots)
        return found


def _pin(body: Body) -> int:
    return FREE if body.pinned is None else body.pinned


def _least_first(body: Body) -> int:
    return min((rect.first for rect in body.rects), default=0)


def _most_last(body: Body) -> int:
    return max((rect.last for rect in body.rects), default=0)
