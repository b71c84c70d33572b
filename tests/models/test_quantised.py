"""Models in int8 from file to result: integer products on fast kernels, results as onnxruntime's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from model_zoo import NotMade, zoo_model
from npusim import InferenceSession, SessionOptions
from npusim.compare import compare_model
from npusim.reference import exact_session

ORIGIN = SessionOptions(precision="origin")
CUBE = ("Conv2D", "MatMulV2", "BatchMatMulV2")


def small_network(rng: np.random.Generator) -> onnx.ModelProto:
    """A picture is quantised, convolved twice (once by depth), flattened, multiplied and made numbers again."""
    stored = {
        "x_scale": np.float32(0.03),
        "zero": np.uint8(128),
        "low": np.uint8(17),
        "s1": np.float32(0.09),
        "s2": np.float32(0.07),
        "s3": np.float32(0.2),
        "w1": rng.integers(-128, 128, (24, 3, 3, 3)).astype(np.int8),
        "ws1": rng.uniform(0.002, 0.004, 24).astype(np.float32),
        "wz1": np.zeros(24, np.int8),
        "b1": rng.integers(-2000, 2000, 24).astype(np.int32),
        "w2": rng.integers(-128, 128, (24, 1, 3, 3)).astype(np.int8),
        "ws2": np.float32(0.003),
        "wz2": np.int8(0),
        "ws3": np.float32(0.003),
        "wz3": np.int8(0),
        "w3": rng.integers(-128, 128, (24 * 16, 10)).astype(np.int8),
        "shape": np.array([-1, 24 * 16], np.int64),
    }
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "x_scale", "zero"], ["q"]),
        node("QLinearConv", ["q", "x_scale", "zero", "w1", "ws1", "wz1", "s1", "low", "b1"], ["c1"], strides=[2, 2],
             pads=[1, 1, 1, 1]),
        node("QLinearConv", ["c1", "s1", "low", "w2", "ws2", "wz2", "s2", "zero"], ["c2"], group=24, strides=[2, 2],
             pads=[1, 1, 1, 1]),
        node("Reshape", ["c2", "shape"], ["flat"]),
        node("QLinearMatMul", ["flat", "s2", "zero", "w3", "ws3", "wz3", "s3", "zero"], ["m"]),
        node("DequantizeLinear", ["m", "s3", "zero"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 10])],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_small_network_has_onnxruntimes_bits(rng: np.random.Generator) -> None:
    pytest.importorskip("onnxruntime")
    model = small_network(rng)
    feeds = {"x": rng.standard_normal((2, 3, 16, 16)).astype(np.float32)}
    session = InferenceSession(model, ORIGIN)
    assert not session.loaded.fallbacks and all(task.on_device for task in session.program.tasks)
    cube = [task.kernel for task in session.program.tasks if task.kernel.op_type in CUBE]
    assert [kernel.inputs[0].dtype.label for kernel in cube] == ["int8"] * 3
    (wanted,) = exact_session(model.SerializeToString()).run(None, feeds)
    (got,) = session.run(None, feeds)
    np.testing.assert_array_equal(got, wanted)
    assert all(item.rel_l2 <= 1e-6 for item in compare_model(model, feeds, ORIGIN).tasks)


def test_half_precision_keeps_the_integers(rng: np.random.Generator) -> None:
    model = small_network(rng)
    feeds = {"x": rng.standard_normal((2, 3, 16, 16)).astype(np.float32)}
    (exact,) = InferenceSession(model, ORIGIN).run(None, feeds)
    (got,) = InferenceSession(model, SessionOptions()).run(None, feeds)
    # A pixel may be quantised to the next step; the last result has steps of 0.2.
    assert np.abs(got - exact).max() <= 0.2 * 3 and np.mean(np.abs(got - exact) > 0.3) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize(("form", "steps"), [("qop", 0), ("qdq", 1)])
def test_derived_network(form: str, steps: int, need_data: Callable[[str], Path], tmp_path: Path) -> None:
    """Static int8 by onnxruntime's quantiser. Probabilities have steps of 1/256 (qop) or 1/255."""
    pytest.importorskip("onnxruntime")
    script = need_data("conformance/make_derived.py")
    try:
        model = zoo_model("doc_orientation")
    except NotMade as absent:
        pytest.skip(str(absent))
    pictures, target = tmp_path / "pictures.npz", tmp_path / "int8.onnx"
    feeds = model.feeds[0]
    turns = [np.rot90(feeds["x"], turn, (2, 3)) for turn in range(4)]
    np.savez(pictures, x=np.concatenate([*turns, *(turn[..., ::-1] for turn in turns)]))
    arguments = [script, "int8", model.path, pictures, target, form]
    subprocess.run([sys.executable, *map(str, arguments)], check=True, capture_output=True, cwd=tmp_path)
    (wanted,) = exact_session(str(target)).run(None, feeds)
    session = InferenceSession(target, SessionOptions(precision="origin", shapes={"x": feeds["x"].shape}))
    assert not session.loaded.fallbacks and all(task.on_device for task in session.program.tasks)
    (got,) = session.run(None, feeds)
    assert np.abs(got - wanted).max() <= steps / 255 + 1e-6
    assert got.argmax() == wanted.argmax()
