"""Grouped convolutions whose groups straddle 16-channel blocks: every output block is made of pieces, one a group.

The scratch block is that of a dense convolution. A piece computes 16 lanes from the input channels of its own group,
with taps that are runs of `tap` channels wherever they lie in the blocks; the lanes before its `first lane` are then
those of the piece before it. Lanes of other groups multiply their neighbours' channels by zero and are thrown away, so
that no group sees another one's infinities.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from npusim.kernels import panels, tiles
from npusim.kernels.conv_scratch import Conv2D, Scratch
from npusim.kernels.desc import int64_table
from npusim.kernels.dispatch import scratch
from npusim.kernels.ir import I64, Kernel
from npusim.kernels.weights import aligned

_LEAST_OUTPUTS = 4


def made_of_pieces(shape: Conv2D) -> bool:
    """Whether groups straddle blocks and have outputs enough for a vector of weights to be worth its place."""
    return shape.groups > 1 and shape.o // shape.groups >= _LEAST_OUTPUTS and not whole_blocks(shape)


def whole_blocks(shape: Conv2D) -> bool:
    """Whether every group's channels fill 16-channel blocks."""
    return (shape.c // shape.groups) % 16 == 0 and (shape.o // shape.groups) % 16 == 0


def dense_scratch(shape: Conv2D) -> Scratch:
    """Scratch geometry of the same convolution without groups."""
    return Scratch(replace(shape, groups=1), "dense")


def tap_run(shape: Conv2D) -> int:
    """Channels of a tap: the longest runs that neither cross a block nor a group."""
    return gcd(shape.c // shape.groups, 16)


def _pieces(shape: Conv2D) -> list[list[int]]:
    """Groups that have channels in each block of 16 outputs."""
    per = shape.o // shape.groups
    return [list(range(start // per, (min(start + 16, shape.o) - 1) // per + 1)) for start in range(0, shape.o, 16)]


def _runs(shape: Conv2D, group: int) -> list[tuple[int, list[int]]]:
    """Blocks that hold a group's input channels, with the channels at which its runs begin."""
    per, run = shape.c // shape.groups, tap_run(shape)
    starts = range(group * per, (group + 1) * per, run)
    blocks = sorted({start // 16 for start in starts})
    return [(block, [start for start in starts if start // 16 == block]) for block in blocks]


def pack_pieces(shape: Conv2D, weights: np.ndarray) -> np.ndarray:
    """Grouped OIHW filter -> flat fp32, piece by piece `[taps][run][16 output lanes]`."""
    per, out_per, run = shape.c // shape.groups, shape.o // shape.groups, tap_run(shape)
    kh, kw = shape.kernel
    packed = []
    for unit, groups in enumerate(_pieces(shape)):
        for group in groups:
            lanes = np.zeros((16, per, kh * kw), np.float32)
            first, last = max(unit * 16, group * out_per), min(unit * 16 + 16, (group + 1) * out_per)
            lanes[first - unit * 16 : last - unit * 16] = weights[first:last].reshape(last - first, per, kh * kw)
            for _, starts in _runs(shape, group):
                own = lanes[:, starts[0] - group * per : starts[-1] + run - group * per]
                split = own.reshape(16, len(starts), run, kh * kw).transpose(3, 1, 2, 0)
                packed.append(split.ravel())
    return aligned(np.concatenate(packed))


@dataclass(frozen=True)
class PieceTables:
    """What the kernel walks: (first piece, pieces) of a unit; (tap offset, taps, weight offset, lane) of a piece.

    Behind the pieces stands where the weights end.
    """

    taps: np.ndarray
    units: np.ndarray
    pieces: np.ndarray


def piece_tables(shape: Conv2D, layout: Scratch) -> PieceTables:
    """Tables for the scratch geometry of a band (offsets in bytes)."""
    places = layout.taps().reshape(layout.groups, -1)
    run, out_per = tap_run(shape), shape.o // shape.groups
    taps: list[int] = []
    units: list[tuple[int, int]] = []
    pieces: list[tuple[int, int, int, int]] = []
    weights = 0
    for unit, groups in enumerate(_pieces(shape)):
        units.append((len(pieces), len(groups)))
        for group in groups:
            own = [
                int(place) + start % 16 * 4
                for block, starts in _runs(shape, group)
                for place in places[block]
                for start in starts
            ]
            pieces.append((len(taps) * 8, len(own), weights, max(0, group * out_per - unit * 16)))
            taps += own
            weights += len(own) * run * 64
    pieces.append((0, 0, weights, 0))
    return PieceTables(np.array(taps, np.int64), int64_table(units), int64_table(pieces))


def emit_pieces(k: Kernel, unit_table: int, dtype: str) -> None:
    """Emit `pieces(desc, ctx, x, out, first unit, end unit, last band?)`; `unit_table` is a descriptor field."""
    with k.function("pieces", [I64] * 7) as (desc, ctx, base, out, begin, end, last):
        f = {n: k.field(desc, n) for n in range(panels.WEIGHTS, panels.EPILOGUE)}
        buffer = scratch(k, ctx) + f[panels.BUFFER]
        block = k.alloca(8 * tiles.BLOCK_FIELDS)
        table = k.select(last.ne(0), f[panels.LAST_TILES], f[panels.TILES])
        count = k.select(last.ne(0), f[panels.LAST_TILE_COUNT], f[panels.TILE_COUNT])
        shift = k.field(desc, panels.EPILOGUE) - f[panels.OUT]
        stores = panels.emit_block(k, desc, f, block, (buffer, shift), dtype)
        k.store(k.const(0), block + 8 * tiles.AHEAD_BYTES)
        with k.loop(end, start=begin) as unit:
            pair = k.field(desc, unit_table) + unit * 16
            first = k.field(pair, 0)
            after = first + k.field(pair, 1)
            k.store(f[panels.BIAS] + unit * 64, block + 8 * tiles.BIAS)
            pixels = k.var(out + unit * f[panels.OC])
            lanes = (f[panels.CHANNELS] - unit * 16, f[panels.STORED] - unit * 16)
            pitch = k.var(f[panels.PITCH])
            itself = stores & (k.minimum(*lanes) >= 16)
            # The weights of the next unit come nearer meanwhile.
            ends = [k.field(f[panels.UNIT_SHIFTS] + piece * 32, 2) for piece in (first, after)]
            ahead, share = k.var(f[panels.WEIGHTS] + ends[1]), (ends[1] - ends[0]) / count + 1
            with k.loop(count) as t:
                row = table + t * 32
                live, at = k.field(row, 3), pixels.get()
                with k.loop(share, step=64) as line:
                    k.prefetch(ahead.get() + line)
                ahead.set(ahead.get() + share)
                k.store(base + k.field(row, 2), block + 8 * tiles.X)
                k.store(live, block + 8 * tiles.LIVE)
                k.store(pitch.get(), block + 8 * tiles.PITCH)
                pitch.set(pitch.get() + live * f[panels.PLACE_BYTES])
                with k.loop(after, start=first) as piece:
                    entry = f[panels.UNIT_SHIFTS] + piece * 32
                    k.store(f[panels.TAPS] + k.field(entry, 0), block + 8 * tiles.TAPS)
                    k.store(k.field(entry, 1), block + 8 * tiles.TAP_COUNT)
                    k.store(f[panels.WEIGHTS] + k.field(entry, 2), block + 8 * tiles.WEIGHTS)
                    k.store(k.select(piece.eq(first), 0, buffer), block + 8 * tiles.KEPT)
                    k.store(k.field(entry, 3), block + 8 * tiles.KEPT_LANES)
                    k.store(k.select(itself & (piece + 1).eq(after), at, 0), block + 8 * tiles.OUT)
                    k.call_address(k.field(row, 0), block, 0, 0)
                with k.when(~itself):
                    places = (f[panels.OC], f[panels.OH], f[panels.PIXEL_PITCH])
                    k.call("epilogue", desc, buffer, 1, live, at, shift, *places, *lanes)
                pixels.set(at + live * f[panels.PIXEL_PITCH])
