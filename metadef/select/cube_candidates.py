"""Candidate tiles of a cube kernel as columns of arrays: every split over the cores with every L0 tile that fits.

Sizes are counted in fractals (16 rows, 16 columns, one K step of the cube) until a row becomes a :class:`CubeTile`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metadef.cost.cube_view import RESIDENTS, CubeView
from metadef.cost.estimate import CubeCandidates, cube_tile_cycles
from metadef.error import TargetError
from metadef.format import FRACTAL_ROWS, ceil_div
from metadef.kernel import CubeTile
from metadef.target import Target

Table = dict[str, np.ndarray]
"""Columns ``split_*``, ``m0``, ``n0``, ``k0``, ``k1``, ``resident``, ``double_*``; ``edge`` is the longest L0 edge."""

L0C_BYTES = 4
_CAPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Upper bounds of tile edges that are tried; the edge itself shares a core's piece evenly."""
_K_SHARES = (1.0, 0.5, 0.25, 0.125)
_STEP_CYCLES = 2
_Array = Any


def all_candidates(view: CubeView, target: Target, pieces: int | None = None) -> Table:
    """What fits, with a middling K block; L1 is single buffered only where nothing fits otherwise.

    ``pieces`` imposes how many pieces the work is cut into (waves where there are more than cores); by default any
    number up to the cores is a candidate.

    Raises:
        TargetError: no tile fits the chip's buffers.
    """
    for double_l1 in (True, False):
        table = _candidates(view, target, double_l1, pieces)
        if len(table["m0"]):
            return table
    raise TargetError(
        f"no tile of a product {view.m} x {view.n} x {view.k} fits {target.soc}",
        expected=f"one row of tiles within L1 ({target.buffer_bytes['L1']} bytes)",
        hint="split the operator along its channels or columns",
    )


def _candidates(view: CubeView, target: Target, double_l1: bool, pieces: int | None) -> Table:
    """All (split, tile, resident, L0C copies) that fit, one column per field."""
    splits = _splits(view, target.cube_cores) if pieces is None else _imposed_splits(view, pieces)
    rows, columns = ceil_div(view.m, FRACTAL_ROWS), ceil_div(view.n, FRACTAL_ROWS)
    share_m, share_n = _ceil(rows, splits[:, 1:2]), _ceil(columns, splits[:, 2:3])
    caps = np.array(_CAPS)
    m0, n0 = _ceil(share_m, _ceil(share_m, caps)), _ceil(share_n, _ceil(share_n, caps))
    m0, n0 = np.broadcast_arrays(m0[:, :, None], n0[:, None, :])
    which = np.broadcast_to(np.arange(len(splits))[:, None, None], m0.shape)
    edges = np.unique(np.stack([which.ravel(), m0.ravel(), n0.ravel()], 1), axis=0)
    sums = target.buffer_bytes["L0C"] // (256 * L0C_BYTES)
    fractal = FRACTAL_ROWS * view.fractal_k * view.element_bytes
    edge = min(target.buffer_bytes["L0A"], target.buffer_bytes["L0B"]) // 2 // fractal
    edges = edges[(edges[:, 1] * edges[:, 2] <= sums) & (edges[:, 1:].max(1) <= edge)]
    if view.has_bias and (table := target.buffer_bytes.get("BT", 0)):
        edges = edges[edges[:, 2] * FRACTAL_ROWS * L0C_BYTES <= table]
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


def _imposed_splits(view: CubeView, pieces: int) -> np.ndarray:
    """(batch, M, N) pieces whose number is ``pieces``, or as near below it as the sizes allow."""
    limits = (view.batch, ceil_div(view.m, FRACTAL_ROWS), ceil_div(view.n, FRACTAL_ROWS))
    for count in range(max(pieces, 1), 0, -1):
        divisors = [part for part in range(1, count + 1) if count % part == 0]
        found = [
            (b, m, count // (b * m))
            for b in divisors
            for m in divisors
            if count % (b * m) == 0 and b <= limits[0] and m <= limits[1] and count // (b * m) <= limits[2]
        ]
        if found:
            return np.array(found, np.int64)
    return np.ones((1, 3), np.int64)


def _even_splits(count: int, cores: int) -> list[int]:
    """Numbers of pieces up to ``cores`` that differ in the largest piece."""
    return sorted({ceil_div(count, ceil_div(count, split)) for split in range(1, min(count, cores) + 1)})


def with_k_blocks(view: CubeView, target: Target, table: Table) -> Table:
    """The same candidates with every share of L1 for the K blocks."""
    count = len(table["m0"])
    repeated = {name: np.tile(column, len(_K_SHARES)) for name, column in table.items()}
    return _with_k1(view, target, repeated, np.repeat(np.array(_K_SHARES), count))


def _with_k1(view: CubeView, target: Target, table: Table, share: np.ndarray) -> Table:
    """Add K blocks that take ``share`` of what L1 has left, and the L0 step that divides them; drop what is too big."""
    depth, unit = ceil_div(view.k, view.fractal_k), _k_unit(view)
    need_a, need_b, fixed = _l1_needs(view, target, table)
    copies = 1 + table["double_l1"]
    left = (target.buffer_bytes["L1"] - fixed) * share / copies
    per_unit = (need_a + need_b) * unit
    units = np.floor(left / np.maximum(per_unit, 1)).astype(np.int64)
    k1 = np.clip(np.where(per_unit > 0, units * unit, depth), unit, depth)
    k1 = _ceil(depth, _ceil(depth, k1))
    k1 = np.minimum(_ceil(k1, unit) * unit, depth)
    fits = fixed + (need_a + need_b) * np.ceil(k1 / unit) * unit * copies <= target.buffer_bytes["L1"]
    k0 = np.minimum(table["edge"] // np.maximum(table["m0"], table["n0"]), k1)
    k0 = _ceil(k1, _ceil(k1, k0))
    full = {**table, "k1": k1, "k0": k0}
    return {name: column[fits] for name, column in full.items()}


def _l1_needs(view: CubeView, target: Target, table: Table) -> tuple[_Array, _Array, _Array]:
    """L1 bytes per K fractal of the streamed part of A and of B, and bytes of what is held whole."""
    depth = ceil_div(view.k, view.fractal_k)
    size = view.element_bytes
    rows, columns = ceil_div(view.m, FRACTAL_ROWS), ceil_div(view.n, FRACTAL_ROWS)
    share_m, share_n = _ceil(rows, table["split_m"]), _ceil(columns, table["split_n"])
    blocks = ceil_div(view.a_channels, view.fractal_k)
    panel_a = slab_bytes(view, table["m0"] * FRACTAL_ROWS, blocks)
    all_a = slab_bytes(view, share_m * FRACTAL_ROWS, blocks)
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
    """K fractals that belong together in L1: all taps of one channel block, whose image rows are loaded once.

    Windows that do not overlap (patches) share no rows: there the taps of one window row are enough.
    """
    window = view.window
    if window is None:
        return 1
    apart = window.stride_h >= window.extent_h and view.block_fractals % window.extent_h == 0
    return view.block_fractals // window.extent_h if apart else view.block_fractals


def blocks_of(view: CubeView, k: int) -> float:
    """Channel blocks (of ``fractal_k``) that ``k`` elements of K touch; a part of one where taps come apart."""
    if view.window is None:
        return ceil_div(k, view.fractal_k)
    unit = _k_unit(view)
    return ceil_div(ceil_div(k, view.fractal_k), unit) * unit / view.block_fractals


def slab_bytes(view: CubeView, rows: _Array, blocks: _Array) -> _Array:
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
    return pixels * blocks * view.channel_block * view.element_bytes


def rank(view: CubeView, target: Target, table: Table, cold_b: bool) -> np.ndarray:
    """Estimated cycles, and two for every L0 step of a core: of memory-bound equals the coarser tile is taken."""
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
    cycles = cube_tile_cycles(target, view, tiles, cold=(0.0, float(cold_b)))
    return cycles + _STEP_CYCLES * l0_steps(view, table)


def l0_steps(view: CubeView, table: Table) -> np.ndarray:
    """Products of L0 tiles that the fullest core computes."""
    rows, columns = ceil_div(view.m, FRACTAL_ROWS), ceil_div(view.n, FRACTAL_ROWS)
    steps = _ceil(view.batch, table["split_batch"]) * _ceil(ceil_div(view.k, view.fractal_k), table["k0"])
    steps = steps * _ceil(_ceil(rows, table["split_m"]), table["m0"])
    return steps * _ceil(_ceil(columns, table["split_n"]), table["n0"])


def _ceil(value: _Array, by: _Array) -> _Array:
    return -(-value // by)


def tile_at(view: CubeView, table: Table, at: int) -> CubeTile:
    """Row of a table as a tile, in elements, without buffers."""
    return CubeTile(
        m0=int(table["m0"][at]) * FRACTAL_ROWS,
        n0=int(table["n0"][at]) * FRACTAL_ROWS,
        k0=int(table["k0"][at]) * view.fractal_k,
        k1=int(table["k1"][at]) * view.fractal_k,
        split_batch=int(table["split_batch"][at]),
        split_m=int(table["split_m"][at]),
        split_n=int(table["split_n"][at]),
        resident=RESIDENTS[int(table["resident"][at])],
        double_l1=bool(table["double_l1"][at]),
        double_l0c=bool(table["double_l0c"][at]),
    )
