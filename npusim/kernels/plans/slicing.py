"""Host plans of joining, cutting and indexing: strided copies of boxes, gathers of slices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from metadef.format import Format, TensorDesc
from metadef.ops.geometry import normal_axis
from metadef.ops.slicing import slice_ranges, split_sizes
from npusim.kernels.desc import Call
from npusim.kernels.move import gather, scatter
from npusim.kernels.plans.move import byte_strides, copied, onto
from npusim.kernels.plans.site import NoFastKernel, Site


def plan_slice(site: Site) -> list[Call]:
    """StridedSliceD: a start address and a stride an axis."""
    x, out = site.moved_operand().desc, site.output().desc
    ranges = slice_ranges(x.origin_shape, site.kernel.attrs)
    steps = byte_strides(x)
    if not x.is_plain:
        first, stride, _ = ranges[1]
        if stride != 1 or first % x.c0:
            raise NoFastKernel(f"StridedSliceD of parts of channel blocks on {x.format.name}")
        ranges = [ranges[0], (first // x.c0, 1, out.shape[1]), *ranges[2:], (0, 1, x.c0)]
    start = sum(first * step for (first, _, _), step in zip(ranges, steps, strict=True))
    strides = [stride * step for (_, stride, _), step in zip(ranges, steps, strict=True)]
    return onto(site, site.address(site.input(0)) + start, strides, out.shape)


def plan_concat(site: Site) -> list[Call]:
    """ConcatD: one copy an operand; an operand that already lies at its place needs none."""
    out = site.output().desc
    axis = normal_axis(site.kernel.attrs["concat_dim"], len(out.origin_shape))
    operands = [site.input(slot) for slot in range(len(site.task.inputs))]
    _check_pieces(site, out, [operand.desc for operand in operands], axis)
    at, step = site.address(site.output()), byte_strides(out)
    calls: list[Call] = []
    for x in operands:
        calls += _piece(site, site.address(x), byte_strides(x.desc), at, step, x.desc.shape)
        at += x.desc.shape[axis] * step[axis]
    return calls


def plan_split(site: Site) -> list[Call]:
    """SplitD and SplitVD: one copy a result; a result that lies inside the source needs none."""
    x = site.input(0).desc
    axis, _ = split_sizes(x.origin_shape, site.kernel.attrs)
    _check_pieces(site, x, [out.desc for out in site.task.outputs], axis)
    at, step = site.address(site.input(0)), byte_strides(x)
    calls: list[Call] = []
    for out in site.task.outputs:
        calls += _piece(site, at, step, site.address(out), byte_strides(out.desc), out.desc.shape)
        at += out.desc.shape[axis] * step[axis]
    return calls


def plan_gather(site: Site) -> list[Call]:
    """GatherV2: whole slices by index; an index out of range stops the device."""
    x = site.plain_operand().desc
    indices = site.input(1)
    if not indices.desc.is_plain:
        raise NoFastKernel(f"indices in {indices.desc.format.name}")
    axis = normal_axis(site.kernel.attrs["axis"], len(x.origin_shape))
    outer, inner = prod(x.origin_shape[:axis]), prod(x.origin_shape[axis + 1 :])
    return [
        gather(
            site.address(site.input(0)),
            x.origin_shape[axis],
            outer,
            inner * x.dtype.bytes,
            site.address(indices),
            site.element(indices),
            indices.desc.elements,
            site.address(site.output()),
        )
    ]


def plan_scatter(site: Site) -> list[Call]:
    """ScatterUpdate: rows put in place; what is left of the operand is copied first where the result lies elsewhere."""
    var, indices = site.plain_operand(), site.input(1)
    shape, size = var.desc.shape, var.desc.dtype.bytes
    at, out = site.address(var), site.address(site.output())
    whole = copied(site, at, byte_strides(var.desc), out, byte_strides(var.desc), shape, size) if at != out else []
    count = indices.desc.elements
    inner = prod(shape[1:]) * size
    if not count or not inner:
        return whole
    rows = site.address(site.input(2))
    return [*whole, scatter(out, shape[0], inner, site.address(indices), site.element(indices), count, rows)]


def _check_pieces(site: Site, whole: TensorDesc, pieces: Sequence[TensorDesc], axis: int) -> None:
    """Raises NoFastKernel unless the pieces lie in the whole as boxes.

    In NC1HWC0 axes count as in the origin shape; along the channels all pieces but the last one must fill their blocks.
    """
    if site.kernel.fused:
        raise NoFastKernel(f"{site.kernel.op_type} with a fused chain")
    if whole.is_plain and all(piece.is_plain for piece in pieces):
        return
    blocked = all((desc.format, desc.c0) == (Format.NC1HWC0, whole.c0) for desc in (whole, *pieces))
    if not blocked or whole.origin_format is not Format.NCHW:
        raise NoFastKernel(f"{site.kernel.op_type} on {whole.format.name}")
    if axis == 1 and any(piece.origin_shape[1] % whole.c0 for piece in pieces[:-1]):
        raise NoFastKernel(f"{site.kernel.op_type} of parts of channel blocks")


def _piece(
    site: Site, source: int, strides: Sequence[int], target: int, steps: Sequence[int], shape: Sequence[int]
) -> list[Call]:
    """One piece of a concatenation or split: nothing to do where it lies in place already."""
    if prod(shape) == 0 or source == target:
        return []
    return copied(site, source, strides, target, steps, shape, site.output().desc.dtype.bytes)
