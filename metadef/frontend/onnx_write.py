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
from metadef.frontend import onnx_check, onnx_read
from metadef.frontend.onnx_fold import ShapeWalk, shape_of
from metadef.frontend.onnx_read import label_of
from metadef.graph import Graph, Tensor


class GraphWriter:
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
        nodes: Sequence[onnx.NodeProto],
        outputs: Sequence[str],
    ) -> Graph:
        self.graph.notes += self._walk.notes
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
