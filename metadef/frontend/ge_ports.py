"""Ports of GE's operators: bytes of a tensor descriptor, typed attributes, edges and the order of a graph's operators.

Sizes follow GE: the stored shape counts; a recorded ``size`` (payload rounded to 32, plus 32) wins over the rule; an
open dimension takes the upper bound of its range.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from metadef.error import InferError, ModelError, Problem
from metadef.format import SLOT_BYTES, TensorDesc, round_up, slot_bytes
from metadef.ge_values import read_desc

CONTROL = -1
PARENT_INDEX = "_parent_node_index"

# Bits of an element by the name in ``ge.proto.DataType``. A string is a header of address and length.
_BITS = {
    "FLOAT": 32, "FLOAT16": 16, "INT8": 8, "UINT8": 8, "INT16": 16, "UINT16": 16, "INT32": 32, "INT64": 64,
    "UINT32": 32, "UINT64": 64, "BOOL": 8, "DOUBLE": 64, "STRING": 128, "DUAL_SUB_INT8": 8, "DUAL_SUB_UINT8": 8,
    "COMPLEX64": 64, "COMPLEX128": 128, "QINT8": 8, "QINT16": 16, "QINT32": 32, "QUINT8": 8, "QUINT16": 16,
    "RESOURCE": 64, "STRING_REF": 128, "DUAL": 40, "VARIANT": 64, "BF16": 16, "INT4": 4, "UINT1": 1, "INT2": 2,
    "UINT2": 2, "COMPLEX32": 32, "HIFLOAT8": 8, "FLOAT8_E5M2": 8, "FLOAT8_E4M3FN": 8, "FLOAT8_E8M0": 8,
    "FLOAT6_E3M2": 6, "FLOAT6_E2M3": 6, "FLOAT4_E2M1": 4, "FLOAT4_E1M2": 4, "HIFLOAT4": 4,
}  # fmt: skip


@dataclass(frozen=True)
class PortSize:
    """``payload_bytes`` of the storage shape; ``slot_bytes`` where GE's size asks for more than the rule (else 0)."""

    payload_bytes: int
    slot_bytes: int
    desc: TensorDesc | None


@dataclass(frozen=True)
class Edge:
    """Where an operand comes from: output ``index`` of operator ``source``; -1 is a control edge."""

    source: str
    index: int


def attr_of(holder: Any, name: str) -> Any:
    """A bool, integer, text or list attribute of an operator or descriptor; None if it has none of that name."""
    if name not in holder.attr:
        return None
    value = holder.attr[name]
    kind = value.WhichOneof("value")
    if kind == "list":
        return next((list(items) for items in (value.list.i, value.list.b, value.list.s) if len(items)), [])
    return value.s.decode("utf-8", "replace") if kind == "s" else getattr(value, kind) if kind else None


def port_size(desc: Any, where: str) -> PortSize:
    """Bytes of a tensor descriptor.

    Raises:
        ModelError: an open dimension without an upper bound, or an element type without a size.
    """
    name = desc.DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_number[desc.dtype].name.removeprefix("DT_")
    dims = _bounded(desc, where)
    if name not in _BITS:
        # A port that carries no data, such as a control result, is written with neither type nor shape.
        if not dims and not desc.size:
            return PortSize(0, 0, None)
        raise ModelError("the tensor has no element type", node=where, got=name, expected="one with a size")
    payload = -(-prod(dims) * _BITS[name] // 8)
    wanted = round_up(desc.size, SLOT_BYTES) if desc.size > 0 else 0
    slot = wanted if wanted > slot_bytes(payload) else 0
    return PortSize(payload, slot, _described(desc, payload))


def _bounded(desc: Any, where: str) -> list[int]:
    dims = list(desc.shape.dim)
    if all(size >= 0 for size in dims):
        return dims
    rows = desc.attr["shape_range"].list_list_int.list_list_i if "shape_range" in desc.attr else ()
    upper = [row.list_i[1] if len(row.list_i) > 1 else -1 for row in rows]
    if -2 in dims or len(upper) != len(dims) or any(u < 0 for size, u in zip(dims, upper) if size < 0):
        raise ModelError(
            "the shape is open and has no upper bound",
            node=where,
            expected="sizes, or a shape_range with an upper bound for each open one",
            got=str(dims),
            hint="dump a build with fixed shapes or gears (--input_shape, --dynamic_batch_size)",
        )
    return [u if size < 0 else size for size, u in zip(dims, upper)]


def _described(desc: Any, payload: int) -> TensorDesc | None:
    """Our descriptor, where format and type are ours and agree with the bytes; planning does not need it."""
    try:
        made = read_desc(desc)
        return made if made.payload_bytes == payload else None
    except (KeyError, ValueError, IndexError, InferError):
        return None


def edges_of(op: Any) -> Iterator[Edge | None]:
    """Operands in order, None for an absent one; control edges come with index -1."""
    for text in op.input:
        name, colon, index = text.rpartition(":")
        if not text:
            yield None
        elif colon and index.lstrip("-").isdigit():
            yield Edge(name, int(index))
        else:
            raise ModelError("an input is no port", node=op.name, expected="name:index", got=text)


def data_edges(op: Any) -> list[Edge | None]:
    """Operands without control edges; absent ones at the end are dropped."""
    edges = [edge for edge in edges_of(op) if edge is None or edge.index != CONTROL]
    while edges and edges[-1] is None:
        edges.pop()
    return edges


def ordered_ops(graph: Any) -> list[Any]:
    """Operators in execution order: by id, moved behind what they read where ids say otherwise (early stages).

    Raises:
        ModelError: an edge from nowhere, two operators of one name, or a cycle.
    """
    place = {op.name: position for position, op in enumerate(graph.op)}
    problems = []
    if len(place) != len(graph.op):
        names = [op.name for op in graph.op]
        twice = next(name for position, name in enumerate(names) if place[name] != position)
        problems.append(Problem("two operators have one name", node=twice))
    followers: dict[int, list[int]] = {}
    waiting = [0] * len(graph.op)
    for position, op in enumerate(graph.op):
        for source in {edge.source for edge in edges_of(op) if edge is not None}:
            if source not in place:
                problems.append(Problem(f"reads from '{source}', which is not in graph '{graph.name}'", node=op.name))
                continue
            followers.setdefault(place[source], []).append(position)
            waiting[position] += 1
    if problems:
        raise ModelError(problems)
    ready = [(graph.op[position].id, position) for position, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, position = heapq.heappop(ready)
        order.append(graph.op[position])
        for follower in followers.get(position, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (graph.op[follower].id, follower))
    if len(order) != len(graph.op):
        stuck = [op.name for op, count in zip(graph.op, waiting) if count]
        raise ModelError(f"graph '{graph.name}' has a cycle", got=" -> ".join(stuck[:6]))
    return order
