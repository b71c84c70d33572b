"""A compiled graph as GE's ModelDef and back: what viewers and explanations read from an offline model.

Constants point into the weights partition; offsets of activations and workspaces are those of the program. Our own
attributes carry the prefix ``_npusim``; all others are GE's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.error import ModelError
from metadef.format import Format, TensorDesc, pack, tensor_bytes, unpack
from metadef.ge_proto import message_class
from metadef.graph import Graph, Node, Tensor
from metadef.kernel import Engine
from metadef.op import AttrKind
from metadef.program import Program, Region, Task
from metadef.program_text import fused_from_json, fused_to_json, value_from_json, value_to_json

SINK = "Node_Output"
_JSON = b"json:"
_NAMES, _LAYER, _FUSED, _DOMAIN, _OPSET, _REASON, _CONTROL = (
    "_datadump_original_op_names", "_npusim_layer", "_npusim_fused", "_npusim_domain", "_npusim_opset",
    "_npusim_engine_reason", "_npusim_control_inputs",
)  # fmt: skip
_ENGINE, _BLOCK_DIM = "_ge_attr_op_kernel_lib_name", "tvm_blockdim"
_OWN = frozenset({_NAMES, _LAYER, _FUSED, _DOMAIN, _OPSET, _REASON, _CONTROL, _ENGINE, _BLOCK_DIM})


def graph_to_model_def(graph: Graph, program: Program | None, attrs: Mapping[str, Any]) -> bytes:
    """Serialised ``ge.proto.ModelDef``: Data, Const, operators and NetOutput, each with full descriptors.

    A constant that no task of ``program`` reads is stored in place. ``attrs`` become attributes of the model.
    """
    model = message_class("ModelDef")(name=graph.name, version=1)
    _Writer(model.graph.add(name=graph.name), program).write(graph)
    ports = zip(model.graph[0].op[-1].input, graph.output_names)
    for name, value in {**attrs, "attr_model_out_nodes_name": [f"{port}:{public}" for port, public in ports]}.items():
        _set_attr(model.attr[name], value)
    return model.SerializeToString(deterministic=True)


def model_def_to_graph(data: bytes, weights: np.ndarray) -> Graph:
    """The graph of a ModelDef that :func:`graph_to_model_def` wrote; constants are read from ``weights`` (uint8).

    Raises:
        ModelError: the message is damaged, or holds what the graph cannot (a vendor's operator, format or type).
    """
    from google.protobuf.message import DecodeError

    model = message_class("ModelDef")()
    try:
        model.ParseFromString(data)
        reader = _Reader(model.graph[0].name, weights)
        for op in model.graph[0].op:
            reader.add(op)
        return reader.finish([_plain(item) for item in _get_list(model.attr["attr_model_out_nodes_name"])])
    except (DecodeError, IndexError, KeyError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        hint = "compile the model again; `npusim plan` reads vendor models"
        raise ModelError("the graph of the model file cannot be read", got=what, hint=hint) from error


class _Writer:
    """Fills one GraphDef. ``ports`` maps tensors to their "op:idx"."""

    def __init__(self, proto: Any, program: Program | None) -> None:
        self.proto = proto
        self.tasks: dict[str, Task] = {task.name: task for task in program.tasks} if program else {}
        self.ports: dict[int, str] = {}
        self.names: set[str] = set()

    def write(self, graph: Graph) -> None:
        self.names = {node.name for node in graph.nodes} | {tensor.name for tensor in graph.inputs}
        places = self._const_places(graph)
        for index, tensor in enumerate(graph.inputs):
            op = self._op(tensor.name, "Data")
            op.attr["index"].i = index
            _fill_desc(op.input_desc.add(), tensor.desc)
            self._add_output(op, tensor)
        for tensor in graph.constants():
            self._write_const(tensor, places.get(id(tensor)))
        for node in graph.nodes:
            self._write_node(node)
        sink = self._op(SINK, "NetOutput")
        for tensor in graph.outputs:
            sink.input.append(self.ports[id(tensor)])
            _fill_desc(sink.input_desc.add(), tensor.desc)
        self.proto.input.extend(self.ports[id(tensor)] for tensor in graph.inputs)
        self.proto.output.extend(sink.input)

    def _const_places(self, graph: Graph) -> dict[int, int]:
        """Byte offset in the weights of every constant that a task reads there."""
        places: dict[int, int] = {}
        for node in graph.nodes:
            task = self.tasks.get(node.name)
            for tensor, operand in zip(node.inputs, task.inputs if task else ()):
                if tensor is not None and operand is not None and operand.region is Region.WEIGHTS:
                    places[id(tensor)] = operand.address
        return places

    def _write_const(self, tensor: Tensor, place: int | None) -> None:
        name = tensor.name
        while name in self.names:
            name += "_const"
        self.names.add(name)
        op = self._op(name, "Const")
        self._add_output(op, tensor)
        value = op.attr["value"].t
        _fill_desc(value.desc, tensor.desc)
        value.desc.weight_size = tensor.desc.payload_bytes
        if place is None:
            assert tensor.const is not None
            value.data = pack(tensor.const, tensor.desc).tobytes()
        else:
            value.desc.data_offset = place

    def _write_node(self, node: Node) -> None:
        op = self._op(node.name, node.op_type)
        for tensor in node.inputs:
            op.input.append("" if tensor is None else self.ports[id(tensor)])
            desc = op.input_desc.add()
            if tensor is not None:
                _fill_desc(desc, tensor.desc)
        op.input.extend(f"{before.name}:-1" for before in node.control_inputs)
        for tensor in node.outputs:
            self._add_output(op, tensor)
        for name, value in node.attrs.items():
            if value is not None:
                _set_attr(op.attr[name], value)
        own = {
            _NAMES: list(node.origins), _LAYER: node.layer, _DOMAIN: node.domain, _OPSET: node.opset,
            _REASON: node.engine_reason, _ENGINE: node.engine.value if node.engine else "",
        }  # fmt: skip
        if node.fused:
            own[_FUSED] = json.dumps(fused_to_json(node.fused))
        for name, value in own.items():
            _set_attr(op.attr[name], value)
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
        _fill_desc(op.output_desc.add(name=tensor.name), tensor.desc)


class _Reader:
    """Builds a graph from operators in order."""

    def __init__(self, name: str, weights: np.ndarray) -> None:
        self.graph = Graph(name)
        self.weights = weights
        self.tensors: dict[str, Tensor] = {}
        self.inputs: dict[int, Tensor] = {}
        self.outputs: list[Tensor] = []

    def add(self, op: Any) -> None:
        if op.type == "Data":
            desc = _read_desc(op.output_desc[0])
            tensor = self.graph.add_input(op.name, desc.origin_shape, desc.dtype, desc.format)
            self.tensors[f"{op.name}:0"] = tensor
            self.inputs[op.attr["index"].i] = tensor
        elif op.type == "Const":
            desc = _read_desc(op.output_desc[0])
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
        own = {name: _get_attr(value) for name, value in op.attr.items() if name in _OWN}
        attrs = {name: _get_attr(value) for name, value in op.attr.items() if name not in _OWN}
        data = [port for port in op.input if not port.endswith(":-1")]
        node = self.graph.add_foreign_node(
            own.get(_DOMAIN, "ascend"),
            op.type,
            [self.tensors[port] if port else None for port in data],
            [_read_desc(desc) for desc in op.output_desc],
            attrs,
            op.name,
            opset=own.get(_OPSET, 0),
            output_names=[desc.name for desc in op.output_desc],
            origins=own.get(_NAMES, ()),
        )
        node.layer, node.engine_reason = own.get(_LAYER, ""), own.get(_REASON, "")
        node.engine = Engine(own[_ENGINE]) if own.get(_ENGINE) else None
        node.fused = fused_from_json(json.loads(own[_FUSED])) if _FUSED in own else ()
        before = [port[:-3] for port in op.input if port.endswith(":-1")]
        node.control_inputs = tuple(other for other in self.graph.nodes if other.name in before)
        if node.opdef is not None:
            node.attrs = _typed_attrs(node)
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


def _typed_attrs(node: Node) -> dict[str, Any]:
    """Attributes in the prototype's types: element types are stored under GE's API numbers; absent ones were None."""
    assert node.opdef is not None
    attrs = dict(node.attrs)
    for attr in node.opdef.attrs:
        value = attrs.setdefault(attr.name, None)
        if attr.kind is AttrKind.TYPE and isinstance(value, int):
            attrs[attr.name] = DType.from_api(value)
        elif attr.kind is AttrKind.LIST_FLOAT and value is not None:
            attrs[attr.name] = tuple(float(item) for item in value)
    return attrs


def _fill_desc(proto: Any, desc: TensorDesc) -> None:
    proto.dtype = desc.dtype.proto_enum
    proto.shape.dim.extend(desc.shape)
    proto.layout = desc.format.name
    proto.size = tensor_bytes(desc.payload_bytes)
    proto.device_type = "NPU"
    proto.has_out_attr = True
    proto.real_dim_cnt = len(desc.shape)
    _set_attr(proto.attr["origin_shape"], list(desc.origin_shape))
    _set_attr(proto.attr["origin_format"], desc.origin_format.name)
    proto.attr["origin_shape_initialized"].b = True


def _read_desc(proto: Any) -> TensorDesc:
    stored = tuple(proto.shape.dim)
    origin = proto.attr["origin_shape"].list.i if "origin_shape" in proto.attr else stored
    fmt = Format[proto.layout]
    name = proto.attr["origin_format"].s.decode() if "origin_format" in proto.attr else proto.layout
    plain = TensorDesc(tuple(origin), DType.from_proto(proto.dtype), Format[name])
    desc = plain.stored_as(fmt, stored[-1] if stored else 0)
    if prod(desc.shape) != prod(stored):
        raise ValueError(f"storage shape {list(stored)} does not belong to {desc}")
    return desc


def _set_attr(proto: Any, value: Any) -> None:
    """An attribute as GE's kind of it; what GE has no kind for becomes a JSON string."""
    if isinstance(value, bool):
        proto.b = value
    elif isinstance(value, int):
        proto.i = value
    elif isinstance(value, float):
        proto.f = value
    elif isinstance(value, DType):
        proto.i = value.api_enum
    elif isinstance(value, str) and not value.startswith(_JSON.decode()):
        proto.s = value.encode()
    elif isinstance(value, (list, tuple)) and _set_list(proto.list, value):
        return
    else:
        proto.s = _JSON + json.dumps(value_to_json(value)).encode()


def _set_list(proto: Any, value: Sequence[Any]) -> bool:
    """Fill a list of one kind; False if the items are of several kinds or of one that lists do not have."""
    if not value:
        proto.val_type = 0
        return True
    kinds = {type(item) for item in value}
    if kinds == {bool}:
        proto.b.extend(value)
        proto.val_type = 4
    elif kinds == {int}:
        proto.i.extend(value)
        proto.val_type = 2
    elif kinds <= {float, int}:
        proto.f.extend(value)
        proto.val_type = 3
    elif kinds == {str}:
        proto.s.extend(item.encode() for item in value)
        proto.val_type = 1
    else:
        return False
    return True


def _get_attr(proto: Any) -> Any:
    kind = proto.WhichOneof("value")
    if kind == "list":
        return tuple(_plain(item) for item in _get_list(proto))
    if kind == "s" and proto.s.startswith(_JSON):
        return value_from_json(json.loads(proto.s[len(_JSON) :]))
    return _plain(getattr(proto, kind)) if kind else None


def _get_list(proto: Any) -> Any:
    names = {1: "s", 2: "i", 3: "f", 4: "b"}
    return getattr(proto.list, names[proto.list.val_type]) if proto.list.val_type else ()


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
