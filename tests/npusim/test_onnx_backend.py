"""ONNX's backend interface, driven as ONNX's own test-suite drives it."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

import npusim.onnx_backend as backend
from metadef.error import LabError, UsageError
from npusim.data import digits_model, digits_samples


def model_of(
    node: onnx.NodeProto, inputs: dict[str, tuple[int, tuple[int | str, ...]]], opset: int = 17
) -> onnx.ModelProto:
    operands = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    results = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "one", operands, results)
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    )


def test_devices_by_name():
    assert backend.supports_device("CPU") and backend.supports_device("NPU:0")
    assert not backend.supports_device("CUDA")


def test_models_keep_their_types_and_run_for_any_shape():
    prepared = backend.prepare(onnx.load(digits_model()))
    for count in (1, 3, 1):
        (scores,) = prepared.run([digits_samples().as_input(0, count)])
        assert scores.shape == (count, 10) and np.abs(scores - digits_samples().outputs[:count]).max() < 1e-5
    (again,) = prepared.run({"image": digits_samples().as_input(0, 1)})
    assert np.array_equal(again, scores)


def test_single_nodes_run(rng: np.random.Generator):
    x, y = rng.standard_normal((2, 3, 4)).astype(np.float32), rng.standard_normal((3, 1)).astype(np.float32)
    (result,) = backend.run_node(helper.make_node("Sub", ["a", "b"], ["c"]), [x, y])
    assert np.array_equal(result, x - y)
    (old,) = backend.run_node(helper.make_node("Softmax", ["a"], ["c"]), x, opset_version=11)
    assert np.allclose(old.reshape(2, -1).sum(axis=1), 1)


def test_operands_that_steer_shapes_may_be_fed(rng: np.random.Generator):
    x = rng.standard_normal((2, 12)).astype(np.float32)
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    prepared = backend.prepare(model_of(node, {"x": (TensorProto.FLOAT, (2, 12)), "shape": (TensorProto.INT64, (3,))}))
    for shape in ((2, 3, 4), (4, -1, 2)):
        (result,) = prepared.run([x, np.array(shape)])
        assert np.array_equal(result, x.reshape(shape))


def test_tensor_protos_are_taken(rng: np.random.Generator):
    x = rng.standard_normal((2, 3)).astype(np.float32)
    (result,) = backend.run_node(helper.make_node("Neg", ["x"], ["y"]), [x])
    model = model_of(helper.make_node("Neg", ["x"], ["y"]), {"x": (TensorProto.FLOAT, (2, 3))})
    assert np.array_equal(backend.run_model(model, [numpy_helper.from_array(x)])[0], result)


def test_what_has_no_place_is_said_the_way_the_suite_expects():
    strings = model_of(helper.make_node("Identity", ["x"], ["y"]), {"x": (TensorProto.STRING, (2,))})
    with pytest.raises(BackendIsNotSupposedToImplementIt, match="type"):
        backend.run_model(strings, [np.array(["a", "b"])])
    assert not backend.is_compatible(strings)
    assert backend.is_compatible(model_of(helper.make_node("Relu", ["x"], ["y"]), {"x": (TensorProto.FLOAT, (2,))}))
    model = model_of(helper.make_node("Relu", ["x"], ["y"]), {"x": (TensorProto.FLOAT, (2, 3))})
    with pytest.raises(BackendIsNotSupposedToImplementIt, match="no tensor"):
        backend.run_model(model, [[np.zeros(3, np.float32)]])


def test_wrong_feeds_stay_errors_of_the_caller():
    model = model_of(helper.make_node("Relu", ["x"], ["y"]), {"x": (TensorProto.FLOAT, (2, 3))})
    with pytest.raises(UsageError, match="astype"):
        backend.run_model(model, [np.zeros((2, 3))])


@pytest.mark.slow
def test_onnx_suite_finds_no_wrong_number():
    """A quarter of ONNX's node tests: whatever runs is right, and most of them run. Bernoulli draws its own numbers."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [case for case in load_model_tests(kind="node") if "_expanded" not in case.name]
    counts: Counter[str] = Counter()
    wrong = []
    for case in cases[::4]:
        if "bernoulli" in case.name:
            continue
        try:
            prepared = backend.prepare(case.model)
            for feeds, wanted in case.data_sets:
                compare(prepared.run(feeds), wanted, case.rtol, case.atol, case.name)
            counts["right"] += 1
        except (BackendIsNotSupposedToImplementIt, LabError):
            counts["refused"] += 1
        except AssertionError:
            wrong.append(case.name)
    assert not wrong
    assert counts["right"] > 4 * counts["refused"], counts


def compare(outputs, wanted, rtol: float, atol: float, name: str) -> None:
    for ours, theirs in zip(outputs, wanted, strict=False):
        array = numpy_helper.to_array(theirs) if isinstance(theirs, onnx.TensorProto) else np.asarray(theirs)
        assert ours.dtype == array.dtype, name
        if array.dtype.name == "bfloat16":
            # NumPy cannot take tolerances of this type; half a unit in the last place on either side.
            ours, array, rtol = ours.astype(np.float32), array.astype(np.float32), max(rtol, 2.0**-8)
        np.testing.assert_allclose(ours, array, rtol=rtol, atol=atol, err_msg=name)
