"""The compiled exact search: a placement of one-rectangle bodies within a capacity, or the proof that there is none.

Branch and bound after MiniMalloc (Moffitt, ASPLOS 2023), as one loop with an explicit stack. Bodies are placed in
non-decreasing (offset, rank), each at the least offset that what lies below allows. Once no unplaced body crosses
some instant, the two sides are solved on their own and ranked anew. Bounds: bytes still to place in every section of
the time line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from metadef.memory.problem import Problem

CANDIDATES_PER_S = 50_000
"""Placements tried in a second of budget (measured on instances of 150 to 450 buffers)."""

FIRST_LIMIT = 3_000
"""Placements tried before the next order of ranks gets its turn; doubled after each round of all."""

WIDTH_AREA_TOTAL, TOTAL_AREA_WIDTH, TOTAL_WIDTH_AREA = range(3)
SECTIONS, STEPS, TIMES = range(3)
ORDERS = (
    (SECTIONS, False, TOTAL_WIDTH_AREA),
    (TIMES, False, TOTAL_WIDTH_AREA),
    (SECTIONS, True, TOTAL_WIDTH_AREA),
    (SECTIONS, False, TOTAL_AREA_WIDTH),
    (STEPS, False, TOTAL_WIDTH_AREA),
    (TIMES, False, WIDTH_AREA_TOTAL),
    (SECTIONS, False, WIDTH_AREA_TOTAL),
    (TIMES, False, TOTAL_AREA_WIDTH),
    (TIMES, True, TOTAL_WIDTH_AREA),
    (SECTIONS, True, TOTAL_AREA_WIDTH),
    (STEPS, False, WIDTH_AREA_TOTAL),
    (TIMES, True, WIDTH_AREA_TOTAL),
)
"""How to rank: what a width counts, whether every node ranks anew (else only after a split), the order of the keys.

No single order solves all known hard instances; each of these solves some in a few thousand placements."""

FOUND, NONE, LIMIT = 1, 0, -1

# Columns of the frame table.
ITEMS, COUNT, SORTED, NEXT, THRESHOLD, MIN_RANK, DOMINANCE, MOST = range(8)
TRAIL, CHOSEN, MIN_RANK_BELOW, MARK, PARTS, PART, PART_COUNT = range(8, 15)
FRAME_COLUMNS = 15


@dataclass(frozen=True)
class SearchResult:
    """Best offsets found (None: nothing below the incumbent), and a proved lower bound of the peak (bytes)."""

    offsets: list[int] | None
    lower: int
    candidates: int


def search(problem: Problem, incumbent: int, goal: int, floor: int, budget_s: float) -> SearchResult:
    """Look for a peak below ``incumbent`` bytes, at best ``goal``; ``floor`` is a known lower bound.

    Only for problems that are :attr:`Problem.single`. The budget is spent in placements tried, so that results repeat.
    """
    table = _Instance(problem)
    left = int(budget_s * CANDIDATES_PER_S)
    lower, undecided = floor, floor - table.granule
    best: list[int] | None = None
    capacity, used = max(goal, floor), 0
    share = left
    while left > 0 and capacity < incumbent:
        state, offsets, spent = table.solve(capacity, min(share, left))
        left, used = left - spent, used + spent
        if state == FOUND:
            best = offsets
            incumbent = problem.peak(offsets)
        elif state == NONE:
            lower = max(lower, capacity + table.granule)
        if incumbent <= goal:
            break
        undecided = max(undecided, capacity if state == LIMIT else lower - table.granule)
        steps = (incumbent - undecided) // table.granule
        if steps <= 1:
            break
        capacity = undecided + max(steps // 2, 1) * table.granule
        share = max(left // 4, FIRST_LIMIT)
    return SearchResult(best, lower, used)


class _Instance:
    """A problem as arrays: sizes, sections of the time line, grids, pins, and who overlaps whom."""

    def __init__(self, problem: Problem) -> None:
        bodies = problem.bodies
        self.sizes = np.array(problem.extents, np.int64)
        self.modulus = np.array([body.modulus for body in bodies], np.int64)
        self.residue = np.array([body.residue for body in bodies], np.int64)
        self.pins = np.array([-1 if body.pinned is None else body.pinned for body in bodies], np.int64)
        self.first, self.last = _sections(problem.first, problem.last)
        steps = [last - first + 1 for first, last in zip(problem.first, problem.last)]
        self.widths = [self.last - self.first + 1, np.array(steps, np.int64), np.array(problem.durations, np.int64)]
        counts = [len(near) for near in problem.near]
        self.near_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.near = np.array([j for near in problem.near for j, _, _ in near], np.int64)
        grids = self.modulus[self.modulus > 1]
        self.granule = (
            int(np.gcd.reduce(np.concatenate([self.sizes, grids, self.residue, np.maximum(self.pins, 0)]))) or 1
        )

    def solve(self, capacity: int, limit: int) -> tuple[int, list[int], int]:
        """FOUND with offsets, NONE (proved), or LIMIT after ``limit`` placements tried; and how many were tried."""
        spent, turn = 0, 0
        while True:
            doublings, order = divmod(turn, len(ORDERS))
            metric, always, keys = ORDERS[order]
            allowance = min(FIRST_LIMIT << doublings, max(limit - spent, 1))
            offsets, state, tried = _solve(
                self.sizes, self.first, self.last, self.modulus, self.residue, self.pins, self.near_start, self.near,
                capacity, allowance, self.widths[metric], always, keys, doublings,
            )  # fmt: skip
            spent += tried
            if state != LIMIT or spent >= limit:
                return state, [int(offset) for offset in offsets], spent
            turn += 1


def _sections(first: list[int], last: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Lives in maximal sections: runs of steps in which births all precede deaths carry one largest live set."""
    births, deaths = sorted(set(first)), sorted(set(last))
    cuts, position = [], 0
    for death in deaths:
        if position < len(births) and births[position] <= death:
            cuts.append(death)
            while position < len(births) and births[position] <= death:
                position += 1
    # Section k is (cuts[k-1], cuts[k]]: everything born up to its end and not dead before its end.
    ends = np.array(cuts, np.int64)
    low = np.searchsorted(ends, np.array(first, np.int64), side="left")
    high = np.searchsorted(ends, np.array(last, np.int64), side="right") - 1
    return low.astype(np.int64), np.maximum(high, low).astype(np.int64)


@njit(cache=True)
def _before(key_a: np.ndarray, key_b: np.ndarray, key_c: np.ndarray, i: int, j: int) -> bool:
    """Whether i ranks before j by three keys, each largest first, then by number."""
    if key_a[i] != key_a[j]:
        return key_a[i] > key_a[j]
    if key_b[i] != key_b[j]:
        return key_b[i] > key_b[j]
    if key_c[i] != key_c[j]:
        return key_c[i] > key_c[j]
    return i < j


@njit(cache=True)
def _rank(items, count, sizes, first, last, totals, spans, keys, seed, width, area, total):
    """Sort items[:count] by width (``spans``), area and largest section total; a seed above 0 disturbs all three."""
    for k in range(count):
        i = items[k]
        width[i] = spans[i]
        area[i] = width[i] * sizes[i]
        most = np.int64(0)
        for s in range(first[i], last[i] + 1):
            most = max(most, totals[s])
        total[i] = most
        if seed > 0:
            noise = ((i + 1) * 2654435761 ^ seed * 40503) * 2246822519 >> 7 & 1023
            width[i] = width[i] * (4096 + noise)
            area[i] = area[i] * (4096 + noise)
            total[i] = total[i] * (4096 + noise)
    if keys == WIDTH_AREA_TOTAL:
        a, b, c = width, area, total
    elif keys == TOTAL_AREA_WIDTH:
        a, b, c = total, area, width
    else:
        a, b, c = total, width, area
    for k in range(1, count):
        moving, place = items[k], k
        while place > 0 and _before(a, b, c, moving, items[place - 1]):
            items[place] = items[place - 1]
            place -= 1
        items[place] = moving


@njit(cache=True)
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


@njit(cache=True)
def _fits(order, count, items, least, sizes, first, last, pins, threshold, capacity, load):
    """Section bound: from the highest least offset down, what is still to place must fit below the capacity."""
    low, high = first[items[0]], last[items[0]]
    for k in range(count):
        low, high = min(low, first[items[k]]), max(high, last[items[k]])
    load[low : high + 1] = 0
    for k in range(count - 1, -1, -1):
        i = items[order[k]]
        if pins[i] >= 0 and pins[i] < threshold:
            return False
        room = capacity - max(least[i], threshold)
        for s in range(first[i], last[i] + 1):
            load[s] += sizes[i]
            if load[s] > room:
                return False
    return True


@njit(cache=True)
def _split(items, count, first, last, reach, out, starts):
    """Group items by stretches of the time line that none leaves (out), with their borders (starts); their number."""
    low, high = first[items[0]], last[items[0]]
    for k in range(count):
        low, high = min(low, first[items[k]]), max(high, last[items[k]])
    reach[low : high + 1] = -1
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
    starts[: parts + 1] = 0
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


@njit(cache=True)
def _place(
    i,
    least,
    offsets,
    placed,
    totals,
    sizes,
    first,
    last,
    modulus,
    residue,
    pins,
    near_start,
    near,
    capacity,
    trail_body,
    trail_value,
    top,
):
    """Place i, raise its unplaced neighbours: the new top of the trail, and whether all still fit."""
    offsets[i], placed[i] = least[i], True
    for s in range(first[i], last[i] + 1):
        totals[s] -= sizes[i]
    trail_body[top] = -1 - i
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
        trail_body[top], trail_value[top] = j, least[j]
        top += 1
        least[j] = end + (residue[j] - end) % modulus[j]
        if least[j] + sizes[j] > capacity:
            return top, False
    return top, True


@njit(cache=True)
def _undo(mark, top, least, placed, totals, sizes, first, last, trail_body, trail_value):
    """Take back everything on the trail above ``mark``."""
    while top > mark:
        top -= 1
        j = trail_body[top]
        if j >= 0:
            least[j] = trail_value[top]
            continue
        i = -1 - j
        placed[i] = False
        for s in range(first[i], last[i] + 1):
            totals[s] += sizes[i]


@njit(cache=True)
def _open(frame, items, order, least, sizes, first, last, totals):
    """Prepare a frame: items by least offset, the least possible top, the most bytes still to place in a section."""
    start, count = frame[ITEMS], frame[COUNT]
    mine = items[start : start + count]
    _sort_by_offset(order[frame[SORTED] : frame[SORTED] + count], count, mine, least)
    dominance, most = np.int64(1) << 62, np.int64(0)
    for i in mine:
        dominance = min(dominance, least[i] + sizes[i])
        for s in range(first[i], last[i] + 1):
            most = max(most, totals[s])
    frame[DOMINANCE], frame[MOST], frame[NEXT] = dominance, most, 0


@njit(cache=True)
def _next_candidate(frame, items, order, least, capacity):
    """Position of the next body worth placing in this frame, or -1; ``frame[NEXT]`` moves on."""
    count, threshold = frame[COUNT], frame[THRESHOLD]
    while frame[NEXT] < count:
        position = order[frame[SORTED] + frame[NEXT]]
        offset = least[items[frame[ITEMS] + position]]
        if offset >= frame[DOMINANCE] or offset + frame[MOST] > capacity:
            return -1
        frame[NEXT] += 1
        if offset > threshold or (offset == threshold and position >= frame[MIN_RANK]):
            return position
    return -1


@njit(cache=True)
def _divide(frame, position, items, top, parts, part_top, starts, first, last, reach):
    """Split what is left of a frame without one item; the parts lie above ``top``. The new tops of both stacks."""
    count, left = frame[COUNT], 0
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


@njit(cache=True)
def _grown(array, needed):
    if needed <= array.size:
        return array
    larger = np.empty(max(needed, 2 * array.size), np.int64)
    larger[: array.size] = array
    return larger


@njit(cache=True)
def _solve(sizes, first, last, modulus, residue, pins, near_start, near, capacity, limit, spans, always, keys, seed):
    """One run of the search. Gives (offsets, FOUND | NONE | LIMIT, placements tried).

    ``down`` opens the next part of the frame on top, or closes the frame when all parts are solved; ``up`` takes the
    frame's choice back, since a part of it has failed; otherwise the frame tries its next candidate. Frame 0 holds
    nothing: its parts are the independent pieces of the whole problem.
    """
    n, sections = sizes.size, last.max() + 1
    least, offsets, placed = np.where(pins < 0, residue, pins), np.zeros(n, np.int64), np.zeros(n, np.bool_)
    totals, load, reach = np.zeros(sections, np.int64), np.zeros(sections, np.int64), np.zeros(sections, np.int64)
    width, area, total = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    starts, frames = np.zeros(sections + 2, np.int64), np.zeros((n + 3, FRAME_COLUMNS), np.int64)
    items, order, parts = np.empty(8 * n + 8, np.int64), np.empty(4 * n + 8, np.int64), np.empty(4 * n + 8, np.int64)
    trail_body, trail_value = np.empty(near.size + n + 1, np.int64), np.empty(near.size + n + 1, np.int64)
    for i in range(n):
        items[i] = i
        for s in range(first[i], last[i] + 1):
            totals[s] += sizes[i]
    frames[0, COUNT] = n
    item_top, part_top = _divide(frames[0], -1, items, n, parts, 0, starts, first, last, reach)
    order_top, trail_top, depth, tried, down, up, rerank = 0, 0, 0, 0, True, False, True
    while True:
        frame = frames[depth]
        if down and frame[PART] == frame[PART_COUNT]:
            if depth == 0:
                return offsets, FOUND, tried
            item_top, order_top, part_top = frame[MARK], frame[SORTED], frame[PARTS]
            depth -= 1
            frames[depth, PART] += 1
        elif down:
            child, part = frames[depth + 1], frame[PARTS] + frame[PART]
            rerank = always or depth == 0 or frame[PART_COUNT] > 1
            child[ITEMS], child[COUNT], child[SORTED] = parts[part], parts[part + 1] - parts[part], order_top
            child[THRESHOLD], child[MIN_RANK] = frame[CHOSEN], 0 if rerank else frame[MIN_RANK_BELOW]
            order = _grown(order, order_top + child[COUNT])
            if rerank:
                mine = items[child[ITEMS] : child[ITEMS] + child[COUNT]]
                _rank(mine, child[COUNT], sizes, first, last, totals, spans, keys, seed, width, area, total)
            _open(child, items, order, least, sizes, first, last, totals)
            mine, by_offset = items[child[ITEMS] : child[ITEMS] + child[COUNT]], order[order_top:]
            down = _fits(
                by_offset, child[COUNT], mine, least, sizes, first, last, pins, child[THRESHOLD], capacity, load
            )
            if down:
                order_top += child[COUNT]
                depth += 1
            up, down = not down, False
        elif up:
            if depth == 0:
                return offsets, NONE, tried
            _undo(frame[TRAIL], trail_top, least, placed, totals, sizes, first, last, trail_body, trail_value)
            trail_top, item_top, part_top, up = frame[TRAIL], frame[MARK], frame[PARTS], False
        else:
            position = _next_candidate(frame, items, order, least, capacity)
            if position < 0:
                order_top, depth, up = frame[SORTED], depth - 1, True
                continue
            tried += 1
            if tried > limit:
                return offsets, LIMIT, tried
            i = items[frame[ITEMS] + position]
            frame[TRAIL], frame[CHOSEN], frame[MIN_RANK_BELOW] = trail_top, least[i], position
            frame[MARK], frame[PARTS] = item_top, part_top
            trail_top, down = _place(i, least, offsets, placed, totals, sizes, first, last, modulus, residue, pins,
                                     near_start, near, capacity, trail_body, trail_value, trail_top)  # fmt: skip
            up = not down
            if down:
                items = _grown(items, item_top + 2 * frame[COUNT])
                item_top, part_top = _divide(
                    frame, position, items, item_top, parts, part_top, starts, first, last, reach
                )
                for part in range(frame[PARTS] + 1, frame[PARTS] + frame[PART_COUNT]):
                    count = parts[part + 1] - parts[part]
                    order = _grown(order, order_top + count)
                    mine, by_offset = items[parts[part] : parts[part + 1]], order[order_top:]
                    _sort_by_offset(by_offset, count, mine, least)
                    if not _fits(
                        by_offset, count, mine, least, sizes, first, last, pins, frame[CHOSEN], capacity, load
                    ):
                        down, up = False, True
                        break
