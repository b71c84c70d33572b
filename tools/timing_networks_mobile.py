"""More networks with published inference times: separable, grouped, gated and densely connected ones.

Built like those of ``timing_networks``; weights are zeros.
"""

from __future__ import annotations

from collections.abc import Callable

from metadef.graph import Graph, Tensor
from timing_networks import Net

MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
MNASNET = (
    (3, 24, 3, 2, 3), (3, 40, 3, 2, 5), (6, 80, 3, 2, 5), (6, 96, 2, 1, 3), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip
DENSE_BLOCKS = (6, 12, 24, 16)
GROWTH = 32


def _inverted(net: Net, x: Tensor, expand: int, out: int, stride: int, window: int, act: str) -> Tensor:
    """Expand, filter each channel, project; the input is added where sizes agree."""
    channels = x.desc.origin_shape[1]
    wide = channels * expand
    y = net.conv(x, wide, 1, act=act) if expand > 1 else x
    y = net.conv(y, wide, window, stride, groups=wide, act=act)
    y = net.conv(y, out, 1, act="")
    return net.b.op("Add", x, y) if stride == 1 and channels == out else y


def mobilenet_v2(batch: int, side: int) -> Graph:
    net = Net("mobilenet_v2", batch, side)
    x = net.conv(net.x, 32, 3, 2, act="Relu6")
    for expand, out, count, stride in MOBILENET_V2:
        for index in range(count):
            x = _inverted(net, x, expand, out, stride if index == 0 else 1, 3, "Relu6")
    x = net.b.op("GlobalAveragePool", net.conv(x, 1280, 1, act="Relu6"))
    return net.finish(net.dense(net.flat(x), 1000, relu=False))


def mnasnet(batch: int, side: int) -> Graph:
    net = Net("mnasnet1_0", batch, side)
    x = net.conv(net.x, 32, 3, 2)
    x = net.conv(net.conv(x, 32, 3, groups=32), 16, 1, act="")
    for expand, out, count, stride, window in MNASNET:
        for index in range(count):
            x = _inverted(net, x, expand, out, stride if index == 0 else 1, window, "Relu")
    x = net.b.op("GlobalAveragePool", net.conv(x, 1280, 1))
    return net.finish(net.dense(net.flat(x), 1000, relu=False))


def densenet121(batch: int, side: int) -> Graph:
    """Normalisation before a convolution cannot be folded: a scale and an offset per channel, then relu."""
    net = Net("densenet121", batch, side)
    x = net.b.pool("MaxPoolV3", net.conv(net.x, 64, 7, 2), 3, strides=2, pads=1)
    for stage, count in enumerate(DENSE_BLOCKS):
        for _ in range(count):
            y = net.conv(net.norm(x), 4 * GROWTH, 1)
            x = net.b.op("ConcatD", x, net.conv(y, GROWTH, 3, act=""), concat_dim=1)
        if stage < len(DENSE_BLOCKS) - 1:
            x = net.conv(net.norm(x), x.desc.origin_shape[1] // 2, 1, act="")
            x = net.b.pool("AvgPoolV2", x, 2, strides=2)
    x = net.b.op("GlobalAveragePool", net.norm(x))
    return net.finish(net.dense(net.flat(x), 1000, relu=False))


def bottlenecks(
    name: str, blocks: tuple[int, ...], *, groups: int = 1, width: int = 64, gated: bool = False
) -> Callable[[int, int], Graph]:
    """ResNeXt and squeeze-and-excitation networks."""

    def build(batch: int, side: int) -> Graph:
        net = Net(name, batch, side)
        x = net.b.pool("MaxPoolV3", net.conv(net.x, 64, 7, 2), 3, strides=2, pads=1)
        for stage, count in enumerate(blocks):
            inner, out = width << stage, 256 << stage
            for index in range(count):
                stride = 2 if stage and index == 0 else 1
                side_path = net.conv(x, out, 1, stride, act="") if index == 0 else x
                y = net.conv(net.conv(x, inner, 1), inner, 3, stride, groups=groups)
                y = net.conv(y, out, 1, act="")
                if gated:
                    gate = net.conv(net.b.op("GlobalAveragePool", y), out // 16, 1)
                    y = net.b.op("Mul", y, net.b.op("Sigmoid", net.conv(gate, out, 1, act="")))
                x = net.b.op("Relu", net.b.op("Add", y, side_path))
        x = net.b.op("GlobalAveragePool", x)
        return net.finish(net.dense(net.flat(x), 1000, relu=False))

    return build


MORE: dict[str, Callable[[int, int], Graph]] = {
    "MobileNetV2": mobilenet_v2,
    "MnasNet": mnasnet,
    "DenseNet121": densenet121,
    "ResNeXt50": bottlenecks("resnext50", (3, 4, 6, 3), groups=32, width=128),
    "SEResNet50": bottlenecks("se_resnet50", (3, 4, 6, 3), gated=True),
    "SEResNeXt101": bottlenecks("se_resnext101", (3, 4, 23, 3), groups=32, width=128, gated=True),
}
