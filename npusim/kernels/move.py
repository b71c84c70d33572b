"""Movement without arithmetic: strided copies (transpose, slice, concat, pad, broadcast, fill) and gathers.

`copy` moves a box of up to eight dimensions between two byte-strided layouts, `fill` writes one element pattern,
`gather` picks slices by an index tensor along one axis, `scatter` puts slices in place by one; both report an index out
of range through the status word. Kernel names: `copy:<element bytes>`, `gather:<i32|i64>`, `scatter:<i32|i64>`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim.kernels.desc import Call, call, split_count
from npusim.kernels.dispatch import INDEX_OUT_OF_RANGE, report
from npusim.kernels.elementwise import fit_rank, split_axis, split_box
from npusim.kernels.ir import I8, I32, I64, RAW, Kernel, Val, vec
from npusim.kernels.weights import aligned

RANK = 8
_SPLIT, _CHUNK, _DIMS, _SOURCE, _TARGET = 1, 2, 3, 3 + RANK, 4 + 2 * RANK
_BLOCK = 16


def copy(
    size: int,
    source: int,
    source_strides: Sequence[int],
    target: int,
    target_strides: Sequence[int],
    shape: Sequence[int],
) -> Call:
    """Call copying a box of elements of `size` bytes (1, 2, 4, 8) between strided layouts; the two must not overlap.

    A source stride of 0 broadcasts. Contiguous runs move as whole blocks whatever the element size.
    """
    if size not in RAW:
        raise ValueError(f"elements of {size} bytes cannot be copied; 1, 2, 4 and 8 can")
    dims, (src, dst) = fit_rank(shape, [source_strides, target_strides], RANK)
    # The axis along which the target is contiguous runs innermost; where the source is contiguous along another one,
    # that one comes next, so that the kernel meets both in one tile.
    order = sorted(range(RANK), key=lambda a: (dims[a] > 1, -abs(dst[a]), -a))
    turned = [a for a in order if src[a] == size and dims[a] > 1]
    if turned and turned[0] != order[-1]:
        order.remove(turned[0])
        order.insert(RANK - 1, turned[0])
        order[-1], order[-2] = order[-2], order[-1]
    dims, src, dst = ([v[a] for a in order] for v in (dims, src, dst))
    total = int(np.prod(dims, dtype=np.int64))
    parts = split_count(total * (2e-4 if src[-1] == dst[-1] else 6e-4), max(1, total // 64))
    axis, chunk = split_axis(dims, parts, _BLOCK)
    fields = [axis, chunk, *dims, source, *src, target, *dst]
    return call(f"copy:{size}", -(-dims[axis] // chunk) if total else 0, 0, fields)


def fill(value: bytes | np.generic, target: int, target_strides: Sequence[int], shape: Sequence[int]) -> Call:
    """Call writing one element everywhere in a strided box; `value` is a NumPy scalar or its bytes."""
    data = np.frombuffer(value if isinstance(value, bytes) else value.tobytes(), np.uint8)
    held = aligned(data)
    task = copy(held.size, held.ctypes.data, [0] * len(shape), target, target_strides, shape)
    task.keep.append(held)
    return task


def gather(
    data: int,
    axis_size: int,
    outer: int,
    inner_bytes: int,
    indices: int,
    index_dtype: str,
    count: int,
    out: int,
    index_groups: int = 1,
) -> Call:
    """Call for out[o, i, :] = data[o, indices[i], :], slices of `inner_bytes`; negative indices count from the end.

    With `index_groups` > 1 (batch dimensions) outer slice o uses the indices of group o * index_groups / outer.
    """
    total = outer * count
    parts = split_count(total * (0.004 + inner_bytes * 5e-5), max(1, total))
    chunk = max(1, -(-total // parts))
    per_group = max(1, outer // max(1, index_groups))
    fields = [data, axis_size, inner_bytes, indices, count, out, total, chunk, per_group]
    return call(f"gather:{index_dtype}", -(-total // chunk), 0, fields)


def scatter(
    target: int, axis_size: int, inner_bytes: int, indices: int, index_dtype: str, count: int, rows: int
) -> Call:
    """Call for target[indices[i]] = rows[i], slices of `inner_bytes`, in the order of i; negative indices wrap.

    An index out of range stops the device. One part: of equal indices the last one must win.
    """
    return call(f"scatter:{index_dtype}", 1, 0, [target, axis_size, inner_bytes, indices, count, rows])


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit `copy:<bytes>`, `gather:<index dtype>` or `scatter:<index dtype>`."""
    if family in ("gather", "scatter"):
        (_emit_gather if family == "gather" else _emit_scatter)(k, parameters)
        return
    size = int(parameters)
    emit_block_move(k)
    with k.main() as (desc, part, _ctx):
        dims, lo = split_box(k, desc, part, _SPLIT, _CHUNK, _DIMS, RANK)
        bases, strides = [], []
        for first in (_SOURCE, _TARGET):
            steps = [k.field(desc, first + 1 + a) for a in range(RANK)]
            shift = lo * k.load(desc + 8 * (first + 1) + k.field(desc, _SPLIT) * 8)
            bases.append(k.field(desc, first) + shift)
            strides.append(steps)
        _emit_nest(k, size, dims, bases[0], bases[1], strides, 0)


def _emit_nest(
    k: Kernel, size: int, dims: list[Val], source: Val, target: Val, strides: list[list[Val]], axis: int
) -> None:
    if axis < RANK - 2:
        with k.loop(dims[axis]) as i:
            shifted = source + i * strides[0][axis], target + i * strides[1][axis]
            _emit_nest(k, size, dims, *shifted, strides, axis + 1)
        return
    (s1, s0), (t1, t0) = strides[0][axis:], strides[1][axis:]
    straight = s0.eq(size) & t0.eq(size)
    with k.either(straight) as (runs, other):
        with runs, k.loop(dims[axis]) as i:
            k.call("move", source + i * s1, target + i * t1, dims[axis + 1] * size)
        with other:
            _emit_plane(k, size, dims[axis], dims[axis + 1], source, target, (s1, s0, t1, t0))


def _emit_plane(
    k: Kernel, size: int, rows: Val, columns: Val, source: Val, target: Val, steps: tuple[Val, Val, Val, Val]
) -> None:
    """Element copies in 16 x 16 tiles, so that a transpose stays within few cache lines."""
    s1, s0, t1, t0 = steps
    kind = RAW[size]
    with k.loop(rows, step=_BLOCK) as i0, k.loop(columns, step=_BLOCK) as j0:
        deep, wide = k.minimum(rows - i0, _BLOCK), k.minimum(columns - j0, _BLOCK)
        with k.loop(deep) as i:
            src = source + (i0 + i) * s1 + j0 * s0
            dst = target + (i0 + i) * t1 + j0 * t0
            with k.loop(wide) as j:
                k.store(k.load(src + j * s0, kind), dst + j * t0)


def emit_block_move(k: Kernel) -> None:
    """Define move(source, target, bytes): 64-byte blocks, then 8 bytes, then single bytes."""
    with k.function("move", [I64] * 3) as (source, target, nbytes):
        big = nbytes & -64
        with k.loop(big, step=64) as i:
            k.store(k.load(source + i, vec(I8, 64)), target + i)
        middle = nbytes & -8
        with k.loop(middle, start=big, step=8) as i:
            k.store(k.load(source + i, I64, align=1), target + i, align=1)
        with k.loop(nbytes, start=middle) as i:
            k.store(k.load(source + i, I8), target + i)


def _emit_gather(k: Kernel, dtype: str) -> None:
    emit_block_move(k)
    with k.main() as (desc, part, ctx):
        data, size, inner, indices, count, out, total, chunk, per_group = (k.field(desc, i) for i in range(1, 10))
        lo = part * chunk
        hi = k.minimum(lo + chunk, total)
        width = 8 if dtype == "i64" else 4
        with k.loop(hi, start=lo) as item:
            slice_, place = item / count, item % count
            raw, index, good = _index(k, indices + (slice_ / per_group * count + place) * width, width, size)
            with k.either(good) as (fine, wrong):
                with fine:
                    k.call("move", data + (slice_ * size + index) * inner, out + item * inner, inner)
                with wrong:
                    report(k, ctx, INDEX_OUT_OF_RANGE, raw)


def _index(k: Kernel, address: Val, width: int, size: Val) -> tuple[Val, Val, Val]:
    """An index as it stands, counted from the front, and whether it lies on the axis."""
    raw = k.load(address, I64) if width == 8 else k.convert(k.load(address, I32), "sext", I64)
    index = k.select(raw < 0, raw + size, raw)
    return raw, index, (index >= 0) & (index < size)


def _emit_scatter(k: Kernel, dtype: str) -> None:
    emit_block_move(k)
    with k.main() as (desc, _part, ctx):
        target, size, inner, indices, count, rows = (k.field(desc, i) for i in range(1, 7))
        width = 8 if dtype == "i64" else 4
        with k.loop(count) as item:
            raw, index, good = _index(k, indices + item * width, width, size)
            with k.either(good) as (fine, wrong):
                with fine:
                    k.call("move", rows + item * inner, target + index * inner, inner)
                with wrong:
                    report(k, ctx, INDEX_OUT_OF_RANGE, raw)
