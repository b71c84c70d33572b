"""An ONNX model in bfloat16 as the same model in float32, which onnxruntime's CPU provider can run.

Weights keep their values: every bfloat16 number is a float32 number. Results are no longer rounded between operators.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, TensorProto, numpy_helper


def uses_bfloat(model: onnx.ModelProto) -> bool:
    """Whether any input, output or weight of the model, or of a body in it, is bfloat16."""
    return any(
        item.type.tensor_type.elem_type == TensorProto.BFLOAT16
        for graph in graphs_of(model.graph)
        for item in (*graph.input, *graph.output)
    ) or any(tensor.data_type == TensorProto.BFLOAT16 for graph in graphs_of(model.graph) for tensor in _tensors(graph))


def without_bfloat(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model in which float32 stands wherever bfloat16 stood."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for graph in graphs_of(result.graph):
        _widen(graph)
    return result


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and the bodies inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from graphs_of(attribute.g)


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t


def _widen(graph: GraphProto) -> None:
    for item in (*graph.input, *graph.output, *graph.value_info):
        if item.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            item.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in _tensors(graph):
        if tensor.data_type == TensorProto.BFLOAT16:
            value = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    for node in graph.node:
        for attribute in node.attribute:
            stated = attribute.name in ("to", "dtype", "output_dtype", "stash_type")
            if stated and attribute.type == AttributeProto.INT and attribute.i == TensorProto.BFLOAT16:
                attribute.i = TensorProto.FLOAT
