"""Real architectures as ONNX graphs without weights: what the network builders in ``networks_*`` are written with.

Parameters are ``ConstantOfShape`` nodes: a file stays small, and a compiler keeps each as one stretched element. Every
parameter has a value of its own, so that no two become one weight. Convolutions carry their normalisation folded in, as
exporters write them for inference; ``parameters`` counts what the published figures count.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_writer import GraphWriter

Pair = int | tuple[int, int]


def pair(value: Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


class Net(GraphWriter):
    """A network under construction. ``shapes`` holds the shape of every value, ``parameters`` how many are trained."""

    def __init__(self, name: str, batch: int) -> None:
        super().__init__(name)
        self.batch = batch
        self.parameters = 0
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._count = 0

    # -- values --------------------------------------------------------------------------------------------------------

    def images(self, side: int, channels: int = 3) -> str:
        """The input: float32 pictures [batch, channels, side, side]."""
        self.shapes["image"] = (self.batch, channels, side, side)
        return self.input("image", self.shapes["image"])

    def channels(self, x: str) -> int:
        return self.shapes[x][1]

    def parameter(self, *shape: int, trained: bool = True) -> str:
        """A parameter of one value (exact in float16, different from all others)."""
        name = f"p{self._next()}"
        value = numpy_helper.from_array(np.array([(self._count + 1) / 1024], np.float32))
        dims = self.constant(np.array(shape, np.int64))
        self.node("ConstantOfShape", [dims], name, out=name, value=value)
        self.parameters += prod(shape) if trained else 0
        return name

    def constant(self, value: np.ndarray | float) -> str:
        """A small constant that is no parameter: shapes, scales, bounds."""
        name = f"c{self._next()}"
        self.weights[name] = numpy_helper.from_array(
            np.asarray(value, np.float32 if isinstance(value, float) else None), name
        )
        return name

    def apply(self, op: str, inputs: Sequence[str], shape: Sequence[int], **attributes: Any) -> str:
        """A node with one result of a known shape."""
        out = self.node(op, inputs, f"{op}_{self._next()}", **attributes)
        self.shapes[out] = tuple(shape)
        return out

    def _next(self) -> int:
        self._count += 1
        return self._count

    def finish(self, *results: str) -> onnx.ModelProto:
        """The model; its metadata property ``parameters`` is their number."""
        for result in results:
            self.outputs.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, self.shapes[result]))
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, list(self.weights.values()))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        helper.set_model_props(model, {"parameters": str(self.parameters)})
        return model

    # -- convolutional layers ------------------------------------------------------------------------------------------

    def conv(
        self, x: str, channels: int, window: Pair, stride: int = 1, *, act: str = "Relu", groups: int = 1,
        pads: Pair | None = None, normed: bool = True, bias: bool = False,
    ) -> str:  # fmt: skip
        """Convolution, bias and activation ("" for none); ``pads`` (h, w) default to half the window.

        ``normed``: the bias stands for a folded normalisation (scale and offset count); ``bias`` counts one of its own.
        """
        n, depth, h, w = self.shapes[x]
        kh, kw = pair(window)
        ph, pw = pair(pads) if pads is not None else (kh // 2, kw // 2)
        weight = self.parameter(channels, depth // groups, kh, kw)
        inputs = [x, weight]
        if normed or bias:
            inputs.append(self.parameter(channels, trained=False))
            self.parameters += channels * (2 * normed + bias)
        shape = (n, channels, (h + 2 * ph - kh) // stride + 1, (w + 2 * pw - kw) // stride + 1)
        y = self.apply(
            "Conv", inputs, shape, kernel_shape=[kh, kw], strides=[stride] * 2, pads=[ph, pw, ph, pw], group=groups
        )
        return self.act(y, act)

    def act(self, x: str, kind: str) -> str:
        """An activation by name; "" hands x on. Silu is written as exporters do, x times its sigmoid."""
        shape = self.shapes[x]
        if kind in ("Relu", "Sigmoid", "HardSwish", "Softmax", "Tanh"):
            return self.apply(kind, [x], shape)
        if kind == "Relu6":
            return self.apply("Clip", [x, self.constant(0.0), self.constant(6.0)], shape)
        if kind == "HardSigmoid":
            return self.apply(kind, [x], shape, alpha=1 / 6, beta=0.5)
        if kind == "LeakyRelu":
            return self.apply(kind, [x], shape, alpha=0.1)
        if kind == "Silu":
            return self.mul(x, self.apply("Sigmoid", [x], shape))
        if kind:
            raise ValueError(f"unknown activation {kind}")
        return x

    def norm(self, x: str) -> str:
        """A batch normalisation that stands alone, before its convolution."""
        channels = self.channels(x)
        scale, offset = self.parameter(channels), self.parameter(channels)
        mean, variance = self.parameter(channels, trained=False), self.parameter(channels, trained=False)
        return self.apply("BatchNormalization", [x, scale, offset, mean, variance], self.shapes[x])

    def pool(self, x: str, window: int, stride: int, pad: int = 0, *, op: str = "MaxPool", ceil: bool = False) -> str:
        n, c, h, w = self.shapes[x]
        up = stride - 1 if ceil else 0
        size = tuple((edge + 2 * pad - window + up) // stride + 1 for edge in (h, w))
        extra = {"count_include_pad": 1} if op == "AveragePool" and pad else {}
        return self.apply(
            op, [x], (n, c, *size), kernel_shape=[window] * 2, strides=[stride] * 2, pads=[pad] * 4,
            ceil_mode=int(ceil), **extra,
        )  # fmt: skip

    def mean(self, x: str) -> str:
        """Global average pooling, [N, C, 1, 1]."""
        return self.apply("GlobalAveragePool", [x], (*self.shapes[x][:2], 1, 1))

    def upsample(self, x: str, factor: int, mode: str = "nearest", *, align: bool = False) -> str:
        n, c, h, w = self.shapes[x]
        scales = self.constant(np.array([1, 1, factor, factor], np.float32))
        place = "align_corners" if align else ("asymmetric" if mode == "nearest" else "half_pixel")
        extra = {"nearest_mode": "floor"} if mode == "nearest" else {}
        return self.apply(
            "Resize", [x, "", scales], (n, c, h * factor, w * factor), mode=mode,
            coordinate_transformation_mode=place, **extra,
        )  # fmt: skip

    def squeeze_excite(self, x: str, width: int, *, act: str = "Relu", gate: str = "Sigmoid", bias: bool = True) -> str:
        """Scale every channel by a gate computed from its mean; without ``bias`` the two layers are normalised."""
        kind = {"normed": not bias, "bias": bias}
        inner = self.conv(self.mean(x), width, 1, act=act, **kind)
        return self.mul(x, self.conv(inner, self.channels(x), 1, act=gate, **kind))

    def classify(self, x: str, classes: int = 1000, *, bias: bool = True) -> str:
        """Mean over the picture and a linear layer."""
        return self.linear(self.flat(self.mean(x)), classes, bias=bias)

    # -- element-wise and layout ---------------------------------------------------------------------------------------

    def add(self, left: str, right: str) -> str:
        return self._binary("Add", left, right)

    def mul(self, left: str, right: str) -> str:
        return self._binary("Mul", left, right)

    def _binary(self, op: str, left: str, right: str) -> str:
        shapes = [self.shapes[item] for item in (left, right) if item in self.shapes]
        return self.apply(op, [left, right], np.broadcast_shapes(*shapes))

    def concat(self, parts: Sequence[str], axis: int = 1) -> str:
        shape = list(self.shapes[parts[0]])
        shape[axis] = sum(self.shapes[part][axis] for part in parts)
        return self.apply("Concat", list(parts), shape, axis=axis)

    def slice(self, x: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        shape = list(self.shapes[x])
        axis %= len(shape)
        shape[axis] = len(range(start, stop, step))
        bounds = [self.constant(np.array([value], np.int64)) for value in (start, stop, axis, step)]
        return self.apply("Slice", [x, *bounds], shape)

    def pick(self, x: str, axis: int, index: int) -> str:
        """One entry of an axis, which goes (Gather with a scalar, as indexing is exported)."""
        shape = list(self.shapes[x])
        del shape[axis]
        return self.apply("Gather", [x, self.constant(np.array(index, np.int64))], shape, axis=axis)

    def reshape(self, x: str, *shape: int) -> str:
        return self.apply("Reshape", [x, self.constant(np.array(shape, np.int64))], shape)

    def flat(self, x: str) -> str:
        n, *rest = self.shapes[x]
        return self.apply("Flatten", [x], (n, prod(rest)))

    def transpose(self, x: str, *order: int) -> str:
        return self.apply("Transpose", [x], [self.shapes[x][axis] for axis in order], perm=list(order))

    # -- dense layers --------------------------------------------------------------------------------------------------

    def linear(self, x: str, width: int, *, act: str = "", bias: bool = True) -> str:
        """Gemm on rows; MatMul and Add on more axes, as exporters write it."""
        *front, depth = self.shapes[x]
        if len(front) == 1:
            inputs = [x, self.parameter(width, depth)] + [self.parameter(width)] * bias
            return self.act(self.apply("Gemm", inputs, (*front, width), transB=1), act)
        y = self.apply("MatMul", [x, self.parameter(depth, width)], (*front, width))
        return self.act(self.add(y, self.parameter(width)) if bias else y, act)

    def matmul(self, left: str, right: str) -> str:
        shape = (*self.shapes[left][:-1], self.shapes[right][-1])
        return self.apply("MatMul", [left, right], shape)

    def layer_norm(self, x: str) -> str:
        width = self.shapes[x][-1]
        return self.apply(
            "LayerNormalization", [x, self.parameter(width), self.parameter(width)], self.shapes[x], axis=-1
        )

    def gelu(self, x: str) -> str:
        """The exact form, in the five steps that exporters write."""
        shape = self.shapes[x]
        erf = self.apply("Erf", [self.apply("Div", [x, self.constant(2**0.5)], shape)], shape)
        gated = self.mul(x, self.apply("Add", [erf, self.constant(1.0)], shape))
        return self.apply("Mul", [gated, self.constant(0.5)], shape)

    def attention(self, x: str, heads: int, *, bias: str = "", mask: str = "", early: bool = False) -> str:
        """Self-attention of [batch, length, width] with one linear layer for query, key and value; projection included.

        ``bias`` and ``mask`` are added to the scores [batch, heads, length, length]. With ``early`` the query is
        scaled, not the scores.
        """
        batch, length, width = self.shapes[x]
        rows = self.reshape(self.linear(x, 3 * width), batch, length, 3, heads, width // heads)
        parts = self.transpose(rows, 2, 0, 3, 1, 4)
        query, key, value = (self.pick(parts, 0, index) for index in range(3))
        return self.linear(self.mix(query, self.transpose(key, 0, 1, 3, 2), value, (bias, mask), early=early), width)

    def mix(self, query: str, key: str, value: str, summands: Sequence[str] = (), *, early: bool = False) -> str:
        """Scaled scores (``early``: of the scaled query), softmax and weighted sum; the heads are joined to
        [batch, length, width]."""
        batch, heads, length, depth = self.shapes[query]
        scale = self.constant(depth**-0.5)
        if early:
            query = self.mul(query, scale)
        scores = self.matmul(query, key)
        if not early:
            scores = self.mul(scores, scale)
        for item in filter(None, summands):
            scores = self.add_scores(scores, item)
        share = self.apply("Softmax", [scores], self.shapes[scores], axis=-1)
        mixed = self.transpose(self.matmul(share, value), 0, 2, 1, 3)
        return self.reshape(mixed, batch, length, heads * depth)

    def add_scores(self, scores: str, item: str) -> str:
        """Add something to attention scores; a mask per window [windows, 1, length, length] repeats over pictures."""
        batch, heads, length, _ = self.shapes[scores]
        windows = self.shapes[item][0]
        if windows in (1, batch):
            return self.add(scores, item)
        split = self.reshape(scores, batch // windows, windows, heads, length, length)
        return self.reshape(self.add(split, item), batch, heads, length, length)

    def table(self, *shape: int) -> str:
        """A parameter that is an operand of element-wise operators or gathers, so that its shape matters."""
        name = self.parameter(*shape)
        self.shapes[name] = shape
        return name
