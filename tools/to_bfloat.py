"""Rewrite an ONNX model in float32 as one in bfloat16: weights rounded, every float32 value declared so.

    python tools/to_bfloat.py IN.onnx OUT.onnx

The main graph and its subgraphs are rewritten. The operator set is raised to 22, the first in which convolution and
pooling take bfloat16; inputs and outputs become bfloat16 too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, TensorProto, numpy_helper, version_converter

from npusim.onnx_bfloat import graphs_of
from onnx_writer import save_model

OPSET = 22
_KEPT = {"Resize": (1, 2), "Upsample": (1,)}
"""Operands that stay float32 by the operator's own type rule: regions and scales."""


def to_bfloat(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in bfloat16; the argument is left alone."""
    result = version_converter.convert_version(model, OPSET)
    for graph in graphs_of(result.graph):
        _rewrite(graph)
    return result


def _rewrite(graph: GraphProto) -> None:
    kept = {node.input[slot] for node in graph.node for slot in _KEPT.get(node.op_type, ()) if slot < len(node.input)}
    for item in (*graph.input, *graph.output, *graph.value_info):
        if item.type.tensor_type.elem_type == TensorProto.FLOAT and item.name not in kept:
            item.type.tensor_type.elem_type = TensorProto.BFLOAT16
    for tensor in graph.initializer:
        if tensor.name not in kept:
            _round(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR and node.output[0] not in kept:
                _round(attribute.t)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.BFLOAT16


def _round(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        value = numpy_helper.to_array(tensor).astype(np.float32).astype(ml_dtypes.bfloat16)
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    save_model(to_bfloat(onnx.load(arguments.source)), arguments.target)


if __name__ == "__main__":
    main()
