"""The text form: it prints and parses back to the same text, and its errors name the line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadef.dtype import DType
from metadef.error import ContractError, InferError, ModelError, OperatorError
from metadef.format import Format
from metadef.graph import Graph
from metadef.kernel import Engine, FusedOp
from metadef.text import checksum, constants_of, parse_graph, print_graph, print_node

UNARY = ("Relu", "Neg", "Exp", "LeakyRelu", "ClipByValue", "Sigmoid")
BINARY = ("Add", "Mul", "Sub", "Maximum")
NAMES = st.text(st.sampled_from('abz/.:_-%" \\ü0'), min_size=1, max_size=6)


def round_trips(graph: Graph) -> None:
    text = print_graph(graph)
    again = parse_graph(text, constants_of(graph))
    again.verify()
    assert print_graph(again) == text


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Chains and diamonds of element-wise nodes with odd names, epilogues, constants, engines and marks."""
    graph = Graph(draw(NAMES))
    dtype = draw(st.sampled_from([DType.FLOAT, DType.FLOAT16]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    tensors = [graph.add_input(graph.unique_name(draw(NAMES)) + "_in", (2, 3), dtype)]
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            value = rng.standard_normal(draw(st.sampled_from([(3,), (2, 3), ()]))).astype(dtype.numpy)
            constant = graph.add_const(draw(NAMES), np.asarray(value))
        else:
            constant = draw(st.sampled_from(tensors))
        source = draw(st.sampled_from(tensors))
        if draw(st.booleans()):
            slope = {"negative_slope": draw(st.floats(0, 1))}
            op_type = draw(st.sampled_from(UNARY))
            attrs = slope if op_type == "LeakyRelu" else {}
            node = graph.add_node(op_type, [source], attrs, draw(NAMES), output_names=[draw(NAMES)])
        else:
            node = graph.add_node(draw(st.sampled_from(BINARY)), [source, constant], {}, draw(NAMES))
        if draw(st.booleans()):
            graph.set_input(node, len(node.inputs), source)
            node.fused = (FusedOp("Relu"), FusedOp("Add", operand=len(node.inputs) - 1), FusedOp("Relu6"))
        node.engine = draw(st.sampled_from([None, *Engine]))
        node.engine_reason, node.layer = draw(st.sampled_from(["", "why not"])), draw(st.sampled_from(["", "a/b"]))
        node.origins = tuple(draw(st.lists(NAMES, max_size=2)))
        tensors.append(node.output)
    graph.set_outputs([tensors[-1]], [draw(NAMES)])
    return graph


@settings(max_examples=60)
@given(graphs())
def test_any_graph_round_trips(graph):
    round_trips(graph)


def test_formats_subgraphs_foreign_nodes_and_control_edges_round_trip(golden):
    graph = Graph("outer", "onnx")
    x = graph.add_input("x", (1, 20, 4, 4), DType.FLOAT16, Format.NCHW)
    table = np.arange(9, dtype=np.int64)
    attrs = {"axis": 1, "names": ["a", "b"], "table": table, "raw": b"\x00\xff", "none": None, "type": DType.INT8}
    desc = x.desc.stored_as(Format.NC1HWC0, 16)
    node = graph.add_foreign_node("com.microsoft", "Odd", [x, None], [desc, x.desc], attrs, "odd", opset=2)
    cond = graph.add_foreign_node("", "If", [node.outputs[1]], [x.desc], {}, "if", opset=13)
    for key in ("then_branch", "else_branch"):
        inner = Graph(key, "onnx")
        value = np.asarray([0.1, np.inf, np.nan], np.float32)
        inner_node = inner.add_foreign_node(
            "", "Add", [node.outputs[0], inner.add_const("k", value)], [x.desc], {}, "add"
        )
        inner.set_outputs([inner_node.output])
        cond.subgraphs[key] = inner
    cond.control_inputs = (node,)
    cond.device_mark = "cpu"
    graph.set_outputs([cond.output], ["y"])
    text = print_graph(graph)
    golden(text)
    assert print_graph(parse_graph(text, constants_of(graph))) == text
    assert print_node(cond) in text


def test_details_can_be_left_out():
    graph = parse_graph("""
graph("d"):
  %x : float32[2] = Data()
  %y = Relu(x=%x) layer="l" origins=["o"] engine=AICPU reason="r"
  return (%y)
""")
    assert "layer" in print_graph(graph)
    assert print_graph(graph, details=False).splitlines()[2] == "  %y : float32[2]ND = Relu(x=%x)"
    assert graph.output_names == ["y"]


def test_random_constants_and_defaults_of_hand_written_graphs():
    graph = parse_graph("""
# a comment
graph("seeds"):
  %a : float32[40] = Const(seed=1)
  %b : float16[40] = Const(seed=1, low=2, high=3)
  %c : int32[40] = Const(seed=2)
  return (%a, %b, %c)
""")
    a, b, c = (tensor.const for tensor in graph.outputs)
    assert a is not None and b is not None and c is not None
    assert a.dtype == np.float32 and len(set(a)) == 40
    assert b.dtype == np.float16 and b.min() >= 2 and b.max() <= 3
    assert c.dtype == np.int32 and set(c) <= set(range(-8, 8))


def test_checksums_see_values_shape_and_type():
    a = np.arange(12, dtype=np.float32)
    other = [a.reshape(3, 4), a.astype(np.float16), a + 1, a.reshape(3, 4).T]
    assert len({checksum(value) for value in [a, *other]}) == 5
    assert checksum(a) == checksum(a.copy()) == checksum(a)
    assert checksum(np.zeros((0, 3))) != checksum(np.zeros((3, 0)))


HEAD = 'graph("g"):\n  %x : float32[2] = Data()\n'


@pytest.mark.parametrize(
    ("body", "family", "message"),
    [
        ("  %y = Relu(x=%z)\n  return (%y)", ModelError, "line 3.*\n.*defined above\n.*%z"),
        ("  %y = Rellu(x=%x)\n  return (%y)", OperatorError, "Relu"),
        ("  %y = Relu(x=%x) {slope=1}\n  return (%y)", InferError, "no attribute 'slope'"),
        ("  %y : float32[3] = Relu(x=%x)\n  return (%y)", InferError, "line 3: %y is not what its operator makes"),
        ("  %x = Relu(x=%x)\n  return (%x)", ModelError, "already defined"),
        ("  %y = Relu(x=%x)", ModelError, "no return line"),
        ("  %y = Relu(x=%x) color=1\n  return (%y)", ModelError, "got: color"),
        ("  %y = Relu(x=%x\n  return (%y)", ModelError, "end of line"),
        ("  %y = Relu(x=%x) &\n  return (%y)", ModelError, "got: +&"),
        ("  %y : float23[2] = Relu(x=%x)\n  return (%y)", ModelError, "float23"),
        ('  %k : float32[9]ND = Const("00000000")\n  return (%k)', ModelError, "elements of 'k' are not in the text"),
        ("  %k : float32[2]ND = Const([1.0, 2.0]) {}\n  return (%k)", ModelError, "end of the line"),
        ('  return (%x)\ngraph("h") in "nobody" as "body":\n  return ()', ModelError, "got: nobody"),
        ("  return (_)", ModelError, "a result"),
        ("  %y = Relu(x=%x) {a=wrong}\n  return (%y)", ModelError, "got: wrong"),
        ('  %y = Relu(x=%x) after=["z"]\n  return (%y)', ModelError, "got: z"),
        ("  %y, %z = Relu(x=%x)\n  return (%y)", ModelError, "1 results"),
    ],
)
def test_errors_name_line_and_expectation(body, family, message):
    with pytest.raises(family, match=message):
        parse_graph(HEAD + body)


def test_wrong_constants_and_no_graph_are_told():
    value = np.arange(9, dtype=np.float32)
    text = 'graph("g"):\n  %k : float32[9]ND = Const("00000000")\n  return (%k)\n'
    with pytest.raises(ModelError, match="another constant 'k'"):
        parse_graph(text, {"k": value})
    with pytest.raises(ModelError, match="no graph"):
        parse_graph("# nothing\n")
    with pytest.raises(ModelError, match="graph header"):
        parse_graph("%x : float32[1] = Data()")


def test_what_has_no_text_form_is_refused():
    graph = Graph("g", "onnx")
    x = graph.add_input("x", (2,))
    node = graph.add_foreign_node("", "Odd", [x], [x.desc], {"thing": object()}, "odd")
    with pytest.raises(ContractError, match="attribute 'thing' of 'odd'"):
        print_graph(graph)
    node.attrs.clear()
    node.fused = (FusedOp("Add", operand=5),)
    with pytest.raises(ContractError, match="out of order"):
        print_node(node)
