"""In-place pairs: which permissions lifetimes allow, and the bodies that taking them joins.

Pairs of plain bodies of one size are screened and joined as columns; everything else goes body by body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from metadef.memory.bodies import absorb, fits_into, join_bodies, rects_meet, tensor_slot
from metadef.memory.body_table import ARENA, Body, BodySet, BodyTable, Columns, Key, Rect
from metadef.memory.columns import FREE
from metadef.memory.live import LiveTable, StepOrder
from metadef.schedule import InPlace, Schedule


class LegalPair(NamedTuple):
    """An in-place permission that lifetimes allow: ``write`` over ``read`` saves ``saving`` bytes at ``step``."""

    step: int
    read: int
    write: int
    saving: int


def legal_pairs(schedule: Schedule, live: LiveTable, joined: BodySet) -> tuple[list[LegalPair], dict[InPlace, str]]:
    """The permissions that may be taken, in step order, and the reason for each that may not."""
    refused: dict[InPlace, str] = {}
    if not schedule.inplace:
        return [], refused
    asked = list(dict.fromkeys(map(attrgetter("step", "read", "write"), schedule.inplace)))
    table = np.array(asked, np.int64)
    simple, saving = _plainly_legal(live, joined, table)
    pairs = list(map(LegalPair, *table[simple].T.tolist(), saving[simple].tolist()))
    for step, read, write in table[~simple].tolist():
        permission = InPlace(step, read, write)
        reason = _refusal(schedule, live, joined, permission)
        if reason:
            refused[permission] = reason
            continue
        saved = min(tensor_slot(live.tensors[live.base[t]]) for t in (read, write))
        pairs.append(LegalPair(step, read, write, saved))
    if not simple.all():
        asked_at = {entry: k for k, entry in enumerate(asked)}
        pairs.sort(key=lambda pair: asked_at[pair[:3]])
    by_step = np.array([(pair.step, -pair.saving) for pair in pairs], np.int64).reshape(-1, 2)
    return [pairs[k] for k in np.lexsort((by_step[:, 1], by_step[:, 0])).tolist()], refused


def _plainly_legal(live: LiveTable, joined: BodySet, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which pairs (step, read, write) of plain bodies pass all that :func:`_refusal` asks, and what they save (bytes).

    Others may pass too.
    """
    given, table = live.given, joined.bodies
    step, known = asked[:, 0], np.isin(asked[:, 1:], given.ids).all(axis=1)
    read, write = (given.places(np.where(known, ids, given.ids[:1])) for ids in asked[:, 1:].T)
    old, new = (
        np.fromiter(map(joined.of.__getitem__, given.ids[place].tolist()), np.int64, len(asked))
        for place in (read, write)
    )
    plain, slot = table.plain, table.columns.extent
    passed = known & plain[old] & plain[new] & live.order.linear
    passed &= (given.payload[write] <= given.payload[read]) & (slot[new] <= slot[old])
    # The step reads the one last of all, and writes the other before anything reads it.
    passed &= (live.last[read] == step) & (live.reads.last[read] == step)
    passed &= (live.first[write] == step) & (live.writes.first[write] == step) & (live.reads.first[write] != step)
    pools = {pool: k for k, pool in enumerate(dict.fromkeys(table.pools))}
    if len(pools) > 1:
        pool = np.array([pools[name] for name in table.pools], np.int64)
        passed &= pool[old] == pool[new]
    return passed, slot[new]


def _refusal(schedule: Schedule, live: LiveTable, joined: BodySet, pair: InPlace) -> str:
    """Why an in-place permission may not be taken ("" = it may)."""
    if not 0 <= pair.step < len(schedule.steps):
        return "there is no such step"
    step = schedule.steps[pair.step]
    if pair.read not in step.reads or pair.write not in step.writes:
        return "the step does not read the one and write the other"
    read, write = live.tensors[pair.read], live.tensors[pair.write]
    source, target = joined.bodies[joined.of[pair.read]], joined.bodies[joined.of[pair.write]]
    if source.region != ARENA or target.region != ARENA:
        return "one of the two is a weight, a graph input or a graph output"
    if source.no_reuse or target.no_reuse:
        return f"no reuse: {source.no_reuse or target.no_reuse}"
    if source.pool != target.pool:
        return "the two lie in different memory pools"
    if write.payload_bytes > read.payload_bytes or tensor_slot(write) > tensor_slot(read):
        return "the output is larger than the input"
    old, new = live.base_spans[live.base[pair.read]], live.base_spans[live.base[pair.write]]
    if old.last != pair.step or old.carried:
        return "the input is read again later" if not old.carried else "the input is carried by a loop"
    if new.first != pair.step or new.carried or pair.write in step.reads:
        return "the output exists before this step"
    if not live.order.linear and not live.order.done_by(old.reach, pair.step):
        return "another stream may still read the input"
    base, place = live.base[pair.read], (live.shift[pair.read], read.payload_bytes)
    for other in step.reads:
        if other is None or other == pair.read or live.base[other] != base:
            continue
        if (live.shift[other], live.tensors[other].payload_bytes) != place:
            return "the step reads other bytes of the same memory"
    return ""


def take_pairs(joined: BodySet, pairs: Sequence[LegalPair], order: StepOrder) -> tuple[BodyTable, list[LegalPair]]:
    """Join the pairs in the given order where possible: bodies, and the pairs that were taken.

    Each input and each output is used once; a pair is left out if the joined body would overlap itself.
    """
    if not pairs:
        return joined.bodies, []
    joining = _Joining(joined, order)
    taken: list[LegalPair] = []
    used_reads: set[int] = set()
    used_writes: set[int] = set()
    for pair in pairs:
        _, read, write, _ = pair
        if read not in used_reads and write not in used_writes and joining.take(pair):
            used_reads.add(read)
            used_writes.add(write)
            taken.append(pair)
    return joining.table(), taken


class _Joining:
    """Bodies while pairs are taken. ``made`` and ``joined`` are a :class:`BodyTable`'s; ``owned`` are objects of ours,
    free to be changed."""

    def __init__(self, start: BodySet, order: StepOrder) -> None:
        self.start, self.order = start.bodies, order
        self.where = dict(start.of)
        self.made, self.joined = dict(self.start.made), dict(self.start.joined)
        row = self.start.columns
        self.first, self.last, self.size = row.first.tolist(), row.last.tolist(), row.extent.tolist()
        self.grid = list(zip(row.modulus.tolist(), row.residue.tolist()))
        self.pinned = (row.pin != FREE).tolist()
        self.gone: list[int] = []
        self.owned: set[int] = set()

    def take(self, pair: LegalPair) -> bool:
        """Join the bodies of a pair; False if that cannot be."""
        step, read, write, _ = pair
        home, gone = self.where[read], self.where[write]
        if home == gone:
            return False
        if home in self.made or gone in self.made or not self._alike(home, gone):
            return self._join_objects(pair, home, gone)
        apart = self.last[home] < self.first[gone] or self.last[gone] < self.first[home]
        if apart:
            return self._join_objects(pair, home, gone)
        if not self.last[home] == step == self.first[gone]:
            return False
        keys = self.joined.pop(gone, None) or [self.start.keys[gone]]
        self.joined.setdefault(home, [self.start.keys[home]]).extend(keys)
        self.last[home] = self.last[gone]
        self._move(keys, home, gone)
        return True

    def _alike(self, one: int, other: int) -> bool:
        """Whether two plain bodies differ in nothing but their lives."""
        size, pools = self.size, self.start.pools
        same = size[one] == size[other] > 0 and self.grid[one] == self.grid[other] and pools[one] == pools[other]
        return same and not self.pinned[one] and not self.pinned[other]

    def _join_objects(self, pair: LegalPair, home: int, gone: int) -> bool:
        body, added = self._body(home), self._body(gone)
        distance = body.places[pair.read] - added.places[pair.write]
        if _collides(body, added, distance, pair, self.order):
            return False
        if home in self.owned and fits_into(body, added, distance):
            absorb(body, added, distance)
        else:
            fused = join_bodies(body, added, distance)
            if fused is None:
                return False
            self.made[home] = fused
            self.owned.add(home)
        self.made.pop(gone, None)
        for place in (home, gone):
            self.joined.pop(place, None)
        self._move(list(added.places), home, gone)
        return True

    def _body(self, place: int) -> Body:
        if place in self.made:
            return self.made[place]
        body = self.start[place]
        if place not in self.joined:
            return body
        rects = [Rect(0, self.size[place], self.first[place], self.last[place])]
        return replace(body, places=dict.fromkeys(self.joined[place], 0), rects=rects)

    def _move(self, keys: Sequence[Key], home: int, gone: int) -> None:
        self.gone.append(gone)
        for key in keys:
            if isinstance(key, int):
                self.where[key] = home

    def table(self) -> BodyTable:
        """What has become of the bodies."""
        row = self.start.columns
        first, last = (np.array(steps, np.int64) for steps in (self.first, self.last))
        columns = Columns(row.extent, first, last, row.modulus, row.residue, row.pin).with_objects(self.made)
        there = np.ones(len(self.start), np.bool_)
        there[self.gone] = False
        return BodyTable(columns, self.start.keys, self.start.pools, self.made, self.joined).chosen(there)


def _collides(one: Body, other: Body, distance: int, pair: LegalPair, order: StepOrder) -> bool:
    """Whether two bodies at this distance would overlap, apart from handing bytes over at the in-place step."""
    place = one.places[pair.read]
    for a in one.rects:
        for b in other.rects:
            apart = a.rel + a.size <= b.rel + distance or b.rel + distance + b.size <= a.rel
            handed_over = a.rel == b.rel + distance == place and a.last == pair.step == b.first
            if not apart and not handed_over and rects_meet(a, b, order):
                return True
    return False
