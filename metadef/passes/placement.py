"""EnginePlacer: which engine runs every node, and why. The one table of what the device's kernels support.

Cube work goes to AIcoreEngine, everything else on the device to VectorEngine (to AIcoreEngine too where cube and vector
share a core). Views take no task. What no device kernel computes runs on the AI CPU, in device memory; nodes of a
foreign dialect run on the host. Each of these carries the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from metadef.dtype import DType
from metadef.error import UsageError, suggest
from metadef.graph import Graph, Node
from metadef.kernel import Engine
from metadef.op import CostClass
from metadef.rewrite import Pass, PassContext

_COMPUTED = frozenset({DType.FLOAT, DType.FLOAT16, DType.BF16, DType.INT32})
_SELECTED = _COMPUTED | {DType.INT8, DType.UINT8, DType.INT16, DType.BOOL}
_MOVED = frozenset(DType)

DEVICE_TYPES: dict[CostClass, frozenset[DType]] = {
    CostClass.CONV: frozenset({DType.FLOAT, DType.FLOAT16, DType.BF16, DType.INT8, DType.INT32}),
    CostClass.MATMUL: frozenset({DType.FLOAT, DType.FLOAT16, DType.BF16, DType.INT8, DType.INT32}),
    CostClass.ELEMENTWISE: _SELECTED,
    CostClass.REDUCE: _COMPUTED | {DType.INT8, DType.UINT8, DType.BOOL},
    CostClass.SOFTMAX: frozenset({DType.FLOAT, DType.FLOAT16, DType.BF16}),
    CostClass.NORM: frozenset({DType.FLOAT, DType.FLOAT16, DType.BF16}),
    CostClass.POOL: frozenset({DType.FLOAT, DType.FLOAT16, DType.BF16}),
    CostClass.MOVE: _MOVED,
    CostClass.GATHER: _MOVED,
    CostClass.VIEW: _MOVED,
}
"""Element types, of operands and results alike, that the device's kernels of a family take. HOST has none."""

OTHER_TYPES = {
    "AippConv2D": frozenset({DType.UINT8}),
    "Cast": frozenset({DType.INT64}),
    "AscendDequant": frozenset({DType.UINT64}),
    "AscendRequant": frozenset({DType.UINT64}),
}
"""Types that an operator on the device takes although its family computes in none of them: casts, packed scales,
pictures."""

_MARKS = {
    "npu": None,
    "device": None,
    "aicpu": Engine.AICPU,
    "cpu": Engine.HOST_CPU,
    "host": Engine.HOST_CPU,
}


@dataclass(frozen=True)
class EnginePlacer(Pass):
    """Sets ``engine`` and, where it is not the device, ``engine_reason`` of every node."""

    def run(self, graph: Graph, context: PassContext) -> bool:
        changed = False
        for node in graph.nodes:
            engine, reason = place(node, context.target.coupled)
            changed |= node.engine is not engine
            node.engine = engine
            node.engine_reason = reason or node.engine_reason
            if node.engine_reason and not engine.on_device and engine is not Engine.GE_LOCAL:
                context.record.note(node.name, f"{engine.value}: {node.engine_reason}")
        context.record.effect_times += len(graph.nodes)
        return changed


def place(node: Node, coupled: bool) -> tuple[Engine, str]:
    """The engine of a node and the reason for it ("" on the device).

    Raises:
        UsageError: the node's device mark names no engine.
    """
    if node.subgraphs:
        return Engine.RTS, ""
    opdef = node.opdef if node.domain == "ascend" else None
    if opdef is None:
        domain = node.domain or "ai.onnx"
        return Engine.HOST_CPU, node.engine_reason or f"{domain} {node.op_type} has no operator of the Ascend dialect"
    if node.device_mark:
        if node.device_mark.lower() not in _MARKS:
            raise UsageError(
                f"device mark '{node.device_mark}' is unknown", node=node.path, hint=suggest(node.device_mark, _MARKS)
            )
        marked = _MARKS[node.device_mark.lower()]
        if marked is not None:
            return marked, f"marked '{node.device_mark}' by the user"
    if opdef.cost is CostClass.HOST:
        return Engine.AICPU, f"{node.op_type} has no kernel for the AI cores"
    refused = unsupported_type(node)
    if refused is not None:
        return Engine.AICPU, f"no kernel of the AI cores computes {node.op_type} in {refused.label}"
    if opdef.cost is CostClass.VIEW:
        return Engine.GE_LOCAL, ""
    cube = opdef.cost in (CostClass.CONV, CostClass.MATMUL)
    if cube and any(tensor is not None and tensor.desc.elements == 0 for tensor in (*node.inputs, *node.outputs)):
        return Engine.AICPU, "a product of nothing has no tile for the cube"
    if cube or coupled:
        return Engine.AICORE, ""
    return Engine.VECTOR, ""


def unsupported_type(node: Node) -> DType | None:
    """The first element type of operands and results that the device's kernels of this family lack."""
    opdef = node.opdef
    assert opdef is not None
    known = DEVICE_TYPES[opdef.cost] | OTHER_TYPES.get(node.op_type, frozenset())
    for tensor in (*node.inputs, *node.outputs):
        if tensor is not None and tensor.desc.dtype not in known:
            return tensor.desc.dtype
    return None
