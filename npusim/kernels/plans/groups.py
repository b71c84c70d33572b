"""Host plan of grouped convolutions whose groups do not fill 16-channel blocks: each group gets blocks of its own.

The input's groups are copied apart, so that every one starts a block; the dense kernel then runs at full speed; the
results move back together. Lanes between the groups are zero and multiply zero weights of their own group only, so
that no group sees another one's infinities.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from metadef.format import TensorDesc, round_up
from metadef.ops.geometry import ConvGeometry
from npusim.kernels import move
from npusim.kernels.conv import Conv2D, conv2d, pack_conv
from npusim.kernels.desc import Call
from npusim.kernels.epilogue import Epilogue
from npusim.kernels.plans.site import Site
from npusim.kernels.weights import aligned

_BLOCK = 16
_MOST_PADDING = 16
"""How many times the multiplications may grow by padding: the lane-by-lane kernel is slower still by more than that."""


def wants_own_blocks(g: ConvGeometry) -> bool:
    """Whether groups straddle blocks and are wide enough to be padded to whole ones."""
    if g.groups == 1 or (g.group_c % _BLOCK == 0 and g.group_oc % _BLOCK == 0):
        return False
    return round_up(g.group_c, _BLOCK) * round_up(g.group_oc, _BLOCK) <= _MOST_PADDING * g.group_c * g.group_oc


def plan_groups(
    site: Site, shape: Conv2D, filters: np.ndarray, bias: np.ndarray | None, epilogue: Epilogue
) -> list[Call]:
    """Copies apart, the convolution over padded groups, copies together; the epilogue may not add a residual."""
    x, out, groups = site.input(0), site.output(), shape.groups
    wide = replace(shape, c=groups * _padded(shape.c // groups), o=groups * _padded(shape.o // groups))
    source, target = (_room(operand.desc, width) for operand, width in ((x, wide.c), (out, wide.o)))
    packed = pack_conv(wide, _spread_filter(filters, groups), _spread_bias(bias, groups))
    dtypes = (site.element(x), site.element(out))
    main = conv2d(wide, source.ctypes.data, packed, target.ctypes.data, dtypes, epilogue)
    main.keep.extend((source, target))
    apart = _Channels(x.desc, site.address(x), shape.c), _Channels(x.desc, source.ctypes.data, wide.c)
    together = _Channels(out.desc, target.ctypes.data, wide.o), _Channels(out.desc, site.address(out), shape.o)
    calls: list[Call] = []
    for group in range(groups):
        calls += _moved(*apart, group * shape.c // groups, group * wide.c // groups, shape.c // groups)
    calls.append(main)
    for group in range(groups):
        calls += _moved(*together, group * wide.o // groups, group * shape.o // groups, shape.o // groups)
    return calls + together[1].clear_rest()


def _padded(channels: int) -> int:
    return round_up(channels, _BLOCK)


def _room(desc: TensorDesc, channels: int) -> np.ndarray:
    n, _, h, w, _ = desc.shape
    return aligned(np.zeros(n * channels * h * w, desc.dtype.numpy))


def _spread_filter(filters: np.ndarray, groups: int) -> np.ndarray:
    """OIHW filters with each group's inputs and outputs padded to whole blocks."""
    oc, group_c, kh, kw = filters.shape
    wide = np.zeros((groups, _padded(oc // groups), _padded(group_c), kh, kw), filters.dtype)
    wide[:, : oc // groups, :group_c] = filters.reshape(groups, oc // groups, group_c, kh, kw)
    return wide.reshape(-1, *wide.shape[2:])


def _spread_bias(bias: np.ndarray | None, groups: int) -> np.ndarray | None:
    if bias is None:
        return None
    wide = np.zeros((groups, _padded(bias.size // groups)), np.float32)
    wide[:, : bias.size // groups] = bias.reshape(groups, -1)
    return wide.reshape(-1)


class _Channels:
    """A stack of NC1HWC0 images at a host address, seen by channel."""

    def __init__(self, desc: TensorDesc, address: int, channels: int) -> None:
        n, _, h, w, self.c0 = desc.shape
        self.size = desc.dtype.bytes
        self.address, self.images, self.pixels, self.channels = address, n, h * w, channels
        self.pixel = self.c0 * self.size
        self.block = self.pixels * self.pixel
        self.image = -(-channels // self.c0) * self.block
        self.zero = desc.dtype.numpy.type(0)

    def at(self, channel: int) -> int:
        """Address of a channel's first pixel."""
        return self.address + channel // self.c0 * self.block + channel % self.c0 * self.size

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """Bytes from image to image, block to block, pixel to pixel, lane to lane."""
        return self.image, self.block, self.pixel, self.size

    def clear_rest(self) -> list[Call]:
        """Zeros in the lanes behind the last channel."""
        rest = -self.channels % self.c0
        if not rest:
            return []
        image, _, pixel, lane = self.strides
        return [move.fill(self.zero, self.at(self.channels), (image, pixel, lane), (self.images, self.pixels, rest))]


def _moved(source: _Channels, target: _Channels, start: int, to: int, count: int) -> list[Call]:
    """Channels start..start+count-1 of one become to..to+count-1 of the other, in runs that cross no block border.

    The runs of whole periods of C0 channels repeat from block to block: one copy each.
    """
    c0, calls = source.c0, []
    periods, rest = divmod(count, c0)
    for first, length, repeats in ((0, c0, periods), (periods * c0, rest, 1)):
        done = 0
        while repeats and done < length:
            here, there = start + first + done, to + first + done
            run = min(length - done, c0 - here % c0, c0 - there % c0)
            box = (source.images, repeats, source.pixels, run)
            calls.append(move.copy(source.size, source.at(here), source.strides, target.at(there), target.strides, box))
            done += run
    return calls
