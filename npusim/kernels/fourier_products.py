"""The middle of a convolution by Fourier transforms: at every point of the spectra, a matrix product over channels.

Kernel name: `spectra:products`. A complex point takes three real products (npusim.kernels.fourier_shape), each through
the register tiles of direct convolution; factors that are sums of others are made in scratch memory just before.
"""

from __future__ import annotations

from npusim.kernels import panels
from npusim.kernels.dispatch import scratch
from npusim.kernels.fourier_fields import own
from npusim.kernels.ir import F32, I64, Kernel, vec
from npusim.kernels.tiles import BLOCK_FIELDS


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit `spectra:products`.

    Points from `part_points` times the part on; the first part also does the four real ones.
    """
    _emit_product(k)
    _emit_added(k)
    _emit_mixed(k)
    _emit_combined(k)
    with k.main() as (desc, part, ctx):
        per, points = own(k, desc, "part_points"), own(k, desc, "points")
        end = k.minimum((part + 1) * per, points)
        spectra, sums = own(k, desc, "spectra"), own(k, desc, "sums")
        spectra_pitch, sums_pitch = own(k, desc, "spectra_pitch"), own(k, desc, "sums_pitch")
        weights, plane_weights = panels.weights_field(k, desc), own(k, desc, "plane_weights")
        units, whole = k.field(desc, panels.UNITS), own(k, desc, "sums_group")
        with k.when(part.eq(0)), k.loop(4) as plane, k.loop(units) as unit:
            _, group, _ = panels.unit_of(k, desc, unit)
            factors = weights + plane * plane_weights + group * own(k, desc, "group_weights")
            to = sums + plane * sums_pitch + group * whole
            k.call("product", desc, unit, spectra + plane * spectra_pitch, factors, to, factors, 0)
        total, bytes_of = scratch(k, ctx), own(k, desc, "total_bytes")
        filters = total + bytes_of
        apart = filters + own(k, desc, "group_weights") * k.field(desc, panels.VECTORS) * 2
        with k.loop(end, start=part * per) as point:
            place = point * 2 + 4
            real = spectra + place * spectra_pitch
            imaginary = real + spectra_pitch
            k.call("added", real, imaginary, total, bytes_of)
            with k.loop(units) as unit:
                _, group, vectors = panels.unit_of(k, desc, unit)
                size = own(k, desc, "group_weights") * vectors
                pair = weights + place * plane_weights + group * own(k, desc, "group_weights") * 2
                k.call("mixed", pair, filters, size)
                for number, (x, y) in enumerate(((real, filters), (imaginary, filters + size), (total, pair))):
                    # The next unit's filter comes nearer meanwhile.
                    ahead = pair + size * 2 + size * 2 * number / 3
                    to = apart + own(k, desc, "product_bytes") * number
                    k.call("product", desc, unit, x, y, to, ahead, size * 2 / 3)
                k.call("combined", desc, unit, apart, sums + place * sums_pitch)


def _emit_product(k: Kernel) -> None:
    """product(desc, unit, spectra, weights, sums, ahead, bytes): a plane of all tiles with a unit of output channels.

    Meanwhile some bytes at `ahead` are brought into the level-2 cache.
    """
    with k.function("product", [I64] * 7) as (desc, unit, spectra, weights, sums, ahead, ahead_bytes):
        full, _, vectors = panels.unit_of(k, desc, unit)
        block = k.alloca(8 * BLOCK_FIELDS)
        k.store(k.field(desc, panels.TAPS), block + 8)
        k.store(k.field(desc, panels.TAP_COUNT), block + 16)
        k.store(weights, block + 24)
        k.store(own(k, desc, "zeros"), block + 32)
        k.store(k.const(0), block + 48)
        tiles, count = k.field(desc, panels.TILES), k.field(desc, panels.TILE_COUNT)
        share = (ahead_bytes / count + 63) & -64
        with k.loop(count) as t:
            row = tiles + t * 32
            start = k.field(row, 2)
            with k.loop(share, step=64) as at:
                k.prefetch(ahead + t * share + at)
            k.store(spectra + start, block)
            k.store(sums + start * vectors, block + 40)
            k.call_address(k.select(full, k.field(row, 0), k.field(row, 1)), block, 0, 0)


def _emit_added(k: Kernel) -> None:
    """added(a, b, to, bytes): to = a + b."""
    with k.function("added", [I64] * 4) as (a, b, to, count), k.loop(count, step=64) as at:
        k.store(k.load(a + at, vec(F32)) + k.load(b + at, vec(F32)), to + at)


def _emit_mixed(k: Kernel) -> None:
    """mixed(filter, to, bytes): d - c and c + d of a unit, from c and d one after the other."""
    with k.function("mixed", [I64] * 3) as (c, to, count), k.loop(count, step=64) as at:
        first, second = k.load(c + at, vec(F32)), k.load(c + count + at, vec(F32))
        k.store(second - first, to + at)
        k.store(second + first, to + count + at)


def _emit_combined(k: Kernel) -> None:
    """combined(desc, unit, products, sums): real and imaginary part of a point from its three products."""
    with k.function("combined", [I64] * 4) as (desc, unit, products, sums):
        _, group, vectors = panels.unit_of(k, desc, unit)
        size, group_bytes = own(k, desc, "product_bytes"), own(k, desc, "sums_group")
        real = sums + group * group_bytes
        imaginary = real + own(k, desc, "sums_pitch")
        with k.loop(vectors * group_bytes, step=64) as at:
            p0, p1, p2 = (k.load(products + size * number + at, vec(F32)) for number in range(3))
            k.store(p2 - p1, real + at)
            k.store(p2 + p0, imaginary + at)
