"""Packs constant weights into the order the register tiles read: units of output channels, taps, channels of a tap.

Layout: for each unit of `16 * vectors` output channels `[taps][tap channels][16 * vectors]`, then the groups left over
as units of 16. A tap is one (16-channel group, kernel row, kernel column), with fewer channels in the narrow
first-layer form. The accumulation order follows from it: channel group, kernel row, kernel column, channel.
"""

from __future__ import annotations

import numpy as np


def pad_to(array: np.ndarray, axis: int, multiple: int) -> np.ndarray:
    """Zero-pad one axis up to a multiple."""
    short = -array.shape[axis] % multiple
    if not short:
        return array
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, short)
    return np.pad(array, widths)


def pack_panels(taps: np.ndarray, vectors: int) -> np.ndarray:
    """[taps, tap channels, output channels] (multiple of 16) -> flat packed array of the same dtype."""
    groups = taps.shape[2] // 16
    full = groups // vectors * vectors * 16
    head = taps[:, :, :full].reshape(taps.shape[0], taps.shape[1], -1, 16 * vectors).transpose(2, 0, 1, 3)
    tail = taps[:, :, full:].reshape(taps.shape[0], taps.shape[1], -1, 16).transpose(2, 0, 1, 3)
    packed = aligned_empty(taps.size, taps.dtype)
    packed[: head.size].reshape(head.shape)[...] = head
    packed[head.size :].reshape(tail.shape)[...] = tail
    return packed


def conv_taps(weights: np.ndarray) -> np.ndarray:
    """OIHW -> [C/16 * KH * KW, 16, O padded to 16]."""
    w = pad_to(pad_to(weights, 0, 16), 1, 16)
    o, i, kh, kw = w.shape
    return w.reshape(o, i // 16, 16, kh, kw).transpose(1, 3, 4, 2, 0).reshape(-1, 16, o)


def narrow_taps(weights: np.ndarray) -> np.ndarray:
    """OIHW with few input channels -> [KH * KW, I, O padded to 16]."""
    w = pad_to(weights, 0, 16)
    o, i, kh, kw = w.shape
    return w.transpose(2, 3, 1, 0).reshape(kh * kw, i, o)


def lane_taps(weights: np.ndarray) -> np.ndarray:
    """Grouped OIHW -> flat [O/16][taps][16 output lanes]; taps by 16-channel block, kernel row, column, channel."""
    w = pad_to(weights, 0, 16)
    o, per, kh, kw = w.shape
    split = w.reshape(-1, 16, per, kh, kw)
    blocks = [split[:, :, at : at + 16].transpose(0, 3, 4, 2, 1).reshape(o // 16, -1, 16) for at in range(0, per, 16)]
    return aligned(np.concatenate(blocks, axis=1))


def widened(weights: np.ndarray, dtype: str | None) -> np.ndarray:
    """Weights as fp32; `dtype` "bf16" says that they are bits of bfloat16."""
    if dtype == "bf16":
        return (weights.astype(np.uint32) << 16).view(np.float32)
    return weights.astype(np.float32, copy=False)


def padded_bias(bias: np.ndarray | None, channels: int) -> np.ndarray:
    """fp32 bias padded with zeros to whole groups of 16 channels."""
    out = np.zeros(-(-channels // 16) * 16, np.float32)
    if bias is not None:
        out[:channels] = np.asarray(bias, np.float32).reshape(-1)
    return out


def aligned(array: np.ndarray) -> np.ndarray:
    """Contiguous copy starting on a 64-byte boundary."""
    out = aligned_empty(array.size, array.dtype)
    out.reshape(array.shape)[...] = array
    return out


def aligned_empty(size: int, dtype: np.dtype) -> np.ndarray:
    """Flat uninitialised array starting on a 64-byte boundary."""
    raw = np.empty(size * dtype.itemsize + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + size * dtype.itemsize].view(dtype)
