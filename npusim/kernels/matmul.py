"""Matrix products [M, K] x [K, N] over row-major (ND) or FRACTAL_NZ operands, either transposed, in batches.

`matmul` describes a product as Calls: one when B is constant and packed at load (`pack_matmul`), two when B is computed
at run time (a packing task, then the product). A part widens a band of rows of A to fp32 in scratch, a tile's just
before its first use, and runs the register tiles of npusim.kernels.panels; sums run over K in order, as a 1x1
convolution's do.
Kernel names: `matmul:<A dtype>:<output dtype>`, `packb:<dtype>:<vectors>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from npusim.kernels import panels, parts
from npusim.kernels.desc import Call, call, element_name, int64_table, split_count
from npusim.kernels.dispatch import scratch
from npusim.kernels.epilogue import Epilogue
from npusim.kernels.ir import I64, RAW, SIZE, Kernel, Val, vec
from npusim.kernels.weights import aligned, pack_panels, pad_to, padded_bias

_PIXEL = 64
_A, _RG, _RH, _RL, _CG, _CH, _CL, _K, _BAND, _BANDS, _SPLITS, _PER_SPLIT, _GROUPS, _OFFSETS, _BLOCK, _TAP, _ASK = range(
    panels.CORE_END, panels.CORE_END + 17
)
(
    _PB_SOURCE,
    _PB_TARGET,
    _PB_K,
    _PB_N,
    _PB_ROW,
    _PB_COLUMN,
    _PB_OFFSETS,
    _PB_BATCH_BYTES,
    _PB_FULL,
    _PB_UNITS,
    _PB_TOTAL,
    _PB_CHUNK,
) = (1, 2, 3, 4, 5, 8, 11, 12, 13, 14, 15, 16)


@dataclass(frozen=True)
class Matrix:
    """A stored matrix: address and, for rows and columns each, byte strides per 16, per 8 and per 1 element."""

    address: int
    dtype: str
    row: tuple[int, int, int]
    column: tuple[int, int, int]
    granule: int = 1  # columns are stored up to a multiple of this

    @staticmethod
    def nd(address: int, dtype: str, columns: int, row_bytes: int | None = None) -> Matrix:
        """Row-major with `columns` elements a row (or an explicit row pitch in bytes)."""
        size = SIZE[dtype]
        pitch = columns * size if row_bytes is None else row_bytes
        return Matrix(address, dtype, (16 * pitch, 8 * pitch, pitch), (16 * size, 8 * size, size))

    @staticmethod
    def nz(address: int, dtype: str, rows: int, c0: int = 16) -> Matrix:
        """FRACTAL_NZ [columns/c0][rows stored][c0]; `rows` counts stored rows, padding included."""
        size = SIZE[dtype]
        pitch, block = c0 * size, rows * c0 * size
        if c0 not in (8, 16):
            raise ValueError(f"matrix products know C0 = 8 and 16, not {c0}")
        column = (2 * block, block, size) if c0 == 8 else (block, 8 * size, size)
        return Matrix(address, dtype, (16 * pitch, 8 * pitch, pitch), column, c0)

    def from_row(self, row: int) -> Matrix:
        """The matrix without the rows before `row`, a multiple of 16."""
        return replace(self, address=self.address + row // 16 * self.row[0])

    @property
    def t(self) -> Matrix:
        """The transposed matrix over the same memory."""
        return Matrix(self.address, self.dtype, self.column, self.row)


@dataclass
class PackedB:
    """B in tile order: constant data, or an address filled by a `packb` task."""

    data: np.ndarray | int
    dtype: str
    vectors: int
    batch_bytes: int
    keep: object = None


@dataclass(frozen=True)
class Batch:
    """Products of a batch: byte offsets of A and output, number of the packed B."""

    a: Sequence[int] = (0,)
    b: Sequence[int] = (0,)
    out: Sequence[int] = (0,)


def pack_matmul(b: np.ndarray, dtype: str | None = None) -> PackedB:
    """Pack a constant [..., K, N] array of fp16, fp32 or (`dtype="bf16"`, bits) bfloat16; leading axes are a batch."""
    dtype, vectors = dtype or element_name(b.dtype), panels.panel_vectors()
    flat = b.reshape(-1, *b.shape[-2:])
    packed = []
    for one in flat:
        padded = pad_to(pad_to(one, 0, 16), 1, 16)
        packed.append(pack_panels(padded.reshape(-1, 16, padded.shape[1]), vectors))
    data = packed[0] if len(packed) == 1 else aligned(np.concatenate(packed))
    return PackedB(data, dtype, vectors, packed[0].nbytes)


def pack_b_at_run_time(b: Matrix, k: int, n: int, offsets: Sequence[int] = (0,)) -> tuple[PackedB, Call]:
    """Task that packs a run-time [K, N] matrix (a batch of them at byte offsets), and where it puts the result."""
    vectors, size = panels.panel_vectors(), SIZE[b.dtype]
    groups = -(-k // 16)
    batch_bytes = groups * 16 * (-(-n // 16) * 16) * size
    space = aligned(np.zeros(batch_bytes * len(offsets), np.uint8))
    full, units = panels.split_units(-(-n // 16), vectors)
    total = len(offsets) * units
    parts = split_count(k * n * len(offsets) * 3e-4, total)
    chunk = -(-total // parts)
    table = int64_table(list(offsets))
    fields = [b.address, space, k, n, *b.row, *b.column, table, batch_bytes, full, units, total, chunk]
    task = call(f"packb:{b.dtype}:{vectors}", -(-total // chunk), 0, fields)
    return PackedB(space.ctypes.data, b.dtype, vectors, batch_bytes, space), task


def matmul(
    m: int,
    k: int,
    n: int,
    a: Matrix,
    b: PackedB,
    out: Matrix,
    bias: np.ndarray | None = None,
    batch: Batch | None = None,
    epilogue: Epilogue | None = None,
) -> Call:
    """Call of out[M, N] = epilogue(A[M, K] B + bias). `bias` is a constant fp32 vector of N.

    `batch.a` and `batch.out` are byte offsets; `batch.b[i]` is the number of the packed matrix that product i uses. The
    residual of the epilogue is laid out like the output, batch included.
    In FRACTAL_NZ output, lanes beyond N are zeros up to a whole C0 and rows beyond M are left alone.
    """
    panels.check_weights(b.dtype, a.dtype)
    many, rule = batch or Batch(), epilogue or Epilogue()
    groups = -(-k // 16)
    units = panels.split_units(-(-n // 16), b.vectors)
    out_dtype = rule.target(out.dtype)
    some = panels.groups_of_block(groups, 1, m, out_dtype)
    band, splits = parts.matmul_split(m, k, n, len(many.a), units[1], b.dtype, some)
    per_split = -(-units[1] // splits)
    bands = -(-m // band)
    tap, (tiles, last_tiles) = _tiles_apart((band, m - (bands - 1) * band), some)
    core = panels.Core(
        weights=b.data,
        weights_dtype=b.dtype,
        bias=padded_bias(bias, n),
        out=out.address,
        units=units,
        tap_channels=16,
        pixel_bytes=_PIXEL,
        taps=np.arange(some, dtype=np.int64) * tap,
        out_strides=(out.column[0], out.column[1], out.row[2]),
        channels=n,
        stored=-(-n // out.granule) * out.granule,
        tiles=tiles,
        last_tiles=last_tiles,
        pitch=0,
        buffer_offset=len(tiles) * some * tap,
        vectors=b.vectors,
        epilogue=rule,
        out_dtype=out_dtype,
        block=panels.Block(groups, per_split) if some < groups else None,
    )
    offsets = int64_table(list(zip(many.a, [i * b.batch_bytes for i in many.b], many.out, strict=True)))
    asked = _asked_bytes(a, k, tap // _PIXEL, groups) if some == groups else 0
    own = [k, band, bands, splits, per_split, groups, offsets, some, tap, asked]
    fields = [*core.fields(), a.address, *a.row, *a.column, *own]
    task = call(
        f"matmul:{a.dtype}:{out_dtype}",
        len(many.a) * bands * splits,
        core.scratch_bytes,
        fields,
    )
    task.keep.append(b.keep)
    return task


def _tiles_apart(bands: Sequence[int], groups: int) -> tuple[int, list[list[panels.TileStep]]]:
    """Bytes of a group of columns in a tile, and the tiles over so many rows of each band, in memory of their own."""
    tap = max(length for rows in bands for length in panels.run_lengths(rows)) * _PIXEL
    runs = [panels.run_tiles(rows, _PIXEL) for rows in bands]
    return tap, [[replace(t, x_offset=i * groups * tap) for i, t in enumerate(run)] for run in runs]


def _asked_bytes(a: Matrix, k: int, rows: int, groups: int) -> int:
    """What a tap has to ask for of the next tile's rows so that all come nearer: 0 where they do not lie together."""
    row_bytes = k * SIZE[a.dtype]
    together = a.column[2] == SIZE[a.dtype] and row_bytes <= a.row[2] <= 2 * row_bytes
    return -(-rows * a.row[2] // (groups * 64)) * 64 if together else 0


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit `matmul:<A dtype>:<output dtype>` or `packb:<dtype>:<vectors>`."""
    first, second = parameters.split(":")
    if family == "packb":
        _emit_pack(k, first, int(second))
        return
    _emit_fill(k, first)
    panels.define(k, second, _supply)
    with k.main() as (desc, part, ctx):
        splits, bands = k.field(desc, _SPLITS), k.field(desc, _BANDS)
        split, rest = part % splits, part / splits
        band, index = rest % bands, rest / bands
        offsets = k.field(desc, _OFFSETS) + index * 24
        row = band * k.field(desc, _BAND)
        per = k.field(desc, _PER_SPLIT)
        begin = split * per
        end = k.minimum(begin + per, k.field(desc, panels.UNITS))
        out = k.field(desc, panels.OUT) + k.load(offsets + 16) + row * k.field(desc, panels.PIXEL_PITCH)
        weights = panels.weights_field(k, desc) + k.load(offsets + 8)
        x, matrix, last = scratch(k, ctx), k.field(desc, _A) + k.load(offsets), band.eq(bands - 1)
        with k.loop(k.field(desc, _GROUPS), step=k.field(desc, _BLOCK)) as group:
            panels.call_panels(k, desc, ctx, x, out, weights, (begin, end), last, group, (matrix, row))


def _supply(k: Kernel, desc: Val, target: Val, matrix: Val, first: Val, rows: Val, group: Val) -> tuple[Val, Val]:
    """Fill a tile; the rows of the next one, and how much of them to ask for in a tap."""
    k.call("fill", desc, target, matrix, first, rows, group)
    return matrix + (first + rows) * k.field(desc, _RL), k.field(desc, _ASK)


def _place(k: Kernel, index: Val, strides: tuple[Val, Val, Val]) -> Val:
    """Byte offset of an element index under strides per 16, 8 and 1 elements."""
    group, half, lane = strides
    return (index >> 4) * group + ((index >> 3) & 1) * half + (index & 7) * lane


def _lanes_at(k: Kernel, at: Val, half: Val, lane: Val, count: Val, spare: Val, dtype: str) -> None:
    """Collect `count` of 16 elements into a zeroed buffer."""
    kind = RAW[SIZE[dtype]]
    k.store(k.const(0, vec(kind)), spare)
    with k.loop(count) as i:
        k.store(k.load(at + (i >> 3) * half + (i & 7) * lane, kind), spare + i * SIZE[dtype])


def _emit_fill(k: Kernel, dtype: str) -> None:
    """fill(desc, target, matrix, first row, rows, first group): a tile's fp32 [K/16][rows][16] of a block, zero beyond
    K.

    Evenly spaced rows of adjacent columns are read two groups of columns, a cache line, at a time.
    """
    size = SIZE[dtype]
    _emit_group(k, dtype)
    with k.function("fill", [I64] * 6) as (desc, target, matrix, first, rows, begin):
        pitch, end = k.field(desc, _RL), k.minimum(begin + k.field(desc, _BLOCK), k.field(desc, _GROUPS))
        group_step, half, lane = k.field(desc, _CG), k.field(desc, _CH), k.field(desc, _CL)
        tap = k.field(desc, _TAP)
        even = k.field(desc, _RG).eq(pitch * 16) & k.field(desc, _RH).eq(pitch * 8)
        adjacent = lane.eq(size) & half.eq(8 * size)
        whole = k.minimum(end, (k.field(desc, _K) >> 5) * 2)
        together = k.select(even & adjacent & (whole > begin), begin + ((whole - begin) & -2), begin)
        to, source = target - begin * tap, matrix + first * pitch
        with k.loop(together, start=begin, step=2) as group:
            at, place = k.var(source + group * group_step), to + group * tap
            with k.loop(rows * _PIXEL, step=_PIXEL) as r:
                here = at.get()
                pair = [k.load_f32(here + group_step * n, dtype) for n in range(2)]
                for n, value in enumerate(pair):
                    k.store(value, place + tap * n + r)
                k.prefetch(here + group_step * 4)
                at.set(here + pitch)
        with k.loop(end, start=together) as group:
            k.call("group", desc, to + group * tap, matrix, first, rows, group)


def _emit_group(k: Kernel, dtype: str) -> None:
    """group(desc, target, matrix, first row, rows, group): one group of 16 columns with any strides."""
    size = SIZE[dtype]
    with k.function("group", [I64] * 6) as (desc, target, matrix, first, rows, group):
        row_strides = (k.field(desc, _RG), k.field(desc, _RH), k.field(desc, _RL))
        group_step, half, lane = k.field(desc, _CG), k.field(desc, _CH), k.field(desc, _CL)
        spare = k.alloca(64)
        count = k.minimum(k.field(desc, _K) - group * 16, 16)
        source = matrix + group * group_step
        dense = lane.eq(size) & count.eq(16)
        with k.loop(rows) as r:
            at = source + _place(k, first + r, row_strides)
            with k.either(dense) as (halves, lanes):
                with halves:
                    k.store(k.load_f32(at, dtype, 8), target + r * _PIXEL)
                    k.store(k.load_f32(at + half, dtype, 8), target + r * _PIXEL + 32)
                with lanes:
                    _lanes_at(k, at, half, lane, count, spare, dtype)
                    k.store(k.load_f32(spare, dtype), target + r * _PIXEL)


def _emit_pack(k: Kernel, dtype: str, vectors: int) -> None:
    """Copy a strided [K, N] matrix into units of `vectors` * 16 columns, zero padded."""
    size = SIZE[dtype]
    kind = RAW[SIZE[dtype]]
    with k.main() as (desc, part, _ctx):
        depth, n = k.field(desc, _PB_K), k.field(desc, _PB_N)
        row_strides = (k.field(desc, _PB_ROW), k.field(desc, _PB_ROW + 1), k.field(desc, _PB_ROW + 2))
        group_step, half, lane = (k.field(desc, _PB_COLUMN + i) for i in range(3))
        full, units = k.field(desc, _PB_FULL), k.field(desc, _PB_UNITS)
        padded = ((depth + 15) >> 4) << 4
        lo = part * k.field(desc, _PB_CHUNK)
        hi = k.minimum(lo + k.field(desc, _PB_CHUNK), k.field(desc, _PB_TOTAL))
        spare = k.alloca(64)
        with k.loop(hi, start=lo) as item:
            index, unit = item / units, item % units
            matrix = k.field(desc, _PB_SOURCE) + k.load(k.field(desc, _PB_OFFSETS) + index * 8)
            wide = unit < full
            group = k.select(wide, unit * vectors, full * vectors + unit - full)
            width = k.select(wide, k.const(vectors), 1)
            target = k.field(desc, _PB_TARGET) + index * k.field(desc, _PB_BATCH_BYTES) + group * padded * (16 * size)
            with k.loop(width) as v:
                count = k.minimum(n - (group + v) * 16, 16)
                dense = lane.eq(size) & half.eq(8 * size) & count.eq(16)
                source = matrix + (group + v) * group_step
                with k.loop(padded) as row:
                    at = source + _place(k, row, row_strides)
                    to = target + (row * width + v) * (16 * size)
                    with k.either(dense & (row < depth)) as (copy, other):
                        with copy:
                            k.store(k.load(at, vec(kind)), to)
                        with other:
                            _lanes_at(k, at, half, lane, k.select(row < depth, count, 0), spare, dtype)
                            k.store(k.load(spare, vec(kind)), to)
