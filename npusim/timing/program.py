"""Timing of a program: every executed task in order, with L2's contents carried from task to task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from metadef.ops.geometry import PictureGeometry
from metadef.program import Program, Region, Task
from metadef.target import Target
from npusim.profile import Profile, TaskProfile
from npusim.timing.l2 import L2, Access
from npusim.timing.slices import Chain, sliced_chains
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
    clocks: dict[int, int] = {}
    recorded: dict[int, int] = {}
    rows: list[TaskProfile] = []
    for task, access in executed_tasks(program, target, trace, steady=steady):
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


def executed_tasks(
    program: Program, target: Target, trace: Sequence[int] | None = None, *, steady: bool = True
) -> list[tuple[Task, Access]]:
    """Every executed task, in order, and what it finds in L2. Arguments as for :func:`time_program`."""
    by_id = {task.id: task for task in program.tasks}
    tasks = [_as_read(by_id[task_id]) for task_id in (by_id if trace is None else trace)]
    return list(zip(tasks, l2_accesses(program, tasks, target, steady=steady)))


def _as_read(task: Task) -> Task:
    """The task with as many bytes of its pictures as lie under AIPP's cut: the others never leave memory."""
    images = task.inputs[0] if "input_format" in task.kernel.attrs else None
    if images is None:
        return task
    g = PictureGeometry.of(task.kernel)
    return replace(task, inputs=(replace(images, payload_bytes=g.n * g.cut_bytes), *task.inputs[1:]))


def l2_accesses(program: Program, tasks: Iterable[Task], target: Target, *, steady: bool = True) -> list[Access]:
    """Hits and write-backs of every task."""
    tasks = list(tasks)
    cache = L2(int(target.value("memory.l2_bytes")))
    last = last_reads(tasks)
    sliced = "memory.l2_batch_slices" in target.constants and target.value("memory.l2_batch_slices")
    batches = {shape[0] for shape in (binding.operand.desc.shape for binding in program.inputs) if shape}
    cut = sliced_chains(tasks, cache.capacity, batches) if sliced else []
    accesses: list[Access] = []
    for _ in range(1 + steady):
        for binding in program.inputs:
            cache.drop(binding.operand.address, binding.operand.payload_bytes)
        accesses = []
        for chain in _rounds(len(tasks), cut):
            held, flags = tasks[chain.first : chain.stop], last[chain.first : chain.stop]
            ended = _used_up(held, flags, chain.slices)
            rounds = [
                [_touch(cache, task, over, chain, index) for task, over in zip(held, ended)]
                for index in range(chain.slices)
            ]
            accesses += [_joined(task, chain, parts) for task, parts in zip(held, zip(*rounds))]
    return accesses


def _rounds(count: int, cut: Sequence[Chain]) -> list[Chain]:
    """Every stretch of a trace of ``count`` tasks, in order: the chains that are cut, and each task between them."""
    found: list[Chain] = []
    for chain in (*cut, Chain(count, count)):
        done = found[-1].stop if found else 0
        found += [Chain(index, index + 1) for index in range(done, chain.first)]
        found.append(chain)
    return found[:-1]


def _used_up(chain: Sequence[Task], last: Sequence[tuple[bool, ...]], slices: int) -> list[tuple[bool, ...]]:
    """Which operands of a chain make room when they are read: what it made itself, for the next slice takes its place.

    Nothing makes room in a stretch that is not sliced.
    """
    made = {item.address for task in chain for item in task.outputs} if slices > 1 else set()
    return [
        tuple(over and item.address in made for over, item in zip(flags, filter(None, task.inputs)))
        for task, flags in zip(chain, last)
    ]


def _joined(task: Task, chain: Chain, parts: Sequence[Access]) -> Access:
    """What the slices of a task found and drove out together; an operand that all of them read whole misses once."""
    if len(parts) == 1:
        return parts[0]
    reads = [item for item in task.inputs if item is not None]
    missed = [
        sum(chain.part_of(item, index)[1] - part.hits[port] for index, part in enumerate(parts))
        for port, item in enumerate(reads)
    ]
    hits = tuple(max(item.payload_bytes - lost, 0) for item, lost in zip(reads, missed))
    return Access(hits, sum(part.written_back for part in parts), len(parts))


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


def _touch(cache: L2, task: Task, last: Sequence[bool], chain: Chain, index: int) -> Access:
    """One slice of a task; operands that are whole in every slice are hit in full by all but the first."""
    if task.is_load:  # the transfer goes to memory, past the cores' L2
        for item in task.outputs:
            cache.drop(item.address, item.payload_bytes)
        return cache.touch([], [])
    reads = [chain.part_of(item, index) for item in task.inputs if item is not None]
    writes = [chain.part_of(item, index) for item in task.outputs]
    writes += [(span.address, span.bytes) for span in task.workspaces]
    return cache.touch(reads, writes, last)
