"""Subgraphs in a schedule: their steps stand in place, with steps that jump between them.

An If is a switch, the one side, a jump over the other, the other side: every side makes its results where the If has
them. A While keeps what it carries where it starts with it: condition, switch to the end, body, jump back. The copies
that this takes are nodes of the graph already (``metadef.passes.control``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from metadef.control import BODY, COND, ELSE, GOTO, SWITCH, THEN, WHILE
from metadef.graph import Graph, Node
from metadef.kernel import Engine, Kernel
from metadef.schedule import Step

if TYPE_CHECKING:
    from metadef.select.steps import Builder


def write_control(builder: Builder, node: Node) -> None:
    """The steps of a node with subgraphs."""
    if node.op_type == WHILE:
        _write_while(builder, node)
    else:
        _write_if(builder, node)


def _write_if(builder: Builder, node: Node) -> None:
    condition, *given = (builder.id_of(tensor) for tensor in node.inputs if tensor is not None)
    results = [builder.result(tensor) for tensor in node.outputs]
    switch = _jump(builder, node, SWITCH, node.name, condition)
    outer, begins, last = builder.branch, {}, -1
    for key, side in ((THEN, "then"), (ELSE, "else")):
        begins[key] = len(builder.schedule.steps)
        builder.branch = f"{outer}/{_label(node)}:{side}" if outer else f"{_label(node)}:{side}"
        _write_graph(builder, node.subgraphs[key], given, results)
        if key == THEN:
            last = _jump(builder, node, GOTO, f"{node.name}/end")
    builder.branch = outer
    _aim_jump(builder, switch, begins[ELSE], begins[THEN])
    _aim_jump(builder, last, len(builder.schedule.steps))


def _write_while(builder: Builder, node: Node) -> None:
    given = [builder.id_of(tensor) for tensor in node.inputs if tensor is not None]
    carried = given[: len(node.outputs)]
    builder.ids.update((id(tensor), item) for tensor, item in zip(node.outputs, carried))
    builder.depth += 1
    begin = len(builder.schedule.steps)
    (condition,) = _write_graph(builder, node.subgraphs[COND], given, ())
    switch = _jump(builder, node, SWITCH, node.name, condition)
    _write_graph(builder, node.subgraphs[BODY], given, carried)
    _aim_jump(builder, _jump(builder, node, GOTO, f"{node.name}/next"), begin)
    builder.depth -= 1
    _aim_jump(builder, switch, len(builder.schedule.steps), switch + 1)


def _write_graph(builder: Builder, graph: Graph, given: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """A subgraph's steps; its formal inputs are tensors of the parent, its results are made in ``wanted``."""
    builder.ids.update((id(formal), item) for formal, item in zip(graph.inputs, given))
    formals = {id(formal) for formal in graph.inputs}
    builder.aims.update((id(made), item) for made, item in zip(graph.outputs, wanted) if id(made) not in formals)
    builder.emit(graph)
    return [builder.id_of(tensor) for tensor in graph.outputs]


def _label(node: Node) -> str:
    """The node's name as a condition of branch labels, which keep ":" and "/" for themselves."""
    return node.name.replace("/", ".").replace(":", ".")


def _jump(builder: Builder, node: Node, op_type: str, name: str, condition: int | None = None) -> int:
    """A step that jumps; its targets are set when they are known."""
    tensors = builder.schedule.tensors
    reads = () if condition is None else (condition,)
    kernel = Kernel(op_type, Engine.RTS, tuple(tensors[item].desc for item in reads), ())
    step = len(builder.schedule.steps)
    builder.schedule.steps.append(
        Step(step, name, reads, (), kernel, (), tuple(node.origins), node.layer, branch=builder.branch,
             loop_depth=builder.depth)
    )  # fmt: skip
    return step


def _aim_jump(builder: Builder, step: int, *targets: int) -> None:
    steps = builder.schedule.steps
    steps[step] = replace(steps[step], jumps=targets)
