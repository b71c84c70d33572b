"""Tiles of cube kernels: every split over the cores with every L0 tile that fits, ranked by the cost estimator.

The search has two rounds: all splits, tile shapes and residents with a middling K block; then the best of them with
several K blocks. Sizes inside the search are counted in fractals (16 rows, 16 columns, one K step of the cube).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metadef.cost.cube_view import RESIDENTS, CubeView, piece_of
from metadef.cost.estimate import CubeCandidates, cube_tile_cycles
from metadef.error import TargetError
from metadef.format import FRACTAL_ROWS, ceil_div
from metadef.kernel import CubeTile, Kernel
from metadef.select.buffers import OnChip
from metadef.target import Target

_CAPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Upper bounds of tile edges that are tried; the edge itself shares a core's piece evenly."""
_K_SHARES = (1.0, 0.5, 0.25, 0.125)
_KEPT = 24
_L0C_BYTES = 4
_Array = Any


FIXPIPE_OPS = frozenset({"Relu", "LeakyRelu", "PRelu"})
"""Epilogues that the fixpipe applies on the way out; any other needs the vector core, by way of a workspace."""

_RESIDENT_TEXT = {"a": "all of A", "b": "all of B", "a_panel": "a panel of A", "b_panel": "a panel of B"}


@dataclass(frozen=True)
class CubeChoice:
    """The tile taken, how many candidates fitted, and what the estimator says of it (cycles of the task)."""

    tile: CubeTile
    candidates: int
    cycles: int

    @property
    def block_dim(self) -> int:
        tile = self.tile
        return tile.split_batch * tile.split_m * tile.split_n * tile.split_k


def choose_cube_kernel(kernel: Kernel, target: Target) -> tuple[Kernel, int]:
    """The kernel with tile, cores and reason, and the bytes of workspace it needs.

    Raises:
        TargetError: the cube cannot multiply the element type, or no tile fits.
    """
    choice = choose_cube_tile(CubeView.of(kernel, target), target)
    stays = _RESIDENT_TEXT.get(choice.tile.resident)
    reason = (
        f"{choice.block_dim} of {target.cube_cores} cores; fewest cycles ({choice.cycles} estimated) "
        f"of {choice.candidates} tiles that fit" + (f"; {stays} stays in L1" if stays else "")
    )
    chosen = replace(kernel, tile=choice.tile, block_dim=choice.block_dim, reason=reason)
    return chosen, _epilogue_workspace(kernel, choice, target)


def _epilogue_workspace(kernel: Kernel, choice: CubeChoice, target: Target) -> int:
    """On split cores, what the fixpipe cannot apply passes to the vector cores: two fp32 tiles a core, in the arena."""
    if target.coupled or all(item.op_type in FIXPIPE_OPS and item.operand is None for item in kernel.fused):
        return 0
    return 2 * choice.block_dim * choice.tile.m0 * choice.tile.n0 * _L0C_BYTES


def choose_cube_tile(view: CubeView, target: Target) -> CubeChoice:
    """The tile with the fewest estimated cycles; of equals the one on fewer cores.

    Raises:
        TargetError: no tile fits the chip's buffers.
    """
    for double_l1 in (True, False):
        table = _candidates(view, target, double_l1)
        count = len(table["m0"])
        if count:
            break
    else:
        raise TargetError(
            f"no tile of a product {view.m} x {view.n} x {view.k} fits {target.soc}",
            expected=f"one row of tiles within L1 ({target.buffer_bytes['L1']} bytes)",
            hint="split the operator along its channels or columns",
        )
    best = np.argsort(_rank(view, target, table), kind="stable")[:_KEPT]
    finalists = _with_k_blocks(view, target, {name: column[best] for name, column in table.items()})
    cycles = _rank(view, target, finalists)
    winner = int(np.argmin(cycles))
    tile = _tile(view, {name: column[winner] for name, column in finalists.items()})
    on_chip = place_cube_buffers(view, tile, target)
    return CubeChoice(replace(tile, buffers=tuple(on_chip.buffers)), count, int(cycles[winner]))


def place_cube_buffers(view: CubeView, tile: CubeTile, target: Target) -> OnChip:
    """Operands in L1 (whole, as a panel, or in K blocks), fractals in L0, sums in L0C, bias and epilogue aside."""
    chip = OnChip(target)
    size = view.element_bytes
    copies, l0_copies = 1 + tile.double_l1, 1 + tile.double_l0
    piece = piece_of(view, tile)
    panel = tile.resident in ("a", "b") and view.panel_fits(target, tile)
    a_block = _slab_bytes(view, tile.m0, _blocks_of(view, tile.k1))
    a_panel = _slab_bytes(view, tile.m0, _blocks_of(view, piece.k))
    a_all = _slab_bytes(view, piece.m, _blocks_of(view, piece.k))
    a_bytes, a_copies = {"a": (a_all, 1), "a_panel": (a_panel, 1)}.get(tile.resident, (a_block, copies))
    b_bytes, b_copies = {"b": (piece.k * piece.n * size, 1), "b_panel": (piece.k * tile.n0 * size, 1)}.get(
        tile.resident, (tile.k1 * tile.n0 * size, copies)
    )
    if panel and tile.resident == "b":
        a_bytes, a_copies = a_panel, 1
    elif panel:
        b_bytes, b_copies = piece.k * tile.n0 * size, 1
    chip.take("a", "L1", int(a_bytes), a_copies)
    chip.take("b", "L1", int(b_bytes), b_copies)
    chip.take("a", "L0A", tile.m0 * tile.k0 * size, l0_copies)
    chip.take("b", "L0B", tile.k0 * tile.n0 * size, l0_copies)
    chip.take("sum", "L0C", tile.m0 * tile.n0 * _L0C_BYTES, 1 + tile.double_l0c)
    _place_epilogue(view, tile, target, chip)
    return chip


def _place_epilogue(view: CubeView, tile: CubeTile, target: Target, chip: OnChip) -> None:
    """The bias in its table (fixpipe); on coupled cores results, residual operands and bias in UB, piece by piece."""
    table = target.buffer_bytes.get("BT", 0)
    if view.has_bias and table:
        chip.take("bias", "BT", min(tile.n0 * _L0C_BYTES, table))
    if target.has_fixpipe:
        return
    operands = (_L0C_BYTES, *view.extra_bytes)
    room = target.buffer_bytes["UB"] // 2 // (2 * sum(operands))
    elements = min(tile.m0 * tile.n0, room // 256 * 256)
    for name, element_bytes in zip(("result", *(f"operand{slot}" for slot in range(len(operands)))), operands):
        chip.stream(name, elements * element_bytes, 2)
    if view.has_bias:
        chip.take("bias", "UB", tile.n0 * _L0C_BYTES)


def _candidates(view: CubeView, target: Target, double_l1: bool) -> dict[str, np.ndarray]:
    """All (split, tile, resident, L0C copies) that fit, one column per field."""
    splits = _splits(view, target.cube_cores)
    rows, columns = ceil_div(view.m, FRACTAL_ROWS), ceil_div(view.n, FRACTAL_ROWS)
    share_m, share_n = -(-rows // splits[:, 1]), -(-columns // splits[:, 2])
    caps = np.array(_CAPS)
    m0 = -(-share_m[:, None] // -(-share_m[:, None] // caps))
    n0 = -(-share_n[:, None] // -(-share_n[:, None] // caps))
    m0, n0 = np.broadcast_arrays(m0[:, :, None], n0[:, None, :])
    which = np.broadcast_to(np.arange(len(splits))[:, None, None], m0.shape)
    edges = np.unique(np.stack([which.ravel(), m0.ravel(), n0.ravel()], 1), axis=0)
    sums = target.buffer_bytes["L0C"] // (256 * _L0C_BYTES)
    fractal = FRACTAL_ROWS * view.fractal_k * view.element_bytes
    edge = min(target.buffer_bytes["L0A"], target.buffer_bytes["L0B"]) // 2 // fractal
    edges = edges[(edges[:, 1] * edges[:, 2] <= sums) & (edges[:, 1:].max(1) <= edge)]
    if view.has_bias and (table := target.buffer_bytes.get("BT", 0)):
        edges = edges[edges[:, 2] * FRACTAL_ROWS * _L0C_BYTES <= table]
    count, options = len(edges), 2 * len(RESIDENTS)
    edges = np.repeat(edges, options, 0)
    table_of = {
        "split_batch": splits[edges[:, 0], 0],
        "split_m": splits[edges[:, 0], 1],
        "split_n": splits[edges[:, 0], 2],
        "m0": edges[:, 1],
        "n0": edges[:, 2],
        "resident": np.tile(np.repeat(np.arange(len(RESIDENTS)), 2), count),
        "double_l0c": np.tile(np.array([True, False]), count * len(RESIDENTS)),
        "double_l1": np.full(count * options, double_l1),
        "edge": np.full(count * options, edge),
    }
    keep = ~table_of["double_l0c"] | (2 * table_of["m0"] * table_of["n0"] <= sums)
    table_of = {name: column[keep] for name, column in table_of.items()}
    return _with_k1(view, target, table_of, np.full(len(table_of["m0"]), _K_SHARES[1]))


def _splits(view: CubeView, cores: int) -> np.ndarray:
    """(batch, M, N) pieces with no more than ``cores`` of them, none of which would leave a core idle."""
    rows, columns = ceil_div(view.m, FRACTAL_ROWS), ceil_div(view.n, FRACTAL_ROWS)
    batches, row_splits, column_splits = (_even_splits(count, cores) for count in (view.batch, rows, columns))
    found = [
        (b, m, n) for b in batches for m in row_splits if b * m <= cores for n in column_splits if b * m * n <= cores
    ]
    return np.array(found, np.int64)


def _even_splits(count: int, cores: int) -> list[int]:
    """Numbers of pieces up to ``cores`` that differ in the largest piece."""
    return sorted({ceil_div(count, ceil_div(count, split)) for split in range(1, min(count, cores) + 1)})


def _with_k_blocks(view: CubeView, target: Target, table: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same candidates with every share of L1 for the K blocks."""
    count = len(table["m0"])
    repeated = {name: np.tile(column, len(_K_SHARES)) for name, column in table.items()}
    return _with_k1(view, target, repeated, np.repeat(np.array(_K_SHARES), count))


def _with_k1(view: CubeView, target: Target, table: dict[str, np.ndarray], share: np.ndarray) -> dict[str, np.ndarray]:
    """Add K blocks that take ``share`` of what L1 has left, and the L0 step that divides them; drop what is too big."""
    depth, unit = ceil_div(view.k, view.fractal_k), _k_unit(view)
    need_a, need_b, fixed = _l1_needs(view, target, table)
    copies = 1 + table["double_l1"]
    left = (target.buffer_bytes["L1"] - fixed) * share / copies
    per_unit = (need_a + need_b) * unit
    units = np.floor(left / np.maximum(per_unit, 1)).astype(np.int64)
    k1 = np.clip(np.where(per_unit > 0, units * unit, depth), unit, depth)
    fits = fixed + (need_a + need_b) * np.ceil(k1 / unit) * unit * copies <= target.buffer_bytes["L1"]
    k0 = np.minimum(table["edge"] // np.maximum(table["m0"], table["n0"]), k1)
    k0 = -(-k1 // -(-k1 // k0))
    full = {**table, "k1": k1, "k0": k0}
    return {name: column[fits] for name, column in full.items()}


def _l1_needs(view: CubeView, target: Target, table: dict[str, np.ndarray]) -> tuple[_Array, _Array, _Array]:
    """L1 bytes per K fractal of the streamed part of A and of B, and bytes of what is held whole."""
    depth = ceil_div(view.k, view.fractal_k)
    size = view.element_bytes
    rows, columns = ceil_div(view.m, FRACTAL_ROWS), ceil_div(view.n, FRACTAL_ROWS)
    share_m, share_n = -(-rows // table["split_m"]), -(-columns // table["split_n"])
    blocks = view.a_channels // view.fractal_k
    panel_a = _slab_bytes(view, table["m0"] * FRACTAL_ROWS, blocks)
    all_a = _slab_bytes(view, share_m * FRACTAL_ROWS, blocks)
    per_column = view.fractal_k * FRACTAL_ROWS * size
    panel_b, all_b = table["n0"] * depth * per_column, share_n * depth * per_column
    held = [table["resident"] == index for index in range(len(RESIDENTS))]
    limit = target.buffer_bytes["L1"]
    read_a = view.a_bytes(np.zeros_like(share_m), np.minimum(table["m0"] * FRACTAL_ROWS, view.m))
    read_all_a = view.a_bytes(np.zeros_like(share_m), np.minimum(share_m * FRACTAL_ROWS, view.m))
    beside_b = held[2] & (all_b + read_a <= limit)
    beside_a = held[1] & (read_all_a + panel_b <= limit)
    holds_a = np.where(held[1], all_a, np.where(held[3] | beside_b, panel_a, 0))
    holds_b = np.where(held[2], all_b, np.where(held[4] | beside_a, panel_b, 0))
    stream_a = np.where(holds_a > 0, 0, panel_a / depth)
    stream_b = np.where(holds_b > 0, 0, table["n0"] * per_column)
    return stream_a, stream_b, holds_a + holds_b


def _k_unit(view: CubeView) -> int:
    """K fractals that belong together in L1: all taps of one channel block, whose image rows are loaded once."""
    return ceil_div(view.k, view.a_channels) if view.window is not None else 1


def _blocks_of(view: CubeView, k: int) -> int:
    """Channel blocks (of ``fractal_k``) that ``k`` elements of K touch."""
    if view.window is None:
        return ceil_div(k, view.fractal_k)
    return ceil_div(ceil_div(k, view.fractal_k), _k_unit(view))


def _slab_bytes(view: CubeView, rows: _Array, blocks: _Array) -> _Array:
    """Largest L1 piece of A for ``rows`` of M and ``blocks`` channel blocks, wherever the rows begin in the image.

    A tile that is shorter than an output row may straddle two of them; it is then fetched in two pieces.
    """
    pixels = rows
    if view.window is not None:
        w = view.window
        lines = (np.maximum(rows, 1) + w.ow - 2) // w.ow + 1
        whole = np.minimum((lines - 1) * w.stride_h + w.extent_h, w.h) * w.w
        part = 2 * w.extent_h * np.minimum((rows - 1) * w.stride_w + w.extent_w, w.w)
        pixels = np.where(rows < w.ow, np.minimum(part, whole), whole)
    return pixels * blocks * view.fractal_k * view.element_bytes


def _rank(view: CubeView, target: Target, table: dict[str, np.ndarray]) -> np.ndarray:
    """Estimated cycles; a hair is added per core, so that equals go to fewer cores."""
    tiles = CubeCandidates(
        m0=table["m0"] * FRACTAL_ROWS,
        n0=table["n0"] * FRACTAL_ROWS,
        k0=table["k0"] * view.fractal_k,
        k1=table["k1"] * view.fractal_k,
        split_batch=table["split_batch"],
        split_m=table["split_m"],
        split_n=table["split_n"],
        resident=table["resident"],
        double_l1=table["double_l1"],
        double_l0c=table["double_l0c"],
    )
    return cube_tile_cycles(target, view, tiles) + 1e-3 * tiles.pieces


def _tile(view: CubeView, row: dict[str, Any]) -> CubeTile:
    return CubeTile(
        m0=int(row["m0"]) * FRACTAL_ROWS,
        n0=int(row["n0"]) * FRACTAL_ROWS,
        k0=int(row["k0"]) * view.fractal_k,
        k1=int(row["k1"]) * view.fractal_k,
        split_batch=int(row["split_batch"]),
        split_m=int(row["split_m"]),
        split_n=int(row["split_n"]),
        resident=RESIDENTS[int(row["resident"])],
        double_l1=bool(row["double_l1"]),
        double_l0c=bool(row["double_l0c"]),
    )
