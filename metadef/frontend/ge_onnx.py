"""The ge_onnx form of a dump: GE's graph dressed as ONNX so that Netron opens it, undressed into a ModelDef.

An operator's fields and its ports' descriptors are ONNX attributes here: ``id``, ``output_i``, ``output_desc_shape:0``
and so on; subgraphs are nodes of the type "subgraph".
"""

from __future__ import annotations

import re
from typing import Any

from metadef.ge_proto import message_class
from metadef.ge_values import set_attr

_PREFIX = "ge:"
_SUBGRAPH = "subgraph"
_PORT = re.compile(r"(input|output)_desc_(.+):(\d+)")
_NUMBERS = ("id", "stream_id")
_LISTS = ("input_i", "output_i", "workspace", "workspace_bytes", "src_index", "dst_index", "is_input_const")
_NAMES = ("subgraph_name", "src_name", "dst_name", "input_name")
_PORT_NUMBERS = ("size", "weight_size", "real_dim_cnt", "reuse_input_index", "data_offset", "cmps_size")
_PORT_FLAGS = ("reuse_input", "input_tensor", "output_tensor")
_PORT_ORIGIN = {"origin_shape": "origin_shape", "origin_layout": "origin_format", "origin_dtype": "origin_data_type"}


def model_def_from_ge_onnx(source: Any) -> Any:
    """A ``ge.proto.ModelDef`` from a ``ge.onnx.ModelProto``, which has the fields of ONNX's own."""
    model = message_class("ModelDef")(name=source.graph.name)
    _add_graph(model, source.graph)
    return model


def _add_graph(model: Any, source: Any) -> None:
    graph = model.graph.add(name=source.name)
    subgraphs = []
    for node in source.node:
        kind = node.op_type.removeprefix(_PREFIX)
        if kind == _SUBGRAPH:
            subgraphs += [item.g for item in node.attribute if item.name == "graph"]
        else:
            _fill_op(graph.op.add(name=node.name, type=kind), node)
    for item in subgraphs:
        _add_graph(model, item)


def _fill_op(op: Any, node: Any) -> None:
    op.input.extend(node.input)
    values = {item.name: _value(item) for item in node.attribute}
    for side, descs in (("input", op.input_desc), ("output", op.output_desc)):
        for _ in range(int(values.pop(f"{side}_desc_nums", 0) or 0)):
            descs.add()
    for name, value in values.items():
        port = _PORT.fullmatch(name)
        if port is not None:
            descs = op.input_desc if port[1] == "input" else op.output_desc
            if int(port[3]) < len(descs):
                _fill_port(descs[int(port[3])], port[2], value)
        elif name in _NUMBERS:
            setattr(op, name, int(value))
        elif name in _LISTS:
            getattr(op, name).extend(value)
        elif name in _NAMES:
            getattr(op, name).extend(value if isinstance(value, list) else [value])
        else:
            set_attr(op.attr[name], value)


def _fill_port(desc: Any, name: str, value: Any) -> None:
    if name == "dtype":
        desc.dtype = desc.DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_name[value].number
    elif name == "shape":
        desc.shape.dim.extend(value)
    elif name == "layout":
        desc.layout = value
    elif name in _PORT_NUMBERS:
        setattr(desc, name, int(value))
    elif name in _PORT_FLAGS:
        setattr(desc, name, bool(value))
    elif name in _PORT_ORIGIN:
        # An empty origin shape is one that was never set: the stored shape stands for it.
        if value or name != "origin_shape":
            set_attr(desc.attr[_PORT_ORIGIN[name]], value)
    elif name.startswith("attr_"):
        set_attr(desc.attr[name.removeprefix("attr_")], value)


def _value(attribute: Any) -> Any:
    """The value of an ONNX attribute by its declared kind; lists stay lists, text is decoded."""
    kind = type(attribute).AttributeType.Name(attribute.type)
    if kind == "INT":
        return attribute.i
    if kind == "FLOAT":
        return attribute.f
    if kind == "INTS":
        return list(attribute.ints)
    if kind == "FLOATS":
        return list(attribute.floats)
    if kind == "STRINGS":
        return [item.decode("utf-8", "replace") for item in attribute.strings]
    return attribute.s.decode("utf-8", "replace")
