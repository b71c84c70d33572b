"""The first road on a real ResNet-50 (opset 9, 100 MB): what the compiler did, where it runs, what it takes, how exact
it is.

Inputs and weights: those of the conformance data where it is present, else our own (tools/make_models.py). The limits
end to end belong to the conformance weights, which are calibrated for them.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

pytest.importorskip("onnxruntime", reason="the limits are distances from onnxruntime")

from metadef.compiler import CompileOptions, compile_model
from metadef.hazard import check_program
from metadef.kernel import Engine
from metadef.memory import check_plan
from model_zoo import make, reference_session, zoo_model
from npusim import InferenceSession, SessionOptions
from npusim.compare import compare_layers, difference

BUDGET = {"Ascend910B3": (78, 3_614_208), "Ascend310P3": (62, 3_212_288)}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=sorted(BUDGET))
def compilation(request: pytest.FixtureRequest, resnet50_path: Path):
    return compile_model(resnet50_path, CompileOptions(soc=request.param, check=True))


def test_every_convolution_carries_its_normalisation_and_activation(compilation, resnet50_path: Path):
    model = onnx.load(resnet50_path)
    made_by = {name: node for node in model.graph.node for name in node.output}
    convolutions = [task for task in compilation.model.program.tasks if task.kernel.op_type == "Conv2D"]
    assert len(convolutions) == 53
    owner = {origin: task.id for task in compilation.model.program.tasks for origin in task.origins}
    names = [node.name or label for node, label in labelled(model)]
    assert len(set(names)) == len(names)
    for node, label in labelled(model):
        source = made_by.get(node.input[0]) if node.input else None
        if node.op_type == "BatchNormalization" or (node.op_type == "Relu" and source.op_type == "BatchNormalization"):
            producer = next(other for item, other in labelled(model) if item is source)
            assert owner[label] == owner[producer], label


def labelled(model: onnx.ModelProto) -> list[tuple[onnx.NodeProto, str]]:
    """Nodes with the names that origins use: their own, or what the front end makes for nameless ones."""
    from metadef.frontend.onnx_read import label_of

    return [(node, label_of(node)) for node in model.graph.node if node.op_type != "ConstantOfShape"]


def test_nothing_runs_on_the_host_and_formats_change_at_the_edges(compilation):
    tasks = compilation.model.program.tasks
    assert all(task.on_device for task in tasks)
    places = [task.id for task in tasks if task.kernel.op_type == "TransData"]
    cube = [task.id for task in tasks if task.kernel.op_type == "Conv2D"]
    assert len(places) == 2 and places[0] < cube[0] and places[1] > cube[-1]
    assert {node.engine for node in compilation.graph.nodes} <= {Engine.AICORE, Engine.VECTOR, Engine.GE_LOCAL}


def test_tasks_and_arena_stay_within_the_budget(compilation):
    program, plan = compilation.model.program, compilation.plan
    tasks, arena = BUDGET[program.soc]
    assert len(program.tasks) <= tasks
    assert plan.theory_min <= program.total_size == plan.total_size <= arena < plan.no_reuse
    check_plan(compilation.schedule, plan)
    check_program(program, compilation.target)
    adds = [task for task in program.tasks if task.kernel.op_type == "Add"]
    assert len(adds) == (0 if compilation.target.coupled else 16)
    for task in adds:
        assert task.outputs[0].address in {operand.address for operand in task.inputs if operand}, task.name
        assert [item.op_type for item in task.kernel.fused] == ["Relu"], task.name


@pytest.mark.parametrize(
    ("soc", "precision"), [("Ascend910B3", "origin"), ("Ascend910B3", "fp16"), ("Ascend310P3", "fp16")]
)
def test_values(soc: str, precision: str, need_data):
    need_data("conformance/make_derived.py")
    make("resnet50")
    zoo = zoo_model("resnet50")
    session = InferenceSession(str(zoo.path), SessionOptions(soc=soc, precision=precision, threads=2))
    reference = reference_session(zoo)
    assert len(zoo.feeds) == 3
    for feeds in zoo.feeds:
        end = difference(session.run(None, feeds)[0], reference.run(None, dict(feeds))[0])
        assert end.rel_l2 <= 1e-4 if precision == "origin" else end.cosine >= 0.998
        assert max(task.rel_l2 for task in compare_layers(session, feeds, {})) <= 1e-3
    session.close()
