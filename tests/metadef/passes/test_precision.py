"""Element types: refusals of the cube, border Casts, what stays float32, rounding of constants."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.error import TargetError
from metadef.graph import Graph
from metadef.passes import run_pipeline
from metadef.target import load_target
from metadef.text import parse_graph, print_graph

TWO_PRODUCTS = """
graph("fp32"):
  %x : float32[2,8] = Data()
  %w : float32[8,8] = Const(seed=1)
  %m = MatMulV2(x1=%x, x2=%w) layer="enc"
  %n = MatMulV2(x1=%m, x2=%w)
  %r = Relu(x=%n)
  return (%r as "r")
"""


def test_origin_on_a_chip_without_fp32_cube_names_all_nodes_and_advises(run):
    with pytest.raises(TargetError) as caught:
        run(TWO_PRODUCTS, soc="Ascend310P3", precision="origin")
    assert [problem.node for problem in caught.value.problems] == ["enc/m", "n"]
    assert all("--precision fp16" in problem.hint for problem in caught.value.problems)
    assert caught.value.problems[0].expected == "float16, int8"


def test_origin_keeps_the_types_where_the_cube_has_them(run):
    graph, _ = run(TWO_PRODUCTS, precision="origin")
    assert {tensor.desc.dtype for node in graph.nodes for tensor in node.outputs} == {DType.FLOAT}
    assert not any(node.op_type == "Cast" for node in graph.nodes)


def test_bfloat16_is_refused_where_the_cube_lacks_it(run):
    text = TWO_PRODUCTS.replace("float32", "bfloat16")
    with pytest.raises(TargetError, match="bfloat16: the cube of Ascend310P3"):
        run(text, soc="Ascend310P3", precision="origin")


def test_constants_round_to_nearest_even_and_only_finite_ones_are_clipped(run):
    values = np.array([2049.0, 2051.0, 1e5, -1e5, np.inf, 1e-9], np.float32)
    literal = ", ".join(str(value) for value in values)
    graph, report = run(f"""
graph("k"):
  %x : float32[6] = Data()
  %k : float32[6] = Const([{literal}])
  %y = Mul(x1=%x, x2=%k)
  return (%y as "y")
""")
    constant = next(tensor for tensor in graph.constants() if tensor.name == "k")
    assert constant.const is not None and constant.const.dtype == np.float16
    assert constant.const.tolist() == [2048.0, 2052.0, 65504.0, -65504.0, np.inf, 0.0]
    assert report.notes()["k"] == ["RefineRunningPrecision: 2 of 6 values lie beyond +-65504 and were clipped to it"]


def test_marked_nodes_keep_float32_between_casts(run):
    graph, report = run("""
graph("marked"):
  %x : float32[2,8] = Data()
  %a = Relu(x=%x)
  %b = Exp(x=%a) mark="aicpu"
  %c = Neg(x=%b)
  return (%c as "c")
""")
    marked = graph.find("b")
    assert marked is not None and marked.output.desc.dtype is DType.FLOAT
    assert [node.op_type for node in graph.nodes] == ["Cast", "Relu", "Cast", "Exp", "Cast", "Neg", "Cast"]
    assert report.about("b") == ["EnginePlacer: DNN_VM_AICPU_ASCEND: marked 'aicpu' by the user"]


def test_a_shared_constant_is_split_by_type(run):
    graph, _ = run("""
graph("shared"):
  %x : float32[4,8] = Data()
  %w : float32[8,4] = Const(seed=1)
  %b : float32[4] = Const(seed=2)
  %m = MatMulV2(x1=%x, x2=%w, bias=%b)
  %n = Mul(x1=%m, x2=%b)
  return (%n as "n")
""")
    product, scale = (node for node in graph.nodes if node.op_type in ("MatMulV2", "Mul"))
    assert [tensor.desc.dtype for tensor in product.inputs if tensor] == [DType.FLOAT16, DType.FLOAT16, DType.FLOAT]
    assert scale.inputs[1] is not None and scale.inputs[1].desc.dtype is DType.FLOAT16


def test_a_residue_of_fp16_and_double_is_left_alone(run):
    text = """
graph("mixed"):
  %x : float16[4] = Data()
  %z : float64[4] = Data()
  %a = Relu(x=%x)
  %b = Neg(x=%z)
  return (%a as "a", %b as "b")
"""
    graph, _ = run(text, "RefineRunningPrecision")
    assert print_graph(graph) == print_graph(parse_graph(text))


def test_a_stretched_constant_is_rounded_once_and_stays_stretched():
    graph = Graph("stretched")
    x = graph.add_input("x", (1 << 10, 1 << 20))
    k = graph.add_const("k", np.broadcast_to(np.array([[1e5]], np.float32), (1 << 10, 1 << 20)))
    graph.set_outputs([graph.add_node("Mul", [x, k], name="y").output])
    report = run_pipeline(graph, load_target("Ascend910B3"))
    (constant,) = graph.constants()
    assert constant.const.shape == (1 << 10, 1 << 20) and constant.const.strides == (0, 0)
    assert constant.const.flat[0] == np.float16(65504)
    assert any(f"{1 << 30} of {1 << 30} values" in text for texts in report.notes().values() for text in texts)
