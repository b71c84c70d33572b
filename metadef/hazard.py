"""Hazards of a program: what would corrupt data on the device, found without running it.

Every byte of the arena remembers which tensor wrote it last; a task that finds another tensor's bytes where its operand
should lie is a fault of the plan. Buffers of tiles must lie on the chip's granules, inside its memories, apart from one
another. Waits must follow their records.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import combinations

from metadef.error import ContractError, Problem
from metadef.flow import Choice, path_choices, task_path
from metadef.format import SLOT_BYTES
from metadef.kernel import Buffer, CubeTile, VectorTile, phases_of
from metadef.program import Operand, Program, Region, Task
from metadef.target import Target

WORKSPACE_OWNER = -1
"""Writer recorded for bytes of a workspace: nobody may read them later."""


def check_program(program: Program, target: Target) -> None:
    """Check a program.

    Raises:
        ContractError: all hazards found, each with its task and operand.
    """
    problems = find_hazards(program, target)
    if problems:
        raise ContractError(problems)


def find_hazards(program: Program, target: Target) -> list[Problem]:
    """Everything :func:`check_program` would raise."""
    problems = [problem for task in program.tasks for problem in _place_problems(program, task)]
    problems += [problem for _, problem in buffer_hazards(program, target)]
    problems += _flag_problems(program)
    return problems if problems else _dataflow_problems(program)


def buffer_hazards(program: Program, target: Target) -> list[tuple[Task, Problem]]:
    """Tile buffers off their granules, outside their memories or over one another, each with its first task."""
    kernels: dict[int, Task] = {}
    for task in program.tasks:
        kernels.setdefault(id(task.kernel), task)
    tiles = [(task, tile) for task in kernels.values() for tile in phases_of(task.kernel.tile)]
    return [(task, found) for task, tile in tiles for found in _buffer_problems(task, tile, target)]


class ByteOwners:
    """Which tensor wrote every byte last: disjoint, sorted pieces."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[tuple[int, int, int]] = []

    def write(self, start: int, end: int, owner: int) -> None:
        """Let ``owner`` have the bytes from ``start`` to ``end``."""
        if start >= end:
            return
        first, last = self._span(start, end)
        kept = []
        for old_start, old_end, old_owner in self._pieces[first:last]:
            if old_start < start:
                kept.append((old_start, start, old_owner))
            if old_end > end:
                kept.append((end, old_end, old_owner))
        kept.append((start, end, owner))
        kept.sort()
        self._pieces[first:last] = kept
        self._starts[first:last] = [piece[0] for piece in kept]

    def owners(self, start: int, end: int) -> Iterator[tuple[int, int, int | None]]:
        """Pieces (start, end, owner) that cover a range; None where nobody wrote yet."""
        if start >= end:
            return
        position = start
        first, last = self._span(start, end)
        for piece_start, piece_end, owner in self._pieces[first:last]:
            if piece_start > position:
                yield position, piece_start, None
            yield max(piece_start, start), min(piece_end, end), owner
            position = piece_end
        if position < end:
            yield position, end, None

    def _span(self, start: int, end: int) -> tuple[int, int]:
        first = max(bisect_right(self._starts, start) - 1, 0)
        if first < len(self._pieces) and self._pieces[first][1] <= start:
            first += 1
        return first, bisect_left(self._starts, end)


def _place_problems(program: Program, task: Task) -> Iterator[Problem]:
    """Operands and workspaces inside their regions; nothing written to weights or over another operand of the task."""
    for item in (*task.inputs, *task.outputs):
        if item is not None:
            yield from _region_problems(program, task, item)
    arena_end = program.arena_base + program.arena_bytes
    for span in task.workspaces:
        if not program.arena_base <= span.address or span.address + span.bytes > arena_end:
            got = f"{span.address:#x}+{span.bytes}"
            yield Problem("workspace lies outside the arena", node=task.name, expected=f"below {arena_end:#x}", got=got)
    for item in task.outputs:
        if item.region is Region.WEIGHTS:
            yield Problem("a task may not write to the weights", node=task.name, port=item.name)
        for read in task.inputs:
            if read is not None and _overlap(read, item) and _extent(read) != _extent(item):
                message = f"result overlaps operand '{read.name}' without covering it exactly"
                got = "{:#x}+{} and {:#x}+{}".format(*_extent(item), *_extent(read))
                yield Problem(message, node=task.name, port=item.name, got=got)
    for first, second in combinations(task.outputs, 2):
        if _overlap(first, second):
            yield Problem(f"results '{first.name}' and '{second.name}' overlap", node=task.name)
    for span in task.workspaces:
        for operand in (*task.inputs, *task.outputs):
            if operand is not None and _meet(span.address, span.bytes, operand.address, operand.payload_bytes):
                yield Problem(f"workspace overlaps '{operand.name}'", node=task.name)


def _region_problems(program: Program, task: Task, item: Operand) -> Iterator[Problem]:
    start, size = {
        Region.WEIGHTS: (0, program.weights_bytes),
        Region.ARENA: (program.arena_base, program.arena_bytes),
        Region.IO: (program.io_base, program.io_bytes),
    }[item.region]
    if item.address < start or item.address + item.payload_bytes > start + size:
        yield Problem(
            f"operand lies outside region {item.region.value}",
            node=task.name,
            port=item.name,
            expected=f"{start:#x} to {start + size:#x}",
            got=f"{item.address:#x}+{item.payload_bytes}",
        )
    if item.payload_bytes != item.desc.payload_bytes:
        expected, got = f"{item.desc.payload_bytes} bytes", f"{item.payload_bytes}"
        yield Problem("size differs from the descriptor's", node=task.name, port=item.name, expected=expected, got=got)


def _buffer_problems(task: Task, tile: CubeTile | VectorTile, target: Target) -> Iterator[Problem]:
    for buffer in tile.buffers:
        granule, room = target.granule_bytes.get(buffer.memory, 1), target.buffer_bytes.get(buffer.memory, 0)
        if buffer.offset_bytes % granule or (buffer.copies > 1 and buffer.size_bytes % granule):
            got = f"offset {buffer.offset_bytes}, size {buffer.size_bytes}, {buffer.copies} copies"
            where = f"{granule}-byte granules of {buffer.memory}"
            yield Problem("buffer is off its granule", node=task.name, port=buffer.name, expected=where, got=got)
        if _buffer_end(buffer) > room:
            expected, got = f"{room} bytes of {buffer.memory}", f"{_buffer_end(buffer)}"
            yield Problem("buffer does not fit", node=task.name, port=buffer.name, expected=expected, got=got)
    for first, second in combinations(tile.buffers, 2):
        apart = _buffer_end(first) <= second.offset_bytes or _buffer_end(second) <= first.offset_bytes
        if first.memory == second.memory and not apart:
            message = f"buffers '{first.name}' and '{second.name}' of {first.memory} overlap"
            yield Problem(message, node=task.name)


def _buffer_end(buffer: Buffer) -> int:
    return buffer.offset_bytes + buffer.size_bytes * buffer.copies


def _flag_problems(program: Program) -> Iterator[Problem]:
    """An event is recorded once, before anyone waits for it, and on another stream than the waiter's."""
    recorded: dict[int, int] = {}
    for task in program.tasks:
        for event in task.waits:
            if event not in recorded:
                yield Problem(f"waits for event {event} that nothing before it records", node=task.name)
            elif recorded[event] == task.stream:
                yield Problem(f"waits for event {event} of its own stream {task.stream}", node=task.name)
        for event in task.records:
            if event in recorded:
                yield Problem(f"records event {event} a second time", node=task.name)
            recorded[event] = task.stream
    waited = {event for task in program.tasks for event in task.waits}
    for event in sorted(recorded.keys() - waited):
        yield Problem(f"event {event} is recorded, but nothing waits for it")


def _dataflow_problems(program: Program) -> list[Problem]:
    """Reads whose bytes were last written by another tensor, or by nothing, on any path that a run may take."""
    found: dict[str, Problem] = {}
    for chosen in path_choices(program.tasks):
        for problem in _path_problems(program, chosen):
            found.setdefault(str(problem), problem)
    return list(found.values())


def _path_problems(program: Program, chosen: Choice) -> list[Problem]:
    owners = ByteOwners()
    names: dict[int, str] = {WORKSPACE_OWNER: "a workspace"}
    problems: list[Problem] = []
    for binding in program.inputs:
        _own(owners, names, binding.operand)
    for task in (program.tasks[at] for at in task_path(program.tasks, chosen)):
        for item in task.inputs:
            if item is not None and item.region is not Region.WEIGHTS:
                problems += _read_problems(owners, names, task.name, item)
        for span in task.workspaces:
            owners.write(span.address, span.address + span.bytes, WORKSPACE_OWNER)
        for item in task.outputs:
            _own(owners, names, item)
    for binding in program.outputs:
        if binding.operand.region is not Region.WEIGHTS:
            problems += _read_problems(owners, names, f"output {binding.name}", binding.operand)
    return problems


def _own(owners: ByteOwners, names: dict[int, str], item: Operand) -> None:
    owners.write(item.address, item.address + item.payload_bytes, item.tensor)
    names.setdefault(item.tensor, f"'{item.name}'")


def _read_problems(owners: ByteOwners, names: dict[int, str], where: str, item: Operand) -> Iterator[Problem]:
    for start, end, owner in owners.owners(item.address, item.address + item.payload_bytes):
        if owner == item.tensor:
            continue
        writer = "nothing has written" if owner is None else f"{names[owner]} has overwritten"
        message = f"{writer} bytes {start:#x} to {end:#x} of this operand"
        hint = f"look at the plan around lines of {SLOT_BYTES} bytes from {start:#x}"
        yield Problem(message, node=where, port=item.name, hint=hint)


def _extent(item: Operand) -> tuple[int, int]:
    return item.address, item.payload_bytes


def _overlap(first: Operand, second: Operand) -> bool:
    return _meet(first.address, first.payload_bytes, second.address, second.payload_bytes)


def _meet(start: int, size: int, other: int, other_size: int) -> bool:
    return start < other + other_size and other < start + size and size > 0 and other_size > 0
