"""What can run, read from the registries: declared Ascend operators, legalisation rules and fast kernels."""

from __future__ import annotations

from typing import Any

from metadef.dtype import DType
from metadef.error import UsageError, suggest
from metadef.graph import Node
from metadef.legalize.table import NEWEST, Entry, entries
from metadef.op import REQUIRED, Attr, CostClass, PortKind, all_op_types, get_op
from metadef.select.steps import engine_of
from npusim.fast_types import host_types


def coverage() -> dict[str, Any]:
    """Plain values: ``ascend`` and ``onnx``, one entry a type; ``host`` names ONNX types that no rule maps."""
    mapped = onnx_entries()
    known = {entry["type"] for entry in mapped if entry["domain"] == "ai.onnx"}
    ascend = [ascend_entry(name) for name in all_op_types()]
    return {"ascend": ascend, "onnx": mapped, "host": [name for name in _all_onnx_types() if name not in known]}


def _all_onnx_types() -> list[str]:
    """Types of the standard domain that are not deprecated, sorted."""
    from onnx import defs

    return sorted({item.name for item in defs.get_all_schemas() if item.domain == "" and not item.deprecated})


def one_type(op_type: str) -> dict[str, Any]:
    """Both sides of one type name: its Ascend declaration and its ONNX rules, whichever exist.

    Raises:
        UsageError: neither side knows it, with near misses.
    """
    rules = [entry for entry in onnx_entries() if entry["type"] == op_type]
    declared = [ascend_entry(op_type)] if op_type in all_op_types() else []
    if not rules and not declared:
        known = [*all_op_types(), *(entry["type"] for entry in onnx_entries())]
        raise UsageError(f"there is no operator type '{op_type}'", hint=suggest(op_type, dict.fromkeys(known)))
    return {"ascend": declared, "onnx": rules}


def ascend_entry(op_type: str) -> dict[str, Any]:
    """One declared operator: ports, attributes, formats, engine, element types, whether a fast kernel exists."""
    opdef = get_op(op_type)
    types = host_types(op_type)
    return {
        "type": op_type,
        "engine": engine_of(Node(op_type, op_type, (), (), {})).value,
        "formats": opdef.formats.value,
        "cost": opdef.cost.value,
        "fast_kernel": bool(types.fast) and opdef.cost is not CostClass.VIEW,
        "fast_types": [item.label for item in types.fast],
        "twin_types": [item.label for item in types.slow],
        "inputs": [_port(item) for item in opdef.inputs],
        "outputs": [_port(item) for item in opdef.outputs],
        "attributes": [_attribute(item) for item in opdef.attrs],
        "inplace": [list(pair) for pair in opdef.inplace],
        "instructions": list(opdef.work.per_repeat),
        "doc": " ".join(opdef.doc.split()),
    }


def onnx_entries() -> list[dict[str, Any]]:
    """Framework types with a legalisation rule, and the opset versions that the rules understand."""
    return [
        {"type": op_type, "domain": domain or "ai.onnx", "opsets": [_range(item) for item in found]}
        for (domain, op_type), found in sorted(entries().items())
    ]


def _range(entry: Entry) -> list[int | None]:
    """First and last version; None where the newest is included."""
    return [entry.since, None if entry.until >= NEWEST else entry.until]


def _attribute(attr: Attr) -> dict[str, Any]:
    required = attr.default is REQUIRED
    default = attr.default.label if isinstance(attr.default, DType) else attr.default
    return {"name": attr.name, "kind": attr.kind.value, "required": required, "default": None if required else default}


def _port(port: Any) -> dict[str, Any]:
    kind = {PortKind.OPTIONAL: "optional", PortKind.DYNAMIC: "dynamic"}.get(port.kind, "required")
    return {"name": port.name, "kind": kind, "types": [item.label for item in port.types]}
