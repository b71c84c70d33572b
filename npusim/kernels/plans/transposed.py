"""Host plan of transposed convolutions: one dense convolution for every place of a result pixel within a stride.

The pixels of a result that lie a stride apart read the same taps of the filter, as neighbours read neighbouring pixels
of x. Their convolution has those taps alone, in the order of the whole filter, so that sums are those over an image
with zeros between its pixels.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np

from metadef.ops.cube import turned_filter
from npusim.kernels.conv import Conv2D, PackedConv, conv2d, pack_conv
from npusim.kernels.desc import Call
from npusim.kernels.move import copy
from npusim.kernels.plans.conv import shape_of
from npusim.kernels.plans.fusion import epilogue_of
from npusim.kernels.plans.site import Site


@dataclass(frozen=True)
class Phase:
    """Along one axis: result pixels `first`, `first + stride`, … (`count`), filter taps `taps`, dilation, padding."""

    first: int
    count: int
    taps: range
    dilation: int
    before: int
    after: int

    @property
    def size(self) -> int:
        """Taps of the phase's convolution: where the filter has none, one of zeros that lies outside the image."""
        return max(1, len(self.taps))


def phases(size: int, kernel: int, stride: int, pad: int, dilation: int, result: int) -> list[Phase]:
    """Phases of one axis that have pixels; `pad` zeros precede the `size` pixels of x, which lie `stride` apart."""
    common, found = gcd(stride, dilation), []
    for first in range(min(stride, result)):
        count = -(-(result - first) // stride)
        tap = next((t for t in range(min(kernel, stride)) if (first + t * dilation - pad) % stride == 0), None)
        if tap is None:
            found.append(Phase(first, count, range(0), 1, -size, count))
            continue
        taps = range(tap, kernel, stride // common)
        reach = (len(taps) - 1) * (dilation // common)
        before = (pad - first - tap * dilation) // stride
        found.append(Phase(first, count, taps, dilation // common, before, count + reach - size - before))
    return found


def plan_transposed(site: Site) -> list[Call]:
    """Conv2DTransposeD on NC1HWC0 activations with constant filter and bias."""
    x, out, whole = site.input(0), site.output(), shape_of(site)
    steps = site.kernel.attrs["strides"][2:]
    sizes = x.desc.shape[2:4]
    axes = [
        phases(sizes[a], whole.kernel[a], steps[a], whole.pads[a], whole.dilations[a], whole.out_hw[a]) for a in (0, 1)
    ]
    dtypes, rule = (site.element(x), site.element(out)), epilogue_of(site, site.kernel.fused)
    calls: list[Call] = []
    for down in axes[0]:
        for right in axes[1]:
            shape = _part_shape(whole, sizes, down, right)
            packed = site.packed(
                ("turned", whole.c, whole.o, whole.kernel, whole.groups, down, right),
                (1, 2),
                functools.partial(_packed_filter, site, shape, down, right),
            )
            if tuple(steps) == (1, 1):
                return [conv2d(shape, site.address(x), packed, site.address(out), dtypes, rule)]
            held = np.zeros(prod(out.desc.shape[:2]) * down.count * right.count * out.desc.c0, out.desc.dtype.numpy)
            place = held.ctypes.data
            if rule.residual:
                calls.append(_moved(site, (down, right), steps, rule.residual, place, inwards=True))
            own = replace(rule, residual=place if rule.residual else 0)
            call = conv2d(shape, site.address(x), packed, place, dtypes, own)
            call.keep.append(held)
            calls += [call, _moved(site, (down, right), steps, site.address(out), place, inwards=False)]
    return calls


def _part_shape(whole: Conv2D, sizes: tuple[int, ...], down: Phase, right: Phase) -> Conv2D:
    return replace(
        whole,
        h=sizes[0],
        w=sizes[1],
        kernel=(down.size, right.size),
        pads=(down.before, right.before, down.after, right.after),
        dilations=(down.dilation, right.dilation),
    )


def _packed_filter(site: Site, shape: Conv2D, down: Phase, right: Phase) -> PackedConv:
    bias = site.wide_constant(2) if site.has(2) else None
    rows, columns = (slice(axis.taps.start, axis.taps.stop, axis.taps.step) for axis in (down, right))
    turned = turned_filter(site.constant(1), shape.groups)[:, :, rows, columns]
    if 0 in turned.shape:
        turned = np.zeros((*turned.shape[:2], *shape.kernel), turned.dtype)
    return pack_conv(shape, np.ascontiguousarray(turned), bias, site.element(site.input(1)))


def _moved(
    site: Site, part: tuple[Phase, Phase], steps: tuple[int, ...], spread: int, dense: int, inwards: bool
) -> Call:
    """Copy between pixels of a tensor laid out like the result and the same ones lying together."""
    desc = site.output().desc
    *_, h, w, c0 = desc.shape
    (down, right), size = part, desc.dtype.bytes
    pixel = c0 * size
    rows = (down.count * right.count * pixel, right.count * pixel, pixel, size)
    apart = (h * w * pixel, steps[0] * w * pixel, steps[1] * pixel, size)
    spread += (down.first * w + right.first) * pixel
    shape = (prod(desc.shape[:2]), down.count, right.count, c0)
    if inwards:
        return copy(size, spread, apart, dense, rows, shape)
    return copy(size, dense, rows, spread, apart, shape)
