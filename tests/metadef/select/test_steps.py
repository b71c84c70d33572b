"""Schedules: order, kinds, views, in-place permissions, shared constants, host-run nodes."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.error import TargetError
from metadef.format import Format
from metadef.graph import Graph
from metadef.kernel import Engine, FusedOp
from metadef.schedule import TensorKind
from metadef.select import select
from metadef.select.kernels import KernelChooser
from metadef.target import load_target

B3 = load_target("Ascend910B3")


def node(graph: Graph, op_type: str, *inputs, name: str = "", **attrs):
    return graph.add_node(op_type, inputs, attrs, name).output


def permissions(graph: Graph) -> set[tuple[str, str]]:
    schedule = select(graph, B3)
    names = [tensor.name for tensor in schedule.tensors]
    return {(names[pair.read], names[pair.write]) for pair in schedule.inplace}


def started(shape: tuple[int, ...] = (4, 64)) -> tuple[Graph, object]:
    graph = Graph("g")
    return graph, node(graph, "Abs", graph.add_input("x", shape), name="a")


def test_order_kinds_and_names():
    graph = Graph("g")
    x, y = graph.add_input("x", (4, 8)), graph.add_input("unused", (3,))
    first = graph.add_node(
        "Add", [x, graph.add_const("c", np.ones((4, 8), np.float32))], layer="block", origins=("n1",)
    )
    last = node(graph, "Relu", first.output, name="last")
    graph.set_outputs([last])
    schedule = select(graph, B3)
    assert [(step.id, step.name, step.layer, step.origins) for step in schedule.steps] == [
        (0, "Add", "block", ("n1",)),
        (1, "last", "", ()),
    ]
    kinds = {tensor.name: tensor.kind for tensor in schedule.tensors}
    assert kinds == {
        "x": TensorKind.INPUT, "unused": TensorKind.INPUT, "c": TensorKind.WEIGHT,
        "Add": TensorKind.FEATURE, "last": TensorKind.OUTPUT,
    }  # fmt: skip
    assert [schedule.tensors[item].name for item in schedule.inputs] == ["x", y.name]
    assert schedule.graph_revision == graph.revision
    assert all(step.kernel.tile is not None and step.kernel.reason for step in schedule.steps)


def test_in_place_follows_the_prototype():
    graph, a = started()
    b = node(graph, "Relu", a, name="b")
    c = node(graph, "Add", a, b, name="c")
    graph.set_outputs([node(graph, "SoftmaxV2", c, name="d")])
    assert permissions(graph) == {("a", "b"), ("a", "c"), ("b", "c")}


def test_nothing_in_place_over_inputs_constants_outputs_or_broadcasts():
    graph, a = started()
    x = graph.inputs[0]
    node(graph, "Relu", x, name="from_input")
    node(graph, "Add", a, graph.add_const("c", np.ones((4, 64), np.float32)), name="with_const")
    small = node(graph, "ReduceSumD", a, name="small", axes=(0,), keep_dims=True)
    total = node(graph, "Add", a, small, name="wide")
    node(graph, "Cast", total, name="cast", dst_type=DType.FLOAT16)
    graph.set_outputs([a, node(graph, "Relu", total, name="out")])
    assert permissions(graph) == {("wide", "out")}


def test_in_place_through_a_view_names_the_base():
    graph, a = started()
    turned = node(graph, "Reshape", a, name="turned", shape=(64, 4))
    graph.set_outputs([node(graph, "Relu", turned, name="b")])
    schedule = select(graph, B3)
    (view,) = schedule.views
    assert schedule.tensors[view.tensor].name == "turned" and schedule.tensors[view.base].name == "a"
    assert permissions(graph) == {("a", "b")}


def test_base_of_an_output_view_is_an_output_too():
    graph, a = started()
    graph.set_outputs([node(graph, "Flatten", a, name="flat", axis=0)])
    node(graph, "Relu", a, name="late")
    schedule = select(graph, B3)
    kinds = {tensor.name: tensor.kind for tensor in schedule.tensors}
    assert kinds["a"] is kinds["flat"] is TensorKind.OUTPUT
    assert schedule.inplace == []


def convolution(residual_is_x: bool) -> Graph:
    graph = Graph("g")
    x = node(graph, "Relu", graph.add_input("image", (1, 16, 8, 8), DType.FLOAT16, Format.NCHW), name="x")
    other = x if residual_is_x else node(graph, "Abs", x, name="other")
    filters = graph.add_const("w", np.ones((16, 16, 3, 3), np.float16), Format.NCHW)
    attrs = {"strides": (1, 1, 1, 1), "pads": (1, 1, 1, 1)}
    conv = graph.add_node("Conv2D", [x, filters, None], attrs, "conv")
    graph.set_input(conv, 3, other)
    conv.fused = (FusedOp("Add", operand=3), FusedOp("Relu"))
    graph.set_outputs([node(graph, "Sigmoid", conv.output, name="end")])
    return graph


def test_residual_operand_may_become_the_result():
    assert permissions(convolution(False)) == {("other", "conv"), ("conv", "end"), ("x", "other")}


def test_residual_that_is_also_the_image_may_not():
    assert ("x", "conv") not in permissions(convolution(True))


def test_equal_operands_of_one_node_are_one_permission():
    graph, a = started()
    graph.set_outputs([node(graph, "Mul", a, a, name="square")])
    schedule = select(graph, B3)
    assert len(schedule.inplace) == 1 and permissions(graph) == {("a", "square")}


def test_constants_are_shared_only_if_bits_and_layout_agree():
    graph, a = started((3,))
    values = {
        "one": np.array([1, 2, np.nan], np.float32), "same": np.array([1, 2, np.nan], np.float32),
        "zero": np.array([0.0, 0, 0], np.float32), "minus": np.array([-0.0, 0, 0], np.float32),
        "short": np.array([1, 2], np.float32),
    }  # fmt: skip
    for name, value in values.items():
        node(graph, "ConcatD", a, graph.add_const(name, value), concat_dim=0)
    graph.set_outputs([a])
    weights = [tensor.name for tensor in select(graph, B3).tensors if tensor.kind is TensorKind.WEIGHT]
    assert weights == ["one", "zero", "minus", "short"]


def test_host_nodes_have_no_tile_and_keep_their_reason():
    graph, a = started()
    foreign = graph.add_foreign_node("", "NonZero", [a], [a.desc], {}, "host", opset=13)
    foreign.engine, foreign.engine_reason = Engine.HOST_CPU, "no such kernel"
    marked = graph.add_node("Relu", [foreign.output], name="marked")
    marked.engine, marked.engine_reason = Engine.AICPU, "marked by the user"
    graph.set_outputs([marked.output])
    _, host, aicpu = (step.kernel for step in select(graph, B3).steps)
    assert (host.engine, host.tile, host.block_dim, host.reason) == (Engine.HOST_CPU, None, 1, "no such kernel")
    assert (host.domain, host.opset) == ("", 13)
    assert (aicpu.engine, aicpu.tile, aicpu.domain) == (Engine.AICPU, None, "ascend")


def test_dead_nodes_still_have_a_step():
    graph, a = started()
    node(graph, "Relu", a, name="dead")
    graph.set_outputs([a])
    assert [step.name for step in select(graph, B3).steps] == ["a", "dead"]


def test_equal_problems_are_searched_once(monkeypatch):
    graph, a = started((256, 256))
    second = graph.add_const("w", np.ones((256, 256), np.float32))
    for _ in range(3):
        a = node(graph, "MatMulV2", a, second)
    graph.set_outputs([a])
    searched = []
    original = KernelChooser._choose
    monkeypatch.setattr(KernelChooser, "_choose", lambda *args: searched.append(args[1].op_type) or original(*args))
    select(graph, B3)
    assert searched == ["Abs", "MatMulV2"]


def test_products_the_chip_lacks_are_refused_with_the_node():
    graph, a = started((16, 16))
    graph.set_outputs([graph.add_node("MatMulV2", [a, a], name="product", layer="head").output])
    with pytest.raises(TargetError, match="node 'head/product'") as caught:
        select(graph, load_target("Ascend310P3"))
    assert "float32" in str(caught.value) and "--precision fp16" in str(caught.value)
