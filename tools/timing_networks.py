"""Networks whose published inference times the timing is compared with, built by hand with the graph builder.

Weights are zeros: only sizes matter here. Batch normalisation is taken to be folded into the convolutions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from metadef.compiler import CompileOptions, compile_model
from metadef.format import Format
from metadef.frontend.builder import GraphBuilder
from metadef.graph import Graph, Tensor
from metadef.target import Target
from npusim.timing import time_program

SIDES = {"AlexNet": 224, "VGG19": 224, "ResNet18": 256, "ResNet152": 256, "WideResNet101_2": 224}


def network_us(name: str, batch: int, target: Target, side: int | None = None) -> float:
    """Predicted microseconds of one inference in a repeated run."""
    from timing_networks_mobile import MORE

    graph = {**NETWORKS, **MORE}[name](batch, side or SIDES.get(name, 224))
    compiled = compile_model(graph, CompileOptions(soc=target.soc))
    program = next(iter(compiled.model.programs.values()))
    return time_program(program, target).us


class Net:
    """A network under construction: the builder and the layers that all of them use."""

    def __init__(self, name: str, batch: int, side: int) -> None:
        self.b = GraphBuilder(name)
        self.x = self.b.input("x", (batch, 3, side, side))

    def conv(
        self, x: Tensor, channels: int, window: int, stride: int = 1, *, relu: bool = True, groups: int = 1,
        act: str = "Relu",
    ) -> Tensor:  # fmt: skip
        """A convolution with bias and activation (``act`` "" or ``relu`` False: none)."""
        depth = x.desc.origin_shape[1]
        weight = np.zeros((channels, depth // groups, window, window), np.float32)
        bias = np.zeros(channels, np.float32)
        y = self.b.conv2d(x, weight, bias, strides=stride, pads=window // 2, groups=groups)
        return self.b.op(act, y) if relu and act else y

    def norm(self, x: Tensor) -> Tensor:
        """Scale, offset and relu: a normalisation that no convolution takes in."""
        shape = (1, x.desc.origin_shape[1], 1, 1)
        scaled = self.b.op("Mul", x, self.b.const(np.ones(shape, np.float32), "scale", Format.NCHW))
        shifted = self.b.op("Add", scaled, self.b.const(np.zeros(shape, np.float32), "offset", Format.NCHW))
        return self.b.op("Relu", shifted)

    def dense(self, x: Tensor, width: int, *, relu: bool = True) -> Tensor:
        depth = x.desc.origin_shape[1]
        weight = self.b.const(np.zeros((depth, width), np.float32), "weight", Format.ND)
        y = self.b.op("MatMulV2", x, weight, np.zeros(width, np.float32))
        return self.b.op("Relu", y) if relu else y

    def flat(self, x: Tensor) -> Tensor:
        batch, *rest = x.desc.origin_shape
        return self.b.op("Reshape", x, shape=(batch, int(np.prod(rest))))

    def finish(self, x: Tensor) -> Graph:
        self.b.output(x, "y")
        return self.b.build()


def _resnet(name: str, blocks: tuple[int, ...], *, bottleneck: bool, wide: int = 1) -> Callable[[int, int], Graph]:
    def build(batch: int, side: int) -> Graph:
        net = Net(name, batch, side)
        x = net.b.pool("MaxPoolV3", net.conv(net.x, 64, 7, 2), 3, strides=2, pads=1)
        for stage, count in enumerate(blocks):
            width = 64 << stage
            out = width * 4 if bottleneck else width
            for index in range(count):
                stride = 2 if stage and index == 0 else 1
                side_path = x
                if x.desc.origin_shape[1] != out or stride > 1:
                    side_path = net.conv(x, out, 1, stride, relu=False)
                if bottleneck:
                    y = net.conv(net.conv(x, width * wide, 1), width * wide, 3, stride)
                    y = net.conv(y, out, 1, relu=False)
                else:
                    y = net.conv(net.conv(x, width, 3, stride), width, 3, relu=False)
                x = net.b.op("Relu", net.b.op("Add", y, side_path))
        x = net.b.op("GlobalAveragePool", x)
        return net.finish(net.dense(net.flat(x), 1000, relu=False))

    return build


def _vgg19(batch: int, side: int) -> Graph:
    net = Net("vgg19", batch, side)
    x = net.x
    for channels, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            x = net.conv(x, channels, 3)
        x = net.b.pool("MaxPoolV3", x, 2, strides=2)
    x = net.dense(net.dense(net.flat(x), 4096), 4096)
    return net.finish(net.dense(x, 1000, relu=False))


def _alexnet(batch: int, side: int) -> Graph:
    net = Net("alexnet", batch, side)
    first = np.zeros((64, 3, 11, 11), np.float32)
    x = net.b.op("Relu", net.b.conv2d(net.x, first, np.zeros(64, np.float32), strides=4, pads=2))
    x = net.b.pool("MaxPoolV3", x, 3, strides=2)
    x = net.b.pool("MaxPoolV3", net.conv(x, 192, 5), 3, strides=2)
    x = net.conv(net.conv(net.conv(x, 384, 3), 256, 3), 256, 3)
    x = net.b.pool("MaxPoolV3", x, 3, strides=2)
    x = net.dense(net.dense(net.flat(x), 4096), 4096)
    return net.finish(net.dense(x, 1000, relu=False))


NETWORKS: dict[str, Callable[[int, int], Graph]] = {
    "AlexNet": _alexnet,
    "VGG19": _vgg19,
    "ResNet18": _resnet("resnet18", (2, 2, 2, 2), bottleneck=False),
    "ResNet152": _resnet("resnet152", (3, 8, 36, 3), bottleneck=True),
    "WideResNet101_2": _resnet("wide_resnet101_2", (3, 4, 23, 3), bottleneck=True, wide=2),
}
