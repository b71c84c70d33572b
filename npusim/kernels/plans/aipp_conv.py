"""Host plan of convolutions over pictures: one image after another is made in a buffer of the host and convolved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from metadef.ops.geometry import PictureGeometry
from npusim.kernels.conv import conv2d
from npusim.kernels.desc import Call
from npusim.kernels.plans.aipp import picture_call
from npusim.kernels.plans.conv import packed_filter, shape_of
from npusim.kernels.plans.fusion import epilogue_of
from npusim.kernels.plans.site import NoFastKernel, Site

_SLACK_BYTES = 64
"""The convolution loads eight lanes of a pixel of four."""


def plan_aipp_conv(site: Site) -> list[Call]:
    """AippConv2D with constant filter and bias."""
    x, out, image = site.input(0), site.output(), site.kernel.multiplied
    if image is None or not site.is_constant(1):
        raise NoFastKernel("a convolution over pictures by a filter that is computed")
    shape, g = replace(shape_of(site), n=1), replace(PictureGeometry.of(site.kernel), n=1)
    one = replace(image, origin_shape=(1, *image.origin_shape[1:]))
    packed, rule = packed_filter(site, shape), epilogue_of(site, site.kernel.fused)
    buffer = np.zeros(one.payload_bytes + _SLACK_BYTES, np.uint8)
    made, count = buffer.ctypes.data, image.origin_shape[0]
    dtypes = (site.element(site.input(1)), site.element(out))
    calls: list[Call] = []
    for number in range(count):
        taken, left = (item.payload_bytes // count for item in (x, out))
        source, target = site.address(x) + number * taken, site.address(out) + number * left
        own = replace(rule, residual=rule.residual + number * left) if rule.residual else rule
        calls += [picture_call(g, site, (source, made), taken, one), conv2d(shape, made, packed, target, dtypes, own)]
        calls[-1].keep.append(buffer)
    return calls
