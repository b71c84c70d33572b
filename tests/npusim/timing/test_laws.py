"""Laws of the timing, and the published board runs whose tiling is known. Nothing here asserts on a clock."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from metadef.cost import engine
from metadef.cost.run import bandwidth_shares, run_kernel, run_stream
from metadef.cost.streams import MemoryState, kernel_streams
from metadef.kernel import CubeTile, FusedOp, VectorTile
from metadef.target import Target, load_target, replaced
from npusim.timing.additions import Places, add_tiles, repeat_cycles
from npusim.timing.micro import matmul, read_copies
from tests.metadef.cost.samples import conv_kernel, matmul_kernel, vector_kernel

B1, P3, NEXT = (load_target(name) for name in ("Ascend910B1", "Ascend310P3", "Ascend950PR"))
COLD = MemoryState(cold=(1.0, 1.0, 1.0, 1.0), write_back=1.0)
BOARD_BYTES = 12288 * 12288 * 2


@pytest.mark.parametrize(
    ("rows", "row_bytes", "tb_s"), [(1, 128, 0.55), (64, 128, 1.37), (64, 2048, 1.49)], ids=["128B", "8KB", "128KB"]
)
def test_reads_by_all_vector_cores(rows, row_bytes, tb_s):
    run = read_copies(B1, BOARD_BYTES, rows, row_bytes, pitch=24576)
    assert run.tb_s == pytest.approx(tb_s, rel=0.15)
    assert run.core.moved["GM->UB"] * B1.vector_cores == pytest.approx(BOARD_BYTES, rel=0.01)


@pytest.mark.parametrize(
    ("path", "pitch", "row_bytes", "us"),
    [
        ("GM->L1 ND2NZ", 24576, 128, 300.7),
        ("GM->L1 ND2NZ", 24576, 512, 230.2),
        ("GM->L1 ND2NZ", 24574, 512, 438.8),
        ("GM->UB", 24574, 2048, 275.3),
    ],
)
def test_layout_loads_and_odd_rows(path, pitch, row_bytes, us):
    run = read_copies(B1, BOARD_BYTES, 64, row_bytes, pitch=pitch, path=path)
    assert run.us == pytest.approx(us, rel=0.15)
    assert ("MISALIGNED" in run.core.why) == (pitch % 32 != 0)


@pytest.mark.parametrize(
    ("cores", "tile_bytes", "double", "write_back", "conflict", "us"),
    [
        (1, 8192, False, 1.0, True, 6909.6),
        (48, 8192, False, 1.0, True, 306.6),
        (48, 32768, False, 1.0, True, 268.5),
        (48, 16384, True, 1.0, True, 264.0),
        (48, 16384, True, 0.0, True, 187.7),
        (48, 16256, True, 0.0, False, 184.5),
    ],
)
def test_additions_with_known_tiles(cores, tile_bytes, double, write_back, conflict, us):
    run = add_tiles(
        B1, 8192 * 8192, tile_bytes, cores=cores, double_buffer=double, write_back=write_back, bank_conflict=conflict
    )
    assert run.us == pytest.approx(us, rel=0.15)


def test_large_matmul_reaches_the_measured_rate():
    run = matmul(B1, 8192, 8192, 8192, CubeTile(128, 256, 64, 256, split_m=8, split_n=3))
    tflops = 2 * 8192**3 / (run.cycles / B1.clock_mhz) / 1e6
    assert tflops == pytest.approx(274, rel=0.15)


def test_reading_again_hits_l2_if_it_fits():
    """302 MB four times as a whole, and in slices of 75.5 MB."""
    once = read_copies(B1, BOARD_BYTES, 64, 2048, pitch=24576).us
    again = read_copies(B1, BOARD_BYTES, 64, 2048, pitch=24576, cold=0.0).us
    assert 4 * once == pytest.approx(828, rel=0.15)
    assert once + 3 * again == pytest.approx(366, rel=0.15)


def test_cores_that_read_the_same_lines_in_step():
    """6 MB by all vector cores, each from the first row on or each beginning elsewhere: 539 against 329 us."""
    free, held = (
        read_copies(B1, 6144 * 512 * 2 * 48, 128, 128, pitch=1024, cold=0.0, readers=readers).us for readers in (1, 48)
    )
    assert held / free == pytest.approx(539 / 329, rel=0.15)


@pytest.mark.parametrize(
    ("places", "ticks"),
    [
        (Places(0x0, 0x10100, 0x20000), 2390),
        (Places(0x0, 0x4000, 0x10000), 4167),
        (Places(0x0, 0x10100, 0x4000), 2389),
        (Places(0x0, 0x10100, 0x80), 3751),
        (Places(0x0, 0x10100, 0x10100, block_stride=0, repeat_stride=1), 3584),
        (Places(0x0, 0x10100, 0x10100, block_stride=0, repeat_stride=8), 2389),
    ],
)
def test_bank_conflicts_of_the_board(places, ticks):
    """1000 additions of 64 repeats, in ticks of a 50 MHz counter; case 4 takes a write that overlaps a read by half."""
    cycles = repeat_cycles(B1, places, 64) + B1.value("vector.dependent_call_cycles")
    assert 1000 * cycles * 50 / B1.clock_mhz == pytest.approx(ticks, rel=0.15)


def test_one_core_against_all():
    one, all_cores = (
        add_tiles(B1, 8192 * 8192, 8192, cores=cores, double_buffer=False).us for cores in (1, B1.vector_cores)
    )
    assert one / all_cores == pytest.approx(6909.6 / 306.6, rel=0.15)


def _faster(target: Target, tmp_path, **memory: float) -> Target:
    lines = [f"  {key}: {{value: {value}, source: test, sure: unknown}}" for key, value in memory.items()]
    path = tmp_path / f"Faster{len(memory)}.yaml"
    path.write_text(f"inherits: {target.soc}\nsoc: Faster\nmemory:\n" + "\n".join(lines) + "\n")
    return load_target(str(path))


@pytest.mark.parametrize("target", [B1, P3, NEXT], ids=["910B1", "310P3", "950PR"])
def test_twice_the_bandwidth_is_never_slower(target, tmp_path):
    key = ("hbm_nominal_tb_s", "l2_tb_s", "dram_core_bytes_per_cycle", "l2_core_bytes_per_cycle")
    doubled = _faster(target, tmp_path, **{name: 2 * target.value(f"memory.{name}") for name in key})
    kernels = [
        vector_kernel("Add", 1 << 22, cores=target.vector_cores, units_per_tile=512),
        vector_kernel("Exp", 1 << 20, cores=4, units_per_tile=512, double=False),
        matmul_kernel(1024, 1024, 512, CubeTile(128, 128, 64, 256, split_m=4, split_n=2)),
        conv_kernel(target, CubeTile(112, 64, 64, 576, split_m=8)),
    ]
    gained = 0
    for kernel in kernels:
        slow, fast = (run_kernel(kernel, chip, COLD).cycles for chip in (target, doubled))
        assert fast <= slow
        gained += slow - fast
    assert gained > 0


@pytest.mark.parametrize("target", [B1, P3, NEXT], ids=["910B1", "310P3", "950PR"])
def test_two_buffers_are_never_slower(target):
    for op_type in ("Add", "Exp", "Relu"):
        for units in (16, 128, 512):
            single, double = (
                run_kernel(vector_kernel(op_type, 1 << 18, cores=4, units_per_tile=units, double=choice), target).cycles
                for choice in (False, True)
            )
            assert double < single


def test_address_off_the_line_costs_and_aligned_is_free():
    kernel = vector_kernel("Add", 1 << 20, cores=40, units_per_tile=512)

    def run(*residues):
        return run_kernel(kernel, B1, MemoryState(in_residues=residues, out_residues=residues[:1]))

    aligned, off_line, odd = run(0, 0), run(32, 32), run(2, 2)
    assert "MISALIGNED" not in aligned.core.why
    assert aligned.cycles < off_line.cycles < odd.cycles
    assert off_line.core.why["MISALIGNED"] > 0 and odd.core.why["MISALIGNED"] > 0


def test_cores_share_the_bandwidth():
    for target in (B1, P3):
        l2, memory = bandwidth_shares(target, target.vector_cores)
        assert l2 * target.vector_cores <= target.l2_bytes_per_cycle * 1.001
        assert memory * target.vector_cores <= target.hbm_bytes_per_cycle * 1.001
        assert bandwidth_shares(target, 1)[1] == target.value("memory.dram_core_bytes_per_cycle")


def test_no_kernel_beats_the_memory():
    """A cold stream over all cores never exceeds what global memory sustains."""
    kernel = vector_kernel("Relu", 1 << 24, cores=48, units_per_tile=1024)
    run = run_kernel(kernel, B1, COLD)
    assert run.hbm_bytes == pytest.approx(2 * (1 << 24) * 2, rel=0.01)
    assert run.hbm_bytes / (run.cycles - run.launch_cycles) <= B1.hbm_bytes_per_cycle * 1.001


def _streamed_conv():
    """Groups of a convolution one after another on every core: many short rounds that wait for memory."""
    tile = CubeTile(784, 16, 16, 144, split_batch=8, double_l0c=True)
    kernel = conv_kernel(P3, tile, c=256, oc=256, size=28, n=8, groups=32)
    return replace(kernel, fused=(FusedOp("Relu"),))


@pytest.mark.parametrize("write_back", [0.0, 0.3, 0.65, 1.0])
def test_cores_out_of_step_share_no_more_than_there_is(write_back):
    """A core may take what the others leave, but all of them together no more than memory and L2 move."""
    run = run_kernel(_streamed_conv(), P3, MemoryState(cold=(0.0, 1.0, 1.0), write_back=write_back)).core
    l2, memory = bandwidth_shares(P3, 8, on_cube=True)
    assert run.hbm_bytes <= memory * run.cycles and run.l2_bytes <= l2 * run.cycles
    assert sum(run.why.values()) == run.cycles


@pytest.mark.parametrize(
    ("key", "factor"),
    [("memory.hbm_nominal_tb_s", 1.3), ("memory.l2_tb_s", 2), ("cores.clock_mhz", 1.03), ("cores.clock_mhz", 1.25)],
)
def test_cores_out_of_step_are_no_slower_on_a_better_chip(key, factor):
    better = replaced(P3, {key: P3.value(key) * factor})
    memory = MemoryState(cold=(0.0, 1.0, 1.0), write_back=0.640625)
    slow, fast = (run_kernel(_streamed_conv(), chip, memory).cycles / chip.clock_mhz for chip in (P3, better))
    assert fast <= 1.02 * slow


@pytest.mark.parametrize("write_back", [0.0, 2.0, 66.0])
def test_a_faster_clock_does_not_put_loads_behind_what_stores_drive_out(write_back):
    """Two short rounds: the second load is asked for before the first store, which writes back far more than it has."""
    kernel = conv_kernel(P3, CubeTile(16, 64, 64, 64, split_n=8, double_l0c=True), oc=1024, size=1, window=1)
    kernel = replace(kernel, fused=(FusedOp("Sigmoid"),))
    memory = MemoryState(cold=(0.0, 1.0, 1.0), write_back=write_back)
    chips = [replaced(P3, {"cores.clock_mhz": P3.clock_mhz * factor}) for factor in np.geomspace(1, 2, 15)]
    us = [run_kernel(kernel, chip, memory).cycles / chip.clock_mhz for chip in chips]
    assert all(after <= 1.001 * before for before, after in pairwise(us)), us


def test_every_pipe_of_both_chips_is_exercised():
    cube = conv_kernel(B1, CubeTile(112, 32, 64, 288, split_m=4))
    coupled = conv_kernel(P3, CubeTile(112, 32, 64, 288, split_m=4), residual=True)
    runs = [run_stream(kernel_streams(kernel, chip), chip, 4) for kernel, chip in ((cube, B1), (coupled, P3))]
    assert set(runs[0].busy) >= {"MTE2", "MTE1", "CUBE", "FIXPIPE"}
    assert set(runs[1].busy) >= {"MTE2", "MTE1", "CUBE", "VECTOR", "MTE3"} and "FIXPIPE" not in runs[1].busy
    assert runs[1].moved["L0C->UB"] > 0 and runs[1].moved["UB->GM"] > 0
    assert all(name in engine.PATHS for run in runs for name in run.moved)


def test_pieces_of_unequal_size_leave_cores_idle():
    def run(units):
        kernel = vector_kernel("Add", units * 1024, cores=40, units_per_tile=1)
        return run_kernel(replace(kernel, tile=VectorTile(units, 1024, 1)), B1)

    even, uneven = run(40), run(41)
    assert even.mean_cycles == even.core.cycles
    assert uneven.mean_cycles < uneven.core.cycles
    assert np.isclose(sum(uneven.moved.values()), 3 * 41 * 1024 * 2, rtol=0.02)


@pytest.mark.parametrize(
    ("path", "pitch", "row_bytes", "us"),
    [
        ("GM->UB", 24576, 2048, 188.5),
        ("GM->L1 ND2NZ", 24576, 128, 245.1),
        ("GM->L1 ND2NZ", 24576, 512, 190.5),
        ("GM->L1 ND2NZ", 24574, 512, 206.6),
    ],
)
def test_short_lines_of_the_next_generation(path, pitch, row_bytes, us):
    run = read_copies(NEXT, BOARD_BYTES, 64, row_bytes, pitch=pitch, path=path)
    assert run.us == pytest.approx(us, rel=0.05)


@pytest.mark.parametrize(("write_back", "us"), [(1.0, 247.7), (0.0, 182.0)])
def test_additions_in_registers(write_back, us):
    run = add_tiles(NEXT, 8192 * 8192, 21760, cores=64, double_buffer=True, write_back=write_back)
    assert run.us == pytest.approx(us, rel=0.1)
