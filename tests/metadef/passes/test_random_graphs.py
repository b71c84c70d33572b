"""Random small networks through the whole pipeline: the graph stays valid, its text parses, its values are kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadef.dtype import DType
from metadef.format import Format
from metadef.graph import Graph, Tensor
from metadef.op import FormatRule
from metadef.ops.evaluate import evaluate
from metadef.passes import PassOptions, run_pipeline
from metadef.passes.layout import BLOCK_MOVES
from metadef.target import load_target
from metadef.text import constants_of, parse_graph, print_graph

STEPS = (
    "conv",
    "norm",
    "unary",
    "scale",
    "shift",
    "add",
    "mul",
    "pool",
    "pad",
    "lines",
    "swap",
    "softmax",
    "gate",
    "cast",
    "halves",
)
UNARY = ("Relu", "LeakyRelu", "ClipByValue", "Sigmoid", "Tanh", "HardSwish", "Relu6")


class Builder:
    """Adds random steps over tensors of shape (1, c, 6, 6) and keeps what was made for later operands."""

    def __init__(self, draw: st.DrawFn, channels: int) -> None:
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 999)))
        self.graph = Graph("random")
        self.made = [self.graph.add_input("x", (1, channels, 6, 6))]

    def const(self, *shape: int, low: float = -1.0, high: float = 1.0) -> Tensor:
        return self.graph.add_const("k", self.rng.uniform(low, high, shape).astype(np.float32))

    def node(self, op_type: str, *inputs: Tensor, **attrs: object) -> Tensor:
        name = self.graph.unique_name("n")
        return self.graph.add_node(op_type, list(inputs), attrs, name, origins=[name]).output

    def step(self, kind: str) -> None:
        x = self.draw(st.sampled_from(self.made[-2:]))
        self.made.append(getattr(self, kind)(x))

    def conv(self, x: Tensor) -> Tensor:
        c = x.desc.origin_shape[1]
        size = self.draw(st.sampled_from([1, 3]))
        bound = (3 / (c * size * size)) ** 0.5
        weight = self.const(c, c, size, size, low=-bound, high=bound)
        inputs = [x, weight] + ([self.const(c)] if self.draw(st.booleans()) else [])
        return self.node("Conv2D", *inputs, strides=(1, 1, 1, 1), pads=(size // 2,) * 4)

    def norm(self, x: Tensor) -> Tensor:
        c = x.desc.origin_shape[1]
        statistics = [self.const(c, low=0.5, high=1.5), self.const(c), self.const(c), self.const(c, low=0.5, high=1.5)]
        return self.node("BNInfer", x, *statistics)

    def unary(self, x: Tensor) -> Tensor:
        op_type = self.draw(st.sampled_from(UNARY))
        attrs = {"LeakyRelu": {"negative_slope": 0.1}, "ClipByValue": {"clip_value_min": -1.5}}.get(op_type, {})
        return self.node(op_type, x, **attrs)

    def scale(self, x: Tensor) -> Tensor:
        c = x.desc.origin_shape[1]
        return self.node("Mul", x, self.const(*self.draw(st.sampled_from([(1, c, 1, 1), (c, 1, 1), (), (1, 1, 6, 6)]))))

    def shift(self, x: Tensor) -> Tensor:
        c = x.desc.origin_shape[1]
        constant = self.const(*self.draw(st.sampled_from([(1, c, 1, 1), (), (6,), (1, c, 6, 6)])))
        return self.node(self.draw(st.sampled_from(["Add", "Sub"])), *self.draw(st.permutations([x, constant])))

    def add(self, x: Tensor) -> Tensor:
        return self.node("Add", x, self.draw(st.sampled_from(self.made)))

    def mul(self, x: Tensor) -> Tensor:
        return self.node("Mul", x, self.node("Sigmoid", self.draw(st.sampled_from(self.made))))

    def gate(self, x: Tensor) -> Tensor:
        return self.node("Mul", x, self.node("Sigmoid", self.node("GlobalAveragePool", x)))

    def pool(self, x: Tensor) -> Tensor:
        return self.node("MaxPoolV3", x, ksize=(1, 1, 3, 3), strides=(1, 1, 1, 1), pads=(1, 1, 1, 1))

    def pad(self, x: Tensor) -> Tensor:
        c = x.desc.origin_shape[1]
        padded = self.node("PadD", x, paddings=(0, 0, 0, 0, 1, 0, 0, 1))
        return self.node("Conv2D", padded, self.const(c, c, 2, 2, low=-0.3, high=0.3), strides=(1, 1, 1, 1))

    def lines(self, x: Tensor) -> Tensor:
        c = x.desc.origin_shape[1]
        return self.node("Reshape", self.unary(self.node("Reshape", x, shape=(1, c, 36))), shape=(1, c, 6, 6))

    def swap(self, x: Tensor) -> Tensor:
        return self.node("TransposeD", self.unary(self.node("TransposeD", x, perm=(0, 1, 3, 2))), perm=(0, 1, 3, 2))

    def softmax(self, x: Tensor) -> Tensor:
        return self.node("SoftmaxV2", x)

    def halves(self, x: Tensor) -> Tensor:
        other = self.draw(st.sampled_from(self.made))
        axis = self.draw(st.sampled_from([1, 2]))
        joined = self.unary(self.node("ConcatD", x, other, concat_dim=axis))
        name = self.graph.unique_name("n")
        split = self.graph.add_node("SplitD", [joined], {"split_dim": axis, "num_split": 2}, name, origins=[name])
        return self.node("Add", *split.outputs)

    def cast(self, x: Tensor) -> Tensor:
        return self.node("Cast", self.node("Cast", x, dst_type=DType.DOUBLE), dst_type=DType.FLOAT)


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    builder = Builder(draw, draw(st.sampled_from([3, 16])))
    for kind in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=9)):
        builder.step(kind)
    outputs = [builder.made[-1]] + ([builder.made[-2]] if draw(st.booleans()) and len(builder.made) > 2 else [])
    builder.graph.set_outputs(outputs, ["y", "z"][: len(outputs)])
    return builder.graph


def check_formats(graph: Graph) -> None:
    """Every operand lies as its operator's kernels read it."""
    for node in graph.nodes:
        opdef = node.opdef
        assert opdef is not None
        descs = [tensor.desc for tensor in (*node.inputs, *node.outputs) if tensor is not None]
        if node.op_type in BLOCK_MOVES:
            assert len({(desc.format is Format.NC1HWC0, desc.c0) for desc in descs}) == 1, node
        elif opdef.formats is FormatRule.PLAIN:
            assert all(desc.is_plain for desc in descs), node
        if opdef.formats is FormatRule.ANY:
            blocked = {desc.is_plain for desc in descs if desc.elements > 1 or desc is node.output.desc}
            assert len(blocked) == 1, node
            assert len({desc.c0 for desc in descs if desc.elements > 1}) == 1, node


@pytest.mark.parametrize(
    ("soc", "precision"), [("Ascend910B3", "origin"), ("Ascend910B3", "fp16"), ("Ascend310P3", "fp16")]
)
@settings(max_examples=40)
@given(graph=networks(), seed=st.integers(0, 99))
def test_values_and_invariants_hold(soc, precision, graph, seed):
    """The bound is as in the text pairs, taken relative to the largest number that occurs: sums may cancel."""
    target = load_target(soc)
    feeds = {"x": np.random.default_rng(seed).standard_normal(graph.inputs[0].desc.origin_shape).astype(np.float32)}
    everything = evaluate(graph, feeds, compute=np.float64, keep=True)
    source = print_graph(graph)
    count = len(graph.nodes)
    constants = constants_of(graph)
    run_pipeline(graph, target, PassOptions(precision=precision, check=True))
    check_formats(graph)
    text = print_graph(graph)
    assert print_graph(parse_graph(text, constants_of(graph))) == text
    assert print_graph(parse_graph(source, constants)) == source
    got = evaluate(graph, feeds)
    unit = 2.0**-24 if precision == "origin" else 2.0**-11
    largest = max(float(np.abs(value).max()) for value in everything.values())
    for name, value in got.items():
        error = float(np.abs(value.astype(np.float64) - everything[name]).max())
        assert error <= 4 * (count + 2) * unit * max(largest, 1.0), (name, error)
