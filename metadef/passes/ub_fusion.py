"""UB fusion: what follows an operator is applied to its result on the chip, before the one rounding.

Which epilogues exist depends on the chip. Behind the cube of a split-core chip stands the fixpipe: it clamps and
scales, and adds no second tensor. On a coupled chip the vector unit takes the cube's result from on-chip memory, so a
residual sum and any activation fit. Vector operators carry chains of element-wise operators on both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metadef.dtype import DType
from metadef.format import Format, TensorDesc
from metadef.graph import Graph, Node, Tensor
from metadef.op import CostClass, FormatRule
from metadef.passes.precision import is_cube
from metadef.rewrite import Nodes, PassContext, Rule, absorb, other_readers

if TYPE_CHECKING:
    from metadef.target import Target

FIXPIPE_ACTIVATIONS = frozenset({"Relu", "Relu6", "LeakyRelu", "ClipByValue"})
VECTOR_ACTIVATIONS = FIXPIPE_ACTIVATIONS | {"Sigmoid", "Tanh", "Gelu", "Swish"}
"""One-operand operators that a cube kernel applies: by the fixpipe, and by the vector unit of a coupled core."""

_FORMS: dict[str, dict[str, object]] = {"Gelu": {"approximate": "none"}, "Swish": {"scale": 1.0}}
"""The one form of an activation that a cube kernel applies, where the operator has several."""

COMMUTATIVE = frozenset({"Add", "Mul", "Maximum", "Minimum"})
SCALES = ("Mul", "RealDiv")
"""Operators that multiply by a constant number."""
CLIPS = frozenset({"Relu6", "ClipByValue"})
_FLOATS = (DType.FLOAT, DType.FLOAT16, DType.BF16)


def cube_activations(target: Target) -> frozenset[str]:
    """Types of activations that this chip's cube kernels apply before they store."""
    return VECTOR_ACTIVATIONS if target.coupled else FIXPIPE_ACTIVATIONS


def is_elementwise(node: Node) -> bool:
    """Whether a node computes every element from the elements at the same place, in any format."""
    opdef = node.opdef if node.domain == "ascend" else None
    return opdef is not None and opdef.formats is FormatRule.ANY and opdef.cost is CostClass.ELEMENTWISE


def on_device(node: Node) -> bool:
    return node.engine is None or node.engine.on_device


def same_result(base: Node, op: Node) -> str:
    """Why the result of ``op`` is not laid out like that of ``base``; "" if it is."""
    before, after = base.output.desc, op.output.desc
    if before.dtype is not after.dtype:
        return f"it changes the element type from {before.dtype.label} to {after.dtype.label}"
    if (before.origin_shape, before.format, before.c0) != (after.origin_shape, after.format, after.c0):
        return f"its result {after} is not laid out like {before}"
    return ""


class FuseActivation(Rule):
    """A cube operator takes the activation behind it into its epilogue."""

    def __init__(self, bases: tuple[str, ...], activations: frozenset[str]) -> None:
        self.roots = tuple(sorted(activations))
        self._bases = bases

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        base = node.inputs[0].producer if node.inputs[0] is not None else None
        found = base is not None and base.op_type in self._bases and is_cube(base) and len(node.inputs) == 1
        return (node, base) if found and base is not None and not node.fused else None

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        node, base = nodes
        target = context.target
        if node.op_type not in cube_activations(target):
            return f"the fixpipe of {target.soc} has no {node.op_type}; it stays a vector operator"
        if not (on_device(node) and on_device(base)):
            return "one of the two does not run on the device"
        if any(item.operand is None for item in base.fused):
            return f"'{base.name}' has an activation already"
        for name, value in _FORMS.get(node.op_type, {}).items():
            if node.attrs[name] != value:
                return f"cube kernels apply {node.op_type} with {name}={value} only, not {node.attrs[name]}"
        return other_readers(graph, base.output, node) or same_result(base, node)

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        absorb(graph, nodes[1], nodes[0])


class FuseScale(Rule):
    """A product takes the constant factor behind it into its epilogue, where the vector unit sees its result."""

    roots = SCALES

    def __init__(self, bases: tuple[str, ...]) -> None:
        self._bases = bases

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        x, factor = node.inputs if len(node.inputs) == 2 else (None, None)
        base = x.producer if x is not None else None
        scalar = factor is not None and factor.is_const and factor.desc.elements == 1
        found = scalar and base is not None and base.op_type in self._bases and is_cube(base)
        return (node, base) if found and base is not None and not node.fused else None

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        node, base = nodes
        if not context.target.coupled:
            return "the product's result leaves past the vector unit"
        if base.fused:
            return f"'{base.name}' has an epilogue already"
        if not (on_device(node) and on_device(base)):
            return "one of the two does not run on the device"
        return other_readers(graph, base.output, node) or same_result(base, node)

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        absorb(graph, nodes[1], nodes[0])


class FuseResidual(Rule):
    """A cube operator + Add of a second tensor, on chips where the vector unit sees the cube's result on the chip.

    Of two that meet in the Add, the later one takes it, so that the other one's result is there.
    """

    roots = ("Add",)

    def __init__(self, bases: tuple[str, ...]) -> None:
        self._bases = bases

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        if len(node.inputs) != 2 or node.inputs[0] is node.inputs[1]:
            return None
        candidates = [tensor.producer for tensor in node.inputs if tensor is not None and tensor.producer is not None]
        candidates = [item for item in candidates if item.op_type in self._bases and is_cube(item)]
        alone = [item for item in candidates if not other_readers(graph, item.output, node)]
        if not candidates:
            return None
        return (node, max(alone or candidates, key=graph.nodes.index))

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        node, base = nodes
        if not context.target.coupled:
            return "the fixpipe adds no second tensor; the sum is a vector operator"
        if any(item.op_type not in SCALES for item in base.fused):
            return f"'{base.name}' has an epilogue already, and the sum comes before an activation"
        if not (on_device(node) and on_device(base)):
            return "one of the two does not run on the device"
        other = _second(node, base)
        if other.is_const or not _lies_over(other.desc, base.output.desc):
            return f"the second operand {other.desc} is not laid out like {base.output.desc}"
        return other_readers(graph, base.output, node) or same_result(base, node)

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        node, base = nodes
        absorb(graph, base, node)


def _lies_over(desc: TensorDesc, result: TensorDesc) -> bool:
    """Whether an operand has the layout of a result, or is whole matrices in fractals that serve several products."""
    alike = (desc.format, desc.c0, desc.dtype) == (result.format, result.c0, result.dtype)
    matrices = desc.format is Format.FRACTAL_NZ and desc.origin_shape[-2:] == result.origin_shape[-2:]
    return desc == result or (alike and matrices)


def _second(node: Node, base: Node) -> Tensor:
    tensor = node.inputs[1] if node.inputs[0] is base.output else node.inputs[0]
    assert tensor is not None
    return tensor


def _numbers(node: Node) -> int:
    """Attributes of a node and its epilogue that are floating-point numbers."""
    held = (node.attrs, *(item.attrs for item in node.fused))
    return sum(isinstance(value, float) for attrs in held for value in attrs.values())


class FuseElementwise(Rule):
    """A vector operator takes the element-wise operator behind it into its epilogue."""

    def __init__(self, max_operands: int = 4, max_steps: int = 16, max_numbers: int = 8) -> None:
        self.max_operands = max_operands
        """Operands of the joined node: each takes its part of the unified buffer."""
        self.max_steps = max_steps
        """Operators of the joined node: a kernel holds only so much code."""
        self.max_numbers = max_numbers
        """Attributes of the joined node that are numbers: the kernel gets them in scalar registers."""

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        if not is_elementwise(node) or len(node.outputs) != 1 or len(node.inputs) > 2 or node.op_type == "Cast":
            return None
        for slot, tensor in enumerate(node.inputs):
            base = tensor.producer if tensor is not None else None
            if base is not None and self._is_base(base) and (slot == 0 or node.op_type in COMMUTATIVE):
                return (node, base)
        return None

    @staticmethod
    def _is_base(base: Node) -> bool:
        return is_elementwise(base) and len(base.outputs) == 1 and base.op_type != "Cast"

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        node, base = nodes
        if node.output.desc.dtype not in _FLOATS:
            return f"epilogues work on floating-point values, not on {node.output.desc.dtype.label}"
        if not (on_device(node) and on_device(base)):
            return "one of the two does not run on the device"
        if len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]:
            return "it reads the same result twice"
        more = len(node.inputs) - 1 + sum(item.operand is not None for item in node.fused)
        if len(base.inputs) + more > self.max_operands:
            return f"together they have more than {self.max_operands} operands"
        if len(base.fused) + len(node.fused) + 2 > self.max_steps:
            return f"together they are more than {self.max_steps} operators"
        if _numbers(base) + _numbers(node) > self.max_numbers:
            return f"together they hold more than {self.max_numbers} numbers"
        if len(node.inputs) == 2:
            other = _second(node, base)
            small = other.is_const and other.desc.payload_bytes <= context.target.buffer_bytes["UB"] // 8
            if other.desc != base.output.desc and not small:
                return f"the second operand {other.desc} is broadcast and no constant that stays in UB"
        return other_readers(graph, base.output, node) or same_result(base, node)

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        absorb(graph, nodes[1], nodes[0])
