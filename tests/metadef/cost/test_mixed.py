"""Mixed kernels of split cores: stages that overlap, flags between them, epilogues that the fixpipe cannot apply."""

from dataclasses import replace

import pytest

from metadef.cost.mixed import flag_cycles, run_mixed
from metadef.cost.run import run_kernel
from metadef.cost.signature import Signature
from metadef.cost.stages import Mixed, Stage, mixed_of, vector_stage
from metadef.cost.streams import WARM, MemoryState
from metadef.dtype import DType
from metadef.format import TensorDesc
from metadef.kernel import CubeTile, FusedOp
from metadef.target import load_target, replaced
from tests.metadef.cost.samples import matmul_kernel

B3, P3, NEXT = load_target("Ascend910B3"), load_target("Ascend310P3"), load_target("Ascend950PR")
AROUND = replace(NEXT, paths={name: path for name, path in NEXT.paths.items() if name != "L0C->UB"})
"""The same chip without its direct path."""
TILE = CubeTile(128, 128, 64, 256, split_m=4, split_n=4)
PRODUCT = matmul_kernel(1024, 1024, 512, TILE)


def fused(*names, kernel=PRODUCT):
    return replace(kernel, fused=tuple(FusedOp(name) for name in names))


def stages(cube=PRODUCT, work=("exp",)):
    results = TensorDesc((1024, 1024), DType.FLOAT)
    finish = vector_stage("Finish", (results,), results, Signature((), work), 32, B3)
    return Stage(cube, (0, 1)), Stage(finish, (None,), final=True)


def test_what_the_fixpipe_applies_needs_no_vector_core():
    assert mixed_of(PRODUCT, B3) is None
    assert mixed_of(fused("Relu"), B3) is None
    assert mixed_of(fused("Sigmoid"), P3) is None
    assert mixed_of(fused("Sigmoid"), B3) is not None


def test_causes_add_up_and_both_sides_move():
    run = run_kernel(fused("Sigmoid"), B3, MemoryState(cold=(1.0, 1.0), write_back=1.0))
    assert sum(run.core.why.values()) == run.core.cycles
    assert all(count >= 0 for count in run.core.why.values())
    assert run.moved["UB->GM"] >= 1024 * 1024 * 2
    assert run.moved["L0C->GM NZ2ND"] >= 1024 * 1024 * 4
    assert run.mean_cycles <= run.core.cycles


def test_an_epilogue_is_hidden_behind_a_deep_product():
    deep = matmul_kernel(1024, 1024, 8192, TILE)
    plain, finished = (run_kernel(kernel, B3).core.cycles for kernel in (deep, fused("Gelu", kernel=deep)))
    assert plain < finished < 1.2 * plain


def test_the_longer_side_sets_the_pace():
    cube, finish = stages(work=("exp",) * 40)
    alone = run_kernel(finish.kernel, B3).core.cycles
    whole = run_mixed(PRODUCT, Mixed((cube, finish), rounds=4), B3, WARM).core.cycles
    assert alone < whole < alone + run_kernel(PRODUCT, B3).core.cycles


@pytest.mark.parametrize("chains", [2, 8])
def test_a_chain_waits_for_its_flags(chains):
    def cycles(count):
        return run_mixed(PRODUCT, Mixed(stages(), rounds=8, chains=count), B3, WARM).core.cycles

    assert cycles(chains) >= cycles(1) + (chains - 1) * flag_cycles(B3)


def test_workspaces_are_warm_and_operands_as_given():
    cube, finish = stages()
    around = cube.surroundings(MemoryState(cold=(1.0, 0.5), write_back=1.0))
    assert around.cold == (1.0, 0.5) and around.write_back == 0.0
    assert finish.surroundings(MemoryState(cold=(1.0,), write_back=1.0)) == MemoryState((0.0,), 1.0)
    half = replace(cube, unique=(0.5, 1.0)).surroundings(MemoryState(cold=(1.0, 1.0)))
    assert half.cold == (0.5, 1.0)


def test_both_kinds_of_cores_start_later():
    plain, finished = run_kernel(PRODUCT, B3), run_kernel(fused("Sigmoid"), B3)
    assert finished.launch_cycles - plain.launch_cycles >= B3.value("launch.mixed_us") * B3.clock_mhz


def next_stages(**finish):
    """A product and what its vector cores do with it, on a chip with a direct path."""
    results = TensorDesc((1024, 1024), DType.FLOAT)
    work = vector_stage("Finish", (results,), results, Signature((), ("exp",)), 32, NEXT)
    return Stage(PRODUCT, (0, 1)), Stage(work, (None,), **finish)


def test_a_direct_path_keeps_workspaces_in_the_core():
    mixed = Mixed(next_stages(final=True), rounds=16)
    run = run_mixed(PRODUCT, mixed, NEXT, WARM)
    assert run.moved["L0C->UB"] == 1024 * 1024 * 2 and "L0C->GM NZ2ND" not in run.moved
    assert "GM->UB" not in run.moved and run.moved["UB->GM"] == 1024 * 1024 * 4
    assert sum(run.core.why.values()) == run.core.cycles
    around = run_mixed(PRODUCT, mixed, AROUND, WARM)
    assert around.moved["L0C->GM NZ2ND"] == 1024 * 1024 * 2 and around.moved["GM->UB"] == 1024 * 1024 * 4
    assert run.core.cycles < around.core.cycles and flag_cycles(NEXT) < flag_cycles(AROUND)


def test_what_the_cube_reads_next_comes_from_ub():
    cube, middle = next_stages()
    again = Stage(matmul_kernel(1024, 1024, 1024, TILE), (None, 1), final=True)
    run = run_mixed(PRODUCT, Mixed((cube, middle, again), rounds=16, chains=2), NEXT, WARM)
    assert run.moved["UB->L1"] >= 1024 * 1024 * 2 and "UB->GM" not in run.moved
    assert run.moved["L0C->GM NZ2ND"] == 1024 * 1024 * 2


def test_a_workspace_beyond_ub_passes_memory():
    run = run_mixed(PRODUCT, Mixed(next_stages(final=True), rounds=1), replaced(NEXT, {"buffers.UB": 65536}), WARM)
    assert "L0C->UB" not in run.moved and run.moved["GM->UB"] == 1024 * 1024 * 4


def test_fewer_vector_cores_a_core_take_longer():
    """Two vector cores belong to a cube core; a chip, or a kernel, with one of them has half the hands."""
    one = replaced(NEXT, {"cores.vector": NEXT.cube_cores})
    kernel = fused("Gelu")
    assert (NEXT.vector_share, one.vector_share, P3.vector_share) == (2, 1, 1)
    finish, half = (mixed_of(kernel, chip).stages[1].kernel.block_dim for chip in (NEXT, one))
    assert finish == 2 * half == 2 * kernel.block_dim
    assert run_kernel(kernel, NEXT).core.cycles <= run_kernel(kernel, one).core.cycles
