"""Host plan of TransData: changes of storage format."""

from __future__ import annotations

from metadef.format import FRACTAL_ROWS, IMAGE_FORMATS, SMALL_CHANNELS, Format, round_up
from npusim.kernels import transdata
from npusim.kernels.desc import Call
from npusim.kernels.plans.site import NoFastKernel, Site

_RAW_NAMES = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}


def plan_trans_data(site: Site) -> list[Call]:
    """TransData between a plain layout and NC1HWC0 or FRACTAL_NZ."""
    x, out = site.input(0), site.output()
    if x.desc.is_plain == out.desc.is_plain:
        raise NoFastKernel(f"TransData from {x.desc.format.name} to {out.desc.format.name}")
    flat, blocked = (x, out) if x.desc.is_plain else (out, x)
    desc = blocked.desc
    element = _RAW_NAMES[desc.dtype.bytes]
    address, stored = site.address(flat), None
    if desc.c0 % 8 and desc.c0 != SMALL_CHANNELS:
        raise NoFastKernel(f"channel blocks of {desc.c0}")
    if desc.format is Format.FRACTAL_NZ:
        plain = transdata.Plain.matrix(address, element, desc.origin_shape)
        stored = round_up(desc.origin_shape[-2], FRACTAL_ROWS)
    elif desc.format in IMAGE_FORMATS and desc.origin_format is Format.NHWC:
        plain = transdata.Plain.nhwc(address, element, desc.origin_shape)
    elif desc.format in IMAGE_FORMATS and desc.origin_format is not Format.HWCN:
        plain = transdata.Plain.nchw(address, element, desc.origin_shape)
    else:
        raise NoFastKernel(f"TransData of {desc.format.name} from {desc.origin_format.name}")
    if flat is x:
        call = transdata.to_blocked(plain, site.address(out), element, desc.c0, stored)
        if desc.dtype.is_float and not site.options.saturate:
            call.preceded_by = lambda dtype, address: transdata.to_blocked(
                transdata.retyped(plain, dtype, site.device.host_address(address)),
                site.address(out),
                site.element(out),
                desc.c0,
                stored,
            )
        return [call]
    return [transdata.from_blocked(site.address(x), element, desc.c0, plain, stored)]
