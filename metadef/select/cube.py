"""Tiles of cube kernels: ranked by the closed-form estimator, the best judged by the pipe engine.

The estimator sees every split over the cores with every L0 tile, K block and resident operand. It is coarse where a
core has few steps, and rows of one split and L0 tile look alike to it: so of each such shape the best row goes through
the engine that the simulator uses too, for the shapes that look best, and then the other rows of the shapes that were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from metadef.cost.cube_view import FIXPIPE_OPS, CubeView
from metadef.cost.run import kernel_cost
from metadef.cost.streams import MemoryState
from metadef.kernel import CubeTile, Kernel
from metadef.select.cube_candidates import L0C_BYTES, Table, all_candidates, l0_steps, rank, tile_at, with_k_blocks
from metadef.select.cube_place import place_cube_buffers
from metadef.target import Target, TargetError

_RESIDENT_TEXT = {"a": "all of A", "b": "all of B", "a_panel": "a panel of A", "b_panel": "a panel of B"}
_SHAPE_COLUMNS = ("split_batch", "split_m", "split_n", "m0", "n0")
_SHAPES, _REFINED, _VARIANTS = 24, 3, 8
"""Shapes whose best row is judged, the best of them with other rows judged, and how many rows of one."""
_JUDGED_STEPS = 2000
"""A tile with more L0 steps a core is a long stream: the estimator is near there, and the engine slow."""


@dataclass(frozen=True)
class CubeChoice:
    """The tile taken, of how many that fitted, and the cycles predicted for the task."""

    tile: CubeTile
    block_dim: int
    candidates: int
    cycles: int


def choose_cube_kernel(
    kernel: Kernel,
    target: Target,
    *,
    cold_b: bool = False,
    block_dim: int | None = None,
    only: Callable[[Table], np.ndarray] | None = None,
) -> tuple[Kernel, int]:
    """The kernel with tile, cores and reason, and the bytes of workspace it needs.

    ``cold_b`` says that the second operand (weights) comes from memory; the first one is in L2. ``block_dim`` imposes
    the number of pieces, ``only`` marks the candidates that may be taken (it gets their table).

    Raises:
        TargetError: the cube cannot multiply the element type, no tile fits, or ``only`` marks none.
    """
    choice = choose_cube_tile(kernel, target, cold_b=cold_b, block_dim=block_dim, only=only)
    stays = _RESIDENT_TEXT.get(choice.tile.resident)
    reason = (
        f"{choice.block_dim} of {target.cube_cores} cores; fewest cycles ({choice.cycles} predicted) "
        f"of {choice.candidates} tiles that fit" + (f"; {stays} stays in L1" if stays else "")
    )
    chosen = replace(kernel, tile=choice.tile, block_dim=choice.block_dim, reason=reason)
    return chosen, _epilogue_workspace(kernel, choice, target)


def choose_cube_tile(
    kernel: Kernel,
    target: Target,
    *,
    cold_b: bool = False,
    block_dim: int | None = None,
    only: Callable[[Table], np.ndarray] | None = None,
) -> CubeChoice:
    """The tile with the fewest cycles. Arguments and errors as for :func:`choose_cube_kernel`."""
    view = CubeView.of(kernel, target)
    table = with_k_blocks(view, target, all_candidates(view, target, block_dim))
    if only is not None:
        marked = only(table)
        table = {name: column[marked] for name, column in table.items()}
        if not np.any(marked):
            product = f"{view.m} x {view.n} x {view.k}"
            raise TargetError(f"no tile of a product {product} that fits {target.soc} may be taken", got="none marked")
    estimates = rank(view, target, table, cold_b)
    shapes = [rows.tolist() for rows in _best_shapes(table, estimates, _SHAPES)]
    leaders = [rows[0] for rows in shapes]
    cycles = {row: int(estimates[row]) for row in leaders}
    if int(l0_steps(view, table)[leaders].max()) <= _JUDGED_STEPS:
        memory = MemoryState(cold=(0.0, float(cold_b)))

        def judged(row: int) -> int:
            return kernel_cost(_with_tile(kernel, tile_at(view, table, row)), target, memory)

        cycles = {row: judged(row) for row in leaders}
        best = sorted(range(len(leaders)), key=lambda at: cycles[leaders[at]])
        others = [row for at in best[:_REFINED] for row in shapes[at][1:_VARIANTS]]
        cycles.update((row, judged(row)) for row in others)
    winner = min(cycles, key=lambda row: cycles[row])
    tile = tile_at(view, table, winner)
    tile = replace(tile, buffers=tuple(place_cube_buffers(view, tile, target).buffers))
    return CubeChoice(tile, _with_tile(kernel, tile).block_dim, len(estimates), cycles[winner])


def _with_tile(kernel: Kernel, tile: CubeTile) -> Kernel:
    return replace(kernel, tile=tile, block_dim=tile.split_batch * tile.split_m * tile.split_n * tile.split_k)


def _best_shapes(table: Table, cycles: np.ndarray, count: int) -> list[np.ndarray]:
    """Rows of the ``count`` shapes (one split and L0 tile) that hold the best rows, best first, and one of equals."""
    key = np.zeros(len(cycles), np.int64)
    for name in _SHAPE_COLUMNS:
        key = key * (int(table[name].max()) + 1) + table[name]
    order = np.lexsort((cycles, key))
    key, cycles = key[order], cycles[order]
    begins = np.flatnonzero(np.diff(key, prepend=key[0] - 1))
    ends = np.append(begins[1:], len(key))
    differs = np.diff(cycles, prepend=-1.0) > 0.05
    differs[begins] = True
    best = np.argsort(cycles[begins], kind="stable")[:count]
    return [order[begins[at] : ends[at]][differs[begins[at] : ends[at]]] for at in best]


def _epilogue_workspace(kernel: Kernel, choice: CubeChoice, target: Target) -> int:
    """On split cores, what the fixpipe cannot apply passes to the vector cores: two fp32 tiles a core, in the arena,
    unless a direct path leads to UB and that holds a tile."""
    if target.coupled or all(item.op_type in FIXPIPE_OPS and item.operand is None for item in kernel.fused):
        return 0
    tile_bytes = choice.tile.m0 * choice.tile.n0 * L0C_BYTES
    room = target.buffer_bytes["UB"] * target.vector_share
    if target.has_direct_path and tile_bytes <= room:
        return 0
    return 2 * choice.block_dim * tile_bytes
