"""Compiled loops for pools of thousands of bodies: who conflicts with whom, and placing into gaps.

Same answers as the plain code in ``problem`` and ``heuristics``, on arrays. Imported for large pools only. Rectangles
are numbered body by body: ``rects`` = (begin, owner, rel, size), those of body i are ``begin[i]:begin[i + 1]``.
Conflicts are held as ``links`` = (start, near): rectangle r meets ``near[start[r]:start[r + 1]]``. ``grid`` =
(modulus, residue) of every body.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metadef.jit import compiled

_compiled: Any = compiled()
# Called from compiled code only, hence without wrappers; counters that are passed on start at np.int64(0), since Numba
# compiles a function once more for a literal 0.
_helper: Any = compiled(cache=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


@_helper
def _ordered(latest, known, one, other):
    """Whether one of two rectangles on several streams surely ends before the other."""
    before, after = latest.shape[1] > 0, latest.shape[1] > 0
    for s in range(latest.shape[1]):
        before = before and latest[one, s] <= known[other, s]
        after = after and latest[other, s] <= known[one, s]
    return before or after


@_helper
def _links(order, back, back_end, start):
    """Both sides of the meetings that each rectangle, in order, has with earlier ones."""
    for r in range(1, start.size):
        start[r] += start[r - 1]
    near, begin = np.empty(start[start.size - 1], np.int32), 0
    for t in range(order.size):
        r = order[t]
        for e in range(begin, back_end[t]):
            q = back[e]
            near[start[r + 1]], near[start[q + 1]] = q, r
            start[r + 1] += 1
            start[q + 1] += 1
        begin = back_end[t]
    return near


@_compiled
def meet(order, owner, first, until, label, apart, latest, known):
    """``links`` of rectangles; ``order`` are those that are not empty, by first step.

    A rectangle stays alive up to ``until``; ``apart`` says which labels exclude each other; the reaches of two on
    several streams may order them all the same.
    """
    alive, ends, count = np.empty(order.size, np.int32), np.empty(order.size, np.int64), 0
    back, back_end, filled = np.empty(8 * order.size + 8, np.int32), np.empty(order.size, np.int64), 0
    start, choosy = np.zeros(owner.size + 2, np.int64), apart.size > 1 or latest.shape[1] > 0
    for t in range(order.size):
        r = order[t]
        kept, born, body = 0, first[r], owner[r]
        if filled + count > back.size:
            larger = np.empty(2 * (filled + count), np.int32)
            for k in range(filled):
                larger[k] = back[k]
            back = larger
        for k in range(count):
            end = ends[k]
            if end < born:
                continue
            q = alive[k]
            alive[kept], ends[kept] = q, end
            kept += 1
            if owner[q] == body or (choosy and (apart[label[q], label[r]] or _ordered(latest, known, q, r))):
                continue
            back[filled] = q
            filled += 1
            start[q + 2] += 1
            start[r + 2] += 1
        alive[kept], ends[kept], count = r, until[r], kept + 1
        back_end[t] = filled
    near = _links(order, back, back_end, start)
    return start[: owner.size + 1], near


@_helper
def _sort_gaps(lows, highs, count):
    """Sort the first ``count`` forbidden gaps by their low ends: insertion sort after coarser passes."""
    stride = 1
    while stride < count // 9:
        stride = 3 * stride + 1
    while stride >= 1:
        for k in range(stride, count):
            low, high, place = lows[k], highs[k], k
            while place >= stride and lows[place - stride] > low:
                lows[place], highs[place] = lows[place - stride], highs[place - stride]
                place -= stride
            lows[place], highs[place] = low, high
        stride //= 3


@_helper
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


@_helper
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
def place(order, offsets, edges, rects, links, grid, gaps, best_fit):
    """Put bodies, in the given order, where those placed before leave room; ``offsets`` are -1, or those of pins.

    ``edges`` are the ends of rectangles (0 where nothing lies yet); ``gaps`` is scratch, two rows for the conflicts of
    a body and one more, since each is written before it is known to count.
    """
    begin, _, rel, size = rects
    start, near = links
    (bottoms, tops), lows, highs = edges, gaps[0], gaps[1]
    for t in range(order.size):
        i = order[t]
        if offsets[i] >= 0:
            continue
        modulus, residue, count = grid[0][i], grid[1][i], np.int64(0)
        for r in range(begin[i], begin[i + 1]):
            below, above = rel[r], rel[r] + size[r]
            for e in range(start[r], start[r + 1]):
                q = near[e]
                lows[count], highs[count] = bottoms[q] - above, tops[q] - below
                count += np.int64(tops[q] > below)
        if best_fit:
            at = _tightest(count, lows, highs, residue, modulus, residue)
        else:
            at = _lowest(count, lows, highs, residue, modulus, residue)
        offsets[i] = at
        for r in range(begin[i], begin[i + 1]):
            bottoms[r], tops[r] = at + rel[r], at + rel[r] + size[r]


@_compiled
def overlap(offsets, rects, links):
    """The first pair (j, i), j < i, that may not lie as it does; (-1, -1) if there is none."""
    begin, owner, rel, size = rects
    start, near = links
    for i in range(offsets.size):
        for r in range(begin[i], begin[i + 1]):
            low = offsets[i] + rel[r]
            for e in range(start[r], start[r + 1]):
                q = near[e]
                j = owner[q]
                other = offsets[j] + rel[q]
                if j < i and low < other + size[q] and other < low + size[r]:
                    return j, i
    return -1, -1
