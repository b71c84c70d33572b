"""Control flow of a run: which task follows which, read from device memory, and the trace of what ran."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from metadef.program import Task
from npusim.device import Device

TRACE_ROWS = 1 << 14


def next_task(task: Task, device: Device) -> int:
    """Id of the task after ``task``: a switch reads index or truth value from device memory."""
    targets = task.successors
    if not targets:
        return task.id + 1
    if len(targets) == 1:
        return targets[0]
    operand = task.inputs[0]
    assert operand is not None, "a switch reads its index"
    return targets[min(max(int(device.read_tensor(operand).reshape(-1)[0]), 0), len(targets) - 1)]


def stepwise(device: Device) -> Iterator[Task]:
    """The device's tasks in the order of a run; the caller executes each before it asks for the next."""
    tasks, at = device.program.tasks, 0
    while at < len(tasks):
        yield tasks[at]
        at = next_task(tasks[at], device)


class Tracer:
    """Turns traces of rows into ids of executed tasks. ``buffer`` is the executor's trace array."""

    def __init__(self, first_row: tuple[int, ...]) -> None:
        self.buffer = np.zeros(TRACE_ROWS + 1, np.int64)
        self._first = np.asarray(first_row, np.int64)
        self._parts: list[np.ndarray] = []

    def take(self) -> None:
        """Add what the buffer holds. A task has run again whenever its first row has."""
        rows = self.buffer[1 : 1 + self.buffer[0]]
        tasks = np.searchsorted(self._first, rows, "right") - 1
        self._parts.append(tasks[self._first[tasks] == rows])

    @property
    def tasks(self) -> tuple[int, ...]:
        """Ids of all tasks seen so far, in order."""
        return tuple(np.concatenate(self._parts).tolist()) if self._parts else ()
