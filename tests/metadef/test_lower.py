"""Lowering: addresses, packed constants, shared weights, views, refusal of stale values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.error import ContractError
from metadef.format import SLOT_BYTES, Format, pack, unpack
from metadef.graph import Graph
from metadef.hazard import check_program
from metadef.lower import lower
from metadef.memory import plan_memory
from metadef.program import Region
from metadef.select import select
from metadef.target import load_target

TARGET = load_target("Ascend910B3")


def lowered(graph: Graph):
    schedule = select(graph, TARGET)
    plan = plan_memory(schedule)
    program, weights = lower(graph, schedule, plan, TARGET, "origin")
    check_program(program, TARGET)
    return schedule, plan, program, weights


def stored(weights: np.ndarray, operand) -> np.ndarray:
    raw = weights[operand.address : operand.address + operand.payload_bytes]
    return raw.view(operand.desc.dtype.numpy).reshape(operand.desc.shape)


def test_constants_lie_packed_where_the_operands_point(small_compilation):
    compiled = small_compilation()
    model, graph = compiled.model, compiled.graph
    checked = 0
    for node in graph.nodes:
        task = next((task for task in model.program.tasks if task.name == node.name), None)
        for tensor, operand in zip(node.inputs, task.inputs if task else ()):
            if tensor is not None and tensor.is_const:
                np.testing.assert_array_equal(stored(model.weights, operand), pack(tensor.const, tensor.desc))
                np.testing.assert_array_equal(unpack(stored(model.weights, operand), operand.desc), tensor.const)
                checked += 1
    assert checked == 8


def test_regions_follow_each_other_on_whole_lines(small_compilation):
    program = small_compilation().model.program
    sizes = (program.weights_bytes, program.arena_bytes, program.io_bytes)
    assert all(size % SLOT_BYTES == 0 and size > 0 for size in sizes)
    assert program.arena_bytes == program.total_size
    assert [binding.name for binding in program.inputs] == ["image"]
    assert [binding.name for binding in program.outputs] == ["scores"]
    borders = {Region.WEIGHTS: 0, Region.ARENA: sizes[0], Region.IO: sizes[0] + sizes[1]}
    for task in program.tasks:
        for item in (*task.inputs, *task.outputs):
            if item is not None:
                assert (
                    borders[item.region] <= item.address < borders[item.region] + sizes[list(Region).index(item.region)]
                )
                assert item.address % SLOT_BYTES == 0


def test_equal_constants_share_memory(small_compilation):
    program = small_compilation().model.program
    filters = [task.inputs[1].address for task in program.tasks if task.kernel.op_type == "Conv2D"]
    assert len(filters) == 3 and filters[1] == filters[2] != filters[0]


def test_views_have_the_address_and_the_id_of_their_base():
    graph = Graph("views")
    x = graph.add_input("x", (4, 6))
    first = graph.add_node("Relu", [x], name="first").output
    turned = graph.add_node("Reshape", [first], {"shape": (2, 12)}, "turned").output
    again = graph.add_node("Reshape", [turned], {"shape": (24,)}, "again").output
    graph.set_outputs([graph.add_node("Sigmoid", [again], name="last").output])
    _, _, program, _ = lowered(graph)
    relu, last = program.tasks
    assert last.inputs[0].address == relu.outputs[0].address
    assert last.inputs[0].tensor == relu.outputs[0].tensor
    assert (last.inputs[0].name, last.inputs[0].desc.origin_shape) == ("again", (24,))


def test_view_of_a_constant_and_a_view_that_is_an_output():
    graph = Graph("views")
    x = graph.add_input("x", (2, 3))
    values = np.arange(6, dtype=np.float32)
    const = graph.add_const("c", values)
    turned = graph.add_node("Reshape", [const], {"shape": (2, 3)}, "turned").output
    total = graph.add_node("Add", [x, turned], name="total").output
    graph.set_outputs([graph.add_node("Flatten", [total], {"axis": 0}, "flat").output])
    _, _, program, weights = lowered(graph)
    (task,) = program.tasks
    np.testing.assert_array_equal(stored(weights, task.inputs[1]), values.reshape(2, 3))
    assert program.outputs[0].operand.address == task.outputs[0].address
    assert program.outputs[0].operand.region is Region.IO


def test_outputs_that_are_inputs_or_constants_are_copied():
    graph = Graph("through")
    x = graph.add_input("x", (5,))
    values = np.arange(3, dtype=np.float32)
    const = graph.add_const("c", values)
    view = graph.add_node("Reshape", [const], {"shape": (3, 1)}, "column").output
    graph.set_outputs([x, const, view], ["a", "b", "c"])
    _, _, program, weights = lowered(graph)
    assert [task.kernel.op_type for task in program.tasks] == ["Identity"] * 3
    assert [task.inputs[0].region for task in program.tasks] == [Region.IO, Region.WEIGHTS, Region.WEIGHTS]
    assert len({binding.operand.address for binding in program.outputs}) == 3
    for task in program.tasks[1:]:
        np.testing.assert_array_equal(stored(weights, task.inputs[0]).ravel(), values)
    assert program.outputs[2].operand.desc.origin_shape == (3, 1)


def test_bfloat_constants_keep_their_bits():
    graph = Graph("bf16")
    bits = np.array([0x3F80, 0xC000, 0x7FC0], np.uint16)
    x = graph.add_input("x", (3,), DType.BF16)
    total = graph.add_node("Add", [x, graph.add_const("c", bits, Format.ND, DType.BF16)]).output
    graph.set_outputs([total])
    _, _, program, weights = lowered(graph)
    np.testing.assert_array_equal(stored(weights, program.tasks[0].inputs[1]), bits)


def test_stale_values_are_refused(small_compilation):
    graph = Graph("stale")
    graph.set_outputs([graph.add_node("Relu", [graph.add_input("x", (4,))]).output])
    schedule = select(graph, TARGET)
    plan = plan_memory(schedule)
    with pytest.raises(ContractError, match="another chip"):
        lower(graph, schedule, plan, load_target("Ascend310P3"), "origin")
    with pytest.raises(ContractError, match="memory plan belongs to another revision"):
        lower(graph, schedule, replace(plan, graph_revision=plan.graph_revision - 1), TARGET, "origin")
    graph.add_node("Relu", [graph.outputs[0]])
    with pytest.raises(ContractError, match="schedule belongs to another revision") as caught:
        lower(graph, schedule, plan, TARGET, "origin")
    assert "select and plan again" in str(caught.value)


def test_a_tensor_without_a_place_is_named():
    graph = Graph("lost")
    middle = graph.add_node("Relu", [graph.add_input("x", (4,))], name="middle").output
    graph.set_outputs([graph.add_node("Abs", [middle]).output])
    schedule = select(graph, TARGET)
    plan = plan_memory(schedule)
    lost = replace(plan, rows=[row for row in plan.rows if row.name != "middle"])
    with pytest.raises(ContractError, match="no place for tensor 'middle'"):
        lower(graph, schedule, lost, TARGET, "origin")
