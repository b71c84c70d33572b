"""Host plans of copies of whole tensors under other strides: transpose, stretch, repeat, pad."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from metadef.format import TensorDesc
from metadef.ops.move import pad_pairs
from metadef.ops.numeric import narrow
from npusim.kernels import move
from npusim.kernels.desc import Call
from npusim.kernels.plans.site import NoFastKernel, Site


def plan_identity(site: Site) -> list[Call]:
    """Identity: the bytes as they lie."""
    x, out = site.input(0), site.output()
    if x.desc.shape != out.desc.shape:
        raise NoFastKernel("a copy that changes the layout")
    return copied(site, site.address(x), (1,), site.address(out), (1,), (x.payload_bytes,), 1)


def plan_transpose(site: Site) -> list[Call]:
    """TransposeD: the source walked with its strides in the result's order."""
    x, out = site.plain_operand().desc, site.output().desc
    strides = byte_strides(x)
    turned = [strides[axis] for axis in site.kernel.attrs["perm"]]
    return onto(site, site.address(site.input(0)), turned, out.origin_shape)


def plan_broadcast(site: Site) -> list[Call]:
    """BroadcastToD: stride 0 along stretched and new axes."""
    x, out = site.plain_operand().desc, site.output().desc
    shape = (1,) * (len(out.origin_shape) - len(x.origin_shape)) + x.origin_shape
    own = (0,) * (len(shape) - len(x.origin_shape)) + byte_strides(x)
    strides = [0 if size == 1 else step for size, step in zip(shape, own, strict=True)]
    return onto(site, site.address(site.input(0)), strides, out.origin_shape)


def plan_tile(site: Site) -> list[Call]:
    """TileD: every axis becomes (repeat, element), the repeats with stride 0."""
    x = site.plain_operand().desc
    shape: list[int] = []
    strides: list[int] = []
    for times, size, step in zip(site.kernel.attrs["multiples"], x.origin_shape, byte_strides(x), strict=True):
        shape += [times, size]
        strides += [0, step]
    return onto(site, site.address(site.input(0)), strides, shape)


def plan_pad(site: Site) -> list[Call]:
    """PadD with a constant: fill the result, then copy x into its middle."""
    x, out = site.plain_operand().desc, site.output().desc
    if site.kernel.attrs["mode"] != "constant":
        raise NoFastKernel(f"padding by {site.kernel.attrs['mode']}")
    target, steps = site.address(site.output()), byte_strides(out)
    value = narrow(np.asarray(site.kernel.attrs["constant_values"]), out.dtype)
    pairs = pad_pairs(x.origin_shape, site.kernel.attrs)
    inner = target + sum(before * step for (before, _), step in zip(pairs, steps, strict=True))
    fill = move.fill(value.reshape(1)[0], target, byte_strides(out), out.origin_shape)
    if x.elements == 0:
        return [fill]
    source = site.address(site.input(0))
    return [fill, *copied(site, source, byte_strides(x), inner, steps, x.origin_shape, x.dtype.bytes)]


def byte_strides(desc: TensorDesc) -> tuple[int, ...]:
    """Byte strides of a row-major tensor, as it is stored."""
    shape = desc.shape
    return tuple(prod(shape[axis + 1 :]) * desc.dtype.bytes for axis in range(len(shape)))


def onto(site: Site, source: int, strides: Sequence[int], shape: Sequence[int]) -> list[Call]:
    """A strided source copied onto the whole, dense result, seen under ``shape``."""
    out = site.output()
    size = out.desc.dtype.bytes
    dense = [prod(shape[axis + 1 :]) * size for axis in range(len(shape))]
    return copied(site, source, strides, site.address(out), dense, shape, size)


def copied(
    site: Site,
    source: int,
    strides: Sequence[int],
    target: int,
    steps: Sequence[int],
    shape: Sequence[int],
    size: int,
) -> list[Call]:
    """A copy of a box of elements of ``size`` bytes. Raises NoFastKernel for more axes than the kernels walk."""
    try:
        return [move.copy(size, source, strides, target, steps, shape)]
    except ValueError as error:
        raise NoFastKernel(f"{site.kernel.op_type}: {error}") from None
