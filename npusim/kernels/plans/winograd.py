"""Host plans of convolutions by Winograd's algorithm.

A task that names it gets what the device gives: where the cube's operands have 16 bits, the transformed filter (in the
weights already) and the transformed image are rounded. Where it replaces direct summation, a sum that is not finite
would spoil a whole tile: such a task is computed again by its twin.
"""

from __future__ import annotations

import numpy as np

from metadef.format import winograd_planes
from metadef.winograd import scale_of
from npusim.kernels.plans.algorithm import packed_filter
from npusim.kernels.plans.conv import shape_of
from npusim.kernels.plans.fusion import Call, Epilogue, epilogue_of, extensible
from npusim.kernels.plans.site import Site
from npusim.kernels.winograd import PackedWinograd, pack_winograd, winograd2d


def plan_winograd(site: Site, algorithm: str) -> list[Call]:
    """A direct task by Winograd's algorithm, transforms unrounded."""
    packed = site.packed(algorithm, (1, 2), lambda: packed_filter(site.wide_constant(1), algorithm, _bias(site)))
    return [_call(site, packed, "guarded", 1.0)]


def plan_named(site: Site, m: int) -> list[Call]:
    """The device's own computation."""
    half = site.element(site.input(0)) == "f16"
    rounding = ("saturate" if site.options.saturate else "half") if half else "none"
    desc = site.input(1).desc
    packed = site.packed(
        ("named", m), (1, 2), lambda: pack_winograd(winograd_planes(site.stored_constant(1), desc), m, _bias(site))
    )
    return [_call(site, packed, rounding, scale_of(m, half))]


def _bias(site: Site) -> np.ndarray | None:
    return site.wide_constant(2) if site.has(2) else None


def _call(site: Site, packed: PackedWinograd, rounding: str, scale: float) -> Call:
    x, out = site.input(0), site.output()
    shape = shape_of(site)
    dtypes = (site.element(x), site.element(out))

    def make(address: int, rule: Epilogue) -> Call:
        return winograd2d(shape, site.address(x), packed, address, dtypes, rule, rounding, scale)

    return extensible(site, make, epilogue_of(site, site.kernel.fused))
