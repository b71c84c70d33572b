"""The packing problem of one memory pool: bodies, which of them may not overlap, and lower bounds of the peak.

Every planner works on a :class:`Problem`. A conflict between bodies i and j is a forbidden open interval for the
distance of their offsets; a pair of bodies made of several rectangles may have several.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import compress, pairwise, permutations, product
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from metadef.memory.body_table import Body, BodyTable, Rect
from metadef.memory.columns import FREE
from metadef.memory.live import StepOrder, branch_sides, exclusive
from metadef.memory.pairs import LegalPair

if TYPE_CHECKING:
    from metadef.memory.large import LargeConflicts

WORLDS_LIMIT = 256
MATCHING_LIMIT = 5

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
        row = self.table.columns
        self.extents, self.first, self.last = row.extent.tolist(), row.first.tolist(), row.last.tolist()
        self.times = times

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
        return self.order.linear and all(
            len(body.rects) == 1 and body.rects[0].rel == 0 and not body.rects[0].labels
            for body in self.table.made.values()
        )

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
        tops = map(add, compress(offsets, self.extents), filter(None, self.extents))
        return max(tops, default=0)

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
        """Sweep over the steps; only rectangles alive together in step order, or unordered by events, are compared."""
        rects = [(rect.first, i, rect) for i, body in enumerate(self.bodies) for rect in body.rects if rect.size]
        rects.sort(key=lambda entry: (entry[0], entry[1]))
        near: list[list[tuple[int, int, int]]] = [[] for _ in self.bodies]

        def note(i: int, rect: Rect, j: int, other: Rect) -> None:
            low, high = other.rel - rect.rel - rect.size, other.rel + other.size - rect.rel
            near[i].append((j, low, high))
            near[j].append((i, -high, -low))

        if not self.order.linear:
            for one, two in _unordered([rect for _, _, rect in rects]):
                (_, i, rect), (_, j, other) = rects[one], rects[two]
                if j != i and not exclusive(rect.labels, other.labels):
                    note(i, rect, j, other)
            return near
        alive: list[tuple[int, int, int, Rect]] = []
        for serial, (first, i, rect) in enumerate(rects):
            while alive and alive[0][0] < first:
                del alive[0]
            for _, _, j, other in alive:
                if j != i and not exclusive(rect.labels, other.labels):
                    note(i, rect, j, other)
            insort(alive, (rect.last, serial, i, rect))
        return near


def _unordered(rects: Sequence[Rect]) -> list[list[int]]:
    """Pairs of rectangles on several streams neither of which surely ends before the other; the later one first."""
    if not rects:
        return []
    latest, known = (np.array([rect.reach[k] for rect in rects], np.int64) for k in (0, 1))
    before = np.ones((len(rects), len(rects)), np.bool_)
    for stream in range(latest.shape[1]):
        before &= latest[:, None, stream] <= known[None, :, stream]
    pairs: list[list[int]] = np.argwhere(np.tril(~(before | before.T), -1)).tolist()
    return pairs


def worlds(bodies: Sequence[Body]) -> list[dict[str, str]]:
    """Assignments of a side to every branch condition; where there are too many, of single ones (a weaker bound)."""
    sides: dict[str, set[str]] = {}
    objects = BodyTable.of(bodies).made.values()
    for label in {label for body in objects for rect in body.rects for label in rect.labels}:
        for condition, side in branch_sides(label).items():
            sides.setdefault(condition, set()).add(side)
    count = 1
    for choices in sides.values():
        count *= len(choices)
    names = sorted(sides)
    if count > WORLDS_LIMIT:
        return [{name: side} for name in names for side in sorted(sides[name])]
    return [dict(zip(names, choice)) for choice in product(*(sorted(sides[name]) for name in names))]


def exists_in(rect: Rect, world: dict[str, str]) -> bool:
    """Whether a rectangle exists when the conditions take these sides."""
    if not rect.labels:
        return True
    return any(all(world.get(c) == s for c, s in branch_sides(label).items()) for label in rect.labels)


def live_bytes(bodies: Sequence[Body], world: dict[str, str], steps: int) -> list[int]:
    """Bytes alive at each step in one world; a body counts the union of its live rectangles."""
    table = BodyTable.of(bodies)
    plain, row = table.plain, table.columns
    change = np.zeros(steps + 1, np.int64)
    np.add.at(change, row.first[plain], row.extent[plain])
    np.subtract.at(change, row.last[plain] + 1, row.extent[plain])
    for body in table.made.values():
        rects = body.rects
        if len(rects) == 1:
            rect = rects[0]
            if not rect.labels or exists_in(rect, world):
                change[rect.first] += rect.size
                change[rect.last + 1] -= rect.size
            continue
        rects = [rect for rect in rects if rect.size and exists_in(rect, world)]
        marks = sorted({rect.first for rect in rects} | {rect.last + 1 for rect in rects})
        for a, b in pairwise(marks):
            size = _covered(rects, a)
            change[a] += size
            change[b] -= size
    series: list[int] = np.cumsum(change[:steps]).tolist()
    return series


def _covered(rects: list[Rect], step: int) -> int:
    """Bytes covered by the rectangles alive at a step."""
    covered, reach = 0, None
    for low, high in sorted((r.rel, r.rel + r.size) for r in rects if r.first <= step <= r.last):
        start = low if reach is None else max(low, reach)
        covered += max(high - start, 0)
        reach = high if reach is None else max(reach, high)
    return covered


def theory_min(bodies: Sequence[Body], pairs: Sequence[LegalPair], steps: int) -> int:
    """Largest live set of unjoined bodies, when every step takes the best of its legal in-place pairs (bytes)."""
    gain = savings(pairs)
    best = 0
    for world in worlds(bodies):
        series = live_bytes(bodies, world, steps)
        for step, saved in gain.items():
            series[step] -= saved
        best = max(best, max(series, default=0))
    return best


def savings(pairs: Sequence[LegalPair]) -> dict[int, int]:
    """Bytes that in-place pairs can save at each step that has some."""
    alone = {pair.step: pair.saving for pair in pairs}
    if len(alone) == len(pairs):
        return alone
    by_step: dict[int, list[LegalPair]] = {}
    for pair in pairs:
        by_step.setdefault(pair.step, []).append(pair)
    alone.update((step, _best_saving(group)) for step, group in by_step.items() if len(group) > 1)
    return alone


def _best_saving(pairs: list[LegalPair]) -> int:
    """Bytes the best matching of one step's pairs saves (an upper bound where there are many)."""
    writes = list(dict.fromkeys(pair.write for pair in pairs))
    if len(writes) == 1:
        return max(pair.saving for pair in pairs)
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


def lower_bound(bodies: Sequence[Body], live_set: int) -> int:
    """No placement is smaller: the live set, the tallest body, the top of a pinned one (bytes)."""
    row = BodyTable.of(bodies).columns
    tops = np.where(row.pin == FREE, row.residue, row.pin) + row.extent
    return max(live_set, int(tops[row.extent > 0].max(initial=0)))
