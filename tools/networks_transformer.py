"""Transformers: BERT, ViT, Swin."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import TensorProto

from network_writer import Net

VOCABULARY, POSITIONS = 30522, 512


def bert_base(batch: int, length: int) -> onnx.ModelProto:
    """J. Devlin et al. (2018), 12 layers, with the two numbers a token of question answering."""
    net, width = Net("bert_base", batch), 768
    ids, mask, kinds = (
        net.input(name, (batch, length), TensorProto.INT64)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    x = net.apply("Gather", [net.parameter(VOCABULARY, width), ids], (batch, length, width))
    x = net.add(x, net.apply("Gather", [net.parameter(2, width), kinds], (batch, length, width)))
    places = net.parameter(1, length, width, trained=False)
    net.parameters += POSITIONS * width
    x = net.layer_norm(net.add(x, places))
    hidden = net.apply("Cast", [mask], (batch, length), to=TensorProto.FLOAT)
    hidden = net.reshape(hidden, batch, 1, 1, length)
    hidden = net.apply("Sub", [net.constant(1.0), hidden], (batch, 1, 1, length))
    hidden = net.apply("Mul", [hidden, net.constant(-10000.0)], (batch, 1, 1, length))
    for _ in range(12):
        x = net.layer_norm(net.add(_bert_attention(net, x, 12, hidden), x))
        y = net.linear(net.gelu(net.linear(x, 4 * width)), width)
        x = net.layer_norm(net.add(y, x))
    return net.finish(net.linear(x, 2))


def _bert_attention(net: Net, x: str, heads: int, mask: str) -> str:
    """Query, key and value from three linear layers."""
    batch, length, width = net.shapes[x]
    parts = []
    for order in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
        rows = net.reshape(net.linear(x, width), batch, length, heads, width // heads)
        parts.append(net.transpose(rows, *order))
    return net.linear(net.mix(*parts, (mask,)), width)


def vit_base(patch: int) -> Callable[[int, int], onnx.ModelProto]:
    """A. Dosovitskiy et al. (2021): patches of ``patch`` pixels, a class token, 12 layers."""

    def build(batch: int, side: int) -> onnx.ModelProto:
        net, width = Net(f"vit_base_patch{patch}", batch), 768
        x = net.conv(net.images(side), width, patch, patch, act="", pads=0, normed=False, bias=True)
        tokens = (side // patch) ** 2
        x = net.transpose(net.reshape(x, batch, width, tokens), 0, 2, 1)
        token = net.table(batch, 1, width)
        net.parameters -= (batch - 1) * width
        x = net.add(net.concat([token, x]), net.parameter(1, tokens + 1, width))
        for _ in range(12):
            x = net.add(x, net.attention(net.layer_norm(x), 12))
            y = net.linear(net.gelu(net.linear(net.layer_norm(x), 4 * width)), width)
            x = net.add(x, y)
        return net.finish(net.linear(net.pick(net.layer_norm(x), 1, 0), 1000))

    return build


def swin_tiny(batch: int, side: int) -> onnx.ModelProto:
    """Z. Liu et al. (2021): windows of 7 by 7 tokens, every other layer shifted by three; its code scales the query."""
    net = Net("swin_tiny", batch)
    x = net.conv(net.images(side), 96, 4, 4, act="", pads=0, normed=False, bias=True)
    edge = side // 4
    x = net.layer_norm(net.transpose(net.reshape(x, batch, 96, edge * edge), 0, 2, 1))
    for stage, (count, heads) in enumerate(((2, 3), (2, 6), (6, 12), (2, 24))):
        for index in range(count):
            x = _swin_block(net, x, edge, heads, shift=3 if index % 2 and edge > 7 else 0)
        if stage < 3:
            x, edge = _merged(net, x, edge), edge // 2
    x = net.transpose(net.layer_norm(x), 0, 2, 1)
    return net.finish(net.classify(net.reshape(x, batch, net.shapes[x][1], edge, edge)))


def _swin_block(net: Net, x: str, edge: int, heads: int, shift: int, window: int = 7) -> str:
    batch, _, width = net.shapes[x]
    grid, count = edge // window, window * window
    y = net.reshape(net.layer_norm(x), batch, edge, edge, width)
    y = _rolled(net, y, shift)
    y = net.transpose(net.reshape(y, batch, grid, window, grid, window, width), 0, 1, 3, 2, 4, 5)
    y = net.reshape(y, batch * grid * grid, count, width)
    bias = net.table(1, heads, count, count)
    net.parameters += heads * ((2 * window - 1) ** 2 - count * count)
    mask = ""
    if shift:
        mask = net.parameter(grid * grid, 1, count, count, trained=False)
        net.shapes[mask] = (grid * grid, 1, count, count)
    y = net.attention(y, heads, bias=bias, mask=mask, early=True)
    y = net.transpose(net.reshape(y, batch, grid, grid, window, window, width), 0, 1, 3, 2, 4, 5)
    y = _rolled(net, net.reshape(y, batch, edge, edge, width), -shift)
    x = net.add(x, net.reshape(y, batch, edge * edge, width))
    return net.add(x, net.linear(net.gelu(net.linear(net.layer_norm(x), 4 * width)), width))


def _rolled(net: Net, x: str, shift: int) -> str:
    """Rows and columns moved round by ``shift``: the halves change places."""
    for axis in (1, 2) if shift else ():
        size = net.shapes[x][axis]
        cut = shift % size
        x = net.concat([net.slice(x, axis, cut, size), net.slice(x, axis, 0, cut)], axis)
    return x


def _merged(net: Net, x: str, edge: int) -> str:
    """Four neighbours side by side, then half as wide."""
    batch, _, width = net.shapes[x]
    grid = net.reshape(x, batch, edge, edge, width)
    parts = [net.slice(net.slice(grid, 1, row, edge, 2), 2, col, edge, 2) for col in (0, 1) for row in (0, 1)]
    joined = net.reshape(net.concat(parts, 3), batch, edge * edge // 4, 4 * width)
    return net.linear(net.layer_norm(joined), 2 * width, bias=False)
