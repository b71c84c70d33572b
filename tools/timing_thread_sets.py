"""Kernels of threads (SIMT) in the vendor's samples: what their blocks access, read off names and sizes.

The samples print times, not their code. Each function below says what it takes its kernel to do. What a row does not
state (how many elements or keys there are) is told by the other rows of its page: a row's own time is never read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import ceil, log
from statistics import median

from metadef.target import Target
from npusim.timing.simt import WARP, Access, Block, block_us, line_wait_cycles

Row = dict[str, str]

_MAX_THREADS = 2048
_TILE_SIDE = 32
"""Transposes move tiles of 32 x 32, a warp a row."""
_LOOK_UP_LINES = range(1, 33)
"""A key of the hash table sample is found in the time in which so many lines of its row are moved."""


def thread_us(row: Row, target: Target, others: Sequence[Row] = ()) -> float | None:
    """Microseconds of a thread kernel; ``others`` are the other rows of its page. None if nothing says what it does."""
    if row["kernel"] in _KERNELS:
        return _KERNELS[row["kernel"]](row, target)
    told = _TOLD.get(row["kernel"])
    return None if told is None else told(row, target, others)


def is_told(row: Row) -> bool:
    """Whether a thread kernel's row leaves to the other rows of its page how much work it is."""
    return row["kernel"] in _TOLD and (row["kernel"] != "simt_grid_dim" or bool(row["elems_per_core"]))


# -- rows that state their work ----------------------------------------------------------------------------------------


def _atomics(row: Row, target: Target) -> float:
    """Every thread adds once; the addresses are words that lie together. In UB a lane takes a cycle."""
    blocks, threads = (int(part) for part in row["grid"].split("x"))
    if row["mem"] == "UB":
        return block_us(target, Block((Access(threads / WARP, WARP, in_ub=True),)), blocks)
    lines = ceil(int(row["n_addr"]) * 4 / target.value("alignment.line_bytes"))
    return block_us(target, Block(serial_cycles=line_wait_cycles(target, blocks * threads, lines)), blocks)


def _aligned_copy(row: Row, target: Target) -> float:
    """One core copies structures, a lane each, in words of up to 8 bytes. A structure off its word touches one word
    more on both sides, and the words at its ends are read before they are written."""
    size = int(re.findall(r"\d+$", row["case"])[0]) if "U16" not in row["case"] else 4
    total = 512 << 20
    words = ceil(size / 8)
    lines = max(size * WARP / target.value("alignment.line_bytes"), 1.0)
    count = 2 * words
    if row["case"].startswith("Misalign"):
        count = 4 if "U16" in row["case"] else 2 * (words + 1) + 2
    return block_us(target, Block((Access(total / size / WARP * count, lines),)), 1)


def _transpose(row: Row, target: Target) -> float:
    """Case 1 copies, case 2 writes columns, the others turn a tile in UB: 3 and 4 with a block for each tile, from 5 on
    with a block a core; from 7 on rows in UB are padded, so that columns meet no bank twice."""
    height, width = (int(part) for part in row["shape"].split("x"))
    case = int(row["case"])
    tiles = ceil(height / _TILE_SIDE) * ceil(width / _TILE_SIDE)
    blocks = tiles if case in (3, 4) else target.vector_cores
    warps = height * width / WARP / blocks
    inner = (Access(warps, in_ub=True), Access(warps, WARP if case in (5, 6) else 1, in_ub=True))
    accesses = {1: (Access(2 * warps),), 2: (Access(warps), Access(warps, WARP))}.get(case, (Access(2 * warps), *inner))
    size = height * width * 4 / blocks
    return block_us(target, Block(accesses, size, size), blocks)


def _hybrid_transpose(row: Row, target: Target) -> float:
    """Tiles come and go by DMA and are turned in UB by threads: case 1 a block for each, else a block a core; from case
    3 on rows are padded."""
    height, width = (int(part) for part in row["shape"].split("x"))
    case = int(row["case"])
    blocks = ceil(height / _TILE_SIDE) * ceil(width / _TILE_SIDE) if case == 1 else target.vector_cores
    warps = height * width / WARP / blocks
    accesses = (Access(warps, in_ub=True), Access(warps, WARP if case < 3 else 1, in_ub=True))
    size = height * width * 4 / blocks
    return block_us(target, Block(accesses, size, size), blocks)


def _divisions(row: Row, target: Target) -> float:
    """A thread an element, in full blocks."""
    blocks = ceil(int(row["shape"]) / _MAX_THREADS)
    return block_us(target, Block((Access(2 * _MAX_THREADS / WARP),)), blocks)


# -- rows whose work the others tell -----------------------------------------------------------------------------------


def _blocks(row: Row, target: Target) -> int:
    """Blocks of a row: as stated, one for the sample of branches, else one for each core."""
    return int(row["block_dim"] or (1 if row["kernel"] == "simt_warp_divergence" else target.vector_cores))


def _accesses_us(row: Row, target: Target, count: float) -> float:
    return block_us(target, Block((Access(count),)), _blocks(row, target))


def _accesses_of(row: Row, target: Target) -> float:
    """Accesses of a block that a row's time stands for."""
    none, one = (_accesses_us(row, target, count) for count in (0, 1))
    return max(float(row["duration_us"]) - none, 0.0) / (one - none)


def _shared_us(row: Row, target: Target, others: Sequence[Row], share: Callable[[Row], float]) -> float | None:
    """A block's accesses are in proportion to ``share``; the other rows tell, by their median, what they come to."""
    units = [_accesses_of(other, target) / share(other) for other in others]
    return _accesses_us(row, target, median(units) * share(row)) if units else None


def _grid(row: Row, target: Target, others: Sequence[Row]) -> float | None:
    """Blocks that do nothing, or take their elements one by one."""
    if not row["elems_per_core"]:
        return block_us(target, Block(), int(row["block_dim"]))
    peers = [other for other in others if other["elems_per_core"]]
    return _shared_us(row, target, peers, lambda item: ceil(int(item["elems_per_core"]) / WARP))


def _short_vectors(row: Row, target: Target, others: Sequence[Row]) -> float | None:
    """Halves are added one a lane (the first row), then two a lane; everything lies in L2."""
    return _shared_us(row, target, others, lambda item: 0.5 ** int(item["case"]))


def _branches(row: Row, target: Target, others: Sequence[Row]) -> float | None:
    """Lanes of a warp part (the first row), which then takes both branches one after the other; then they agree."""
    return _shared_us(row, target, others, lambda item: 2.0 if item["case"] == "1" else 1.0)


def _hash_table(row: Row, target: Target, others: Sequence[Row]) -> float | None:
    """A warp looks up a key and moves its row of ``dim`` floats, line by line; everything lies in L2. The cases differ
    in how fast they do both."""

    def lines(item: Row) -> int:
        return ceil(int(item["dim"]) * 4 / target.value("alignment.line_bytes"))

    def spread(look_up: int) -> float:
        total = 0.0
        for case in {other["case"] for other in others}:
            units = [
                log(max(_accesses_of(other, target), 1.0) / (look_up + lines(other)))
                for other in others
                if other["case"] == case
            ]
            total += sum(abs(unit - median(units)) for unit in units)
        return total

    look_up = min(_LOOK_UP_LINES, key=spread)
    peers = [other for other in others if other["case"] == row["case"]]
    return _shared_us(row, target, peers, lambda item: look_up + lines(item))


_KERNELS: dict[str, Callable[[Row, Target], float]] = {
    "simt_atomic_add": _atomics, "simt_aligned_types": _aligned_copy, "simt_transpose": _transpose,
    "simd_simt_transpose": _hybrid_transpose, "simt_int_div": _divisions,
}  # fmt: skip
_TOLD: dict[str, Callable[[Row, Target, Sequence[Row]], float | None]] = {
    "simt_grid_dim": _grid, "simt_short_vector_add": _short_vectors, "simt_warp_divergence": _branches,
    "simt_hash_table": _hash_table,
}  # fmt: skip


def numbered(rows: list[Row]) -> list[Row]:
    """Rows with ``case`` counted up where a kernel's rows have none."""
    seen: dict[str, int] = {}
    found = []
    for row in rows:
        if not row["case"]:
            seen[row["kernel"]] = seen.get(row["kernel"], 0) + 1
            row = {**row, "case": str(seen[row["kernel"]])}
        found.append(row)
    return found
