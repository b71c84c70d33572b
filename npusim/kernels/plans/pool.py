"""Host plans of pooling over H and W on NC1HWC0."""

from __future__ import annotations

from metadef.format import Format
from metadef.ops.geometry import PoolGeometry
from npusim.kernels.desc import Call
from npusim.kernels.plans.site import NoFastKernel, Site
from npusim.kernels.pool import Pool2D, pool2d


def plan_pool(site: Site) -> list[Call]:
    """MaxPoolV3, AvgPoolV2 and GlobalAveragePool."""
    x, out = site.input(0), site.output()
    if x.desc.format is not Format.NC1HWC0 or out.desc.format is not Format.NC1HWC0 or x.desc.c0 % 8:
        raise NoFastKernel(f"pooling on {x.desc.format.name}")
    if site.kernel.fused:
        raise NoFastKernel("pooling with a fused chain")
    g, attrs = PoolGeometry.of(site.kernel), site.kernel.attrs
    windowed = not g.is_global
    shape = Pool2D(
        planes=x.desc.shape[0] * x.desc.shape[1],
        h=g.h,
        w=g.w,
        kernel=(g.kh, g.kw),
        strides=(g.stride_h, g.stride_w),
        pads=(g.pad_top, g.pad_left, g.pad_bottom, g.pad_right),
        ceil_mode=windowed and bool(attrs.get("ceil_mode", False)),
        count_include_pad=not attrs.get("exclusive", True),
        c0=x.desc.c0,
    )
    kind = "max" if site.kernel.op_type == "MaxPoolV3" else "avg"
    return [pool2d(shape, kind, site.address(x), site.address(out), site.element(x), site.options.saturate)]
