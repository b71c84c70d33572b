"""On-chip places of a cube tile: operands in L1, fractals in L0, sums in L0C, bias and epilogue beside them."""

from __future__ import annotations

from metadef.cost.cube_view import CubeView, piece_of
from metadef.kernel import CubeTile
from metadef.select.buffers import OnChip
from metadef.select.cube_candidates import L0C_BYTES, blocks_of, slab_bytes
from metadef.target import Target


def place_cube_buffers(view: CubeView, tile: CubeTile, target: Target) -> OnChip:
    """Operands in L1 (whole, as a panel, or in K blocks), fractals in L0, sums in L0C, bias and epilogue aside."""
    chip = OnChip(target)
    size = view.element_bytes
    copies, l0_copies = 1 + tile.double_l1, 1 + tile.double_l0
    piece = piece_of(view, tile)
    panel = tile.resident in ("a", "b") and view.panel_fits(target, tile)
    a_block = slab_bytes(view, tile.m0, blocks_of(view, tile.k1))
    a_panel = slab_bytes(view, tile.m0, blocks_of(view, piece.k))
    a_all = slab_bytes(view, piece.m, blocks_of(view, piece.k))
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
    chip.take("sum", "L0C", tile.m0 * tile.n0 * L0C_BYTES, 1 + tile.double_l0c)
    _place_epilogue(view, tile, target, chip)
    return chip


def _place_epilogue(view: CubeView, tile: CubeTile, target: Target, chip: OnChip) -> None:
    """The bias in its table (fixpipe); on coupled cores results, residual operands and bias in UB, piece by piece."""
    table = target.buffer_bytes.get("BT", 0)
    if view.has_bias and table:
        chip.take("bias", "BT", min(tile.n0 * L0C_BYTES, table))
    if target.has_fixpipe:
        return
    operands = (L0C_BYTES, *view.extra_bytes)
    room = target.buffer_bytes["UB"] // 2 // (2 * sum(operands))
    elements = min(tile.m0 * tile.n0, room // 256 * 256)
    for name, element_bytes in zip(("result", *(f"operand{slot}" for slot in range(len(operands)))), operands):
        chip.stream(name, elements * element_bytes, 2)
    if view.has_bias:
        chip.take("bias", "UB", tile.n0 * L0C_BYTES)
