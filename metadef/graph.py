"""The graph: tensors that know producer and uses, nodes with ordered ports, and invariants that hold after every pass.

One class serves both dialects: nodes of ``domain`` "ascend" have a prototype (``metadef.op``), all others are framework
nodes ("" is ai.onnx). A node's ``layer`` path and its ``origins`` (names of the source model's nodes) survive into
tasks and reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.error import ContractError, InferError, ModelError
from metadef.format import Format, TensorDesc
from metadef.kernel import Engine, FusedOp
from metadef.op import OpDef, find_op, get_op


@dataclass(eq=False)
class Tensor:
    """A value. ``const`` holds a constant's elements in *origin* layout (lowering packs them)."""

    name: str
    desc: TensorDesc
    producer: Node | None = None
    index: int = 0
    const: np.ndarray | None = None
    uses: list[tuple[Node, int]] = field(default_factory=list, repr=False)

    @property
    def is_const(self) -> bool:
        return self.const is not None

    @property
    def users(self) -> list[Node]:
        """Reading nodes without repetition, in order of first use."""
        return list(dict.fromkeys(node for node, _ in self.uses))


@dataclass(eq=False)
class Node:
    """An operator instance. Change operands only through the graph, so that uses stay right."""

    name: str
    op_type: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    attrs: dict[str, Any]
    domain: str = "ascend"
    opset: int = 0
    fused: tuple[FusedOp, ...] = ()
    control_inputs: tuple[Node, ...] = ()
    subgraphs: dict[str, Graph] = field(default_factory=dict)
    layer: str = ""
    origins: tuple[str, ...] = ()
    engine: Engine | None = None
    engine_reason: str = ""
    device_mark: str = ""

    @property
    def opdef(self) -> OpDef | None:
        return find_op(self.op_type, self.domain)

    @property
    def path(self) -> str:
        """Layer path and name, for messages. A name that already begins with its layer is not repeated."""
        inside = not self.layer or self.name.startswith(f"{self.layer}/")
        return self.name if inside else f"{self.layer}/{self.name}"

    @property
    def output(self) -> Tensor:
        """The only output."""
        (tensor,) = self.outputs
        return tensor

    def __repr__(self) -> str:
        return f"Node({self.name}: {self.op_type})"


class Graph:
    """Nodes in a valid execution order, inputs, outputs. Every mutation raises ``revision``.

    ``notes`` are remarks for the user about what was assumed on the way, such as an open batch dimension taken as 1.
    """

    def __init__(self, name: str, dialect: str = "ascend", parent: Graph | None = None) -> None:
        """``parent``: the graph with the node that this one is a subgraph of; they share one space of names."""
        self.name = name
        self.dialect = dialect
        self.nodes: list[Node] = []
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.output_names: list[str] = []
        self.notes: list[str] = []
        self.revision = 0
        self._nested = parent is not None
        self._names: set[str] = parent._names if parent else set()
        self._suffixes: dict[str, int] = parent._suffixes if parent else {}

    @property
    def is_nested(self) -> bool:
        """Whether this is the subgraph of a node."""
        return self._nested

    # -- building -----------------------------------------------------------------------------------------------------

    def unique_name(self, wanted: str) -> str:
        """``wanted``, or ``wanted_1``, ``wanted_2``… if it is taken."""
        name, count = wanted, self._suffixes.get(wanted, 0)
        while name in self._names:
            count += 1
            name = f"{wanted}_{count}"
        self._suffixes[wanted] = count
        self._names.add(name)
        return name

    def add_input(self, name: str, shape: Sequence[int], dtype: DType = DType.FLOAT, fmt: Format = Format.ND) -> Tensor:
        """A graph input in plain layout.

        Raises ModelError (E10001 family) if the name is taken; a subgraph's inputs, which nobody feeds, are numbered.
        """
        if name in self._names and not self._nested:
            raise ModelError(f"name '{name}' is used twice", hint="rename one of the two")
        tensor = Tensor(self.unique_name(name), TensorDesc(tuple(shape), dtype, fmt, fmt))
        self.inputs.append(tensor)
        self.revision += 1
        return tensor

    def add_const(self, name: str, value: np.ndarray, fmt: Format = Format.ND, dtype: DType | None = None) -> Tensor:
        """A constant in origin layout."""
        desc = TensorDesc(tuple(value.shape), dtype or DType.from_numpy(value.dtype), fmt, fmt)
        self.revision += 1
        return Tensor(self.unique_name(name), desc, const=value)

    def add_node(
        self,
        op_type: str,
        inputs: Sequence[Tensor | None],
        attrs: Mapping[str, Any] | None = None,
        name: str = "",
        *,
        layer: str = "",
        origins: Iterable[str] = (),
        before: Node | None = None,
        output_names: Sequence[str] = (),
    ) -> Node:
        """Add an Ascend operator: attributes are checked and completed, operands checked, results inferred.

        ``before`` inserts it there, else it is appended.

        Raises:
            OperatorError: the type is not declared. InferError: attributes, operands or shapes do not fit.
        """
        name = self.unique_name(name or op_type)
        opdef = get_op(op_type, name)
        complete = opdef.complete_attrs(attrs or {}, name)
        descs = [None if tensor is None else tensor.desc for tensor in inputs]
        opdef.check_inputs(descs, name)
        results = infer_outputs(opdef, descs, complete, name)
        node = Node(name, op_type, tuple(inputs), (), complete, layer=layer, origins=tuple(origins))
        return self._attach(node, results, before, output_names)

    def add_foreign_node(
        self,
        domain: str,
        op_type: str,
        inputs: Sequence[Tensor | None],
        results: Sequence[TensorDesc],
        attrs: Mapping[str, Any],
        name: str,
        *,
        opset: int = 0,
        output_names: Sequence[str] = (),
        layer: str = "",
        origins: Iterable[str] = (),
        before: Node | None = None,
        subgraphs: Mapping[str, Graph] | None = None,
    ) -> Node:
        """Add a framework node, or one with subgraphs, whose results are already known."""
        node = Node(
            self.unique_name(name or op_type),
            op_type,
            tuple(inputs),
            (),
            dict(attrs),
            domain,
            opset,
            subgraphs=dict(subgraphs or {}),
            layer=layer,
            origins=tuple(origins),
        )
        return self._attach(node, results, before, output_names)

    def _attach(
        self, node: Node, results: Sequence[TensorDesc], before: Node | None, output_names: Sequence[str]
    ) -> Node:
        outputs = []
        for index, desc in enumerate(results):
            fallback = node.name if len(results) == 1 else f"{node.name}:{index}"
            wanted = output_names[index] if index < len(output_names) else fallback
            label = wanted if wanted == fallback else self.unique_name(wanted)
            outputs.append(Tensor(label, desc, node, index))
        node.outputs = tuple(outputs)
        for slot, tensor in enumerate(node.inputs):
            if tensor is not None:
                tensor.uses.append((node, slot))
        self.nodes.insert(self.nodes.index(before) if before else len(self.nodes), node)
        self.revision += 1
        return node

    def set_outputs(self, tensors: Sequence[Tensor], names: Sequence[str] = ()) -> None:
        """Graph outputs and their public names (default: the tensors' names)."""
        self.outputs = list(tensors)
        self.output_names = list(names) or [tensor.name for tensor in tensors]
        self.revision += 1

    # -- changing -----------------------------------------------------------------------------------------------------

    def set_input(self, node: Node, slot: int, tensor: Tensor | None) -> None:
        """Connect operand ``slot`` of ``node`` to another tensor (``slot == len(inputs)`` appends one)."""
        inputs = list(node.inputs) + [None] * (slot + 1 - len(node.inputs))
        if (old := inputs[slot]) is not None:
            old.uses.remove((node, slot))
        inputs[slot] = tensor
        if tensor is not None:
            tensor.uses.append((node, slot))
        node.inputs = tuple(inputs)
        self.revision += 1

    def replace_uses(self, old: Tensor, new: Tensor, *, keep: Iterable[Node] = ()) -> None:
        """Let every reader of ``old`` (graph outputs included) read ``new``; nodes in ``keep`` still read ``old``."""
        kept = set(keep)
        for node, slot in list(old.uses):
            if node not in kept:
                self.set_input(node, slot, new)
        self.outputs = [new if tensor is old else tensor for tensor in self.outputs]
        self.revision += 1

    def remove_node(self, node: Node) -> None:
        """Take out a node; its results lose their producer. Raises ContractError if somebody reads them."""
        for tensor in node.outputs:
            if tensor.uses or tensor in self.outputs:
                raise ContractError(f"cannot remove '{node.name}': '{tensor.name}' is still read")
        for slot in range(len(node.inputs)):
            operand = node.inputs[slot]
            if operand is not None:
                operand.uses.remove((node, slot))
        for tensor in node.outputs:
            tensor.producer = None
        self.nodes.remove(node)
        self.revision += 1

    def reinfer(self, node: Node) -> None:
        """Renew shapes and dtypes of a node's results after its operands changed; storage formats are kept."""
        opdef = node.opdef
        if opdef is None:
            return
        base = node.inputs[: len(node.inputs) - sum(item.operand is not None for item in node.fused)]
        results = infer_outputs(
            opdef, [None if tensor is None else tensor.desc for tensor in base], node.attrs, node.path
        )
        for tensor, desc in zip(node.outputs, results, strict=True):
            tensor.desc = desc if tensor.desc.is_plain else desc.stored_as(tensor.desc.format, tensor.desc.c0)
        self.revision += 1

    # -- reading ------------------------------------------------------------------------------------------------------

    def graphs(self) -> Iterator[Graph]:
        """This graph and all graphs nested in it, each before those in its own nodes."""
        yield self
        for node in self.nodes:
            for inner in node.subgraphs.values():
                yield from inner.graphs()

    def constants(self) -> list[Tensor]:
        """Constants that are read, in order of first use."""
        seen: dict[int, Tensor] = {}
        for node in self.nodes:
            for tensor in node.inputs:
                if tensor is not None and tensor.is_const:
                    seen.setdefault(id(tensor), tensor)
        for tensor in self.outputs:
            if tensor.is_const:
                seen.setdefault(id(tensor), tensor)
        return list(seen.values())

    def find(self, name: str) -> Node | None:
        """The node of that name."""
        return next((node for node in self.nodes if node.name == name), None)

    def sort(self) -> None:
        """Stable topological order: a node moves only behind what it reads. Raises ModelError on a cycle."""
        waiting = {id(node): len(self._predecessors(node)) for node in self.nodes}
        followers: dict[int, list[Node]] = {}
        for node in self.nodes:
            for before in self._predecessors(node):
                followers.setdefault(id(before), []).append(node)
        import heapq

        position = {id(node): index for index, node in enumerate(self.nodes)}
        ready = [position[key] for key, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        order: list[Node] = []
        while ready:
            node = self.nodes[heapq.heappop(ready)]
            order.append(node)
            for follower in followers.get(id(node), []):
                waiting[id(follower)] -= 1
                if waiting[id(follower)] == 0:
                    heapq.heappush(ready, position[id(follower)])
        if len(order) != len(self.nodes):
            stuck = [node.name for node in self.nodes if waiting[id(node)] > 0]
            raise ModelError(
                "the graph has a cycle",
                got=" -> ".join(stuck[:6]),
                hint="let one of these nodes read a value that is made before it",
            )
        self.nodes = order

    @staticmethod
    def _predecessors(node: Node) -> set[Node]:
        made = {tensor.producer for tensor in node.inputs if tensor is not None and tensor.producer is not None}
        return made | set(node.control_inputs)

    def verify(self) -> None:
        """Check the invariants: order, uses, names, prototypes. Raises ContractError naming the first broken one."""
        seen: set[int] = {id(tensor) for tensor in self.inputs}
        names: set[str] = set()
        for node in self.nodes:
            if node.name in names:
                raise ContractError(f"two nodes are called '{node.name}'")
            names.add(node.name)
            for slot, tensor in enumerate(node.inputs):
                if tensor is None:
                    continue
                if not tensor.is_const and id(tensor) not in seen:
                    raise ContractError(f"'{node.name}' reads '{tensor.name}' before it is made")
                if (node, slot) not in tensor.uses:
                    raise ContractError(f"'{tensor.name}' does not know its reader '{node.name}'")
            for tensor in node.outputs:
                if tensor.producer is not node:
                    raise ContractError(f"'{tensor.name}' does not know its producer '{node.name}'")
                for user, slot in tensor.uses:
                    if user.inputs[slot] is not tensor:
                        raise ContractError(f"'{tensor.name}' lists a reader '{user.name}' that does not read it")
                seen.add(id(tensor))
        for tensor in self.outputs:
            if not tensor.is_const and id(tensor) not in seen:
                raise ContractError(f"graph output '{tensor.name}' is never made")
        for node in self.nodes:
            for inner in node.subgraphs.values():
                inner.verify()


def infer_outputs(
    opdef: OpDef, inputs: Sequence[TensorDesc | None], attrs: Mapping[str, Any], node: str
) -> list[TensorDesc]:
    """Results of an operator, in plain layout. Any fault of the rule is reported with the node's name.

    Raises:
        InferError: shapes do not fit.
    """
    try:
        return opdef.infer(inputs, attrs)
    except InferError as error:
        raise InferError([problem if problem.node else _placed(problem, node) for problem in error.problems]) from None


def _placed(problem: Any, node: str) -> Any:
    from dataclasses import replace

    return replace(problem, node=node)
