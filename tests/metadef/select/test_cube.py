"""Cube tiles: whatever the shape, the tile fits the chip, covers the product, and says why it was taken."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadef.cost.cube_view import CubeView, piece_of
from metadef.cost.run import kernel_cost
from metadef.cost.streams import MemoryState
from metadef.dtype import DType
from metadef.error import TargetError
from metadef.format import Format, TensorDesc, ceil_div, round_up
from metadef.kernel import CubeTile, Engine, FusedOp, Kernel, Tile
from metadef.select.cube import choose_cube_kernel
from metadef.select.cube_candidates import all_candidates, rank, tile_at, with_k_blocks
from metadef.target import Target, load_target

B1, B3, P3 = load_target("Ascend910B1"), load_target("Ascend910B3"), load_target("Ascend310P3")


def conv_kernel(
    target: Target, n, c, h, w, oc, kernel, stride=1, pad=0, groups=1, dtype=DType.FLOAT16, fused=()
) -> Kernel:
    c0 = target.c0(dtype)
    oh, ow = (size + 2 * pad - kernel for size in (h, w))
    image = TensorDesc((n, c, h, w), dtype, Format.NCHW, Format.NC1HWC0, c0)
    filters = TensorDesc((oc, c // groups, kernel, kernel), dtype, Format.NCHW, Format.FRACTAL_Z, c0)
    result = TensorDesc((n, oc, oh // stride + 1, ow // stride + 1), dtype, Format.NCHW, Format.NC1HWC0, c0)
    attrs = {"strides": (1, 1, stride, stride), "pads": (pad,) * 4, "dilations": (1, 1, 1, 1), "groups": groups}
    extra = (result,) if any(item.operand is not None for item in fused) else ()
    inputs = (image, filters, TensorDesc((oc,), DType.FLOAT), *extra)
    return Kernel("Conv2D", Engine.AICORE, inputs, (result,), attrs, tuple(fused))


def matmul_kernel(m, n, k, batch=(), dtype=DType.FLOAT16) -> Kernel:
    a, b = TensorDesc((*batch, m, k), dtype), TensorDesc((*batch, k, n), dtype)
    op_type, attrs = ("BatchMatMulV2", {"adj_x1": False, "adj_x2": False}) if batch else ("MatMulV2", {})
    return Kernel(op_type, Engine.AICORE, (a, b, None), (TensorDesc((*batch, m, n), dtype),), attrs)


def check_buffers(tile: Tile, target: Target) -> None:
    assert tile.buffers
    for buffer in tile.buffers:
        assert buffer.offset_bytes % target.granule_bytes[buffer.memory] == 0
        assert buffer.offset_bytes + buffer.copies * buffer.size_bytes <= target.buffer_bytes[buffer.memory]
    for first, second in combinations(tile.buffers, 2):
        if first.memory == second.memory:
            ends = [item.offset_bytes + item.copies * item.size_bytes for item in (first, second)]
            assert ends[0] <= second.offset_bytes or ends[1] <= first.offset_bytes


def pieces_of_rows(view: CubeView, rows: int):
    """(first, past the last) row of every tile; of a tile that straddles two output rows, its part in the first."""
    for start in range(0, view.m, rows):
        stop = min(start + rows, view.m)
        if view.window is not None and rows < view.window.ow:
            stop = min(stop, (start // view.window.ow + 1) * view.window.ow)
        yield start, stop


def check_tile(kernel: Kernel, target: Target) -> CubeTile:
    chosen, _ = choose_cube_kernel(kernel, target)
    tile, view = chosen.tile, CubeView.of(kernel, target)
    assert isinstance(tile, CubeTile)
    check_buffers(tile, target)
    piece, size = piece_of(view, tile), view.element_bytes
    assert tile.split_batch * piece.batch >= view.batch
    assert tile.split_m * piece.m >= view.m and tile.split_n * piece.n >= view.n and piece.k >= view.k
    assert chosen.block_dim == tile.split_batch * tile.split_m * tile.split_n * tile.split_k <= target.cube_cores
    for value, granule in ((tile.m0, 16), (tile.n0, 16), (tile.k0, view.fractal_k), (tile.k1, view.fractal_k)):
        assert value > 0 and value % granule == 0
    assert tile.m0 <= piece.m and tile.n0 <= piece.n and tile.k0 <= tile.k1 <= piece.k
    held = {(buffer.name, buffer.memory): buffer for buffer in tile.buffers}
    assert held["a", "L0A"].size_bytes >= tile.m0 * tile.k0 * size and held["a", "L0A"].copies == 2
    assert held["b", "L0B"].size_bytes >= tile.n0 * tile.k0 * size
    assert held["sum", "L0C"].size_bytes >= tile.m0 * tile.n0 * 4 and held["sum", "L0C"].copies == 1 + tile.double_l0c
    # The largest operand piece of any tile lies in its L1 buffer.
    depth = piece.k if tile.resident in ("b", "b_panel") else tile.k1
    width = piece.n if tile.resident == "b" else tile.n0
    assert held["b", "L1"].size_bytes >= depth * width * size
    rows = piece.m if tile.resident == "a" else tile.m0
    share = 1.0 if tile.resident in ("a", "a_panel") else tile.k1 / view.k
    worst = max(int(view.a_bytes(start, stop)) for start, stop in pieces_of_rows(view, rows))
    assert held["a", "L1"].size_bytes >= int(worst * share)
    assert str(chosen.block_dim) in chosen.reason and "cycles" in chosen.reason
    return tile


SOCS = st.sampled_from(["Ascend910B1", "Ascend910B3", "Ascend310P3", "Ascend950PR"])
SIZES = st.one_of(st.integers(1, 40), st.integers(1, 5000))


@settings(max_examples=40)
@given(m=SIZES, n=SIZES, k=SIZES, batch=st.sampled_from([(), (3,), (2, 12), (50,)]), soc=SOCS)
def test_random_products(m, n, k, batch, soc):
    check_tile(matmul_kernel(m, n, k, batch), load_target(soc))


@settings(max_examples=40)
@given(data=st.data(), soc=SOCS)
def test_random_convolutions(data, soc):
    draw, target = data.draw, load_target(soc)
    kernel = draw(st.sampled_from([1, 2, 3, 5, 7, 11]))
    stride, pad = draw(st.integers(1, 3)), draw(st.integers(0, kernel // 2))
    h, w = (draw(st.integers(kernel, 130)) for _ in range(2))
    groups = draw(st.sampled_from([1, 1, 1, 2, 8]))
    c, oc = (groups * draw(st.integers(1, 70)) for _ in range(2))
    epilogues = [(), (FusedOp("Relu"),)]
    if target.coupled:
        epilogues.append((FusedOp("Add", operand=3), FusedOp("Relu")))
    fused = draw(st.sampled_from(epilogues))
    check_tile(
        conv_kernel(target, draw(st.integers(1, 4)), c, h, w, oc, kernel, stride, pad, groups, fused=fused), target
    )


@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.BF16, DType.INT8])
def test_other_element_types(dtype):
    check_tile(matmul_kernel(300, 700, 500, dtype=dtype), B3)
    check_tile(conv_kernel(B3, 1, 48, 20, 20, 64, 3, pad=1, dtype=dtype), B3)


def test_depthwise_and_very_wide_images():
    check_tile(conv_kernel(B3, 2, 64, 56, 56, 64, 3, pad=1, groups=64), B3)
    wide = check_tile(conv_kernel(B3, 1, 64, 16, 20_000, 64, 7, pad=3), B3)
    assert wide.m0 < 20_000


def test_large_product_has_the_known_good_tile():
    """128 x 256 x 64 over all cores is what tuned kernels of this chip use (published board runs)."""
    chosen, workspace = choose_cube_kernel(matmul_kernel(8192, 8192, 8192), B1)
    tile = chosen.tile
    assert sorted((tile.m0, tile.n0)) == [128, 256] and tile.k0 == 64
    assert chosen.block_dim == 24 and workspace == 0


def test_a_core_is_not_started_for_nothing():
    small, _ = choose_cube_kernel(matmul_kernel(16, 16, 16), B3)
    assert small.block_dim == 1
    batched, _ = choose_cube_kernel(matmul_kernel(512, 512, 512, (40,)), B3)
    assert batched.block_dim == 20


def test_no_candidate_that_may_be_taken_is_told():
    with pytest.raises(TargetError, match="64 x 32 x 16"):
        choose_cube_kernel(matmul_kernel(64, 32, 16), B3, only=lambda table: table["m0"] < 0)


def test_choice_is_the_same_every_time():
    kernel = conv_kernel(B3, 1, 256, 14, 14, 256, 3, pad=1)
    assert choose_cube_kernel(kernel, B3) == choose_cube_kernel(kernel, B3)


def test_more_of_the_same_takes_longer():
    cycles = [
        int(choose_cube_kernel(matmul_kernel(m, 1024, 1024), B3)[0].reason.split("(")[1].split()[0])
        for m in (256, 1024, 4096)
    ]
    assert cycles == sorted(cycles) and cycles[2] > 2 * cycles[0]


def test_epilogues_beyond_the_fixpipe_need_a_workspace_on_split_cores():
    relu = conv_kernel(B3, 1, 64, 28, 28, 64, 3, pad=1, fused=(FusedOp("Relu"),))
    gelu = conv_kernel(B3, 1, 64, 28, 28, 64, 3, pad=1, fused=(FusedOp("Gelu", {"approximate": "none"}),))
    assert choose_cube_kernel(relu, B3)[1] == 0
    chosen, workspace = choose_cube_kernel(gelu, B3)
    assert workspace == 2 * chosen.block_dim * chosen.tile.m0 * chosen.tile.n0 * 4
    assert choose_cube_kernel(conv_kernel(P3, 1, 64, 28, 28, 64, 3, pad=1, fused=gelu.fused), P3)[1] == 0
    # Where results pass straight to UB there is nothing to keep in memory.
    direct = load_target("Ascend950PR")
    assert choose_cube_kernel(conv_kernel(direct, 1, 64, 28, 28, 64, 3, pad=1, fused=gelu.fused), direct)[1] == 0


def test_what_never_fits_is_an_error():
    huge = conv_kernel(B3, 1, 16, 300, 300, 16, 255)
    with pytest.raises(TargetError, match="no tile of a product") as caught:
        choose_cube_kernel(huge, B3)
    assert "L1" in str(caught.value)


def test_k_blocks_of_a_window_hold_all_its_taps():
    for tile in (check_tile(conv_kernel(B3, 1, c, 28, 28, 64, 3, pad=1), B3) for c in (64, 128, 512)):
        assert tile.k1 % (9 * 16) == 0
        assert ceil_div(tile.k1, tile.k0) * tile.k0 < tile.k1 + tile.k0 and round_up(tile.k0, 16) == tile.k0


@pytest.mark.parametrize(
    ("target", "kernel"),
    [
        (P3, conv_kernel(P3, 1, 1024, 14, 14, 512, 1)),
        (P3, conv_kernel(P3, 1, 128, 28, 28, 128, 3, pad=1)),
        (P3, matmul_kernel(196, 384, 768)),
        (B3, matmul_kernel(49, 96, 384, (12,))),
        (B3, conv_kernel(B3, 1, 64, 28, 28, 256, 1)),
    ],
)
def test_the_search_is_near_the_best_of_all_tiles(target, kernel):
    """The engine's word on a tenth of the candidates, the best by the estimator: none is much shorter."""
    view = CubeView.of(kernel, target)
    table = with_k_blocks(view, target, all_candidates(view, target))
    best = np.argsort(rank(view, target, table, True), kind="stable")[: len(table["m0"]) // 10 : 3]
    tiles = {tile_at(view, table, row) for row in best}
    memory = MemoryState(cold=(0.0, 1.0))
    blocks = {tile: tile.split_batch * tile.split_m * tile.split_n for tile in tiles}
    least = min(kernel_cost(replace(kernel, tile=tile, block_dim=blocks[tile]), target, memory) for tile in tiles)
    chosen, _ = choose_cube_kernel(kernel, target, cold_b=True)
    assert kernel_cost(chosen, target, memory) <= 1.05 * least
