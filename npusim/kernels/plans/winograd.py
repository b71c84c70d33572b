"""Host plan of convolutions by the algorithm that their task names: directly, or by Winograd's.

What the device rounds is rounded here too: where the cube's operands have 16 bits, the transformed filter (in the
weights already) and the transformed image.
"""

from __future__ import annotations

from metadef.format import WINOGRAD_FORMATS, winograd_planes
from metadef.ops.geometry import ConvGeometry
from metadef.winograd import scale_of
from npusim.kernels.desc import Call
from npusim.kernels.plans.conv import epilogue_of, plan_conv, shape_of
from npusim.kernels.plans.site import Site
from npusim.kernels.winograd import pack_winograd, winograd2d


def plan_convolution(site: Site) -> list[Call]:
    """Conv2D on NC1HWC0 activations with constant filter and bias."""
    filters = site.input(1)
    if filters.desc.format not in WINOGRAD_FORMATS:
        return plan_conv(site)
    x, out = site.input(0), site.output()
    shape = shape_of(site, ConvGeometry.of(site.kernel))
    m = WINOGRAD_FORMATS[filters.desc.format]
    bias = site.constant(2) if site.has(2) else None
    packed = pack_winograd(winograd_planes(site.stored_constant(1), filters.desc), m, bias)
    dtypes = (site.element(x), site.element(out))
    half = dtypes[0] == "f16"
    rounding = ("saturate" if site.options.saturate else "half") if half else "none"
    epilogue = epilogue_of(site, site.kernel.fused)
    places = (site.address(x), packed, site.address(out))
    return [winograd2d(shape, *places, dtypes, epilogue, rounding, scale_of(m, half))]
