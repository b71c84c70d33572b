"""Winograd convolutions in the compiler: eligibility, tiles, workspaces, the choice, the model file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from metadef.compiler import Compilation, CompileOptions, compile_model
from metadef.cost.winograd_phases import is_eligible
from metadef.dtype import DType
from metadef.error import UsageError
from metadef.format import Format, TensorDesc
from metadef.hazard import check_program
from metadef.kernel import Engine, Kernel, WinogradTile, phases_of
from metadef.memory import check_plan
from metadef.model import load_om, save_om
from metadef.program_text import print_program, program_from_json, program_to_json
from metadef.select.cube_algorithm import choose_by_algorithm
from metadef.target import load_target
from metadef.winograd import transform_filter
from tests.metadef.conftest import residual_network

B3 = load_target("Ascend910B3")
SOCS = ("Ascend910B3", "Ascend310P3")


def conv_kernel(c: int, size: int, oc: int, dtype: DType = DType.FLOAT16, **attrs) -> Kernel:
    c0, window = B3.c0(dtype), attrs.pop("window", 3)
    x = TensorDesc((1, c, size, size), dtype, Format.NCHW, Format.NC1HWC0, c0)
    w = TensorDesc((oc, c, window, window), dtype, Format.NCHW, Format.FRACTAL_Z, c0)
    out = TensorDesc((1, oc, size, size), dtype, Format.NCHW, Format.NC1HWC0, c0)
    full = {"strides": (1, 1, 1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1, 1, 1), "groups": 1, **attrs}
    bias = TensorDesc((oc,), DType.FLOAT)
    return Kernel("Conv2D", Engine.AICORE, (x, w, bias), (out,), full)


def compiled(soc: str, conv: str) -> Compilation:
    return compile_model(residual_network(), CompileOptions(soc=soc, conv=conv))


def convolutions(made: Compilation) -> list:
    return [task for task in made.model.program.tasks if task.kernel.op_type == "Conv2D"]


def test_what_is_eligible():
    good = conv_kernel(64, 28, 64)
    assert is_eligible(good, B3, True) and not is_eligible(good, B3, False)
    assert is_eligible(conv_kernel(64, 28, 64, DType.FLOAT), B3, True)
    for other in (
        conv_kernel(64, 28, 64, strides=(1, 1, 2, 2)),
        conv_kernel(64, 28, 64, dilations=(1, 1, 2, 2), pads=(2, 2, 2, 2)),
        conv_kernel(64, 28, 64, window=1, pads=(0, 0, 0, 0)),
        conv_kernel(64, 28, 64, DType.FLOAT).__class__("MatMulV2", Engine.AICORE, good.inputs, good.outputs, {}),
    ):
        assert not is_eligible(other, B3, True)
    assert not is_eligible(conv_kernel(64, 28, 64, DType.FLOAT), load_target("Ascend310P3"), True)


def test_why_not_is_told():
    brain = conv_kernel(64, 28, 64, DType.BF16)
    (chosen, _) = choose_by_algorithm(brain, B3, "winograd", constant=True, cold_b=False)
    assert chosen.algorithm == "direct" and chosen.reason.endswith("Winograd does not serve its products in bfloat16")
    (chosen, _) = choose_by_algorithm(brain, B3, "direct", constant=True, cold_b=False)
    assert "Winograd" not in chosen.reason


@pytest.mark.parametrize("soc", SOCS)
@pytest.mark.parametrize(("conv", "planes", "m"), [("winograd_f2", 16, 2), ("winograd_f4", 36, 4)])
def test_task_plan_and_weights(soc, conv, planes, m):
    made = compiled(soc, conv)
    program = made.model.program
    check_plan(made.schedule, made.plan)
    check_program(program, made.target)
    weights = {tensor.name: tensor.const for node in made.graph.nodes for tensor in node.inputs if tensor is not None}
    for task in convolutions(made):
        kernel = task.kernel
        assert kernel.algorithm == conv and isinstance(kernel.tile, WinogradTile)
        x, filters = task.inputs[0].desc, task.inputs[1]
        assert filters.desc.shape[0] == planes and filters.payload_bytes == filters.desc.payload_bytes
        stored = made.model.weights[filters.address : filters.address + filters.payload_bytes].view(np.float16)
        wanted = transform_filter(weights[filters.name.split("#")[0]], m)
        assert np.isclose(np.abs(stored.astype(np.float32)).sum(), np.abs(wanted.astype(np.float32)).sum(), rtol=1e-4)
        tiles = x.origin_shape[0] * (-(-9 // m)) ** 2
        padded = -(-tiles // 16) * 16
        v, sums = task.workspaces
        copies = kernel.tile.product.split_n if made.target.coupled else 1
        assert v.bytes == planes * copies * padded * -(-x.origin_shape[1] // 16) * 16 * 2
        assert sums.bytes == planes * padded * 32 * 4
    spaces = [row for row in made.plan.rows if row.tensor < 0]
    assert len(spaces) == 2 * len(convolutions(made))


def test_direct_is_the_default_and_equals_before():
    made, plain = compiled("Ascend910B3", "direct"), compile_model(residual_network())
    assert program_to_json(made.model.program) == program_to_json(plain.model.program)
    assert all(task.kernel.algorithm == "direct" and not task.workspaces for task in convolutions(made))


@pytest.mark.parametrize(("case", "wins"), [((64, 28, 64, DType.FLOAT16), False), ((256, 56, 256, DType.FLOAT), True)])
def test_auto_takes_what_is_predicted_faster(case, wins):
    bare = conv_kernel(*case)
    cost = {}
    for conv in ("direct", "winograd_f2", "winograd_f4"):
        from metadef.cost.run import kernel_cost

        cost[conv] = kernel_cost(choose_by_algorithm(bare, B3, conv, constant=True, cold_b=False)[0], B3)
    auto, spaces = choose_by_algorithm(bare, B3, "auto", constant=True, cold_b=False)
    assert auto.algorithm == min(cost, key=cost.get)
    assert (auto.algorithm != "direct") is wins and bool(spaces) is wins
    assert f"direct {cost['direct']}" in auto.reason
    forced, _ = choose_by_algorithm(bare, B3, "winograd", constant=True, cold_b=False)
    assert forced.algorithm == min(("winograd_f2", "winograd_f4"), key=cost.get)


def test_bands_keep_the_workspaces_within_a_quarter_of_l2():
    p3 = load_target("Ascend310P3")
    bare = conv_kernel(64, 224, 64)
    chosen, spaces = choose_by_algorithm(bare, p3, "winograd_f4", constant=True, cold_b=False)
    assert 1 <= chosen.tile.band_rows < 56
    split = chosen.tile.product.split_n
    assert sum(space.bytes for space in spaces) <= p3.value("memory.l2_bytes") / 4 * split
    assert chosen.tile.product.split_batch == 1 and chosen.block_dim <= p3.cube_cores


def test_overlapping_buffers_of_one_phase_are_a_hazard():
    made = compiled("Ascend910B3", "winograd_f2")
    program = made.model.program
    task = convolutions(made)[0]
    tile = task.kernel.tile
    assert len(phases_of(tile)) == 3
    first, *rest = tile.input.buffers
    broken = replace(tile, input=replace(tile.input, buffers=(replace(first, offset_bytes=16), *rest)))
    kernel = replace(task.kernel, tile=broken)
    program.tasks[program.tasks.index(task)] = replace(task, kernel=kernel)
    with pytest.raises(Exception, match="granule"):
        check_program(program, made.target)


def test_model_file_keeps_tiles_and_filters(tmp_path):
    made = compiled("Ascend910B3", "winograd_f4")
    program = made.model.program
    assert program_from_json(program_to_json(program)) == program
    assert "winograd_f4" in print_program(program) and "product m0=" in print_program(program)
    loaded = load_om(save_om(made.model, tmp_path / "small.om"))
    assert loaded.program == program
    node = next(node for node in loaded.graph.nodes if node.op_type == "Conv2D")
    original = next(node for node in made.graph.nodes if node.op_type == "Conv2D")
    assert node.inputs[1].desc.format is Format.FRACTAL_Z_WINO_F4
    restored, wanted = node.inputs[1].const, original.inputs[1].const
    assert np.abs(restored.astype(np.float32) - wanted).max() <= 2e-3 * np.abs(wanted).max()


def test_unknown_choice_is_refused():
    with pytest.raises(UsageError, match="winograd_f3"):
        CompileOptions(conv="winograd_f3")
