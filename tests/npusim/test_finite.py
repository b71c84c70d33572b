"""Outputs that are no numbers: told when the inputs were, with the task that made the first."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from npusim import InferenceSession, SessionOptions
from npusim.cli import commands
from npusim.finite import NotFinite, not_finite


def network(*nodes: onnx.NodeProto, dtype: int = TensorProto.FLOAT, **constants: np.ndarray) -> onnx.ModelProto:
    """x (2, 4) to y."""
    x, y = (helper.make_tensor_value_info(name, dtype, shape) for name, shape in (("x", [2, 4]), ("y", None)))
    filled = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(list(nodes), "net", [x], [y], filled)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(op_type: str, inputs: str, output: str, **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], f"{op_type.lower()}_{output}", **attrs)


def found(model: onnx.ModelProto, x: np.ndarray, **options: object) -> NotFinite | None:
    session = InferenceSession(model, SessionOptions(threads=1, soc="Ascend910B3", **options))
    feeds = {"x": x}
    outputs = dict(zip([item.name for item in session.get_outputs()], session.run(None, feeds), strict=True))
    return not_finite(session, feeds, outputs)


OVERFLOW = network(
    node("Relu", "x", "a"),
    node("MatMul", "a w", "b"),
    node("Softmax", "b", "c"),
    node("MatMul", "c w", "y"),
    w=np.full((4, 4), 300, np.float32),
)
LARGE = np.full((2, 4), 300, np.float32)


def test_the_task_that_overflowed_is_named():
    told = found(OVERFLOW, LARGE, precision="fp16")
    assert told is not None and told.made == "inf" and "matmul_b" in told.origins and not told.inherited
    assert [(item.name, item.nan, item.inf) for item in told.outputs] == [("y", 8, 0)]
    assert "\n" not in told.text and "'y' (8 NaN)" in told.text and "--precision origin" in told.text


def test_finite_outputs_and_feeds_that_are_not_finite_say_nothing():
    assert found(OVERFLOW, LARGE, precision="origin") is None
    assert found(OVERFLOW, np.full((2, 4), np.nan, np.float32), precision="origin") is None
    assert found(OVERFLOW, np.full((2, 4), np.inf, np.float32), precision="origin") is None


def test_constant_masks_are_no_fault_but_the_nan_made_of_them_is():
    mask = np.full((2, 4), -np.inf, np.float32)
    told = found(network(node("Add", "x m", "a"), node("Softmax", "a", "y"), m=mask), LARGE, precision="origin")
    assert told is not None and (told.made, told.op_type) == ("NaN", "SoftmaxV2")
    assert "float16" not in told.text


def test_a_constant_that_is_not_finite_is_named_by_its_first_reader():
    broken = np.array([1, 2, np.nan, 4], np.float32)
    told = found(network(node("Mul", "x w", "a"), node("Relu", "a", "y"), w=broken), LARGE, precision="origin")
    assert told is not None and told.made == "NaN" and "mul_a" in told.origins
    assert told.outputs[0].nan == 2 and told.inherited and "a constant that is read by task" in told.text


def test_integers_and_bfloat16_are_looked_at_as_what_they_are():
    whole = network(node("Div", "x w", "y"), dtype=TensorProto.INT32, w=np.full(4, 3, np.int32))
    assert found(whole, np.full((2, 4), 7, np.int32)) is None
    halves = network(node("Mul", "x x", "a"), node("Mul", "a a", "y"), dtype=TensorProto.BFLOAT16)
    import ml_dtypes

    told = found(halves, np.full((2, 4), 1e30).astype(ml_dtypes.bfloat16), precision="origin")
    assert told is not None and told.outputs[0].inf == 8 and told.dtype == "bfloat16"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    onnx.save(OVERFLOW, str(tmp_path / "net.onnx"))
    np.save(tmp_path / "x.npy", LARGE)
    return str(tmp_path / "net.onnx"), f"x={tmp_path / 'x.npy'}"


@pytest.mark.parametrize("command", ["run", "profile", "compare"])
def test_commands_tell_it_in_one_line_and_under_a_key(files: tuple[str, str], tmp_path: Path, command: str):
    if command == "compare":
        pytest.importorskip("onnxruntime")
    model, feed = files
    out = ["--out", str(tmp_path / "out")] if command == "profile" else []
    answer = CliRunner().invoke(commands, [command, model, "--input", feed, "--json", *out])
    lines = [line for line in answer.stderr.splitlines() if "not finite" in line]
    key = json.loads(answer.stdout)["not_finite"]
    assert len(lines) == 1 and "matmul_b" in lines[0] and key["made"] == "inf" and key["origins"] == ["matmul_b"]
    assert answer.exit_code == (1 if command == "compare" else 0)
    fine = CliRunner().invoke(commands, [command, model, "--input", feed, "--json", "--precision", "origin", *out])
    assert fine.exit_code == 0 and json.loads(fine.stdout)["not_finite"] is None and "not finite" not in fine.stderr
