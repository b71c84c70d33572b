"""Code of the convolution kernel: fill the scratch block of a band, then run the register tiles over it.

Kernel names: `conv:<input dtype>:<output dtype>:<dense|narrow|depthwise|lanes|pieces>`; npusim.kernels.conv says what
the variants are for and makes the descriptors, whose fields after those of `panels.Core` are named in `FIELDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from npusim.kernels import panels
from npusim.kernels.conv_pack import NARROW_LIMIT
from npusim.kernels.conv_pieces import emit_pieces
from npusim.kernels.conv_scratch import PIXEL
from npusim.kernels.dispatch import scratch
from npusim.kernels.ir import F32, I64, LANES, SIZE, Kernel, Val, vec

_UNROLL = 4  # pixels in flight
FIELDS = (
    "x",
    "bands",
    "splits",
    "units_per_split",
    "groups",
    "planes",
    "h",
    "xn",
    "xc",
    "xq",
    "xh",
    "xp",
    "x_row",
    "on",
    "band_out",
    "rows",
    "row_table",
    "phases",
    "phase_table",
    "stride_w",
    "band_in",
    "pad_top",
    "row_bytes",
    "narrow_bytes",
    "lane_table",
    "block_groups",
    "merged",
)
(
    X,
    BANDS,
    SPLITS,
    UNITS_PER_SPLIT,
    GROUPS,
    _PLANES,
    _H,
    XN,
    _XC,
    _XQ,
    _XH,
    _XP,
    _X_ROW,
    ON,
    _BAND_OUT,
    _ROWS,
    _ROW_TABLE,
    _PHASES,
    _PHASE_TABLE,
    _STRIDE_W,
    _BAND_IN,
    _PAD_TOP,
    ROW_BYTES,
    _NARROW_BYTES,
    _LANE_TABLE,
    BLOCK_GROUPS,
    _MERGED,
) = range(panels.CORE_END, panels.CORE_END + len(FIELDS))


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit `conv:<input dtype>:<output dtype>:<dense|narrow|depthwise|lanes|pieces>`."""
    source, target, kind = parameters.split(":")
    panels.define(k, target)
    if kind == "pieces":
        emit_pieces(k, _LANE_TABLE, target)
    emit_zeros(k)
    {"narrow": _emit_narrow_fill, "lanes": _emit_lane_fill}.get(kind, emit_fill)(k, source)
    with k.main() as (desc, part, ctx):
        splits, bands = k.field(desc, SPLITS), k.field(desc, BANDS)
        split, rest = part % splits, part / splits
        band, image = rest % bands, rest / bands
        per = k.field(desc, UNITS_PER_SPLIT)
        begin = split * per
        end = k.minimum(begin + per, k.field(desc, panels.UNITS))
        first, count, x = k.const(0), k.field(desc, GROUPS), scratch(k, ctx)
        if kind in ("depthwise", "lanes"):
            # Scratch holds only what this part's one unit reads.
            first, count = begin, k.const(1)
        source_image = k.field(desc, X) + image * k.field(desc, XN)
        out = k.field(desc, panels.OUT) + image * k.field(desc, ON) + band * k.field(desc, _BAND_OUT)
        last, weights = band.eq(bands - 1), panels.weights_field(k, desc)
        tap = k.var(0)
        with k.loop(count, step=k.field(desc, BLOCK_GROUPS)) if kind == "dense" else nullcontext(0) as taken:
            some = k.minimum(count - taken, k.field(desc, BLOCK_GROUPS)) if kind == "dense" else count
            k.call("fill", desc, x, source_image, band, first + taken, some)
            if kind == "pieces":
                k.call("pieces", desc, ctx, x, out, begin, end, k.convert(last, "zext", I64))
            else:
                panels.call_panels(k, desc, ctx, x, out, weights, (begin, end), last, tap.get())
                tap.set(tap.get() + k.field(desc, panels.BLOCK_TAPS))


def emit_zeros(k: Kernel) -> None:
    with k.function("zeros", [I64, I64]) as (at, pixels):
        zero = k.const(0.0, vec(F32))
        with k.loop(pixels) as i:
            k.store(zero, at + i * PIXEL)


def emit_fill(k: Kernel, dtype: str) -> None:
    """fill(desc, scratch, image, band, first group, groups): fp32 [group][row][phase, column][16], zero padded."""
    with k.function("fill", [I64] * 6) as (desc, base, image, band, first, count):
        row_bytes, rows = k.field(desc, ROW_BYTES), k.field(desc, _ROWS)
        height, table = k.field(desc, _H), k.field(desc, _ROW_TABLE)
        top = band * k.field(desc, _BAND_IN) - k.field(desc, _PAD_TOP)
        planes, x_row = k.field(desc, _PLANES), k.field(desc, _X_ROW)
        pair_step, second = k.field(desc, _XC), k.field(desc, _XQ)
        at = k.var(base)
        # Rows that follow each other in image and scratch are as one.
        merged = k.field(desc, _MERGED).ne(0)
        times = k.select(merged, k.minimum(rows, height - top), 1)
        step = k.select(merged, rows, 1)
        with k.loop(first + count, start=first) as group:
            both = (group * 2 + 1) < planes
            channels = image + (group >> 1) * pair_step + (group & 1) * second
            with k.loop(rows, step=step) as r:
                y = top + k.load(table + r * 8)
                to = at.get()
                inside = (y >= 0) & (y < height)
                with k.either(inside) as (copy, blank):
                    with copy:
                        _emit_row(k, desc, dtype, to, channels + y * x_row, both, (pair_step >> 1, times))
                    with blank:
                        k.call("zeros", to, row_bytes >> 6)
                at.set(to + step * row_bytes)


def _emit_row(k: Kernel, desc: Val, dtype: str, to: Val, row: Val, both: Val, more: tuple[Val, Val]) -> None:
    """One row of one 16-channel group, whose upper eight channels may not exist; that of the next comes nearer."""
    xh, (ahead, times) = k.field(desc, _XH), more
    adjacent = both & xh.eq(8 * SIZE[dtype])

    def copy(source: Val, step: Val, target: Val, count: Val) -> None:
        with k.either(adjacent) as (whole, halves):
            with whole:
                together = count & -_UNROLL
                for begin, end, pixels in ((k.const(0), together, _UNROLL), (together, count, 1)):
                    with k.loop(end, start=begin, step=pixels) as i:
                        for n in range(0, pixels, 4 // SIZE[dtype] if SIZE[dtype] < 4 else 1):
                            k.prefetch(source + ahead + (i + n) * step)
                        wide = [k.load_f32(source + (i + n) * step, dtype) for n in range(pixels)]
                        for n, value in enumerate(wide):
                            k.store(value, target + (i + n) * PIXEL)
            with halves, k.loop(count) as i:
                k.store(k.load_f32(source + i * step, dtype, 8), target + i * PIXEL)
                upper = k.var(0.0, vec(F32, 8))
                with k.when(both):
                    upper.set(k.load_f32(source + xh + i * step, dtype, 8))
                k.store(upper.get(), target + i * PIXEL + 32)

    _emit_phases(k, desc, to, row, copy, times)


def _emit_phases(
    k: Kernel, desc: Val, to: Val, row: Val, copy: Callable[[Val, Val, Val, Val], None], times: Val | int = 1
) -> None:
    """Zeros, copied pixels, zeros of every stride phase; `copy(source, step, target, count)` emits the middle.

    Pixels of `times` rows are as those of one.
    """
    xp = k.field(desc, _XP)
    target = k.var(to)
    with k.loop(k.field(desc, _PHASES)) as phase:
        entry = k.field(desc, _PHASE_TABLE) + phase * 32
        left, count, right, first = (k.field(entry, i) for i in range(4))
        count = count * times
        with k.when(left > 0):
            k.call("zeros", target.get(), left)
        begin = target.get() + left * PIXEL
        copy(row + first * xp, k.field(desc, _STRIDE_W) * xp, begin, count)
        after = begin + count * PIXEL
        with k.when(right > 0):
            k.call("zeros", after, right)
        target.set(after + right * PIXEL)


def _emit_lane_fill(k: Kernel, dtype: str) -> None:
    """fill for groups that share 16 lanes: plane j holds, in every lane, input channel j of that lane's group."""
    with k.function("fill", [I64] * 6) as (desc, base, image, band, unit, _count):
        planes, rows, height = k.field(desc, GROUPS), k.field(desc, _ROWS), k.field(desc, _H)
        table, x_row, row_bytes = k.field(desc, _ROW_TABLE), k.field(desc, _X_ROW), k.field(desc, ROW_BYTES)
        top = band * k.field(desc, _BAND_IN) - k.field(desc, _PAD_TOP)
        at = k.var(base)
        with k.loop(planes) as plane:
            offsets = k.field(desc, _LANE_TABLE) + (unit * planes + plane) * (8 * LANES)
            shifts = [k.load(offsets + 8 * lane) for lane in range(LANES)]

            def copy(source: Val, step: Val, target: Val, count: Val, shifts: list[Val] = shifts) -> None:
                with k.loop(count) as i:
                    for lane, shift in enumerate(shifts):
                        k.store(k.load_f32(source + i * step + shift, dtype, 1), target + i * PIXEL + 4 * lane)

            with k.loop(rows) as r:
                y = top + k.load(table + r * 8)
                inside = (y >= 0) & (y < height)
                with k.either(inside) as (live, blank):
                    with live:
                        _emit_phases(k, desc, at.get(), image + y * x_row, copy)
                    with blank:
                        k.call("zeros", at.get(), row_bytes >> 6)
                at.set(at.get() + row_bytes)


def _emit_narrow_fill(k: Kernel, dtype: str) -> None:
    """fill for few channels: fp32 [row][column][channels], written in order as each store spills over the next."""
    with k.function("fill", [I64] * 6) as (desc, base, image, band, _first, _count):
        row_bytes, pixel = k.field(desc, ROW_BYTES), k.field(desc, _NARROW_BYTES)
        height, table = k.field(desc, _H), k.field(desc, _ROW_TABLE)
        top = band * k.field(desc, _BAND_IN) - k.field(desc, _PAD_TOP)
        left, count, _right, first = (k.field(k.field(desc, _PHASE_TABLE), i) for i in range(4))
        xp, x_row = k.field(desc, _XP), k.field(desc, _X_ROW)
        zero = k.const(0.0, vec(F32, 8))
        with k.loop(k.field(desc, _ROWS)) as r:
            y = top + k.load(table + r * 8)
            at = base + r * row_bytes
            inside = (y >= 0) & (y < height)
            begin = k.select(inside, left, 0) * pixel
            end = k.select(inside, left + count, 0) * pixel
            with k.loop(begin, step=32) as i:
                k.store(zero, at + i)
            source = image + y * x_row + first * xp
            pixels = k.select(inside, count, 0)
            together = pixels & -_UNROLL
            for first_pixel, last_pixel, some in ((k.const(0), together, _UNROLL), (together, pixels, 1)):
                with k.loop(last_pixel, start=first_pixel, step=some) as i:
                    wide = [k.load_f32(source + (i + n) * xp, dtype, NARROW_LIMIT) for n in range(some)]
                    for n, value in enumerate(wide):
                        k.store(value, at + begin + (i + n) * pixel)
            with k.loop(row_bytes, start=end, step=32) as i:
                k.store(zero, at + i)
