"""The text form of a graph: what dumps, goldens and text tests are written in. It prints and parses.

Close to GE's readable dumps: a header, one line per value, a return line; subgraphs follow their graph.

    graph("net"):
      %x : float32[1,16,8,8]NCHW = Data()
      %w : float32[16,16,1,1]NCHW = Const("5f0c9a1b")
      %y : float32[1,16,8,8]NCHW = Conv2D(x=%x, filter=%w) {strides=[1, 1, 1, 1]} fused=[Relu()] origins=["c1", "r1"]
      return (%y as "prob")

``%`` names a tensor; a node whose name differs from its first result's says so (``name=``). Attributes that have their
default value are left out. Constants of up to six elements are written out, larger ones are known by a checksum and
given to :func:`parse_graph` by name. For tests, ``Const(seed=3)`` or ``Const(seed=3, low=0.5, high=2)`` makes random
elements, and a result's descriptor may be left out where the prototype infers it.
"""

from __future__ import annotations

import json
import re
import weakref
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.error import ContractError
from metadef.graph import Graph, Node, Tensor
from metadef.kernel import FusedOp

INLINE_ELEMENTS = 6
_PLAIN_NAME = re.compile(r"[\w./:+\-]+\Z")


def print_graph(graph: Graph, *, details: bool = True) -> str:
    """The text of a graph, subgraphs included, in the order of execution. Equal graphs give equal texts.

    ``details=False`` leaves out layer, origins and engine, for comparing what is computed only.

    Raises:
        ContractError: an attribute of a type that has no text form.
    """
    return "\n".join(_graph_lines(graph, "", details)) + "\n"


def checksum(array: np.ndarray) -> str:
    """Eight hexadecimal digits over dtype, shape and elements. Remembered for as long as the array lives."""
    known = _CHECKSUMS.get(id(array))
    if known is not None and known[0]() is array:
        return known[1]
    head = zlib.crc32(f"{array.dtype.str}{array.shape}".encode())
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    text = f"{zlib.crc32(raw.data, head):08x}"
    key = id(array)
    _CHECKSUMS[key] = (weakref.ref(array, lambda _: _CHECKSUMS.pop(key, None)), text)
    return text


_CHECKSUMS: dict[int, tuple[weakref.ref[np.ndarray], str]] = {}


def print_node(node: Node, *, details: bool = True) -> str:
    """One node's line, for messages and diffs."""
    return _node_line(node, _Labels(), details)


def _graph_lines(graph: Graph, place: str, details: bool) -> list[str]:
    labels = _Labels()
    dialect = "" if graph.dialect == "ascend" else f", dialect={json.dumps(graph.dialect)}"
    lines = [f"graph({json.dumps(graph.name, ensure_ascii=False)}{dialect}){place}:"]
    lines += [f"  {labels.of(tensor)} : {tensor.desc} = Data()" for tensor in graph.inputs]
    shown: set[int] = set()

    def constants(tensors: Iterable[Tensor | None]) -> None:
        for tensor in tensors:
            if tensor is not None and tensor.is_const and id(tensor) not in shown:
                shown.add(id(tensor))
                lines.append(f"  {labels.of(tensor)} : {tensor.desc} = Const({_const_text(tensor)})")

    for node in graph.nodes:
        constants(node.inputs)
        lines.append(f"  {_node_line(node, labels, details)}")
    constants(graph.outputs)
    names = graph.output_names or [tensor.name for tensor in graph.outputs]
    returned = (f"{labels.of(tensor)} as {_string(name)}" for tensor, name in zip(graph.outputs, names, strict=True))
    lines.append(f"  return ({', '.join(returned)})")
    for node in graph.nodes:
        for key, inner in node.subgraphs.items():
            lines += _graph_lines(inner, f" in {_string(node.name)} as {_string(key)}", details)
    return lines


class _Labels:
    """Printed names of tensors; a second tensor of a name gets a mark, so that the text stays unambiguous."""

    def __init__(self) -> None:
        self._by_id: dict[int, str] = {}
        self._taken: set[str] = set()

    def of(self, tensor: Tensor) -> str:
        label = self._by_id.get(id(tensor))
        if label is None:
            name, count = tensor.name, 1
            while name in self._taken:
                count += 1
                name = f"{tensor.name}#{count}"
            self._taken.add(name)
            label = self._by_id[id(tensor)] = f"%{name}" if _PLAIN_NAME.match(name) else f"%{_string(name)}"
        return label


def _node_line(node: Node, labels: _Labels, details: bool) -> str:
    results = ", ".join(f"{labels.of(tensor)} : {tensor.desc}" for tensor in node.outputs)
    base = len(node.inputs) - sum(item.operand is not None for item in node.fused)
    parts = [f"{results} = {_type_text(node)}({_operands_text(node, base, labels)})"]
    if attrs := _attrs_text(_shown_attrs(node), node):
        parts.append(attrs)
    if node.fused:
        parts.append(f"fused=[{_fused_text(node, base, labels)}]")
    first = node.outputs[0].name if node.outputs else ""
    if node.name != first:
        parts.append(f"name={_string(node.name)}")
    if node.control_inputs:
        parts.append(f"after=[{', '.join(_string(item.name) for item in node.control_inputs)}]")
    if node.device_mark:
        parts.append(f"mark={_string(node.device_mark)}")
    return " ".join(parts + (_detail_parts(node) if details else []))


def _detail_parts(node: Node) -> list[str]:
    parts = []
    if node.layer:
        parts.append(f"layer={_string(node.layer)}")
    if node.origins:
        parts.append(f"origins=[{', '.join(_string(name) for name in node.origins)}]")
    if node.engine is not None:
        parts.append(f"engine={node.engine.name}")
    if node.engine_reason:
        parts.append(f"reason={_string(node.engine_reason)}")
    return parts


def _type_text(node: Node) -> str:
    """Ascend operators by their bare type; others as ``domain::Type@opset`` (``onnx`` stands for the empty domain)."""
    if node.domain == "ascend":
        return node.op_type
    return f"{node.domain or 'onnx'}::{node.op_type}" + (f"@{node.opset}" if node.opset else "")


def _operands_text(node: Node, base: int, labels: _Labels) -> str:
    opdef = node.opdef if node.domain == "ascend" else None
    names = opdef.port_names(base) if opdef is not None else [f"x{index}" for index in range(base)]
    operands = zip(names, node.inputs[:base], strict=True)
    return ", ".join(f"{name}={'_' if tensor is None else labels.of(tensor)}" for name, tensor in operands)


def _fused_text(node: Node, base: int, labels: _Labels) -> str:
    """The epilogue; operands are appended in its order, which is what the parser rebuilds."""
    items, expected = [], base
    for item in node.fused:
        operand = ""
        if item.operand is not None:
            if item.operand != expected:
                raise ContractError(
                    f"epilogue of '{node.name}' is out of order", expected=str(expected), got=str(item.operand)
                )
            tensor = node.inputs[item.operand]
            operand = "_" if tensor is None else labels.of(tensor)
            expected += 1
        attrs = _attrs_text(dict(item.attrs), node)
        items.append(f"{item.op_type}({operand})" + (f" {attrs}" if attrs else ""))
    return ", ".join(items)


def _shown_attrs(node: Node) -> dict[str, Any]:
    opdef = node.opdef if node.domain == "ascend" else None
    if opdef is None:
        return node.attrs
    defaults = {attr.name: attr.default for attr in opdef.attrs}
    return {name: value for name, value in node.attrs.items() if not _same(value, defaults.get(name, _ABSENT))}


_ABSENT = object()


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and value == default


def _attrs_text(attrs: Mapping[str, Any], node: Node) -> str:
    if not attrs:
        return ""
    return "{" + ", ".join(f"{name}={_value_text(value, node, name)}" for name, value in attrs.items()) + "}"


def _value_text(value: Any, node: Node, name: str) -> str:
    if isinstance(value, DType):
        return value.ge_name
    if isinstance(value, np.ndarray):
        return f"tensor({json.dumps(value.dtype.name)}, {list(value.shape)}, {json.dumps(checksum(value))})"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value_text(item, node, name) for item in value) + "]"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bytes):
        return f"bytes({json.dumps(value.hex())})"
    if value is None:
        return "none"
    if isinstance(value, (bool, int, float, np.generic)):
        return _number_text(value)
    raise ContractError(f"attribute '{name}' of '{node.name}' has no text form", got=type(value).__name__)


def _number_text(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, float) and not isinstance(value, np.generic):
        return repr(value)
    return str(value)


def _const_text(tensor: Tensor) -> str:
    array = tensor.const
    assert array is not None
    if array.size <= INLINE_ELEMENTS:
        return f"[{', '.join(_number_text(item) for item in array.reshape(-1))}]"
    return json.dumps(checksum(array))


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def parse_graph(text: str, constants: Mapping[str, np.ndarray] | None = None) -> Graph:
    """A graph from its text. Operators of the Ascend dialect are checked against their prototypes.

    Args:
        constants: elements of the constants that the text knows by checksum only, by tensor name (attributes that are
            arrays: ``node.attribute``).

    Raises:
        ModelError: the text is not well formed (the line is named), a constant is missing or has another checksum.
        OperatorError, InferError: nodes that do not fit their prototypes.
    """
    from metadef.text_parser import Parser

    return Parser(text, dict(constants or {})).graph()


def constants_of(graph: Graph) -> dict[str, np.ndarray]:
    """What :func:`parse_graph` needs beside the text: constants and array attributes by name, subgraphs included."""
    found: dict[str, np.ndarray] = {}
    labels = _Labels()
    for tensor in [*graph.inputs, *graph.constants()]:
        label = labels.of(tensor).removeprefix("%")
        if tensor.const is not None:
            found[json.loads(label) if label.startswith('"') else label] = tensor.const
    for node in graph.nodes:
        for name, value in node.attrs.items():
            if isinstance(value, np.ndarray):
                found[f"{node.name}.{name}"] = value
        for inner in node.subgraphs.values():
            found.update(constants_of(inner))
    return found


def fused_types(fused: Iterable[FusedOp]) -> str:
    """An epilogue in short: ``Add+Relu``."""
    return "+".join(item.op_type for item in fused)
