"""Descriptors, attributes and epilogues as GE's messages, and back. The messages themselves: ``metadef.ge_proto``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.format import Format, TensorDesc, tensor_bytes
from metadef.kernel import FusedOp
from metadef.op import AttrKind, OpDef
from metadef.program_text import fused_from_json, fused_to_json, value_from_json, value_to_json

_JSON = b"json:"


def fill_desc(proto: Any, desc: TensorDesc) -> None:
    """A TensorDescriptor with storage shape and layout; the origin's go into attributes, as GE does it."""
    proto.dtype = desc.dtype.proto_enum
    proto.shape.dim.extend(desc.shape)
    proto.layout = desc.format.name
    proto.size = tensor_bytes(desc.payload_bytes)
    proto.device_type = "NPU"
    proto.has_out_attr = True
    proto.real_dim_cnt = len(desc.shape)
    set_attr(proto.attr["origin_shape"], list(desc.origin_shape))
    set_attr(proto.attr["origin_format"], desc.origin_format.name)
    proto.attr["origin_shape_initialized"].b = True


def read_desc(proto: Any) -> TensorDesc:
    """The descriptor of a TensorDescriptor.

    Raises:
        KeyError: format or element type is not one of ours. ValueError: storage and origin shape disagree.
    """
    stored = tuple(proto.shape.dim)
    origin = proto.attr["origin_shape"].list.i if "origin_shape" in proto.attr else stored
    fmt = Format[proto.layout]
    name = proto.attr["origin_format"].s.decode() if "origin_format" in proto.attr else proto.layout
    plain = TensorDesc(tuple(origin), DType.from_proto(proto.dtype), Format[name])
    desc = plain.stored_as(fmt, stored[-1] if stored else 0)
    if prod(desc.shape) != prod(stored):
        raise ValueError(f"storage shape {list(stored)} does not belong to {desc}")
    return desc


def set_attr(proto: Any, value: Any) -> None:
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
    elif kinds == {float}:
        proto.f.extend(value)
        proto.val_type = 3
    elif kinds == {str}:
        proto.s.extend(item.encode() for item in value)
        proto.val_type = 1
    else:
        return False
    return True


def get_attr(proto: Any) -> Any:
    """The value of an AttrDef that :func:`set_attr` filled; lists come back as tuples."""
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


def typed_attrs(opdef: OpDef, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes in the prototype's order and types.

    GE's API numbers become element types; what is absent was None; a default that 32 bits had cut is whole again.
    """
    result = {attr.name: attrs.get(attr.name) for attr in opdef.attrs} | dict(attrs)
    for attr in opdef.attrs:
        value = result[attr.name]
        if attr.kind is AttrKind.TYPE and isinstance(value, int):
            result[attr.name] = DType.from_api(value)
        elif attr.kind is AttrKind.LIST_FLOAT and value is not None:
            result[attr.name] = tuple(float(item) for item in value)
        elif attr.kind is AttrKind.FLOAT and isinstance(attr.default, float) and value is not None:
            result[attr.name] = attr.default if np.float32(attr.default) == np.float32(value) else value
    return result


def set_fused(proto: Any, fused: Sequence[FusedOp]) -> None:
    """The epilogue of a node as a JSON string, which :func:`fused_of` reads."""
    proto.s = json.dumps(fused_to_json(fused)).encode()


def fused_of(text: str | None) -> tuple[FusedOp, ...]:
    """The epilogue of a node; None stands for none."""
    return fused_from_json(json.loads(text)) if text else ()
