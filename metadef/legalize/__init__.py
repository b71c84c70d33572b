"""Legalisation: framework operators become operators of the Ascend dialect, one to one or one to many.

Rules live in the modules of this package, one a family. What no rule maps stays a framework node on the host engine,
with the reason; layer paths, origins and names of results are kept.
"""

from __future__ import annotations

from metadef.error import TargetError
from metadef.graph import Graph, Tensor
from metadef.legalize import (  # noqa: F401  (they fill the table)
    arithmetic,
    compositions,
    control,
    einsum,
    movement,
    networks,
    quantised,
    recurrent,
    reductions,
)
from metadef.legalize.nodes import legalize_nodes, mapped
from metadef.legalize.table import Step, Unmapped, find_rule, known_types, rule
from metadef.target import Target

__all__ = ["Step", "Unmapped", "find_rule", "known_types", "legalize", "rule"]

_LEAST_BYTES = 2
"""Of an element, as far as precision is not settled."""


def legalize(graph: Graph, target: Target | None = None) -> Graph:
    """A new graph of dialect "ascend" that computes the same.

    No rule depends on the chip, but with a ``target`` every tensor must fit its memory.

    Raises:
        InferError: operands of a node do not fit its rule or its Ascend prototype; all such nodes at once.
        TargetError: tensors that are larger than the chip's memory, in the smallest type they may be kept in.
    """
    if graph.dialect == "ascend":
        return graph
    made = Graph(graph.name)
    made.notes += graph.notes
    tensors: dict[int, Tensor] = {}
    for tensor in graph.inputs:
        desc = tensor.desc
        tensors[id(tensor)] = made.add_input(tensor.name, desc.origin_shape, desc.dtype, desc.origin_format)
    legalize_nodes(made, graph.nodes, tensors, frozenset(map(id, graph.outputs)))
    made.set_outputs([mapped(made, tensors, tensor) for tensor in graph.outputs], graph.output_names)
    _drop_unread(made)
    made.verify()
    if target is not None:
        _check_memory(made, target)
    return made


def _check_memory(made: Graph, target: Target) -> None:
    """Before any pass, so that none reads what no card holds. Wide types count as halves: passes may narrow them."""
    held = [("", tensor) for tensor in (*made.inputs, *made.constants())]
    held += [(node.path, tensor) for node in made.nodes for tensor in node.outputs]
    sizes = [tensor.desc.elements * min(tensor.desc.dtype.bytes, _LEAST_BYTES) for _, tensor in held]
    over = [at for at, size in enumerate(sizes) if size > target.device_bytes]
    if not over:
        return
    node, tensor = held[over[0]]
    others = f", and {len(over) - 1} more" if len(over) > 1 else ""
    raise TargetError(
        f"tensor '{tensor.name}'{others} larger than the memory of {target.soc}",
        node=node,
        expected=f"at most {target.device_bytes} bytes",
        got=f"{tensor.desc}, at least {sizes[over[0]]} bytes",
        hint="check the attribute or operand that sizes it (pads, repeats, scales, shape), or bind smaller inputs",
    )


def _drop_unread(made: Graph) -> None:
    """Remove nodes that a rule added in vain, and casts or views whose only reader looked through them."""
    for node in made.nodes:
        for inner in node.subgraphs.values():
            _drop_unread(inner)
    outputs = set(map(id, made.outputs))
    for node in reversed(list(made.nodes)):
        if not any(tensor.uses or id(tensor) in outputs for tensor in node.outputs):
            made.remove_node(node)
