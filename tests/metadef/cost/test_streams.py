"""Instruction streams and the pipe engine: flags, order on a pipe, bytes, and the breakdown of every cycle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadef.cost import engine
from metadef.cost.cube_view import CubeView, piece_of
from metadef.cost.run import kernel_cost, run_kernel, run_stream
from metadef.cost.streams import MemoryState, kernel_streams
from metadef.error import ContractError
from metadef.kernel import CubeTile
from metadef.target import load_target
from tests.metadef.cost.samples import conv_kernel, matmul_kernel, vector_kernel

B1, P3 = load_target("Ascend910B1"), load_target("Ascend310P3")
COLD = MemoryState(cold=(1.0, 1.0, 1.0, 1.0), write_back=1.0)


def _kernels(target):
    yield matmul_kernel(512, 512, 512, CubeTile(128, 256, 64, 256, split_m=2, split_n=2))
    yield matmul_kernel(300, 200, 100, CubeTile(64, 64, 32, 64, split_m=3, resident="b"), packed=False)
    yield matmul_kernel(64, 80, 96, CubeTile(32, 80, 48, 96, split_batch=2, resident="a"), batch=5)
    for resident in ("", "a", "b", "a_panel", "b_panel"):
        for residual in (False, not target.has_fixpipe):
            tile = CubeTile(112, 32, 64, 144, split_m=5, resident=resident, double_l0c=True)
            yield conv_kernel(target, tile, residual=residual)
    yield conv_kernel(target, CubeTile(64, 16, 48, 144, split_batch=4), groups=64, window=3, size=14)
    yield conv_kernel(target, CubeTile(64, 64, 64, 64, split_m=2), stride=3, window=1, size=28, n=2)
    yield vector_kernel("Add", 100_000, cores=8, units_per_tile=256)
    yield vector_kernel("Exp", 50_001, cores=4, units_per_tile=100, double=False)


CASES = [(target, kernel) for target in (B1, P3) for kernel in _kernels(target)]
IDS = [f"{target.soc}-{index}" for index, (target, _) in enumerate(CASES)]


@pytest.mark.parametrize(("target", "kernel"), CASES, ids=IDS)
def test_every_stream_keeps_the_laws(target, kernel):
    stream = kernel_streams(kernel, target, COLD)
    rows = stream.instructions()
    run = run_stream(stream, target, kernel.block_dim, keep=len(rows))
    assert len(run.rows) == len(rows) == len(run.intervals)

    assert sum(run.why.values()) == run.cycles, "the breakdown adds up"
    for pipe in range(len(engine.PIPES)):
        mine = run.intervals[rows["pipe"] == pipe]
        assert np.all(mine[1:, 0] >= mine[:-1, 1]), "no two intervals of a pipe overlap"
        assert run.busy.get(engine.PIPES[pipe], 0) == np.sum(mine[:, 1] - mine[:, 0])

    sets = np.concatenate([rows[name] for name in ("set0", "set1", "set2")])
    waits = np.concatenate([rows[name] for name in ("wait0", "wait1", "wait2")])
    events = range(stream.events)
    assert [np.sum(sets == event) for event in events] == [np.sum(waits == event) for event in events]

    for path, name in enumerate(engine.PATHS):
        assert run.moved.get(name, 0) == np.sum(rows["bytes"][rows["path"] == path])


@pytest.mark.parametrize("resident", ["", "a", "b", "a_panel", "b_panel"])
def test_bytes_are_those_of_the_tiles(resident):
    """A product in whole tiles: how often A and B are read follows from what stays in L1."""
    tile = CubeTile(64, 64, 64, 128, resident=resident)
    kernel = matmul_kernel(256, 192, 256, tile)
    view = CubeView.of(kernel, B1)
    piece = piece_of(view, tile)
    assert (piece.m, piece.n, piece.k) == (256, 192, 256)
    a, b, tm, tn = 256 * 256 * 2, 256 * 192 * 2, 4, 3
    a_times = 1 if resident in ("a", "a_panel", "b") else tn
    b_times = 1 if resident in ("b", "b_panel", "a") else tm
    moved = run_kernel(kernel, B1).moved
    assert moved["GM->L1 ND2NZ"] == a * a_times
    assert moved["GM->L1"] == b * b_times
    assert moved["L1->L0A"] == a * tn and moved["L1->L0B"] == b * tm
    assert moved["L0C->GM NZ2ND"] == 256 * 192 * 2


def test_convolution_reads_its_halo_again():
    whole = conv_kernel(B1, CubeTile(224, 64, 64, 576))
    split = conv_kernel(B1, CubeTile(112, 64, 64, 576))
    image = 64 * 56 * 56 * 2
    once, twice = (run_kernel(kernel, B1).moved["GM->L1"] for kernel in (whole, split))
    weights = 64 * 64 * 9 * 2
    tiles = 3136 // 224
    assert once == (image + (tiles - 1) * 2 * 56 * 64 * 2) + weights * tiles + 64 * 4
    assert twice > once


def test_double_buffering_overlaps_loads_and_products():
    def cycles(double):
        tile = CubeTile(128, 128, 64, 128, double_l1=double, double_l0=double, double_l0c=double)
        kernel = matmul_kernel(1024, 1024, 1024, tile)
        return run_stream(kernel_streams(kernel, B1), B1, 1)

    single, double = cycles(False), cycles(True)
    assert double.cycles < single.cycles
    assert double.cycles >= max(double.busy.values())
    assert double.busy["CUBE"] > 0.5 * double.cycles


def test_single_buffered_tiles_add_up():
    """One set of buffers: n (load + work + store), from the target's constants alone."""
    tiles, units = 16, 512
    kernel = vector_kernel("Add", tiles * units * 16, cores=1, units_per_tile=units, double=False)
    run = run_stream(kernel_streams(kernel, B1), B1, 1)
    tile_bytes = units * 32
    load, store = B1.path("GM->UB"), B1.path("UB->GM")
    loading = 2 * np.ceil(tile_bytes / load.bytes_per_cycle) + load.latency_cycles
    working = tile_bytes / 256 * (1 + B1.value("vector.bank_conflict_cycles")) + 22
    storing = max(store.latency_cycles + tile_bytes / store.bytes_per_cycle, tile_bytes / 64)
    flags = 3 * B1.value("sync.handoff_cycles") + 8 * B1.value("sync.flag_cycles")
    assert run.cycles == pytest.approx(tiles * (loading + working + storing + flags), rel=0.02)


def test_bank_conflict_is_priced_by_the_buffers_places():
    from dataclasses import replace

    from metadef.kernel import Buffer

    kernel = vector_kernel("Add", 1 << 16, cores=1, units_per_tile=512)
    apart = (Buffer("x0", "UB", 0, 16384, 2), Buffer("x1", "UB", 32768 + 256, 16384, 2))
    placed = replace(kernel, tile=replace(kernel.tile, buffers=apart))
    clash, free = (run_stream(kernel_streams(item, B1), B1, 1) for item in (kernel, placed))
    assert free.why.get("BANK", 0) == 0
    assert clash.busy["VECTOR"] - free.busy["VECTOR"] == (1 << 16) * 2 // 256


def test_cube_kernel_without_tile_is_an_error():
    from dataclasses import replace

    kernel = replace(matmul_kernel(64, 64, 64, CubeTile(64, 64, 64, 64)), tile=None)
    with pytest.raises(ContractError, match="without a tile"):
        kernel_streams(kernel, B1)


def test_engine_finds_unpaired_flags():
    rows = np.full((1, engine.N_FIELDS), -1, np.int64)
    rows[0, : engine.F_WAIT] = 0
    rows[0, engine.F_PATH] = engine.NO_PATH
    none = np.zeros((0, 2), np.int64)

    def run(field, times):
        part = np.repeat(rows, times, 0)
        part[:, field] = 0
        core = engine.new_core(1, np.ones(len(engine.PATHS)), (1.0, 1.0), (1, 10, 1))
        return engine.execute(core, part, times, none)

    assert run(engine.F_WAIT, 1) == engine.FLAG_UNDERFLOW
    assert run(engine.F_SET, engine.FLAG_DEPTH) == engine.OK
    assert run(engine.F_SET, engine.FLAG_DEPTH + 1) == engine.FLAG_OVERFLOW


@settings(max_examples=40)
@given(
    m=st.integers(1, 400), n=st.integers(1, 400), k=st.integers(1, 400),
    tile=st.tuples(*(st.sampled_from([16, 32, 64, 128]) for _ in range(3))), splits=st.tuples(*[st.integers(1, 4)] * 3),
    resident=st.sampled_from(["", "a", "b", "a_panel", "b_panel"]), doubles=st.tuples(*[st.booleans()] * 3),
    block=st.sampled_from([2, 3, 4]),
)  # fmt: skip
def test_any_tile_runs_and_adds_up(m, n, k, tile, splits, resident, doubles, block):
    m0, n0, k0 = tile
    l1, l0, l0c = doubles
    cube = CubeTile(m0, n0, k0, k0 * block // 2, 1, *splits, resident, l1, l0, l0c)
    for target in (B1, P3):
        run = run_kernel(matmul_kernel(m, n, k, cube), target, COLD)
        assert sum(run.core.why.values()) == run.core.cycles
        assert 0 <= run.mean_cycles <= run.waves * run.core.cycles


def test_more_work_costs_more():
    costs = [
        kernel_cost(vector_kernel("Add", size, cores=40, units_per_tile=64), B1) for size in (1 << 14, 1 << 18, 1 << 22)
    ]
    assert costs == sorted(costs)
    tile = CubeTile(128, 128, 64, 256, split_m=4, split_n=4)
    costs = [kernel_cost(matmul_kernel(size, size, size, tile), B1) for size in (512, 768, 1024, 2048)]
    assert costs == sorted(costs)
