"""Networks of several resolutions and for detection: HRNet, UNet++, YOLOv3, YOLOX."""

from __future__ import annotations

import onnx

from network_writer import Net

HRNET_STAGES = (((18, 36), 1), ((18, 36, 72), 4), ((18, 36, 72, 144), 3))
"""Channels of the branches and number of modules of stages 2 to 4 of HRNet-W18."""


def hrnet_w18(batch: int, side: int) -> onnx.ModelProto:
    """J. Wang et al. (2020), the classifier."""
    net = Net("hrnet_w18", batch)
    x = net.conv(net.conv(net.images(side), 64, 3, 2), 64, 3, 2)
    for _ in range(4):
        x = _bottleneck(net, x, 64)
    branches = [x]
    for channels, modules in HRNET_STAGES:
        made = []
        for index, width in enumerate(channels):
            if index < len(branches):
                old = branches[index]
                made.append(old if net.channels(old) == width else net.conv(old, width, 3))
            else:
                made.append(net.conv(branches[-1], width, 3, 2))
        branches = made
        for _ in range(modules):
            branches = _fused(net, [_basic_blocks(net, branch) for branch in branches])
    return net.finish(_hrnet_head(net, branches))


def _bottleneck(net: Net, x: str, width: int) -> str:
    short = x if net.channels(x) == 4 * width else net.conv(x, 4 * width, 1, act="")
    y = net.conv(net.conv(net.conv(x, width, 1), width, 3), 4 * width, 1, act="")
    return net.act(net.add(y, short), "Relu")


def _basic_blocks(net: Net, x: str) -> str:
    width = net.channels(x)
    for _ in range(4):
        y = net.conv(net.conv(x, width, 3), width, 3, act="")
        x = net.act(net.add(y, x), "Relu")
    return x


def _fused(net: Net, branches: list[str]) -> list[str]:
    """Every branch plus all the others brought to its size: 1x1 and enlarged, or 3x3 of stride two in a row."""
    made = []
    for target, own in enumerate(branches):
        total = ""
        for source, x in enumerate(branches):
            y = x
            if source > target:
                y = net.upsample(net.conv(x, net.channels(own), 1, act=""), 2 ** (source - target))
            for step in range(target - source):
                last = step == target - source - 1
                y = net.conv(y, net.channels(own if last else x), 3, 2, act="" if last else "Relu")
            total = net.add(total, y) if total else y
        made.append(net.act(total, "Relu"))
    return made


def _hrnet_head(net: Net, branches: list[str]) -> str:
    widened = [_bottleneck(net, branch, 32 << index) for index, branch in enumerate(branches)]
    y = widened[0]
    for index, branch in enumerate(widened[1:]):
        y = net.add(branch, net.conv(y, 256 << index, 3, 2, normed=True, bias=True))
    return net.classify(net.conv(y, 2048, 1, bias=True))


def nested_unet(batch: int, side: int) -> onnx.ModelProto:
    """UNet++, Z. Zhou et al. (2018), 32 to 512 channels, one class, no deep supervision."""
    net, widths = Net("nested_unet", batch), (32, 64, 128, 256, 512)

    def block(x: str, width: int) -> str:
        return net.conv(net.conv(x, width, 3, bias=True), width, 3, bias=True)

    rows: list[list[str]] = [[] for _ in widths]
    x = net.images(side)
    for depth, width in enumerate(widths):
        rows[depth].append(block(x if depth == 0 else net.pool(rows[depth - 1][0], 2, 2), width))
        for level in range(depth - 1, -1, -1):
            up = net.upsample(rows[level + 1][-1], 2, "linear", align=True)
            rows[level].append(block(net.concat([*rows[level], up]), widths[level]))
    return net.finish(net.conv(rows[0][-1], 1, 1, act="", normed=False, bias=True))


def yolov3(batch: int, side: int) -> onnx.ModelProto:
    """J. Redmon, A. Farhadi (2018): Darknet-53 and three heads of 255 channels."""
    net = Net("yolov3", batch)
    x, taps = net.conv(net.images(side), 32, 3, act="LeakyRelu"), []
    for width, count in ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4)):
        x = net.conv(x, width, 3, 2, act="LeakyRelu")
        for _ in range(count):
            y = net.conv(net.conv(x, width // 2, 1, act="LeakyRelu"), width, 3, act="LeakyRelu")
            x = net.add(x, y)
        taps.append(x)
    heads, lead = [], ""
    for width, tap in zip((512, 256, 128), reversed(taps)):
        y = tap
        if lead:
            up = net.upsample(net.conv(lead, width, 1, act="LeakyRelu"), 2)
            y = net.concat([up, tap])
        for channels, window in ((width, 1), (2 * width, 3), (width, 1), (2 * width, 3), (width, 1)):
            y = net.conv(y, channels, window, act="LeakyRelu")
        lead = y
        out = net.conv(y, 2 * width, 3, act="LeakyRelu")
        heads.append(net.conv(out, 255, 1, act="", normed=False, bias=True))
    return net.finish(*heads)


def yolox_tiny(batch: int, side: int) -> onnx.ModelProto:
    """Z. Ge et al. (2021), width 0.375, depth 0.33, as its exporter leaves it: boxes are decoded by the caller."""
    net, base = Net("yolox_tiny", batch), 24
    x = net.images(side)
    corners = [net.slice(net.slice(x, 2, row, side, 2), 3, col, side, 2) for col in (0, 1) for row in (0, 1)]
    x = _silu(net, net.concat(corners), base, 3)
    x = _csp(net, _silu(net, x, 2 * base, 3, 2), 2 * base, 1)
    small = _csp(net, _silu(net, x, 4 * base, 3, 2), 4 * base, 3)
    middle = _csp(net, _silu(net, small, 8 * base, 3, 2), 8 * base, 3)
    x = _pyramid_pool(net, _silu(net, middle, 16 * base, 3, 2))
    large = _csp(net, x, 16 * base, 1, short=False)
    first = _silu(net, large, 8 * base, 1)
    down = _csp(net, net.concat([net.upsample(first, 2), middle]), 8 * base, 1, short=False)
    second = _silu(net, down, 4 * base, 1)
    low = _csp(net, net.concat([net.upsample(second, 2), small]), 4 * base, 1, short=False)
    mid = _csp(net, net.concat([_silu(net, low, 4 * base, 3, 2), second]), 8 * base, 1, short=False)
    high = _csp(net, net.concat([_silu(net, mid, 8 * base, 3, 2), first]), 16 * base, 1, short=False)
    return net.finish(_cells(net, [_yolox_head(net, y, 4 * base) for y in (low, mid, high)]))


def _silu(net: Net, x: str, channels: int, window: int, stride: int = 1) -> str:
    return net.conv(x, channels, window, stride, act="Silu")


def _csp(net: Net, x: str, out: int, count: int, *, short: bool = True) -> str:
    """Two halves, one through bottlenecks, joined by a 1x1."""
    half = out // 2
    left, right = _silu(net, x, half, 1), _silu(net, x, half, 1)
    for _ in range(count):
        y = _silu(net, _silu(net, left, half, 1), half, 3)
        left = net.add(y, left) if short else y
    return _silu(net, net.concat([left, right]), out, 1)


def _pyramid_pool(net: Net, x: str) -> str:
    channels = net.channels(x)
    y = _silu(net, x, channels // 2, 1)
    return _silu(net, net.concat([y, *(net.pool(y, size, 1, size // 2) for size in (5, 9, 13))]), channels, 1)


def _yolox_head(net: Net, x: str, width: int) -> str:
    """[batch, 85, h, w]: box, objectness and classes, the last two through a sigmoid."""
    stem = _silu(net, x, width, 1)
    classes, boxes = (_silu(net, _silu(net, stem, width, 3), width, 3) for _ in range(2))
    kind = {"normed": False, "bias": True}
    parts = [net.conv(boxes, 4, 1, act="", **kind), net.conv(boxes, 1, 1, act="Sigmoid", **kind)]
    return net.concat([*parts, net.conv(classes, 80, 1, act="Sigmoid", **kind)])


def _cells(net: Net, heads: list[str]) -> str:
    """[batch, cells, 85]: the heads of all sizes side by side."""
    rows = []
    for head in heads:
        n, c, h, w = net.shapes[head]
        rows.append(net.reshape(head, n, c, h * w))
    return net.transpose(net.concat(rows, 2), 0, 2, 1)
