"""Slices of the batch for L2: which tasks, how many, and what they cost."""

import pytest

from make_models import encoder_block
from metadef.compiler import CompileOptions, compile_model
from metadef.program import Region
from metadef.target import load_target
from networks import build_network
from npusim.timing import slices, time_program
from npusim.timing.program import l2_accesses
from npusim.timing.slices import Chain, sliced_chains

P3 = "Ascend310P3"


@pytest.fixture(scope="module")
def program():
    made = compile_model(encoder_block(), CompileOptions(soc=P3, dims={"batch": 8, "seq": 256}))
    return made.model.program


def test_every_task_is_looked_at_a_bounded_number_of_times(program, monkeypatch):
    looked = []
    whole = slices._may_hold
    monkeypatch.setattr(slices, "_may_hold", lambda kind, task: looked.append(task) or whole(kind, task))
    norms = [task for task in program.tasks if task.kernel.op_type == "LayerNorm"] * 200
    assert sliced_chains(norms, 1 << 20, {8}) == []
    assert len(looked) <= 4 * len(norms)


def test_what_fits_l2_is_not_cut(program):
    assert sliced_chains(program.tasks, 1 << 40, {8}) == []


def test_chains_are_cut_into_divisors_of_the_batch_and_hold_products(program):
    chains = sliced_chains(program.tasks, 1 << 21, {8})
    assert chains
    for chain in chains:
        assert 8 % chain.slices == 0 and chain.slices > 1 and chain.stop - chain.first > 1
        assert any(task.kernel.op_type == "BatchMatMulV2" for task in program.tasks[chain.first : chain.stop])


def test_stages_of_convolutions_are_cut_and_what_weighs_channels_ends_them():
    stages = compile_model(build_network("resnet18", 8), CompileOptions(soc=P3)).model.program.tasks
    chains = sliced_chains(stages, 1 << 22, {8})
    assert [8 % chain.slices for chain in chains] == [0]
    (chain,) = chains
    held = {task.kernel.op_type for task in stages[chain.first : chain.stop]}
    assert {"Conv2D", "MaxPoolV3"} <= held <= {"Conv2D", "MaxPoolV3", "AvgPoolV2", "Add"}
    gated = compile_model(build_network("mobilenet_v3_small", 8), CompileOptions(soc=P3)).model.program.tasks
    for chain in sliced_chains(gated, 1 << 20, {8}):
        run = [task.kernel.op_type for task in gated[chain.first : chain.stop]]
        assert not {"Mul", "GlobalAveragePool"} & set(run)


def test_concatenations_stay_in_a_stage_if_their_blocks_are_whole():
    """UNet++ joins whole blocks of channels, GhostNet also single lanes of them."""
    joined = {}
    for name in ("nested_unet", "ghostnet"):
        tasks = compile_model(build_network(name, 8), CompileOptions(soc=P3)).model.program.tasks
        chains = sliced_chains(tasks, 1 << 18, {8})
        held = [task.kernel for chain in chains for task in tasks[chain.first : chain.stop]]
        assert not any(kernel.moves_lanes for kernel in held)
        joined[name] = any(kernel.op_type == "ConcatD" for kernel in held)
    assert joined["nested_unet"]
    assert any(task.kernel.op_type == "ConcatD" and task.kernel.moves_lanes for task in tasks)


def test_a_chain_ends_with_its_last_task_that_does_not_fit_whole(program):
    stages = compile_model(build_network("resnet18", 8), CompileOptions(soc=P3)).model.program.tasks
    found = []
    for tasks in (stages, program.tasks):
        for shift in range(16, 25):
            for chain in sliced_chains(tasks, 1 << shift, {8}):
                last = tasks[chain.stop - 1]
                operands = [item for item in (*last.inputs, *last.outputs) if item is not None]
                whole = sum(item.payload_bytes for item in operands if item.region is not Region.WEIGHTS)
                assert whole > 1 << shift and chain.stop - chain.first > 1
                found.append(chain)
    assert found


@pytest.fixture(scope="module")
def heads():
    """A network whose heads are split by a move that puts query, key and value above the samples."""
    return compile_model(build_network("vit_base_patch32_224", 32), CompileOptions(soc=P3)).model.program.tasks


def test_chains_go_on_through_moves_that_keep_samples_together(heads):
    chains = sliced_chains(heads, 1 << 23, {32})
    held = [task for chain in chains for task in heads[chain.first : chain.stop]]
    assert {"TransposeD", "GatherV2", "SoftmaxV2"} <= {task.kernel.op_type for task in held}
    stacked = [item for task in held for item in task.inputs if item is not None and item.desc.shape[:2] == (3, 32)]
    assert stacked
    for item in stacked:
        parts = [Chain(0, 1, 4, 32).part_of(item, index) for index in range(4)]
        assert len(set(parts)) == 4 and sum(size for _, size in parts) == item.payload_bytes


def test_chains_of_products_hold_no_more_weights_than_the_cache(heads):
    chains = sliced_chains(heads, 1 << 23, {32})
    assert len(chains) > 1
    for chain in chains:
        held = [item for task in heads[chain.first : chain.stop] for item in task.inputs if item is not None]
        weights = sum(item.payload_bytes for item in held if item.region is Region.WEIGHTS)
        assert weights <= 1 << 23 or chain.stop - chain.first < 3


def test_windows_of_pictures_are_not_cut():
    tasks = compile_model(build_network("swin_tiny", 2), CompileOptions(soc=P3)).model.program.tasks
    chains = sliced_chains(tasks, 1 << 19, {2})
    assert chains and all(chain.samples == 2 for chain in chains)
    many = [index for index, task in enumerate(tasks) if 2 not in task.outputs[0].desc.shape[:2]]
    assert many and not any(chain.first <= index < chain.stop for chain in chains for index in many)
    assert sliced_chains(tasks, 1 << 19, {128})


def test_a_smaller_cache_takes_no_fewer_slices(program):
    most = [
        max((chain.slices for chain in sliced_chains(program.tasks, 1 << shift, {8})), default=1)
        for shift in (24, 22, 20)
    ]
    assert most == sorted(most)


def test_slices_of_a_stack_cover_it_and_weights_stay_whole(program):
    for task in program.tasks:
        for item in (*task.inputs, *task.outputs):
            if item is None:
                continue
            parts = {Chain(0, 1, 4, 8).part_of(item, index) for index in range(4)}
            whole = (item.address, item.payload_bytes)
            assert parts == {whole} or sum(size for _, size in parts) == item.payload_bytes


def test_accesses_stay_within_the_operands(program):
    for task, access in zip(program.tasks, l2_accesses(program, program.tasks, load_target(P3))):
        sizes = [item.payload_bytes for item in task.inputs if item is not None]
        assert all(0 <= hit <= size for hit, size in zip(access.hits, sizes))


def test_every_slice_is_a_launch():
    made = compile_model(encoder_block(width=256), CompileOptions(soc=P3, dims={"batch": 16, "seq": 512}))
    target = load_target(P3)
    chains = sliced_chains(made.model.program.tasks, int(target.value("memory.l2_bytes")), {16})
    rows = time_program(made.model.program, target).tasks
    assert chains
    for chain in chains:
        for row in rows[chain.first : chain.stop]:
            start = target.cycles(target.value("launch.task_us") + target.value("launch.core_graph_us") * row.block_dim)
            assert row.causes["launch"] == pytest.approx(chain.slices * start, rel=0.01)
            assert sum(row.causes.values()) == row.cycles
