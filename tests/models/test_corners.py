"""Models at the edge of what a file may be: very deep, with weights as inputs, functions, data outside, other types."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npusim import InferenceSession, SessionOptions


def model(nodes, inputs, outputs, weights=(), opset=13, **fields) -> onnx.ModelProto:
    """A model of float tensors given as (name, shape)."""
    graph = helper.make_graph(
        nodes,
        "corner",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        list(weights),
    )
    fields = {"ir_version": 8, "opset_imports": [helper.make_opsetid("", opset)]} | fields
    return helper.make_model(graph, **fields)


def run(source, feeds, **options) -> list[np.ndarray]:
    data = source if isinstance(source, str) else source.SerializeToString()
    session = InferenceSession(data, SessionOptions(precision="origin", threads=1, **options))
    results = session.run(None, feeds)
    session.close()
    return results


@pytest.fixture
def x(rng) -> np.ndarray:
    return rng.standard_normal((1, 8)).astype(np.float32)


@pytest.mark.parametrize("deep", [2000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_long_chain(deep: int, x):
    names = ["x", *(f"v{index}" for index in range(deep))]
    kinds = ["Neg", "Abs", "Relu", "Tanh"]
    nodes = [helper.make_node(kinds[i * 7 % 4 if i % 3 else 0], [names[i]], [names[i + 1]]) for i in range(deep)]
    wanted = x
    table = {"Neg": np.negative, "Abs": np.abs, "Relu": lambda v: np.maximum(v, 0), "Tanh": np.tanh}
    for node in nodes:
        wanted = table[node.op_type](wanted)
    (result,) = run(model(nodes, [("x", [1, 8])], [(names[-1], [1, 8])]), {"x": x})
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-7)


def test_initializers_that_are_inputs_are_defaults(x, rng):
    weight = rng.standard_normal((8, 8)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    source = model(
        [node],
        [("x", [1, 8]), ("w", [8, 8])],
        [("y", [1, 8])],
        [numpy_helper.from_array(weight, "w")],
        ir_version=3,
        opset=9,
    )
    (result,) = run(source, {"x": x})
    np.testing.assert_allclose(result, x @ weight, rtol=1e-5, atol=1e-5)


def test_functions_of_the_model(x):
    body = [helper.make_node("Constant", [], ["two"], value_float=2.0), helper.make_node("Mul", ["a", "two"], ["b"])]
    twice = helper.make_function("own", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 13)])
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("own", 1)]
    node = helper.make_node("Twice", ["x"], ["y"], domain="own")
    source = model([node], [("x", [1, 8])], [("y", [1, 8])], functions=[twice], opset_imports=imports)
    np.testing.assert_array_equal(run(source, {"x": x})[0], 2 * x)


def test_external_data(x, rng, tmp_path: Path):
    weight = rng.standard_normal((8, 8)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    source = model([node], [("x", [1, 8])], [("y", [1, 8])], [numpy_helper.from_array(weight, "w")])
    path = tmp_path / "m.onnx"
    onnx.save(source, str(path), save_as_external_data=True, size_threshold=0, location="weights.bin")
    (result,) = run(str(path), {"x": x})
    np.testing.assert_allclose(result, x @ weight, rtol=1e-5, atol=1e-5)


def test_callers_override_declared_shapes(rng):
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    source = model([node], [("x", [10, 3, 4, 4])], [("y", [10, 3, 2, 2])])
    x = rng.standard_normal((1, 3, 6, 8)).astype(np.float32)
    (result,) = run(source, {"x": x}, shapes={"x": (1, 3, 6, 8)})
    np.testing.assert_array_equal(result, x.reshape(1, 3, 3, 2, 4, 2).max((3, 5)))


@pytest.mark.parametrize(("dtype", "limit"), [(np.float16, 5e-4), (np.float64, 1e-13)], ids=["fp16", "fp64"])
def test_models_in_other_types(dtype, limit, rng):
    """Half precision on the device, double on the host: each as exact as its type."""
    x, weight = (rng.standard_normal(shape).astype(dtype) for shape in ((1, 24, 5, 5), (20, 24, 1, 1)))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])],
        "types",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, (1, 20, 5, 5))],
        [numpy_helper.from_array(weight, "w")],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    (result,) = run(source, {"x": x})
    exact = np.maximum(np.einsum("oc,nchw->nohw", weight[:, :, 0, 0].astype(np.float64), x.astype(np.float64)), 0)
    assert result.dtype == dtype
    assert np.linalg.norm(result - exact) <= limit * np.linalg.norm(exact)
