"""Kernels of threads on chips that have them: blocks of warps of 32 lanes, one block a vector core at a time.

A kernel is what one block does: instructions that access memory, warp by warp, and the bytes that come from beyond L2.
An access takes its warp's turn, or a turn of each line that the lanes touch. Many warps hide latency, so accesses and
bytes overlap, in rounds; the first access of a block, and what lanes wait for one after another, are not hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from metadef.cost import engine
from metadef.cost.estimate import launch_cycles
from metadef.cost.run import run_stream
from metadef.cost.streams import CoreStream, transfer
from metadef.format import ceil_div
from metadef.target import Target

WARP = 32
"""Lanes of a warp."""
_ROUNDS, _ROUND_BYTES = 8, 4096
"""Parts of a block's accesses and bytes that overlap, at most, and the least bytes of one."""


@dataclass(frozen=True)
class Access:
    """``count`` warp-wide accesses to global memory (or to UB if ``in_ub``), each of whose lanes touch ``lines`` lines
    (banks that serve one lane at a time in UB)."""

    count: float
    lines: float = 1.0
    in_ub: bool = False


@dataclass(frozen=True)
class Block:
    """What a block of threads does. ``read_bytes`` and ``written_bytes`` pass memory; ``serial_cycles`` is spent
    waiting for one lane after another."""

    accesses: tuple[Access, ...] = ()
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    serial_cycles: float = 0.0


def access_cycles(target: Target, accesses: Sequence[Access]) -> float:
    """Cycles that a core's warps take turns for.

    Raises:
        TargetError: the chip has no threads.
    """
    turn, line = target.value("simt.request_cycles"), target.value("simt.line_cycles")
    return sum(item.count * max(turn, item.lines * (1.0 if item.in_ub else line)) for item in accesses)


def line_wait_cycles(target: Target, atomics: float, lines: float) -> float:
    """Cycles of atomic operations that meet in so many lines of memory: those on one line follow each other."""
    return float(target.value("simt.atomic_cycles")) * ceil(atomics / lines)


def block_us(target: Target, block: Block, blocks: int, *, protocol: str = "loop") -> float:
    """Microseconds of a kernel of equal blocks, launch included. Further blocks of a core start one after another, and
    their first accesses while they start."""
    cores = min(blocks, target.vector_cores)
    waves = ceil_div(blocks, cores)
    far = any(not item.in_ub for item in block.accesses) or block.serial_cycles > 0
    first = target.value("simt.first_access_cycles") if far else 0
    cycles = first + _block_cycles(target, block, cores) * waves + target.value("simt.wave_cycles") * (waves - 1)
    return (int(launch_cycles(target, cores, protocol)) + cycles) / target.clock_mhz


def _block_cycles(target: Target, block: Block, cores: int) -> float:
    """Cycles of one block while ``cores`` cores share memory."""
    turns = access_cycles(target, block.accesses)
    rounds = min(max(int(max(block.read_bytes, block.written_bytes)) // _ROUND_BYTES, 1), _ROUNDS)
    work = np.asarray([(engine.VECTOR, 0, turns / rounds, 1, True, 0, 0, 0, 0, 0)], np.float64)
    moves = [
        transfer(target, path, cold=1.0, to_memory=1.0, unit_bytes=size / rounds, unit_rows=1)
        for path, size in (("GM->UB", block.read_bytes), ("UB->GM", block.written_bytes))
        if size
    ]
    if not moves:
        return turns + block.serial_cycles
    loads = int(block.read_bytes > 0)
    stream = CoreStream(8, None, np.stack(moves), loads, work, rounds, 1, 2, 0)
    return run_stream(stream, target, cores).cycles + block.serial_cycles
