"""The ONNX front end: a file, its bytes or a ModelProto becomes a framework graph with concrete shapes.

Reading, structural checks, binding of shapes, the folding walk, and at last the graph: names, layers and attributes as
plain Python values, so that nothing behind this room sees a protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from metadef.frontend import onnx_check, onnx_read
from metadef.frontend.onnx_bind import bind_inputs, lying_outputs
from metadef.frontend.onnx_fold import ShapeWalk
from metadef.frontend.onnx_functions import inlined, with_functions
from metadef.frontend.onnx_write import GraphWriter
from metadef.graph import Graph


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
            An initializer that is an input too, and so a default, is replaced.

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
    model = with_functions(model, versions.get("", onnx.defs.onnx_opset_version()))
    onnx_check.check_operators(model, versions)
    if model.functions:
        model = inlined(model)
    onnx_check.check_values(model.graph)
    outputs = [item.name for item in model.graph.output]
    onnx_check.check_outputs(outputs)
    nodes = onnx_read.live_nodes(onnx_check.sorted_nodes(model.graph.node), outputs)
    onnx_check.check_nodes(nodes, model, versions)
    reader = onnx_read.TensorReader(read)
    reader.check_external(model.graph.initializer)

    constants = {item.name for item in model.graph.initializer} | {
        item.values.name for item in model.graph.sparse_initializer
    }
    fixed = {name: np.asarray(value) for name, value in (values or {}).items()}
    onnx_check.check_fixed(fixed, model.graph)
    fed = [item for item in model.graph.input if item.name not in constants and item.name not in fixed]
    bound = bind_inputs(fed, shapes or {}, dims or {})
    walk = ShapeWalk(versions, reader, model.ir_version or onnx.IR_VERSION)
    for item in fed:
        walk.add_input(item.name, item.type.tensor_type.elem_type, bound.shapes[item.name])
    _read_constants(model.graph, nodes, walk, reader)
    for name, value in fixed.items():
        walk.add_constant(name, value)
    walk.run(nodes)
    written = GraphWriter(read.name, walk, versions).write(fed, onnx_read.live_nodes(walk.nodes, outputs), outputs)
    made = {name: tensor.desc.origin_shape for name, tensor in zip(outputs, written.outputs)}
    lies = [] if shapes else lying_outputs(model.graph.output, made)
    written.notes[:0] = [*notes, *onnx_check.repeated_names(model.graph), *bound.notes, *lies]
    return written


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
