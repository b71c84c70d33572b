"""Rules for control flow: If stays If; Loop and Scan become While with a 32-bit counter that the device keeps.

A scanned input is read slice by slice (GatherV2 by the counter), a stacked result is written row by row into a buffer
that the loop carries (ScatterUpdate). Counter and trip count are int32, which the vector cores compute in; what the
body reads as the iteration number is cast to its int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from metadef.control import BODY, COND, ELSE, IF, THEN, WHILE
from metadef.dtype import DType
from metadef.format import TensorDesc
from metadef.graph import Graph, Tensor
from metadef.legalize.nodes import legalize_nodes, mapped
from metadef.legalize.table import Step, rule

COUNT_MAX = 2**31 - 1
ON_DEVICE = "npu"
"""Device mark of slice reads and writes: they keep the type of the whole they cut, which no iteration may convert."""


@rule("If")
def branch(step: Step) -> Sequence[Tensor]:
    graphs = {}
    for key in (THEN, ELSE):
        source = step.node.subgraphs[key]
        inner = Graph(source.name, parent=step.graph)
        tensors = {id(old): _formal(inner, old.name, given) for old, given in zip(source.inputs, step.inputs[1:])}
        inner.set_outputs(_filled(inner, source, tensors))
        graphs[key] = inner
    return step.control(IF, step.inputs, [tensor.desc for tensor in step.node.outputs], graphs)


@dataclass
class _Plan:
    """A counted loop before it is written: what it carries, cuts and stacks, and where the body's formals come from.

    ``limit`` is the trip count (None: no limit), ``go`` the first condition (None: always true). ``scanned`` and
    ``stacked`` give axis and direction of each; ``body_formals`` are the source's: state formals, slices, captured.
    """

    limit: int | Tensor | None
    go: Tensor | None
    states: list[Tensor]
    captured: list[Tensor]
    scanned: list[tuple[Tensor, int, bool]] = field(default_factory=list)
    stacked: list[tuple[int, bool]] = field(default_factory=list)
    trips: int = -1


@rule("Loop")
def loop(step: Step) -> Sequence[Tensor]:
    source, carried = step.node.subgraphs[BODY], step.attr("num_carried")
    count = step.attr("trip_count")
    limit: int | Tensor | None = min(count, COUNT_MAX) if count >= 0 else None
    if count < 0 and step.optional(0) is not None:
        most = step.constant(np.asarray(COUNT_MAX, np.int64), "most", DType.INT64)
        limit = step.op("Minimum", [step.reshape(step[0], ()), most])
        limit = step.op("Cast", [limit], {"dst_type": DType.INT32})
    go = None if step.attr("is_endless") else step.reshape(step[1], ())
    rest = [tensor for tensor in step.inputs[2:] if tensor is not None]
    plan = _Plan(limit, go, rest[:carried], rest[carried:], trips=count)
    plan.stacked = [(0, False)] * (len(source.outputs) - 1 - carried)
    return _write(step, plan, source, source.inputs[:2])


@rule("Scan", since=9)
def scan(step: Step) -> Sequence[Tensor]:
    source, carried, count = step.node.subgraphs[BODY], step.attr("num_carried"), step.attr("num_scan_inputs")
    rest = [tensor for tensor in step.inputs if tensor is not None]
    plan = _Plan(step.attr("trip_count"), None, rest[:carried], rest[carried + count :], trips=step.attr("trip_count"))
    axes, backward = step.attr("scan_input_axes", (0,) * count), step.attr("scan_input_directions", (0,) * count)
    cut = zip(rest[carried : carried + count], axes, backward)
    plan.scanned = [(x, axis % len(x.desc.origin_shape), bool(back)) for x, axis, back in cut]
    stacked = len(source.outputs) - carried
    axes = step.attr("scan_output_axes", (0,) * stacked)
    plan.stacked = [(axis, bool(back)) for axis, back in zip(axes, step.attr("scan_output_directions", (0,) * stacked))]
    return _write(step, plan, source, ())


def _write(step: Step, plan: _Plan, source: Graph, loop_formals: Sequence[Tensor]) -> Sequence[Tensor]:
    """The While of a counted loop; ``loop_formals`` are the body's iteration number and condition, if it has them."""
    rows = source.outputs[bool(loop_formals) + len(plan.states) :]
    buffers = [_buffer(step, row.desc, plan.trips, number) for number, row in enumerate(rows)]
    zero = step.constant(np.asarray(0, np.int32), "first", DType.INT32)
    lead = [zero] + ([plan.go] if plan.go is not None else [])
    limit = [plan.limit] if isinstance(plan.limit, Tensor) else []
    carried = [*lead, *plan.states, *buffers]
    operands = [*carried, *limit, *(x for x, _, _ in plan.scanned), *plan.captured]
    graphs = {key: Graph(f"{step.node.name}/{key}", parent=step.graph) for key in (COND, BODY)}
    for key, inner in graphs.items():
        formals = [_formal(inner, f"{step.node.name}/{key}/{tensor.name}", tensor) for tensor in operands]
        inside = Step(inner, step.node, formals)
        if key == COND:
            inner.set_outputs([_test(inside, plan, len(carried))])
        else:
            inner.set_outputs(_renewed(inside, plan, source, loop_formals, len(lead)))
    made = step.control(WHILE, operands, [tensor.desc for tensor in carried], graphs, skip=len(lead))
    stacked = [_unstacked(step, tensor, axis) for tensor, (axis, _) in zip(made[-len(rows) :], plan.stacked)]
    return [*made[len(lead) : len(lead) + len(plan.states)], *stacked]


def _test(inside: Step, plan: _Plan, carried: int) -> Tensor:
    """Whether another iteration runs."""
    go = inside[1] if plan.go is not None else None
    if plan.limit is None:
        return go if go is not None else inside.constant(np.asarray(True), "always", DType.BOOL)
    limit = inside[carried] if isinstance(plan.limit, Tensor) else _count(inside, plan.limit, "limit")
    below = inside.op("Less", [inside[0], limit])
    return below if go is None else inside.op("LogicalAnd", [below, go])


def _renewed(inside: Step, plan: _Plan, source: Graph, loop_formals: Sequence[Tensor], lead: int) -> list[Tensor]:
    """The body: slices cut, the source's nodes, rows stacked; then all carried values renewed."""
    counter, states, stacked = inside[0], len(plan.states), len(plan.stacked)
    at = lead + states + stacked + isinstance(plan.limit, Tensor)
    slices = [
        _slice(inside, inside[at + number], axis, _place(inside, plan, back))
        for number, (_, axis, back) in enumerate(plan.scanned)
    ]
    at += len(plan.scanned)
    given = [*inside.inputs[lead : lead + states], *slices, *inside.inputs[at:]]
    tensors = {id(old): new for old, new in zip(source.inputs[len(loop_formals) :], given) if new is not None}
    if loop_formals:
        number, go = loop_formals
        if number.uses or any(number is tensor for tensor in source.outputs):
            wide = inside.op("Cast", [counter], {"dst_type": DType.INT64})
            tensors[id(number)] = inside.reshape(wide, number.desc.origin_shape)
        true = inside[1] if plan.go is not None else inside.constant(np.asarray(True), "go", DType.BOOL)
        tensors[id(go)] = inside.reshape(true, go.desc.origin_shape)
    results = _filled(inside.graph, source, tensors)
    goes = results[:1] if plan.go is not None else []
    results = results[bool(loop_formals) :]
    buffers = inside.inputs[lead + states : lead + states + stacked]
    rows = [
        _stack(inside, buffer, row, _place(inside, plan, back))
        for buffer, row, (_, back) in zip(buffers, results[states:], plan.stacked)
    ]
    following = inside.op("Add", [counter, _count(inside, 1, "one")])
    return [following, *(inside.reshape(go, ()) for go in goes), *results[:states], *rows]


def _place(inside: Step, plan: _Plan, backward: bool) -> Tensor:
    """The row of this iteration."""
    if not backward:
        return inside[0]
    return inside.op("Sub", [_count(inside, plan.trips - 1, "last"), inside[0]])


def _count(inside: Step, value: int, suffix: str) -> Tensor:
    return inside.constant(np.asarray(value, np.int32), suffix, DType.INT32)


def _slice(inside: Step, whole: Tensor, axis: int, place: Tensor) -> Tensor:
    found = inside.op("GatherV2", [whole, place], {"axis": axis})
    assert found.producer is not None
    found.producer.device_mark = ON_DEVICE
    return found


def _stack(inside: Step, buffer: Tensor | None, row: Tensor, place: Tensor) -> Tensor:
    made = inside.op("ScatterUpdate", [buffer, place, row])
    assert made.producer is not None
    made.producer.device_mark = ON_DEVICE
    return made


def _buffer(step: Step, row: TensorDesc, height: int, number: int) -> Tensor:
    """Zeros for all rows of a stacked result."""
    zero = step.constant(np.zeros((1,) * (len(row.origin_shape) + 1), row.dtype.numpy), f"zero{number}", row.dtype)
    made = step.op("BroadcastToD", [zero], {"shape": (height, *row.origin_shape)})
    assert made.producer is not None
    made.producer.device_mark = ON_DEVICE
    return made


def _unstacked(step: Step, tensor: Tensor, axis: int) -> Tensor:
    """A stack along axis 0 with its rows along another axis."""
    rank = len(tensor.desc.origin_shape)
    axis = axis % rank
    if axis == 0:
        return tensor
    perm = list(range(1, rank))
    perm.insert(axis, 0)
    return step.op("TransposeD", [tensor], {"perm": perm})


def _formal(inner: Graph, name: str, given: Tensor | None) -> Tensor:
    assert given is not None
    desc = given.desc
    return inner.add_input(name, desc.origin_shape, desc.dtype, desc.origin_format)


def _filled(inner: Graph, source: Graph, tensors: dict[int, Tensor]) -> list[Tensor]:
    """Legalise the nodes of a subgraph into ``inner``; its results."""
    legalize_nodes(inner, source.nodes, tensors, frozenset(map(id, source.outputs)))
    return [mapped(inner, tensors, tensor) for tensor in source.outputs]
