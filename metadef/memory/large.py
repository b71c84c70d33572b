"""Pools of thousands of bodies: conflicts as arrays, and the compiled ways to place them.

:class:`Problem` and the quick planners come here above ``LARGE_BODIES`` bodies. A placement is the one the plain code
would give; raising what does not fit takes the hill climb's part.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from metadef.memory import large_kernel
from metadef.memory.body_table import BodyTable
from metadef.memory.live import StepOrder, exclusive


class LargeConflicts:
    """Who may not overlap whom; see ``large_kernel``."""

    def __init__(self, bodies: BodyTable, order: StepOrder) -> None:
        rects, row = bodies.rects, bodies.columns
        filled = np.flatnonzero(rects.size)
        by_birth = filled[np.argsort(rects.first[filled], kind="stable")]
        owner, first, last, rel, size, label = (
            column[by_birth] for column in (rects.owner, rects.first, rects.last, rects.rel, rects.size, rects.label)
        )
        apart = np.array([[exclusive(one, other) for other in rects.labels] for one in rects.labels], np.bool_)
        reach = rects.latest[by_birth], rects.known[by_birth]
        until = last if order.linear else _last_unordered(last, reach[0], order)
        self.table = large_kernel.conflicts(len(bodies), (owner, first, until, rel, size), label, apart, reach)
        self.grid, self.extents = (row.modulus, row.residue), row.extent
        self.pins = np.maximum(row.pin, -1)

    @property
    def entries(self) -> int:
        """Conflicts, counted from both sides."""
        return len(self.table[1])

    def near(self) -> list[list[tuple[int, int, int]]]:
        """The conflicts as lists (j, low, high) for each body."""
        start, *columns = (column.tolist() for column in self.table)
        entries = list(zip(*columns))
        return [entries[a:b] for a, b in pairwise(start)]

    def overlaps(self, offsets: Sequence[int]) -> tuple[int, int] | None:
        """The first pair that a placement lets overlap, or None."""
        j, i = large_kernel.overlap(np.array(offsets, np.int64), self.table)
        return None if i < 0 else (int(j), int(i))

    def place(self, order: Sequence[int], best_fit: bool) -> list[int] | None:
        """Bodies in the given order into the lowest or tightest gap; None where pinned bodies are in the way."""
        offsets = np.where(self.pins >= 0, self.pins, -1)
        self._pass(np.array(order, np.int64), offsets, np.ones(len(offsets), np.bool_), best_fit)
        if (self.pins >= 0).any() and self.overlaps(offsets.tolist()):
            return None
        found: list[int] = offsets.tolist()
        return found

    def raise_misfits(self, start: Sequence[int], target: int, visits: int) -> list[int] | None:
        """First fit; then, again and again, what ends above ``target`` bytes moves half way forward in the order.

        Only bodies that a lower neighbour has pushed are placed anew. Gives the best placement met within so many
        visits of conflicts (None: pinned bodies are in the way).
        """
        order, extents = np.array(start, np.int64), self.extents
        offsets, dirty = np.where(self.pins >= 0, self.pins, -1), np.ones(len(extents), np.bool_)
        best: np.ndarray | None = None
        while visits > 0:
            visits -= self._repair(order, offsets, dirty, target) + len(order) // 4
            tops = np.where(extents > 0, offsets + extents, 0)
            if best is None or tops.max() < np.max(best + extents, where=extents > 0, initial=0):
                best = offsets.copy()
            raised = (tops > target) & (self.pins < 0)
            if not raised.any():
                break
            old = self._ranks(order)
            order = np.argsort(np.where(raised, old - 2, 2 * old), kind="stable")
            large_kernel.mark_moved(raised, old, self._ranks(order), self.table, dirty)
        if best is None or ((self.pins >= 0).any() and self.overlaps(best.tolist())):
            return None
        found: list[int] = best.tolist()
        return found

    def _ranks(self, order: np.ndarray) -> np.ndarray:
        rank = np.full(len(self.extents), len(self.extents), np.int64)
        rank[order] = np.arange(len(order))
        rank[self.pins >= 0] = -1
        return rank

    def _repair(self, order: np.ndarray, offsets: np.ndarray, dirty: np.ndarray, target: int) -> int:
        ranks, pinned = self._ranks(order), self.pins >= 0
        changing = (order, ranks, dirty, offsets)
        return int(large_kernel.repair(*changing, self.extents, target, self.table, self.grid, pinned))

    def _pass(self, order: np.ndarray, offsets: np.ndarray, dirty: np.ndarray, best_fit: bool) -> int:
        ranks = self._ranks(order)
        pinned = self.pins >= 0
        return int(large_kernel.place(order, ranks, dirty, offsets, self.table, self.grid, pinned, best_fit))


def _last_unordered(last: np.ndarray, latest: np.ndarray, order: StepOrder) -> np.ndarray:
    """The last step before all that starts from then on surely comes after a rectangle."""
    ahead = np.minimum.accumulate(order.clocks[::-1])[::-1]
    until = last.copy()
    for stream in range(latest.shape[1]):
        until = np.maximum(until, np.searchsorted(ahead[:, stream], latest[:, stream], side="left") - 1)
    return until
