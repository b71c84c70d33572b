"""What each pipe of the slowest core does and when: the intervals behind a task's cycles, for traces and pictures."""

from __future__ import annotations

from dataclasses import dataclass

from metadef.cost import engine
from metadef.cost.estimate import launch_cycles
from metadef.cost.run import run_stream
from metadef.cost.streams import WARM, MemoryState, kernel_streams
from metadef.kernel import CubeTile
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
    stream = kernel_streams(task.kernel, target, state)
    assert stream is not None
    cores = min(task.kernel.block_dim, target.cores(isinstance(task.kernel.tile, CubeTile)))
    count = sum(len(batch) for batch in stream.batches())
    run = run_stream(stream, target, cores, keep=min(limit, count))
    launch = int(launch_cycles(target, cores, protocol))
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
    return Timeline(tuple(intervals), count - len(run.rows), launch + run.cycles)
