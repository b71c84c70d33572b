"""Host plans of reductions over any axes."""

from __future__ import annotations

from metadef.ops.geometry import normal_axis
from metadef.ops.reduce import reduced_axes
from npusim.kernels.desc import Call
from npusim.kernels.elementwise import View
from npusim.kernels.plans.site import NoFastKernel, Site
from npusim.kernels.reduce import reduce

REDUCTIONS = {
    "ArgMaxD": "argmax",
    "ArgMinD": "argmin",
    "ReduceMaxD": "max",
    "ReduceMeanD": "mean",
    "ReduceMinD": "min",
    "ReduceProdD": "prod",
    "ReduceSumD": "sum",
}


def plan_reduction(site: Site) -> list[Call]:
    """Reductions over any axes, and the index of an extreme along one."""
    x, out = site.plain_operand(), site.output()
    shape, attrs = x.desc.origin_shape, site.kernel.attrs
    axes = reduced_axes(len(shape), attrs) if "axes" in attrs else (normal_axis(attrs["dimension"], len(shape)),)
    source = View.dense(site.address(x), site.element(x), shape)
    operation, target = REDUCTIONS[site.kernel.op_type], (site.address(out), site.element(out))
    try:
        return [reduce(operation, source, shape, axes, *target, saturate=site.options.saturate)]
    except ValueError as error:
        raise NoFastKernel(str(error)) from None
