"""Packs constant weights into the order the register tiles read: units of output channels, taps, channels of a tap.

Layout: for each unit of `16 * vectors` output channels `[taps][tap channels][16 * vectors]`, then the groups left over
as units of 16. A tap is one (16-channel group, kernel row, kernel column), or a whole kernel row of the narrow
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
    return aligned(np.concatenate([head.ravel(), tail.ravel()]))


def conv_taps(weights: np.ndarray) -> np.ndarray:
    """OIHW -> [C/16 * KH * KW, 16, O padded to 16]."""
    w = pad_to(pad_to(weights, 0, 16), 1, 16)
    o, i, kh, kw = w.shape
    return w.reshape(o, i // 16, 16, kh, kw).transpose(1, 3, 4, 2, 0).reshape(-1, 16, o)


def narrow_taps(weights: np.ndarray) -> np.ndarray:
    """OIHW with few input channels -> [KH, KW * I, O padded to 16]."""
    w = pad_to(weights, 0, 16)
    o, i, kh, kw = w.shape
    return w.transpose(2, 3, 1, 0).reshape(kh, kw * i, o)


def grouped_taps(weights: np.ndarray, groups: int) -> tuple[np.ndarray, list[int]]:
    """Grouped OIHW -> (flat units of 16 output channels, first 16-channel input group of each unit).

    Every unit reads the same number of input groups; positions outside an output's own group hold zero weights.
    """
    o, per, kh, kw = weights.shape
    out_per = o // groups
    total = -(-per * groups // 16)
    spans = []
    for first in range(0, o, 16):
        last = min(first + 15, o - 1)
        low = first // out_per * per // 16
        high = (last // out_per * per + per - 1) // 16
        spans.append((low, high))
    width = max(high - low + 1 for low, high in spans)
    starts = [min(low, total - width) for low, _ in spans]
    units = []
    for unit, start in enumerate(starts):
        block = np.zeros((16, width * 16, kh, kw), weights.dtype)
        for lane in range(min(16, o - unit * 16)):
            channel = (unit * 16 + lane) // out_per * per - start * 16
            block[lane, channel : channel + per] = weights[unit * 16 + lane]
        units.append(conv_taps(block).ravel())
    return aligned(np.concatenate(units)), starts


def padded_bias(bias: np.ndarray | None, channels: int) -> np.ndarray:
    """fp32 bias padded with zeros to whole groups of 16 channels."""
    out = np.zeros(-(-channels // 16) * 16, np.float32)
    if bias is not None:
        out[:channels] = np.asarray(bias, np.float32).reshape(-1)
    return out


def aligned(array: np.ndarray) -> np.ndarray:
    """Contiguous copy starting on a 64-byte boundary."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    out = raw[skip : skip + array.nbytes].view(array.dtype)
    out[:] = array.ravel()
    return out
