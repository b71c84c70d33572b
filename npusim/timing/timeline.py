"""What each pipe of the slowest core does and when: the intervals behind a task's cycles, for traces and pictures."""

from __future__ import annotations

from dataclasses import dataclass

from metadef.cost import engine
from metadef.cost.run import run_kernel
from metadef.cost.streams import WARM, MemoryState, kernel_streams
from metadef.cost.winograd import instruction_count
from metadef.kernel import Kernel, WinogradTile
from metadef.program import Task
from metadef.target import Target

LINE_BYTES = 512


@dataclass(frozen=True)
class Interval:
    """Busy time of a pipe in cycles from the task's start (launch included); ``label`` says what moves or computes."""

    pipe: str
    start: int
    end: int
    label: str
    bytes: int = 0


@dataclass(frozen=True)
class Timeline:
    """Intervals in program order; ``left_out`` says how many instructions of the core are not among them."""

    intervals: tuple[Interval, ...]
    left_out: int
    cycles: int


def task_timeline(
    task: Task, target: Target, *, memory: MemoryState | None = None, limit: int = 2000, protocol: str = "graph"
) -> Timeline:
    """The first ``limit`` intervals of a device task; without ``memory`` its operands are in L2 at their addresses.

    Raises:
        ContractError: the kernel carries no tile.
    """
    state = memory or MemoryState(
        WARM.cold,
        0.0,
        tuple(0 if operand is None else operand.address % LINE_BYTES for operand in task.inputs),
        tuple(operand.address % LINE_BYTES for operand in task.outputs),
    )
    whole = run_kernel(task.kernel, target, state, protocol=protocol, keep=limit)
    run, launch = whole.core, whole.launch_cycles
    intervals = []
    for row, (start, end) in zip(run.rows, run.intervals):
        if end > start:
            pipe = engine.PIPES[row[engine.F_PIPE]]
            path = row[engine.F_PATH]
            label = (
                engine.PATHS[path] if path < engine.NO_PATH else {"CUBE": "mmad", "VECTOR": "vector"}.get(pipe, pipe)
            )
            moved = int(row[engine.F_BYTES])
            intervals.append(Interval(pipe, launch + int(start), launch + int(end), label, moved))
    left_out = _instructions(task.kernel, target, state) - len(run.rows)
    return Timeline(tuple(intervals), left_out, launch + run.cycles)


def _instructions(kernel: Kernel, target: Target, state: MemoryState) -> int:
    """Instructions of the fullest core."""
    if isinstance(kernel.tile, WinogradTile):
        return instruction_count(kernel, target, state)
    stream = kernel_streams(kernel, target, state)
    assert stream is not None
    return sum(len(batch) for batch in stream.batches())
