"""Paths through a program with jumps: which tasks run one after another, for checks and for figures without a run.

A switch whose region ends in a jump back is a loop (1 stays in it, 0 leaves); any other chooses one of its sides. A
path takes the side that ``chosen`` names, else the first one it meets, and goes around every loop twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement

from metadef.program import Task

Choice = dict[int, int]
"""Side by the id of the switch task."""

PATHS_LIMIT = 64
TURNS = 2


def task_path(tasks: Sequence[Task], chosen: Mapping[int, int], turns: int = TURNS) -> Iterator[int]:
    """Ids of the tasks that run, in order."""
    loops = _loops(tasks)
    taken = dict.fromkeys(loops, 0)
    at = 0
    while at < len(tasks):
        yield at
        jumps = tasks[at].successors
        if len(jumps) < 2:
            at = jumps[0] if jumps else at + 1
            continue
        side = chosen.get(at, 1)
        if at in loops:
            side = min(side, taken[at] < turns)
            taken[at] = taken[at] + 1 if side else 0
        at = jumps[side]


def path_choices(tasks: Sequence[Task]) -> list[Choice]:
    """Choices whose paths together bring every two tasks that can run together into one path (up to a limit)."""
    loops, chains = _loops(tasks), [Choice()]
    inside: list[tuple[int, int, int]] = []
    for task in tasks:
        if len(task.successors) < 2:
            continue
        outer = {switch: side for first, end, packed in inside if first <= task.id < end
                 for switch, side in (divmod(packed, 2),)}  # fmt: skip
        other, first = task.successors
        chains += [{**outer, task.id: side} for side in (0, 1)]
        inside.append((first, other, 2 * task.id + 1))
        if task.id not in loops:
            inside.append((other, tasks[other - 1].successors[0], 2 * task.id))
    found: list[Choice] = []
    for one, two in combinations_with_replacement(chains, 2):
        agree = all(two.get(switch, side) == side for switch, side in one.items())
        if agree and {**one, **two} not in found:
            found.append({**one, **two})
        if len(found) >= PATHS_LIMIT:
            break
    return found


def _loops(tasks: Sequence[Task]) -> set[int]:
    """Switches that lead a loop: the task before their exit jumps back to them, or before them."""
    return {
        task.id
        for task in tasks
        if len(task.successors) > 1
        and len(back := tasks[task.successors[0] - 1].successors) == 1
        and back[0] <= task.id
    }
