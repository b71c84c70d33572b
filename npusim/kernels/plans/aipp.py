"""Host plan of AIPP: pictures of bytes to images in NC1HWC0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from metadef.format import IMAGE_FORMATS, TensorDesc
from metadef.ops.aipp import normal_table
from metadef.ops.geometry import PICTURE_BYTES, PictureGeometry
from metadef.ops.numeric import narrow
from npusim.kernels.aipp import Picture, Plane, aipp
from npusim.kernels.desc import Call
from npusim.kernels.plans.site import NoFastKernel, Site


def plan_aipp(site: Site) -> list[Call]:
    """Aipp into NC1HWC0."""
    out = site.output()
    if out.desc.format not in IMAGE_FORMATS or site.kernel.fused:
        raise NoFastKernel(f"pictures to {out.desc.format.name}")
    g = PictureGeometry.of(site.kernel)
    x = site.input(0)
    return [picture_call(g, site, (site.address(x), site.address(out)), x.payload_bytes // max(g.n, 1), out.desc)]


def picture_call(g: PictureGeometry, site: Site, places: tuple[int, int], image_bytes: int, desc: TensorDesc) -> Call:
    """The call that makes images, stored as ``desc`` says, of pictures of ``image_bytes`` each; ``places`` are host
    addresses of both."""
    attrs, dtype = site.kernel.attrs, desc.dtype
    overflow = "saturate" if site.options.saturate else "inf"
    planes = _planes(g, attrs)
    table, bits = normal_table(attrs), np.dtype(f"u{dtype.bytes}")
    rows = np.stack([table[max(plane.lane, 0)] for plane in planes])
    blank = np.zeros(desc.c0)
    blank[: g.c] = attrs["padding_value"]
    stored = [narrow(value, dtype, overflow).view(bits) for value in (rows, blank)]
    shape = Picture(
        n=g.n,
        h=g.h,
        w=g.w,
        border=(g.top, g.bottom, g.left, g.right),
        image_bytes=image_bytes,
        planes=planes,
        matrix=(*attrs["matrix"], *attrs["input_bias"], *attrs["output_bias"]) if attrs["csc_switch"] else (),
    )
    return aipp(shape, *places, stored[0], stored[1])


def _planes(g: PictureGeometry, attrs: Mapping[str, Any]) -> list[Plane]:
    """Channels in the order red, green, blue (or as they lie), X behind them."""
    if g.input_format == "YUV420SP_U8":
        start = g.first_row * g.src_w + g.first_column
        colours = g.src_h * g.src_w + g.first_row // 2 * g.src_w + g.first_column
        order = (1, 0) if attrs["rbuv_swap_switch"] else (0, 1)
        pairs = [Plane(colours + at, g.src_w, 2, 1, lane) for lane, at in enumerate(order, 1)]
        planes = [Plane(start, g.src_w, 1, 0, 0), *pairs]
    else:
        together = PICTURE_BYTES[g.input_format]
        places = {1: [0], 3: [0, 1, 2], 4: [1, 2, 3, 0]}[together]
        if attrs["ax_swap_switch"] and together == 4:
            places = [0, 1, 2, 3]
        if attrs["rbuv_swap_switch"] and together > 1:
            places[0], places[2] = places[2], places[0]
        start = g.first_row * g.row_bytes + g.first_column * together
        lanes = [1, 2, 3, 0] if g.c == 4 else range(4)
        planes = [Plane(start + place, g.row_bytes, together, 0, lane) for place, lane in zip(places, lanes)]
    return [Plane(p.offset, p.row, p.step, p.shift, p.lane if p.lane < g.c else -1) for p in planes]
