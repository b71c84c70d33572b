"""Every written form of GE's model as one message, ``ge.proto.ModelDef``: protobuf text, ge_onnx, JSON, .om, .air.

The form is told by content, not by name. Fields that our tables do not know are passed over; a file that is damaged, or
none of these forms, is refused with the place of the first fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from metadef.error import ModelError
from metadef.ge_proto import message_class, parse_message
from metadef.om import MAGIC, PartitionType, open_om

FORMS = ("om", "json", "ge_onnx", "ge_proto")
_PROBE_BYTES = 4096
_TEXT_START = re.compile(r"\s*(?:#[^\n]*\n\s*)*(graph|name|version|custom_version|attr)\s*[:{]")
_ONNX_START = re.compile(r"\s*(?:#[^\n]*\n\s*)*(ir_version|producer_name)\s*:")


def probe_form(head: bytes) -> str:
    """The form of a file by its first bytes: one of :data:`FORMS`, or "" if it is none of them."""
    if head.startswith(MAGIC):
        return "om"
    text = head.decode("utf-8", "replace")
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return "json"
    if _ONNX_START.match(text):
        return "ge_onnx"
    return "ge_proto" if _TEXT_START.match(text) else ""


def read_model_def(path: str | Path) -> Any:
    """The model of a file as a ``ge.proto.ModelDef`` message.

    Raises:
        ModelError: the file cannot be read, is damaged, encrypted, or holds no model of GE.
    """
    path = Path(path)
    data = file_bytes(path)
    form = probe_form(data[:_PROBE_BYTES])
    if form == "om":
        return _from_om(path)
    if form == "json":
        return model_def_from_json(json_object(data, path), str(path))
    if form in ("ge_proto", "ge_onnx"):
        return _from_text(data, form, path)
    if path.suffix.lower() == ".air":
        return _from_bytes(data, str(path))
    raise ModelError(
        f"'{path}' is no model of GE",
        expected="a ge_proto dump (.txt), a ge_onnx dump (.pbtxt), a model as JSON, an .om or an .air file",
        got=repr(data[:16]),
        hint="dumps are written with DUMP_GE_GRAPH=2; `atc --mode=1` turns an .om into JSON",
    )


def file_bytes(path: Path) -> bytes:
    """The whole file. Raises ModelError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read '{path}'", got=error.strerror or str(error), hint="check the path") from error


def json_object(data: bytes, path: Path) -> dict[str, Any]:
    """The object of a JSON file. Raises ModelError, with line and column, if it is damaged or no object."""
    try:
        found = json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"'{path}' is no JSON", got=str(error), hint="the file is damaged or cut off") from error
    if not isinstance(found, dict):
        raise ModelError(f"'{path}' holds no JSON object", got=type(found).__name__)
    return found


def model_def_from_json(fields: Mapping[str, Any], source: str = "model") -> Any:
    """A ModelDef from the JSON form that ``atc --mode=1`` writes: field names as keys, maps as lists of key and value.

    Raises:
        ModelError: no graph in it, or a value of the wrong kind.
    """
    if not isinstance(fields.get("graph"), list):
        raise ModelError(f"'{source}' holds no model", expected="a list 'graph'", got=", ".join(list(fields)[:8]))
    model = message_class("ModelDef")()
    try:
        _fill(model, fields)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ModelError(f"'{source}' is damaged", got=what, hint="write the JSON again from the model") from error
    return model


def _from_om(path: Path) -> Any:
    file = open_om(path)
    if file.header.is_encrypted:
        raise ModelError(f"'{path}' is encrypted", hint="only the vendor's runtime can open it")
    file.verify(weights=False)
    part = file.find(PartitionType.MODEL_DEF)
    if part is None:
        raise ModelError(f"'{path}' has no graph", expected="a partition MODEL_DEF", hint="flow models have none")
    return _from_bytes(file.read(PartitionType.MODEL_DEF), str(path))


def _from_bytes(data: bytes, source: str) -> Any:
    try:
        return parse_message("ModelDef", data)
    except ValueError as error:
        raise ModelError(f"the graph of '{source}' is damaged", got=str(error), hint="copy the file again") from error


def _from_text(data: bytes, form: str, path: Path) -> Any:
    from google.protobuf import text_format

    if form == "ge_onnx":
        from onnx import ModelProto

        from metadef.frontend.ge_onnx import model_def_from_ge_onnx

        message: Any = ModelProto()
    else:
        message = message_class("ModelDef")()
    try:
        text_format.Parse(data.decode("utf-8"), message, allow_unknown_field=True)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ModelError(
            f"'{path}' is damaged: no protobuf text of a {form} dump",
            got=str(error).splitlines()[0],
            hint="the file is cut off or changed: write the dump again",
        ) from error
    if form == "ge_proto":
        return message
    try:
        return model_def_from_ge_onnx(message)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ModelError(f"'{path}' is damaged: an operator's fields are wrong", got=what) from error


def _fill(message: Any, fields: Mapping[str, Any]) -> None:
    """Set a message's fields from a mapping; keys that the message does not have are passed over."""
    known = message.DESCRIPTOR.fields_by_name
    for name, value in fields.items():
        field = known.get(name)
        if field is None or value is None:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, name), value)
        elif field.message_type is not None:
            _fill_messages(getattr(message, name), value)
        elif isinstance(value, list):
            getattr(message, name).extend(_scalar(field, item) for item in value)
        else:
            setattr(message, name, _scalar(field, value))


def _fill_map(target: Any, value: Any) -> None:
    """A map field, from a list of {key, value} or from an object."""
    pairs: Iterable[tuple[str, Any]]
    pairs = value.items() if isinstance(value, dict) else ((item["key"], item.get("value")) for item in value)
    for key, item in pairs:
        _fill(target[key], item or {})


def _fill_messages(target: Any, value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _fill(target.add(), item)
    else:
        target.SetInParent()
        _fill(target, value)


def _scalar(field: Any, value: Any) -> Any:
    """A value in the field's kind: enumerators by name, bytes as text, numbers also as text."""
    if field.enum_type is not None:
        return field.enum_type.values_by_name[value].number if isinstance(value, str) else int(value)
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        text = value if isinstance(value, str) else str(value)
        return text.encode() if field.type == field.TYPE_BYTES else text
    if kind == field.CPPTYPE_BOOL:
        return value if isinstance(value, bool) else str(value).lower() in ("true", "1")
    return float(value) if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE) else int(value)
