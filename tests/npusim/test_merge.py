"""Neighbouring tasks in one sweep: the values of a whole run are those of its tasks one by one, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npusim import InferenceSession, SessionOptions


def network(folder: Path, rng: np.random.Generator) -> Path:
    """Products followed by HardSwish and Sigmoid: 1x1, 3x3, depthwise, and with channels to spare."""
    nodes, constants = [], []

    def conv(source: str, name: str, o: int, c: int, k: int, groups: int = 1) -> str:
        filters = rng.standard_normal((o, c // groups, k, k)).astype(np.float32) / np.sqrt(c * k * k / groups)
        constants.append(numpy_helper.from_array(filters.astype(np.float32), f"{name}_w"))
        pads = [k // 2] * 4
        nodes.append(helper.make_node("Conv", [source, f"{name}_w"], [name], name, pads=pads, group=groups))
        return name

    def unary(kind: str, source: str) -> str:
        nodes.append(helper.make_node(kind, [source], [f"{source}_{kind}"], f"{source}_{kind}"))
        return f"{source}_{kind}"

    x = unary("HardSwish", conv("x", "a", 48, 16, 1))
    x = unary("HardSwish", conv(x, "b", 64, 48, 3))
    x = unary("HardSwish", conv(x, "c", 64, 64, 3, groups=64))
    side = unary("HardSwish", conv(x, "d", 20, 64, 1))
    both = conv(x, "e", 20, 64, 1)
    nodes.append(helper.make_node("Add", [unary("Sigmoid", both), both], ["f"], "f"))
    nodes.append(helper.make_node("Concat", ["f", side], ["y"], "y", axis=1))
    graph = helper.make_graph(
        nodes,
        "merge",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 29, 31])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    path = folder / "merge.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def merged_pairs(session: InferenceSession) -> int:
    plan = session.loaded.plan
    tasks = range(len(session.program.tasks))
    return sum(len(plan.tasks_of(plan.entries[position])) == 2 for position in tasks)


@pytest.mark.parametrize("precision", ["fp16", "origin"])
@pytest.mark.parametrize("special", [False, True], ids=["finite", "an infinity"])
def test_whole_runs_are_equal_to_task_by_task(
    precision: str, special: bool, tmp_path: Path, rng: np.random.Generator
) -> None:
    session = InferenceSession(str(network(tmp_path, rng)), SessionOptions(precision=precision, threads=2))
    assert merged_pairs(session) >= 3
    x = rng.standard_normal((1, 16, 29, 31)).astype(np.float32)
    if special:
        x[0, 3, 11, 17] = np.inf
    (whole,) = session.run(None, {"x": x})
    tasks = [step.task.name for step in session.loaded.run_layers({"x": x})]
    assert len(tasks) == len(session.program.tasks)
    (single,) = session.loaded.device.copy_out(None)
    np.testing.assert_array_equal(whole, single)
    assert np.isfinite(whole).all() != special


def test_saturating_chips_keep_their_tasks_apart(tmp_path: Path, rng: np.random.Generator) -> None:
    session = InferenceSession(str(network(tmp_path, rng)), SessionOptions(soc="Ascend310P3", precision="fp16"))
    assert merged_pairs(session) == 0
