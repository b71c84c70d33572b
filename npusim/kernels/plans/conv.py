"""Host plan of convolutions: constant filters packed once, the epilogue in the same sweep."""

from __future__ import annotations

from math import prod

import numpy as np

from metadef.format import Format
from metadef.ops.cube import turned_filter
from metadef.ops.geometry import ConvGeometry
from npusim.kernels.conv import Conv2D, conv2d, pack_conv
from npusim.kernels.desc import Call
from npusim.kernels.move import copy as copy_box
from npusim.kernels.plans.fusion import epilogue_of
from npusim.kernels.plans.site import NoFastKernel, Site
from npusim.kernels.weights import aligned


def plan_conv(site: Site) -> list[Call]:
    """Conv2D and Conv2DTransposeD on NC1HWC0 activations with constant filter and bias."""
    x, out = site.input(0), site.output()
    g = ConvGeometry.of(site.kernel)
    shape = shape_of(site)
    bias = site.constant(2) if site.has(2) else None
    filters = site.constant(1)
    dtypes = (site.element(x), site.element(out))
    epilogue = epilogue_of(site, site.kernel.fused)
    if site.kernel.op_type != "Conv2DTransposeD":
        return [conv2d(shape, site.address(x), pack_conv(shape, filters, bias), site.address(out), dtypes, epilogue)]
    spread, copy = _spread(site, g)
    packed = pack_conv(shape, turned_filter(filters, g.groups), bias)
    call = conv2d(shape, spread.ctypes.data, packed, site.address(out), dtypes, epilogue)
    call.keep.append(spread)
    return [copy, call]


def _spread(site: Site, g: ConvGeometry) -> tuple[np.ndarray, Call]:
    """Zeros with room for the pixels of x between them, and the copy that puts those there."""
    x = site.input(0)
    *_, h, w, c0 = x.desc.shape
    planes = prod(x.desc.shape[:2])
    size = x.desc.dtype.bytes
    held = aligned(np.zeros(planes * g.h * g.w * c0, x.desc.dtype.numpy))
    pixel = c0 * size
    source = (h * w * pixel, w * pixel, pixel, size)
    target = (g.h * g.w * pixel, g.spread_h * g.w * pixel, g.spread_w * pixel, size)
    return held, copy_box(size, site.address(x), source, held.ctypes.data, target, (planes, h, w, c0))


def shape_of(site: Site) -> Conv2D:
    """The kernels' view of a convolution. Raises NoFastKernel unless activation and result are NC1HWC0."""
    x, out, g = site.input(0), site.output(), ConvGeometry.of(site.kernel)
    for operand in (x, out):
        if operand.desc.format is not Format.NC1HWC0:
            raise NoFastKernel(f"convolution on {operand.desc.format.name}")
    return Conv2D(
        n=g.n,
        c=g.c,
        h=g.h,
        w=g.w,
        o=g.oc,
        kernel=(g.kh, g.kw),
        strides=(g.stride_h, g.stride_w),
        pads=(g.pad_top, g.pad_left, g.pad_bottom, g.pad_right),
        dilations=(g.dilation_h, g.dilation_w),
        groups=g.groups,
        c0_in=x.desc.c0,
        c0_out=out.desc.c0,
    )
