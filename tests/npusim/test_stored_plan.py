"""Stored host plans: a second session takes what the first one chose, and nothing spoils a result."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from npusim import InferenceSession, SessionOptions
from npusim.kernels import store
from npusim.kernels.plans import PlanOptions, StoredPlan, algorithm
from npusim.task_facts import task_facts

SHAPE = (1, 64, 56, 56)


@pytest.fixture(scope="module")
def model() -> bytes:
    rng = np.random.default_rng(1)
    filters = (rng.standard_normal((64, 64, 3, 3)) / 24).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:], [numpy_helper.from_array(filters, "w")])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(store, "cache_directory", lambda: tmp_path)
    return tmp_path


def result(session: InferenceSession) -> bytes:
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    return session.run(None, {"x": x})[0].tobytes()


def test_a_second_session_chooses_nothing(model: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch):
    first = InferenceSession(model)
    plan = first.loaded.stored_plan
    assert not plan.is_stored and list(plan.algorithms.values()) == ["winograd_f2"]
    monkeypatch.setattr(algorithm, "host_algorithm", lambda *_: pytest.fail("chosen again"))
    second = InferenceSession(model)
    assert second.loaded.stored_plan.is_stored and second.loaded.stored_plan.algorithms == plan.algorithms
    assert {call.kernel for call in second.loaded.plan.calls} <= set(second.loaded.stored_plan.kernels)
    assert result(second) == result(first)


def test_explain_says_where_the_algorithm_comes_from(model: bytes, folder: Path):
    for words in ("winograd_f2 (chosen when it was loaded)", "winograd_f2 (from the stored host plan)"):
        session = InferenceSession(model)
        task = next(task for task in session.program.tasks if task.kernel.op_type == "Conv2D")
        assert words in task_facts(session, task).host


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_file_is_made_again(model: bytes, folder: Path, damage: str):
    wanted = result(InferenceSession(model))
    (path,) = folder.glob("plan-*")
    data = path.read_bytes()
    path.write_bytes({"cut": data[:-3], "flipped": bytes([data[0] ^ 1]) + data[1:], "empty": b""}[damage])
    session = InferenceSession(model)
    assert not session.loaded.stored_plan.is_stored and result(session) == wanted
    assert path.read_bytes() == data


def test_without_a_place_to_write_everything_is_chosen_anew(model: bytes, tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(store, "cache_directory", lambda: tmp_path / "file")
    assert result(InferenceSession(model)) == result(InferenceSession(model))


def test_programs_and_options_have_plans_of_their_own(model: bytes, folder: Path):
    program, options = InferenceSession(model).program, PlanOptions()
    paths = {StoredPlan.of(program, replace(options, **{name: value})).path for name, value in OTHERS}
    moved = replace(program, tasks=tuple(replace(task, name=task.name + "_") for task in program.tasks))
    assert len({*paths, StoredPlan.of(program, options).path, StoredPlan.of(moved, options).path}) == len(OTHERS) + 2


OTHERS = (("numerics", "fast"), ("deterministic", True), ("saturate", True))


def test_a_plan_is_the_same_at_any_thread_count(model: bytes, folder: Path):
    plans = [InferenceSession(model, SessionOptions(threads=threads)).loaded.stored_plan for threads in (1, 3)]
    assert plans[0].path == plans[1].path and plans[1].is_stored
