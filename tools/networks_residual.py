"""Plain, residual and densely connected classifiers: AlexNet, VGG, ResNet and kin, RepVGG, DenseNet."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from network_writer import Net

Build = Callable[[int, int], onnx.ModelProto]
"""From batch and side of the picture to the model."""


def alexnet(batch: int, side: int) -> onnx.ModelProto:
    """A. Krizhevsky, One weird trick (2014), as in torchvision."""
    net = Net("alexnet", batch)
    kind = {"normed": False, "bias": True}
    x = net.conv(net.images(side), 64, 11, 4, pads=2, **kind)
    x = net.conv(net.pool(x, 3, 2), 192, 5, **kind)
    x = net.pool(x, 3, 2)
    for channels in (384, 256, 256):
        x = net.conv(x, channels, 3, **kind)
    x = net.flat(net.pool(x, 3, 2))
    x = net.linear(net.linear(x, 4096, act="Relu"), 4096, act="Relu")
    return net.finish(net.linear(x, 1000))


def vgg19(batch: int, side: int) -> onnx.ModelProto:
    """K. Simonyan, A. Zisserman (2014), configuration E without normalisation."""
    net = Net("vgg19", batch)
    x = net.images(side)
    for channels, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            x = net.conv(x, channels, 3, normed=False, bias=True)
        x = net.pool(x, 2, 2)
    x = net.linear(net.linear(net.flat(x), 4096, act="Relu"), 4096, act="Relu")
    return net.finish(net.linear(x, 1000))


def resnet(
    name: str, blocks: tuple[int, ...], *, bottleneck: bool = True, wide: int = 1, groups: int = 1, width: int = 64,
    gated: bool = False, early_stride: bool = False,
) -> Build:  # fmt: skip
    """ResNet, Wide ResNet, ResNeXt and their gated (squeeze-and-excitation) forms.

    ``width`` is that of the inner layers of the first stage, ``early_stride`` puts the stride on the first 1x1, as
    the Caffe models did.
    """

    def build(batch: int, side: int) -> onnx.ModelProto:
        net = Net(name, batch)
        x = net.conv(net.images(side), 64, 7, 2)
        x = net.pool(x, 3, 2, 0 if gated else 1, ceil=gated)
        for stage, count in enumerate(blocks):
            inner = (width << stage) * wide
            out = (64 << stage) * (4 if bottleneck else 1)
            for index in range(count):
                stride = 2 if stage and index == 0 else 1
                short = x
                if net.channels(x) != out or stride > 1:
                    short = net.conv(x, out, 1, stride, act="")
                if bottleneck:
                    first, second = (stride, 1) if early_stride else (1, stride)
                    y = net.conv(net.conv(x, inner, 1, first), inner, 3, second, groups=groups)
                    y = net.conv(y, out, 1, act="")
                else:
                    y = net.conv(net.conv(x, inner, 3, stride), out, 3, act="")
                if gated:
                    y = net.squeeze_excite(y, out // 16)
                x = net.act(net.add(y, short), "Relu")
        return net.finish(net.classify(x))

    return build


def repvgg_a0(batch: int, side: int) -> onnx.ModelProto:
    """X. Ding et al. (2021), with its three branches as trained.

    Which form was deployed is not documented. The published time of a single image, 450 us and more, decides: the form
    with one 3x3 convolution a block has 28 tasks, a quarter of what takes so long.
    """
    net = Net("repvgg_a0", batch)
    x = _branches(net, net.images(side), 48, 2)
    for channels, count in ((48, 2), (96, 4), (192, 14), (1280, 1)):
        for index in range(count):
            x = _branches(net, x, channels, 1 + (index == 0))
    return net.finish(net.classify(x))


def _branches(net: Net, x: str, channels: int, stride: int) -> str:
    """A 3x3 and a 1x1 convolution, each normalised, and the normalised input where sizes agree."""
    y = net.add(net.conv(x, channels, 3, stride, act=""), net.conv(x, channels, 1, stride, act=""))
    if stride == 1 and net.channels(x) == channels:
        y = net.add(y, net.norm(x))
    return net.act(y, "Relu")


def densenet121(batch: int, side: int) -> onnx.ModelProto:
    """G. Huang et al. (2017): the normalisation before a convolution cannot be folded into it."""
    net, growth = Net("densenet121", batch), 32
    x = net.pool(net.conv(net.images(side), 64, 7, 2), 3, 2, 1)
    for stage, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            y = net.conv(net.act(net.norm(x), "Relu"), 4 * growth, 1)
            x = net.concat([x, net.conv(y, growth, 3, act="", normed=False)])
        if stage < 3:
            x = net.conv(net.act(net.norm(x), "Relu"), net.channels(x) // 2, 1, act="", normed=False)
            x = net.pool(x, 2, 2, op="AveragePool")
    return net.finish(net.classify(net.act(net.norm(x), "Relu")))
