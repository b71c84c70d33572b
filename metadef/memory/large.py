"""Pools of thousands of bodies: conflicts as arrays, and the compiled ways to place them.

:class:`Problem` and the quick planners come here above ``LARGE_BODIES`` bodies. A placement is the one the plain code
would give; ``ejection`` takes the hill climb's part.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from metadef.memory import eject_kernel, large_kernel
from metadef.memory.body_table import BodyTable
from metadef.memory.live import StepOrder, exclusive


class LargeConflicts:
    """Who may not overlap whom; see ``large_kernel``."""

    def __init__(self, bodies: BodyTable, order: StepOrder) -> None:
        rects, row = bodies.rects, bodies.columns
        filled = np.flatnonzero(rects.size)
        by_birth = filled[np.argsort(rects.first[filled], kind="stable")]
        apart = np.array([[exclusive(one, other) for other in rects.labels] for one in rects.labels], np.bool_)
        until = rects.last if order.linear else _last_unordered(rects.last, rects.latest, order)
        self.rects = rects.start, rects.owner, rects.rel, rects.size
        self.links = large_kernel.meet(
            by_birth, self.rects[1], rects.first, until, rects.label, apart, rects.latest, rects.known
        )
        conflicts = self.links[0][rects.start]
        self.gaps = np.empty((2, int(np.diff(conflicts).max(initial=0)) + 1), np.int64)
        self.grid, self.extents = (row.modulus, row.residue), row.extent
        self.pins = np.maximum(row.pin, -1)

    @property
    def entries(self) -> int:
        """Conflicts, counted from both sides."""
        return len(self.links[1])

    def near(self) -> list[list[tuple[int, int, int]]]:
        """The conflicts as lists (j, low, high) for each body."""
        begin, owner, rel, size = self.rects
        start, q = self.links
        r = np.repeat(np.arange(len(rel)), np.diff(start))
        columns = (owner[q], rel[q] - rel[r] - size[r], rel[q] + size[q] - rel[r])
        entries = list(zip(*(column.tolist() for column in columns)))
        return [entries[a:b] for a, b in pairwise(start[begin].tolist())]

    def overlaps(self, offsets: Sequence[int]) -> tuple[int, int] | None:
        """The first pair that a placement lets overlap, or None."""
        j, i = large_kernel.overlap(np.array(offsets, np.int64), self.rects, self.links)
        return None if i < 0 else (int(j), int(i))

    def place(self, order: Sequence[int], best_fit: bool) -> list[int] | None:
        """Bodies in the given order into the lowest or tightest gap; None where pinned bodies are in the way."""
        offsets, (_, owner, rel, size) = np.where(self.pins >= 0, self.pins, -1), self.rects
        bottoms = np.where(self.pins[owner] >= 0, self.pins[owner] + rel, 0)
        edges = bottoms, np.where(self.pins[owner] >= 0, bottoms + size, 0)
        start = np.array(order, np.int64)
        large_kernel.place(start, offsets, edges, self.rects, self.links, self.grid, self.gaps, best_fit)
        if (self.pins >= 0).any() and self.overlaps(offsets.tolist()):
            return None
        found: list[int] = offsets.tolist()
        return found

    def eject(
        self, offsets: np.ndarray, weight: np.ndarray, target: int, visits: int, salt: int
    ) -> tuple[np.ndarray | None, int]:
        """Move what ends above ``target`` bytes below it, pushing out what weighs least; see ``eject_kernel``.

        Gives the placement below the target, or None where so many visits of conflicts did not do; and the visits
        made. ``salt`` makes another search from the same start.
        """
        moved, count = offsets.copy(), len(self.extents)
        misfits = np.flatnonzero((offsets + self.extents > target) & (self.extents > 0) & (self.pins < 0))
        moved[misfits] = -1
        placed, until, queue = np.zeros((3, count), np.int64)
        queue[: len(misfits)] = np.roll(misfits, salt)
        bodies, state = (moved, self.extents, weight, self.pins >= 0), (placed, until, queue)
        work, fixed = np.empty((eject_kernel.WORK_ROWS, self.gaps.shape[1]), np.int64), (self.rects, self.links)
        spent, left = eject_kernel.eject(bodies, *fixed, self.grid, state, work, target, len(misfits), visits, salt)
        return None if left else moved, int(spent)


def _last_unordered(last: np.ndarray, latest: np.ndarray, order: StepOrder) -> np.ndarray:
    """The last step before all that starts from then on surely comes after a rectangle."""
    ahead = np.minimum.accumulate(order.clocks[::-1])[::-1]
    until = last.copy()
    for stream in range(latest.shape[1]):
        until = np.maximum(until, np.searchsorted(ahead[:, stream], latest[:, stream], side="left") - 1)
    return until
