"""Vector microbenchmarks on the simulated chip: an addition with a given tile, and what bank conflicts cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metadef.cost import engine
from metadef.cost.registers import function
from metadef.cost.run import run_stream, task_us
from metadef.cost.streams import CoreStream, transfer
from metadef.cost.vector_view import Work
from metadef.target import Target
from npusim.timing.micro import CopyRun


def add_tiles(
    target: Target,
    elements: int,
    tile_bytes: int,
    *,
    cores: int,
    double_buffer: bool,
    cold: float = 1.0,
    write_back: float = 1.0,
    bank_conflict: bool = True,
    protocol: str = "benchmark",
) -> CopyRun:
    """z = x + y in fp16 with tiles of ``tile_bytes`` per operand; ``total_bytes`` counts reads and writes."""
    tiles = -(-elements * 2 // (tile_bytes * cores))
    loads = [transfer(target, "GM->UB", cold=cold, to_memory=cold, unit_bytes=tile_bytes) for _ in range(2)]
    store = transfer(target, "UB->GM", to_memory=write_back, unit_bytes=tile_bytes)
    work = _addition(target, tile_bytes, bank_conflict)
    slots = 1 + double_buffer
    call = target.value("vector.dependent_call_cycles")
    stream = CoreStream(4 * slots, None, np.stack([*loads, store]), 2, work, tiles, 1, slots, call)
    core = run_stream(stream, target, cores)
    return CopyRun(core, elements * 6, task_us(core, target, cores, protocol))


def _addition(target: Target, tile_bytes: int, bank_conflict: bool) -> np.ndarray:
    """Rows of ``engine.WORK`` for an addition of tiles of so many bytes."""
    item = Work("add", 2, bytes=tile_bytes)
    first, slope = target.vector_instruction(item.mnemonic, item.width)
    conflict = target.value("vector.bank_conflict_cycles") if bank_conflict else 0
    if target.has_registers:
        item, conflict = function([item], target, loads=2, stores=1), 0
    each = item.cycles_per_repeat or slope
    row = (engine.VECTOR, first, each, tile_bytes, False, item.calls, 0, conflict, 0, item.start_cycles)
    return np.asarray([row], np.float64)


@dataclass(frozen=True)
class Places:
    """Where the operands of a two-source vector instruction lie in UB (bytes), and the first one's strides (blocks)."""

    first: int
    second: int
    result: int
    block_stride: int = 1
    repeat_stride: int = 8


def repeat_cycles(target: Target, places: Places, repeats: int) -> float:
    """Cycles of an instruction of ``repeats`` repeats with its bank conflicts.

    A group of banks serves one row a cycle: where the sources meet in one the repeat takes a cycle more. A result that
    lies in the banks of a source waits as well, unless it lies in exactly the same ones and so follows by a repeat.
    """
    lost = target.value("vector.bank_conflict_cycles")
    late = target.value("vector.bank_write_cycles")
    total = 0.0
    for repeat in range(repeats):
        start = places.first + repeat * places.repeat_stride * 32
        first = {_bank_group(start + block * places.block_stride * 32) for block in range(8)}
        second = {_bank_group(places.second + (repeat * 8 + block) * 32) for block in range(8)}
        result = {_bank_group(places.result + (repeat * 8 + block) * 32) for block in range(8)}
        meets = {group for _, group in first} & {group for _, group in second}
        total += 1 + (lost if meets else 0)
        if not meets and any(result & source and result != source for source in (first, second)):
            total += late
    return total


def _bank_group(address: int) -> tuple[int, int]:
    """(bank, group) of a byte of UB: address bits 17..16 and 8..5."""
    return address >> 16 & 3, address >> 5 & 15
