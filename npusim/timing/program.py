"""Timing of a program: every executed task in order, with L2's contents carried from task to task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metadef.program import Program, Region, Task
from metadef.target import Target
from npusim.profile import Profile, TaskProfile
from npusim.timing.l2 import L2, Access
from npusim.timing.tasks import device_profile, host_profile, load_profile, memory_state, simulate


def time_program(
    program: Program,
    target: Target,
    trace: Sequence[int] | None = None,
    *,
    protocol: str = "graph",
    steady: bool = True,
) -> Profile:
    """Cycles, bytes and causes of every executed task.

    ``trace`` lists the ids of the tasks that ran, in order (default: all). ``protocol`` chooses the start cost of cores
    (graph: a sunk graph that repeats; trace: host-driven steps; benchmark; loop). ``steady`` times a repeated run: L2
    starts with what the run before left, except for the graph's inputs, which the host has just written to memory; else
    L2 starts empty.

    Raises:
        ContractError: a task carries no tile. TargetError: the chip lacks what a kernel uses.
    """
    by_id = {task.id: task for task in program.tasks}
    tasks = list(program.tasks) if trace is None else [by_id[task_id] for task_id in trace]
    accesses = l2_accesses(program, tasks, target, steady=steady)
    clocks: dict[int, int] = {}
    recorded: dict[int, int] = {}
    rows: list[TaskProfile] = []
    for task, access in zip(tasks, accesses):
        start = max([clocks.get(task.stream, 0), *(recorded.get(event, 0) for event in task.waits)])
        if task.on_device:
            run = simulate(task.kernel, target, memory_state(task, access), protocol)
            row = device_profile(task, target, run, access, start)
        elif task.is_load:
            row = load_profile(task, target, start)
        else:
            row = host_profile(task, target, start)
        rows.append(row)
        clocks[task.stream] = end = start + row.cycles
        recorded.update(dict.fromkeys(task.records, end))
    return Profile(program.name, target.soc, target.clock_mhz, tuple(rows))


def l2_accesses(program: Program, tasks: Iterable[Task], target: Target, *, steady: bool = True) -> list[Access]:
    """Hits and write-backs of every task."""
    tasks = list(tasks)
    cache = L2(int(target.value("memory.l2_bytes")))
    managed = "memory.l2_last_read" in target.constants and target.value("memory.l2_last_read")
    last = last_reads(tasks) if managed else [()] * len(tasks)
    accesses: list[Access] = []
    for _ in range(1 + steady):
        for binding in program.inputs:
            cache.drop(binding.operand.address, binding.operand.payload_bytes)
        accesses = [_touch(cache, task, ended) for task, ended in zip(tasks, last)]
    return accesses


def last_reads(tasks: Sequence[Task]) -> list[tuple[bool, ...]]:
    """For each task, which of its operands (absent ones left out) no later task reads before they are overwritten.

    Weights are read again by the next run.
    """
    live: dict[tuple[int, int], None] = {}
    found: list[tuple[bool, ...]] = []
    for task in reversed(tasks):
        reads = [item for item in task.inputs if item is not None]
        spans = [(item.address, item.address + item.payload_bytes) for item in reads]
        found.append(
            tuple(
                item.region is not Region.WEIGHTS and not any(low < stop and start < high for low, high in live)
                for item, (start, stop) in zip(reads, spans)
            )
        )
        for item in task.outputs:
            start, stop = item.address, item.address + item.payload_bytes
            for low, high in [span for span in live if start <= span[0] and span[1] <= stop]:
                del live[low, high]
        live.update(dict.fromkeys(span for item, span in zip(reads, spans) if item.region is not Region.WEIGHTS))
    return found[::-1]


def _touch(cache: L2, task: Task, last: Sequence[bool]) -> Access:
    if task.is_load:  # the transfer goes to memory, past the cores' L2
        for item in task.outputs:
            cache.drop(item.address, item.payload_bytes)
        return cache.touch([], [])
    reads = [(item.address, item.payload_bytes) for item in task.inputs if item is not None]
    writes = [(item.address, item.payload_bytes) for item in task.outputs]
    writes += [(span.address, span.bytes) for span in task.workspaces]
    return cache.touch(reads, writes, last)
