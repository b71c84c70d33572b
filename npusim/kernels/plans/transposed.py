"""Host plan of transposed convolutions: pixels are copied apart into zeros, then an ordinary convolution runs."""

from __future__ import annotations

from math import prod

import numpy as np

from metadef.ops.cube import turned_filter
from npusim.kernels.conv import Conv2D, PackedConv, conv2d, pack_conv
from npusim.kernels.desc import Call
from npusim.kernels.move import copy
from npusim.kernels.plans.conv import shape_of
from npusim.kernels.plans.fusion import epilogue_of
from npusim.kernels.plans.site import Site


def plan_transposed(site: Site) -> list[Call]:
    """Conv2DTransposeD on NC1HWC0 activations with constant filter and bias."""
    x, out, shape = site.input(0), site.output(), shape_of(site)
    packed = site.packed(
        ("turned", shape.c, shape.o, shape.kernel, shape.groups), (1, 2), lambda: _packed_filter(site, shape)
    )
    spread, spreading = _spread(site, shape)
    dtypes = (site.element(x), site.element(out))
    epilogue = epilogue_of(site, site.kernel.fused)
    call = conv2d(shape, spread.ctypes.data, packed, site.address(out), dtypes, epilogue)
    call.keep.append(spread)
    return [spreading, call]


def _packed_filter(site: Site, shape: Conv2D) -> PackedConv:
    bias = site.wide_constant(2) if site.has(2) else None
    return pack_conv(shape, turned_filter(site.constant(1), shape.groups), bias, site.element(site.input(1)))


def _spread(site: Site, shape: Conv2D) -> tuple[np.ndarray, Call]:
    """Zeros with room for the pixels of x between them, and the copy that puts those there."""
    x = site.input(0)
    *_, h, w, c0 = x.desc.shape
    planes, size = prod(x.desc.shape[:2]), x.desc.dtype.bytes
    step_h, step_w = site.kernel.attrs["strides"][2:]
    held = np.zeros(planes * shape.h * shape.w * c0, x.desc.dtype.numpy)
    pixel = c0 * size
    source = (h * w * pixel, w * pixel, pixel, size)
    target = (shape.h * shape.w * pixel, step_h * shape.w * pixel, step_w * pixel, size)
    return held, copy(size, site.address(x), source, held.ctypes.data, target, (planes, h, w, c0))
