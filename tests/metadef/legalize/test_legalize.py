"""What legalisation keeps and marks: names, layers, formats, shared weights, host nodes, errors."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

from metadef.error import InferError, TargetError
from metadef.format import Format
from metadef.frontend.onnx import load_onnx
from metadef.graph import Graph
from metadef.kernel import Engine
from metadef.legalize import Step, Unmapped, find_rule, known_types, legalize, rule
from metadef.ops.evaluate import evaluate
from metadef.target import load_target
from tests.metadef.legalize.onnx_cases import check_against_ort


def legal(text: str, opset: int = 17, **weights: np.ndarray) -> Graph:
    return legalize(load_onnx(onnx_model(text, opset, **weights)))


def onnx_model(text: str, opset: int = 17, **weights: np.ndarray) -> object:
    graph = parser.parse_graph(text)
    for index, node in enumerate(graph.node):
        first = node.op_type not in {before.op_type for before in graph.node[:index]}
        node.name = f"enc/{node.op_type}" if first else ""
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_names_of_results_survive_one_to_one_and_one_to_many() -> None:
    graph = legal("net (float[2,3,4] x) => (y) { a = Softmax(x) y = Relu(a) }", opset=9)
    assert [node.path for node in graph.nodes] == [
        "enc/Softmax_Reshape",
        "enc/Softmax_SoftmaxV2",
        "enc/Softmax",
        "enc/Relu",
    ]
    assert [node.output.name for node in graph.nodes[2:]] == ["a", "y"]
    assert {node.layer for node in graph.nodes} == {"enc"}
    assert graph.nodes[1].origins == ("enc/Softmax",)
    assert graph.dialect == "ascend" and graph.output_names == ["y"]


def test_images_and_filters_are_tagged_and_the_rest_is_not() -> None:
    text = "net (float[1,3,8,8] x, float[1,3,8,8] z) => (y, q) { a = Conv(x, w, b) y = Relu(a) q = Neg(z) }"
    graph = legal(text, w=np.ones((4, 3, 3, 3), np.float32), b=np.ones(4, np.float32))
    conv, relu, neg = graph.nodes
    tags = [tensor.desc.format for tensor in (*conv.inputs, conv.output, relu.output) if tensor is not None]
    assert tags == [Format.NCHW, Format.NCHW, Format.ND, Format.NCHW, Format.NCHW]
    assert neg.output.desc.format is Format.ND


def test_a_shared_weight_is_not_changed_for_its_other_readers() -> None:
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = onnx_model("net (float[4,2] x) => (y, z) { y = Gemm <alpha = 0.5> (x, w) z = MatMul(x, w) }", w=w)
    graph = check_against_ort(made, {"x": np.ones((4, 2), np.float32)})  # type: ignore[arg-type]
    scaled, plain = (node.inputs[1] for node in graph.nodes)
    assert scaled is not plain
    assert plain is not None and plain.const is not None and plain.const.tolist() == w.tolist()
    shared = legal("net (float[2,3] x) => (y, z) { y = Add(x, w) z = Mul(x, w) }", w=w)
    assert shared.nodes[0].inputs[1] is shared.nodes[1].inputs[1]


def test_what_has_no_rule_stays_on_the_host_with_a_reason() -> None:
    graph = legal("net (float[1,6,4,4] x) => (y) { a = LpPool <kernel_shape = [3, 3]> (x) y = Relu(a) }")
    pool, relu = graph.nodes
    assert pool.engine is Engine.HOST_CPU and pool.domain == "" and pool.opset == 17
    assert pool.engine_reason == "no rule maps ai.onnx::17::LpPool to Ascend operators"
    assert pool.attrs["kernel_shape"] == (3, 3) and pool.output.name == "a"
    assert relu.engine is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("net (float[1,2,4,4,4] x, float[2,2,2,2,2] w) => (y) { y = Conv(x, w) }", "3 spatial axes"),
        ("net (float[1,1,9,9] x) => (y) { y = MaxPool <kernel_shape=[2,2], dilations=[2,2]> (x) }", "dilated window"),
        ("net (float[1,1,9,9] x) => (y, i) { y, i = MaxPool <kernel_shape=[2,2]> (x) }", "indices"),
        ("net (double[2,3] x, double[3,2] w) => (y) { y = MatMul(x, w) }", "takes no float64 as 'x1'"),
        ("net (int32[2,3] x, int32[2,3] w) => (y) { y = Mod <fmod=1> (x, w) }", "fmod"),
        ("net (float[2,3] x, int32[3] s) => (y) { y = ReduceMean(x) z = Neg(s) }", ""),
        ("net (float[1,1,4,4] x) => (y) { e = Constant <value_floats=[1.0,1.0,2.0,2.0]> () "
         "r = Constant <value_floats=[0.0,0.0,0.0,0.0,1.0,1.0,1.0,1.0]> () "
         "y = Resize <mode=\"linear\", coordinate_transformation_mode=\"tf_crop_and_resize\"> (x, r, e) }", "tf_crop"),
    ],
)  # fmt: skip
def test_forms_without_an_ascend_operator_say_why(text: str, reason: str) -> None:
    graph = legal(text)
    reasons = [node.engine_reason for node in graph.nodes if node.opdef is None]
    if reason:
        assert len(reasons) == 1 and reason in reasons[0]
    else:
        assert not reasons


def test_a_refusing_rule_leaves_nothing_behind() -> None:
    made = onnx_model(
        "net (float[1,6,4,4] x, float[3] s, float[3] b) => (y) { y = GroupNormalization <num_groups=3> (x, s, b) }", 18
    )
    graph = legalize(load_onnx(made))  # type: ignore[arg-type]
    assert [node.op_type for node in graph.nodes] == ["GroupNormalization"]
    assert "a scale or bias for every group" in graph.nodes[0].engine_reason


def test_operands_that_do_not_fit_are_errors_all_at_once() -> None:
    text = """
    net (float[1,3,8,8] x, float[4,2,3,3] w, float[5] s) => (y, z) {
        y = Conv(x, w)  z = InstanceNormalization(x, s, s)
    }"""
    with pytest.raises(InferError) as caught:
        legal(text)
    assert "2 problems" in str(caught.value)
    assert "enc/Conv" in str(caught.value) and "enc/InstanceNormalization" in str(caught.value)


def test_an_ascend_graph_is_already_legal() -> None:
    graph = legal("net (float[3] x) => (y) { y = Relu(x) }")
    assert legalize(graph) is graph


def test_outputs_may_be_inputs_or_constants() -> None:
    graph = legal("net (float[3] x) => (y, w) { y = Identity(x) }", w=np.ones(3, np.float32))
    assert graph.nodes == [] and graph.outputs[0] is graph.inputs[0]
    assert graph.outputs[1].is_const and graph.output_names == ["y", "w"]


def test_rules_are_found_by_opset_and_can_be_added() -> None:
    assert find_rule("", "Softmax", 12) is not find_rule("", "Softmax", 13)
    assert find_rule("", "GroupNormalization", 17) is None
    assert "Conv" in known_types()

    @rule("TestTwice", domain="test.legalize", since=2)
    def twice(step: Step) -> list[object]:
        if step.rank() > 1:
            raise Unmapped("a vector is needed")
        return list(step.out("Add", [step[0], step[0]]))

    source = Graph("own", "onnx")
    vector, matrix = source.add_input("v", (3,)), source.add_input("m", (2, 3))
    for tensor in (vector, matrix):
        source.add_foreign_node(
            "test.legalize", "TestTwice", [tensor], [tensor.desc], {}, f"twice_{tensor.name}", opset=2
        )
    source.set_outputs([node.output for node in source.nodes])
    made = legalize(source)
    assert [node.op_type for node in made.nodes] == ["Add", "TestTwice"]
    assert made.nodes[1].engine_reason == "test.legalize::2::TestTwice: a vector is needed"
    assert find_rule("test.legalize", "TestTwice", 1) is None


def test_a_transformer_block_agrees_with_onnxruntime(rng: np.random.Generator) -> None:
    heads, width, length = 3, 12, 5
    text = """
    block (float[B,5,12] x, bool[B,1,1,5] mask) => (y) {
        n = LayerNormalization(x, g, b)
        q0 = MatMul(n, wq)  k0 = MatMul(n, wk)  v0 = MatMul(n, wv)
        q1 = Reshape(q0, heads)  k1 = Reshape(k0, heads)  v1 = Reshape(v0, heads)
        q = Transpose <perm=[0,2,1,3]> (q1)  k = Transpose <perm=[0,2,3,1]> (k1)  v = Transpose <perm=[0,2,1,3]> (v1)
        s0 = MatMul(q, k)  s1 = Div(s0, root)  s = Where(mask, s1, low)
        p = Softmax(s)  c0 = MatMul(p, v)  c1 = Transpose <perm=[0,2,1,3]> (c0)  c = Reshape(c1, flat)
        o = MatMul(c, wo)  r = Add(x, o)
        h0 = MatMul(r, w1)  h1 = Div(h0, sqrt2)  h2 = Erf(h1)  h3 = Add(h2, one)  h4 = Mul(h0, h3)  h = Mul(h4, half)
        f = MatMul(h, w2)  y = Add(r, f)
    }"""
    weights = {name: rng.standard_normal((width, width)).astype(np.float32) / 4 for name in ("wq", "wk", "wv", "wo")}
    weights |= {
        "w1": rng.standard_normal((width, 20)).astype(np.float32),
        "w2": rng.standard_normal((20, width)).astype(np.float32),
    }
    weights |= {"g": rng.standard_normal(width).astype(np.float32), "b": rng.standard_normal(width).astype(np.float32)}
    weights |= {"heads": np.array([0, 0, heads, -1]), "flat": np.array([0, 0, width])}
    scalars = {"root": 2.0, "low": -1e9, "sqrt2": 2**0.5, "one": 1.0, "half": 0.5}
    weights |= {name: np.array(value, np.float32) for name, value in scalars.items()}
    feeds = {
        "x": rng.standard_normal((2, length, width)).astype(np.float32),
        "mask": rng.random((2, 1, 1, length)) > 0.3,
    }
    graph = check_against_ort(onnx_model(text, **weights), feeds)  # type: ignore[arg-type]
    assert {"LayerNorm", "BatchMatMulV2", "SoftmaxV2", "SelectV2", "Erf"} <= {node.op_type for node in graph.nodes}


@pytest.mark.parametrize(
    ("text", "weights", "place"),
    [
        (
            "y = Conv <pads = [1000000000, 1000000000, 1000000000, 1000000000]> (x, k)",
            {},
            "node 'enc/Conv': tensor 'y'",
        ),
        ("a = ConstantOfShape (s) y = Add (a, k)", {"s": np.array([10**6, 10**6, 1, 1])}, "tensor 'a', and 1 more"),
        ("a = Tile (k, s) y = Add (a, x)", {"s": np.array([10**6, 10**6, 1, 1])}, "node 'enc/Tile': tensor 'a', and 1"),
    ],
)
def test_a_tensor_beyond_the_chips_memory_is_refused_before_anything_reads_it(
    text: str, weights: dict[str, np.ndarray], place: str
) -> None:
    weights = {"k": np.ones((1, 1, 1, 1), np.float32), **weights}
    model = onnx_model(f"net (float[1,1,1,1] x) => (y) {{ {text} }}", **weights)
    with pytest.raises(TargetError, match=f"(?s){place}.*memory of Ascend910B4.*at most 34359738368 bytes"):
        legalize(load_onnx(model), load_target("Ascend910B4"))


@pytest.mark.parametrize(
    "node",
    [
        'Resize <mode = "linear"> (x, , scales)',
        'Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (x, , scales)',
        'Resize <mode = "cubic"> (x, , scales)',
        "CumSum (x, axis)",
        "CumSum <reverse = 1, exclusive = 1> (x, axis)",
    ],
)
def test_infinities_and_nan_reach_only_what_they_are_mixed_into(node: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 2, 6, 8)).astype(np.float32)  # whole results: else onnxruntime leaves the specification
    x[0, 0, 3, 4], x[0, 1, 2, 2], x[0, 1, 5, 0] = np.inf, np.nan, -np.inf
    constants = {"scales": np.array([1, 1, 2, 1.5], np.float32), "axis": np.array(3)}
    used = {name: value for name, value in constants.items() if name in node}
    model = onnx_model(f"net (float[1,2,6,8] x) => (y) {{ y = {node} }}", **used)
    graph = check_against_ort(model, {"x": x}, node)
    assert not any(item.op_type.endswith("MatMulV2") for item in graph.nodes)
    assert 0 < np.isfinite(evaluate(graph, {"x": x})["y"]).mean() < 1


def test_axes_outside_the_rank_are_refused() -> None:
    with pytest.raises(InferError, match="outside the operand's rank"):
        legal("net (float[2,3] x) => (y) { y = CumSum(x, axis) }", axis=np.array(5))
    with pytest.raises(InferError, match="outside the operand's rank"):
        legal("net (int8[2,3] x) => (y) { y = DequantizeLinear<axis = 7>(x, s) }", s=np.ones(3, np.float32))
