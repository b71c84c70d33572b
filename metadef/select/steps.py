"""From graph to schedule: tensors, views, in-place permissions and the order of steps; kernels come from a chooser.

The order is the graph's. Constants with equal contents become one weight. A graph output that is nothing but an input,
a constant, or a view of one gets a copying step, because outputs have memory of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from metadef.format import TensorDesc
from metadef.graph import Graph, Node, Tensor
from metadef.kernel import Engine, Kernel
from metadef.op import CostClass
from metadef.passes.notask import JOINS
from metadef.schedule import Group, InPlace, Schedule, ScheduleTensor, Step, TensorKind, View, Workspace
from metadef.select.control import write_control

Chooser = Callable[[Kernel, str, bool], tuple[Kernel, tuple[Workspace, ...]]]
"""From a kernel without a tile, its node's path (for messages), and whether its second operand is a constant, to the
kernel to run and its workspaces."""
COPY_OP = "Identity"
_SAMPLES = 64


def build_schedule(graph: Graph, soc: str, choose: Chooser) -> Schedule:
    """The schedule of a graph; ``choose`` completes each node's kernel."""
    builder = Builder(graph, soc, choose)
    builder.emit(graph)
    builder.finish()
    return builder.schedule


def engine_of(node: Node) -> Engine:
    """The engine a pass gave to the node, or the one of its family."""
    if node.engine is not None:
        return node.engine
    opdef = node.opdef
    if opdef is None or opdef.cost is CostClass.HOST:
        return Engine.HOST_CPU
    if opdef.cost is CostClass.VIEW:
        return Engine.GE_LOCAL
    return Engine.AICORE if opdef.cost in (CostClass.CONV, CostClass.MATMUL) else Engine.VECTOR


def bare_kernel(node: Node) -> Kernel:
    """The node's kernel before tile and cores are chosen."""
    return Kernel(
        op_type=node.op_type,
        engine=engine_of(node),
        inputs=tuple(None if tensor is None else tensor.desc for tensor in node.inputs),
        outputs=tuple(tensor.desc for tensor in node.outputs),
        attrs=dict(node.attrs),
        fused=node.fused,
        domain=node.domain,
        reason=node.engine_reason,
        opset=node.opset,
    )


def trans_data_kernel(source: TensorDesc, result: TensorDesc) -> Kernel:
    """A change of storage format before its tile is chosen."""
    return Kernel("TransData", Engine.VECTOR, (source,), (result,), {})


def _chosen(node: Node, choose: Chooser) -> tuple[Kernel, tuple[Workspace, ...]]:
    second = node.inputs[1] if len(node.inputs) > 1 else None
    return choose(bare_kernel(node), node.path, second is not None and second.is_const)


def is_view(node: Node) -> bool:
    """Whether the node takes no task."""
    return engine_of(node) is Engine.GE_LOCAL


class Builder:
    """Collects tensors and steps; ``ids`` maps graph tensors (by identity) to schedule tensors.

    ``aims`` are ids that results of subgraphs take; ``branch`` and ``depth`` mark steps of branches and loops.
    """

    def __init__(self, graph: Graph, soc: str, choose: Chooser) -> None:
        self.graph = graph
        self.choose = choose
        self.aims: dict[int, int] = {}
        self.branch = ""
        self.depth = 0
        self.schedule = Schedule(graph.name, soc, graph_revision=graph.revision)
        self.ids: dict[int, int] = {}
        self.roots: dict[int, int] = {}
        self.names: dict[str, int] = {}
        self.outputs = {id(tensor) for tensor in graph.outputs}
        self.constants: dict[object, list[tuple[int, np.ndarray]]] = {}
        for tensor in graph.inputs:
            self.schedule.inputs.append(self._add(tensor, TensorKind.INPUT))

    def emit(self, graph: Graph) -> None:
        """The nodes of a graph in order, subgraphs in place."""
        for node in graph.nodes:
            if node.subgraphs:
                write_control(self, node)
            elif is_view(node):
                self.add_relation(node)
            else:
                self.add_step(node, *_chosen(node, self.choose))

    def add_relation(self, node: Node) -> None:
        """A node without a task: its result holds its operands (a join), or its results lie in its operand."""
        sources = [tensor for tensor in node.inputs if tensor is not None]
        if node.op_type in JOINS:
            self._add_group(node, sources)
            return
        base, offset = self.roots[self._id(sources[0])], 0
        for result in node.outputs:
            tensor = self._add(result, TensorKind.FEATURE)
            self.roots[tensor] = base
            self.schedule.views.append(View(tensor, base, offset))
            offset += result.desc.payload_bytes

    def _add_group(self, node: Node, sources: list[Tensor]) -> None:
        """A parent and what lies in it. A member that is a parent itself becomes a view, its members move up."""
        parent = self._add(node.output, TensorKind.FEATURE)
        groups = {group.parent: group for group in self.schedule.groups}
        members: list[int] = []
        offset = 0
        for source in sources:
            root = self.roots[self._id(source)]
            inner = groups.get(root)
            if inner is None:
                members.append(root)
            else:
                self.schedule.groups.remove(inner)
                self.schedule.views.append(View(root, parent, offset))
                self.roots.update((tensor, parent) for tensor, base in self.roots.items() if base == root)
                members.extend(inner.members)
            offset += source.desc.payload_bytes
        self.schedule.groups.append(Group(parent, tuple(members)))

    def add_step(self, node: Node, kernel: Kernel, workspaces: tuple[Workspace, ...]) -> None:
        reads = tuple(
            None if tensor is None or desc is None else self._read(tensor, desc)
            for tensor, desc in zip(node.inputs, kernel.inputs, strict=True)
        )
        writes = tuple(self._add(tensor, TensorKind.FEATURE) for tensor in node.outputs)
        step = len(self.schedule.steps)
        self.schedule.steps.append(
            Step(
                step,
                node.name,
                reads,
                writes,
                kernel,
                workspaces,
                tuple(node.origins),
                node.layer,
                branch=self.branch,
                loop_depth=self.depth,
            )
        )
        self._permit_inplace(step, node, reads, writes)

    def id_of(self, tensor: Tensor) -> int:
        """The schedule's tensor of a graph tensor; a constant becomes a weight when it is first met."""
        return self._id(tensor)

    def result(self, tensor: Tensor) -> int:
        """A new tensor of the schedule, or the one aimed at."""
        return self._add(tensor, TensorKind.FEATURE)

    def finish(self) -> None:
        """Name the outputs, copying those that have no memory of their own, and forbid their reuse in place."""
        for tensor in self.graph.outputs:
            item = self._id(tensor)
            if self.schedule.tensors[self.roots[item]].kind in (TensorKind.INPUT, TensorKind.WEIGHT):
                item = self._copy(tensor, item)
            self.schedule.outputs.append(item)
            for owner in (item, self.roots[item]):
                self.schedule.tensors[owner] = replace(self.schedule.tensors[owner], kind=TensorKind.OUTPUT)
        kinds = [tensor.kind for tensor in self.schedule.tensors]
        self.schedule.inplace = [
            pair for pair in self.schedule.inplace if kinds[self.roots[pair.read]] is TensorKind.FEATURE
        ]

    def _copy(self, tensor: Tensor, source: int) -> int:
        name = self.graph.unique_name(f"{tensor.name}_copy")
        result = Tensor(name, tensor.desc)
        node = Node(name, COPY_OP, (tensor,), (result,), {}, engine=Engine.VECTOR)
        kernel, workspaces = _chosen(node, self.choose)
        step = Step(
            len(self.schedule.steps), name, (source,), (self._add(result, TensorKind.OUTPUT),), kernel, workspaces
        )
        self.schedule.steps.append(step)
        return step.writes[0]

    def _permit_inplace(self, step: int, node: Node, reads: tuple[int | None, ...], writes: tuple[int, ...]) -> None:
        """Permissions of the prototype and of epilogue operands, where both sides have the same bytes and layout."""
        opdef = node.opdef
        if opdef is None or not writes:
            return
        pairs = [*opdef.inplace, *((item.operand, 0) for item in node.fused if item.operand is not None)]
        allowed = [(slot, port) for slot, port in pairs if self._same_layout(node, slot, port)]
        safe = {slot for slot, _ in allowed}
        taken: set[tuple[int, int]] = set()
        for slot, port in allowed:
            read = reads[slot]
            assert read is not None
            root = self.roots[read]
            others = [at for at, other in enumerate(reads) if other is not None and self.roots[other] == root]
            if safe.issuperset(others) and (root, port) not in taken and root != writes[port]:
                taken.add((root, port))
                self.schedule.inplace.append(InPlace(step, root, writes[port]))

    def _same_layout(self, node: Node, slot: int, port: int) -> bool:
        read = node.inputs[slot] if slot < len(node.inputs) else None
        if read is None or read.is_const or port >= len(node.outputs):
            return False
        root = self.schedule.tensors[self.roots[self._id(read)]]
        if root.kind is not TensorKind.FEATURE or root.payload_bytes != read.desc.payload_bytes:
            return False
        return _layout(read.desc) == _layout(node.outputs[port].desc)

    def _read(self, tensor: Tensor, desc: TensorDesc) -> int:
        """The operand of a kernel; a constant that the kernel stores in a layout of its own is a weight of its own."""
        if desc == tensor.desc or not tensor.is_const:
            return self._id(tensor)
        return self._constant(tensor, desc)

    def _id(self, tensor: Tensor) -> int:
        if id(tensor) not in self.ids and tensor.is_const:
            self.ids[id(tensor)] = self._constant(tensor, tensor.desc)
        return self.ids[id(tensor)]

    def _constant(self, tensor: Tensor, desc: TensorDesc) -> int:
        """The weight of a constant; one that equals an earlier one in values and layout shares its weight."""
        assert tensor.const is not None
        flat = tensor.const.reshape(-1)
        sample = flat[:: max(1, flat.size // _SAMPLES)].tobytes()
        alike = self.constants.setdefault((desc, sample), [])
        for item, const in alike:
            if const is tensor.const or np.array_equal(_bits(const), _bits(tensor.const)):
                return item
        item = self._new(tensor.name, desc, TensorKind.WEIGHT)
        alike.append((item, tensor.const))
        return item

    def _add(self, tensor: Tensor, kind: TensorKind) -> int:
        aim = self.aims.get(id(tensor))
        item = self.ids[id(tensor)] = self._new(tensor.name, tensor.desc, kind) if aim is None else aim
        return item

    def _new(self, name: str, desc: TensorDesc, kind: TensorKind) -> int:
        item = len(self.schedule.tensors)
        count = self.names.get(name, 0)
        self.names[name] = count + 1
        if count:
            name = f"{name}#{count}"
        self.schedule.tensors.append(ScheduleTensor(item, name, desc.payload_bytes, kind, desc))
        self.roots[item] = item
        return item


def _layout(desc: TensorDesc) -> tuple[object, ...]:
    """What must agree for one tensor to take another's memory element by element."""
    return desc.shape, desc.dtype.bytes, desc.format, desc.c0


def _bits(array: np.ndarray | None) -> np.ndarray:
    """The values as integers, so that NaN equals itself and -0 differs from 0."""
    assert array is not None
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
