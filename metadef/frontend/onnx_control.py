"""If, Loop and Scan under concrete shapes: every subgraph is walked with the types of what it is given.

What comes out has one shape whatever path a run takes: both sides of an If agree, carried values keep their shape, and
a loop stacks results only when its trip count is known. Anything else is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, TypeProto, helper

from metadef.control import ELSE, IMPOSSIBLE, OWN_DOMAIN, THEN
from metadef.error import InferError, LabError
from metadef.frontend.onnx_read import attributes, captured_names, label_of, live_nodes, shape_of

if TYPE_CHECKING:
    from metadef.frontend.onnx_fold import ShapeWalk

CONTROL = frozenset({"If", "Loop", "Scan"})
_SCAN_SINCE = 9
"""Scan of opset 8 has a batch axis of its own."""


@dataclass
class Body:
    """A walked subgraph: its formal inputs and its outputs by name, the nodes left to compute, outer values they read.

    ``facts`` are attributes of the node that follow from the walk (``trip_count``, -1 if a run decides; ``is_endless``;
    ``num_carried``).
    """

    walk: ShapeWalk
    inputs: list[str]
    outputs: list[str]
    nodes: list[onnx.NodeProto]
    captured: list[str]
    facts: dict[str, int] = field(default_factory=dict)


def walk_control(walk: ShapeWalk, node: onnx.NodeProto) -> None:
    """Walk the subgraphs of a node of :data:`CONTROL`: its results' types and its bodies go into ``walk``.

    Raises:
        InferError: a shape is not the same on every path or in every iteration, or a stack has no known height.
        Errors of the walk inside.
    """
    bodies, types = _WALKS[node.op_type](walk, node)
    for name, found in zip(node.output, types):
        if name:
            walk.types[name] = found
    for body in bodies.values():
        walk.notes += body.walk.notes
    walk.bodies[next(name for name in node.output if name)] = bodies


def _walked(walk: ShapeWalk, node: onnx.NodeProto, graph: onnx.GraphProto, given: Sequence[TypeProto],
            known: Sequence[tuple[str, np.ndarray]] = ()) -> Body:  # fmt: skip
    """A subgraph walked with formal inputs of the given types, some of them with ``known`` values."""
    inner = walk.child(name for name in captured_names(node) if name in walk.types)
    formals = [item.name for item in graph.input]
    _check_formals(node, graph, given)
    for name, kind in zip(formals, given):
        inner.types[name] = kind
        inner.constants.pop(name, None)
    for name, value in known:
        inner.add_constant(name, value)
    inner.run_graph(graph)
    outputs = [item.name for item in graph.output]
    nodes = live_nodes(inner.nodes, outputs)
    made = {*formals, *(name for item in nodes for name in item.output)}
    read: dict[str, None] = {}
    for item in nodes:
        inside = inner.bodies.get(next(name for name in item.output if name))
        deep = [name for body in inside.values() for name in body.captured] if inside else captured_names(item)
        read.update(dict.fromkeys(name for name in (*item.input, *deep) if name))
    read.update(dict.fromkeys(outputs))
    captured = [name for name in read if name not in made and name not in inner.constants]
    return Body(inner, formals, outputs, nodes, captured)


def _check_operand(walk: ShapeWalk, node: onnx.NodeProto, name: str, elem_type: int) -> None:
    """Raises InferError if a count or condition, where there is one, is not one element of its type."""
    kind = walk.types[name] if name else _tensor(elem_type, ())
    if kind.tensor_type.elem_type != elem_type or set(shape_of(kind) or ()) - {1}:
        raise InferError(
            f"'{name}' cannot steer the {node.op_type}",
            code="E14001",
            node=label_of(node),
            expected=f"one {TensorProto.DataType.Name(elem_type).lower()}",
            got=_shown(kind),
        )


def _declared(kind: TypeProto.Tensor) -> list[int | None] | None:
    """Declared sizes, None for an open one; None without a declared rank."""
    if not kind.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]


def _check_formals(node: onnx.NodeProto, graph: onnx.GraphProto, given: Sequence[TypeProto]) -> None:
    """Raises InferError where a subgraph has another number of inputs than it gets, or declares other types.

    What a Loop carries may have another shape than its body declares; what a Scan hands on may not.
    """
    if len(graph.input) != len(given):
        raise InferError(
            f"the subgraph of the {node.op_type} has {len(graph.input)} inputs",
            code="E14001",
            node=label_of(node),
            expected=str(len(given)),
        )
    for formal, kind in zip(graph.input, given):
        declared = formal.type.tensor_type
        fits = not formal.type.HasField("tensor_type") or declared.elem_type == kind.tensor_type.elem_type
        if fits and node.op_type == "Scan" and (own_shape := _declared(declared)) is not None:
            shape = shape_of(kind) or ()
            fits = len(own_shape) == len(shape) and all(a in (None, b) for a, b in zip(own_shape, shape))
        if not fits:
            raise InferError(
                f"the subgraph of the {node.op_type} declares '{formal.name}' as another tensor than it gets",
                code="E14001",
                node=label_of(node),
                expected=_shown(kind),
                got=_shown(formal.type),
            )


def _types_of(body: Body) -> list[TypeProto]:
    return [body.walk.types[name] for name in body.outputs]


def _shown(kind: TypeProto) -> str:
    label = TensorProto.DataType.Name(kind.tensor_type.elem_type).lower()
    return f"{label}{list(shape_of(kind) or ())}"


def _same(one: TypeProto, other: TypeProto) -> bool:
    return (one.tensor_type.elem_type, shape_of(one)) == (other.tensor_type.elem_type, shape_of(other))


def _tensor(elem_type: int, shape: Iterable[int]) -> TypeProto:
    return helper.make_tensor_type_proto(elem_type, tuple(shape))


# -- If ----------------------------------------------------------------------------------------------------------------


def _walk_if(walk: ShapeWalk, node: onnx.NodeProto) -> tuple[dict[str, Body], list[TypeProto]]:
    """Both sides. One that cannot run under these shapes faults when a run takes it; the other one says what comes out.

    Models for several input sizes decide by a value which side fits.
    """
    _check_operand(walk, node, node.input[0], TensorProto.BOOL)
    graphs = attributes(node)
    bodies: dict[str, Body] = {}
    failed: dict[str, LabError] = {}
    for key in (THEN, ELSE):
        try:
            bodies[key] = _walked(walk, node, graphs[key], ())
        except LabError as error:
            failed[key] = error
    if not bodies:
        raise failed[ELSE]
    for key, fault in failed.items():
        (other,) = bodies.values()
        bodies[key] = _impossible(walk, node, graphs[key], _types_of(other), fault)
        text = f"the {key} of '{label_of(node)}' cannot run with these shapes: {fault.problems[0].message}"
        walk.notes.append(text)
    sides = [_types_of(bodies[key]) for key in (THEN, ELSE)]
    for name, one, other_side in zip(node.output, *sides):
        if not _same(one, other_side):
            raise InferError(
                f"the sides of the If give '{name}' different shapes or types",
                code="E14001",
                node=label_of(node),
                expected="one shape on every path: shapes are fixed when the model is compiled",
                got=f"then {_shown(one)}, else {_shown(other_side)}",
                hint="make the condition a constant (fix the input it depends on), or pad both sides to one shape",
            )
    return {key: bodies[key] for key in (THEN, ELSE)}, sides[0]


def _impossible(
    walk: ShapeWalk, node: onnx.NodeProto, graph: onnx.GraphProto, types: Sequence[TypeProto], error: LabError
) -> Body:
    """A side that faults: one node that stands for all of it."""
    outputs = [item.name for item in graph.output]
    text = error.problems[0].message
    fault = helper.make_node(IMPOSSIBLE, [], outputs, name=IMPOSSIBLE, domain=OWN_DOMAIN, reason=text)
    inner = walk.child(name for name in captured_names(node) if name in walk.types)
    inner.types.update(zip(outputs, types))
    return Body(inner, [], outputs, [fault], [])


# -- Loop --------------------------------------------------------------------------------------------------------------


def _walk_loop(walk: ShapeWalk, node: onnx.NodeProto) -> tuple[dict[str, Body], list[TypeProto]]:
    graph = attributes(node)["body"]
    trips, go, *initial = loop_operands(node)
    _check_operand(walk, node, trips, TensorProto.INT64)
    _check_operand(walk, node, go, TensorProto.BOOL)
    given = [_scalar(graph.input[0], TensorProto.INT64), _scalar(graph.input[1], TensorProto.BOOL)]
    given += [walk.types[name] for name in initial]
    starts = not go or (go in walk.constants and bool(walk.constants[go].all()))
    body = _endless(walk, node, graph, given) if starts else None
    is_endless = body is not None
    if body is None:
        body = _walked(walk, node, graph, given)
    count = int(walk.constants[trips].reshape(-1)[0]) if trips in walk.constants else -1
    body.facts = {"trip_count": max(count, 0) if trips in walk.constants else -1, "is_endless": int(is_endless)}
    body.facts["num_carried"] = len(initial)
    results = _types_of(body)[1:]
    _check_carried(node, initial, given[2:], results)
    stacked = results[len(initial) :]
    if stacked and not (trips in walk.constants and is_endless):
        why = "may end early" if not is_endless else "has a trip count that only a run knows"
        raise InferError(
            f"the loop stacks results, but {why}: their height is no fixed number",
            code="E14001",
            node=label_of(node),
            expected="a constant trip count and a condition that stays true",
            got=f"stacked results {', '.join(node.output[len(initial) :])}",
            hint="give the trip count as a constant, or carry a buffer of the greatest height and write rows into it "
            "(ScatterND)",
        )
    heights = [_tensor(item.tensor_type.elem_type, (max(count, 0), *(shape_of(item) or ()))) for item in stacked]
    return {"body": body}, [*given[2:], *heights]


def loop_operands(node: onnx.NodeProto) -> list[str]:
    """Operands of a Loop with its two optional ones, "" where they are absent."""
    return [*node.input, *[""] * (2 - len(node.input))]


def _scalar(formal: onnx.ValueInfoProto, elem_type: int) -> TypeProto:
    """The type of a loop's counter or condition: a scalar, or one element where the body declares it so."""
    rank = len(formal.type.tensor_type.shape.dim) if formal.type.tensor_type.HasField("shape") else 0
    return _tensor(elem_type, (1,) * min(rank, 1))


def _endless(walk: ShapeWalk, node: onnx.NodeProto, graph: onnx.GraphProto, given: list[TypeProto]) -> Body | None:
    """The body under a condition that is true, if it then stays true: so does every iteration."""
    true = np.ones(shape_of(given[1]) or (), np.bool_)
    body = _walked(walk, node, graph, given, [(graph.input[1].name, true)])
    held = body.walk.constants.get(body.outputs[0])
    return body if held is not None and bool(held.all()) else None


def _check_carried(
    node: onnx.NodeProto, names: Sequence[str], before: Sequence[TypeProto], after: Sequence[TypeProto]
) -> None:
    for name, one, other in zip(names, before, after):
        if not _same(one, other):
            raise InferError(
                f"the {node.op_type} changes the shape or type of what it carries in '{name}'",
                code="E14001",
                node=label_of(node),
                expected=f"{_shown(one)} after every iteration: shapes inside a loop are fixed",
                got=_shown(other),
                hint="carry a buffer of the greatest size, or stack the results",
            )


# -- Scan --------------------------------------------------------------------------------------------------------------


def _walk_scan(walk: ShapeWalk, node: onnx.NodeProto) -> tuple[dict[str, Body], list[TypeProto]]:
    attrs = attributes(node)
    if walk.version("") < _SCAN_SINCE:
        raise InferError("Scan of opset 8 has a batch axis of its own", node=label_of(node), hint="export with opset 9")
    graph, count = attrs["body"], attrs["num_scan_inputs"]
    states, scanned = node.input[: len(node.input) - count], node.input[len(node.input) - count :]
    axes = attrs.get("scan_input_axes") or [0] * count
    given = [walk.types[name] for name in states]
    lengths = set()
    for name, axis in zip(scanned, axes):
        shape = list(shape_of(walk.types[name]) or ())
        lengths.add(shape.pop(axis))
        given.append(_tensor(walk.types[name].tensor_type.elem_type, shape))
    if len(lengths) != 1:
        text = "scanned inputs differ in length"
        raise InferError(text, code="E14001", node=label_of(node), got=", ".join(map(str, sorted(lengths))))
    body = _walked(walk, node, graph, given)
    (steps,) = lengths
    body.facts = {"trip_count": steps, "is_endless": 1, "num_carried": len(states)}
    results = _types_of(body)
    _check_carried(node, list(states), given, results)
    stacked = results[len(states) :]
    places = attrs.get("scan_output_axes") or [0] * len(stacked)
    types = []
    for item, axis in zip(stacked, places):
        shape = list(shape_of(item) or ())
        shape.insert(axis if axis >= 0 else axis + len(shape) + 1, steps)
        types.append(_tensor(item.tensor_type.elem_type, shape))
    return {"body": body}, [*results[: len(states)], *types]


_WALKS = {"If": _walk_if, "Loop": _walk_loop, "Scan": _walk_scan}
