"""Parser of the text form of graphs (``metadef.text`` describes and prints it)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.error import InferError, ModelError
from metadef.format import Format, TensorDesc
from metadef.graph import Graph, Node, Tensor
from metadef.kernel import Engine, FusedOp
from metadef.text import checksum

_TOKEN = re.compile(
    r'\s*(?:(?P<percent>%(?:[\w./:+\-#]+|"(?:[^"\\]|\\.)*"))|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|inf\b|nan\b))(?![\w])|(?P<word>[A-Za-z_][\w.]*)"
    r"|(?P<mark>::|[(){}\[\]=:,@<]))"
)
_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "True": True, "False": False}


@dataclass
class _Scope:
    """Names of one graph. Tensors of enclosing graphs may be read."""

    graph: Graph
    parent: _Scope | None = None
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def find(self, name: str) -> Tensor | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.tensors:
                return scope.tensors[name]
            scope = scope.parent
        return None


class Parser:
    """One text. The public way in is :func:`metadef.text.parse_graph`."""

    def __init__(self, text: str, constants: Mapping[str, np.ndarray]) -> None:
        self._constants = constants
        self._lines = text.splitlines()
        self._number = 0
        self._tokens: list[tuple[str, str]] = []
        self._place = 0

    def graph(self) -> Graph:
        """Parse the root graph and the subgraphs behind it."""
        scopes: list[_Scope] = []
        while self._next_line():
            if not self._peek("graph"):
                raise self._error("a graph header", self._shown())
            scopes.append(self._graph(scopes))
        if not scopes:
            raise ModelError("the text holds no graph", expected='graph("name"):')
        return scopes[0].graph

    def _graph(self, scopes: list[_Scope]) -> _Scope:
        self._expect("graph", "(")
        name, dialect = self._string(), "ascend"
        if self._accept(","):
            self._expect("dialect", "=")
            dialect = self._string()
        self._expect(")")
        scope = _Scope(Graph(name, dialect))
        if self._accept("in"):
            self._enter(scope, scopes)
        self._expect(":")
        while self._next_line():
            if self._accept("return"):
                self._returns(scope)
                return scope
            self._statement(scope)
        raise ModelError(f"graph '{name}' has no return line", expected="return (%result, …)")

    def _enter(self, scope: _Scope, scopes: list[_Scope]) -> None:
        owner = self._string()
        self._expect("as")
        key = self._string()
        for outer in reversed(scopes):
            if (node := outer.graph.find(owner)) is not None:
                node.subgraphs[key] = scope.graph
                scope.parent = outer
                return
        raise self._error("a node that stands above", owner)

    def _returns(self, scope: _Scope) -> None:
        tensors, names = [], []
        for _ in self._items("(", ")"):
            tensor = self._operand(scope)
            if tensor is None:
                raise self._error("a result", "_")
            tensors.append(tensor)
            names.append(self._string() if self._accept("as") else tensor.name)
        scope.graph.set_outputs(tensors, names)

    def _statement(self, scope: _Scope) -> None:
        labels: list[str] = []
        descs: list[TensorDesc | None] = []
        while True:
            labels.append(self._label())
            descs.append(self._desc() if self._accept(":") else None)
            if not self._accept(","):
                break
        self._expect("=")
        for label in labels:
            if label in scope.tensors:
                raise self._error("a new name", f"%{label} is already defined")
        kind = self._word()
        if kind in ("Data", "Const"):
            desc = descs[0]
            if desc is None:
                raise self._error(f"%{labels[0]} : dtype[shape]FORMAT = {kind}(…)", "no descriptor")
            make = self._data if kind == "Data" else self._const
            scope.tensors[labels[0]] = make(scope.graph, labels[0], desc)
            return
        node = self._node(scope, kind, labels, descs)
        scope.tensors.update(zip(labels, node.outputs, strict=True))

    # -- inputs and constants ------------------------------------------------------------------------------------------

    def _data(self, graph: Graph, label: str, desc: TensorDesc) -> Tensor:
        self._expect("(", ")")
        tensor = graph.add_input(label, desc.origin_shape, desc.dtype, desc.origin_format)
        tensor.desc = desc
        return tensor

    def _const(self, graph: Graph, label: str, desc: TensorDesc) -> Tensor:
        if self._tokens[self._place + 1][1] == "[":
            self._expect("(")
            value = np.array(self._value(""), desc.dtype.numpy).reshape(desc.origin_shape)
            self._expect(")")
        elif self._tokens[self._place + 1][0] == "word":
            value = _random(desc, dict(self._pairs("(", ")")))
        else:
            self._expect("(")
            value = self._known(label, self._string())
            self._expect(")")
        tensor = graph.add_const(label, value, desc.origin_format, desc.dtype)
        if value.shape != desc.origin_shape:
            raise self._error(f"an array of shape {desc.origin_shape}", str(value.shape))
        tensor.desc = desc
        return tensor

    def _known(self, name: str, crc: str) -> np.ndarray:
        if name not in self._constants:
            hint = "pass the elements in parse_graph(text, constants), or write Const(seed=1)"
            raise ModelError(f"line {self._number}: the elements of '{name}' are not in the text", hint=hint)
        value = self._constants[name]
        if checksum(value) != crc:
            raise ModelError(f"line {self._number}: another constant '{name}'", expected=crc, got=checksum(value))
        return value

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _node(self, scope: _Scope, kind: str, labels: list[str], descs: list[TensorDesc | None]) -> Node:
        domain, opset = "ascend", 0
        if self._accept("::"):
            domain, kind = ("" if kind == "onnx" else kind), self._word()
            opset = int(self._take("number")) if self._accept("@") else 0
        inputs: list[Tensor | None] = []
        for _ in self._items("(", ")"):
            if self._tokens[self._place + 1][1] == "=":
                self._place += 2
            inputs.append(self._operand(scope))
        tail = self._tail(scope, kind, labels[0])
        name = tail.get("name", labels[0])
        attrs = {key: self._resolved(value, f"{name}.{key}") for key, value in tail.get("attrs", {}).items()}
        if domain == "ascend":
            node = scope.graph.add_node(kind, inputs, attrs, name, output_names=labels)
        else:
            known = [desc for desc in descs if desc is not None]
            node = scope.graph.add_foreign_node(
                domain, kind, inputs, known, attrs, name, opset=opset, output_names=labels
            )
        if len(node.outputs) != len(labels):
            raise self._error(f"{len(node.outputs)} results", f"{len(labels)} names")
        for tensor, label, desc in zip(node.outputs, labels, descs):
            self._settle(tensor, label, desc)
        self._finish(scope, node, tail)
        return node

    def _settle(self, tensor: Tensor, label: str, desc: TensorDesc | None) -> None:
        if desc is not None:
            if (desc.origin_shape, desc.dtype) != (tensor.desc.origin_shape, tensor.desc.dtype):
                raise InferError(
                    f"line {self._number}: %{label} is not what its operator makes",
                    expected=str(tensor.desc),
                    got=str(desc),
                )
            tensor.desc = desc
        tensor.name = label

    def _tail(self, scope: _Scope, kind: str, label: str) -> dict[str, Any]:
        """What follows the operands, by keyword; ``attrs`` holds the braces."""
        tail: dict[str, Any] = {}
        if self._peek("{"):
            tail["attrs"] = dict(self._pairs("{", "}"))
        while self._place < len(self._tokens):
            key = self._word()
            self._expect("=")
            if key == "fused":
                tail[key] = [self._fused(scope) for _ in self._items("[", "]")]
            elif key == "engine":
                tail[key] = Engine[self._word()]
            elif key in ("name", "layer", "reason", "mark"):
                tail[key] = self._string()
            elif key in ("origins", "after"):
                tail[key] = [self._string() for _ in self._items("[", "]")]
            else:
                raise self._error("fused, name, after, mark, layer, origins, engine or reason", key)
        return tail

    def _fused(self, scope: _Scope) -> tuple[str, Tensor | None, dict[str, Any]]:
        op_type = self._word()
        operands = [self._operand(scope) for _ in self._items("(", ")")]
        attrs = dict(self._pairs("{", "}")) if self._peek("{") else {}
        return op_type, operands[0] if operands else None, attrs

    def _finish(self, scope: _Scope, node: Node, tail: Mapping[str, Any]) -> None:
        fused = []
        for op_type, tensor, attrs in tail.get("fused", ()):
            operand = None
            if tensor is not None:
                operand = len(node.inputs)
                scope.graph.set_input(node, operand, tensor)
            fused.append(FusedOp(op_type, attrs, operand))
        node.fused = tuple(fused)
        node.name = tail.get("name", node.name)
        node.layer, node.origins = tail.get("layer", ""), tuple(tail.get("origins", ()))
        node.engine, node.engine_reason = tail.get("engine"), tail.get("reason", "")
        node.device_mark = tail.get("mark", "")
        for name in tail.get("after", ()):
            before = scope.graph.find(name)
            if before is None:
                raise self._error("a node that stands above", name)
            node.control_inputs = (*node.control_inputs, before)

    # -- values --------------------------------------------------------------------------------------------------------

    def _value(self, name: str) -> Any:
        kind, text = self._tokens[self._place] if self._place < len(self._tokens) else ("", "end of line")
        if text == "[":
            return tuple(self._value(name) for _ in self._items("[", "]"))
        self._place += 1
        if kind == "string":
            return json.loads(text)
        if kind == "number":
            return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
        if text in _WORDS:
            return _WORDS[text]
        if text == "bytes":
            self._expect("(")
            value = bytes.fromhex(self._string())
            self._expect(")")
            return value
        if text == "tensor":
            return _Elided([self._value(name) for _ in self._items("(", ")")][-1])
        try:
            return DType.parse(text)
        except KeyError:
            raise self._error("a value", text) from None

    def _resolved(self, value: Any, name: str) -> Any:
        return self._known(name, value.crc) if isinstance(value, _Elided) else value

    def _pairs(self, opening: str, closing: str) -> list[tuple[str, Any]]:
        pairs = []
        for _ in self._items(opening, closing):
            name = self._word()
            self._expect("=")
            pairs.append((name, self._value(name)))
        return pairs

    def _desc(self) -> TensorDesc:
        """``dtype[dims]FORMAT:c0<ORIGIN``; the format defaults to ND."""
        dtype = self._named(DType.parse)
        shape = tuple(int(self._take("number")) for _ in self._items("[", "]"))
        if self._place >= len(self._tokens) or self._tokens[self._place][0] != "word":
            return TensorDesc(shape, dtype)
        fmt = self._named(lambda text: Format[text])
        c0 = int(self._take("number")) if self._accept(":") else 0
        origin = self._named(lambda text: Format[text]) if self._accept("<") else fmt
        return TensorDesc(shape, dtype, origin, fmt, c0)

    def _named(self, find: Callable[[str], Any]) -> Any:
        word = self._word()
        try:
            return find(word)
        except KeyError:
            raise self._error("an element type or a format", word) from None

    def _operand(self, scope: _Scope) -> Tensor | None:
        if self._accept("_"):
            return None
        label = self._label()
        tensor = scope.find(label)
        if tensor is None:
            raise self._error("a name that is defined above", f"%{label}")
        return tensor

    def _label(self) -> str:
        text = self._take("percent")[1:]
        return json.loads(text) if text.startswith('"') else text

    # -- tokens --------------------------------------------------------------------------------------------------------

    def _next_line(self) -> bool:
        """Go to the next line that holds something. A ``#`` at the start of a line opens a comment."""
        if self._place < len(self._tokens):
            raise self._error("the end of the line", self._shown())
        while self._number < len(self._lines):
            line = self._lines[self._number].rstrip()
            self._number += 1
            if line.strip() and not line.lstrip().startswith("#"):
                self._tokens, self._place = self._split(line), 0
                return True
        return False

    def _split(self, line: str) -> list[tuple[str, str]]:
        tokens, place = [], 0
        while place < len(line):
            match = _TOKEN.match(line, place)
            if match is None:
                raise self._error("a name, number, string or mark", line[place : place + 20])
            kind = match.lastgroup or ""
            tokens.append((kind, match[kind]))
            place = match.end()
        return tokens

    def _items(self, opening: str, closing: str) -> Any:
        """Iterate over a comma-separated list; the body reads one item each time."""
        self._expect(opening)
        index = 0
        while not self._accept(closing):
            if index and not self._accept(","):
                raise self._error(f"',' or '{closing}'", self._shown())
            yield index
            index += 1

    def _shown(self) -> str:
        return self._tokens[self._place][1] if self._place < len(self._tokens) else "end of line"

    def _peek(self, text: str) -> bool:
        return self._place < len(self._tokens) and self._tokens[self._place][1] == text

    def _accept(self, text: str) -> bool:
        found = self._peek(text)
        self._place += found
        return found

    def _expect(self, *texts: str) -> None:
        for text in texts:
            if not self._accept(text):
                raise self._error(f"'{text}'", self._shown())

    def _take(self, kind: str) -> str:
        if self._place >= len(self._tokens) or self._tokens[self._place][0] != kind:
            raise self._error("%name" if kind == "percent" else f"a {kind}", self._shown())
        self._place += 1
        return self._tokens[self._place - 1][1]

    def _word(self) -> str:
        return self._take("word")

    def _string(self) -> str:
        return json.loads(self._take("string"))

    def _error(self, expected: str, got: str) -> ModelError:
        return ModelError(f"graph text, line {self._number}: not understood", expected=expected, got=got)


@dataclass(frozen=True)
class _Elided:
    """An array attribute of which the text holds the checksum only."""

    crc: str


def _random(desc: TensorDesc, given: Mapping[str, Any]) -> np.ndarray:
    """Elements of ``Const(seed=…, low=…, high=…)``: normal or, with bounds, uniform; integers from -8 to 7."""
    rng = np.random.default_rng(given.get("seed", 0))
    shape = desc.origin_shape
    if "low" in given or "high" in given:
        return rng.uniform(given.get("low", 0.0), given.get("high", 1.0), shape).astype(desc.dtype.numpy)
    if desc.dtype.is_float and desc.dtype is not DType.BF16:
        return rng.standard_normal(shape).astype(desc.dtype.numpy)
    return rng.integers(-8, 8, shape).astype(desc.dtype.numpy)
