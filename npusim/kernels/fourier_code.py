"""Transforms of convolution by Fourier transforms: two kernels between dense channels, one depthwise.

Kernel names: `fourier:input:<dtype>:<edge>` (pixels of a row of tiles and one channel group into spectra),
`fourier:output:<dtype>:<edge>` (sums of a row of tiles and one unit of output channels back into pixels) and
`fourier:depthwise:<input dtype>:<output dtype>:<edge>`; what lies between the first two is in
npusim.kernels.fourier_products. npusim.kernels.fourier makes the descriptors. Results that are not finite stop the run
after the task with status NOT_FINITE. Orders of planes and columns: npusim.kernels.fourier_shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from npusim.kernels import conv_fill, epilogue, panels
from npusim.kernels import fourier_passes as passes
from npusim.kernels.dispatch import NOT_FINITE, report, scratch
from npusim.kernels.fourier_fields import own
from npusim.kernels.fourier_passes import Complex, Index, Line, Room
from npusim.kernels.ir import F32, I64, LANES, Kernel, Val, vec

_PIXEL = 4 * LANES


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit the kernel of one name; raises ValueError for an unknown one."""
    kind, *rest = parameters.split(":")
    if kind == "input":
        _emit_input(k, rest[0], int(rest[1]))
    elif kind == "output":
        _emit_output(k, rest[0], int(rest[1]))
    elif kind == "depthwise":
        _emit_depthwise(k, rest[0], rest[1], int(rest[2]))
    else:
        raise ValueError(f"unknown Fourier kernel {kind!r}")


def _lanes(k: Kernel) -> int:
    return 16 if k.cpu.wide else 8


def _pitch(k: Kernel, edge: int) -> int:
    return passes.row_pitch(edge, _lanes(k))


def _tile_bytes(k: Kernel, edge: int) -> int:
    return edge * _pitch(k, edge)


def _image_of(k: Kernel, desc: Val, row: Val) -> tuple[Val, Val]:
    """Image and row of tiles in it, of a row of tiles of this call."""
    number = own(k, desc, "first_row") + row
    rows = own(k, desc, "image_rows")
    return number / rows, number % rows


# -- from pixels to spectra


def _emit_input(k: Kernel, dtype: str, edge: int) -> None:
    conv_fill.emit_zeros(k)
    conv_fill.emit_fill(k, dtype)
    _emit_rows_forward(k, edge)
    _emit_columns_forward(k, edge)
    with k.main() as (desc, part, ctx):
        groups = k.field(desc, conv_fill.GROUPS)
        row, group = part / groups, part % groups
        pixels, tile = _filled(k, desc, ctx, row, group)
        columns, at_once = own(k, desc, "columns"), own(k, desc, "tiles_at_once")
        to = own(k, desc, "spectra") + group * own(k, desc, "spectra_group") + row * columns * _PIXEL
        with k.loop(columns, step=at_once) as first:
            count, spectrum = k.minimum(columns - first, at_once), k.var(tile)
            with k.loop(count) as t, k.loop(_PIXEL, step=_lanes(k) * 4) as lane:
                here = pixels + (first + t) * own(k, desc, "tile_step") + lane
                k.call("rows_forward", desc, ctx, here, spectrum.get())
                spectrum.set(spectrum.get() + _tile_bytes(k, edge))
            k.call("columns_forward", desc, ctx, tile, to + first * _PIXEL, count * _PIXEL)


def _filled(k: Kernel, desc: Val, ctx: Val, row: Val, group: Val) -> tuple[Val, Val]:
    """Widen the pixels of one row of tiles; their address, and that of a tile's spectrum in scratch."""
    image, band = _image_of(k, desc, row)
    pixels = scratch(k, ctx)
    image_at = k.field(desc, conv_fill.X) + image * k.field(desc, conv_fill.XN)
    k.call("fill", desc, pixels, image_at, band, group, 1)
    return pixels, pixels + own(k, desc, "tile_offset")


def _room(k: Kernel, desc: Val, ctx: Val) -> Room:
    return Room(scratch(k, ctx) + own(k, desc, "line_offset"), own(k, desc, "turns"), _lanes(k))


def _emit_rows_forward(k: Kernel, edge: int) -> None:
    """rows_forward(desc, ctx, pixels, tile): the spectrum of every row of a tile, two at a time."""
    size, kind, pitch = _lanes(k) * 4, vec(F32, _lanes(k)), _pitch(k, edge)
    with k.function("rows_forward", [I64] * 4) as (desc, ctx, pixels, tile):
        room, row_bytes = _room(k, desc, ctx), k.field(desc, conv_fill.ROW_BYTES)
        at, to = k.var(pixels), k.var(tile)
        with k.loop(edge // 2):
            here, row = at.get(), to.get()

            def pixel(place: Index, here: Val = here) -> Complex:
                return k.load(here + place * _PIXEL, kind), k.load(here + row_bytes + place * _PIXEL, kind)

            def store(place: Index, first: Complex, second: Complex, row: Val = row) -> None:
                for value, to in ((first, row), (second, row + pitch)):
                    k.store(value[0], to + place * (2 * size))
                    k.store(value[1], to + (place * (2 * size) + size))

            ends = passes.split(k, edge, passes.forward(k, edge, pixel, room), store)
            for number, value in enumerate(ends):
                k.store(value, row + (number % 2 * size + number // 2 * pitch))
            at.set(here + row_bytes * 2)
            to.set(row + 2 * pitch)


def _emit_columns_forward(k: Kernel, edge: int) -> None:
    """columns_forward(desc, ctx, tile, to, bytes of the tiles): the image's factors of all planes.

    Column by column over all tiles: what a column gives goes to few planes, in which tiles are neighbours.
    """
    step = _lanes(k) * 4
    with k.function("columns_forward", [I64] * 5) as (desc, ctx, tile, to, end):
        room, pitch = _room(k, desc, ctx), own(k, desc, "spectra_pitch")

        def store(at: Val, value: Complex) -> None:
            k.store(value[0], at)
            k.store(value[1], at + pitch)

        lines = _line_planes(k, edge, to, pitch)
        with _each_tile(k, edge, tile, end) as (spectrum, place):
            _expect(k, edge, lines[2] + place, pitch)

            def pair(number: Index, a: Complex, b: Complex, place: Val = place) -> None:
                for line, value in zip(lines, (a, b)):
                    store(line + (place + pitch * ((number - 1) * 2)), value)

            bins = passes.forward(k, edge, _column(k, spectrum, spectrum + step, edge), room)
            ends = passes.split(k, edge, bins, pair)
            store(to + place, (ends[0], ends[1]))
            store(to + place + pitch * 2, (ends[2], ends[3]))
        plane = k.var(lines[2])
        with k.loop(edge * step, start=2 * step, step=2 * step) as column:
            with _each_tile(k, edge, tile + column, end) as (spectrum, place):
                _expect(k, edge, plane.get() + (place + pitch * (2 * edge)), pitch)
                bins = passes.forward(k, edge, _column(k, spectrum, spectrum + step, edge), room)
                for number in passes.places(k, edge, 0, edge):
                    store(plane.get() + place + pitch * (number * 2), bins(number))
            plane.set(plane.get() + pitch * (2 * edge))


def _expect(k: Kernel, edge: int, at: Val, pitch: Val) -> None:
    """Ask for the lines of a column's planes, which come next; vectors of the same line ask once."""
    with k.when((at & 63).eq(0)):
        for number in passes.places(k, edge, 0, 2 * edge):
            k.prefetch(at + pitch * number)


def _line_planes(k: Kernel, edge: int, base: Val, pitch: Val) -> list[Val]:
    """Where the complex points of the first column, of the second and of the others begin."""
    real = base + pitch * 4
    return [real, real + pitch * (edge - 2), real + pitch * (2 * edge - 4)]


@contextmanager
def _each_tile(k: Kernel, edge: int, tile: Val, end: Val) -> Iterator[tuple[Val, Val]]:
    """Loop over the vectors of the pixels of a row of tiles: address of the spectrum in scratch, byte of the pixel."""
    spectrum = k.var(tile)
    with k.loop(end, step=_lanes(k) * 4) as place:
        yield spectrum.get(), place
        spectrum.set(spectrum.get() + _tile_bytes(k, edge))


def _column(k: Kernel, re: Val, im: Val, edge: int) -> Line:
    pitch, kind = _pitch(k, edge), vec(F32, _lanes(k))
    return lambda place: (k.load(re + place * pitch, kind), k.load(im + place * pitch, kind))


# -- from sums to pixels


def _emit_output(k: Kernel, target: str, edge: int) -> None:
    epilogue.emit_function(k, target, panels.EPILOGUE)
    _emit_columns_backward(k, edge)
    _emit_rows_backward(k, edge)
    _emit_stored(k)
    with k.main() as (desc, part, ctx):
        units = own(k, desc, "out_units")
        row, unit = part / units, part % units
        _, group, vectors = panels.unit_of(k, desc, unit)
        columns, at_once = own(k, desc, "columns"), own(k, desc, "tiles_at_once") / vectors
        step = vectors * _PIXEL
        tile = scratch(k, ctx) + own(k, desc, "tile_offset")
        sums = own(k, desc, "sums") + group * own(k, desc, "sums_group") + row * columns * step
        with k.loop(columns, step=at_once) as first:
            count, spectrum = k.minimum(columns - first, at_once), k.var(tile)
            k.call("columns_backward", desc, ctx, sums + first * step, tile, count * step)
            with k.loop(count) as t, k.loop(step, step=_lanes(k) * 4) as lane:
                k.call("rows_backward", desc, ctx, spectrum.get(), group, first + t, lane, step)
                spectrum.set(spectrum.get() + _tile_bytes(k, edge))
        k.call("stored", desc, ctx, row, group, vectors)


def _emit_columns_backward(k: Kernel, edge: int) -> None:
    """columns_backward(desc, ctx, sums, tile, bytes of the tiles): spectra of the rows, from the sums of all planes."""
    step, kind = _lanes(k) * 4, vec(F32, _lanes(k))
    with k.function("columns_backward", [I64] * 5) as (desc, ctx, sums, tile, end):
        room, pitch = _room(k, desc, ctx), own(k, desc, "sums_pitch")

        def point(at: Val) -> Complex:
            return k.load(at, kind), k.load(at + pitch, kind)

        lines = _line_planes(k, edge, sums, pitch)
        with _each_tile(k, edge, tile, end) as (spectrum, place):
            _expect(k, edge, lines[2] + place, pitch)

            def both(number: Index, place: Val = place) -> tuple[Complex, Complex]:
                first, second = (point(line + (place + pitch * ((number - 1) * 2))) for line in lines[:2])
                return first, second

            ends = [k.load(sums + place + pitch * number, kind) for number in range(4)]
            bins = passes.joined(k, edge, both, ends, room)
            _store_columns(k, edge, passes.backward(k, edge, bins, room), spectrum)
        plane = k.var(lines[2])
        with k.loop(edge * step, start=2 * step, step=2 * step) as column:
            with _each_tile(k, edge, tile + column, end) as (spectrum, place):
                at = plane.get() + place
                _expect(k, edge, at + pitch * (2 * edge), pitch)

                def complex_point(number: Index, at: Val = at) -> Complex:
                    return point(at + pitch * (number * 2))

                _store_columns(k, edge, passes.backward(k, edge, complex_point, room), spectrum)
            plane.set(plane.get() + pitch * (2 * edge))


def _store_columns(k: Kernel, edge: int, values: Line, at: Val) -> None:
    """Real and imaginary parts of a line into two neighbouring columns."""
    pitch, size = _pitch(k, edge), _lanes(k) * 4
    for place in passes.places(k, edge, 0, edge):
        for part, value in enumerate(values(place)):
            k.store(value, at + (place * pitch + part * size))


def _emit_rows_backward(k: Kernel, edge: int) -> None:
    """rows_backward(desc, ctx, tile, group, column, lane, step): results of a tile, bias added, `step` bytes apart."""
    lanes, pitch = _lanes(k), _pitch(k, edge)
    size, kind = lanes * 4, vec(F32, lanes)
    with k.function("rows_backward", [I64] * 7) as (desc, ctx, tile, group, column, lane, step):
        room = _room(k, desc, ctx)
        bias = k.load(k.field(desc, panels.BIAS) + group * _PIXEL + lane, kind)
        finished = scratch(k, ctx) + own(k, desc, "finished_offset") + lane
        row_bytes = own(k, desc, "finished_columns") * step
        to = k.var(finished + column * (own(k, desc, "tile_step") / _PIXEL * step))
        at, watch = k.var(tile), [k.var(0.0, kind) for _ in range(2)]
        with k.loop(own(k, desc, "tile_height"), step=2):
            here, pixel = at.get(), to.get()

            def both(place: Index, here: Val = here) -> tuple[Complex, Complex]:
                first, second = (
                    tuple(k.load(row + (place * 2 * size + part * size), kind) for part in (0, 1))
                    for row in (here, here + pitch)
                )
                return (first[0], first[1]), (second[0], second[1])

            ends = [k.load(here + (number % 2 * size + number // 2 * pitch), kind) for number in range(4)]
            values = passes.backward(k, edge, passes.joined(k, edge, both, ends, room), room)
            for place in passes.places(k, edge, 0, edge):
                for number, value in enumerate(values(place)):
                    k.store(value + bias, pixel + (row_bytes * number + step * place))
                    watch[number].set(k.fma(value, 0.0, watch[number].get()))
            at.set(here + 2 * pitch)
            to.set(pixel + row_bytes * 2)
        _report_strange(k, ctx, watch[0].get() + watch[1].get())


def _report_strange(k: Kernel, ctx: Val, watch: Val) -> None:
    """Report NOT_FINITE where a lane of `watch` is a NaN."""
    while watch.type.count > 1:
        low, high = k.halves(watch)
        watch = low + high
    with k.when(k.extract(watch, 0).isnan()):
        report(k, ctx, NOT_FINITE, k.const(0))


def _emit_stored(k: Kernel) -> None:
    """stored(desc, ctx, row, group, vectors): the results of a row of tiles, rounded and stored."""
    with k.function("stored", [I64] * 5) as (desc, ctx, row, group, vectors):
        image, band = _image_of(k, desc, row)
        finished = scratch(k, ctx) + own(k, desc, "finished_offset")
        step = own(k, desc, "finished_columns") * vectors * _PIXEL
        height, tile_height = own(k, desc, "oh"), own(k, desc, "tile_height")
        top = band * tile_height
        oc, oh, pitch = k.field(desc, panels.OC), k.field(desc, panels.OH), k.field(desc, panels.PIXEL_PITCH)
        out = k.field(desc, panels.OUT) + image * k.field(desc, conv_fill.ON) + group * oc
        shift = k.field(desc, panels.EPILOGUE) - k.field(desc, panels.OUT)
        lanes = (k.field(desc, panels.CHANNELS) - group * 16, k.field(desc, panels.STORED) - group * 16)
        width = own(k, desc, "ow")
        with k.loop(k.minimum(height - top, tile_height)) as i:
            to = out + (top + i) * own(k, desc, "out_row")
            k.call("epilogue", desc, finished + i * step, vectors, width, to, shift, oc, oh, pitch, *lanes)


# -- depthwise


def _emit_depthwise(k: Kernel, source: str, target: str, edge: int) -> None:
    epilogue.emit_function(k, target, panels.EPILOGUE)
    conv_fill.emit_zeros(k)
    conv_fill.emit_fill(k, source)
    _emit_rows_forward(k, edge)
    _emit_filtered(k, edge)
    _emit_rows_backward(k, edge)
    _emit_stored(k)
    with k.main() as (desc, part, ctx):
        units = own(k, desc, "out_units")
        row, group = part / units, part % units
        pixels, tile = _filled(k, desc, ctx, row, group)
        weights = panels.weights_field(k, desc) + group * (edge * edge * _PIXEL)
        with k.loop(own(k, desc, "columns")) as t, k.loop(_PIXEL, step=_lanes(k) * 4) as lane:
            k.call("rows_forward", desc, ctx, pixels + t * own(k, desc, "tile_step") + lane, tile)
            k.call("filtered", desc, ctx, tile, weights + lane)
            k.call("rows_backward", desc, ctx, tile, group, t, lane, _PIXEL)
        k.call("stored", desc, ctx, row, group, 1)


def _emit_filtered(k: Kernel, edge: int) -> None:
    """filtered(desc, ctx, tile, weights): spectra of a tile's rows -> the same of the result's rows."""
    size, kind = _lanes(k) * 4, vec(F32, _lanes(k))

    def factor(weights: Val, place: Index) -> Complex:
        return k.load(weights + place * (2 * _PIXEL), kind), k.load(weights + (place * (2 * _PIXEL) + _PIXEL), kind)

    with k.function("filtered", [I64] * 4) as (desc, ctx, tile, weights):
        room = _room(k, desc, ctx)
        below = weights + edge * _PIXEL
        bins = passes.forward(k, edge, _column(k, tile, tile + size, edge), room)
        first, second = factor(weights, 0), factor(below, 0)
        middles = bins(edge // 2)
        ends = [
            *(bins(0)[0] * first[0], middles[0] * first[1]),
            *(bins(0)[1] * second[0], middles[1] * second[1]),
        ]

        def both(place: Index) -> tuple[Complex, Complex]:
            x, y = passes.separated(bins(place), bins(edge - place))
            return passes.multiply(k, x, factor(weights, place)), passes.multiply(k, y, factor(below, place))

        made = passes.joined(k, edge, both, ends, room)
        _store_columns(k, edge, passes.backward(k, edge, made, room), tile)
        factors = k.var(weights + 2 * edge * _PIXEL)
        with k.loop(edge * size, start=2 * size, step=2 * size) as column:
            here, points = tile + column, factors.get()
            found = passes.forward(k, edge, _column(k, here, here + size, edge), room)

            def filtered(place: Index, found: Line = found, points: Val = points) -> Complex:
                return passes.multiply(k, found(place), factor(points, place))

            _store_columns(k, edge, passes.backward(k, edge, filtered, room), here)
            factors.set(factors.get() + 2 * edge * _PIXEL)
