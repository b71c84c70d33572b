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


def plan_resize(site: Site) -> list[Call]:
    """ResizeNearestNeighborV2D: H and W become (pixel, repeat), the repeats with stride 0; plain or NC1HWC0."""
    x, out = site.moved_operand().desc, site.output().desc
    strides = byte_strides(x)
    (h, w), (oh, ow) = x.origin_shape[2:], out.origin_shape[2:]
    shape = (*x.shape[:2], h, oh // h, w, ow // w, *x.shape[4:])
    walk = (*strides[:3], 0, strides[3], 0, *strides[4:])
    return onto(site, site.address(site.input(0)), walk, shape)


def plan_pad(site: Site) -> list[Call]:
    """PadD: x copied into the middle; a constant fills the result first, reflection and edges grow axis by axis."""
    x, out = site.moved_operand().desc, site.output().desc
    target, steps = site.address(site.output()), byte_strides(out)
    pairs = pad_pairs(x.origin_shape, site.kernel.attrs)
    if not x.is_plain:
        if site.kernel.attrs["mode"] != "constant" or any(pairs[1]):
            raise NoFastKernel(f"PadD of channels, or by {site.kernel.attrs['mode']}, on {x.format.name}")
        pairs = [*pairs, (0, 0)]
    inner = target + sum(before * step for (before, _), step in zip(pairs, steps, strict=True))
    calls: list[Call] = []
    constant = site.kernel.attrs["mode"] == "constant"
    if constant:
        value = narrow(np.asarray(site.kernel.attrs["constant_values"]), out.dtype)
        calls.append(move.fill(value.reshape(1)[0], target, steps, out.shape))
    if x.elements:
        source = site.address(site.input(0))
        calls += copied(site, source, byte_strides(x), inner, steps, x.shape, x.dtype.bytes)
    return calls if constant else calls + _grown(site, pairs)


def _grown(site: Site, pairs: list[tuple[int, int]]) -> list[Call]:
    """Borders made of the result's own elements: earlier axes are whole by then, later ones still their middle."""
    x, out = site.plain_operand().desc, site.output().desc
    steps, shape = byte_strides(out), list(x.origin_shape)
    at = site.address(site.output()) + sum(before * step for (before, _), step in zip(pairs, steps, strict=True))
    turn = -1 if site.kernel.attrs["mode"] == "reflect" else 0
    calls: list[Call] = []
    for axis, (before, after) in enumerate(pairs):
        step, size = steps[axis], shape[axis]
        walk = [turn * step if number == axis else other for number, other in enumerate(steps)]
        for count, source, border in (
            (before, (before if turn else 0), -before),
            (after, (size - 2 if turn else size - 1), size),
        ):
            box = [count if number == axis else other for number, other in enumerate(shape)]
            if prod(box):
                calls += copied(site, at + source * step, walk, at + border * step, steps, box, x.dtype.bytes)
        at -= before * step
        shape[axis] += before + after
    return calls


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
