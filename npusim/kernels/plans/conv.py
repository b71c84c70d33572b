"""Host plan of convolutions: constant filters packed once, the epilogue in the same sweep."""

from __future__ import annotations

from metadef.format import IMAGE_FORMATS, Format
from metadef.ops.geometry import ConvGeometry
from npusim.kernels.conv import Conv2D, PackedConv, conv2d, pack_conv, pack_stored_conv
from npusim.kernels.desc import Call
from npusim.kernels.plans.fusion import Epilogue, epilogue_of, extensible
from npusim.kernels.plans.site import NoFastKernel, Site
from npusim.kernels.plans.whole import plan_whole_conv


def plan_conv(site: Site) -> list[Call]:
    """Conv2D on NC1HWC0 (or C04) activations with constant filter and bias."""
    x, out, shape = site.input(0), site.output(), shape_of(site)
    if site.element(x) == "i8":
        return plan_whole_conv(site, shape)
    packed = packed_filter(site, shape)
    dtypes = (site.element(x), site.element(out))

    def make(address: int, rule: Epilogue) -> Call:
        return conv2d(shape, site.address(x), packed, address, dtypes, rule)

    return [extensible(site, make, epilogue_of(site, site.kernel.fused))]


def packed_filter(site: Site, shape: Conv2D) -> PackedConv:
    """Constant filter and bias in the kernels' order."""
    key = ("conv", shape.c, shape.o, shape.kernel, shape.groups)
    return site.packed(key, (1, 2), lambda: _packed(site, shape))


def _packed(site: Site, shape: Conv2D) -> PackedConv:
    """Filter and bias in the kernels' order, where it can be made in one pass over the stored filter by a call."""
    bias = site.wide_constant(2) if site.has(2) else None
    filters = site.input(1)
    if filters.desc.format is Format.FRACTAL_Z and site.is_constant(1):
        stored = pack_stored_conv(shape, site.address(filters), filters.desc.c0, site.element(filters), bias)
        if stored is not None:
            site.packing += stored[1]
            return stored[0]
    return pack_conv(shape, site.constant(1), bias, site.element(filters))


def shape_of(site: Site) -> Conv2D:
    """The kernels' view of a convolution. Raises NoFastKernel unless both sides are NC1HWC0 (or C04)."""
    x, out, g = site.kernel.multiplied, site.output().desc, ConvGeometry.of(site.kernel)
    if x is None:
        raise NoFastKernel("convolution of nothing")
    for desc in (x, out):
        if desc.format not in IMAGE_FORMATS:
            raise NoFastKernel(f"convolution on {desc.format.name}")
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
        c0_in=x.c0,
        c0_out=out.c0,
    )
