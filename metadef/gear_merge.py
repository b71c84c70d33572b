"""Programs of several gears over common regions: weights with equal bytes kept once, one arena as large as the largest.

After merging every program has the same regions (weights, arena, inputs and outputs), so that one device memory serves
all of them.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from metadef.error import ContractError
from metadef.format import SLOT_BYTES, round_up
from metadef.program import Binding, Operand, Program, Region, Span, Task


def merge_programs(gears: Sequence[tuple[str, Program, np.ndarray]]) -> tuple[dict[str, Program], np.ndarray]:
    """Programs over common regions, and the weights of all (uint8): equal pieces are kept once."""
    pool = _WeightPool()
    maps = [pool.take(program, weights) for _, program, weights in gears]
    weights = pool.blob()
    arena = max(program.arena_bytes for _, program, _ in gears)
    io = max(program.io_bytes for _, program, _ in gears)
    streamed = max(program.streamed_bytes for _, program, _ in gears)
    merged = {
        key: _moved(program, places, weights.nbytes, arena, io, streamed)
        for (key, program, _), places in zip(gears, maps)
    }
    return merged, weights


class _WeightPool:
    """Pieces of weights by content. A piece is what lies between two starts of weights, so that views stay inside."""

    def __init__(self) -> None:
        self.places: dict[bytes, int] = {}
        self.pieces: list[tuple[int, np.ndarray]] = []
        self.size = 0

    def take(self, program: Program, weights: np.ndarray) -> list[tuple[int, int]]:
        """Old starts and their new addresses, ascending."""
        found = []
        starts, ends = _pieces(program)
        for start, end in zip(starts, ends):
            piece = weights[start:end]
            residue = start % SLOT_BYTES
            digest = hashlib.sha256(piece.data).digest() + residue.to_bytes(2)
            if digest not in self.places:
                self.places[digest] = self.size + residue
                self.pieces.append((self.size + residue, piece))
                self.size = round_up(self.size + residue + piece.nbytes, SLOT_BYTES)
            found.append((start, self.places[digest]))
        return found

    def blob(self) -> np.ndarray:
        merged = np.zeros(self.size, np.uint8)
        for place, piece in self.pieces:
            merged[place : place + piece.nbytes] = piece
        return merged


def _pieces(program: Program) -> tuple[list[int], list[int]]:
    """Start and end of every connected range of weights that tasks read."""
    ranges = sorted(
        {
            (item.address, item.address + item.payload_bytes)
            for task in program.tasks
            for item in task.inputs
            if item is not None and item.region is Region.WEIGHTS
        }
    )
    starts: list[int] = []
    ends: list[int] = []
    for start, end in ranges:
        if starts and start < ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends


def _moved(
    program: Program, places: Sequence[tuple[int, int]], weights: int, arena: int, io: int, streamed: int
) -> Program:
    """The program with its addresses in regions of the given sizes (bytes)."""
    starts = [start for start, _ in places]

    def address(region: Region, old: int) -> int:
        if region is Region.WEIGHTS:
            at = bisect_right(starts, old) - 1
            if at < 0:
                raise ContractError("a weight lies before all pieces", got=str(old))
            return places[at][1] + old - starts[at]
        if region is Region.ARENA:
            return weights + old - program.arena_base
        return weights + arena + old - program.io_base

    def operand(item: Operand) -> Operand:
        return replace(item, address=address(item.region, item.address))

    def task(item: Task) -> Task:
        return replace(
            item,
            inputs=tuple(None if each is None else operand(each) for each in item.inputs),
            outputs=tuple(map(operand, item.outputs)),
            workspaces=tuple(Span(address(Region.ARENA, span.address), span.bytes) for span in item.workspaces),
        )

    return replace(
        program,
        tasks=[task(item) for item in program.tasks],
        inputs=[Binding(item.name, operand(item.operand)) for item in program.inputs],
        outputs=[Binding(item.name, operand(item.operand)) for item in program.outputs],
        weights_bytes=weights,
        arena_bytes=arena,
        io_bytes=io,
        streamed_bytes=streamed,
    )
