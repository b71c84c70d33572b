"""Host plan of matrix products: B packed once where it is constant, else by a task of its own before the product."""

from __future__ import annotations

import numpy as np

from metadef.kernel import FusedOp
from metadef.ops.geometry import MatMulGeometry
from npusim.kernels.desc import SIZE, Call
from npusim.kernels.epilogue import Epilogue
from npusim.kernels.matmul import Batch, Matrix, PackedB, matmul, pack_b_at_run_time, pack_matmul
from npusim.kernels.plans.fusion import epilogue_of, extensible
from npusim.kernels.plans.site import NoFastKernel, Site
from npusim.kernels.plans.whole import plan_whole_matmul


def plan_matmul(site: Site) -> list[Call]:
    """MatMulV2 and BatchMatMulV2 on plain A and result; B constant in any format, or plain."""
    a, out = site.input(0), site.output()
    if site.element(a) == "i8":
        return plan_whole_matmul(site)
    g = MatMulGeometry.of(site.kernel, fold=True)
    if not (a.desc.is_plain and out.desc.is_plain):
        raise NoFastKernel("matrix product on fractal activations")
    if g.k == 0:
        raise NoFastKernel("matrix product over no elements")
    bias, chain = _bias(site, g.n)
    calls: list[Call] = []
    if site.is_constant(1):
        packed = site.packed(("matmul", g.transpose_b), (1,), lambda: _pack_constant(site, g))
    else:
        packed = _pack_running(site, g, calls)
    element, target = site.element(a), site.element(out)
    rows = Matrix.nd(site.address(a), element, g.m if g.transpose_a else g.k)
    batch = Batch(
        [int(index) * g.m * g.k * SIZE[element] for index in g.batch_index("a")],
        [int(index) for index in g.batch_index("b")],
        [index * g.m * g.n * SIZE[target] for index in range(g.batch)],
    )
    left = rows.t if g.transpose_a else rows

    def make(address: int, rule: Epilogue) -> Call:
        return matmul(g.m, g.k, g.n, left, packed, Matrix.nd(address, target, g.n), bias, batch, rule)

    return [*calls, extensible(site, make, epilogue_of(site, chain))]


def _pack_constant(site: Site, g: MatMulGeometry) -> PackedB:
    values = site.constant(1)
    return pack_matmul(np.swapaxes(values, -1, -2) if g.transpose_b else values, site.element(site.input(1)))


def _pack_running(site: Site, g: MatMulGeometry, calls: list[Call]) -> PackedB:
    """B that is computed at run time: a packing task of its own before the product."""
    b = site.input(1)
    if not b.desc.is_plain:
        raise NoFastKernel("computed B in a fractal format")
    element = site.element(b)
    stored = Matrix.nd(site.address(b), element, g.k if g.transpose_b else g.n)
    count = b.desc.elements // (g.k * g.n)
    offsets = [index * g.k * g.n * SIZE[element] for index in range(count)]
    packed, call = pack_b_at_run_time(stored.t if g.transpose_b else stored, g.k, g.n, offsets)
    calls.append(call)
    return packed


def _bias(site: Site, columns: int) -> tuple[np.ndarray | None, list[FusedOp]]:
    """A constant bias, given as operand 2 or as a fused Add of a row, and the rest of the fused chain."""
    chain = list(site.kernel.fused)
    if site.has(2) and not any(item.operand == 2 for item in chain):
        return site.wide_constant(2), chain
    if chain and chain[0].op_type == "Add" and chain[0].operand is not None and site.is_constant(chain[0].operand):
        shape = site.input(chain[0].operand).desc.origin_shape
        if shape and shape[-1] == columns and all(size == 1 for size in shape[:-1]):
            return site.wide_constant(chain[0].operand).reshape(-1), chain[1:]
    return None, chain
