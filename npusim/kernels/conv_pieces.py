"""Grouped convolutions whose groups straddle 16-channel blocks: every output block is made of pieces, one a group.

The scratch block is that of a dense convolution. A piece computes 16 lanes, or 8 where its group has no others, from
the input channels of its own group, with taps that are runs of `tap` channels wherever they lie in the blocks. Lanes of
other groups multiply their neighbours' channels by zero and are thrown away, so that no group sees another one's
infinities: the pieces of a block follow each other, short ones first, and each keeps the lanes that are not its own as
those before left them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from npusim.kernels import panels, tiles
from npusim.kernels.conv_scratch import Conv2D, Scratch
from npusim.kernels.desc import int64_table
from npusim.kernels.dispatch import scratch
from npusim.kernels.ir import I64, Kernel, Val
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


@dataclass(frozen=True)
class _Piece:
    """What a group has in a block of 16 outputs: lanes `begin` to `end`."""

    group: int
    begin: int
    end: int

    @property
    def half(self) -> int | None:
        """The half of the block that holds them all."""
        return self.begin // 8 if self.begin // 8 == (self.end - 1) // 8 else None

    @property
    def first_lane(self) -> int:
        """Where the vector that it computes begins in the block."""
        return 8 * (self.half or 0)

    @property
    def lanes(self) -> int:
        return 16 if self.half is None else 8


def _pieces(shape: Conv2D) -> list[list[_Piece]]:
    """Pieces of each block of 16 outputs, in the order they are computed."""
    per = shape.o // shape.groups
    units = []
    for start in range(0, shape.o, 16):
        stop = min(start + 16, shape.o)
        groups = range(start // per, (stop - 1) // per + 1)
        ends = [(group, max(0, group * per - start), min(stop, (group + 1) * per) - start) for group in groups]
        units.append(sorted((_Piece(*own) for own in ends), key=lambda piece: (piece.lanes, piece.begin)))
    return units


def _runs(shape: Conv2D, group: int) -> list[tuple[int, list[int]]]:
    """Blocks that hold a group's input channels, with the channels at which its runs begin."""
    per, run = shape.c // shape.groups, tap_run(shape)
    starts = range(group * per, (group + 1) * per, run)
    blocks = sorted({start // 16 for start in starts})
    return [(block, [start for start in starts if start // 16 == block]) for block in blocks]


def pack_pieces(shape: Conv2D, weights: np.ndarray) -> np.ndarray:
    """Grouped OIHW filter -> flat fp32, piece by piece `[taps][run][lanes of the piece]`."""
    per, run, (kh, kw) = shape.c // shape.groups, tap_run(shape), shape.kernel
    packed = []
    for unit, pieces in enumerate(_pieces(shape)):
        for piece in pieces:
            lanes = np.zeros((16, per, kh * kw), np.float32)
            own = weights[unit * 16 + piece.begin : unit * 16 + piece.end]
            lanes[piece.begin : piece.end] = own.reshape(-1, per, kh * kw)
            lanes = lanes[piece.first_lane : piece.first_lane + piece.lanes]
            for _, starts in _runs(shape, piece.group):
                some = lanes[:, starts[0] - piece.group * per : starts[-1] + run - piece.group * per]
                split = some.reshape(piece.lanes, len(starts), run, kh * kw).transpose(3, 1, 2, 0)
                packed.append(split.ravel())
    return aligned(np.concatenate(packed))


_TAP_BYTES, _TAP_COUNT, _WEIGHT_BYTES, _FIRST_LANE, _BEGIN, _END, _LANES, _KEEPS, _STORES, _PIECE_FIELDS = range(10)


@dataclass(frozen=True)
class PieceTables:
    """What the kernel walks: (first piece, pieces) of a unit; of a piece, where its taps begin and how many they are,
    where its weights begin, the block's lane it begins at, its own lanes counted from there up to an end, how many it
    computes, whether others are kept, and whether it stores. Behind the pieces stands where the weights end.
    """

    taps: np.ndarray
    units: np.ndarray
    pieces: np.ndarray


def piece_tables(shape: Conv2D, layout: Scratch) -> PieceTables:
    """Tables for the scratch geometry of a band (offsets in bytes)."""
    places, run = layout.taps().reshape(layout.groups, -1), tap_run(shape)
    taps: list[int] = []
    units: list[tuple[int, int]] = []
    pieces: list[tuple[int, ...]] = []
    weights = 0
    for unit in _pieces(shape):
        units.append((len(pieces), len(unit)))
        for number, piece in enumerate(unit):
            own = [
                int(place) + start % 16 * 4
                for block, starts in _runs(shape, piece.group)
                for place in places[block]
                for start in starts
            ]
            # A vector is finished by its last piece; whole ones, which come last, finish both halves.
            kept = any(_overlap(piece, other) for other in unit[:number])
            stores = not any(_overlap(piece, other) for other in unit[number + 1 :])
            lanes = (piece.first_lane, piece.begin - piece.first_lane, piece.end - piece.first_lane, piece.lanes)
            pieces.append((len(taps) * 8, len(own), weights, *lanes, int(kept), int(stores)))
            taps += own
            weights += len(own) * run * piece.lanes * 4
    pieces.append((0, 0, weights, 0, 0, 0, 0, 0, 0))
    return PieceTables(np.array(taps, np.int64), int64_table(units), int64_table(pieces))


def _overlap(a: _Piece, b: _Piece) -> bool:
    """Whether pieces compute lanes in common."""
    return a.first_lane < b.first_lane + b.lanes and b.first_lane < a.first_lane + a.lanes


def emit_pieces(k: Kernel, unit_table: int, dtype: str) -> None:
    """Emit `pieces(desc, ctx, x, out, first unit, end unit, last band?)`; `unit_table` is a descriptor field."""
    _emit_piece(k)
    with k.function("pieces", [I64] * 7) as (desc, ctx, base, out, begin, end, last):
        f = {n: k.field(desc, n) for n in range(panels.WEIGHTS, panels.EPILOGUE)}
        buffer = scratch(k, ctx) + f[panels.BUFFER]
        block = k.alloca(8 * tiles.BLOCK_FIELDS)
        table, count = panels.tiles_of(k, desc, last)
        shift = k.field(desc, panels.EPILOGUE) - f[panels.OUT]
        stores = panels.emit_block(k, desc, f, block, (buffer, shift), dtype)
        k.store(k.const(0), block + 8 * tiles.AHEAD_BYTES)
        with k.loop(end, start=begin) as unit:
            pair = k.field(desc, unit_table) + unit * 16
            first, after = (f[panels.UNIT_SHIFTS] + piece * (8 * _PIECE_FIELDS) for piece in _range_of(k, pair))
            bias, pixels = f[panels.BIAS] + unit * 64, k.var(out + unit * f[panels.OC])
            lanes = (f[panels.CHANNELS] - unit * 16, f[panels.STORED] - unit * 16)
            pitch = k.var(f[panels.PITCH])
            itself = stores & (k.minimum(*lanes) >= 16)
            # The weights of the next unit come nearer meanwhile.
            begin_bytes, end_bytes = k.field(first, _WEIGHT_BYTES), k.field(after, _WEIGHT_BYTES)
            ahead, share = k.var(f[panels.WEIGHTS] + end_bytes), (end_bytes - begin_bytes) / count + 1
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
                to = k.select(itself, at, 0)
                with k.loop(after, start=first, step=8 * _PIECE_FIELDS) as piece:
                    k.call("piece", desc, block, piece, row, bias, buffer, to)
                with k.when(~itself):
                    places = (f[panels.OC], f[panels.OH], f[panels.PIXEL_PITCH])
                    k.call("epilogue", desc, buffer, 1, live, at, shift, *places, *lanes)
                pixels.set(at + live * f[panels.PIXEL_PITCH])


def _range_of(k: Kernel, pair: Val) -> tuple[Val, Val]:
    """First piece of a unit, and that behind its last."""
    return k.field(pair, 0), k.field(pair, 0) + k.field(pair, 1)


def _emit_piece(k: Kernel) -> None:
    """piece(desc, block, piece, tile row, bias, buffer, out or 0): one tile of one piece."""
    with k.function("piece", [I64] * 7) as (desc, block, piece, row, bias, buffer, out):
        skip = k.field(piece, _FIRST_LANE)
        own = buffer + skip * 4
        upper = k.select(skip.ne(0), k.field(desc, panels.OH), 0)
        values = {
            tiles.TAPS: k.field(desc, panels.TAPS) + k.field(piece, _TAP_BYTES),
            tiles.TAP_COUNT: k.field(piece, _TAP_COUNT),
            tiles.WEIGHTS: k.field(desc, panels.WEIGHTS) + k.field(piece, _WEIGHT_BYTES),
            tiles.BIAS: bias + skip * 4,
            tiles.BUFFER: own,
            tiles.KEPT: k.select(k.field(piece, _KEEPS).ne(0), own, 0),
            tiles.FIRST_LANE: k.field(piece, _BEGIN),
            tiles.END_LANE: k.field(piece, _END),
            tiles.OUT: k.select(out.ne(0) & k.field(piece, _STORES).ne(0), out + upper, 0),
        }
        for number, value in values.items():
            k.store(value, block + 8 * number)
        half = k.field(piece, _LANES).eq(8)
        k.call_address(k.select(half, k.field(row, 1), k.field(row, 0)), block, 0, 0)
