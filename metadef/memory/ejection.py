"""Large pools: the search that takes the hill climb's part where a try of that would cost too much.

First fit leaves a few bodies above the live set, all of them alive at busy steps. They are forced in below a target, at
the cost of bodies that live at quieter steps and find room more easily; each success lowers the target. The ideas are
those of partial tabu search for graph colouring (Blöchliger and Zufferey) and of ejection chains.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from metadef.memory import heuristics
from metadef.memory.eject_kernel import HEAVIEST
from metadef.memory.large import LargeConflicts
from metadef.memory.problem import Problem

START_POWERS = (32, 64, 128, 256)
"""Powers of :func:`heuristics.crowding` in the orders to start from."""

WEIGHT_POWERS = (16, 32, 64, 128)
"""Those in the weights of bodies, which the attempts take in turns."""

STARTS_SHARE, ENTRIES_PER_VISIT = 1 / 3, 4
"""What placements to start from may take of the visits, and how many conflicts of theirs count as one visit."""

BODIES_PER_VISIT = 4
"""What an attempt takes besides: one visit for so many bodies."""

VISITS_PER_ATTEMPT = 200_000
"""An attempt succeeds early or hardly ever: after so many visits of conflicts it is given up."""

FIRST_SHARE, LEAST_SHARE, MOST_SHARE = 0.5, 1 / 16, 0.9
"""Part of the way down to the goal that an attempt tries: at first, and its limits after failures and successes."""

NEARLY = 1.01
"""Starts are ranked by how many bodies end above the goal times this."""


def eject_misfits(problem: Problem, goal: int, visits: int) -> list[int] | None:
    """The best placement met on the way down to ``goal`` bytes within about so many visits of conflicts.

    None where pinned bodies are in the way.
    """
    large = problem.large
    assert large is not None
    starts, used = _starts(problem, large, goal, visits)
    if not starts:
        return None
    best = min(starts, key=lambda offsets: _peak(large, offsets))
    if _peak(large, best) > goal:
        starts.sort(key=lambda offsets: int(np.count_nonzero(_tops(large, offsets) > goal * NEARLY)))
        best = _lower(problem, large, [best, *starts], goal, visits - used)
    found: list[int] = best.tolist()
    return found


def _starts(problem: Problem, large: LargeConflicts, goal: int, visits: int) -> tuple[list[np.ndarray], int]:
    """Placements in several orders, until one reaches the goal or their share is used up; and the visits they took."""
    orders = [(partial(heuristics.by_crowding, problem, power), True) for power in START_POWERS]
    orders.insert(1, (partial(heuristics.by_breadth, problem), False))
    starts: list[np.ndarray] = []
    share, used = int(visits * STARTS_SHARE), 0
    for order, best_fit in orders:
        offsets = large.place(order(), best_fit)
        if offsets is None:
            break
        starts.append(np.array(offsets, np.int64))
        used += large.entries // ENTRIES_PER_VISIT
        if used >= share or _peak(large, starts[-1]) <= goal:
            break
    return starts, min(used, share)


def _lower(problem: Problem, large: LargeConflicts, starts: list[np.ndarray], goal: int, visits: int) -> np.ndarray:
    """Attempts from the best placement so far (the first of ``starts``); before any succeeds, from the others too."""
    best, *others = starts
    weights = [_weights(problem, power) for power in WEIGHT_POWERS]
    share, attempt = FIRST_SHARE, 0
    while visits > 0 and (peak := _peak(large, best)) > goal:
        target = max(goal, peak - max(int(share * (peak - goal)), 1))
        start = others[0] if others else best
        limit = min(visits, VISITS_PER_ATTEMPT)
        moved, spent = large.eject(start, weights[attempt % len(weights)], target, limit, attempt)
        visits, attempt = visits - spent - len(problem) // BODIES_PER_VISIT - 1, attempt + 1
        if moved is not None and _peak(large, moved) < peak:
            share = share if others else min(1.5 * share, MOST_SHARE)
            best, others = moved, []
        elif others:
            others = others[1:]
        else:
            share = max(share / 2, LEAST_SHARE)
    return best


def _weights(problem: Problem, power: int) -> np.ndarray:
    """How hard it is to find another place for each body: its bytes times its crowding, up to ``HEAVIEST``."""
    weight = heuristics.crowding(problem, power) * problem.table.columns.extent
    scaled: np.ndarray = np.maximum(weight / max(weight.max(initial=0), 1e-300) * HEAVIEST, 1).astype(np.int64)
    return scaled


def _tops(large: LargeConflicts, offsets: np.ndarray) -> np.ndarray:
    tops: np.ndarray = np.where(large.extents > 0, offsets + large.extents, 0)
    return tops


def _peak(large: LargeConflicts, offsets: np.ndarray) -> int:
    return int(_tops(large, offsets).max(initial=0))
