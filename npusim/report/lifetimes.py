"""Who lies where and when in the arena, derived from the task list alone (so it works for a loaded ``.om`` too).

Sizes are the plan's slots by GE's rule, so that the peak is the plan's peak.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metadef.format import SLOT_BYTES, round_up, slot_bytes
from metadef.program import Operand, Program, Region


@dataclass(frozen=True)
class Life:
    """A tensor or workspace: ``offset`` in the arena, ``bytes`` of its slot, first and last task (inclusive)."""

    name: str
    offset: int
    bytes: int
    first: int
    last: int
    workspace: bool = False


@dataclass(frozen=True)
class ArenaStory:
    """Lives in the arena and what follows from them: live bytes at every task, and the peak task."""

    lives: tuple[Life, ...]
    live_bytes: tuple[int, ...]
    peak_task: int

    @property
    def peak_bytes(self) -> int:
        """Largest number of bytes alive at once, in slots."""
        return max(self.live_bytes, default=0)


def arena_story(program: Program) -> ArenaStory:
    """Lives of all arena tensors. Bytes that two lives share at a task (in-place pairs, views) count once."""
    operands: dict[int, list[Operand]] = {}
    steps: dict[int, list[int]] = {}
    lives: list[Life] = []
    for task in program.tasks:
        for operand in (*task.inputs, *task.outputs):
            if operand is None or operand.region is not Region.ARENA:
                continue
            operands.setdefault(operand.tensor, []).append(operand)
            steps.setdefault(operand.tensor, []).append(task.id)
        for index, span in enumerate(task.workspaces):
            offset = span.address - program.arena_base
            size = round_up(span.bytes, SLOT_BYTES)
            lives.append(Life(f"{task.name} workspace {index}", offset, size, task.id, task.id, workspace=True))
    for owner, family in operands.items():
        # Views and members of a group carry their owner's id; the owner's own operand, if any, is the largest.
        start = min(item.address for item in family)
        end = max(item.address + item.payload_bytes for item in family)
        name = max(family, key=lambda item: item.payload_bytes).name
        size = slot_bytes(end - start) if end > start else 0
        lives.append(Life(name, start - program.arena_base, size, steps[owner][0], steps[owner][-1]))
    lives.sort(key=lambda life: (life.first, life.offset))
    live = tuple(_union_bytes([life for life in lives if life.first <= task.id <= life.last]) for task in program.tasks)
    peak = int(np.argmax(live)) if live else 0
    return ArenaStory(tuple(lives), live, peak)


def _union_bytes(lives: list[Life]) -> int:
    total = end = 0
    for life in sorted(lives, key=lambda item: item.offset):
        start = max(life.offset, end)
        stop = life.offset + life.bytes
        if stop > start:
            total += stop - start
            end = stop
    return total
