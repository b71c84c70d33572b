"""Inception v3 and Xception."""

from __future__ import annotations

import onnx

from network_writer import Net


def inception_v3(batch: int, side: int) -> onnx.ModelProto:
    """C. Szegedy et al. (2015) as in torchvision, without the auxiliary classifier, which inference leaves out."""
    net = Net("inception_v3", batch)
    x = net.conv(net.conv(net.images(side), 32, 3, 2, pads=0), 32, 3, pads=0)
    x = net.pool(net.conv(x, 64, 3), 3, 2)
    x = net.pool(net.conv(net.conv(x, 80, 1), 192, 3, pads=0), 3, 2)
    for pooled in (32, 64, 64):
        x = _inception_a(net, x, pooled)
    x = net.concat([net.conv(x, 384, 3, 2, pads=0), _chain(net, x, ((64, 1), (96, 3)), last=96), net.pool(x, 3, 2)])
    for width in (128, 160, 160, 192):
        x = _inception_c(net, x, width)
    left = net.conv(net.conv(x, 192, 1), 320, 3, 2, pads=0)
    right = _chain(net, x, ((192, 1), (192, (1, 7)), (192, (7, 1))), last=192)
    x = net.concat([left, right, net.pool(x, 3, 2)])
    for _ in range(2):
        x = _inception_e(net, x)
    return net.finish(net.classify(x))


def _chain(net: Net, x: str, layers: tuple, *, last: int = 0) -> str:
    """Convolutions in a row; ``last`` channels of a 3x3 one with stride 2 and no padding at the end."""
    for channels, window in layers:
        x = net.conv(x, channels, window)
    return net.conv(x, last, 3, 2, pads=0) if last else x


def _pooled(net: Net, x: str, channels: int) -> str:
    return net.conv(net.pool(x, 3, 1, 1, op="AveragePool"), channels, 1)


def _inception_a(net: Net, x: str, pooled: int) -> str:
    middle = _chain(net, x, ((48, 1), (64, 5)))
    double = _chain(net, x, ((64, 1), (96, 3), (96, 3)))
    return net.concat([net.conv(x, 64, 1), middle, double, _pooled(net, x, pooled)])


def _inception_c(net: Net, x: str, width: int) -> str:
    single = _chain(net, x, ((width, 1), (width, (1, 7)), (192, (7, 1))))
    double = _chain(net, x, ((width, 1), (width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7))))
    return net.concat([net.conv(x, 192, 1), single, double, _pooled(net, x, 192)])


def _inception_e(net: Net, x: str) -> str:
    single, double = net.conv(x, 384, 1), net.conv(net.conv(x, 448, 1), 384, 3)
    forks = [net.concat([net.conv(y, 384, (1, 3)), net.conv(y, 384, (3, 1))]) for y in (single, double)]
    return net.concat([net.conv(x, 320, 1), *forks, _pooled(net, x, 192)])


def xception(batch: int, side: int) -> onnx.ModelProto:
    """F. Chollet (2017) in its PyTorch form."""
    net = Net("xception", batch)
    x = net.conv(net.conv(net.images(side), 32, 3, 2, pads=0), 64, 3, pads=0)
    x = _xception_block(net, x, (128, 128), 2, start=False)
    x = _xception_block(net, x, (256, 256), 2)
    x = _xception_block(net, x, (728, 728), 2)
    for _ in range(8):
        x = _xception_block(net, x, (728, 728, 728), 1)
    x = _xception_block(net, x, (728, 1024), 2)
    x = net.act(_separable(net, _separable(net, x, 1536, after=True), 2048), "Relu")
    return net.finish(net.classify(x))


def _separable(net: Net, x: str, channels: int, *, after: bool = False) -> str:
    """Channel by channel, then point by point; ``after`` adds an activation."""
    depth = net.channels(x)
    y = net.conv(x, depth, 3, groups=depth, act="", normed=False)
    return net.conv(y, channels, 1, act="Relu" if after else "")


def _xception_block(net: Net, x: str, layers: tuple[int, ...], stride: int, *, start: bool = True) -> str:
    """Activations stand before the separable convolutions; the first block starts without one."""
    short = x
    if net.channels(x) != layers[-1] or stride > 1:
        short = net.conv(x, layers[-1], 1, stride, act="")
    y = x
    for index, channels in enumerate(layers):
        y = net.act(y, "Relu") if start or index else y
        y = _separable(net, y, channels)
    if stride > 1:
        y = net.pool(y, 3, stride, 1)
    return net.add(y, short)
