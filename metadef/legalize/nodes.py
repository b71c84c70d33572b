"""Legalisation of one node and of a list of them: what a rule maps, and what stays on the host with the reason."""

from __future__ import annotations

from collections.abc import Iterable

from metadef.error import ContractError, InferError, LabError, Problem
from metadef.graph import Graph, Node, Tensor
from metadef.kernel import Engine
from metadef.legalize.table import Step, Unmapped, find_rule


def legalize_nodes(made: Graph, nodes: Iterable[Node], tensors: dict[int, Tensor], read: frozenset[int]) -> None:
    """Add what stands for framework nodes to ``made``.

    Args:
        tensors: the new tensor of every old one, by identity; results are entered.
        read: old tensors that are read beside the nodes (outputs of the graph).

    Raises:
        InferError: operands of a node do not fit its rule or its Ascend prototype; all such nodes at once.
    """
    problems: list[Problem] = []
    for node in nodes:
        inputs = [None if tensor is None else mapped(made, tensors, tensor) for tensor in node.inputs]
        try:
            results = _legalize_node(made, node, inputs, read)
        except InferError as error:
            problems += error.problems
            results = _keep(made, node, inputs, "its operands do not fit")
        tensors.update((id(old), new) for old, new in zip(node.outputs, results) if new is not None)
    if problems:
        raise InferError(problems)


def mapped(made: Graph, tensors: dict[int, Tensor], tensor: Tensor) -> Tensor:
    """The new tensor of an old one; constants are taken over when they are first met."""
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
            text = f"the rule of {label} changed its result"
            hint = "check the node's attributes and sizes in the source model; if they are right, please report it"
            raise ContractError(text, node=node.path, expected=str(old.desc), got=str(new.desc), hint=hint)
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
