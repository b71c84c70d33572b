"""Tiles of a Winograd convolution: a band that L2 holds, its products, and both transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from metadef.cost.winograd_phases import (
    band_shape,
    product_kernel,
    product_macs,
    with_algorithm,
    working_cores,
    workspace_descs,
)
from metadef.cost.winograd_view import PhaseShape
from metadef.kernel import Kernel, WinogradTile
from metadef.schedule import Workspace
from metadef.select.cube import choose_cube_tile
from metadef.select.winograd_vector import choose_transform
from metadef.target import Target

_L2_SHARE = 4
"""Workspaces of a band take at most this part of L2, so that one phase finds there what the one before it stored."""


def choose_winograd_kernel(
    kernel: Kernel, target: Target, algorithm: str, *, cold_b: bool = False
) -> tuple[Kernel, tuple[Workspace, ...]]:
    """The kernel of an eligible convolution with tiles and cores, and its workspaces: transformed image, and sums.

    ``cold_b`` says that the filter comes from memory.

    Raises:
        TargetError: no tile fits the chip.
    """
    kernel = with_algorithm(kernel, target, algorithm)
    x = kernel.inputs[0]
    assert x is not None
    shape = _band(kernel, target, algorithm)
    only = _own_tiles(target.cube_cores) if target.coupled else None
    product = choose_cube_tile(product_kernel(kernel, shape), target, cold_b=cold_b, only=only)
    shared = product.block_dim if target.coupled else target.vector_cores
    copies = product.tile.split_n if target.coupled else 1
    first = replace(shape, copies=copies)
    entry, entry_strips, entry_cores = choose_transform(kernel, first, target, shared, is_input=True)
    leave, leave_strips, leave_cores = choose_transform(kernel, shape, target, shared, is_input=False)
    tile = WinogradTile(
        entry, product.tile, leave, shape.rows, entry_strips, leave_strips, entry_cores, product.block_dim, leave_cores
    )
    whole = band_shape(kernel, algorithm)
    chosen = replace(kernel, tile=replace(tile, macs=product_macs(whole)))
    chosen = replace(chosen, block_dim=working_cores(chosen, target), reason=_reason(whole, shape, tile))
    v, sums = workspace_descs(first, x.dtype)
    return chosen, (Workspace(v.payload_bytes), Workspace(sums.payload_bytes))


def _reason(whole: PhaseShape, band: PhaseShape, tile: WinogradTile) -> str:
    saved = 9 * whole.conv.oh * whole.conv.ow * whole.conv.n / (whole.planes * whole.rows * whole.columns)
    cores = f"{tile.input_cores}, {tile.product_cores} and {tile.output_cores} cores"
    pieces = -(-whole.rows // band.rows)
    text = f"{saved:.2f} times fewer products than directly; transforms and products on {cores}"
    return text + (f"; in {pieces} bands" if pieces > 1 else "")


def _band(kernel: Kernel, target: Target, algorithm: str) -> PhaseShape:
    """The largest even share of the rows of tiles whose workspaces keep within a quarter of L2."""
    whole = band_shape(kernel, algorithm)
    x = kernel.inputs[0]
    assert x is not None
    limit = target.value("memory.l2_bytes") / _L2_SHARE
    for pieces in range(1, whole.rows + 1):
        shape = replace(whole, rows=-(-whole.rows // pieces))
        if sum(desc.payload_bytes for desc in workspace_descs(shape, x.dtype)) <= limit:
            return shape
    return replace(whole, rows=1)


def _own_tiles(cores: int) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """Splits of the products that phases without a barrier among cores allow: by tiles and by output channels."""

    def allowed(table: Mapping[str, np.ndarray]) -> np.ndarray:
        pieces = np.asarray(table["split_m"]) * np.asarray(table["split_n"])
        return np.asarray((np.asarray(table["split_batch"]) == 1) & (pieces <= cores))

    return allowed
