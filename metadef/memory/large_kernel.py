"""Compiled loops for pools of thousands of bodies: who conflicts with whom, and placing into gaps.

Same answers as the plain code in ``problem`` and ``heuristics``, on arrays. Imported for large pools only. Conflicts
are held as ``(start, near, low, high)``: body i's entries are ``start[i]:start[i + 1]``, and offset i - offset near[e]
may not lie between low[e] and high[e]. ``grid`` = (modulus, residue) of every body; a pin or -1 in ``pins``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metadef.jit import compiled

_compiled: Any = compiled()


@_compiled
def _meetings(rects, label, apart, reach, fill, start, near, low, high):
    """Sweep over rectangles sorted by first step; counts meetings per body into start[i + 1], or fills the entries.

    A rectangle stays alive up to ``until``; ``apart`` says which labels exclude each other; the ``reach`` of two on
    several streams may order them all the same.
    """
    owner, first, until, rel, size = rects
    latest, known = reach
    alive, count = np.empty(owner.size, np.int32), 0
    for r in range(owner.size):
        kept, i = 0, owner[r]
        for k in range(count):
            q = alive[k]
            if until[q] < first[r]:
                continue
            alive[kept] = q
            kept += 1
            j = owner[q]
            if i == j or apart[label[q], label[r]]:
                continue
            if latest.shape[1] and ((latest[q] <= known[r]).all() or (latest[r] <= known[q]).all()):
                continue
            if not fill:
                start[i + 1] += 1
                start[j + 1] += 1
                continue
            below, above = rel[q] - rel[r] - size[r], rel[q] + size[q] - rel[r]
            near[start[i]], low[start[i]], high[start[i]] = j, below, above
            near[start[j]], low[start[j]], high[start[j]] = i, -above, -below
            start[i] += 1
            start[j] += 1
        alive[kept] = r
        count = kept + 1


def conflicts(bodies: int, rects, label, apart, reach) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(start, near, low, high) of all bodies, from rectangles sorted by (first step, body); empty ones left out."""
    start = np.zeros(bodies + 1, np.int64)
    none = np.zeros(0, np.int64)
    _meetings(rects, label, apart, reach, False, start, np.zeros(0, np.int32), none, none)
    start = np.cumsum(start)
    total = int(start[-1])
    near, low, high = np.empty(total, np.int32), np.empty(total, np.int64), np.empty(total, np.int64)
    _meetings(rects, label, apart, reach, True, start[:-1].copy(), near, low, high)
    return start, near, low, high


@_compiled
def _sort_gaps(lows, highs, count):
    """Sort the first ``count`` forbidden gaps by their low ends."""
    for k in range(1, count):
        low, high, place = lows[k], highs[k], k
        while place > 0 and lows[place - 1] > low:
            lows[place], highs[place] = lows[place - 1], highs[place - 1]
            place -= 1
        lows[place], highs[place] = low, high


@_compiled
def _tightest(count, lows, highs, cursor, modulus, residue):
    """Offset in the tightest gap between forbidden intervals; above them all if no gap holds the body."""
    _sort_gaps(lows, highs, count)
    chosen, slack = np.int64(-1), np.int64(-1)
    for k in range(count):
        if cursor <= lows[k] and (slack < 0 or lows[k] - cursor < slack):
            chosen, slack = cursor, lows[k] - cursor
        if highs[k] > cursor:
            cursor = highs[k] + (residue - highs[k]) % modulus
    return chosen if chosen >= 0 else cursor


@_compiled
def _lowest(count, lows, highs, cursor, modulus, residue):
    """Least offset in no forbidden interval: climbs until a look at all of them lifts it no more."""
    lifted = True
    while lifted:
        lifted = False
        for k in range(count):
            if lows[k] < cursor < highs[k]:
                cursor, lifted = highs[k] + (residue - highs[k]) % modulus, True
    return cursor


@_compiled
def place(order, offsets, table, grid, pinned, best_fit):
    """Put bodies in this order where pinned and earlier ones leave room. Changes ``offsets`` (-1: not placed)."""
    start, near, low, high = table
    most = np.max(start[1:] - start[:-1]) if order.size else 0
    lows, highs = np.empty(most, np.int64), np.empty(most, np.int64)
    for i in order:
        if pinned[i]:
            continue
        modulus, residue, count = grid[0][i], grid[1][i], 0
        for e in range(start[i], start[i + 1]):
            j = near[e]
            if offsets[j] >= 0 and offsets[j] + high[e] > 0:
                lows[count], highs[count] = offsets[j] + low[e], offsets[j] + high[e]
                count += 1
        least = residue if modulus > 1 else 0
        if best_fit:
            offsets[i] = _tightest(count, lows, highs, least, modulus, residue)
        else:
            offsets[i] = _lowest(count, lows, highs, least, modulus, residue)


@_compiled
def overlap(offsets, table):
    """The first pair (j, i), j < i, that may not lie as it does; (-1, -1) if there is none."""
    start, near, low, high = table
    for i in range(offsets.size):
        for e in range(start[i], start[i + 1]):
            j = near[e]
            if j < i and low[e] < offsets[i] - offsets[j] < high[e]:
                return j, i
    return -1, -1
