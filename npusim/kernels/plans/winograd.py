"""Host plan of convolutions: by the algorithm that the task names, or by a faster one that is as exact.

A task that names Winograd's algorithm gets what the device gives: where the cube's operands have 16 bits, the
transformed filter (in the weights already) and the transformed image are rounded. A task that names the direct one may
be computed as ``npusim.kernels.plans.algorithm`` says. There a sum that is not finite would spoil a whole tile: such a
task is computed again by its twin, which is why it must not overwrite its own operands.
"""

from __future__ import annotations

import numpy as np

from metadef.format import WINOGRAD_FORMATS, Format, winograd_planes
from metadef.winograd import scale_of
from npusim.kernels.plans.algorithm import host_algorithm, packed_filter
from npusim.kernels.plans.conv import plan_conv, shape_of
from npusim.kernels.plans.fusion import Call, Epilogue, epilogue_of, extensible
from npusim.kernels.plans.site import Site
from npusim.kernels.winograd import PackedWinograd, pack_winograd, winograd2d


def plan_convolution(site: Site) -> list[Call]:
    """Conv2D on NC1HWC0 activations with constant filter and bias."""
    fmt = site.input(1).desc.format
    if fmt in WINOGRAD_FORMATS:
        return _named(site, WINOGRAD_FORMATS[fmt])
    algorithm = host_algorithm(shape_of(site), site.options) if _replaceable(site) else "direct"
    if algorithm == "direct":
        return plan_conv(site)
    packed = site.packed(algorithm, (1, 2), lambda: packed_filter(site.wide_constant(1), algorithm, _bias(site)))
    return [_call(site, packed, "guarded", 1.0)]


def _named(site: Site, m: int) -> list[Call]:
    """The device's own computation."""
    half = site.element(site.input(0)) == "f16"
    rounding = ("saturate" if site.options.saturate else "half") if half else "none"
    desc = site.input(1).desc
    packed = site.packed(
        ("named", m), (1, 2), lambda: pack_winograd(winograd_planes(site.stored_constant(1), desc), m, _bias(site))
    )
    return [_call(site, packed, rounding, scale_of(m, half))]


def _replaceable(site: Site) -> bool:
    """Whether a direct task may be computed in another way: float operands that the result does not overwrite."""
    out = site.output().address
    apart = all(item is None or item.address != out for item in site.task.inputs)
    apart = apart and site.input(0).desc.format is Format.NC1HWC0
    floats = site.input(0).desc.dtype.is_float and site.input(1).desc.dtype.is_float
    return apart and floats and site.is_constant(1)


def _bias(site: Site) -> np.ndarray | None:
    return site.wide_constant(2) if site.has(2) else None


def _call(site: Site, packed: PackedWinograd, rounding: str, scale: float) -> Call:
    x, out = site.input(0), site.output()
    shape = shape_of(site)
    dtypes = (site.element(x), site.element(out))

    def make(address: int, rule: Epilogue) -> Call:
        return winograd2d(shape, site.address(x), packed, address, dtypes, rule, rounding, scale)

    return extensible(site, make, epilogue_of(site, site.kernel.fused))
