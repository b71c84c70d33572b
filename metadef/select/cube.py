"""Tiles of cube kernels: ranked by the closed-form estimator, the best of several splits judged by the pipe engine.

The search has three rounds: all splits, tile shapes and residents with a middling K block; the best of them with
several K blocks; of those a few, on different splits, through the engine that the simulator uses too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from metadef.cost.cube_view import FIXPIPE_OPS, CubeView
from metadef.cost.run import kernel_cost
from metadef.cost.streams import MemoryState
from metadef.kernel import CubeTile, Kernel
from metadef.select.cube_candidates import L0C_BYTES, Table, all_candidates, l0_steps, rank, tile_at, with_k_blocks
from metadef.select.cube_place import place_cube_buffers
from metadef.target import Target

_RESIDENT_TEXT = {"a": "all of A", "b": "all of B", "a_panel": "a panel of A", "b_panel": "a panel of B"}
_KEPT, _KEPT_PER_SPLIT = 24, 3
_JUDGED, _JUDGED_PER_SPLIT = 6, 2
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
        TargetError: the cube cannot multiply the element type, or no tile fits.
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
    table = all_candidates(view, target, block_dim)
    if only is not None:
        marked = only(table)
        table = {name: column[marked] for name, column in table.items()}
    best = _diverse(table, rank(view, target, table, cold_b), _KEPT, _KEPT_PER_SPLIT)
    finalists = with_k_blocks(view, target, {name: column[best] for name, column in table.items()})
    estimates = rank(view, target, finalists, cold_b)
    judged = _diverse(finalists, estimates, _JUDGED, _JUDGED_PER_SPLIT)
    cycles = estimates[judged]
    if int(l0_steps(view, finalists)[judged].max()) <= _JUDGED_STEPS:
        memory = MemoryState(cold=(0.0, float(cold_b)))
        runs = [_with_tile(kernel, tile_at(view, finalists, at)) for at in judged]
        cycles = np.array([kernel_cost(run, target, memory) for run in runs])
    winner = int(np.argmin(cycles))
    tile = tile_at(view, finalists, judged[winner])
    tile = replace(tile, buffers=tuple(place_cube_buffers(view, tile, target).buffers))
    return CubeChoice(tile, _with_tile(kernel, tile).block_dim, len(table["m0"]), int(cycles[winner]))


def _with_tile(kernel: Kernel, tile: CubeTile) -> Kernel:
    return replace(kernel, tile=tile, block_dim=tile.split_batch * tile.split_m * tile.split_n * tile.split_k)


def _diverse(table: Table, cycles: np.ndarray, limit: int, per_split: int) -> list[int]:
    """Rows with the fewest cycles, no more than ``per_split`` of one split over the cores."""
    taken: dict[Sequence[int], int] = {}
    rows: list[int] = []
    for row in np.argsort(cycles, kind="stable").tolist():
        split = (int(table["split_batch"][row]), int(table["split_m"][row]), int(table["split_n"][row]))
        if taken.get(split, 0) < per_split:
            taken[split] = taken.get(split, 0) + 1
            rows.append(row)
        if len(rows) == limit:
            break
    return rows


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
