"""The loop convolution and matrix product share: output-channel units over the register tiles of one filled band.

A part first fills its scratch block with fp32 pixels, then runs this loop: for every unit of `vectors * 16` output
channels and every tile of the band it calls the tile's micro-kernel and the epilogue. The leading fields of the
descriptors of both kernels are laid out here; `Core` makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from npusim.kernels import epilogue
from npusim.kernels.cpu import host, l2_bytes
from npusim.kernels.desc import int64_table
from npusim.kernels.dispatch import scratch
from npusim.kernels.epilogue import Epilogue
from npusim.kernels.ir import I64, LANES, SIZE, Kernel, Val
from npusim.kernels.store import kernel_address
from npusim.kernels.tiles import BLOCK_FIELDS, tile_name

(
    WEIGHTS,
    BIAS,
    OUT,
    FULL_UNITS,
    UNITS,
    UNIT_BYTES,
    TAP_COUNT,
    TAPS,
    OC,
    OH,
    PIXEL_PITCH,
    CHANNELS,
    STORED,
    TILES,
    LAST_TILES,
    TILE_COUNT,
    LAST_TILE_COUNT,
    PITCH,
    BUFFER,
    VECTORS,
    UNIT_SHIFTS,
    WIDENED,
    EPILOGUE,
) = range(1, 24)
CORE_END = EPILOGUE + epilogue.FIELDS
BUFFER_BYTES = 14 * 2 * 64 + 64


@dataclass(frozen=True)
class TileStep:
    """One register tile of a band: where its pixels start in scratch and how many of them count."""

    segments: int
    length: int
    x_offset: int
    pixels: int


@dataclass
class Core:
    """Leading fields of a convolution or matrix-product descriptor (sizes in bytes unless named otherwise)."""

    weights: int | np.ndarray
    weights_dtype: str
    bias: np.ndarray
    out: int
    units: tuple[int, int]  # full units, all units
    tap_channels: int
    pixel_bytes: int
    taps: np.ndarray
    out_strides: tuple[int, int, int]  # per 16 lanes, per 8 lanes, per pixel
    channels: int
    stored: int
    tiles: Sequence[TileStep]
    last_tiles: Sequence[TileStep]
    pitch: int
    buffer_offset: int
    vectors: int
    unit_shifts: np.ndarray | None = None
    epilogue: Epilogue = field(default_factory=Epilogue)

    def fields(self) -> list[int | float | np.ndarray]:
        """Descriptor fields 1 .. CORE_END - 1."""
        return [
            self.weights,
            self.bias,
            self.out,
            *self.units,
            self._unit_elements * SIZE[self.weights_dtype],
            self.taps.size,
            self.taps,
            *self.out_strides,
            self.channels,
            self.stored,
            self._tile_table(self.tiles),
            self._tile_table(self.last_tiles),
            len(self.tiles),
            len(self.last_tiles),
            self.pitch,
            self.buffer_offset,
            self.vectors,
            0 if self.unit_shifts is None else self.unit_shifts,
            self.buffer_offset + BUFFER_BYTES if self.widens else 0,
            *self.epilogue.fields(),
        ]

    @property
    def _unit_elements(self) -> int:
        # A depthwise tap (no channels of its own to sum over) is one vector of weights.
        return max(1, self.tap_channels) * 16 * self.vectors * self.taps.size

    @property
    def widens(self) -> bool:
        """Whether a part first widens each unit's 8- or 16-bit weights to fp32 in scratch.

        Converting inside the tile takes an eighth to a quarter of its time; it pays to do it once when three tiles or
        more share the panel and the widened panel stays in L2.
        """
        fits = self._unit_elements * 4 <= l2_bytes() // 3
        return SIZE[self.weights_dtype] < 4 and len(self.tiles) >= 3 and fits

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory of one part."""
        return self.buffer_offset + BUFFER_BYTES + (self._unit_elements * 4 if self.widens else 0)

    def _tile_table(self, tiles: Sequence[TileStep]) -> np.ndarray:
        full, all_units = self.units
        rows = []
        for t in tiles:
            main, tail = (
                kernel_address(
                    tile_name(
                        "f32" if self.widens else self.weights_dtype,
                        n,
                        t.segments,
                        t.length,
                        self.tap_channels,
                        self.pixel_bytes,
                    )
                )
                if used
                else 0
                for n, used in ((self.vectors, full > 0), (1, all_units > full))
            )
            rows.append((main, tail, t.x_offset, t.pixels))
        return int64_table(rows)


def split_units(groups: int, vectors: int) -> tuple[int, int]:
    """(full units, all units) that cover `groups` groups of 16 channels; the tail is always one group wide."""
    full = groups // vectors
    return full, full + (groups - full * vectors)


def balanced(count: int, most: int) -> list[int]:
    """Split `count` into the fewest pieces of at most `most`, sizes differing by one at most."""
    if count <= 0:
        return []
    pieces = -(-count // most)
    small, extra = divmod(count, pieces)
    return [small + 1] * extra + [small] * (pieces - extra)


def tile_length(count: int) -> int:
    """Pixels a tile computes to deliver `count`: even above four, so that few variants exist."""
    return count if count <= 4 else min(count + count % 2, host().tile_rows)


def run_tiles(count: int, pixel_bytes: int) -> list[TileStep]:
    """Tiles over `count` pixels in a row of the scratch block."""
    steps, at = [], 0
    for n in balanced(count, host().tile_rows):
        steps.append(TileStep(1, tile_length(n), at * pixel_bytes, n))
        at += n
    return steps


def widened_type(source: str) -> str:
    """The narrow type of weights that a kernel reading activations of type `source` can widen."""
    return source if SIZE[source] < 4 else "f16"


def check_weights(weights: str, source: str) -> None:
    """Raise ValueError where narrow weights are not of the type that goes with the activations."""
    if SIZE[weights] < 4 and weights != widened_type(source):
        raise ValueError(f"{weights} weights do not go with {source} activations")


def define(k: Kernel, dtype: str, source: str) -> None:
    """Emit the functions `epilogue` and `panels(desc, ctx, x, out, weights, first unit, end unit, last band?)`.

    `dtype` is that of the results, `source` that of the activations.
    """
    epilogue.emit_function(k, dtype, EPILOGUE)
    with k.function("panels", [I64] * 8) as (desc, ctx, base, out, weights, begin, end, last):
        names = range(WEIGHTS, EPILOGUE)
        f = {n: k.field(desc, n) for n in names}
        buffer = scratch(k, ctx) + f[BUFFER]
        block = k.alloca(8 * BLOCK_FIELDS)
        tiles = k.select(last.ne(0), f[LAST_TILES], f[TILES])
        count = k.select(last.ne(0), f[LAST_TILE_COUNT], f[TILE_COUNT])
        shift = k.field(desc, EPILOGUE) - f[OUT]
        k.store(f[TAPS], block + 8)
        k.store(f[TAP_COUNT], block + 16)
        k.store(buffer, block + 40)
        k.store(f[PITCH], block + 48)
        with k.loop(end, start=begin) as unit:
            full = unit < f[FULL_UNITS]
            # Tail units come after the full ones and are one vector wide.
            group = k.select(full, unit * f[VECTORS], f[FULL_UNITS] * f[VECTORS] + unit - f[FULL_UNITS])
            vectors = k.select(full, f[VECTORS], 1)
            group_bytes = f[UNIT_BYTES] / f[VECTORS]
            panel = k.var(weights + group * group_bytes)
            with k.when(f[WIDENED].ne(0)):
                wide = scratch(k, ctx) + f[WIDENED]
                size = SIZE[widened_type(source)]
                with k.loop(vectors * group_bytes, step=LANES * size) as at:
                    k.store(k.load_f32(panel.get() + at, widened_type(source)), wide + at * (4 // size))
                panel.set(wide)
            k.store(panel.get(), block + 24)
            k.store(f[BIAS] + group * 64, block + 32)
            pixels = k.var(out + group * f[OC])
            x = k.var(base)
            with k.when(f[UNIT_SHIFTS].ne(0)):
                x.set(base + k.load(f[UNIT_SHIFTS] + unit * 8))
            with k.loop(count) as t:
                row = tiles + t * 32
                k.store(x.get() + k.field(row, 2), block)
                k.call_address(k.select(full, k.field(row, 0), k.field(row, 1)), block, 0, 0)
                live = k.field(row, 3)
                at = pixels.get()
                lanes = (f[CHANNELS] - group * 16, f[STORED] - group * 16)
                k.call("epilogue", desc, buffer, vectors, live, at, shift, f[OC], f[OH], f[PIXEL_PITCH], *lanes)
                pixels.set(at + live * f[PIXEL_PITCH])


def call_panels(
    k: Kernel, desc: Val, ctx: Val, x: Val, out: Val, weights: Val, units: tuple[Val, Val], last: Val
) -> None:
    """Emit the call of `panels` for one part; `x` is the filled block, its pixels in the order of the tile tables."""
    k.call("panels", desc, ctx, x, out, weights, units[0], units[1], k.convert(last, "zext", I64))


def weights_field(k: Kernel, desc: Val) -> Val:
    """Address of the packed weights."""
    return k.field(desc, WEIGHTS)
