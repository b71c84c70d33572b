"""GE's graph messages (package ``ge.proto``), built at run time from the tables below.

The descriptors live in a pool of their own, so they never clash with generated code of the same package in other
libraries. Model file and GE front end share them. Field numbers: ``ge_ir.proto`` of the graph engine.
"""

from __future__ import annotations

from functools import cache
from typing import Any

_DATA_TYPES = (
    "UNDEFINED", "FLOAT", "FLOAT16", "INT8", "UINT8", "INT16", "UINT16", "INT32", "INT64", "UINT32", "UINT64",
    "BOOL", "DOUBLE", "STRING", "DUAL_SUB_INT8", "DUAL_SUB_UINT8", "COMPLEX64", "COMPLEX128", "QINT8",
    "QINT16", "QINT32", "QUINT8", "QUINT16", "RESOURCE", "STRING_REF", "DUAL", "VARIANT", "BF16", "INT4",
    "UINT1", "INT2", "UINT2", "COMPLEX32", "HIFLOAT8", "FLOAT8_E5M2", "FLOAT8_E4M3FN", "FLOAT8_E8M0",
    "FLOAT6_E3M2", "FLOAT6_E2M3", "FLOAT4_E2M1", "FLOAT4_E1M2", "HIFLOAT4",
)  # fmt: skip
_LIST_TYPES = (
    "NONE", "STRING", "INT", "FLOAT", "BOOL", "BYTES", "TENSOR_DESC", "TENSOR", "GRAPH", "NAMED_ATTRS",
    "DATA_TYPE",
)  # fmt: skip
_ENUMS = {
    "DataType": [f"DT_{name}" for name in _DATA_TYPES],
    "AttrDef.ListValue.ListValueType": [f"VT_LIST_{name}" for name in _LIST_TYPES],
}

# "name number type": "*" before a type means repeated, "{X}" a map from string to X; "|" after it the oneof of AttrDef.
_MESSAGES = {
    "ShapeDef": "dim 1 *int64",
    "NamedAttrs": "name 1 string, attr 2 {AttrDef}",
    "TensorDescriptor": (
        "name 1 string, dtype 2 DataType, shape 3 ShapeDef, layout 4 string, attr 5 {AttrDef}, has_out_attr 9 bool, "
        "size 10 int64, weight_size 11 int64, reuse_input 12 bool, output_tensor 13 bool, device_type 14 string, "
        "input_tensor 15 bool, real_dim_cnt 16 int64, reuse_input_index 17 int64, data_offset 18 int64, "
        "cmps_size 19 int64, cmps_tab 20 string, cmps_tab_offset 21 int64"
    ),
    "TensorDef": "desc 1 TensorDescriptor, data 2 bytes",
    "AttrDef.ListValue": (
        "s 2 *bytes, i 3 *int64, f 4 *float, b 5 *bool, bt 7 *bytes, td 8 *TensorDescriptor, t 9 *TensorDef, "
        "g 10 *GraphDef, na 11 *NamedAttrs, dt 12 *int64, val_type 20 AttrDef.ListValue.ListValueType"
    ),
    "AttrDef.ListListAttrInt.ListAttrInt": "list_i 1 *int64",
    "AttrDef.ListListAttrInt": "list_list_i 1 *AttrDef.ListListAttrInt.ListAttrInt",
    "AttrDef.ListListAttrFloat.ListAttrFloat": "list_f 1 *float",
    "AttrDef.ListListAttrFloat": "list_list_f 1 *AttrDef.ListListAttrFloat.ListAttrFloat",
    "AttrDef": (
        "list 1 AttrDef.ListValue|, s 2 bytes|, i 3 int64|, f 4 float|, b 5 bool|, bt 7 bytes|, func 10 NamedAttrs|, "
        "td 11 TensorDescriptor|, t 12 TensorDef|, g 13 GraphDef|, list_list_int 14 AttrDef.ListListAttrInt|, "
        "dt 15 int64|, list_list_float 16 AttrDef.ListListAttrFloat|, expression 17 string|"
    ),
    "OpDef": (
        "name 1 string, type 2 string, input 5 *string, attr 10 {AttrDef}, has_out_attr 20 bool, id 21 int64, "
        "stream_id 22 int64, input_name 23 *string, src_name 24 *string, src_index 25 *int64, dst_name 26 *string, "
        "dst_index 27 *int64, input_i 28 *int64, output_i 29 *int64, workspace 30 *int64, workspace_bytes 31 *int64, "
        "is_input_const 32 *bool, input_desc 33 *TensorDescriptor, output_desc 34 *TensorDescriptor, "
        "subgraph_name 35 *string"
    ),
    "GraphDef": "name 1 string, input 4 *string, output 5 *string, op 6 *OpDef, attr 11 {AttrDef}",
    "ModelDef": "name 1 string, version 2 uint32, custom_version 3 string, graph 7 *GraphDef, attr 11 {AttrDef}",
}


@cache
def message_class(name: str) -> Any:
    """The message class of a name such as ``ModelDef`` or ``AttrDef.ListValue``. Raises KeyError for an unknown one."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"ge.proto.{name}"))


def parse_message(name: str, data: bytes) -> Any:
    """A message of that name from its serialised form. Raises ValueError if the bytes are none."""
    from google.protobuf.message import DecodeError

    message = message_class(name)()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"no ge.proto.{name}: {error}") from error
    return message


@cache
def _pool() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool

    file = descriptor_pb2.FileDescriptorProto(name="npusim/ge_ir.proto", package="ge.proto", syntax="proto3")
    holders: dict[str, Any] = {"": file}
    for name in sorted(_MESSAGES, key=lambda item: item.count(".")):
        outer, _, short = name.rpartition(".")
        holder = holders[outer]
        holders[name] = (holder.message_type if holder is file else holder.nested_type).add(name=short)
    for name, values in _ENUMS.items():
        outer, _, short = name.rpartition(".")
        enum = holders[outer].enum_type.add(name=short)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, fields in _MESSAGES.items():
        for text in fields.split(","):
            _add_field(holders[name], name, *text.split())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(message: Any, path: str, name: str, number: str, kind: str) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    field = message.field.add(name=name, number=int(number), label=Field.LABEL_OPTIONAL)
    if kind.endswith("|"):
        kind = kind[:-1]
        if not message.oneof_decl:
            message.oneof_decl.add(name="value")
        field.oneof_index = 0
    if kind.startswith("{"):
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add_field(entry, f"{path}.{entry.name}", "key", "1", "string")
        _add_field(entry, f"{path}.{entry.name}", "value", "2", kind[1:-1])
        kind = f"*{path}.{entry.name}"
    if kind.startswith("*"):
        field.label = Field.LABEL_REPEATED
        kind = kind[1:]
    scalar = f"TYPE_{kind.upper()}"
    if kind.islower():
        field.type = getattr(Field, scalar)
        return
    field.type = Field.TYPE_ENUM if kind in _ENUMS else Field.TYPE_MESSAGE
    field.type_name = f".ge.proto.{kind}"
