"""The ONNX front end: a file, its bytes or a ModelProto becomes a framework graph with concrete shapes.

Reading, structural checks, binding of shapes, the folding walk, and at last the graph: names, layers and attributes as
plain Python values, so that nothing behind this room sees a protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

from metadef.dtype import DType
from metadef.error import ModelError, OperatorError, Problem
from metadef.format import TensorDesc
from metadef.frontend import onnx_check, onnx_read
from metadef.frontend.onnx_bind import BoundInputs, bind_inputs
from metadef.frontend.onnx_fold import ShapeWalk, shape_of
from metadef.frontend.onnx_read import label_of
from metadef.graph import Graph, Tensor


def load_onnx(
    source: str | Path | bytes | onnx.ModelProto,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
) -> Graph:
    """Load a model into a graph of dialect "onnx".

    Args:
        shapes: input name -> concrete shape; wins over what the model declares.
        dims: symbolic dimension -> size. An open axis 0 that nobody names becomes 1 (see ``Graph.notes``).
        values: inputs to fix for good, such as the target shape of a Reshape; they are no inputs of the graph any more.

    Shapes are concrete afterwards, constant subgraphs and shape arithmetic are gone, unread nodes too; nodes are in
    execution order; opsets 7 to the newest that the onnx package knows (older ones are converted to 7 first).

    Raises:
        ModelError: the file or the graph is broken. OperatorError: operators nobody knows, all at once.
        InferError: operands do not fit a node. UsageError: ``shapes`` or ``dims`` name what is not there.
    """
    read = onnx_read.read_model(source)
    onnx_check.check_texts(read.model)
    model, notes = onnx_check.modern(read.model)
    versions = onnx_check.opset_versions(model)
    onnx_check.check_operators(model, versions)
    if model.functions:
        model = _inlined(model)
    onnx_check.check_values(model.graph)
    nodes = _live(onnx_check.sorted_nodes(model.graph.node), [item.name for item in model.graph.output])
    onnx_check.check_nodes(nodes, model, versions)
    reader = onnx_read.TensorReader(read)
    reader.check_external(model.graph.initializer)

    constants = {item.name for item in model.graph.initializer} | {
        item.values.name for item in model.graph.sparse_initializer
    }
    fixed = values or {}
    fed = [item for item in model.graph.input if item.name not in constants]
    onnx_check.check_fixed(fixed, fed)
    fed = [item for item in fed if item.name not in fixed]
    bound = bind_inputs(fed, shapes or {}, dims or {})
    bound.notes[:0] = notes
    walk = ShapeWalk(versions, reader, model.ir_version or onnx.IR_VERSION)
    for name, value in fixed.items():
        walk.add_constant(name, np.asarray(value))
    for item in fed:
        walk.add_input(item.name, item.type.tensor_type.elem_type, bound.shapes[item.name])
    _read_constants(model.graph, nodes, walk, reader)
    walk.run(nodes)
    outputs = [item.name for item in model.graph.output]
    return _GraphWriter(read.name, walk, versions).write(fed, bound, _live(walk.nodes, outputs), outputs)


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its local functions expanded. Raises ModelError if they call each other in a circle."""
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        raise ModelError(
            f"the model's functions cannot be expanded: {str(error).splitlines()[0]}",
            code="E14001",
            got=f"{len(model.functions)} functions",
        ) from error


def _live(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """Nodes that the outputs depend on, without results that nobody reads at their end."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if not wanted.intersection(node.output):
            continue
        if node.output[-1] not in wanted:
            node = _trimmed(node, wanted)
        wanted.update(name for name in (*node.input, *onnx_read.captured_names(node)) if name)
        kept.append(node)
    return kept[::-1]


def _trimmed(node: onnx.NodeProto, wanted: set[str]) -> onnx.NodeProto:
    """A copy without the unread results at the node's end."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    while copy.output[-1] not in wanted:
        copy.output.pop()
    return copy


def _read_constants(
    graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto], walk: ShapeWalk, reader: onnx_read.TensorReader
) -> None:
    """Put the initializers that are read into the walk."""
    read = {name for node in nodes for name in (*node.input, *onnx_read.captured_names(node))}
    read.update(item.name for item in graph.output)
    for tensor in graph.initializer:
        if tensor.name in read:
            walk.add_constant(tensor.name, reader.array(tensor))
    for sparse in graph.sparse_initializer:
        if sparse.values.name in read:
            walk.add_constant(sparse.values.name, reader.sparse(sparse))


class _GraphWriter:
    """Writes what the walk left into a :class:`Graph`."""

    def __init__(self, name: str, walk: ShapeWalk, versions: Mapping[str, int]) -> None:
        self.graph = Graph(name, "onnx")
        self._walk = walk
        self._versions = versions
        self._tensors: dict[str, Tensor] = {}
        self._problems: list[Problem] = []

    def write(
        self,
        fed: Sequence[onnx.ValueInfoProto],
        bound: BoundInputs,
        nodes: Sequence[onnx.NodeProto],
        outputs: Sequence[str],
    ) -> Graph:
        self.graph.notes += [*bound.notes, *self._walk.notes]
        for item in fed:
            desc = self._desc(item.name, "")
            self._tensors[item.name] = self.graph.add_input(item.name, desc.origin_shape, desc.dtype)
        values = {name for node in nodes for name in (*node.input, *node.output)}
        for node in nodes:
            self._add(node, values)
        if self._problems:
            raise OperatorError(self._problems)
        self.graph.set_outputs([self._tensor(name, "") for name in outputs], outputs)
        self.graph.verify()
        return self.graph

    def _add(self, node: onnx.NodeProto, values: set[str]) -> None:
        label = label_of(node)
        captured = onnx_read.captured_names(node)
        attrs = {attribute.name: plain_attribute(attribute) for attribute in node.attribute}
        if captured:
            attrs[CAPTURED] = tuple(captured)
        if absent := tuple(slot for slot, name in enumerate(node.output) if not name):
            attrs[ABSENT] = absent
        inputs = [self._tensor(name, label) if name else None for name in (*node.input, *captured)]
        results = [self._desc(name, label) if name else TensorDesc((), DType.FLOAT) for name in node.output]
        domain = "" if node.domain in onnx_check.MAIN else node.domain
        taken = label in values and list(node.output) != [label]
        made = self.graph.add_foreign_node(
            domain,
            node.op_type,
            inputs,
            results,
            attrs,
            f"{label}_{node.op_type}" if taken else label,
            opset=self._versions.get(domain, 1),
            output_names=[name or f"{label}:{index}" for index, name in enumerate(node.output)],
            layer=label.rpartition("/")[0],
            origins=(node.name or label,),
        )
        self._tensors.update((name, tensor) for name, tensor in zip(node.output, made.outputs) if name)

    def _tensor(self, name: str, reader: str) -> Tensor:
        if name not in self._tensors:
            value = self._walk.constants[name]
            desc = self._desc(name, reader)
            stored = value.view(np.uint16) if desc.dtype is DType.BF16 else value
            self._tensors[name] = self.graph.add_const(name, stored, dtype=desc.dtype)
        return self._tensors[name]

    def _desc(self, name: str, node: str) -> TensorDesc:
        found = self._walk.types[name]
        elem_type = found.tensor_type.elem_type
        try:
            dtype = DType.from_onnx(elem_type)
        except KeyError:
            label = TensorProto.DataType.Name(elem_type) if elem_type else found.WhichOneof("value") or "untyped"
            allowed = ", ".join(item.label for item in DType)
            self._problems.append(
                Problem(f"value '{name}' has a type no engine here knows", "E14001", node, "", allowed, label.lower())
            )
            dtype = DType.FLOAT
        return TensorDesc(shape_of(found) or (), dtype)


CAPTURED = "captured_names"
"""Attribute of a node with subgraphs: outer values they read; these follow the node's own operands in ``inputs``."""
ABSENT = "absent_results"
"""Attribute of a node that leaves results out: their positions. A scalar stands there that nobody writes or reads."""


def plain_attribute(attribute: AttributeProto) -> Any:
    """An attribute as a plain value: numbers, strings, tuples of them, arrays; graphs and types as their bytes."""
    value = onnx.helper.get_attribute_value(attribute)
    kind = attribute.type
    if kind == AttributeProto.STRING:
        return value.decode("utf-8", "replace")
    if kind == AttributeProto.STRINGS:
        return tuple(item.decode("utf-8", "replace") for item in value)
    if kind == AttributeProto.TENSOR:
        return onnx.numpy_helper.to_array(value)
    if kind in (AttributeProto.FLOAT, AttributeProto.INT):
        return value
    if kind in (AttributeProto.FLOATS, AttributeProto.INTS):
        return tuple(value)
    if kind in (AttributeProto.GRAPH, AttributeProto.TYPE_PROTO, AttributeProto.SPARSE_TENSOR):
        return value.SerializeToString()
    return tuple(item.SerializeToString() for item in value)


__all__ = ["ABSENT", "CAPTURED", "load_onnx", "plain_attribute"]
