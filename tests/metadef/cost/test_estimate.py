"""The closed form ranks tiles as the pipe engine does."""

import numpy as np
import pytest

from metadef.cost.cube_view import CubeView
from metadef.cost.estimate import CubeCandidates, cube_tile_cycles, launch_cycles, vector_tile_cycles
from metadef.cost.run import kernel_cost
from metadef.kernel import CubeTile
from metadef.target import load_target
from tests.metadef.cost.samples import conv_kernel, matmul_kernel


def _rank_correlation(left, right):
    def ranks(values):
        return np.argsort(np.argsort(values))

    return np.corrcoef(ranks(left), ranks(right))[0, 1]


@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend310P3"])
@pytest.mark.parametrize("kind", ["matmul", "conv"])
def test_estimate_follows_the_engine(soc, kind):
    target = load_target(soc)
    tiles = [
        CubeTile(m0, n0, k0, 2 * k0, split_m=split, resident=resident)
        for m0 in (16, 64, 128)
        for n0 in (32, 64, 128)
        for k0 in (32, 64)
        for split in (1, 4, 8)
        for resident in ("", "b_panel")
    ]

    def kernel(tile):
        return matmul_kernel(512, 128, 512, tile) if kind == "matmul" else conv_kernel(target, tile, oc=128, size=28)

    exact = np.array([kernel_cost(kernel(tile), target) for tile in tiles])
    residents = np.array([("", "a", "b", "a_panel", "b_panel").index(tile.resident) for tile in tiles])
    fields = {name: np.array([getattr(tile, name) for tile in tiles]) for name in ("m0", "n0", "k0", "k1", "split_m")}
    view = CubeView.of(kernel(tiles[0]), target)
    estimated = cube_tile_cycles(target, view, CubeCandidates(resident=residents, **fields))
    assert _rank_correlation(exact, estimated) > 0.9
    assert np.median(np.abs(estimated / exact - 1)) < 0.25


def test_vector_estimate_overlaps_with_two_buffers():
    target = load_target("Ascend910B3")
    single, double = (
        vector_tile_cycles(target, 16384, 8192, 64, 1, 20, 40, double_buffer) for double_buffer in (False, True)
    )
    assert double < single


def test_launch_grows_with_cores_and_protocol():
    target = load_target("Ascend910B3")
    one, all_cores = launch_cycles(target, 1), launch_cycles(target, 40)
    assert all_cores > one > 0
    loop, benchmark, trace = (launch_cycles(target, 40, name) for name in ("loop", "benchmark", "trace"))
    assert loop < all_cores < benchmark < trace
