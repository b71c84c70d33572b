"""The graph: construction, uses, rewiring, order, invariants."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.error import ContractError, InferError, ModelError
from metadef.format import Format, TensorDesc
from metadef.graph import Graph
from metadef.kernel import FusedOp


def chain() -> Graph:
    """x -> Relu a -> Neg b -> Add c(b, a)"""
    graph = Graph("chain")
    x = graph.add_input("x", (1, 2, 3, 4), fmt=Format.NCHW)
    a = graph.add_node("Relu", [x], name="a").output
    b = graph.add_node("Neg", [a], name="b").output
    c = graph.add_node("Add", [b, a], name="c").output
    graph.set_outputs([c], ["out"])
    graph.verify()
    return graph


def test_nodes_know_their_tensors_and_tensors_their_readers() -> None:
    graph = chain()
    a, b, c = graph.nodes
    assert a.output.uses == [(b, 0), (c, 1)]
    assert a.output.users == [b, c]
    assert c.output.desc == TensorDesc((1, 2, 3, 4), DType.FLOAT, Format.NCHW, Format.NCHW)
    assert graph.find("b") is b and graph.find("d") is None


def test_names_are_unique() -> None:
    graph = chain()
    again = graph.add_node("Relu", [graph.inputs[0]], name="a")
    assert again.name == "a_1" and again.output.name == "a_1"
    with pytest.raises(ModelError, match="used twice"):
        graph.add_input("a", (1,))


def test_paths_do_not_repeat_the_layer() -> None:
    graph = chain()
    x = graph.inputs[0]
    assert graph.add_node("Relu", [x], name="Block12/FFN/Relu", layer="Block12/FFN").path == "Block12/FFN/Relu"
    assert graph.add_node("Relu", [x], name="act", layer="Block12").path == "Block12/act"


def test_rewiring_keeps_uses_right_and_raises_the_revision() -> None:
    graph = chain()
    a, b, c = graph.nodes
    before = graph.revision
    graph.replace_uses(b.output, a.output)
    assert graph.revision > before
    assert b.output.uses == [] and c.inputs == (a.output, a.output)
    graph.remove_node(b)
    assert b.output.producer is None
    graph.verify()
    with pytest.raises(ContractError, match="still read"):
        graph.remove_node(a)
    graph.replace_uses(c.output, a.output)
    assert graph.outputs == [a.output] and graph.output_names == ["out"]


def test_replace_uses_can_spare_readers() -> None:
    graph = chain()
    a, b, c = graph.nodes
    half = graph.add_node("Neg", [a.output], name="n", before=b)
    graph.replace_uses(a.output, half.output, keep=[half])
    assert half.inputs == (a.output,) and b.inputs == (half.output,) and c.inputs[1] is half.output
    graph.verify()


def test_operands_can_be_appended_and_cleared() -> None:
    graph = chain()
    a, _, c = graph.nodes
    graph.set_input(c, 2, a.output)
    assert (c, 2) in a.output.uses
    graph.set_input(c, 2, None)
    assert (c, 2) not in a.output.uses and c.inputs[2] is None


def test_reinfer_follows_types_and_keeps_the_format() -> None:
    graph = chain()
    a, *_ = graph.nodes
    a.output.desc = a.output.desc.stored_as(Format.NC1HWC0, 16)
    graph.inputs[0].desc = graph.inputs[0].desc.with_dtype(DType.FLOAT16)
    graph.reinfer(a)
    assert str(a.output.desc) == "float16[1,2,3,4]NC1HWC0:16<NCHW"


def test_reinfer_leaves_epilogue_operands_out() -> None:
    graph = chain()
    a, b, _ = graph.nodes
    a.fused = (FusedOp("Add", operand=1),)
    graph.set_input(a, 1, graph.add_const("k", np.ones((4,), np.float32)))
    graph.reinfer(a)
    assert a.output.desc.origin_shape == (1, 2, 3, 4)
    assert b.inputs == (a.output,)


def test_sort_is_stable_and_finds_cycles() -> None:
    graph = chain()
    a, b, c = graph.nodes
    graph.nodes = [c, b, a]
    graph.sort()
    assert graph.nodes == [a, b, c]
    graph.nodes = [a, b, c]
    b.control_inputs = (c,)
    with pytest.raises(ModelError, match="cycle"):
        graph.sort()


def test_long_chains_sort_without_recursion() -> None:
    graph = Graph("long")
    value = graph.add_input("x", (1,))
    for _ in range(3000):
        value = graph.add_node("Neg", [value]).output
    graph.set_outputs([value])
    graph.nodes.reverse()
    graph.sort()
    graph.verify()


def test_verify_names_what_is_broken() -> None:
    graph = chain()
    a, b, c = graph.nodes
    graph.nodes = [b, a, c]
    with pytest.raises(ContractError, match="'b' reads 'a' before it is made"):
        graph.verify()
    graph.nodes = [a, b, c]
    b.inputs = (c.output,)
    with pytest.raises(ContractError, match="lists a reader 'b'"):
        graph.verify()
    graph = chain()
    graph.nodes[1].name = "a"
    with pytest.raises(ContractError, match="two nodes are called 'a'"):
        graph.verify()


def test_constants_are_listed_once_and_outputs_count() -> None:
    graph = chain()
    k = graph.add_const("k", np.ones(4, np.float32))
    graph.add_node("Mul", [k, k])
    unread = graph.add_const("u", np.ones(4, np.float32))
    graph.set_outputs([graph.nodes[2].output, unread])
    assert graph.constants() == [k, unread]


def test_faults_of_a_rule_carry_the_nodes_name() -> None:
    graph = Graph("bad")
    x = graph.add_input("x", (2, 3))
    y = graph.add_input("y", (4,))
    with pytest.raises(InferError, match="node 'sum'"):
        graph.add_node("Add", [x, y], name="sum")


def test_foreign_nodes_carry_their_results() -> None:
    graph = Graph("foreign", "onnx")
    x = graph.add_input("x", (2,))
    desc = TensorDesc((2,), DType.FLOAT)
    node = graph.add_foreign_node("", "TopK", [x], [desc, desc], {"k": 1}, "top", opset=11, output_names=["v", "i"])
    assert [tensor.name for tensor in node.outputs] == ["v", "i"]
    assert node.opdef is None
    with pytest.raises(ValueError, match="too many values"):
        _ = node.output
