"""RefineRunningPrecision: which element type every node computes in, and the Casts at the borders.

``fp16`` is GE's force_fp16: float32 becomes float16 on the device, except biases of cube operators, which the cube adds
in float32. Operators that only the AI CPU or the host runs keep float32. ``origin`` keeps the model's types.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metadef.dtype import DType
from metadef.error import Problem, TargetError
from metadef.graph import Graph, Node, Tensor
from metadef.op import CostClass, FormatRule
from metadef.ops.evaluate import constant_value
from metadef.ops.numeric import HALF_MAX, condensed, narrow, widen
from metadef.rewrite import Pass, PassContext

CUBE = (CostClass.CONV, CostClass.MATMUL)
_HALVES = (DType.FLOAT16, DType.BF16)


def is_cube(node: Node) -> bool:
    """Whether the node's work is the cube unit's."""
    opdef = node.opdef if node.domain == "ascend" else None
    return opdef is not None and opdef.cost in CUBE


def bias_slot(node: Node) -> int | None:
    """Position of a cube operator's bias operand; None for other operators."""
    opdef = node.opdef
    if opdef is None or opdef.cost not in CUBE:
        return None
    return next((slot for slot, port in enumerate(opdef.inputs) if port.name == "bias"), None)


@dataclass(frozen=True)
class RefineRunningPrecision(Pass):
    """Settles element types. Raises TargetError for all cube operators of a type that the chip's cube lacks."""

    def run(self, graph: Graph, context: PassContext) -> bool:
        refiner = _Refiner(graph, context)
        if context.options.precision == "fp16":
            refiner.force_fp16()
        refiner.widen_biases()
        _check_cube(graph, context)
        return refiner.changed


class _Refiner:
    def __init__(self, graph: Graph, context: PassContext) -> None:
        self.graph = graph
        self.context = context
        self.changed = False
        self._versions: dict[tuple[int, DType], Tensor] = {}
        self._nodes = list(graph.nodes)
        self._lowered: set[int] = set()

    def force_fp16(self) -> None:
        """float32 tensors of device nodes become float16; Casts where float32 comes in, leaves, or is kept."""
        wanted_outputs = [tensor.desc.dtype for tensor in self.graph.outputs]
        low = {id(node) for node in self._nodes if _can_be_low(node)}
        for node in self._nodes:
            if id(node) in low:
                self._lower_results(node)
        for node in self._nodes:
            for slot, tensor in enumerate(node.inputs):
                if tensor is None:
                    continue
                if id(node) in low:
                    if tensor.desc.dtype is DType.FLOAT and slot != bias_slot(node):
                        self._connect(node, slot, DType.FLOAT16)
                elif id(tensor) in self._lowered:
                    self._connect(node, slot, DType.FLOAT)
        for position, (tensor, dtype) in enumerate(zip(self.graph.outputs, wanted_outputs, strict=True)):
            if tensor.desc.dtype is not dtype:
                cast = self._cast(tensor, dtype, None, f"output '{self.graph.output_names[position]}' is {dtype.label}")
                self.graph.outputs[position] = cast

    def widen_biases(self) -> None:
        """Biases of cube operators are added in float32, whatever the product's type."""
        for node in self._nodes:
            slot = bias_slot(node)
            tensor = node.inputs[slot] if slot is not None and slot < len(node.inputs) else None
            if slot is not None and tensor is not None and tensor.desc.dtype in _HALVES:
                self._connect(node, slot, DType.FLOAT)

    def _lower_results(self, node: Node) -> None:
        for tensor in node.outputs:
            if tensor.desc.dtype is DType.FLOAT:
                tensor.desc = tensor.desc.with_dtype(DType.FLOAT16)
                self._lowered.add(id(tensor))
                self.changed = True
        for name, value in node.attrs.items():
            if value is DType.FLOAT:
                node.attrs[name] = DType.FLOAT16

    def _connect(self, node: Node, slot: int, dtype: DType) -> None:
        tensor = node.inputs[slot]
        assert tensor is not None
        self.changed = True
        if tensor.is_const:
            self.graph.set_input(node, slot, self._constant(tensor, dtype))
        else:
            self.graph.set_input(node, slot, self._cast(tensor, dtype, node, self._why(tensor, node, slot, dtype)))

    def _why(self, tensor: Tensor, node: Node, slot: int, dtype: DType) -> str:
        if tensor.producer is None:
            return f"input '{tensor.name}' is {tensor.desc.dtype.label}, the device computes in {dtype.label}"
        if slot == bias_slot(node):
            return f"the cube adds the bias of '{node.name}' in float32"
        return f"'{node.name}' ({node.op_type}) computes in {dtype.label}"

    def _cast(self, tensor: Tensor, dtype: DType, before: Node | None, why: str) -> Tensor:
        version = self._versions.get((id(tensor), dtype))
        if version is None:
            layer = before.layer if before is not None else tensor.producer.layer if tensor.producer else ""
            node = self.graph.add_node("Cast", [tensor], {"dst_type": dtype}, "trans_Cast", layer=layer, before=before)
            self.context.record.note(node.name, why)
            self.context.record.effect_times += 1
            self.changed = True
            version = self._versions[id(tensor), dtype] = node.output
        return version

    def _constant(self, tensor: Tensor, dtype: DType) -> Tensor:
        """A constant in another type: itself if nobody else reads it, else a second one beside it."""
        version = self._versions.get((id(tensor), dtype))
        if version is None:
            value = self._converted(tensor, dtype)
            if len(tensor.uses) == 1 and not any(tensor is item for item in self.graph.outputs):
                version = tensor
                version.const = value
            else:
                name = f"{tensor.name}_{dtype.label}"
                version = self.graph.add_const(name, value, tensor.desc.origin_format, dtype)
            version.desc = tensor.desc.with_dtype(dtype)
            self._versions[id(tensor), dtype] = version
        return version

    def _converted(self, tensor: Tensor, dtype: DType) -> np.ndarray:
        """Rounded to nearest even; finite values past the range become the largest number (GE's ConstantClipPass)."""
        whole = constant_value(tensor)
        return np.broadcast_to(self._rounded(tensor, condensed(whole), dtype), whole.shape)

    def _rounded(self, tensor: Tensor, stored: np.ndarray, dtype: DType) -> np.ndarray:
        value = widen(stored, tensor.desc.dtype)
        if dtype is not DType.FLOAT16 or value.size == 0 or max(float(value.max()), -float(value.min())) <= HALF_MAX:
            return narrow(value, dtype)
        past = np.isfinite(value) & (np.abs(value) > HALF_MAX)
        if count := int(np.count_nonzero(past)) * (tensor.desc.elements // value.size):
            text = f"{count} of {tensor.desc.elements} values lie beyond +-{HALF_MAX:g} and were clipped to it"
            self.context.record.note(tensor.name, text)
        return narrow(np.where(past, np.copysign(np.float32(HALF_MAX), value), value), dtype)


def _can_be_low(node: Node) -> bool:
    """Whether a node runs on the device and takes float16 wherever it has float32."""
    opdef = node.opdef if node.domain == "ascend" else None
    if opdef is None or opdef.cost is CostClass.HOST or node.subgraphs or node.device_mark:
        return False
    for slot, port in opdef.ports_of(len(node.inputs)):
        tensor = node.inputs[slot] if slot < len(node.inputs) else None
        if tensor is not None and tensor.desc.dtype is DType.FLOAT and DType.FLOAT16 not in port.types:
            return False
    return all(
        tensor.desc.dtype is not DType.FLOAT or DType.FLOAT16 in port.types
        for tensor, port in zip(node.outputs, opdef.outputs)
    )


def _check_cube(graph: Graph, context: PassContext) -> None:
    target, precision = context.target, context.options.precision
    problems = []
    known = ", ".join(sorted(dtype.label for dtype in target.cube_dtypes))
    for node in graph.nodes:
        # Pictures are multiplied as the images that AIPP makes of them, of the filter's type.
        slot = 1 if node.opdef is not None and node.opdef.formats is FormatRule.PICTURE else 0
        x = node.inputs[slot] if len(node.inputs) > slot else None
        if x is None or not is_cube(node) or x.desc.dtype in target.cube_dtypes:
            continue
        dtype = x.desc.dtype
        other = "--precision fp16, or " if precision != "fp16" and dtype is DType.FLOAT else ""
        hint = f"{other}a chip whose cube multiplies {dtype.label}, such as Ascend910B3"
        message = f"{node.op_type} in {dtype.label}: the cube of {target.soc} cannot multiply it"
        problems.append(Problem(message, node=node.path, expected=known, got=dtype.label, hint=hint))
    if problems:
        raise TargetError(problems)
