"""Host plan of moves along the channels of NC1HWC0 that end inside blocks."""

from __future__ import annotations

from math import prod

from metadef.ops.channels import lane_maps
from metadef.program import Operand
from npusim.kernels.desc import Call
from npusim.kernels.lanes import GROUP, Blocked, lanes
from npusim.kernels.plans.move import byte_strides, onto
from npusim.kernels.plans.site import NoFastKernel, Site


def plan_lanes(site: Site) -> list[Call]:
    """Any move of single lanes: one call a result."""
    maps = lane_maps(site.kernel)
    if maps is None or site.kernel.fused:
        raise NoFastKernel(f"{site.kernel.op_type} with a fused chain")
    desc = site.output().desc
    if desc.c0 % GROUP:
        raise NoFastKernel(f"channel blocks of {desc.c0}")
    n, _, *rest = desc.origin_shape
    sources = [_blocked(site, site.input(slot)) for slot in range(len(site.task.inputs))]
    return [
        lanes(desc.dtype.bytes, sources, _blocked(site, result), table, n, prod(rest), desc.c0)
        for result, table in zip(site.task.outputs, maps, strict=True)
    ]


def plan_shuffle(site: Site) -> list[Call]:
    """ShuffleChannel of a plain tensor: groups and their channels change places."""
    x, group = site.plain_operand().desc, site.kernel.attrs["group"]
    n, c, *rest = x.origin_shape
    image, channel, *inner = byte_strides(x)
    walk = (image, channel, c // group * channel, *inner)
    return onto(site, site.address(site.input(0)), walk, (n, c // group, group, *rest))


def _blocked(site: Site, operand: Operand) -> Blocked:
    return Blocked(site.address(operand), operand.desc.origin_shape[1])
