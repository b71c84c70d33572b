"""The table of legalisation rules, and what a rule works with.

A rule is a function of a :class:`Step`; it adds Ascend nodes and returns the tensors that stand for the source node's
results. It is found by (domain, type, opset range) and may refuse with :class:`Unmapped`: the node then stays a
framework node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.error import InferError, suggest
from metadef.format import Format, Shape, TensorDesc
from metadef.graph import Graph, Node, Tensor
from metadef.op import get_op
from metadef.ops.numeric import narrow, numbers

NEWEST = 1 << 30
AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


class Unmapped(Exception):
    """A rule declines: the reason says what about the node has no place in the Ascend dialect."""


Rule = Callable[["Step"], Sequence["Tensor | None"]]


@dataclass(frozen=True)
class Entry:
    """A rule and the opset versions (inclusive) it understands."""

    rule: Rule
    since: int
    until: int


_TABLE: dict[tuple[str, str], list[Entry]] = {}


def rule(*op_types: str, domain: str = "", since: int = 1, until: int = NEWEST) -> Callable[[Rule], Rule]:
    """Enter a rule for one or several operator types.

    >>> @rule("Twice", domain="example.org")
    ... def twice(step: Step) -> list[Tensor]:
    ...     return step.out("Add", [step[0], step[0]])
    """

    def enter(function: Rule) -> Rule:
        for op_type in op_types:
            _TABLE.setdefault((domain, op_type), []).append(Entry(function, since, until))
        return function

    return enter


def find_rule(domain: str, op_type: str, opset: int) -> Rule | None:
    """The rule for an operator under an opset version, or None; a rule entered later wins."""
    for entry in reversed(_TABLE.get((domain, op_type), [])):
        if entry.since <= opset <= entry.until:
            return entry.rule
    return None


def entries() -> dict[tuple[str, str], list[Entry]]:
    """All rules by (domain, operator type), in the order they were entered."""
    return {key: list(found) for key, found in _TABLE.items()}


def known_types(domain: str = "") -> list[str]:
    """Operator types of a domain that have a rule, sorted."""
    return sorted(op_type for where, op_type in _TABLE if where == domain)


class Step:
    """One source node under legalisation: its operands in the new graph, its attributes, and ways to add nodes.

    Nodes that ``op`` adds are named after the source node and their type; the one that ``out`` adds takes over the
    source node's name and the names of its results.
    """

    def __init__(
        self, graph: Graph, node: Node, inputs: Sequence[Tensor | None], outputs: frozenset[int] = frozenset()
    ) -> None:
        self.graph = graph
        self.node = node
        self.opset = node.opset
        self.inputs = list(inputs)
        self._outputs = outputs

    def __getitem__(self, position: int) -> Tensor:
        """A required operand."""
        tensor = self.optional(position)
        if tensor is None:
            raise Unmapped(f"operand {position} is absent")
        return tensor

    def optional(self, position: int) -> Tensor | None:
        return self.inputs[position] if position < len(self.inputs) else None

    def shape(self, position: int = 0) -> Shape:
        return self[position].desc.origin_shape

    def rank(self, position: int = 0) -> int:
        return len(self.shape(position))

    def dtype(self, position: int = 0) -> DType:
        return self[position].desc.dtype

    def result(self, index: int = 0) -> TensorDesc:
        """What the source graph knows about a result."""
        return self.node.outputs[index].desc

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attrs.get(name, default)

    def auto_pad(self) -> str:
        """How a window pads. Raises InferError for a word that ONNX does not know."""
        mode = self.attr("auto_pad", "NOTSET")
        if mode not in AUTO_PADS:
            raise InferError(
                "unknown auto_pad",
                code="E14001",
                node=self.node.path,
                expected=", ".join(AUTO_PADS),
                got=repr(mode),
                hint=suggest(str(mode), AUTO_PADS),
            )
        return str(mode)

    def check_kernel(self, kernel: Sequence[int]) -> None:
        """Raises InferError if ``kernel_shape`` is stated and is not the filter's."""
        stated = tuple(self.attr("kernel_shape") or kernel)
        if stated != tuple(kernel):
            raise InferError(
                "kernel_shape is not that of the filter",
                code="E14001",
                node=self.node.path,
                port="W",
                expected=str(tuple(kernel)),
                got=str(stated),
            )

    def is_read(self, index: int) -> bool:
        """Whether the source node has a result of that index and somebody reads it."""
        if index >= len(self.node.outputs):
            return False
        tensor = self.node.outputs[index]
        return bool(tensor.uses) or id(tensor) in self._outputs

    def value(self, position: int, what: str) -> np.ndarray:
        """A constant operand's elements as numbers: bfloat16 as float32. Refuses if the operand is computed."""
        tensor = self[position]
        if tensor.const is None:
            raise Unmapped(f"{what} is computed at run time")
        return numbers(tensor.const, tensor.desc.dtype)

    def ints(self, position: int, attr: str) -> tuple[int, ...] | None:
        """A list that is an attribute in old opsets and an operand in new ones; None if absent."""
        if attr in self.node.attrs:
            found = self.node.attrs[attr]
            return tuple(found) if isinstance(found, (tuple, list)) else (int(found),)
        if self.optional(position) is None:
            return None
        return tuple(int(item) for item in self.value(position, f"'{attr}'").reshape(-1))

    def axis(self, default: int) -> int:
        """Attribute 'axis' counted from the front. Raises InferError (E14001) outside the operand's rank."""
        return self.checked_axis(int(self.attr("axis", default)))

    def checked_axis(self, stated: int) -> int:
        """An axis of operand 0 counted from the front. Raises InferError (E14001) outside its rank."""
        rank = self.rank()
        if not -rank <= stated < rank:
            raise InferError(
                "'axis' is outside the operand's rank",
                code="E14001",
                node=self.node.path,
                expected=f"from {-rank} to {rank - 1}",
                got=str(stated),
            )
        return stated % rank

    def number(self, position: int, attr: str) -> float | None:
        """A number that is an attribute in old opsets and an operand in new ones; None if absent."""
        if attr in self.node.attrs:
            return float(self.node.attrs[attr])
        if self.optional(position) is None:
            return None
        return float(self.value(position, f"'{attr}'").reshape(-1)[0])

    # -- adding -------------------------------------------------------------------------------------------------------

    def op(self, op_type: str, inputs: Sequence[Tensor | None], attrs: Mapping[str, Any] | None = None) -> Tensor:
        """Add an intermediate node; its only result."""
        return self._add(op_type, inputs, attrs, f"{self.node.name}_{op_type}", ()).output

    def out(
        self, op_type: str, inputs: Sequence[Tensor | None], attrs: Mapping[str, Any] | None = None
    ) -> Sequence[Tensor]:
        """Add the node that stands for the source node; its results."""
        names = [tensor.name for tensor in self.node.outputs]
        return self._add(op_type, inputs, attrs, self.node.name, names).outputs

    def _add(
        self,
        op_type: str,
        inputs: Sequence[Tensor | None],
        attrs: Mapping[str, Any] | None,
        name: str,
        output_names: Sequence[str],
    ) -> Node:
        opdef = get_op(op_type, name)
        for position, port in opdef.ports_of(len(inputs)):
            tensor = inputs[position] if position < len(inputs) else None
            if tensor is not None and tensor.desc.dtype not in port.types:
                raise Unmapped(f"{op_type} takes no {tensor.desc.dtype.label} as '{port.name}'")
        trimmed = list(inputs)
        while trimmed and trimmed[-1] is None:
            trimmed.pop()
        return self.graph.add_node(
            op_type,
            trimmed,
            attrs,
            name,
            layer=self.node.layer,
            origins=self.node.origins,
            output_names=output_names,
        )

    def control(
        self,
        op_type: str,
        inputs: Sequence[Tensor | None],
        results: Sequence[TensorDesc],
        subgraphs: Mapping[str, Graph],
        skip: int = 0,
    ) -> Sequence[Tensor]:
        """Add an operator with subgraphs; its results. The first ``skip`` of them stand for none of the source's."""
        node = self.node
        own = [f"{node.name}:{index}" for index in range(skip)]
        made = self.graph.add_foreign_node(
            "ascend",
            op_type,
            inputs,
            results,
            {},
            node.name,
            layer=node.layer,
            origins=node.origins,
            subgraphs=subgraphs,
            output_names=[*own, *(tensor.name for tensor in node.outputs)],
        )
        return made.outputs

    def constant(self, value: np.ndarray, suffix: str, dtype: DType | None = None) -> Tensor:
        """A new constant, rounded to ``dtype`` (default: the array's own type)."""
        return self.stored(value if dtype is None else narrow(value, dtype), suffix, dtype)

    def stored(self, value: np.ndarray, suffix: str, dtype: DType | None) -> Tensor:
        """A new constant from elements as they are stored (bits, for bfloat16)."""
        return self.graph.add_const(f"{self.node.name}_{suffix}", value, dtype=dtype)

    def scalar(self, value: float, suffix: str, like: Tensor) -> Tensor:
        """A constant of one element in the type of ``like``; without axes where that has none."""
        shape = (1,) if like.desc.origin_shape else ()
        return self.constant(np.full(shape, value, np.float64), suffix, like.desc.dtype)

    def reshape(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """A view under another shape; constants are reshaped on the spot, an equal shape adds nothing."""
        shape = tuple(shape)
        if tensor.desc.origin_shape == shape:
            return tensor
        if tensor.const is not None:
            return self.stored(tensor.const.reshape(shape), tensor.name.rpartition("/")[2], tensor.desc.dtype)
        return self.op("Reshape", [tensor], {"shape": shape})

    def images(self, tensor: Tensor) -> Tensor:
        """Mark a tensor of rank 4 as N, C, H, W."""
        desc = tensor.desc
        if len(desc.origin_shape) == 4 and desc.origin_format is not Format.NCHW:
            tensor.desc = TensorDesc(desc.origin_shape, desc.dtype, Format.NCHW, Format.NCHW)
        return tensor
