"""Code of the Winograd kernel: transform a band of pixels, multiply plane by plane, transform the sums back.

Kernel names: `winograd:<input dtype>:<output dtype>:<tile edge>:<rounding of V>:<scale>`; `npusim.kernels.winograd`
makes the descriptors, which begin as those of a direct convolution and end in `OWN_FIELDS`. Both transforms are the
matrices of metadef.winograd with their common terms taken together; every lane is a channel.
"""

from __future__ import annotations

from npusim.kernels import conv_fill, epilogue, panels, tiles
from npusim.kernels.conv_scratch import PIXEL
from npusim.kernels.dispatch import NOT_FINITE, report, scratch
from npusim.kernels.ir import F16, F32, I64, Kernel, Val, vec

OWN_FIELDS = (
    "tile_columns",
    "band_tile_rows",
    "last_tile_rows",
    "v_offset",
    "sums_offset",
    "finished_offset",
    "group_pitch",
    "plane_pitch",
    "sums_pitch",
    "oh",
    "ow",
    "out_row",
    "zeros",
    "unit_sums",
    "ahead_bytes",
)
(
    _TILE_COLUMNS,
    _BAND_TILE_ROWS,
    _LAST_TILE_ROWS,
    _V_OFFSET,
    _SUMS_OFFSET,
    _FINISHED_OFFSET,
    _GROUP_PITCH,
    _PLANE_PITCH,
    _SUMS_PITCH,
    _OH,
    _OW,
    _OUT_ROW,
    _ZEROS,
    _UNIT_SUMS,
    _AHEAD_BYTES,
) = range(panels.CORE_END + len(conv_fill.FIELDS), panels.CORE_END + len(conv_fill.FIELDS) + len(OWN_FIELDS))


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit `winograd:<input dtype>:<output dtype>:<2|4>:<none|guarded|half|saturate>:<scale>`."""
    source, target, edge, rounding, scale = parameters.split(":")
    m = int(edge)
    epilogue.emit_function(k, target, panels.EPILOGUE)
    conv_fill.emit_zeros(k)
    conv_fill.emit_fill(k, source)
    _emit_input(k, m, rounding, float(scale))
    _emit_products(k, m)
    _emit_output(k, m, rounding == "guarded")
    _emit_unit(k, m)
    with k.main() as (desc, part, ctx):
        splits, bands = k.field(desc, conv_fill.SPLITS), k.field(desc, conv_fill.BANDS)
        split, rest = part % splits, part / splits
        band, image = rest % bands, rest / bands
        last = band.eq(bands - 1)
        rows = k.select(last, k.field(desc, _LAST_TILE_ROWS), k.field(desc, _BAND_TILE_ROWS))
        per = k.field(desc, conv_fill.UNITS_PER_SPLIT)
        begin = split * per
        end = k.minimum(begin + per, k.field(desc, panels.UNITS))
        pixels = scratch(k, ctx)
        v = k.var(pixels + k.field(desc, _V_OFFSET))
        image_at = k.field(desc, conv_fill.X) + image * k.field(desc, conv_fill.XN)
        with k.loop(k.field(desc, conv_fill.GROUPS)) as group:
            k.call("fill", desc, pixels, image_at, band, group, 1)
            k.call("input", desc, pixels, v.get(), rows)
            v.set(v.get() + k.field(desc, _GROUP_PITCH))
        out = k.field(desc, panels.OUT) + image * k.field(desc, conv_fill.ON)
        first_row = band * k.field(desc, _BAND_TILE_ROWS)
        k.call("products", desc, ctx, begin, end, k.convert(last, "zext", I64))
        sums = k.var(pixels + k.field(desc, _SUMS_OFFSET))
        with k.loop(end, start=begin) as unit:
            k.call("unit", desc, ctx, unit, sums.get(), out, rows, first_row)
            sums.set(sums.get() + k.field(desc, _UNIT_SUMS))


def _emit_input(k: Kernel, m: int, rounding: str, scale: float) -> None:
    """input(desc, pixels, v, rows): V of one channel group, plane by plane `plane_pitch` apart."""
    edge, lanes = m + 2, 16 if k.cpu.wide else 8
    with k.function("input", [I64] * 4) as (desc, pixels, v, rows):
        columns, row_bytes = k.field(desc, _TILE_COLUMNS), k.field(desc, conv_fill.ROW_BYTES)
        pitch = k.field(desc, _PLANE_PITCH)
        spare = k.alloca(64)
        to = k.var(v)
        with k.loop(rows) as r:
            at = k.var(pixels + r * (row_bytes * m))
            with k.loop(columns):
                with k.loop(PIXEL, step=lanes * 4) as part:
                    here = at.get() + part
                    lines = [here]
                    for _ in range(edge - 1):
                        lines.append(lines[-1] + row_bytes)
                    passed = [
                        _input_pass(k, m, [_scaled(k.load(line + j * PIXEL, vec(F32, lanes)), scale) for line in lines])
                        for j in range(edge)
                    ]
                    plane = k.var(to.get() + part)
                    for i in range(edge):
                        for value in _input_pass(k, m, [column[i] for column in passed]):
                            k.store(_rounded(k, value, rounding, spare), plane.get())
                            plane.set(plane.get() + pitch)
                at.set(at.get() + m * PIXEL)
                to.set(to.get() + PIXEL)


def _scaled(value: Val, scale: float) -> Val:
    return value if scale == 1.0 else value * (1 / scale**2)


def _rounded(k: Kernel, value: Val, rounding: str, spare: Val) -> Val:
    """The value as the cube's 16-bit operand, widened again."""
    if rounding in ("none", "guarded"):
        return value
    if rounding == "saturate":
        value = epilogue.saturated(k, value, k.const(1), "f16")
    if k.cpu.half:
        half = k.convert(value, "fptrunc", vec(F16, value.type.count))
        return k.convert(half, "fpext", vec(F32, value.type.count))
    k.store_f32(value, spare, "f16")
    return k.load_f32(spare, "f16", value.type.count)


def _input_pass(k: Kernel, m: int, d: list[Val]) -> list[Val]:
    """B^T d along one axis."""
    if m == 2:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]
    a, b = k.fma(d[2], -4.0, d[4]), k.fma(d[1], -4.0, d[3])
    c, e = d[4] - d[2], d[3] - d[1]
    e = e + e
    return [
        k.fma(d[0], 4.0, k.fma(d[2], -5.0, d[4])),
        a + b,
        a - b,
        c + e,
        c - e,
        k.fma(d[1], 4.0, k.fma(d[3], -5.0, d[5])),
    ]


def _output_pass(k: Kernel, m: int, s: list[Val]) -> list[Val]:
    """A^T s along one axis."""
    if m == 2:
        return [s[0] + s[1] + s[2], s[1] - s[2] - s[3]]
    a, b, c, d = s[1] + s[2], s[1] - s[2], s[3] + s[4], s[3] - s[4]
    return [s[0] + a + c, k.fma(d, 2.0, b), k.fma(c, 4.0, a), k.fma(d, 8.0, b) + s[5]]


def _emit_products(k: Kernel, m: int) -> None:
    """products(desc, ctx, first unit, end, last band?): all planes of some units through the tiles.

    Every plane goes by chunks of taps, each with all units, so that what a chunk reads of V stays near. Every piece of
    the filter comes once, asked for while the piece before it is multiplied.
    """
    planes = (m + 2) * (m + 2)
    _emit_piece(k, planes)
    with k.function("products", [I64] * 5) as (desc, ctx, begin, end, last):
        base = scratch(k, ctx)
        taps, chunk = k.field(desc, panels.TAP_COUNT), k.field(desc, panels.CHUNK_TAPS)
        block = k.alloca(8 * tiles.BLOCK_FIELDS)
        k.store(k.field(desc, _ZEROS), block + 8 * tiles.BIAS)
        k.store(k.const(0), block + 8 * tiles.PITCH)
        k.store(k.const(0), block + 8 * tiles.KEPT)
        k.store(k.field(desc, _AHEAD_BYTES), block + 8 * tiles.AHEAD_BYTES)
        v, sums = k.var(base + k.field(desc, _V_OFFSET)), k.var(base + k.field(desc, _SUMS_OFFSET))
        with k.loop(planes) as plane:
            with k.loop(taps, step=chunk) as tap:
                k.store(k.field(desc, panels.TAPS) + tap * 8, block + 8 * tiles.TAPS)
                k.store(k.minimum(taps - tap, chunk), block + 8 * tiles.TAP_COUNT)
                k.store(v.get(), block + 8 * tiles.X)
                to = k.var(sums.get())
                with k.loop(end, start=begin) as unit:
                    more, further = (unit + 1) < end, (tap + chunk) < taps
                    final = ~more & ~further & (plane + 1).eq(planes)
                    k.call(
                        "piece",
                        *(desc, ctx, block, unit, plane, tap),
                        k.select(final, end, k.select(more, unit + 1, begin)),
                        k.select(more | further, plane, k.select(final, k.const(0), plane + 1)),
                        k.select(more, tap, k.select(further, tap + chunk, 0)),
                        *(to.get(), last),
                    )
                    to.set(to.get() + k.field(desc, _UNIT_SUMS))
            v.set(v.get() + k.field(desc, _PLANE_PITCH))
            sums.set(sums.get() + k.field(desc, _SUMS_PITCH))


def _emit_piece(k: Kernel, planes: int) -> None:
    """piece(desc, ctx, block, unit, plane, tap, next unit, next plane, next tap, sums, last band?): a chunk of one
    unit's filter with all tiles of a plane."""

    def weights_at(desc: Val, unit: Val, plane: Val, tap: Val) -> Val:
        _, group, vectors = panels.unit_of(k, desc, unit)
        group_bytes = k.field(desc, panels.UNIT_BYTES) / k.field(desc, panels.VECTORS)
        within = (plane * group_bytes + tap * k.field(desc, panels.TAP_BYTES)) * vectors
        return panels.weights_field(k, desc) + group * group_bytes * planes + within

    with k.function("piece", [I64] * 11) as (desc, ctx, block, unit, plane, tap, *following, sums, last):
        rows, count = panels.tiles_of(k, desc, last)
        (full, _, vectors), taps = panels.unit_of(k, desc, unit), k.field(block, tiles.TAP_COUNT)
        wide = panels.place_weights(k, desc, ctx, block, weights_at(desc, unit, plane, tap))
        v, ahead = k.field(block, tiles.X), k.var(weights_at(desc, *following))
        with k.loop(count) as t:
            row = rows + t * 32
            start = k.field(row, 2)
            k.store(v + start, block + 8 * tiles.X)
            to = sums + start * vectors
            k.store(to, block + 8 * tiles.BUFFER)
            k.store(k.select(tap.eq(0), 0, to), block + 8 * tiles.START)
            k.store(ahead.get(), block + 8 * tiles.NEXT)
            k.call_address(k.select(full, k.field(row, 0), k.field(row, 1)), block, 0, 0)
            k.store(wide, block + 8 * tiles.WEIGHTS)
            ahead.set(ahead.get() + taps * k.field(block, tiles.AHEAD_BYTES))
        k.store(v, block + 8 * tiles.X)


def _emit_output(k: Kernel, m: int, guarded: bool) -> None:
    """output(desc, ctx, sums, bias, finished, vectors): one row of tiles, as m rows of fp32 pixels `[vectors][16]`."""
    edge, lanes = m + 2, 16 if k.cpu.wide else 8
    with k.function("output", [I64] * 6) as (desc, ctx, sums, bias, finished, vectors):
        watch = k.var(0.0, vec(F32, lanes))
        columns = k.field(desc, _TILE_COLUMNS)
        step = vectors * PIXEL
        pitch, row = k.field(desc, _SUMS_PITCH), columns * step * m
        with k.loop(columns) as t, k.loop(step, step=lanes * 4) as lane:
            at = k.var(sums + t * step + lane)
            loaded = []
            for _ in range(edge * edge):
                loaded.append(k.load(at.get(), vec(F32, lanes)))
                at.set(at.get() + pitch)
            passed = [_output_pass(k, m, loaded[j::edge]) for j in range(edge)]
            own = k.load(bias + lane, vec(F32, lanes))
            to = finished + t * (step * m) + lane
            for i in range(m):
                for j, value in enumerate(_output_pass(k, m, [column[i] for column in passed])):
                    k.store(value + own, to + j * step)
                    if guarded:
                        watch.set(k.fma(value, 0.0, watch.get()))
                to = to + row
        if guarded:
            rest = watch.get()
            while rest.type.count > 1:
                low, high = k.halves(rest)
                rest = low + high
            with k.when(k.extract(rest, 0).isnan()):
                report(k, ctx, NOT_FINITE, k.const(0))


def _emit_unit(k: Kernel, m: int) -> None:
    """unit(desc, ctx, unit, sums, out, rows, first row): the pixels made of one unit's products."""
    with k.function("unit", [I64] * 7) as (desc, ctx, unit, sums, out, rows, first_row):
        _, group, vectors = panels.unit_of(k, desc, unit)
        finished = scratch(k, ctx) + k.field(desc, _FINISHED_OFFSET)
        columns, height, width = k.field(desc, _TILE_COLUMNS), k.field(desc, _OH), k.field(desc, _OW)
        bias = k.field(desc, panels.BIAS) + group * PIXEL
        oc, oh, pitch = k.field(desc, panels.OC), k.field(desc, panels.OH), k.field(desc, panels.PIXEL_PITCH)
        shift = k.field(desc, panels.EPILOGUE) - k.field(desc, panels.OUT)
        lanes = (k.field(desc, panels.CHANNELS) - group * 16, k.field(desc, panels.STORED) - group * 16)
        step = columns * vectors * PIXEL
        with k.loop(rows) as r:
            k.call("output", desc, ctx, sums + r * step, bias, finished, vectors)
            top = (first_row + r) * m
            live = k.minimum(height - top, m)
            with k.loop(live) as i:
                to = out + group * oc + (top + i) * k.field(desc, _OUT_ROW)
                k.call("epilogue", desc, finished + i * (step * m), vectors, width, to, shift, oc, oh, pitch, *lanes)
