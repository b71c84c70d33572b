"""Host plan of bilinear interpolation."""

from __future__ import annotations

from math import prod

from metadef.ops.resize import bilinear_taps
from npusim.kernels.desc import Call
from npusim.kernels.plans.site import Site
from npusim.kernels.resize import bilinear


def plan_bilinear(site: Site) -> list[Call]:
    """ResizeBilinearV2D of plain images and of NC1HWC0."""
    x, attrs = site.moved_operand(), site.kernel.attrs
    shape = x.desc.origin_shape
    h, w = ((t.first, t.second, t.first_weight, t.second_weight) for t in (
        bilinear_taps(size, made, attrs) for size, made in zip(shape[2:], attrs["size"], strict=True)
    ))  # fmt: skip
    lanes = 1 if x.desc.is_plain else x.desc.c0
    planes = prod(x.desc.shape[:2])
    addresses = site.address(x), site.address(site.output())
    sizes = (shape[2], shape[3])
    return [bilinear(*addresses, site.element(x), planes, sizes, (h, w), lanes, site.options.saturate)]
