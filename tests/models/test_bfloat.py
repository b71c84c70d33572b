"""Models in bfloat16 from file to result: fast kernels all the way, every task as exact as its type."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

from make_models import cached_light, conv_zoo, encoder_block, mlp, random_inputs, residual_block
from npusim import InferenceSession, SessionOptions
from npusim.compare import compare_model
from npusim.device import public_type
from npusim.loaded import TaskRun
from npusim.twin import exact_results, wide_values
from to_bfloat import to_bfloat

ORIGIN = SessionOptions(precision="origin")
MODELS = {
    "residual block": lambda: residual_block(channels=40, side=9, batch=2),
    "encoder block": lambda: encoder_block(batch=2, length=19),
    "perceptron": lambda: mlp(batch=3),
    "convolutions": conv_zoo,
}
HALF_UNIT = 2.0**-8  # largest relative error of rounding to bfloat16
SINGLE = 2.0**-18  # what sums of some hundred terms in float32 may lose, of the largest result


def feeds_for(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    return {name: array.astype(ml_dtypes.bfloat16) for name, array in random_inputs(model, seed).items()}


def excess(item: TaskRun) -> float:
    """By how much the worst element misses half a unit in the last place, of the result's largest element."""
    kernel = item.task.kernel
    worst = 0.0
    for array, desc, exact in zip(item.outputs, kernel.outputs, exact_results(kernel, item.inputs), strict=True):
        error = np.abs(wide_values(array, desc) - exact)
        allowed = np.ldexp(1.0, np.frexp(np.abs(exact))[1] - 9) if desc.dtype.label == "bfloat16" else 0.0
        worst = max(worst, float(np.max((error - allowed) / np.abs(exact).max(), initial=0.0)))
    return worst


@pytest.mark.parametrize("name", MODELS)
def test_small_models(name: str) -> None:
    plain = MODELS[name]()
    model = to_bfloat(plain)
    feeds = feeds_for(plain)
    session = InferenceSession(model, ORIGIN)
    assert not session.loaded.fallbacks
    assert all(task.on_device for task in session.program.tasks)
    late = [binding.operand.desc.dtype.label for binding in session.program.outputs]
    assert set(late) == {"bfloat16"}
    for item in session.run_layers(feeds):
        assert excess(item) <= SINGLE, item.task.name
    for array, item in zip(session.run(None, feeds), session.get_outputs(), strict=True):
        assert array.dtype == item.dtype == public_type(session.program.outputs[0].operand.desc.dtype)
    report = compare_model(model, feeds, ORIGIN)
    # Every task rounds once; the errors of a chain add up like independent ones.
    assert all(item.rel_l2 <= HALF_UNIT for item in report.tasks)
    assert all(item.rel_l2 <= HALF_UNIT * np.sqrt(len(report.tasks)) for item in report.outputs), report.outputs


def test_bits_are_taken_as_feeds_too() -> None:
    plain = mlp(batch=3)
    session = InferenceSession(to_bfloat(plain), ORIGIN)
    feeds = feeds_for(plain)
    bits = {name: array.view(np.uint16) for name, array in feeds.items()}
    for one, other in zip(session.run(None, feeds), session.run(None, bits), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cosine"), [("resnet50", 0.0), ("shufflenet", 0.999)])
def test_networks(name: str, cosine: float) -> None:
    """Whole networks. ResNet-50's random weights make each stage double the error of its input: no bound end to end."""
    model = to_bfloat(onnx.load(cached_light(name)))
    report = compare_model(model, None, ORIGIN)
    assert all(item.rel_l2 <= HALF_UNIT for item in report.tasks)
    assert all(item.cosine >= cosine for item in report.outputs), report.outputs
    session = InferenceSession(model, ORIGIN)
    assert not session.loaded.fallbacks and all(task.on_device for task in session.program.tasks)


def one_node(op_type: str, operands: list[np.ndarray], weights: list[np.ndarray], **attrs: object) -> onnx.ModelProto:
    """A float32 model of one operator whose last operands are constants, and the absolute value of its result."""
    names = [f"w{index}" for index in range(len(weights))]
    inputs = [f"x{index}" for index in range(len(operands))]
    nodes = [
        onnx.helper.make_node(op_type, inputs + names, ["made"], **attrs),
        onnx.helper.make_node("Abs", ["made"], ["y"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        op_type,
        [onnx.helper.make_tensor_value_info(n, 1, array.shape) for n, array in zip(inputs, operands, strict=True)],
        [onnx.helper.make_tensor_value_info("y", 1, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in zip(names, weights, strict=True)],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)


RNG = np.random.default_rng(7)
IMAGE = RNG.uniform(-2, 8, (2, 6, 5, 7)).astype(np.float32)
READ_AS_NUMBERS = {
    "bounds of Clip": (one_node("Clip", [IMAGE], [np.float32(0), np.float32(6)]), "Relu6"),
    "scales of groups": (
        one_node("GroupNormalization", [IMAGE], [RNG.random(6, np.float32), RNG.random(6, np.float32)], num_groups=2),
        "InstanceNorm",
    ),
    "a turned filter": (one_node("ConvTranspose", [IMAGE], [RNG.random((6, 4, 3, 3), np.float32) - 0.5]), "Conv2D"),
    "nought added": (one_node("Add", [IMAGE], [np.zeros(1, np.float32)]), "Abs"),
    "a factor of one": (one_node("Mul", [IMAGE], [np.ones(1, np.float32)]), "Abs"),
}


@pytest.mark.parametrize("name", READ_AS_NUMBERS)
def test_constants_are_read_as_numbers(name: str) -> None:
    """bfloat16 constants lie as bits in the graph; rules and passes that look at elements see numbers."""
    plain, op_type = READ_AS_NUMBERS[name]
    model = to_bfloat(plain)
    feeds = {"x0": IMAGE.astype(ml_dtypes.bfloat16)}
    session = InferenceSession(model, ORIGIN)
    assert not session.loaded.host_tasks
    types = [task.kernel.op_type for task in session.program.tasks]
    assert op_type == next(item for item in types if item not in ("TransData", "Reshape")), types
    report = compare_model(model, feeds, ORIGIN)
    assert all(item.rel_l2 <= HALF_UNIT * np.sqrt(len(types) + 1) for item in report.outputs), report.outputs
