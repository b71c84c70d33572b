"""Cycles of Winograd convolutions: what each phase moves, how phases add up, where barriers stand."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.cost.engine import PIPES
from metadef.cost.run import run_kernel
from metadef.cost.streams import MemoryState, arithmetic
from metadef.cost.winograd import barrier_cycles, instruction_count
from metadef.cost.winograd_phases import bands, phase_kernels, working_cores
from metadef.dtype import DType
from metadef.kernel import Kernel
from metadef.select.winograd import choose_winograd_kernel
from metadef.target import Target, load_target
from tests.metadef.select.test_winograd import conv_kernel

CASES = [(64, 56, 64), (40, 13, 24), (128, 7, 128)]


def chosen(case: tuple[int, int, int], target: Target, algorithm: str, dtype: DType = DType.FLOAT16) -> Kernel:
    return choose_winograd_kernel(conv_kernel(*case, dtype), target, algorithm)[0]


@pytest.fixture(params=["Ascend910B3", "Ascend310P3"])
def target(request) -> Target:
    return load_target(request.param)


@pytest.mark.parametrize("algorithm", ["winograd_f2", "winograd_f4"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_cycle_has_a_cause(target, case, algorithm):
    kernel = chosen(case, target, algorithm)
    run = run_kernel(kernel, target, MemoryState(cold=(1.0, 1.0), write_back=1.0))
    assert sum(run.core.why.values()) == run.core.cycles
    assert run.mean_cycles <= run.core.cycles and run.waves == 1
    assert run.cycles == run.core.cycles + run.launch_cycles
    assert {"CUBE", "VECTOR", "MTE2", "MTE3"} <= set(run.core.busy)
    assert run.cores == kernel.block_dim == working_cores(kernel, target)


@pytest.mark.parametrize("algorithm", ["winograd_f2", "winograd_f4"])
def test_phases_add_up_with_their_barriers(target, algorithm):
    kernel = chosen((64, 56, 64), target, algorithm)
    whole = run_kernel(kernel, target)
    parts = count = 0
    for rows, times in bands(kernel):
        for phase in phase_kernels(kernel, target, rows):
            run = run_kernel(phase, target)
            parts += times * (run.cycles - run.launch_cycles)
            count += times
    assert whole.core.cycles == parts + count * barrier_cycles(target)
    assert (barrier_cycles(target) == 0) is target.coupled


@pytest.mark.parametrize(("algorithm", "planes", "m"), [("winograd_f2", 16, 2), ("winograd_f4", 36, 4)])
def test_bytes_are_those_of_the_workspaces(algorithm, planes, m):
    target = load_target("Ascend910B3")
    kernel = chosen((64, 56, 64), target, algorithm)
    moved = run_kernel(kernel, target).moved
    tiles = (56 // m) ** 2
    v, sums, image = planes * 64 * tiles * 2, planes * 64 * tiles * 4, 64 * 56 * 56 * 2
    assert moved["UB->GM"] == pytest.approx(v + image, rel=0.01)
    assert moved["L0C->GM"] == pytest.approx(sums, rel=0.02)
    halo = (m + 2) / m
    assert sums + image < moved["GM->UB"] < sums + image * halo * 1.1 + 100_000
    assert moved["GM->L1"] >= v + planes * 64 * 64 * 2
    macs, flops = arithmetic(kernel, target)
    assert macs == planes * tiles * 64 * 64 and flops == 2 * macs


def test_strips_and_bands_cover_the_image(target):
    kernel = chosen((64, 224, 64), target, "winograd_f4")
    rows = bands(kernel)
    assert sum(size * count for size, count in rows) == 56
    for phase in phase_kernels(kernel, target, rows[0][0])[::2]:
        assert phase.tile.units == phase.attrs["shape"].input_units or phase.op_type == "WinogradOutput"
        assert all(buffer.offset_bytes + buffer.size_bytes * buffer.copies <= target.buffer_bytes["UB"]
                   for buffer in phase.tile.buffers)  # fmt: skip


def test_timeline_holds_all_phases_in_order(target):
    kernel = chosen((40, 13, 24), target, "winograd_f2")
    count = instruction_count(kernel, target, MemoryState())
    run = run_kernel(kernel, target, keep=count)
    assert len(run.core.rows) == len(run.core.intervals) == count
    assert run.core.intervals[:, 1].max() <= run.core.cycles
    products, vectors = (np.flatnonzero(run.core.rows[:, 0] == PIPES.index(name)) for name in ("CUBE", "VECTOR"))
    starts, ends = run.core.intervals.T
    before, after = vectors[vectors < products[0]], vectors[vectors > products[-1]]
    assert len(before) and ends[before].max() <= starts[products].min()
    assert len(after) and starts[after].min() >= ends[products].max()


def test_epilogue_operands_are_loaded():
    from dataclasses import replace

    from metadef.kernel import FusedOp

    target = load_target("Ascend310P3")
    bare = conv_kernel(64, 28, 64)
    fused = (FusedOp("Add", {}, 3), FusedOp("Relu"))
    joined = replace(bare, inputs=(*bare.inputs, bare.outputs[0]), fused=fused)
    plain, _ = choose_winograd_kernel(bare, target, "winograd_f2")
    more, _ = choose_winograd_kernel(joined, target, "winograd_f2")
    extra = run_kernel(more, target).moved["GM->UB"] - run_kernel(plain, target).moved["GM->UB"]
    assert extra == pytest.approx(bare.outputs[0].payload_bytes, rel=0.02)
