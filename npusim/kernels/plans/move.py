"""Host plans of data movement: strided copies of boxes, changes of storage format, gathers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from metadef.dtype import DType
from metadef.format import FRACTAL_ROWS, Format, TensorDesc, round_up
from metadef.ops.geometry import normal_axis
from metadef.ops.move import pad_pairs
from metadef.ops.numeric import narrow
from metadef.ops.slicing import slice_ranges, split_sizes
from npusim.kernels import move, transdata
from npusim.kernels.desc import Call
from npusim.kernels.plans.site import NoFastKernel, Site

_RAW_NAMES = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}
_INDEX_NAMES = {DType.INT32: "i32", DType.INT64: "i64"}


def plan_identity(site: Site) -> list[Call]:
    """Identity: the bytes as they lie."""
    x, out = site.input(0), site.output()
    if x.desc.shape != out.desc.shape:
        raise NoFastKernel("a copy that changes the layout")
    return _copied(site, site.address(x), (1,), site.address(out), (1,), (x.payload_bytes,), 1)


def plan_transpose(site: Site) -> list[Call]:
    """TransposeD: the source walked with its strides in the result's order."""
    x, out = _plain(site)
    strides = _strides(x)
    turned = [strides[axis] for axis in site.kernel.attrs["perm"]]
    return _onto(site, site.address(site.input(0)), turned, out.origin_shape)


def plan_broadcast(site: Site) -> list[Call]:
    """BroadcastToD: stride 0 along stretched and new axes."""
    x, out = _plain(site)
    shape = (1,) * (len(out.origin_shape) - len(x.origin_shape)) + x.origin_shape
    own = (0,) * (len(shape) - len(x.origin_shape)) + _strides(x)
    strides = [0 if size == 1 else step for size, step in zip(shape, own, strict=True)]
    return _onto(site, site.address(site.input(0)), strides, out.origin_shape)


def plan_tile(site: Site) -> list[Call]:
    """TileD: every axis becomes (repeat, element), the repeats with stride 0."""
    x, _ = _plain(site)
    shape: list[int] = []
    strides: list[int] = []
    for times, size, step in zip(site.kernel.attrs["multiples"], x.origin_shape, _strides(x), strict=True):
        shape += [times, size]
        strides += [0, step]
    return _onto(site, site.address(site.input(0)), strides, shape)


def plan_slice(site: Site) -> list[Call]:
    """StridedSliceD: a start address and a stride an axis."""
    x, out = _plain(site)
    ranges = slice_ranges(x.origin_shape, site.kernel.attrs)
    steps = _strides(x)
    start = sum(first * step for (first, _, _), step in zip(ranges, steps, strict=True))
    strides = [stride * step for (_, stride, _), step in zip(ranges, steps, strict=True)]
    return _onto(site, site.address(site.input(0)) + start, strides, out.origin_shape)


def plan_pad(site: Site) -> list[Call]:
    """PadD with a constant: fill the result, then copy x into its middle."""
    x, out = _plain(site)
    if site.kernel.attrs["mode"] != "constant":
        raise NoFastKernel(f"padding by {site.kernel.attrs['mode']}")
    target, steps = site.address(site.output()), _strides(out)
    value = narrow(np.asarray(site.kernel.attrs["constant_values"]), out.dtype)
    pairs = pad_pairs(x.origin_shape, site.kernel.attrs)
    inner = target + sum(before * step for (before, _), step in zip(pairs, steps, strict=True))
    fill = move.fill(value.reshape(1)[0], target, _strides(out), out.origin_shape)
    if x.elements == 0:
        return [fill]
    source = site.address(site.input(0))
    return [fill, *_copied(site, source, _strides(x), inner, steps, x.origin_shape, x.dtype.bytes)]


def plan_concat(site: Site) -> list[Call]:
    """ConcatD: one copy an operand; an operand that already lies at its place needs none."""
    out = site.output().desc
    axis = normal_axis(site.kernel.attrs["concat_dim"], len(out.origin_shape))
    operands = [site.input(slot) for slot in range(len(site.task.inputs))]
    _check_pieces(site, out, [operand.desc for operand in operands], axis)
    at, step = site.address(site.output()), _strides(out)
    calls: list[Call] = []
    for x in operands:
        calls += _piece(site, site.address(x), _strides(x.desc), at, step, x.desc.shape)
        at += x.desc.shape[axis] * step[axis]
    return calls


def plan_split(site: Site) -> list[Call]:
    """SplitD and SplitVD: one copy a result; a result that lies inside the source needs none."""
    x = site.input(0).desc
    axis, _ = split_sizes(x.origin_shape, site.kernel.attrs)
    _check_pieces(site, x, [out.desc for out in site.task.outputs], axis)
    at, step = site.address(site.input(0)), _strides(x)
    calls: list[Call] = []
    for out in site.task.outputs:
        calls += _piece(site, at, step, site.address(out), _strides(out.desc), out.desc.shape)
        at += out.desc.shape[axis] * step[axis]
    return calls


def plan_gather(site: Site) -> list[Call]:
    """GatherV2: whole slices by index; an index out of range stops the device."""
    x, _ = _plain(site)
    indices = site.input(1)
    if indices.desc.dtype not in _INDEX_NAMES or not indices.desc.is_plain:
        raise NoFastKernel("indices of another kind than int32 and int64")
    axis = normal_axis(site.kernel.attrs["axis"], len(x.origin_shape))
    outer, inner = prod(x.origin_shape[:axis]), prod(x.origin_shape[axis + 1 :])
    return [
        move.gather(
            site.address(site.input(0)),
            x.origin_shape[axis],
            outer,
            inner * x.dtype.bytes,
            site.address(indices),
            _INDEX_NAMES[indices.desc.dtype],
            indices.desc.elements,
            site.address(site.output()),
        )
    ]


def plan_trans_data(site: Site) -> list[Call]:
    """TransData between a plain layout and NC1HWC0 or FRACTAL_NZ."""
    x, out = site.input(0), site.output()
    if x.desc.is_plain == out.desc.is_plain:
        raise NoFastKernel(f"TransData from {x.desc.format.name} to {out.desc.format.name}")
    flat, blocked = (x, out) if x.desc.is_plain else (out, x)
    desc = blocked.desc
    element = _RAW_NAMES[desc.dtype.bytes]
    address, stored = site.address(flat), None
    if desc.c0 % 8:
        raise NoFastKernel(f"channel blocks of {desc.c0}")
    if desc.format is Format.FRACTAL_NZ:
        plain = transdata.Plain.matrix(address, element, desc.origin_shape)
        stored = round_up(desc.origin_shape[-2], FRACTAL_ROWS)
    elif desc.format is Format.NC1HWC0 and desc.origin_format is Format.NHWC:
        plain = transdata.Plain.nhwc(address, element, desc.origin_shape)
    elif desc.format is Format.NC1HWC0 and desc.origin_format is not Format.HWCN:
        plain = transdata.Plain.nchw(address, element, desc.origin_shape)
    else:
        raise NoFastKernel(f"TransData of {desc.format.name} from {desc.origin_format.name}")
    if flat is x:
        return [transdata.to_blocked(plain, site.address(out), element, desc.c0, stored)]
    return [transdata.from_blocked(site.address(x), element, desc.c0, plain, stored)]


def _plain(site: Site) -> tuple[TensorDesc, TensorDesc]:
    """Descriptors of operand 0 and result 0. Raises NoFastKernel for blocked layouts or a fused chain."""
    x, out = site.input(0).desc, site.output().desc
    if not (x.is_plain and out.is_plain):
        raise NoFastKernel(f"{site.kernel.op_type} on {(out if x.is_plain else x).format.name}")
    if site.kernel.fused:
        raise NoFastKernel(f"{site.kernel.op_type} with a fused chain")
    return x, out


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


def _strides(desc: TensorDesc) -> tuple[int, ...]:
    """Byte strides of a row-major tensor, as it is stored."""
    shape = desc.shape
    return tuple(prod(shape[axis + 1 :]) * desc.dtype.bytes for axis in range(len(shape)))


def _onto(site: Site, source: int, strides: Sequence[int], shape: Sequence[int]) -> list[Call]:
    """A strided source copied onto the whole, dense result, seen under ``shape``."""
    out = site.output()
    size = out.desc.dtype.bytes
    dense = [prod(shape[axis + 1 :]) * size for axis in range(len(shape))]
    return _copied(site, source, strides, site.address(out), dense, shape, size)


def _piece(
    site: Site, source: int, strides: Sequence[int], target: int, steps: Sequence[int], shape: Sequence[int]
) -> list[Call]:
    """One piece of a concatenation or split: nothing to do where it lies in place already."""
    if prod(shape) == 0 or source == target:
        return []
    return _copied(site, source, strides, target, steps, shape, site.output().desc.dtype.bytes)


def _copied(
    site: Site,
    source: int,
    strides: Sequence[int],
    target: int,
    steps: Sequence[int],
    shape: Sequence[int],
    size: int,
) -> list[Call]:
    try:
        return [move.copy(size, source, strides, target, steps, shape)]
    except ValueError as error:
        raise NoFastKernel(f"{site.kernel.op_type}: {error}") from None
