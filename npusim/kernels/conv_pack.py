"""Weights of a convolution in the order its tiles read them, and which form of the kernel they are for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.kernels.conv_pieces import made_of_pieces, pack_pieces, whole_blocks
from npusim.kernels.conv_scratch import Conv2D
from npusim.kernels.cpu import host
from npusim.kernels.desc import SIZE, Call, element_name
from npusim.kernels.move import copy
from npusim.kernels.weights import aligned_empty, conv_taps, lane_taps, narrow_taps, pack_panels, padded_bias, widened

_MEMORY: dict[int, np.dtype] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}
NARROW_LIMIT = 4  # input channels up to which the first-layer form serves


@dataclass
class PackedConv:
    """Weights of one convolution in tile order, made once at load.

    kind: `dense` (16-channel input blocks times output channels), `narrow` (few input channels), `depthwise`, `pieces`
    (groups that straddle 16-channel blocks: see conv_pieces), or `lanes` (small groups that share a block, each lane
    reading the channels of its own group).
    """

    weights: np.ndarray
    dtype: str
    bias: np.ndarray
    vectors: int
    kind: str


def _kind(shape: Conv2D) -> str:
    if shape.groups == 1:
        return "narrow" if shape.c <= NARROW_LIMIT else "dense"
    if shape.groups == shape.c == shape.o:
        return "depthwise"
    if made_of_pieces(shape):
        return "pieces"
    return "dense" if whole_blocks(shape) else "lanes"


def pack_conv(
    shape: Conv2D, weights: np.ndarray, bias: np.ndarray | None = None, dtype: str | None = None
) -> PackedConv:
    """Pack OIHW weights (fp16, fp32, or bits of bfloat16 with `dtype="bf16"`) and an fp32 bias for `conv2d`."""
    shape.check()
    want = (shape.o, shape.c // shape.groups, *shape.kernel)
    if weights.shape != want:
        raise ValueError(f"weights have shape {weights.shape}, expected OIHW {want}")
    kind = _kind(shape)
    vectors = 1 if shape.groups > 1 else host().panel // 16
    if kind in ("depthwise", "lanes"):
        data = lane_taps(weights)
    elif kind == "pieces":
        data, dtype = pack_pieces(shape, widened(weights, dtype)), "f32"
    else:
        data = pack_panels(narrow_taps(weights) if kind == "narrow" else conv_taps(weights), vectors)
    return PackedConv(data, dtype or element_name(data.dtype), padded_bias(bias, shape.o), vectors, kind)


def pack_stored_conv(
    shape: Conv2D, fractals: int, c0: int, dtype: str, bias: np.ndarray | None = None
) -> tuple[PackedConv, list[Call]] | None:
    """What `pack_conv` makes, from weights as the device stores them, and the calls that fill it; None if they cannot.

    `fractals` is the address of FRACTAL_Z [C/c0, KH, KW, O/16, 16, c0] with zeros for missing channels. The calls read
    it once, in one pass; only the plain form (`dense`, one group) has them.
    """
    blocks = -(-shape.c // c0)
    if shape.groups > 1 or _kind(shape) != "dense" or c0 not in (8, 16) or blocks * c0 % 16:
        return None
    vectors, size = host().panel // 16, SIZE[dtype]
    window, groups, units = shape.kernel[0] * shape.kernel[1], blocks * c0 // 16, -(-shape.o // 16)
    fractal, taps = 16 * c0 * size, window * groups
    packed = aligned_empty(taps * units * 256, _MEMORY[size])
    full, calls = units // vectors, []
    # Dimensions: unit, vector in it, group of 16 channels, window, block of the group, channel in it, output.
    for first, count, wide in ((0, full, vectors), (full * vectors, units - full * vectors, 1)):
        if count == 0:
            continue
        line = wide * 16 * size
        inner, tap = window * units * fractal, units * fractal
        source = (wide * fractal, fractal, 16 // c0 * inner, tap, inner, size, c0 * size)
        target = (taps * 16 * line, 16 * size, window * 16 * line, 16 * line, c0 * line, line, size)
        box = (count, wide, groups, window, 16 // c0, c0, 16)
        calls.append(
            copy(size, fractals + first * fractal, source, packed.ctypes.data + first * taps * 256 * size, target, box)
        )
    return PackedConv(packed, dtype, padded_bias(bias, shape.o), vectors, "dense"), calls
