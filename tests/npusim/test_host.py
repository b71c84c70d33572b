"""Host tasks: twins on device memory, and framework nodes through ONNX's reference implementation."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from metadef.dtype import DType
from metadef.error import DeviceFault, OperatorError
from metadef.format import TensorDesc
from metadef.kernel import Engine, Kernel
from npusim.framework import ABSENT, CAPTURED, run_framework_node
from tests.npusim.mini_program import Value, mini_task

PLAIN = TensorDesc((2, 3), DType.FLOAT)


def framework(op_type: str, inputs, outputs, attrs=None, opset: int = 17, domain: str = "") -> Kernel:
    return Kernel(op_type, Engine.HOST_CPU, tuple(inputs), tuple(outputs), attrs or {}, domain=domain, opset=opset)


def test_aicpu_tasks_run_in_device_memory(rng: np.random.Generator):
    x = Value(rng.standard_normal((3, 40)), DType.FLOAT)
    task = mini_task("Exp", [x], engine=Engine.AICPU, inplace=0)
    assert task.loaded.host_tasks == [task.task] and not task.loaded.fallbacks
    (result,) = task.run()
    assert np.array_equal(result, np.exp(x.values.astype(np.float32)))
    assert task.untouched()


def test_framework_nodes_follow_their_opset(rng: np.random.Generator):
    x = rng.standard_normal((2, 3)).astype(np.float32)
    (result,) = run_framework_node(
        framework("CumSum", [PLAIN, TensorDesc((), DType.INT64)], [PLAIN]), [x, np.array(1)], "n"
    )
    assert np.allclose(result, np.cumsum(x, axis=1))
    half = TensorDesc((2, 3), DType.FLOAT16)
    (result,) = run_framework_node(framework("Cast", [PLAIN], [half], {"to": 10}), [x], "n")
    assert result.dtype == np.float16


def test_absent_operands_keep_their_place(rng: np.random.Generator):
    x = rng.standard_normal((2, 3)).astype(np.float32)
    upper = TensorDesc((), DType.FLOAT)
    kernel = framework("Clip", [PLAIN, None, upper], [PLAIN])
    (result,) = run_framework_node(kernel, [x, None, np.array(0.25, np.float32)], "n")
    assert np.array_equal(result, np.minimum(x, np.float32(0.25)))


def test_results_left_out_are_not_asked_for(rng: np.random.Generator):
    x = rng.standard_normal((2, 3)).astype(np.float32)
    indices = TensorDesc((2, 1), DType.INT64)
    kernel = framework(
        "TopK", [PLAIN, TensorDesc((1,), DType.INT64)], [TensorDesc((), DType.FLOAT), indices], {ABSENT: (0,)}
    )
    values, found = run_framework_node(kernel, [x, np.array([1])], "n")
    assert values is None and np.array_equal(found[:, 0], x.argmax(axis=1))


def test_subgraphs_read_the_values_they_captured(rng: np.random.Generator):
    x = rng.standard_normal((2, 3)).astype(np.float32)
    info = [helper.make_tensor_value_info("r", TensorProto.FLOAT, (2, 3))]
    branches = {
        name: helper.make_graph([helper.make_node(op, ["outer", "outer"], ["r"])], name, [], info).SerializeToString()
        for name, op in (("then_branch", "Add"), ("else_branch", "Mul"))
    }
    flag = TensorDesc((), DType.BOOL)
    kernel = framework("If", [flag, PLAIN], [PLAIN], {**branches, CAPTURED: ("outer",)})
    assert np.array_equal(run_framework_node(kernel, [np.array(True), x], "n")[0], x + x)
    assert np.array_equal(run_framework_node(kernel, [np.array(False), x], "n")[0], x * x)


def loop_body() -> bytes:
    """x grows by one a round while it is below a bound; every round's x is scanned out."""
    nodes = [
        helper.make_node("Add", ["x", "one"], ["next"]),
        helper.make_node("ReduceMax", ["next"], ["top"], keepdims=0),
        helper.make_node("Less", ["top", "bound"], ["go"]),
        helper.make_node("Identity", ["next"], ["row"]),
    ]
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, ()),
        helper.make_tensor_value_info("c", TensorProto.BOOL, ()),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (3,)),
    ]
    outputs = [
        helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
        helper.make_tensor_value_info("next", TensorProto.FLOAT, (3,)),
        helper.make_tensor_value_info("row", TensorProto.FLOAT, (3,)),
    ]
    constants = [numpy_helper.from_array(np.float32(1), "one")]
    return helper.make_graph(nodes, "body", inputs, outputs, constants).SerializeToString()


@pytest.mark.parametrize(("trips", "rounds"), [(2, 2), (None, 4)])
def test_loops_stack_what_they_scan(trips: int | None, rounds: int):
    row, scalar = TensorDesc((3,), DType.FLOAT), TensorDesc((), DType.INT64)
    bound = TensorDesc((), DType.FLOAT)
    attrs = {"body": loop_body(), CAPTURED: ("bound",)}
    outputs = [row, TensorDesc((rounds, 3), DType.FLOAT)]
    kernel = framework("Loop", [None if trips is None else scalar, None, row, bound], outputs, attrs)
    limit = None if trips is None else np.array(trips)
    start = np.array([0, -1, -2], np.float32)
    last, scanned = run_framework_node(kernel, [limit, None, start, np.float32(4)], "n")
    assert np.array_equal(last, start + rounds)
    assert np.array_equal(scanned, np.stack([start + 1 + step for step in range(rounds)]))


def test_response_normalisation_sums_over_its_own_channels(rng: np.random.Generator):
    desc = TensorDesc((2, 7, 3, 3), DType.FLOAT)
    x = rng.standard_normal(desc.origin_shape).astype(np.float32)
    for size in (3, 4):
        attrs = {"alpha": 0.3, "beta": 0.6, "bias": 1.5, "size": size}
        (result,) = run_framework_node(framework("LRN", [desc], [desc], attrs), [x], "n")
        wanted = np.empty_like(x)
        for channel in range(7):
            window = x[:, max(0, channel - (size - 1) // 2) : channel + size // 2 + 1]
            wanted[:, channel] = x[:, channel] / (1.5 + 0.3 / size * np.square(window).sum(axis=1)) ** 0.6
        assert np.allclose(result, wanted, rtol=1e-6)


def test_old_softmax_sees_a_matrix(rng: np.random.Generator):
    desc = TensorDesc((2, 3, 4), DType.FLOAT)
    x = rng.standard_normal(desc.origin_shape).astype(np.float32)
    for op_type in ("Softmax", "LogSoftmax", "Hardmax"):
        (old,) = run_framework_node(framework(op_type, [desc], [desc], opset=11), [x], "n")
        flat = TensorDesc((2, 12), DType.FLOAT)
        (new,) = run_framework_node(framework(op_type, [flat], [flat], {"axis": 1}, opset=13), [x.reshape(2, 12)], "n")
        assert np.allclose(old.reshape(2, 12), new, rtol=1e-6)


def test_scatter_is_known_by_its_old_name():
    data, part = TensorDesc((4,), DType.FLOAT), TensorDesc((2,), DType.INT64)
    kernel = framework("Scatter", [data, part, TensorDesc((2,), DType.FLOAT)], [data], {"axis": 0}, opset=10)
    feeds = [np.zeros(4, np.float32), np.array([1, 3]), np.array([5, 6], np.float32)]
    assert run_framework_node(kernel, feeds, "n")[0].tolist() == [0, 5, 0, 6]


def test_bfloat16_crosses_the_border_as_bits():
    desc = TensorDesc((4,), DType.BF16)
    bits = np.array([0x3F80, 0xC000, 0x0000, 0x4040], np.uint16)
    (result,) = run_framework_node(framework("Neg", [desc], [desc]), [bits], "n")
    assert result.dtype == np.uint16 and result.tolist() == [0xBF80, 0x4000, 0x8000, 0xC040]


def test_value_dependent_shapes_are_refused_with_advice():
    kernel = framework("NonZero", [PLAIN], [TensorDesc((2, 6), DType.INT64)])
    ones = np.ones((2, 3), np.float32)
    assert run_framework_node(kernel, [ones], "n")[0].shape == (2, 6)
    with pytest.raises(OperatorError, match="depends on its values"):
        run_framework_node(kernel, [np.eye(2, 3, dtype=np.float32)], "nonzero_1")


def test_unknown_framework_nodes_are_named():
    with pytest.raises(OperatorError, match=r"com\.example::Magic") as caught:
        run_framework_node(
            framework("Magic", [PLAIN], [PLAIN], domain="com.example", opset=1), [np.zeros((2, 3), np.float32)], "spell"
        )
    assert "spell" in str(caught.value)


def test_attributes_that_the_reference_refuses_name_the_node():
    kernel = framework("BitShift", [TensorDesc((2,), DType.UINT8)] * 2, [TensorDesc((2,), DType.UINT8)],
                       {"direction": "up"})  # fmt: skip
    with pytest.raises(OperatorError, match=r"(?s)'shift'.*has no place to run.*direction.*not with these attributes"):
        run_framework_node(kernel, [np.ones(2, np.uint8)] * 2, "shift")


def test_bad_values_are_a_device_fault_with_the_node():
    kernel = framework("Gather", [PLAIN, TensorDesc((1,), DType.INT64)], [TensorDesc((1, 3), DType.FLOAT)])
    with pytest.raises(DeviceFault, match="HOST_CPU failed") as caught:
        run_framework_node(kernel, [np.zeros((2, 3), np.float32), np.array([7])], "pick")
    assert "pick" in str(caught.value)
