"""The whole road on ResNet-50: tasks, arena, tiles, hazards, model file."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from metadef.compiler import Compilation, CompileOptions, compile_model
from metadef.hazard import check_program
from metadef.kernel import Engine
from metadef.model import load_om, save_om


@cache
def compiled(path, soc: str) -> Compilation:
    return compile_model(path, CompileOptions(soc=soc))


# Tasks and arena of the plan: 910B adds residuals on its vector cores, 310P inside the convolution's epilogue.
BUDGET = {"Ascend910B3": (77, 3_614_208), "Ascend310P3": (61, 3_212_288)}


@pytest.mark.parametrize("soc", BUDGET)
def test_tasks_and_arena(resnet50_path, soc):
    made = compiled(resnet50_path, soc)
    tasks, arena = BUDGET[soc]
    program = made.model.program
    assert len(program.tasks) <= tasks + 1
    assert program.arena_bytes <= arena
    assert all(task.kernel.engine in (Engine.AICORE, Engine.VECTOR) for task in program.tasks)
    assert not any(task.workspaces for task in program.tasks)
    check_program(program, made.target)


@pytest.mark.parametrize("soc", BUDGET)
def test_operators_and_in_place(resnet50_path, soc):
    made = compiled(resnet50_path, soc)
    program = made.model.program
    kinds = Counter(task.kernel.op_type for task in program.tasks)
    assert kinds["Conv2D"] == 53 and kinds["MatMulV2"] == kinds["SoftmaxV2"] == 1
    joins = [task for task in program.tasks if any(item.op_type == "Add" for item in task.kernel.fused)]
    joins += [task for task in program.tasks if task.kernel.op_type == "Add"]
    assert len(joins) == 16
    in_place = [task for task in joins if task.outputs[0].address in {item.address for item in task.inputs if item}]
    assert len(in_place) == 16


@pytest.mark.parametrize("soc", BUDGET)
def test_kernels_are_shared_and_explained(resnet50_path, soc):
    made = compiled(resnet50_path, soc)
    kernels = [task.kernel for task in made.model.program.tasks]
    assert len({id(kernel) for kernel in kernels}) < len(kernels) / 1.5
    assert all(kernel.reason and kernel.tile is not None and kernel.block_dim >= 1 for kernel in kernels)


def test_model_file(resnet50_path, tmp_path):
    made = compiled(resnet50_path, "Ascend910B3")
    model = load_om(save_om(made.model, tmp_path / "resnet50.om"))
    assert model.program == made.model.program
    assert len(model.graph.nodes) == len(made.graph.nodes)
