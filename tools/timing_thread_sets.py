"""Kernels of threads (SIMT) in the vendor's samples: what their blocks access, read off names, sizes and times.

The samples print times, not their code. Each function below says what it takes its kernel to do; sizes that no row
states are named constants here, with what they were told from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from metadef.target import Target
from npusim.timing.simt import WARP, Access, Block, block_us, line_wait_cycles

_MAX_THREADS = 2048
_TILE_SIDE = 32
"""Transposes move tiles of 32 x 32, a warp a row."""
_SHORT_VECTOR_ELEMENTS = 1 << 24
"""Halves that the addition of short vectors adds: the power of two at which a warp's access takes what it takes in
simt_aligned_types."""
_ELEMENT_ACCESSES = 17
"""Turns that a warp of the grid samples takes for its 32 elements (2.7 to 3.3 cycles an element)."""


@dataclass(frozen=True)
class _Probe:
    """Turns of a hash table sample, whole numbers told from how time grows with the rows: for a key, and for every line
    of its row."""

    key: int
    line: int


_HASH_KEYS = 1 << 17
_HASH_PROBES = {"0": _Probe(24, 8), "1": _Probe(12, 2)}


def thread_us(row: dict[str, str], target: Target) -> float | None:
    """Microseconds of a thread kernel, or None if nothing says what it does."""
    build = _KERNELS.get(row["kernel"])
    return None if build is None else build(row, target)


def _grid(row: dict[str, str], target: Target) -> float:
    """Blocks that do nothing, or take their elements one by one."""
    elements = int(row["elems_per_core"] or 0)
    accesses = (Access(_ELEMENT_ACCESSES * ceil(elements / WARP)),) if elements else ()
    return block_us(target, Block(accesses), int(row["block_dim"]))


def _atomics(row: dict[str, str], target: Target) -> float:
    """Every thread adds once; the addresses are words that lie together. In UB a lane takes a cycle."""
    blocks, threads = (int(part) for part in row["grid"].split("x"))
    if row["mem"] == "UB":
        return block_us(target, Block((Access(threads / WARP, WARP, in_ub=True),)), blocks)
    lines = ceil(int(row["n_addr"]) * 4 / target.value("alignment.line_bytes"))
    return block_us(target, Block(serial_cycles=line_wait_cycles(target, blocks * threads, lines)), blocks)


def _aligned_copy(row: dict[str, str], target: Target) -> float:
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


def _transpose(row: dict[str, str], target: Target) -> float:
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


def _hybrid_transpose(row: dict[str, str], target: Target) -> float:
    """Tiles come and go by DMA and are turned in UB by threads: case 1 a block for each, else a block a core; from case
    3 on rows are padded."""
    height, width = (int(part) for part in row["shape"].split("x"))
    case = int(row["case"])
    blocks = ceil(height / _TILE_SIDE) * ceil(width / _TILE_SIDE) if case == 1 else target.vector_cores
    warps = height * width / WARP / blocks
    accesses = (Access(warps, in_ub=True), Access(warps, WARP if case < 3 else 1, in_ub=True))
    size = height * width * 4 / blocks
    return block_us(target, Block(accesses, size, size), blocks)


def _divisions(row: dict[str, str], target: Target) -> float:
    """A thread an element, in full blocks."""
    blocks = ceil(int(row["shape"]) / _MAX_THREADS)
    return block_us(target, Block((Access(2 * _MAX_THREADS / WARP),)), blocks)


def _short_vectors(row: dict[str, str], target: Target) -> float:
    """Halves are added one a lane (the first row), then two a lane; everything lies in L2."""
    lane = 2 ** (int(row["case"]) - 1)
    blocks = target.vector_cores
    return block_us(target, Block((Access(3 * _SHORT_VECTOR_ELEMENTS / lane / WARP / blocks),)), blocks)


def _hash_table(row: dict[str, str], target: Target) -> float:
    """A warp looks up a key and moves its row of ``dim`` floats, line by line; everything lies in L2."""
    probe = _HASH_PROBES[row["case"]]
    lines = ceil(int(row["dim"]) * 4 / target.value("alignment.line_bytes"))
    blocks = int(row["block_dim"])
    return block_us(target, Block((Access(_HASH_KEYS / blocks * (probe.key + probe.line * lines)),)), blocks)


_KERNELS: dict[str, Callable[[dict[str, str], Target], float]] = {
    "simt_grid_dim": _grid, "simt_atomic_add": _atomics, "simt_aligned_types": _aligned_copy,
    "simt_transpose": _transpose, "simd_simt_transpose": _hybrid_transpose, "simt_int_div": _divisions,
    "simt_hash_table": _hash_table, "simt_short_vector_add": _short_vectors,
}  # fmt: skip


def numbered(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Rows with ``case`` counted up where a kernel's rows have none."""
    seen: dict[str, int] = {}
    found = []
    for row in rows:
        if not row["case"]:
            seen[row["kernel"]] = seen.get(row["kernel"], 0) + 1
            row = {**row, "case": str(seen[row["kernel"]])}
        found.append(row)
    return found
