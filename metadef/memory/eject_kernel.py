"""The compiled loop of the ejection search: bodies that end above a target go where they cost least to let in.

A waiting body takes the offset below the target at which the bodies in its way weigh least together; those go to the
end of the queue. What has been placed often weighs more, and what has just pushed others out may stay for a while, so
that the search does not turn in circles. Rectangles, conflicts and grids as in ``large_kernel``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metadef.jit import compiled

_compiled: Any = compiled()
_helper: Any = compiled(cache=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)

WORK_ROWS = 6
LOW, HIGH, PRICE, OWNER, BY_LOW, BY_HIGH = range(WORK_ROWS)
"""Rows of the work space: forbidden intervals with their price and body, and their order by either end."""

HEAVIEST = 1 << 20
"""Weights lie between 1 and this."""

RECENT, HELD = 1 << 38, 1 << 42
"""What it costs to push out a body that has just come in; and a pinned one, which nobody pays."""

MOST_RETURNS, RETURNS_PER_WEIGHT = 4096, 8
"""A body weighs its own weight more after so many returns, of which so many count."""

SHORTEST_STAY, STAYS = 10, 11
"""Moves that a body may stay at least, and how many lengths of stay there are (besides half of the queue)."""

VISITS_PER_MOVE = 20
"""What a move costs besides the conflicts it looks at, in visits of conflicts."""


@_helper
def _sort(work, order, key, count):
    """Shell sort of the first ``count`` numbers in row ``order`` by what row ``key`` holds for them."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(gap, count):
            moved, place = work[order, k], k
            while place >= gap and work[key, work[order, place - gap]] > work[key, moved]:
                work[order, place] = work[order, place - gap]
                place -= gap
            work[order, place] = moved
        gap //= 3


@_helper
def _cheapest(work, count, least, most, modulus, residue):
    """The offset, on its grid from ``least`` to ``most``, inside the forbidden intervals of the least total price.

    Tried from the bottom up right above every interval, then right below every one; the first of equal ones is taken.
    """
    for k in range(count):
        work[BY_LOW, k] = work[BY_HIGH, k] = k
    # Typed, since for two literals it would be compiled twice.
    _sort(work, np.int64(BY_LOW), np.int64(LOW), count)
    _sort(work, np.int64(BY_HIGH), np.int64(HIGH), count)
    best, at = 1 << 62, least
    entered, left, price = 0, 0, 0
    for turn in range(2 * count + 2):
        k = turn - 1 if turn <= count else turn - count - 1
        if turn == 0:
            here = least
        elif turn <= count:
            here = work[HIGH, work[BY_HIGH, k]]
            here += (residue - here) % modulus
        else:
            here = work[LOW, work[BY_LOW, k]] if k < count else most
            here -= (here - residue) % modulus
        if turn == count + 1:
            entered, left, price = 0, 0, 0
        if here < least or here > most:
            continue
        while entered < count and work[LOW, work[BY_LOW, entered]] < here:
            price += work[PRICE, work[BY_LOW, entered]]
            entered += 1
        while left < count and work[HIGH, work[BY_HIGH, left]] <= here:
            price -= work[PRICE, work[BY_HIGH, left]]
            left += 1
        if price < best:
            best, at = price, here
    return at, best


@_compiled
def eject(bodies, rects, links, grid, state, work, target, waiting, visits, salt):
    """Place what waits, and what that pushes out, below ``target``; ends when nothing waits or the visits are used up.

    ``bodies`` = (offsets, extents, weight, pinned), waiting ones at offset -1; ``state`` = (how often each has been
    placed, the move until which it may stay, the queue, its first ``waiting`` entries filled). ``salt`` varies the
    lengths of stay. Changes offsets and state; gives the conflicts visited and how many still wait.
    """
    offsets, extents, weight, pinned = bodies
    begin, owner, rel, size = rects
    start, near = links
    placed, until, queue = state
    head, length, move, spent = 0, waiting, 0, 0
    while length > 0 and spent < visits:
        i = queue[head]
        head, length, move = (head + 1) % queue.size, length - 1, move + 1
        spent += start[begin[i + 1]] - start[begin[i]] + VISITS_PER_MOVE
        modulus, residue = grid[0][i], grid[1][i]
        least, most, count = residue % modulus, target - extents[i], np.int64(0)
        most -= (most - residue) % modulus
        for r in range(begin[i], begin[i + 1]):
            for e in range(start[r], start[r + 1]):
                q = near[e]
                j = owner[q]
                below = offsets[j] + rel[q] - rel[r] - size[r]
                above = offsets[j] + rel[q] + size[q] - rel[r]
                if offsets[j] < 0 or above <= least or below >= most:
                    continue
                work[LOW, count], work[HIGH, count], work[OWNER, count] = below, above, j
                work[PRICE, count] = weight[j] + weight[j] * min(placed[j], MOST_RETURNS) // RETURNS_PER_WEIGHT
                if pinned[j]:
                    work[PRICE, count] = HELD
                elif until[j] > move:
                    work[PRICE, count] += RECENT
                count += 1
        at, price = _cheapest(work, count, least, most, modulus, residue)
        if most < least or price >= HELD:
            queue[(head + length) % queue.size] = i
            length += 1
            continue
        offsets[i] = at
        placed[i] += 1
        for k in range(count):
            j = work[OWNER, k]
            if work[LOW, k] < at < work[HIGH, k] and offsets[j] >= 0:
                offsets[j] = -1
                queue[(head + length) % queue.size] = j
                length += 1
        if price > 0:
            until[i] = move + SHORTEST_STAY + length // 2 + (move + salt) * 7919 % STAYS
    return spent, length
