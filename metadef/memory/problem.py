"""The packing problem of one memory pool: bodies, which of them may not overlap, and lower bounds of the peak.

Every planner works on a :class:`Problem`. A conflict between bodies i and j is a forbidden open interval for the
distance of their offsets; a pair of bodies made of several rectangles may have several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise, permutations, product
from typing import TYPE_CHECKING

import numpy as np

from metadef.memory import joins
from metadef.memory.body_table import Body, BodyTable, Rect
from metadef.memory.columns import FREE, starts_of
from metadef.memory.live import Labels, StepOrder, branch_sides, exclusive
from metadef.memory.loops import run
from metadef.memory.pairs import LegalPair, Pairs

if TYPE_CHECKING:
    from metadef.memory.large import LargeConflicts

WORLDS_LIMIT = 256
MATCHING_LIMIT = 5
FAR = 1 << 62

LARGE_BODIES = 2_000
"""Above so many bodies conflicts are found, and bodies placed, by compiled code (``large``)."""


class Problem:
    """Bodies of one pool. ``near[i]`` lists (j, low, high): offset i - offset j may not lie between low and high.

    ``times``, if given, holds the instant of every step and of the end (one more than steps).
    """

    def __init__(self, bodies: Sequence[Body], order: StepOrder, times: Sequence[int] = ()) -> None:
        self.table = BodyTable.of(bodies)
        self.bodies: Sequence[Body] = self.table if len(bodies) > LARGE_BODIES else list(bodies)
        self.order = order
        self.times = times

    @cached_property
    def extents(self) -> list[int]:
        extents: list[int] = self.table.columns.extent.tolist()
        return extents

    @cached_property
    def first(self) -> list[int]:
        first: list[int] = self.table.columns.first.tolist()
        return first

    @cached_property
    def last(self) -> list[int]:
        last: list[int] = self.table.columns.last.tolist()
        return last

    def __len__(self) -> int:
        return len(self.bodies)

    @cached_property
    def large(self) -> LargeConflicts | None:
        """The conflicts as arrays for compiled code; None for few bodies."""
        if len(self) <= LARGE_BODIES:
            return None
        from metadef.memory.large import LargeConflicts

        return LargeConflicts(self.table, self.order)

    @cached_property
    def near(self) -> list[list[tuple[int, int, int]]]:
        return self.large.near() if self.large else self._conflicts()

    @property
    def entries(self) -> int:
        """Conflicts, counted from both sides."""
        return self.large.entries if self.large else sum(map(len, self.near))

    @property
    def single(self) -> bool:
        """Whether every body is one rectangle and conflicts are those of intervals (what the exact search needs)."""
        rects = self.table.rects
        one_each = np.array_equal(rects.start, np.arange(len(self) + 1))
        return self.order.linear and one_each and not rects.rel.any() and not rects.label.any()

    def boxed(self) -> Problem:
        """The smallest rectangle around each body, in any branch."""
        hulls = [
            replace(body, rects=[Rect(0, extent, first, last)])
            for body, extent, first, last in zip(self.bodies, self.extents, self.first, self.last)
        ]
        return Problem(hulls, self.order, self.times)

    @property
    def durations(self) -> list[int]:
        """How long each body lives: on the time line where there is one, else in steps."""
        instants = self.times or range(max(self.last, default=0) + 2)
        return [instants[last + 1] - instants[first] for first, last in zip(self.first, self.last)]

    def peak(self, offsets: Sequence[int]) -> int:
        """Bytes a placement takes."""
        extents = self.table.columns.extent
        tops = np.asarray(offsets, np.int64) + extents
        return int(tops[extents > 0].max(initial=0))

    def overlaps(self, offsets: Sequence[int]) -> tuple[int, int] | None:
        """The first pair of bodies that a placement lets overlap, or None."""
        if self.large:
            return self.large.overlaps(offsets)
        for i, conflicts in enumerate(self.near):
            for j, low, high in conflicts:
                if j < i and low < offsets[i] - offsets[j] < high:
                    return j, i
        return None

    def _conflicts(self) -> list[list[tuple[int, int, int]]]:
        """All pairs of rectangles that are alive together in step order, or unordered by events, at once."""
        rects, owners = self.table.rects, self.table.rects.owner
        order = np.flatnonzero(rects.size)
        order = order[np.argsort(rects.first[order], kind="stable")]
        owner, first, last, label = owners[order], rects.first[order], rects.last[order], rects.label[order]
        if self.order.linear:
            meets = last[None, :] >= first[:, None]
        else:
            meets = _unordered(rects.latest[order], rects.known[order])
        apart = np.array([[exclusive(one, other) for other in rects.labels] for one in rects.labels], np.bool_)
        if apart.any():
            meets &= ~apart[label[:, None], label[None, :]]
        later, earlier = np.nonzero(np.tril(meets & (owner[:, None] != owner[None, :]), -1))
        if self.order.linear:
            by_end = np.lexsort((earlier, last[earlier], later))
            later, earlier = later[by_end], earlier[by_end]
        r = np.stack((order[later], order[earlier]), axis=1).ravel()
        q = np.stack((order[earlier], order[later]), axis=1).ravel()
        by_body = np.argsort(owners[r], kind="stable")
        r, q = r[by_body], q[by_body]
        low, high = rects.rel[q] - rects.rel[r] - rects.size[r], rects.rel[q] + rects.size[q] - rects.rel[r]
        entries = list(zip(owners[q].tolist(), low.tolist(), high.tolist()))
        starts = starts_of(np.bincount(owners[r], minlength=len(self))).tolist()
        return [entries[one:other] for one, other in pairwise(starts)]


def _unordered(latest: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Which rectangles on several streams have no order: neither surely ends before the other."""
    before = np.ones((len(latest), len(latest)), np.bool_)
    for stream in range(latest.shape[1]):
        before &= latest[:, None, stream] <= known[None, :, stream]
    unordered: np.ndarray = ~(before | before.T)
    return unordered


def worlds(table: BodyTable) -> list[dict[str, str]]:
    """Assignments of a side to every branch condition; where there are too many, of single ones (a weaker bound)."""
    sides: dict[str, set[str]] = {}
    known = table.rects.labels
    for label in sorted({label for number in np.unique(table.rects.label).tolist() for label in known[number]}):
        for condition, side in branch_sides(label).items():
            sides.setdefault(condition, set()).add(side)
    count = 1
    for choices in sides.values():
        count *= len(choices)
    names = sorted(sides)
    if count > WORLDS_LIMIT:
        return [{name: side} for name in names for side in sorted(sides[name])]
    return [dict(zip(names, choice)) for choice in product(*(sorted(sides[name]) for name in names))]


def exists_in(labels: Labels, world: dict[str, str]) -> bool:
    """Whether what is made in these branches exists when the conditions take these sides."""
    if not labels:
        return True
    return any(all(world.get(c) == s for c, s in branch_sides(label).items()) for label in labels)


def live_bytes(table: BodyTable, world: dict[str, str], steps: int) -> np.ndarray:
    """Bytes alive at each step in one world; a body counts the union of its live rectangles."""
    rects, change = table.rects, np.zeros(steps + 1, np.int64)
    exists = np.array([exists_in(labels, world) for labels in rects.labels], np.bool_)
    counts = np.diff(rects.start)
    alone = rects.start[:-1][counts == 1]
    alone = alone[exists[rects.label[alone]]]
    np.add.at(change, rects.first[alone], rects.size[alone])
    np.subtract.at(change, rects.last[alone] + 1, rects.size[alone])
    if (counts > 1).any():
        several = np.flatnonzero(np.repeat(counts > 1, counts))
        by_place = several[np.lexsort((rects.rel[several], rects.owner[several]))]
        own = starts_of(counts[counts > 1])
        marks = np.zeros(2 * int(counts.max()), np.int64)
        columns = (column[by_place] for column in (rects.rel, rects.size, rects.first, rects.last, rects.label))
        run(joins.live_bytes, int((np.diff(own) ** 2).sum()), own, *columns, exists, marks, change)
    return np.cumsum(change[:steps])


def theory_min(table: BodyTable, pairs: Pairs, steps: int) -> int:
    """Largest live set of unjoined bodies, when every step takes the best of its legal in-place pairs (bytes)."""
    gain = savings(pairs, steps)
    return max(int((live_bytes(table, world, steps) - gain).max(initial=0)) for world in worlds(table))


def savings(pairs: Pairs, steps: int) -> np.ndarray:
    """Bytes that in-place pairs can save at each step."""
    gain = np.zeros(steps, np.int64)
    np.maximum.at(gain, pairs.step, pairs.saving)
    least, most = np.full(steps, FAR, np.int64), np.full(steps, -FAR, np.int64)
    np.minimum.at(least, pairs.step, pairs.write)
    np.maximum.at(most, pairs.step, pairs.write)
    several: dict[int, list[LegalPair]] = {}
    for pair in pairs.picked(np.flatnonzero((least < most)[pairs.step])):
        several.setdefault(pair.step, []).append(pair)
    for step, group in several.items():
        gain[step] = _best_saving(group)
    return gain


def _best_saving(pairs: list[LegalPair]) -> int:
    """Bytes the best matching of one step's pairs saves (an upper bound where there are many)."""
    writes = list(dict.fromkeys(pair.write for pair in pairs))
    reads = list(dict.fromkeys(pair.read for pair in pairs))
    by_write = [max(pair.saving for pair in pairs if pair.write == write) for write in writes]
    if max(len(reads), len(writes)) > MATCHING_LIMIT:
        return sum(by_write)
    table = {(pair.read, pair.write): pair.saving for pair in pairs}
    padded = reads + [-1] * len(writes)
    return max(
        sum(table.get((read, write), 0) for read, write in zip(chosen, writes))
        for chosen in set(permutations(padded, len(writes)))
    )


def lower_bound(table: BodyTable, live_set: int) -> int:
    """No placement is smaller: the live set, the tallest body, the top of a pinned one (bytes)."""
    row = table.columns
    tops = np.where(row.pin == FREE, row.residue, row.pin) + row.extent
    return max(live_set, int(tops[row.extent > 0].max(initial=0)))
