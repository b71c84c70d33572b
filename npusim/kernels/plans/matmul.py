"""Host plan of matrix products: B packed once where it is constant, else by a task of its own before the product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from metadef.ops.geometry import MatMulGeometry
from npusim.kernels.desc import Call
from npusim.kernels.matmul import Batch, PackedB, matmul, pack_b_at_run_time, pack_matmul
from npusim.kernels.plans.fusion import epilogue_of, extensible
from npusim.kernels.plans.matrices import bias_of, stored_matrices
from npusim.kernels.plans.site import NoFastKernel, Site
from npusim.kernels.plans.whole import plan_whole_matmul


def plan_matmul(site: Site) -> list[Call]:
    """MatMulV2 and BatchMatMulV2: A, result and computed B plain or in FRACTAL_NZ, a constant B in any format."""
    a, out = site.input(0), site.output()
    if site.element(a) == "i8":
        return plan_whole_matmul(site)
    g = MatMulGeometry.of(site.kernel, fold=a.desc.is_plain and out.desc.is_plain)
    if g.k == 0:
        raise NoFastKernel("matrix product over no elements")
    bias, chain = bias_of(site, g.n)
    calls: list[Call] = []
    if site.is_constant(1):
        packed = site.packed(("matmul", g.transpose_b), (1,), lambda: _pack_constant(site, g))
    else:
        packed = _pack_stored(site, g, calls)
    left, a_bytes = stored_matrices(site, a)
    result, out_bytes = stored_matrices(site, out)
    batch = Batch(
        [int(index) * a_bytes for index in g.batch_index("a")],
        [int(index) for index in g.batch_index("b")],
        [index * out_bytes for index in range(g.batch)],
    )
    left = left.t if g.transpose_a else left

    def make(address: int, rule: Any) -> Call:
        return matmul(g.m, g.k, g.n, left, packed, replace(result, address=address), bias, batch, rule)

    return [*calls, extensible(site, make, epilogue_of(site, chain))]


def _pack_constant(site: Site, g: MatMulGeometry) -> PackedB:
    """By a call of the load where the kernels know the stored form."""
    try:
        return _pack_stored(site, g, site.packing)
    except NoFastKernel:  # a stored form that the kernels do not read: NumPy unpacks it
        values = site.constant(1)
        return pack_matmul(np.swapaxes(values, -1, -2) if g.transpose_b else values, site.element(site.input(1)))


def _pack_stored(site: Site, g: MatMulGeometry, calls: list[Call]) -> PackedB:
    """B as the device stores it, packed by a call of its own. Raises NoFastKernel for a form kernels cannot read."""
    b = site.input(1)
    stored, bytes_each = stored_matrices(site, b)
    count = b.desc.elements // (g.k * g.n)
    offsets = [index * bytes_each for index in range(count)]
    packed, call = pack_b_at_run_time(stored.t if g.transpose_b else stored, g.k, g.n, offsets)
    calls.append(call)
    return packed
