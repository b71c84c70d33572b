"""The slow road: a graph or a single node computed from the prototypes' references, in origin layout.

Folding, layer-by-layer comparison and tests use it. Values follow the device's rule: 16-bit floats at rest, ``compute``
precision inside a node and its epilogue, one rounding at the node's result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from metadef.control import BODY, COND, ELSE, IF, THEN
from metadef.dtype import DType
from metadef.error import OperatorError, UsageError, suggest
from metadef.graph import Graph, Node, Tensor
from metadef.kernel import FusedOp
from metadef.op import Attrs, OpDef, get_op
from metadef.ops.numeric import narrow, widen


def evaluate(
    graph: Graph,
    feeds: Mapping[str, np.ndarray],
    *,
    compute: type = np.float32,
    overflow: str = "inf",
    keep: bool = False,
) -> dict[str, np.ndarray]:
    """Outputs of an Ascend graph by name; with ``keep`` every tensor that was made, by tensor name as well.

    ``compute`` is the precision inside a node; float64 gives a reference for float32 models.

    Raises:
        UsageError: a feed is missing, unknown or of another shape. OperatorError: a framework node has no reference.
    """
    _check_feeds(graph, feeds)
    given = [_stored(feeds[tensor.name], tensor.desc.dtype, overflow) for tensor in graph.inputs]
    values = _values(graph, given, compute, overflow, keep)
    results = {name: values[id(tensor)] for name, tensor in zip(graph.output_names, graph.outputs)}
    if keep:
        made = {tensor.name: values[id(tensor)] for node in graph.nodes for tensor in node.outputs}
        results = made | results
    return results


def _values(
    graph: Graph, given: Sequence[np.ndarray], compute: type, overflow: str, keep: bool = False
) -> dict[int, np.ndarray]:
    """Values of a graph's tensors by identity: its outputs, or with ``keep`` all of them."""
    values = {id(tensor): value for tensor, value in zip(graph.inputs, given, strict=True)}
    for tensor in graph.constants():
        values[id(tensor)] = constant_value(tensor)
    last_use = {} if keep else _last_uses(graph)
    for node in graph.nodes:
        operands = [None if tensor is None else values[id(tensor)] for tensor in node.inputs]
        if node.subgraphs:
            results = _control_results(node, [item for item in operands if item is not None], compute, overflow)
        else:
            results = evaluate_node(node, operands, compute=compute, overflow=overflow)
        values.update((id(tensor), value) for tensor, value in zip(node.outputs, results))
        for tensor in last_use.get(id(node), ()):
            del values[id(tensor)]
    return values


def _control_results(node: Node, operands: list[np.ndarray], compute: type, overflow: str) -> list[np.ndarray]:
    """Results of a node with subgraphs (``metadef.control``)."""

    def run(key: str, given: list[np.ndarray]) -> list[np.ndarray]:
        inner = node.subgraphs[key]
        values = _values(inner, given, compute, overflow)
        return [values[id(tensor)] for tensor in inner.outputs]

    if node.op_type == IF:
        return run(THEN if operands[0].all() else ELSE, operands[1:])
    count = len(node.outputs)
    while run(COND, operands)[0].all():
        operands[:count] = run(BODY, operands)
    return operands[:count]


def evaluate_node(
    node: Node, operands: Sequence[np.ndarray | None], *, compute: type = np.float32, overflow: str = "inf"
) -> list[np.ndarray]:
    """Results of one Ascend node, epilogue included, in storage types; ``operands`` follow ``node.inputs``.

    Raises:
        OperatorError: the node is a framework node.
    """
    opdef = node.opdef
    if opdef is None:
        raise OperatorError(
            f"'{node.domain or 'ai.onnx'}::{node.op_type}' has no reference",
            node=node.path,
            hint="run it on the host engine",
        )
    wide = [
        None if value is None or tensor is None else widen(value, tensor.desc.dtype, compute)
        for tensor, value in zip(node.inputs, operands)
    ]
    results = compute_fused(opdef, wide, node.attrs, node.fused)
    return [narrow(value, tensor.desc.dtype, overflow) for tensor, value in zip(node.outputs, results)]


def compute_fused(
    opdef: OpDef, operands: Sequence[np.ndarray | None], attrs: Attrs, fused: Sequence[FusedOp] = ()
) -> list[np.ndarray]:
    """An operator and its epilogue on widened operands, without any rounding between or after them."""
    extra = [item.operand for item in fused if item.operand is not None]
    base = list(operands[: min(extra)] if extra else operands)
    while base and base[-1] is None:
        base.pop()
    results = opdef.reference(base, attrs)
    for item in fused:
        step = get_op(item.op_type)
        second = [] if item.operand is None else [operands[item.operand]]
        results = step.reference([results[0], *second], step.complete_attrs(item.attrs))
    return results


def constant_value(tensor: Tensor) -> np.ndarray:
    """A constant's elements under its shape, in its storage type."""
    assert tensor.const is not None
    return tensor.const.reshape(tensor.desc.origin_shape)


def _stored(value: np.ndarray, dtype: DType, overflow: str) -> np.ndarray:
    """A feed in its storage type; bfloat16 may come as its bits in uint16."""
    value = np.asarray(value)
    return value if value.dtype == dtype.numpy else narrow(value, dtype, overflow)


def _check_feeds(graph: Graph, feeds: Mapping[str, np.ndarray]) -> None:
    wanted = {tensor.name: tensor for tensor in graph.inputs}
    for name in feeds:
        if name not in wanted:
            raise UsageError(f"the graph has no input '{name}'", code="E10016", hint=suggest(name, wanted))
    for name, tensor in wanted.items():
        if name not in feeds:
            raise UsageError(f"input '{name}' is not fed", expected=str(tensor.desc))
        shape = np.shape(feeds[name])
        if shape != tensor.desc.origin_shape:
            raise UsageError(
                f"input '{name}' has another shape", expected=str(tensor.desc.origin_shape), got=str(shape)
            )


def _last_uses(graph: Graph) -> dict[int, list[Tensor]]:
    """Node -> tensors that nobody reads after it."""
    last: dict[int, tuple[Node, Tensor]] = {}
    for node in graph.nodes:
        for tensor in (*node.outputs, *node.inputs):
            if tensor is not None:
                last[id(tensor)] = (node, tensor)
    for tensor in graph.outputs:
        last.pop(id(tensor), None)
    result: dict[int, list[Tensor]] = {}
    for node, tensor in last.values():
        result.setdefault(id(node), []).append(tensor)
    return result


def round_trip(value: np.ndarray, dtype: DType) -> np.ndarray:
    """The float32 number that a value has after being stored as ``dtype``."""
    return widen(narrow(value, dtype), dtype)
