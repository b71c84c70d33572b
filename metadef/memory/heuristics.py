"""Quick planners: place bodies one after another into gaps. They differ in the order and in which gap they take.

Each takes a :class:`Problem` and gives offsets, or None where pinned bodies block it. Sources of the ideas:
TensorFlow Lite's greedy by size and by breadth, Vela's hill climb, GE's block assigner (here in a simple form, for
comparison).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from metadef.format import SLOT_BYTES
from metadef.memory.columns import FREE
from metadef.memory.joins import stack
from metadef.memory.loops import run
from metadef.memory.problem import Problem

Offsets = list[int]


def greedy_by_size(problem: Problem) -> Offsets | None:
    """Largest first, each into the tightest gap that holds it."""
    return place(problem, by_size(problem), best_fit=True)


def greedy_by_breadth(problem: Problem) -> Offsets | None:
    """Busiest step first, at each step its bodies by size; tightest gap."""
    return place(problem, by_breadth(problem), best_fit=True)


def execution_order(problem: Problem) -> Offsets | None:
    """In order of birth, lowest gap: what an allocator at run time would do."""
    return place(problem, by_birth(problem), best_fit=False)


def greedy_by_area(problem: Problem) -> Offsets | None:
    """Largest bytes x steps first, lowest gap."""
    return place(problem, by_area(problem), best_fit=False)


def first_fit_by_size(problem: Problem) -> Offsets | None:
    """Largest first, lowest gap."""
    return place(problem, by_size(problem), best_fit=False)


def by_size(problem: Problem) -> list[int]:
    """Largest first; equal ones by life, longest first."""
    row = problem.table.columns
    return _sorted_by(-row.extent, row.first - row.last, row.first)


def by_birth(problem: Problem) -> list[int]:
    """In order of birth, largest first."""
    row = problem.table.columns
    return _sorted_by(row.first, -row.extent)


def by_area(problem: Problem) -> list[int]:
    """Largest bytes x steps first."""
    row = problem.table.columns
    return _sorted_by(row.extent.astype(np.float64) * (row.first - row.last - 1))


def by_crowding(problem: Problem, power: int) -> list[int]:
    """Longest lives first, where a step counts the more the busier it is; see :func:`crowding`."""
    order: list[int] = np.argsort(-crowding(problem, power), kind="stable").tolist()
    return order


def crowding(problem: Problem, power: int) -> np.ndarray:
    """How many steps each body lives; a step counts as (its live bytes / those of the busiest step) ** power."""
    row = problem.table.columns
    change = np.zeros(int(row.last.max(initial=0)) + 2, np.int64)
    np.add.at(change, row.first, row.extent)
    np.subtract.at(change, row.last + 1, row.extent)
    live = np.cumsum(change).astype(np.float64)
    counted = np.concatenate([[0.0], np.cumsum((live / max(live.max(), 1.0)) ** power)])
    lives: np.ndarray = counted[row.last + 1] - counted[row.first]
    return lives


def by_breadth(problem: Problem) -> list[int]:
    """Bodies by their busiest step, then by size."""
    row = problem.table.columns
    change = np.zeros(int(row.last.max(initial=0)) + 2, np.int64)
    np.add.at(change, row.first, row.extent)
    np.subtract.at(change, row.last + 1, row.extent)
    busiest = np.argsort(-np.cumsum(change)[:-1], kind="stable")
    rank = np.empty(len(busiest), np.int64)
    rank[busiest] = np.arange(len(busiest))
    return _sorted_by(_least_within(rank, row.first, row.last), -row.extent)


def _sorted_by(*keys: np.ndarray) -> list[int]:
    """Positions by the keys, the first one most significant; equal ones stay in order."""
    order: list[int] = np.lexsort(keys[::-1]).tolist()
    return order


def _least_within(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The least value in each range of positions (inclusive), by a table of the minima of all stretches of 2^k."""
    longest = int((high - low).max(initial=0)) + 1
    table = [values]
    while 2 << len(table) - 1 <= longest:
        half = 1 << len(table) - 1
        table.append(np.minimum(table[-1][:-half], table[-1][half:]))
    level = np.frexp((high - low + 1).astype(np.float64))[1] - 1
    least = np.zeros(len(low), np.int64)
    for k, minima in enumerate(table):
        mine = level == k
        least[mine] = np.minimum(minima[low[mine]], minima[high[mine] + 1 - (1 << k)])
    return least


def place(problem: Problem, order: Sequence[int], *, best_fit: bool, limit: int | None = None) -> Offsets | None:
    """Put bodies, in the given order, into the lowest or tightest gap; pinned bodies go first.

    None if a pinned body collides with another one, or if the peak would pass ``limit``.
    """
    if problem.large and limit is None:
        return problem.large.place(order, best_fit)
    offsets: list[int] = [-1] * len(problem)
    for i, body in enumerate(problem.bodies):
        if body.pinned is not None:
            offsets[i] = body.pinned
    bodies, near, extents = problem.bodies, problem.near, problem.extents
    for i in order:
        if offsets[i] >= 0:
            continue
        body = bodies[i]
        blocked = [(offsets[j] + low, offsets[j] + high) for j, low, high in near[i] if offsets[j] >= 0]
        blocked.sort()
        cursor = body.residue if body.modulus > 1 else 0
        chosen, slack = -1, -1
        for low, high in blocked:
            if cursor <= low and (slack < 0 or low - cursor < slack):
                chosen, slack = cursor, low - cursor
                if not best_fit:
                    break
            if high > cursor:
                cursor = high + (body.residue - high) % body.modulus
        offsets[i] = chosen if chosen >= 0 else cursor
        if limit is not None and offsets[i] + extents[i] > limit:
            return None
    if any(body.pinned is not None for body in bodies) and problem.overlaps(offsets):
        return None
    return offsets


def pack_in_order(problem: Problem) -> Offsets:
    """No reuse: one body after another as given; pinned bodies keep their place and the others go above them."""
    row = problem.table.columns
    cursor = int(np.max(row.pin + row.extent, where=row.pin != FREE, initial=0))
    offsets = np.where(row.pin == FREE, row.residue % row.modulus, row.pin)
    run(stack, len(problem), row.extent, row.modulus, row.residue, row.pin, cursor, offsets)
    placed: Offsets = offsets.tolist()
    return placed


def hill_climb(problem: Problem, start: Sequence[int], target: int, tries: int) -> Offsets | None:
    """Swap, in a first-fit order, bodies that hold up the topmost one; equal results are kept, worse ones undone.

    Stops at ``target`` bytes or after so many tries. The random walk has a fixed seed: one problem, one answer.
    """
    order = list(start)
    best = place(problem, order, best_fit=False)
    if best is None or not order:
        return best
    peak, current, state = problem.peak(best), best, 88172645463325252
    for _ in range(tries):
        if peak <= target:
            break
        top = max(range(len(problem)), key=lambda i: (current[i] + problem.extents[i], i))
        rank = {body: position for position, body in enumerate(order)}
        ahead = [j for j in dict.fromkeys(j for j, _, _ in problem.near[top]) if rank[j] < rank[top]]
        second = [k for j in ahead for k, _, _ in problem.near[j] if rank[k] < rank[top]]
        choices = ahead + second
        if not choices:
            break
        state = (state ^ state << 13) & (1 << 64) - 1
        state ^= state >> 7
        state = (state ^ state << 17) & (1 << 64) - 1
        a, b = rank[choices[state % len(choices)]], rank[top]
        order[a], order[b] = order[b], order[a]
        trial = place(problem, order, best_fit=False, limit=peak)
        if trial is None:
            order[a], order[b] = order[b], order[a]
            continue
        current = trial
        if problem.peak(trial) < peak:
            best, peak = trial, problem.peak(trial)
    return best


def block_pool(problem: Problem) -> Offsets | None:
    """A simple GE-like block assigner: size classes that double from 512 bytes, the last released block first.

    A block is as large as its largest user. None where bodies are pinned, sit on another grid, or are not ordered by
    steps.
    """
    bodies = problem.bodies
    if not problem.order.linear or any(b.pinned is not None or b.residue or SLOT_BYTES % b.modulus for b in bodies):
        return None
    block_of = [0] * len(problem)
    heights: list[int] = []
    free: dict[int, list[int]] = {}
    dying: list[tuple[int, int, int]] = []
    for i in by_birth(problem):
        dying.sort(reverse=True)
        while dying and dying[-1][0] < problem.first[i]:
            _, size_class, block = dying.pop()
            free.setdefault(size_class, []).append(block)
        size_class = max((problem.extents[i] - 1) // SLOT_BYTES, 0).bit_length()
        stock = free.get(size_class)
        if stock:
            block = stock.pop()
        else:
            block = len(heights)
            heights.append(0)
        heights[block] = max(heights[block], problem.extents[i])
        block_of[i] = block
        dying.append((problem.last[i], size_class, block))
    starts, cursor = [], 0
    for height in heights:
        starts.append(cursor)
        cursor += -(-height // SLOT_BYTES) * SLOT_BYTES
    return [starts[block] for block in block_of]


PLANNERS: dict[str, Callable[[Problem], list[int] | None]] = {
    "greedy-by-size": greedy_by_size,
    "greedy-by-breadth": greedy_by_breadth,
    "execution-order": execution_order,
    "greedy-by-area": greedy_by_area,
    "first-fit-by-size": first_fit_by_size,
    "block-pool": block_pool,
}
QUICK = ("greedy-by-size", "execution-order", "greedy-by-breadth", "greedy-by-area", "first-fit-by-size")
