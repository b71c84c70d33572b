"""Distances between arrays, and the report of a model against onnxruntime."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from rich.console import Console

from metadef.error import UsageError
from metadef.model import save_om
from npusim.compare import compare_model, difference, print_comparison
from npusim.data import digits_model, digits_samples
from npusim.session import InferenceSession, SessionOptions


def test_distance_has_its_textbook_values():
    result = difference(np.array([[3.0, 5.0]]), np.array([[3.0, 4.0]]))
    assert result.rel_l2 == pytest.approx(1 / 5)
    assert result.max_abs == 1.0
    assert result.cosine == pytest.approx((9 + 20) / (5 * np.hypot(3, 5)))
    assert result.top1_equal


def test_top1_is_taken_row_by_row():
    wanted = np.array([[0.1, 0.9], [0.8, 0.2]])
    assert difference(wanted + 0.01, wanted).top1_equal
    assert not difference(wanted[::-1].copy(), wanted).top1_equal


def test_equal_infinities_and_nans_agree_and_others_are_infinitely_far():
    odd = np.array([np.inf, np.nan, 2.0])
    assert difference(odd, odd.copy()).rel_l2 == 0
    assert difference(np.array([1.0, np.nan, 2.0]), odd).rel_l2 == np.inf


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_empty_and_scalar_arrays_have_no_distance(shape: tuple[int, ...]):
    result = difference(np.zeros(shape), np.zeros(shape))
    assert (result.rel_l2, result.max_abs, result.top1_equal) == (0.0, 0.0, True)


def test_a_model_that_onnxruntime_refuses_is_told():
    pytest.importorskip("onnxruntime")
    x, y = (helper.make_tensor_value_info(name, TensorProto.INT32, shape) for name, shape in (("x", [2]), ("y", None)))
    zero = helper.make_tensor("w", TensorProto.INT32, [2], [0, 0])
    graph = helper.make_graph([helper.make_node("Div", ["x", "w"], ["y"])], "g", [x], [y], [zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UsageError, match=r"(?s)onnxruntime does not run this model.*zero"):
        compare_model(model, {"x": np.ones(2, np.int32)})


def test_feeds_that_do_not_fit_are_told_before_onnxruntime_sees_them():
    with pytest.raises(UsageError, match=r"(?s)wrong shape.*\[2, 1, 28, 28\].*\[2, 3\]"):
        compare_model(digits_model(), {"image": np.ones((2, 3), np.float32)}, SessionOptions(dims={"batch": 2}))


def test_different_shapes_are_an_error():
    with pytest.raises(UsageError, match="different shape"):
        difference(np.zeros(3), np.zeros(4))


@pytest.mark.parametrize(("precision", "limit"), [("fp16", 1e-3), ("origin", 1e-6)])
def test_every_task_of_the_bundled_model_is_as_exact_as_its_type(precision: str, limit: float):
    options = SessionOptions(precision=precision, dims={"batch": 2})
    report = compare_model(digits_model(), {"image": digits_samples().as_input(0, 2)}, options)
    (scores,) = report.outputs
    assert scores.name == "probabilities" and scores.top1_equal and scores.cosine > 0.9999
    assert report.within(limit, 0.9999) and not report.within(limit, 1.1)
    assert [item.rel_l2 for item in report.tasks] == sorted((item.rel_l2 for item in report.tasks), reverse=True)
    named = {item.value: item for item in report.tasks if item.value}
    assert "stem/relu" in named["stem/relu/out"].origins and named["stem/relu/out"].drift < 0.01
    stable = json.loads(json.dumps(report.as_json()))["outputs"][0]
    assert {"name", "rel_l2", "max_abs", "cosine", "top1_equal"} <= set(stable)


def test_bfloat16_has_the_limit_of_its_own_rounding(rng: np.random.Generator):
    weights = helper.make_tensor("w", TensorProto.BFLOAT16, [64, 32], rng.standard_normal(64 * 32).tolist())
    x, y = (helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [8, n]) for name, n in (("x", 64), ("y", 32)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], "g", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    report = compare_model(model.SerializeToString(), None, SessionOptions(precision="origin"))
    (task,) = report.tasks
    assert 1e-3 < task.rel_l2 < 2**-8 and report.within(1e-3, 0.99)
    (line,) = report.misses(task.rel_l2 / 9, 0.99)
    assert "product" in line and "is above" in line
    assert report.misses(1e-3, 1.1)[0].startswith("output y: cosine")


def test_reports_print_without_losing_names():
    report = compare_model(digits_model(), None, SessionOptions(dims={"batch": 1}))
    console = Console(width=200, record=True, file=io.StringIO())
    print_comparison(report, console, top=3)
    text = console.export_text()
    assert "probabilities" in text and report.tasks[0].op_type in text and report.tasks[5].name not in text


def test_offline_models_are_compared_task_by_task(tmp_path: Path):
    session = InferenceSession(digits_model(), SessionOptions(dims={"batch": 1}))
    report = compare_model(save_om(session.model, tmp_path / "digits.om"))
    assert report.outputs == () and len(report.tasks) == len(session.program.tasks)


def test_missing_onnxruntime_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"npusim\[compare\]"):
        compare_model(digits_model(), None, SessionOptions(dims={"batch": 1}))
