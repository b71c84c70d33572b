"""Networks for phones: MobileNet v2 and v3, MnasNet, ShuffleNet v1, GhostNet."""

from __future__ import annotations

import onnx

from network_writer import Net

MOBILENET_V2 = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
"""Expansion, channels, blocks, stride."""
MNASNET = (
    (3, 24, 3, 2, 3), (3, 40, 3, 2, 5), (6, 80, 3, 2, 5), (6, 96, 2, 1, 3), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip
"""Expansion, channels, blocks, stride, window."""
MOBILENET_V3_LARGE = (
    (3, 16, 16, 0, "Relu", 1), (3, 64, 24, 0, "Relu", 2), (3, 72, 24, 0, "Relu", 1), (5, 72, 40, 1, "Relu", 2),
    (5, 120, 40, 1, "Relu", 1), (5, 120, 40, 1, "Relu", 1), (3, 240, 80, 0, "HardSwish", 2),
    (3, 200, 80, 0, "HardSwish", 1), (3, 184, 80, 0, "HardSwish", 1), (3, 184, 80, 0, "HardSwish", 1),
    (3, 480, 112, 1, "HardSwish", 1), (3, 672, 112, 1, "HardSwish", 1), (5, 672, 160, 1, "HardSwish", 2),
    (5, 960, 160, 1, "HardSwish", 1), (5, 960, 160, 1, "HardSwish", 1),
)  # fmt: skip
"""Window, inner channels, channels, gated, activation, stride."""
MOBILENET_V3_SMALL = (
    (3, 16, 16, 1, "Relu", 2), (3, 72, 24, 0, "Relu", 2), (3, 88, 24, 0, "Relu", 1), (5, 96, 40, 1, "HardSwish", 2),
    (5, 240, 40, 1, "HardSwish", 1), (5, 240, 40, 1, "HardSwish", 1), (5, 120, 48, 1, "HardSwish", 1),
    (5, 144, 48, 1, "HardSwish", 1), (5, 288, 96, 1, "HardSwish", 2), (5, 576, 96, 1, "HardSwish", 1),
    (5, 576, 96, 1, "HardSwish", 1),
)  # fmt: skip
GHOSTNET = (
    (3, 16, 16, 0, 1), (3, 48, 24, 0, 2), (3, 72, 24, 0, 1), (5, 72, 40, 1, 2), (5, 120, 40, 1, 1), (3, 240, 80, 0, 2),
    (3, 200, 80, 0, 1), (3, 184, 80, 0, 1), (3, 184, 80, 0, 1), (3, 480, 112, 1, 1), (3, 672, 112, 1, 1),
    (5, 672, 160, 1, 2), (5, 960, 160, 0, 1), (5, 960, 160, 1, 1), (5, 960, 160, 0, 1), (5, 960, 160, 1, 1),
)  # fmt: skip
"""Window, inner channels, channels, gated, stride."""


def rounded(channels: float, unit: int = 8) -> int:
    """The nearest multiple of ``unit`` that is not below nine tenths."""
    made = max(unit, int(channels + unit / 2) // unit * unit)
    return made + unit if made < 0.9 * channels else made


def _inverted(net: Net, x: str, expand: int, out: int, stride: int, window: int, act: str) -> str:
    """Expand, filter each channel, project; the input is added where sizes agree."""
    channels = net.channels(x)
    wide = channels * expand
    y = net.conv(x, wide, 1, act=act) if expand > 1 else x
    y = net.conv(net.conv(y, wide, window, stride, groups=wide, act=act), out, 1, act="")
    return net.add(x, y) if stride == 1 and channels == out else y


def mobilenet_v2(batch: int, side: int) -> onnx.ModelProto:
    """M. Sandler et al. (2018)."""
    net = Net("mobilenet_v2", batch)
    x = net.conv(net.images(side), 32, 3, 2, act="Relu6")
    for expand, out, count, stride in MOBILENET_V2:
        for index in range(count):
            x = _inverted(net, x, expand, out, 1 if index else stride, 3, "Relu6")
    return net.finish(net.classify(net.conv(x, 1280, 1, act="Relu6")))


def mnasnet(batch: int, side: int) -> onnx.ModelProto:
    """M. Tan et al. (2019), depth factor 1.0, as in torchvision."""
    net = Net("mnasnet1_0", batch)
    x = net.conv(net.images(side), 32, 3, 2)
    x = net.conv(net.conv(x, 32, 3, groups=32), 16, 1, act="")
    for expand, out, count, stride, window in MNASNET:
        for index in range(count):
            x = _inverted(net, x, expand, out, 1 if index else stride, window, "Relu")
    return net.finish(net.classify(net.conv(x, 1280, 1)))


def _mobilenet_v3(name: str, rows: tuple, wide: int, head: int, batch: int, side: int) -> onnx.ModelProto:
    """A. Howard et al. (2019): gates with a hard sigmoid, two layers behind the mean."""
    net = Net(name, batch)
    x = net.conv(net.images(side), 16, 3, 2, act="HardSwish")
    for window, inner, out, gated, act, stride in rows:
        channels = net.channels(x)
        y = net.conv(x, inner, 1, act=act) if inner != channels else x
        y = net.conv(y, inner, window, stride, groups=inner, act=act)
        if gated:
            y = net.squeeze_excite(y, rounded(inner / 4), gate="HardSigmoid")
        y = net.conv(y, out, 1, act="")
        x = net.add(x, y) if stride == 1 and channels == out else y
    x = net.flat(net.mean(net.conv(x, wide, 1, act="HardSwish")))
    return net.finish(net.linear(net.linear(x, head, act="HardSwish"), 1000))


def mobilenet_v3_large(batch: int, side: int) -> onnx.ModelProto:
    return _mobilenet_v3("mobilenet_v3_large", MOBILENET_V3_LARGE, 960, 1280, batch, side)


def mobilenet_v3_small(batch: int, side: int) -> onnx.ModelProto:
    return _mobilenet_v3("mobilenet_v3_small", MOBILENET_V3_SMALL, 576, 1024, batch, side)


def shufflenet_v1(batch: int, side: int) -> onnx.ModelProto:
    """X. Zhang et al. (2017), three groups, width 1.0."""
    net, groups = Net("shufflenet_v1_g3", batch), 3
    x = net.pool(net.conv(net.images(side), 24, 3, 2), 3, 2, 1)
    for stage, (out, count) in enumerate(((240, 4), (480, 8), (960, 4))):
        for index in range(count):
            stride, entry = 1 + (index == 0), 1 if stage == index == 0 else groups
            channels = net.channels(x)
            y = _shuffled(net, net.conv(x, out // 4, 1, groups=entry), groups)
            y = net.conv(y, out // 4, 3, stride, groups=out // 4, act="")
            y = net.conv(y, out - channels if stride > 1 else out, 1, groups=groups, act="")
            if stride > 1:
                x = net.concat([net.pool(x, 3, 2, 1, op="AveragePool"), net.act(y, "Relu")])
            else:
                x = net.act(net.add(x, y), "Relu")
    return net.finish(net.classify(x, bias=False))


def _shuffled(net: Net, x: str, groups: int) -> str:
    """Channels dealt over the groups: a transpose of two axes that the channel splits into."""
    n, c, h, w = net.shapes[x]
    y = net.transpose(net.reshape(x, n, c // groups, groups, h, w), 0, 2, 1, 3, 4)
    return net.reshape(y, n, c, h, w)


def ghostnet(batch: int, side: int) -> onnx.ModelProto:
    """K. Han et al. (2020), width 1.0."""
    net = Net("ghostnet", batch)
    x = net.conv(net.images(side), 16, 3, 2)
    for window, inner, out, gated, stride in GHOSTNET:
        channels = net.channels(x)
        y = _ghost(net, x, inner, "Relu")
        if stride > 1:
            y = net.conv(y, inner, window, stride, groups=inner, act="")
        if gated:
            y = net.squeeze_excite(y, rounded(inner / 4, 4), gate="HardSigmoid")
        y = _ghost(net, y, out, "")
        short = x
        if stride > 1 or channels != out:
            short = net.conv(x, channels, window, stride, groups=channels, act="")
            short = net.conv(short, out, 1, act="")
        x = net.add(y, short)
    x = net.mean(net.conv(x, 960, 1))
    x = net.conv(x, 1280, 1, normed=False, bias=True)
    return net.finish(net.linear(net.flat(x), 1000))


def _ghost(net: Net, x: str, out: int, act: str) -> str:
    """Half the channels by a product, the other half from them by a cheap filter of each."""
    half = -(-out // 2)
    first = net.conv(x, half, 1, act=act)
    both = net.concat([first, net.conv(first, half, 3, groups=half, act=act)])
    return net.slice(both, 1, 0, out) if 2 * half > out else both
