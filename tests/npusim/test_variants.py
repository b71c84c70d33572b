"""Initializers that are inputs too: fed other values, as onnxruntime allows; what may not be fed says so."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from metadef.error import UsageError
from npusim import InferenceSession, SessionOptions
from npusim.variants import Variants, content_key

ORIGIN = SessionOptions(precision="origin", threads=1)


@pytest.fixture
def model() -> onnx.ModelProto:
    """y = (x * w + b) folded from a scale: ``w`` [N, 4] and ``b`` [4] are inputs too, ``s`` is not."""
    nodes = [
        helper.make_node("Mul", ["w", "s"], ["ws"]),
        helper.make_node("MatMul", ["x", "ws"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, "columns"]),
        helper.make_tensor_value_info("b", TensorProto.FLOAT, [1]),
    ]
    values = {"w": np.ones((3, 4), np.float32), "b": np.zeros(1, np.float32), "s": np.full(1, 2, np.float32)}
    graph = helper.make_graph(
        nodes,
        "defaults",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, "columns"])],
        [numpy_helper.from_array(array, name) for name, array in values.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 9
    return made


def test_replaced_values_give_what_onnxruntime_gives(model, rng):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = InferenceSession(model, ORIGIN)
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = rng.standard_normal((2, 3)).astype(np.float32)
    for extra in (
        {},
        {"w": rng.standard_normal((3, 4)).astype(np.float32)},
        {"b": np.full(1, 5, np.float32)},
        {"w": rng.standard_normal((3, 7)).astype(np.float32), "b": np.full(1, -1, np.float32)},
        {},
    ):
        feeds = {"x": x, **extra}
        (ours,) = session.run(None, feeds)
        np.testing.assert_allclose(ours, theirs.run(None, feeds)[0], rtol=1e-5, atol=1e-5)
        assert session.program.outputs[0].operand.desc.origin_shape == ours.shape
        assert session.profile.data.cycles > 0 and session.loaded.program is session.program
    found = {item.name: (item.shape, item.type) for item in session.get_overridable_initializers()}
    assert found == {item.name: (item.shape, item.type) for item in theirs.get_overridable_initializers()} | {
        "w": ([3, 4], "tensor(float)")
    }


def test_each_value_is_compiled_once_and_the_oldest_goes():
    made: list[bytes] = []
    variants: Variants[int] = Variants(b"", lambda values: made.append(content_key(values)) or len(made), kept=2)
    a, b, c = ({"w": np.full(3, number, np.float32)} for number in range(3))
    assert [variants.take(item) for item in (a, b, a, b)] == [1, 2, 1, 2]
    assert variants.take(c) == 3 and variants.take(b) == 2 and variants.take(a) == 4


def test_keys_tell_types_shapes_and_names_apart():
    flat = np.arange(6, dtype=np.float32)
    keys = {
        content_key({"w": flat}),
        content_key({"v": flat}),
        content_key({"w": flat.reshape(2, 3)}),
        content_key({"w": flat.view(np.int32)}),
        content_key({"w": flat[::-1]}),
    }
    assert len(keys) == 5
    assert content_key({"a": flat, "b": flat * 2}) == content_key({"b": flat * 2, "a": flat})


@pytest.mark.parametrize(
    ("feed", "text"),
    [
        ({"s": np.ones(1, np.float32)}, "initializer 's' cannot be replaced"),
        ({"w": np.ones((2, 4), np.float32)}, "wrong shape"),
        ({"b": np.ones(4, np.float32)}, "wrong shape"),
        ({"w": np.ones((3, 4), np.float64)}, "wrong element type"),
        ({"v": np.ones(1, np.float32)}, "no input 'v'"),
    ],
)
def test_what_does_not_fit_is_named(model, feed, text):
    session = InferenceSession(model, ORIGIN)
    x = np.ones((2, 3), np.float32)
    with pytest.raises(UsageError, match=text):
        session.run(None, {"x": x, **feed})
    (after,) = session.run(None, {"x": x})
    np.testing.assert_allclose(after, 6.0)


def test_layers_and_fixed_values_follow(model):
    session = InferenceSession(model, ORIGIN)
    feeds = {"x": np.ones((2, 3), np.float32), "w": np.full((3, 4), 3, np.float32)}
    last = list(session.run_layers(feeds))[-1]
    np.testing.assert_allclose(last.outputs[0], 18.0)
    fixed = InferenceSession(model, SessionOptions(precision="origin", threads=1, values={"x": feeds["x"]}))
    np.testing.assert_allclose(fixed.run(None, {})[0], 6.0)
