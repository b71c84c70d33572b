"""Legalisation: framework operators become operators of the Ascend dialect, one to one or one to many.

Rules live in the modules of this package, one a family. What no rule maps stays a framework node on the host engine,
with the reason; layer paths, origins and names of results are kept.
"""

from __future__ import annotations

from metadef.error import ContractError, InferError, LabError, Problem, TargetError
from metadef.graph import Graph, Node, Tensor
from metadef.kernel import Engine
from metadef.legalize import arithmetic, compositions, movement, networks, reductions  # noqa: F401  (they fill the table)
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
    problems: list[Problem] = []
    read = frozenset(map(id, graph.outputs))
    for node in graph.nodes:
        inputs = [None if tensor is None else _mapped(made, tensors, tensor) for tensor in node.inputs]
        try:
            results = _legalize_node(made, node, inputs, read)
        except InferError as error:
            problems += error.problems
            results = _keep(made, node, inputs, "its operands do not fit")
        tensors.update((id(old), new) for old, new in zip(node.outputs, results) if new is not None)
    if problems:
        raise InferError(problems)
    made.set_outputs([_mapped(made, tensors, tensor) for tensor in graph.outputs], graph.output_names)
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


def _mapped(made: Graph, tensors: dict[int, Tensor], tensor: Tensor) -> Tensor:
    found = tensors.get(id(tensor))
    if found is None:
        assert tensor.const is not None, f"'{tensor.name}' is read before it is made"
        found = made.add_const(tensor.name, tensor.const, tensor.desc.origin_format, tensor.desc.dtype)
        tensors[id(tensor)] = found
    return found


def _legalize_node(made: Graph, node: Node, inputs: list[Tensor | None], read: frozenset[int]) -> list[Tensor | None]:
    found = find_rule(node.domain, node.op_type, node.opset)
    label = f"{node.domain or 'ai.onnx'}::{node.opset}::{node.op_type}"
    if found is None:
        return _keep(made, node, inputs, f"no rule maps {label} to Ascend operators")
    before = len(made.nodes)
    try:
        results = list(found(Step(made, node, inputs, read)))
    except (Unmapped, LabError) as error:
        for extra in reversed(made.nodes[before:]):
            made.remove_node(extra)
        if isinstance(error, LabError):
            raise
        return _keep(made, node, inputs, f"{label}: {error}")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        shapes = ", ".join("-" if tensor is None else str(tensor.desc) for tensor in inputs)
        raise InferError(
            f"operands or attributes contradict what {label} means: {error}",
            code="E14001",
            node=node.path,
            got=f"{shapes}; attributes {', '.join(sorted(node.attrs)) or 'none'}",
            hint="check the node in the source model, with onnx.checker for one",
        ) from error
    for old, new in zip(node.outputs, results):
        if new is not None and (new.desc.origin_shape, new.desc.dtype) != (old.desc.origin_shape, old.desc.dtype):
            raise ContractError(
                f"the rule of {label} changed its result", node=node.path, expected=str(old.desc), got=str(new.desc)
            )
    return results


def _keep(made: Graph, node: Node, inputs: list[Tensor | None], reason: str) -> list[Tensor | None]:
    """The node as it is, on the host engine."""
    names = [tensor.name for tensor in node.outputs]
    kept = made.add_foreign_node(
        node.domain,
        node.op_type,
        inputs,
        [tensor.desc for tensor in node.outputs],
        node.attrs,
        node.name,
        opset=node.opset,
        output_names=names,
        layer=node.layer,
        origins=node.origins,
    )
    kept.engine, kept.engine_reason = Engine.HOST_CPU, reason
    return list(kept.outputs)


def _drop_unread(made: Graph) -> None:
    """Remove nodes that a rule added in vain, and casts or views whose only reader looked through them."""
    outputs = set(map(id, made.outputs))
    for node in reversed(list(made.nodes)):
        if not any(tensor.uses or id(tensor) in outputs for tensor in node.outputs):
            made.remove_node(node)
