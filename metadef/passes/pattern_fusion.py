"""Operators that exporters spell out in small steps are put together again: LayerNorm, Gelu, Swish, HardSwish.

A joined operator rounds once where the steps rounded each time, and its kernel reads its operand once. Only
LayerNormONNXFusionPass has its name from GE; the others are our own and say so in their reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np

from metadef.graph import Graph, Node, Tensor
from metadef.ops.numeric import numbers
from metadef.rewrite import Nodes, PassContext, Rule, bypass, inherit, other_readers


def scalar(tensor: Tensor | None) -> float | None:
    """The value of a one-element constant; None for everything else."""
    if tensor is None or tensor.const is None or tensor.const.size != 1 or not tensor.desc.dtype.is_float:
        return None
    return float(numbers(tensor.const, tensor.desc.dtype).reshape(-1)[0])


def made_by(tensor: Tensor | None, *types: str) -> Node | None:
    """The Ascend node of one of the types, without an epilogue, that makes a tensor."""
    node = tensor.producer if tensor is not None else None
    found = node is not None and node.domain == "ascend" and node.op_type in types and not node.fused
    return node if found else None


def pair(node: Node) -> tuple[tuple[Tensor | None, Tensor | None], tuple[Tensor | None, Tensor | None]]:
    """Both orders of the operands of a commutative node."""
    first, second = node.inputs
    return (first, second), (second, first)


def with_scalar(node: Node | None, value: float) -> Tensor | None:
    """The other operand of a commutative node that has the constant ``value``, to four digits, as one operand."""
    if node is None:
        return None
    for tensor, constant in pair(node):
        number = scalar(constant)
        if number is not None and abs(number - value) <= 1e-4 * abs(value):
            return tensor
    return None


class _Joined(Rule):
    """A pattern that ends in ``nodes[0]`` and becomes one node: inner results may have no other readers."""

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        inside = set(nodes)
        for node in nodes[1:]:
            if any(node.output is tensor for tensor in graph.outputs):
                return f"the result of '{node.name}' inside the pattern is an output of the graph"
            outside = [user for user in node.output.users if user not in inside]
            if outside:
                return other_readers(graph, node.output, next(iter(inside & set(node.output.users))))
        return ""

    def replace(self, graph: Graph, nodes: Nodes, op_type: str, inputs: list[Tensor], attrs: Mapping[str, Any]) -> None:
        """Put the joined node in place of the pattern's last node, and take the pattern away."""
        last = nodes[0]
        node = graph.add_node(op_type, inputs, attrs, f"{last.name}_{op_type}", before=last, layer=last.layer)
        inherit(node, *reversed(nodes))
        name, label = last.name, last.output.name
        bypass(graph, last, node.output)
        node.name, node.output.name = name, label
        waiting = list(nodes[1:])
        while waiting:
            idle = [item for item in waiting if not item.output.uses]
            for item in idle:
                graph.remove_node(item)
            waiting = [item for item in waiting if item not in idle]


class JoinGelu(_Joined):
    """x * 0.5 * (1 + erf(x / sqrt 2)), the factors in any order."""

    roots = ("Erf",)

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        scale = made_by(node.inputs[0], "RealDiv", "Mul")
        x = self._scaled(scale)
        users = node.output.users
        plus = users[0] if len(users) == 1 and users[0].op_type == "Add" else None
        if scale is None or x is None or plus is None or with_scalar(plus, 1.0) is not node.output:
            return None
        for chain in self._products(plus, x):
            return (*reversed(chain), plus, node, scale)
        return None

    @staticmethod
    def _scaled(scale: Node | None) -> Tensor | None:
        """x of x / sqrt 2 or x * sqrt 0.5."""
        if scale is None:
            return None
        if scale.op_type == "Mul":
            return with_scalar(scale, sqrt(0.5))
        number = scalar(scale.inputs[1])
        return scale.inputs[0] if number is not None and abs(number - sqrt(2)) < 1e-4 else None

    @staticmethod
    def _products(plus: Node, x: Tensor) -> list[list[Node]]:
        """The two Muls from ``plus`` on: by x and by 0.5, in either order, or one by x * 0.5."""
        found = []
        for first in plus.output.users:
            if first.op_type != "Mul" or first.fused:
                continue
            for _, other in [item for item in pair(first) if item[0] is plus.output]:
                half = made_by(other, "Mul")
                if with_scalar(half, 0.5) is x and half is not None:
                    found.append([half, first])
                second = first.output.users[0] if len(first.output.users) == 1 else None
                if second is None or second.op_type != "Mul" or second.fused:
                    continue
                by_x_then_half = other is x and with_scalar(second, 0.5) is first.output
                by_half_then_x = scalar(other) == 0.5 and x in second.inputs
                if by_x_then_half or by_half_then_x:
                    found.append([first, second])
        return found

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        x = self._scaled(nodes[-1])
        assert x is not None
        self.replace(graph, nodes, "Gelu", [x], {"approximate": "none"})


class JoinGate(_Joined):
    """x * gate(x): Swish from Sigmoid, HardSwish from HardSigmoid(1/6, 1/2)."""

    roots = ("Mul",)
    _GATES = {"Sigmoid": "Swish", "HardSigmoid": "HardSwish"}

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        for gated, x in pair(node):
            gate = made_by(gated, *self._GATES)
            if gate is None or gate.inputs[0] is not x or node.fused:
                continue
            if gate.op_type == "Sigmoid" or self._is_hard_swish(gate):
                return (node, gate)
        return None

    @staticmethod
    def _is_hard_swish(gate: Node) -> bool:
        return bool(np.isclose(gate.attrs["alpha"], 1 / 6, rtol=1e-4) and gate.attrs["beta"] == 0.5)

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        x = nodes[1].inputs[0]
        assert x is not None
        self.replace(graph, nodes, self._GATES[nodes[1].op_type], [x], {})


class JoinHardSwish(_Joined):
    """x * clip(x + 3, 0, 6) / 6, the division also as a factor."""

    roots = ("RealDiv", "Mul")

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        product = made_by(self._sixth(node), "Mul") if not node.fused else None
        if product is None:
            return None
        for gated, x in pair(product):
            clip = made_by(gated, "ClipByValue", "Relu6")
            plus = made_by(clip.inputs[0], "Add") if clip is not None else None
            if clip is not None and plus is not None and self._to_six(clip) and with_scalar(plus, 3.0) is x:
                return (node, product, clip, plus)
        return None

    @staticmethod
    def _sixth(node: Node) -> Tensor | None:
        """What a node takes the sixth part of."""
        if node.op_type == "Mul":
            return with_scalar(node, 1 / 6)
        return node.inputs[0] if scalar(node.inputs[1]) == 6.0 else None

    @staticmethod
    def _to_six(clip: Node) -> bool:
        if clip.op_type == "Relu6":
            return True
        return (clip.attrs["clip_value_min"], clip.attrs["clip_value_max"]) == (0.0, 6.0)

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        product, clip = nodes[1:3]
        x = next(other for gated, other in pair(product) if gated is clip.output)
        assert x is not None
        self.replace(graph, nodes, "HardSwish", [x], {})


class JoinLayerNorm(_Joined):
    """(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * gamma + beta over the last axes."""

    roots = ("RealDiv",)

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        centre, root = made_by(node.inputs[0], "Sub"), made_by(node.inputs[1], "Sqrt")
        plus = made_by(root.inputs[0], "Add") if root is not None else None
        mean = made_by(centre.inputs[1], "ReduceMeanD") if centre is not None else None
        if centre is None or root is None or plus is None or mean is None or mean.inputs[0] is not centre.inputs[0]:
            return None
        variance = next((item for side in plus.inputs if (item := made_by(side, "ReduceMeanD")) is not None), None)
        square = made_by(variance.inputs[0], "Pow", "Mul") if variance is not None else None
        if variance is None or square is None or not self._squares(square, centre):
            return None
        inner = (node, root, plus, variance, square, centre, mean)
        scale = self._tail(node, "Mul")
        if scale is None:
            return inner
        shift = self._tail(scale, "Add")
        return (scale, *inner) if shift is None else (shift, scale, *inner)

    @staticmethod
    def _squares(square: Node, centre: Node) -> bool:
        if square.op_type == "Mul":
            return square.inputs[0] is centre.output and square.inputs[1] is centre.output
        return square.inputs[0] is centre.output and scalar(square.inputs[1]) == 2.0

    @staticmethod
    def _tail(node: Node, op_type: str) -> Node | None:
        """The only reader of a node, if it combines it with a constant of the last axes."""
        users = node.output.users
        if len(users) != 1 or users[0].op_type != op_type or users[0].fused:
            return None
        other = next(item for item in users[0].inputs if item is not node.output)
        return users[0] if other is not None and other.is_const else None

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        parts = self._parts(nodes)
        x = parts["mean"].inputs[0]
        assert x is not None
        rank = len(x.desc.origin_shape)
        axes = [tuple(sorted(axis % rank for axis in parts[name].attrs["axes"])) for name in ("mean", "variance")]
        if axes[0] != axes[1] or axes[0] != tuple(range(rank - len(axes[0]), rank)) or not axes[0]:
            return "the means are not over the last axes"
        if not all(parts[name].attrs["keep_dims"] for name in ("mean", "variance")):
            return "the means drop their axes"
        if self._epsilon(parts["plus"]) is None:
            return "the summand under the root is not one constant"
        if "scale" not in parts or "shift" not in parts:
            return "there is no constant scale and shift behind the division"
        wanted = x.desc.origin_shape[axes[0][0] :]
        for name, before in (("scale", "div"), ("shift", "scale")):
            constant = self._constant(parts[name], parts[before])
            if constant.desc.origin_shape != wanted:
                return f"the constant '{constant.name}' has not the shape {wanted} of the normalised axes"
        return super().check(graph, nodes, context)

    @staticmethod
    def _parts(nodes: Nodes) -> dict[str, Node]:
        names = ("div", "root", "plus", "variance", "square", "centre", "mean")
        parts = dict(zip(names, nodes[-len(names) :]))
        outer = nodes[: -len(names)]
        return parts | dict(zip(("scale", "shift"), reversed(outer)))

    @staticmethod
    def _epsilon(plus: Node) -> float | None:
        return next((value for tensor in plus.inputs if (value := scalar(tensor)) is not None), None)

    @staticmethod
    def _constant(node: Node, before: Node) -> Tensor:
        tensor = next(item for item in node.inputs if item is not before.output)
        assert tensor is not None
        return tensor

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        parts = self._parts(nodes)
        x = parts["mean"].inputs[0]
        assert x is not None
        gamma, beta = self._constant(parts["scale"], parts["div"]), self._constant(parts["shift"], parts["scale"])
        attrs = {"begin_norm_axis": -len(gamma.desc.origin_shape), "epsilon": self._epsilon(parts["plus"])}
        self.replace(graph, nodes, "LayerNorm", [x, gamma, beta], attrs)
