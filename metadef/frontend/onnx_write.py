"""Writes what the folding walk left of an ONNX model into a framework graph: names, layers, plain attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

from metadef.dtype import DType
from metadef.error import OperatorError, Problem
from metadef.format import TensorDesc
from metadef.frontend import onnx_read
from metadef.frontend.onnx_control import Body, loop_operands
from metadef.frontend.onnx_fold import ShapeWalk
from metadef.frontend.onnx_read import label_of, shape_of
from metadef.graph import Graph, Tensor


class GraphWriter:
    """Writes what the walk left into a :class:`Graph`."""

    def __init__(self, name: str, walk: ShapeWalk, versions: Mapping[str, int], parent: Graph | None = None) -> None:
        self.graph = Graph(name, "onnx", parent)
        self._walk = walk
        self._versions = versions
        self._prefix = f"{name}/" if parent else ""
        self._tensors: dict[str, Tensor] = {}
        self._problems: list[Problem] = []

    def write(
        self,
        fed: Sequence[onnx.ValueInfoProto],
        nodes: Sequence[onnx.NodeProto],
        outputs: Sequence[str],
    ) -> Graph:
        self.graph.notes += self._walk.notes
        self._fill([item.name for item in fed], nodes, outputs)
        if self._problems:
            raise OperatorError(self._problems)
        self.graph.verify()
        return self.graph

    def _fill(self, fed: Sequence[str], nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> None:
        for name in fed:
            desc = self._desc(name, "")
            self._tensors[name] = self.graph.add_input(f"{self._prefix}{name}", desc.origin_shape, desc.dtype)
        values = {name for node in nodes for name in (*node.input, *node.output)}
        for node in nodes:
            self._add(node, values)
        self.graph.set_outputs([self._tensor(name, "") for name in outputs], outputs)

    def _write_bodies(self, label: str, bodies: Mapping[str, Body]) -> tuple[list[str], dict[str, Graph]]:
        """The subgraphs of a node, each with its formal inputs and then all outer values that any of them reads."""
        captured = list(dict.fromkeys(name for body in bodies.values() for name in body.captured))
        graphs = {}
        for key, body in bodies.items():
            inner = GraphWriter(f"{label}/{key}", body.walk, self._versions, self.graph)
            inner._fill([*body.inputs, *captured], body.nodes, body.outputs)
            self._problems += inner._problems
            graphs[key] = inner.graph
        return captured, graphs

    def _add(self, node: onnx.NodeProto, values: set[str]) -> None:
        label = f"{self._prefix}{label_of(node)}"
        bodies = self._walk.bodies.get(next(name for name in node.output if name), {})
        attrs = {item.name: plain_attribute(item) for item in node.attribute if item.name not in bodies}
        captured, graphs = self._write_bodies(label, bodies) if bodies else (onnx_read.captured_names(node), {})
        for body in bodies.values():
            attrs.update(body.facts)
        if captured and not bodies:
            attrs[CAPTURED] = tuple(captured)
        if absent := tuple(slot for slot, name in enumerate(node.output) if not name):
            attrs[ABSENT] = absent
        own = loop_operands(node) if bodies and node.op_type == "Loop" else node.input
        inputs = [self._tensor(name, label) if name else None for name in (*own, *captured)]
        results = [self._desc(name, label) if name else TensorDesc((), DType.FLOAT) for name in node.output]
        domain = "" if node.domain in onnx_read.MAIN else node.domain
        taken = label in values and list(node.output) != [label]
        made = self.graph.add_foreign_node(
            domain,
            node.op_type,
            inputs,
            results,
            attrs,
            f"{label}_{node.op_type}" if taken else label,
            opset=self._versions.get(domain, 1),
            output_names=[f"{self._prefix}{name}" if name else f"{label}:{at}" for at, name in enumerate(node.output)],
            layer=label.rpartition("/")[0],
            origins=(node.name or label,),
            subgraphs=graphs,
        )
        self._tensors.update((name, tensor) for name, tensor in zip(node.output, made.outputs) if name)

    def _tensor(self, name: str, reader: str) -> Tensor:
        if name not in self._tensors:
            value = self._walk.constants[name]
            desc = self._desc(name, reader)
            stored = value.view(np.uint16) if desc.dtype is DType.BF16 else value
            self._tensors[name] = self.graph.add_const(f"{self._prefix}{name}", stored, dtype=desc.dtype)
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
