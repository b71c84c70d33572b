"""The compiled loop of the exact search: branch and bound over placements, with an explicit stack of frames.

After MiniMalloc (Moffitt, ASPLOS 2023). Bodies are placed in non-decreasing (offset, rank), each at the least offset
that what lies below allows. Once no unplaced body crosses some instant, both sides are solved on their own, ranked
anew. Bounds: the bytes still to place in every section of the time line, from above what already lies there.
Arguments: ``bodies`` = (sizes, first section, last section, modulus, residue, pins, start in near, near).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metadef.jit import compiled

WIDTH_AREA_TOTAL, TOTAL_AREA_WIDTH, TOTAL_WIDTH_AREA = range(3)
FOUND, NONE, LIMIT = 1, 0, -1

# Columns of the frame table.
ITEMS, COUNT, SORTED, NEXT, THRESHOLD, MIN_RANK, DOMINANCE, MOST = range(8)
TRAIL, CHOSEN, MIN_RANK_BELOW, MARK, PARTS, PART, PART_COUNT = range(8, 15)
FRAME_COLUMNS = 15

# Called from compiled code only: without wrappers the first compilation is a quarter shorter. Loops in place of NumPy's
# slices and selections for the same reason; and counters start at np.int64(0), since with a literal 0 Numba compiles
# what they are passed to twice, once for the literal.
_helper: Any = compiled(cache=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


@_helper
def _before(key_a: np.ndarray, key_b: np.ndarray, key_c: np.ndarray, i: int, j: int) -> bool:
    """Whether i ranks before j by three keys, each largest first, then by number."""
    if key_a[i] != key_a[j]:
        return key_a[i] > key_a[j]
    if key_b[i] != key_b[j]:
        return key_b[i] > key_b[j]
    if key_c[i] != key_c[j]:
        return key_c[i] > key_c[j]
    return i < j


@_helper
def _rank(items, bodies, totals, ranking, keys):
    """Sort items by width, area and section total, which a seed above 0 disturbs; ``keys`` is scratch, (3, n)."""
    sizes, first, last = bodies[0], bodies[1], bodies[2]
    widths, choice, seed = ranking
    width, area, total = keys[0], keys[1], keys[2]
    for i in items:
        scale = np.int64(4096)
        if seed > 0:
            scale += ((i + 1) * 2654435761 ^ seed * 40503) * 2246822519 >> 7 & 1023
        width[i], area[i], total[i] = widths[i] * scale, widths[i] * sizes[i] * scale, 0
        for s in range(first[i], last[i] + 1):
            total[i] = max(total[i], totals[s] * scale)
    a, b, c = total, width, area
    if choice == WIDTH_AREA_TOTAL:
        a, b, c = width, area, total
    elif choice == TOTAL_AREA_WIDTH:
        a, b, c = total, area, width
    for k in range(1, items.size):
        moving, place = items[k], k
        while place > 0 and _before(a, b, c, moving, items[place - 1]):
            items[place] = items[place - 1]
            place -= 1
        items[place] = moving


@_helper
def _sort_by_offset(order, count, items, least):
    """order[:count]: positions in items, by (least offset, position). Insertion sort after a shell pass."""
    for k in range(count):
        order[k] = k
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap >= 1:
        for k in range(gap, count):
            moving, place = order[k], k
            key = least[items[moving]]
            while place >= gap:
                other = order[place - gap]
                other_key = least[items[other]]
                if other_key < key or (other_key == key and other < moving):
                    break
                order[place] = other
                place -= gap
            order[place] = moving
        gap //= 3


@_helper
def _split(items, count, first, last, reach, out, starts):
    """Group items by stretches of the time line that none leaves (out), with their borders (starts); their number."""
    low, high = first[items[0]], last[items[0]]
    for k in range(count):
        low, high = min(low, first[items[k]]), max(high, last[items[k]])
    for s in range(low, high + 1):
        reach[s] = -1
    for k in range(count):
        i = items[k]
        reach[first[i]] = max(reach[first[i]], last[i])
    part, end = -1, np.int64(-1)
    for s in range(low, high + 1):
        if reach[s] >= 0:
            if s > end:
                part += 1
            end = max(end, reach[s])
        reach[s] = part
    parts = part + 1
    if parts == 1:
        for k in range(count):
            out[k] = items[k]
        starts[0], starts[1] = 0, count
        return 1
    for part in range(parts + 1):
        starts[part] = 0
    for k in range(count):
        starts[reach[first[items[k]]] + 1] += 1
    for part in range(parts):
        starts[part + 1] += starts[part]
    for k in range(count):
        part = reach[first[items[k]]]
        out[starts[part]] = items[k]
        starts[part] += 1
    for part in range(parts, 0, -1):
        starts[part] = starts[part - 1]
    starts[0] = 0
    return parts


@_helper
def _divide(frame, position, items, top, parts, part_top, starts, first, last, reach):
    """Split what is left of a frame without one item; the parts lie above ``top``. The new tops of both stacks."""
    count, left = frame[COUNT], np.int64(0)
    for k in range(count):
        if k != position:
            items[top + left] = items[frame[ITEMS] + k]
            left += 1
    frame[MARK], frame[PARTS], frame[PART], frame[PART_COUNT] = top, part_top, 0, 0
    if left == 0:
        return top, part_top
    rest = items[top : top + left]
    frame[PART_COUNT] = _split(rest, left, first, last, reach, items[top + left : top + 2 * left], starts)
    for k in range(frame[PART_COUNT] + 1):
        parts[part_top + k] = top + left + starts[k]
    return top + 2 * left, part_top + frame[PART_COUNT] + 1


@_helper
def _grown(array, needed):
    if needed <= array.size:
        return array
    larger = np.empty(max(needed, 2 * array.size), np.int64)
    for k in range(array.size):
        larger[k] = array[k]
    return larger


@_helper
def _lift(items, bodies, threshold, min_rank, least, placed, lifted):
    """lifted[i]: least offset at which i may still lie. What is too low waits for a neighbour to come beneath it."""
    sizes, modulus, residue, near_start, near = bodies[0], bodies[3], bodies[4], bodies[6], bodies[7]
    for k in range(items.size):
        i = items[k]
        lifted[i] = least[i]
        if least[i] > threshold or (least[i] == threshold and k >= min_rank):
            continue
        lowest = np.int64(1) << 60
        for e in range(near_start[i], near_start[i + 1]):
            j = near[e]
            if not placed[j]:
                lowest = min(lowest, max(least[j], threshold) + sizes[j])
        lifted[i] = lowest + (residue[i] - lowest) % modulus[i]


@_helper
def _fits(items, order, bodies, threshold, capacity, lifted, load):
    """Section bound: from the highest possible offset down, what is still to place must fit below the capacity."""
    sizes, first, last, pins = bodies[0], bodies[1], bodies[2], bodies[5]
    low, high = first[items[0]], last[items[0]]
    for k in range(items.size):
        low, high = min(low, first[items[k]]), max(high, last[items[k]])
    for s in range(low, high + 1):
        load[s] = 0
    for k in range(items.size - 1, -1, -1):
        i = items[order[k]]
        if pins[i] >= 0 and pins[i] < threshold:
            return False
        room = capacity - max(lifted[i], threshold)
        for s in range(first[i], last[i] + 1):
            load[s] += sizes[i]
            if load[s] > room:
                return False
    return True


@_helper
def _examine(items, order, bodies, threshold, min_rank, capacity, state):
    """Sort items by possible offset into ``order`` and say whether the section bound leaves room for them."""
    least, placed, lifted, load = state[0], state[1], state[3], state[4]
    _lift(items, bodies, threshold, min_rank, least, placed, lifted)
    _sort_by_offset(order, items.size, items, lifted)
    return _fits(items, order, bodies, threshold, capacity, lifted, load)


@_helper
def _place(i, bodies, capacity, state, trail, top):
    """Place i, raise its unplaced neighbours: the new top of the trail, and whether all still fit."""
    sizes, first, last, modulus, residue, pins, near_start, near = bodies
    least, placed, totals = state[0], state[1], state[2]
    placed[i] = True
    for s in range(first[i], last[i] + 1):
        totals[s] -= sizes[i]
    trail[top, 0] = -1 - i
    top += 1
    end = least[i] + sizes[i]
    if end > capacity:
        return top, False
    for k in range(near_start[i], near_start[i + 1]):
        j = near[k]
        if placed[j] or least[j] >= end:
            continue
        if pins[j] >= 0:
            return top, False
        trail[top, 0], trail[top, 1] = j, least[j]
        top += 1
        least[j] = end + (residue[j] - end) % modulus[j]
        if least[j] + sizes[j] > capacity:
            return top, False
    return top, True


@_helper
def _undo(mark, top, bodies, state, trail):
    """Take back everything on the trail above ``mark``."""
    sizes, first, last = bodies[0], bodies[1], bodies[2]
    least, placed, totals = state[0], state[1], state[2]
    while top > mark:
        top -= 1
        j = trail[top, 0]
        if j >= 0:
            least[j] = trail[top, 1]
            continue
        i = -1 - j
        placed[i] = False
        for s in range(first[i], last[i] + 1):
            totals[s] += sizes[i]


@_helper
def _next_candidate(frame, items, order, least, capacity):
    """Position of the next body worth placing in this frame, or -1; ``frame[NEXT]`` moves on."""
    threshold = frame[THRESHOLD]
    while frame[NEXT] < frame[COUNT]:
        position = order[frame[SORTED] + frame[NEXT]]
        offset = least[items[frame[ITEMS] + position]]
        waits = offset < threshold or (offset == threshold and position < frame[MIN_RANK])
        if not waits and (offset >= frame[DOMINANCE] or offset + frame[MOST] > capacity):
            return -1
        frame[NEXT] += 1
        if not waits:
            return position
    return -1


@_helper
def _enter(parent, child, items, order, order_top, parts, bodies, capacity, always, ranking, state):
    """Make ``child`` the frame of the parent's next part; whether the bounds leave it a chance."""
    sizes, first, last = bodies[0], bodies[1], bodies[2]
    least, totals, keys = state[0], state[2], state[5]
    part = parent[PARTS] + parent[PART]
    anew = always or parent[PART_COUNT] > 1
    child[ITEMS], child[COUNT], child[SORTED] = parts[part], parts[part + 1] - parts[part], order_top
    child[THRESHOLD], child[MIN_RANK], child[NEXT] = parent[CHOSEN], 0 if anew else parent[MIN_RANK_BELOW], 0
    mine = items[child[ITEMS] : child[ITEMS] + child[COUNT]]
    if anew:
        _rank(mine, bodies, totals, ranking, keys)
    child[DOMINANCE], child[MOST] = np.int64(1) << 62, 0
    for i in mine:
        child[DOMINANCE] = min(child[DOMINANCE], least[i] + sizes[i])
        for s in range(first[i], last[i] + 1):
            child[MOST] = max(child[MOST], totals[s])
    by_offset = order[order_top : order_top + child[COUNT]]
    return _examine(mine, by_offset, bodies, child[THRESHOLD], child[MIN_RANK], capacity, state)


@_helper
def _later_parts_fit(frame, items, order, parts, bodies, capacity, state):
    """Whether the section bound holds for all parts but the first, which is examined at once anyway."""
    for part in range(frame[PARTS] + 1, frame[PARTS] + frame[PART_COUNT]):
        mine = items[parts[part] : parts[part + 1]]
        if not _examine(mine, order, bodies, frame[CHOSEN], np.int64(0), capacity, state):
            return False
    return True


@_helper
def _beginning(last, residue, pins):
    """How many bodies and sections there are, and the least offset of every body."""
    sections, least = 0, pins.copy()
    for i in range(pins.size):
        sections = max(sections, last[i] + 1)
        if pins[i] < 0:
            least[i] = residue[i]
    return pins.size, sections, least


@compiled()
def solve(bodies, capacity, limit, always, ranking):
    """One run of the search. Gives (offsets, FOUND | NONE | LIMIT, placements tried).

    ``down`` opens the next part of the frame on top, or closes the frame when all parts are solved; ``up`` takes the
    frame's choice back, since a part of it has failed; otherwise the frame tries its next candidate. Frame 0 holds
    nothing: its parts are the independent pieces of the whole problem.
    """
    sizes, first, last, residue, pins, near = bodies[0], bodies[1], bodies[2], bodies[4], bodies[5], bodies[7]
    n, sections, least = _beginning(last, residue, pins)
    placed, totals = np.zeros(n, np.bool_), np.zeros(sections, np.int64)
    state = (least, placed, totals, least.copy(), totals.copy(), np.empty((3, n), np.int64))
    reach, starts, frames = totals.copy(), np.zeros(sections + 2, np.int64), np.zeros((n + 3, FRAME_COLUMNS), np.int64)
    items, order, parts = np.empty(8 * n + 8, np.int64), np.empty(4 * n + 8, np.int64), np.empty(4 * n + 8, np.int64)
    trail, zero = np.empty((near.size + n + 1, 2), np.int64), np.int64(0)
    for i in range(n):
        items[i] = i
        for s in range(first[i], last[i] + 1):
            totals[s] += sizes[i]
    frames[0, COUNT], frames[0, MIN_RANK_BELOW] = n, 0
    _rank(items[:n], bodies, totals, ranking, state[5])
    item_top, part_top = _divide(frames[0], zero - 1, items, n, parts, zero, starts, first, last, reach)
    order_top, trail_top, depth, tried, down, up = zero, zero, zero, zero, True, False
    while True:
        frame = frames[depth]
        if down and frame[PART] == frame[PART_COUNT]:
            if depth == 0:
                return least, FOUND, tried
            item_top, order_top, part_top = frame[MARK], frame[SORTED], frame[PARTS]
            depth -= 1
            frames[depth, PART] += 1
        elif down:
            order, child, down = _grown(order, order_top + n), frames[depth + 1], False
            up = not _enter(frame, child, items, order, order_top, parts, bodies, capacity, always, ranking, state)
            if not up:
                order_top, depth = order_top + child[COUNT], depth + 1
        elif up:
            if depth == 0:
                return least, NONE, tried
            _undo(frame[TRAIL], trail_top, bodies, state, trail)
            trail_top, item_top, part_top, up = frame[TRAIL], frame[MARK], frame[PARTS], False
        elif tried >= limit:
            return least, LIMIT, tried
        else:
            position = _next_candidate(frame, items, order, least, capacity)
            up = position < 0
            if up:
                order_top, depth = frame[SORTED], depth - 1
                continue
            tried += 1
            i = items[frame[ITEMS] + position]
            frame[TRAIL], frame[CHOSEN], frame[MIN_RANK_BELOW] = trail_top, least[i], position
            frame[MARK], frame[PARTS] = item_top, part_top
            trail_top, down = _place(i, bodies, capacity, state, trail, trail_top)
            if down:
                items, order = _grown(items, item_top + 2 * n), _grown(order, order_top + n)
                item_top, part_top = _divide(
                    frame, position, items, item_top, parts, part_top, starts, first, last, reach
                )
                down = _later_parts_fit(frame, items, order[order_top:], parts, bodies, capacity, state)
            up = not down
