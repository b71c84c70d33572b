"""Weights of a convolution in the order its tiles read them, and which form of the kernel they are for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.kernels.conv_pieces import made_of_pieces, pack_pieces, whole_blocks
from npusim.kernels.conv_scratch import Conv2D
from npusim.kernels.cpu import host
from npusim.kernels.desc import element_name
from npusim.kernels.weights import conv_taps, lane_taps, narrow_taps, pack_panels, padded_bias, widened

_NARROW_LIMIT = 4  # input channels up to which the first-layer form serves


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
        return "narrow" if shape.c <= _NARROW_LIMIT else "dense"
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
