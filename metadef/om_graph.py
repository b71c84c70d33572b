"""A compiled graph as GE's ModelDef and back: what viewers and explanations read from an offline model.

Constants point into the weights partition; offsets of activations and workspaces are those of the program. Our own
attributes carry the prefix ``_npusim``; all others are GE's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metadef.error import ModelError
from metadef.format import TensorDesc, pack, unpack
from metadef.ge_proto import message_class, parse_message
from metadef.ge_values import fill_desc, fused_of, get_attr, read_desc, set_attr, set_fused, typed_attrs
from metadef.graph import Graph, Node, Tensor
from metadef.kernel import Engine
from metadef.program import Program, Region, Task

SINK = "Node_Output"
_NAMES, _LAYER, _FUSED, _DOMAIN, _OPSET, _REASON, _CONTROL, _SUBGRAPHS = (
    "_datadump_original_op_names", "_npusim_layer", "_npusim_fused", "_npusim_domain", "_npusim_opset",
    "_npusim_engine_reason", "_npusim_control_inputs", "_npusim_subgraphs",
)  # fmt: skip
_ENGINE, _BLOCK_DIM = "_ge_attr_op_kernel_lib_name", "tvm_blockdim"
_OWN = frozenset({_NAMES, _LAYER, _FUSED, _DOMAIN, _OPSET, _REASON, _CONTROL, _SUBGRAPHS, _ENGINE, _BLOCK_DIM})


def graph_to_model_def(graph: Graph, program: Program | None, attrs: Mapping[str, Any]) -> bytes:
    """Serialised ``ge.proto.ModelDef``: Data, Const, operators and NetOutput, each with full descriptors.

    Nested graphs follow the root; nodes name theirs.

    A constant that no task of ``program`` reads is stored in place. ``attrs`` become attributes of the model.
    """
    model = message_class("ModelDef")(name=graph.name, version=1)
    for each in graph.graphs():
        _Writer(model.graph.add(name=each.name), program).write(each)
    ports = zip(model.graph[0].op[-1].input, graph.output_names)
    for name, value in {**attrs, "attr_model_out_nodes_name": [f"{port}:{public}" for port, public in ports]}.items():
        set_attr(model.attr[name], value)
    return model.SerializeToString(deterministic=True)


def model_def_to_graph(data: bytes, weights: np.ndarray) -> Graph:
    """The graph of a ModelDef that :func:`graph_to_model_def` wrote; constants are read from ``weights`` (uint8).

    Raises:
        ModelError: the message is damaged, or holds what the graph cannot (a vendor's operator, format or type).
    """
    try:
        model = parse_message("ModelDef", data)
        graphs = {graph.name: graph for graph in model.graph}
        return _Reader(model.graph[0].name, weights, graphs).read(
            get_attr(model.attr["attr_model_out_nodes_name"]) or ()
        )
    except (IndexError, KeyError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        hint = "compile the model again; `npusim plan` reads vendor models"
        raise ModelError("the graph of the model file cannot be read", got=what, hint=hint) from error


class _Writer:
    """Fills one GraphDef. ``ports`` maps tensors to their "op:idx", ``descs`` constants to how they are stored."""

    def __init__(self, proto: Any, program: Program | None) -> None:
        self.proto = proto
        self.tasks: dict[str, Task] = {task.name: task for task in program.tasks} if program else {}
        self.ports: dict[int, str] = {}
        self.descs: dict[int, TensorDesc] = {}
        self.names: set[str] = set()

    def write(self, graph: Graph) -> None:
        self.names = {node.name for node in graph.nodes} | {tensor.name for tensor in graph.inputs}
        places = self._const_places(graph)
        for index, tensor in enumerate(graph.inputs):
            op = self._op(tensor.name, "Data")
            op.attr["index"].i = index
            fill_desc(op.input_desc.add(), tensor.desc)
            self._add_output(op, tensor)
        for tensor in graph.constants():
            desc, place = places.get(id(tensor), (tensor.desc, None))
            self.descs[id(tensor)] = desc
            self._write_const(tensor, desc, place)
        for node in graph.nodes:
            self._write_node(node)
        sink = self._op(SINK, "NetOutput")
        for tensor in graph.outputs:
            sink.input.append(self.ports[id(tensor)])
            fill_desc(sink.input_desc.add(), tensor.desc)
        self.proto.input.extend(self.ports[id(tensor)] for tensor in graph.inputs)
        self.proto.output.extend(sink.input)

    def _const_places(self, graph: Graph) -> dict[int, tuple[TensorDesc, int]]:
        """How and at which byte of the weights every constant lies that a task reads there."""
        places: dict[int, tuple[TensorDesc, int]] = {}
        for node in graph.nodes:
            task = self.tasks.get(node.name)
            for tensor, operand in zip(node.inputs, task.inputs if task else ()):
                if tensor is not None and operand is not None and operand.region is Region.WEIGHTS:
                    places[id(tensor)] = operand.desc, operand.address
        return places

    def _write_const(self, tensor: Tensor, desc: TensorDesc, place: int | None) -> None:
        name = tensor.name
        while name in self.names:
            name += "_const"
        self.names.add(name)
        op = self._op(name, "Const")
        self._add_output(op, tensor)
        value = op.attr["value"].t
        fill_desc(value.desc, desc)
        value.desc.weight_size = desc.payload_bytes
        if place is None:
            assert tensor.const is not None
            value.data = pack(tensor.const, desc).tobytes()
        else:
            value.desc.data_offset = place

    def _write_node(self, node: Node) -> None:
        op = self._op(node.name, node.op_type)
        for tensor in node.inputs:
            op.input.append("" if tensor is None else self.ports[id(tensor)])
            desc = op.input_desc.add()
            if tensor is not None:
                fill_desc(desc, self.descs.get(id(tensor), tensor.desc))
        op.input.extend(f"{before.name}:-1" for before in node.control_inputs)
        for tensor in node.outputs:
            self._add_output(op, tensor)
        for name, value in node.attrs.items():
            if value is not None:
                set_attr(op.attr[name], value)
        own: dict[str, Any] = {
            _NAMES: list(node.origins), _LAYER: node.layer, _OPSET: node.opset, _REASON: node.engine_reason,
            _ENGINE: node.engine.value if node.engine else "", _SUBGRAPHS: list(node.subgraphs),
        }  # fmt: skip
        own = {name: value for name, value in own.items() if value}
        if node.domain != "ascend":
            own[_DOMAIN] = node.domain
        for name, value in own.items():
            set_attr(op.attr[name], value)
        if node.fused:
            set_fused(op.attr[_FUSED], node.fused)
        op.subgraph_name.extend(inner.name for inner in node.subgraphs.values())
        task = self.tasks.get(node.name)
        if task is not None:
            op.attr[_BLOCK_DIM].i = task.kernel.block_dim
            op.stream_id = task.stream
            op.input_i.extend(item.address for item in task.inputs if item is not None)
            op.output_i.extend(item.address for item in task.outputs)
            op.workspace.extend(span.address for span in task.workspaces)
            op.workspace_bytes.extend(span.bytes for span in task.workspaces)

    def _op(self, name: str, op_type: str) -> Any:
        return self.proto.op.add(name=name, type=op_type, id=len(self.proto.op))

    def _add_output(self, op: Any, tensor: Tensor) -> None:
        self.ports[id(tensor)] = f"{op.name}:{len(op.output_desc)}"
        fill_desc(op.output_desc.add(name=tensor.name), self.descs.get(id(tensor), tensor.desc))


class _Reader:
    """Builds a graph from operators in order."""

    def __init__(self, name: str, weights: np.ndarray, graphs: Mapping[str, Any], parent: Graph | None = None) -> None:
        self.graph = Graph(name, parent=parent)
        self.weights = weights
        self.graphs = graphs
        self.tensors: dict[str, Tensor] = {}
        self.inputs: dict[int, Tensor] = {}
        self.outputs: list[Tensor] = []

    def read(self, output_names: Sequence[str]) -> Graph:
        for op in self.graphs[self.graph.name].op:
            self.add(op)
        return self.finish(output_names)

    def add(self, op: Any) -> None:
        if op.type == "Data":
            desc = read_desc(op.output_desc[0])
            tensor = self.graph.add_input(op.name, desc.origin_shape, desc.dtype, desc.format)
            self.tensors[f"{op.name}:0"] = tensor
            self.inputs[op.attr["index"].i] = tensor
        elif op.type == "Const":
            desc = read_desc(op.output_desc[0])
            value = self._const(op.attr["value"].t, desc)
            self.tensors[f"{op.name}:0"] = Tensor(op.output_desc[0].name or op.name, desc, const=value)
        elif op.type == "NetOutput":
            self.outputs = [self.tensors[port] for port in op.input]
        else:
            self._add_node(op)

    def finish(self, output_names: Sequence[str]) -> Graph:
        self.graph.inputs = [self.inputs[index] for index in sorted(self.inputs)]
        names = [item.split(":", 2)[2] for item in output_names if item.count(":") >= 2]
        self.graph.set_outputs(self.outputs, names if len(names) == len(self.outputs) else ())
        return self.graph

    def _add_node(self, op: Any) -> None:
        own = {name: get_attr(value) for name, value in op.attr.items() if name in _OWN}
        attrs = {name: get_attr(op.attr[name]) for name in sorted(op.attr) if name not in _OWN}
        data = [port for port in op.input if not port.endswith(":-1")]
        node = self.graph.add_foreign_node(
            own.get(_DOMAIN, "ascend"),
            op.type,
            [self.tensors[port] if port else None for port in data],
            [read_desc(desc) for desc in op.output_desc],
            attrs,
            op.name,
            opset=own.get(_OPSET, 0),
            output_names=[desc.name for desc in op.output_desc],
            origins=own.get(_NAMES, ()),
            subgraphs={
                key: _Reader(name, self.weights, self.graphs, self.graph).read(())
                for key, name in zip(own.get(_SUBGRAPHS, ()), op.subgraph_name)
            },
        )
        node.layer, node.engine_reason = own.get(_LAYER, ""), own.get(_REASON, "")
        node.engine = Engine(own[_ENGINE]) if own.get(_ENGINE) else None
        node.fused = fused_of(own.get(_FUSED))
        before = [port[:-3] for port in op.input if port.endswith(":-1")]
        node.control_inputs = tuple(other for other in self.graph.nodes if other.name in before)
        if node.opdef is not None:
            node.attrs = typed_attrs(node.opdef, node.attrs)
        for index, tensor in enumerate(node.outputs):
            self.tensors[f"{op.name}:{index}"] = tensor

    def _const(self, value: Any, desc: TensorDesc) -> np.ndarray:
        raw = np.frombuffer(value.data, np.uint8) if value.data else self._weights_of(value.desc, desc)
        stored = raw[: desc.payload_bytes].view(desc.dtype.numpy).reshape(desc.shape)
        return unpack(stored, desc)

    def _weights_of(self, place: Any, desc: TensorDesc) -> np.ndarray:
        raw = self.weights[place.data_offset : place.data_offset + desc.payload_bytes]
        if raw.size != desc.payload_bytes:
            raise ValueError(f"a constant reaches past the weights ({place.data_offset}+{desc.payload_bytes})")
        return raw
