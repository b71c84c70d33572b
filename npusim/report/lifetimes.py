"""Who lies where and when in the arena, derived from the task list alone (so it works for a loaded ``.om`` too)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metadef.program import Operand, Program, Region


@dataclass(frozen=True)
class Life:
    """A tensor or workspace: ``offset`` in the arena, bytes it occupies, first and last task (inclusive)."""

    name: str
    offset: int
    bytes: int
    first: int
    last: int
    workspace: bool = False


@dataclass(frozen=True)
class ArenaStory:
    """Lives in the arena and what follows from them: live bytes at every task, the peak task and who is alive there."""

    lives: tuple[Life, ...]
    live_bytes: tuple[int, ...]
    peak_task: int

    @property
    def peak_bytes(self) -> int:
        """Largest number of bytes alive at once (payload, without slot padding)."""
        return max(self.live_bytes, default=0)

    def alive_at(self, task: int) -> list[Life]:
        """Largest first."""
        alive = [life for life in self.lives if life.first <= task <= life.last]
        return sorted(alive, key=lambda life: -life.bytes)


def arena_story(program: Program) -> ArenaStory:
    """Lives of all arena tensors. Bytes that two lives share at a task (in-place pairs, views) count once."""
    spans: dict[int, tuple[Operand, int, int]] = {}
    lives: list[Life] = []
    for task in program.tasks:
        for operand in (*task.inputs, *task.outputs):
            if operand is None or operand.region is not Region.ARENA:
                continue
            _, first, _ = spans.get(operand.tensor, (operand, task.id, task.id))
            spans[operand.tensor] = (operand, first, task.id)
        for index, span in enumerate(task.workspaces):
            offset = span.address - program.arena_base
            lives.append(Life(f"{task.name} workspace {index}", offset, span.bytes, task.id, task.id, workspace=True))
    for operand, first, last in spans.values():
        lives.append(Life(operand.name, operand.address - program.arena_base, operand.payload_bytes, first, last))
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
