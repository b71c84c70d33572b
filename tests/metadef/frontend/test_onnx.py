"""The ONNX front end: names, shapes, folding, storage forms, and errors that teach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from metadef.dtype import DType
from metadef.error import InferError, LabError, ModelError, OperatorError, UsageError
from metadef.frontend.onnx import load_onnx
from metadef.graph import Graph
from metadef.legalize import legalize
from metadef.ops.evaluate import evaluate


def model(
    text: str, opset: int = 17, weights: Mapping[str, np.ndarray] | None = None, **header: Any
) -> onnx.ModelProto:
    """A model from ONNX's text form of a graph, with extra initializers."""
    graph = parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in (weights or {}).items())
    imports = [helper.make_opsetid("", opset), *header.pop("imports", [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **header)


def types_of(graph: Graph) -> list[str]:
    return [node.op_type for node in graph.nodes]


# -- names and layers ------------------------------------------------------------------------------------


def test_names_layers_and_origins() -> None:
    made = model("net (float[1,4] x) => (float[1,4] y) { a = Relu(x) b = Neg(a) y = Relu(b) }")
    made.graph.node[0].name = "/Block12/FFN/Relu"
    made.graph.node[1].name = "/Block12/FFN/Relu"
    graph = load_onnx(made)
    first, second, third = graph.nodes
    assert (first.path, first.layer, first.origins) == ("Block12/FFN/Relu", "Block12/FFN", ("/Block12/FFN/Relu",))
    assert second.path == "Block12/FFN/Relu_1"
    assert graph.notes == ["nodes share a name and were numbered: '/Block12/FFN/Relu' (2 nodes)"]
    assert (third.name, third.layer) == ("Relu_y", "")
    assert [tensor.name for node in graph.nodes for tensor in node.outputs] == ["a", "b", "y"]
    assert graph.dialect == "onnx" and graph.output_names == ["y"]
    assert {node.opset for node in graph.nodes} == {17}


def test_a_node_named_like_another_nodes_value_steps_aside() -> None:
    made = model("net (float[4] x) => (float[4] y) { a = Relu(x) y = Neg(a) }")
    made.graph.node[0].name, made.graph.node[1].name = "y", "a"
    graph = load_onnx(made)
    assert [tensor.name for node in graph.nodes for tensor in node.outputs] == ["a", "y"]
    assert [node.name for node in graph.nodes] == ["y_Relu", "a_Neg"]


def test_names_are_made_inside_the_layer_of_the_result() -> None:
    graph = load_onnx(model('net (float[4] x) => (float[4] "enc/0/act") { "enc/0/act" = Relu(x) }'))
    assert graph.nodes[0].path == "enc/0/Relu_act"


def test_attributes_become_plain_values() -> None:
    graph = load_onnx(
        model('net (float[1,1,5,5] x) => (y) { y = MaxPool <kernel_shape=[2,2], auto_pad="VALID", ceil_mode=1> (x) }')
    )
    assert graph.nodes[0].attrs == {"kernel_shape": (2, 2), "auto_pad": "VALID", "ceil_mode": 1}


def test_unread_nodes_and_results_are_left_out() -> None:
    graph = load_onnx(model("net (float[4] x) => (float[4] y) { y, mask = Dropout(x) z = Neg(x) }"))
    assert types_of(graph) == ["Dropout"]
    assert len(graph.nodes[0].outputs) == 1


def test_the_callers_model_is_not_changed() -> None:
    made = model("net (float[4] x) => (float[4] y) { y, mask = Dropout(x) z = Neg(x) }")
    before = made.SerializeToString(deterministic=True)
    load_onnx(made)
    assert made.SerializeToString(deterministic=True) == before


def test_unsorted_nodes_are_sorted() -> None:
    graph = load_onnx(model("net (float[4] x) => (float[4] y) { y = Neg(a) a = Relu(x) }"))
    assert types_of(graph) == ["Relu", "Neg"]


# -- shapes ----------------------------------------------------------------------------------------------

SYMBOLIC = "net (float[N,3,H,H] x) => (y) { y = Relu(x) }"


def test_an_open_batch_is_one_and_other_dimensions_are_asked_for() -> None:
    graph = load_onnx(model(SYMBOLIC), dims={"H": 8})
    assert graph.inputs[0].desc.origin_shape == (1, 3, 8, 8)
    assert graph.notes == ["input 'x': open batch dimension 'N' taken as 1"]
    with pytest.raises(ModelError) as caught:
        load_onnx(model(SYMBOLIC))
    text = str(caught.value)
    assert "port 'x'" in text and "axis 2" in text and "axis 3" in text and "--dim H=" in text and "--shape x=" in text


def test_shapes_win_over_dims_and_declarations() -> None:
    assert load_onnx(model(SYMBOLIC), shapes={"x": (2, 3, 5, 5)}).outputs[0].desc.origin_shape == (2, 3, 5, 5)
    fixed = model("net (float[1,3] x) => (float[1,3] y) { y = Relu(x) }")
    assert load_onnx(fixed, shapes={"x": (7, 3)}).outputs[0].desc.origin_shape == (7, 3)
    two = model("net (float[N,3] a, float[N,3] b) => (y) { y = Add(a, b) }")
    assert load_onnx(two, shapes={"a": (4, 3)}).inputs[1].desc.origin_shape == (4, 3)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"shapes": {"xx": (1, 3, 2, 2)}}, "E10016"),
        ({"shapes": {"x": (1, 3, 2)}}, "E10049"),
        ({"shapes": {"x": (1, 3, -1, 2)}}, "E10011"),
        ({"shapes": {"x": (1, 3, 4, 5)}}, "E10001"),
        ({"dims": {"W": 3}}, "E10016"),
        ({"dims": {"H": -3}}, "E10011"),
        ({"values": {"z": np.zeros(1)}}, "E10016"),
    ],
)
def test_wrong_bindings_are_usage_errors(given: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError, match=code):
        load_onnx(model(SYMBOLIC), **given)


def test_an_input_without_rank_and_a_sequence_are_refused() -> None:
    made = model("net (float[1] x) => (y) { y = Relu(x) }")
    made.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="declares no shape"):
        load_onnx(made)
    assert load_onnx(made, shapes={"x": (3, 2)}).outputs[0].desc.origin_shape == (3, 2)
    with pytest.raises(OperatorError, match="no tensor"):
        load_onnx(model("net (seq(float[1]) x) => (y) { zero = Constant <value_int=0> () y = SequenceAt(x, zero) }"))


def test_shape_arithmetic_is_folded() -> None:
    text = """
    net (float[N,4,6] x) => (y) {
        s = Shape(x)  zero = Constant <value = int64 {0}> ()  n = Gather(s, zero)
        axes = Constant <value = int64[1] {0}> ()  n1 = Unsqueeze(n, axes)
        rest = Constant <value = int64[1] {-1}> ()  target = Concat <axis=0> (n1, rest)
        y = Reshape(x, target)
    }"""
    graph = load_onnx(model(text), dims={"N": 5})
    assert types_of(graph) == ["Reshape"]
    assert graph.outputs[0].desc.origin_shape == (5, 24)
    assert graph.nodes[0].inputs[1].const.tolist() == [5, -1]  # type: ignore[union-attr]


def test_constant_subgraphs_are_folded_but_random_ones_are_not() -> None:
    text = """
    net (float[3] x) => (y, r) {
        a = Constant <value_floats = [1.0, 2.0, 3.0]> ()  b = Softmax(a)  c = Identity(b)
        y = Mul(x, c)  r = RandomNormalLike(a)
    }"""
    graph = load_onnx(model(text))
    assert types_of(graph) == ["Mul", "RandomNormalLike"]
    weights = np.exp([1, 2, 3]) / np.exp([1, 2, 3]).sum()
    np.testing.assert_allclose(graph.nodes[0].inputs[1].const, weights, rtol=1e-6)  # type: ignore[union-attr, arg-type]


def test_a_huge_uniform_constant_takes_no_memory() -> None:
    shape = "s = Constant <value = int64[2] {30000, 10000}> ()"
    text = f"net (float[1] x) => (y) {{ {shape} c = ConstantOfShape(s) y = Add(x, c) }}"
    graph = load_onnx(model(text))
    constant = graph.nodes[0].inputs[1]
    assert constant is not None and constant.const is not None
    assert constant.const.shape == (30000, 10000) and constant.const.strides == (0, 0)


def test_inputs_can_be_fixed_to_values() -> None:
    made = model("net (float[2,6] x, int64[2] s) => (y) { y = Reshape(x, s) }")
    with pytest.raises(InferError, match="known only when the model runs"):
        load_onnx(made)
    graph = load_onnx(made, values={"s": np.array([3, -1])})
    assert [tensor.name for tensor in graph.inputs] == ["x"]
    assert graph.outputs[0].desc.origin_shape == (3, 4)


def test_initializers_that_are_inputs_are_defaults() -> None:
    made = model("net (float[2] x, float[2] w) => (y) { y = Add(x, w) }", weights={"w": np.ones(2, np.float32)})
    assert [tensor.name for tensor in load_onnx(made).inputs] == ["x"]


def test_declared_shapes_may_lie() -> None:
    made = model("net (float[2,3] x) => (float[9,9] y) <float[7] a> { a = Relu(x) y = Neg(a) }")
    graph = load_onnx(made)
    assert graph.outputs[0].desc.origin_shape == (2, 3)
    assert graph.notes == ["output 'y' is declared as [9, 9], but its operators make [2, 3]"]
    assert not load_onnx(model("net (float[N,3] x) => (float[1,K] y) { y = Relu(x) }"), dims={"N": 2}).notes


def test_empty_batches_and_scalars_pass() -> None:
    graph = load_onnx(model("net (float[N,3] x, float s) => (y) { y = Mul(x, s) }"), dims={"N": 0})
    assert graph.outputs[0].desc.origin_shape == (0, 3)
    assert graph.inputs[1].desc.origin_shape == ()


# -- control flow, functions, old opsets -----------------------------------------------------------------

BRANCHES = """
net (float[2,3] x) => (y) {
    s = Size(x)  six = Constant <value = int64 {%d}> ()  same = Equal(s, six)
    y = If (same) <
        then_branch = yes () => (t) { u = Neg(x) t = Relu(u) },
        else_branch = no () => (e) { e = Abs(x) }>
}"""


@pytest.mark.parametrize(("size", "expected"), [(6, ["Neg", "Relu"]), (7, ["Abs"])])
def test_the_taken_branch_of_a_constant_condition_is_inlined(size: int, expected: list[str]) -> None:
    assert types_of(load_onnx(model(BRANCHES % size))) == expected


def test_a_real_branch_stays_one_node_whose_sides_are_given_what_they_capture() -> None:
    text = """
    net (float[2,3] x, bool c) => (y) {
        k = Neg(x)
        y = If (c) <
            then_branch = yes () => (t) { t = Relu(k) },
            else_branch = no () => (e) { e = Abs(x) }>
    }"""
    graph = load_onnx(model(text))
    branch = graph.nodes[1]
    assert [tensor.name for tensor in branch.inputs if tensor is not None] == ["c", "k", "x"]
    assert {key: types_of(side) for key, side in branch.subgraphs.items()} == {
        "then_branch": ["Relu"],
        "else_branch": ["Abs"],
    }
    assert [len(side.inputs) for side in branch.subgraphs.values()] == [2, 2]


def test_local_functions_are_inlined() -> None:
    made = model(
        "net (float[3] x) => (float[3] y) { y = my.Twice(x) }".replace("my.", "my."),
        imports=[helper.make_opsetid("my", 1)],
    )
    made.graph.node[0].domain, made.graph.node[0].op_type = "my", "Twice"
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    made.functions.append(helper.make_function("my", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    graph = load_onnx(made)
    assert types_of(graph) == ["Add"]


def test_models_older_than_opset_7_are_converted() -> None:
    made = model("net (float[2,3] x, float[3] b) => (y) { y = Add <broadcast=1> (x, b) }", opset=6)
    graph = load_onnx(made)
    assert graph.notes == ["opset 6 was converted to 7"]
    feeds = {"x": np.ones((2, 3), np.float32), "b": np.arange(3, dtype=np.float32)}
    assert evaluate(legalize(graph), feeds)["y"].tolist() == [[1, 2, 3]] * 2


# -- storage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint8, np.int64, np.float64, bool])
@pytest.mark.parametrize("raw", [True, False])
def test_constants_are_read_from_every_field(dtype: type, raw: bool) -> None:
    value = np.array([[0, 1], [1, 3]]).astype(dtype)
    elem = helper.np_dtype_to_tensor_dtype(value.dtype)
    tensor = (
        numpy_helper.from_array(value, "w") if raw else helper.make_tensor("w", elem, value.shape, value.reshape(-1))
    )
    made = model("net (float[1] x) => (w, y) { y = Relu(x) }")
    made.graph.initializer.append(tensor)
    found = load_onnx(made).outputs[0]
    assert found.desc.dtype is DType.from_numpy(dtype)
    np.testing.assert_array_equal(found.const, value)  # type: ignore[arg-type]


def test_bfloat16_constants_are_kept_as_bits() -> None:
    tensor = helper.make_tensor("w", TensorProto.BFLOAT16, (3,), [1.0, -2.5, 0.15625])
    made = model("net (bfloat16[3] x) => (y) { y = Add(x, w) }")
    made.graph.initializer.append(tensor)
    constant = load_onnx(made).nodes[0].inputs[1]
    assert constant is not None and constant.desc.dtype is DType.BF16
    assert constant.const is not None and constant.const.tolist() == [0x3F80, 0xC020, 0x3E20]


def external(tmp_path: Path, value: np.ndarray, **where: Any) -> onnx.ModelProto:
    made = model("net (float[3] x) => (y) { y = Add(x, w) }", weights={"w": value})
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, entry in where.items():
        tensor.external_data.add(key=key, value=str(entry))
    onnx.save(made, tmp_path / "m.onnx")
    return made


def test_external_data_is_mapped(tmp_path: Path) -> None:
    value = np.array([1, 2, 3], np.float32)
    (tmp_path / "w.bin").write_bytes(b"\0" * 64 + value.tobytes())
    external(tmp_path, value, location="w.bin", offset=64, length=12)
    constant = load_onnx(tmp_path / "m.onnx").nodes[0].inputs[1]
    assert constant is not None
    np.testing.assert_array_equal(constant.const, value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"location": "gone.bin"}, "missing"),
        ({"location": "../w.bin"}, "outside the model's folder"),
        ({"location": "w.bin", "offset": 8}, "does not fit"),
        ({"location": "w.bin", "offset": -4}, "does not fit"),
        ({"location": "w.bin", "length": "a dozen"}, "does not fit"),
        ({"location": "."}, "missing"),
    ],
)
def test_broken_external_data(tmp_path: Path, where: dict[str, Any], message: str) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 12)
    made = external(tmp_path, np.ones(3, np.float32), **where)
    with pytest.raises(ModelError, match=message):
        load_onnx(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="give the model as a path"):
        load_onnx(made)


# -- errors ----------------------------------------------------------------------------------------------


def test_unreadable_files(tmp_path: Path) -> None:
    whole = model(
        "net (float[4] x) => (y) { y = Add(x, w) }", weights={"w": np.ones(4, np.float32)}
    ).SerializeToString()
    (tmp_path / "other.onnx").write_bytes(whole)
    cases: Sequence[tuple[str, bytes, str]] = [
        ("empty.onnx", b"", "E13015.*is empty"),
        ("cut.onnx", whole[:-7], "E10041.*cut off or damaged"),
        ("torch.onnx", b"PK\x03\x04rest", "ZIP archive"),
        ("lfs.onnx", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("page.onnx", b"<html></html>", "HTML"),
        ("noise.onnx", b"\xff\xff\xff\xff\xff\xff", "is not ONNX"),
        (
            "nothing.onnx",
            helper.make_model(helper.make_graph([], "g", [], [])).SerializeToString()[:2],
            "E16004.*no graph",
        ),
    ]
    for name, data, message in cases:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ModelError, match=message):
            load_onnx(tmp_path / name)
        if data:
            with pytest.raises(ModelError):
                load_onnx(data)
    with pytest.raises(ModelError, match=r"(?s)E10410.*does not exist.*other\.onnx"):
        load_onnx(tmp_path / "absent.onnx")
    with pytest.raises(ModelError, match="is a folder"):
        load_onnx(str(tmp_path))
    assert types_of(load_onnx(str(tmp_path / "other.onnx"))) == types_of(load_onnx(whole)) == ["Add"]


def test_unknown_operators_are_listed_all_at_once() -> None:
    made = model("net (float[4] x) => (y) { a = Reluu(x) b = Mish(a) c = Upsample(b) y = Relu(c) }", opset=17)
    made.graph.node.append(helper.make_node("FusedMatMul", ["x"], ["q"], name="fmm", domain="com.microsoft"))
    with pytest.raises(OperatorError) as caught:
        load_onnx(made)
    text = str(caught.value)
    assert "4 problems" in text
    assert "unknown operator: ai.onnx::17::Reluu" in text and "Relu" in text.split("nearest known")[1]
    assert "ai.onnx::17::Mish" in text and "exists from 18" in text
    assert "withdrawn in 10" in text
    assert "node 'fmm'" in text and "com.microsoft" in text


def test_opsets_out_of_range() -> None:
    with pytest.raises(ModelError, match=r"E16005.*opset 999"):
        load_onnx(model("net (float[4] x) => (y) { y = Relu(x) }", opset=999))
    made = model("net (float[4] x) => (y) { y = Relu(x) }")
    made.ClearField("opset_import")
    with pytest.raises(ModelError, match="imports no opset"):
        load_onnx(made)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("net (float[4] x) => (y) { y = Relu(x) y = Neg(x) }", "E13009.*'y' is made twice"),
        ("net (float[4] x) => (y) { x = Relu(x) y = Neg(x) }", "'x' is made twice"),
        ("net (float[4] xray) => (y) { y = Relu(xrax) }", "(?s)E13025.*'xrax'.*did you mean 'xray'"),
        ("net (float[4] x) => (z) { y = Relu(x) }", "E13031.*'z'"),
        ("net (float[4] x) => (y) { a = Add(x, b) b = Neg(a) y = Relu(b) }", r"(?s)cycle.*Add of 'a'.*Neg of 'b'"),
        ("net (float[4] x) => () { y = Relu(x) }", "E16001"),
        ("net (float[4] x) => (y) { y = Relu(x, x) }", "E14001"),
        ("net (float[1,3,8,8] x) => (y) { y = MaxPool(x) }", "(?s)E14001.*kernel_shape"),
        ("net (float[2,3] x) => (y) { y = Relu <slope = 2> (x) }", "(?s)E14001.*slope"),
    ],
)
def test_broken_graphs(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_onnx(model(text))


def looped(body: str, outer: str = "y = Loop(n, t, x)") -> onnx.ModelProto:
    """A Loop over three trips that carries x, with the given body."""
    made = model(f"net (float[4] x, int64 n, bool t) => (y) {{ {outer} }}".replace("Loop", "Identity <hole = 1>"))
    node = made.graph.node[0]
    node.op_type = "Loop"
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("body", parser.parse_graph(body)))
    return made


HEAD = "b (int64 i, bool c, float[4] s) => (bool d, float[4] r)"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"{HEAD} {{ d = Identity(c) r = Neg(a) a = Abs(s) }}", "(?s)E13009.*'b' are not in the order.*Abs"),
        (f"{HEAD} {{ d = Identity(c) r = Neg(s) r = Abs(s) }}", "E13009.*'r' is made twice in subgraph 'b'"),
        (f"{HEAD} {{ d = Identity(c) r = Neg <slope = 2> (s) }}", "(?s)E14001.*slope"),
        (
            "b (int64 i, bool c, float[4] s) => (bool d) { d = Identity(c) }",
            "(?s)E14001.*'b' of the Loop has 1 results",
        ),
        (
            "b (float i, bool c, float[4] s) => (bool d, float[4] r) { d = Identity(c) r = Neg(s) }",
            "E14001.*declares 'i'",
        ),
        ("b (int64 i, bool c) => (bool d, float[4] r) { d = Identity(c) r = Neg(x) }", "(?s)E14001.*has 2 inputs.*3"),
    ],
)
def test_broken_bodies(body: str, message: str) -> None:
    load_onnx(looped(f"{HEAD} {{ d = Identity(c) r = Neg(s) }}"))
    with pytest.raises((ModelError, InferError), match=message):
        load_onnx(looped(body))


@pytest.mark.parametrize("damage", ["name", "field"])
def test_a_broken_body_attribute(damage: str) -> None:
    made = looped(f"{HEAD} {{ d = Identity(c) r = Neg(s) }}")
    if damage == "name":
        made.graph.node[0].attribute[0].name = "bodies"
    else:
        made.graph.node[0].attribute[0].i = 3
    with pytest.raises(ModelError, match="E14001"):
        load_onnx(made)


@pytest.mark.parametrize("operand", ["net (float[4] x, float n, bool t)", "net (float[4] x, int64 n, bool[2] t)"])
def test_what_steers_a_loop_is_one_number_of_its_type(operand: str) -> None:
    made = looped(f"{HEAD} {{ d = Identity(c) r = Neg(s) }}")
    inputs = parser.parse_graph(f"{operand} => (y) {{ y = Neg(x) }}").input
    del made.graph.input[:]
    made.graph.input.extend(inputs)
    with pytest.raises(InferError, match="cannot steer the Loop"):
        load_onnx(made)


def test_a_scans_body_declares_the_rows_it_gets() -> None:
    body = parser.parse_graph("b (float[4] s, float[5] v) => (float[4] r) { r = Neg(s) }")
    made = model("net (float[4] x, float[3,4] rows) => (y) { y = Identity(x) }")
    node = made.graph.node[0]
    node.op_type = "Scan"
    node.input.append("rows")
    node.attribute.extend([helper.make_attribute("body", body), helper.make_attribute("num_scan_inputs", 1)])
    with pytest.raises(InferError, match=r"(?s)declares 'v' as another tensor.*4"):
        load_onnx(made)


def test_a_branch_behind_a_failed_node_is_not_looked_at() -> None:
    """Its captured operand has no type; the first failure is the one that is told."""
    made = model("net (float[4] x, float[3] w, bool c) => (y) { bad = Add(x, w) y = Identity(c) }")
    node = made.graph.node[1]
    node.op_type = "If"
    for key in ("then_branch", "else_branch"):
        node.attribute.append(helper.make_attribute(key, parser.parse_graph("g () => (float[4] r) { r = Neg(bad) }")))
    with pytest.raises(InferError, match="Add"):
        load_onnx(made)


def test_operands_that_do_not_fit_name_the_node() -> None:
    text = "net (float[2,3] x, float[4,5] w) => (y) { a = Neg(x) y = MatMul(a, w) }"
    made = model(text)
    made.graph.node[1].name = "head/fc"
    with pytest.raises(InferError, match=r"(?s)node 'head/fc'.*MatMul\(a \[2, 3\], w \[4, 5\]\)"):
        load_onnx(made)


def test_results_known_only_at_run_time_are_refused() -> None:
    with pytest.raises(InferError, match="NonZero, whose result depends on values"):
        load_onnx(model("net (float[4] x) => (y) { y = NonZero(x) }"))


def test_types_without_an_engine() -> None:
    with pytest.raises(OperatorError, match=r"(?s)no engine here knows.*string"):
        load_onnx(model("net (string[4] x) => (y) { y = Identity(x) }"))


def test_damaged_constants() -> None:
    made = model("net (float[4] x) => (y) { y = Add(x, w) }", weights={"w": np.ones(4, np.float32)})
    made.graph.initializer[0].dims[0] = 5
    with pytest.raises(ModelError, match=r"(?s)constant 'w' is damaged.*5 elements"):
        load_onnx(made)


def test_more_axes_than_an_array_has_are_refused() -> None:
    ones = ",".join(["1"] * 65)
    with pytest.raises(InferError, match=r"(?s)value 'x' has more axes.*64 axes at most.*65 axes"):
        load_onnx(model(f"net (float[{ones}] x) => (y) {{ y = Relu(x) }}"))
    deep = model("net (float[1] x) => (y) { y = Reshape(x, s) }", weights={"s": np.ones(65, np.int64)})
    with pytest.raises(InferError, match=r"(?s)value 'y' has more axes.*65 axes"):
        load_onnx(deep)
    constant = model("net (float[1] x) => (y) { y = Add(x, w) }", weights={"w": np.ones(1, np.float32)})
    constant.graph.initializer[0].dims[:] = [1] * 65
    with pytest.raises(ModelError, match=r"(?s)constant 'w' has more axes.*65 axes"):
        load_onnx(constant)


@pytest.mark.filterwarnings("error")
def test_constants_that_are_no_numbers_are_folded_in_silence() -> None:
    text = "net (float[3] x) => (y) { a = Log(w)  b = Exp(w)  c = Add(a, b)  y = Mul(x, c) }"
    graph = load_onnx(model(text, weights={"w": np.array([-1, 0, 1e30], np.float32)}))
    assert types_of(graph) == ["Mul"]


def test_operands_that_the_onnx_package_stumbles_over_name_the_node() -> None:
    made = model("net (float[17,1] x) => (y) { y = STFT(x, step) }", weights={"step": np.ones((0, 2), np.int64)})
    with pytest.raises(LabError, match="STFT"):
        load_onnx(made)
    made = model("net (float[5,16] x, int64[2,0] i) => (y) { y = GatherND <batch_dims = -1> (x, i) }")
    with pytest.raises(InferError, match="batch_dims is negative"):
        load_onnx(made)


@pytest.mark.parametrize("op_type", ["Hardmax", "LRN <size = 3>"])
def test_what_the_reference_has_wrong_is_not_folded(op_type: str) -> None:
    weights = {"w": np.ones((4, 2, 3, 3), np.float32)}
    made = model(f"net (float[4,2,3,3] x) => (y) {{ a = {op_type} (w)  y = Add(a, x) }}", 12, weights=weights)
    assert types_of(load_onnx(made)) == [op_type.split()[0], "Add"]


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("opset", [12, 13])
def test_constants_are_normalised_over_the_axes_that_their_opset_means(
    op_type: str, opset: int, rng: np.random.Generator
) -> None:
    ort = pytest.importorskip("onnxruntime")
    w = rng.standard_normal((4, 2, 3)).astype(np.float32)
    made = model(f"net (float[4,2,3] x) => (y) {{ a = {op_type}(w)  y = Add(a, x) }}", opset, weights={"w": w})
    x = np.zeros_like(w)
    wanted = ort.InferenceSession(made.SerializeToString()).run(None, {"x": x})[0]
    got = evaluate(legalize(load_onnx(made)), {"x": x})["y"]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op_type", ["GreaterOrEqual", "LessOrEqual"])
@pytest.mark.parametrize("opset", [12, 15, 16])
def test_comparisons_give_truth_values_in_every_opset(op_type: str, opset: int) -> None:
    """Before 16 the onnx package infers nothing for them."""
    made = load_onnx(model(f"net (float[2,1] a, float[3] b) => (y) {{ y = {op_type}(a, b) }}", opset))
    assert (made.outputs[0].desc.dtype, made.outputs[0].desc.origin_shape) == (DType.BOOL, (2, 3))


def test_constants_that_share_a_name_or_have_no_size_are_refused_even_unread() -> None:
    made = model("net (float[4] x) => (y) { y = Relu(x) }", weights={"w": np.ones(4, np.float32)})
    made.graph.initializer.append(made.graph.initializer[0])
    made.graph.initializer[1].dims[0] = -4
    with pytest.raises(ModelError, match=r"(?s)E13009: 2 constants are called 'w'.*E10041.*negative dimension.*-4"):
        load_onnx(made)


def test_a_negative_size_is_no_open_dimension() -> None:
    made = model("net (float[4,3] x) => (y) { y = Relu(x) }")
    sizes = made.graph.input[0].type.tensor_type.shape.dim
    sizes[0].dim_value = -4
    with pytest.raises(ModelError, match=r"(?s)E10011: port 'x'.*-1 for an open.*-4, 3.*--shape x="):
        load_onnx(made)
    sizes[0].dim_value = -1
    assert load_onnx(made).inputs[0].desc.origin_shape == (1, 3)


def test_no_error_escapes_its_family(rng: np.random.Generator) -> None:
    """Cut and flipped bytes give a LabError or a graph, never anything else."""
    whole = model(
        "net (float[1,3,6,6] x) => (y) { a = Conv(x, w) b = Relu(a) y = Flatten(b) }",
        weights={"w": np.ones((2, 3, 3, 3), np.float32)},
    ).SerializeToString()
    for _ in range(60):
        data = bytearray(whole[: rng.integers(1, len(whole) + 1)])
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        try:
            load_onnx(bytes(data))
        except LabError:
            continue


# -- whole models ----------------------------------------------------------------------------------------


def test_the_bundled_model_loads() -> None:
    import npusim.data

    graph = load_onnx(Path(npusim.data.__file__).parent / "digits.onnx")
    assert types_of(graph)[:4] == ["Conv", "BatchNormalization", "Relu", "MaxPool"]
    assert {node.layer for node in graph.nodes} > {"stem", "layer1/block0"}


def light_models() -> list[Path]:
    return sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))


@pytest.mark.parametrize("path", light_models(), ids=lambda path: path.stem)
def test_the_light_models_load_and_legalise(path: Path) -> None:
    graph = load_onnx(path)
    assert "ConstantOfShape" not in types_of(graph)
    legal = legalize(graph)
    assert all(node.opdef is not None for node in legal.nodes)
    assert [tensor.desc.origin_shape for tensor in legal.outputs] == [
        tensor.desc.origin_shape for tensor in graph.outputs
    ]


def test_long_chains_load_without_recursion() -> None:
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(5000)]
    ends = [helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, (2,)) for i in (0, 5000)]
    made = helper.make_model(
        helper.make_graph(nodes, "long", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 17)]
    )
    made.ir_version = 8
    assert len(legalize(load_onnx(made)).nodes) == 5000


def test_a_constant_that_the_reference_cannot_compute_is_left_to_the_device() -> None:
    text = "net (float[4] x) => (y) { w = DequantizeLinear(q, s) y = Add(x, w) }"
    made = model(text, opset=13, weights={"q": np.arange(4, dtype=np.int8), "s": np.array(0.5, np.float32)})
    graph = load_onnx(made)
    assert types_of(graph) == ["DequantizeLinear", "Add"]
    assert "was not folded" in graph.notes[0]
    result = evaluate(legalize(graph), {"x": np.zeros(4, np.float32)})["y"]
    assert result.tolist() == [0, 0.5, 1, 1.5]
