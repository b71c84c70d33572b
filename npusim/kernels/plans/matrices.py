"""Operands of products as the kernels see them: matrices in rows or fractals, rows of fractals, the bias."""

from __future__ import annotations

from math import prod

import numpy as np

from metadef.format import FRACTAL_ROWS, Format, round_up
from metadef.kernel import FusedOp
from metadef.program import Operand
from npusim.kernels.desc import SIZE
from npusim.kernels.matmul import Matrix
from npusim.kernels.plans.site import NoFastKernel, Site
from npusim.kernels.rows import Rows, RowShape


def stored_matrices(site: Site, operand: Operand) -> tuple[Matrix, int]:
    """The first of an operand's matrices as it is stored, and bytes from one to the next."""
    desc, element, address = operand.desc, site.element(operand), site.address(operand)
    rows, columns = desc.origin_shape[-2:] if len(desc.origin_shape) > 1 else (1, desc.origin_shape[-1])
    if desc.is_plain:
        return Matrix.nd(address, element, columns), rows * columns * SIZE[element]
    if desc.format is not Format.FRACTAL_NZ or desc.c0 != FRACTAL_ROWS:
        raise NoFastKernel(f"matrix product on {desc.format.name} with C0 = {desc.c0}")
    stored = round_up(rows, FRACTAL_ROWS)
    return Matrix.nz(address, element, stored, desc.c0), stored * round_up(columns, desc.c0) * SIZE[element]


def bias_of(site: Site, columns: int) -> tuple[np.ndarray | None, list[FusedOp]]:
    """A constant bias, given as operand 2 or as a fused Add of a row, and the rest of the fused chain."""
    chain = list(site.kernel.fused)
    if site.has(2) and not any(item.operand == 2 for item in chain):
        return site.wide_constant(2), chain
    if chain and chain[0].op_type == "Add" and chain[0].operand is not None and site.is_constant(chain[0].operand):
        shape = site.input(chain[0].operand).desc.origin_shape
        if shape and shape[-1] == columns and all(size == 1 for size in shape[:-1]):
            return site.wide_constant(chain[0].operand).reshape(-1), chain[1:]
    return None, chain


def fractal_rows(site: Site) -> tuple[RowShape, Rows, Rows]:
    """Rows along the last axis of an operand and a result in FRACTAL_NZ. Raises NoFastKernel for other formats."""
    x, out = site.input(0), site.output()
    if out.desc.format is not Format.FRACTAL_NZ or out.desc.c0 != x.desc.c0 or site.kernel.fused:
        raise NoFastKernel(f"{site.kernel.op_type} from FRACTAL_NZ to {out.desc.format.name}")
    *batch, rows, columns = x.desc.origin_shape
    sides = [(site.address(operand), site.element(operand)) for operand in (x, out)]
    return RowShape.nz(prod(batch), rows, columns, round_up(rows, FRACTAL_ROWS), x.desc.c0, *sides)
