"""The loop convolution and matrix product share: output-channel units over the register tiles of one filled band.

A part first fills its scratch block with fp32 pixels, then runs this loop: for every unit of `vectors * 16` output
channels and every tile of the band it calls the tile's micro-kernel and the epilogue. Deep sums go block by block of
their taps, each with all units, and rest in scratch meanwhile. The leading fields of the
descriptors of both kernels are laid out here; `Core` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from npusim.kernels import epilogue, tiles
from npusim.kernels.cpu import Cpu, host, l2_bytes
from npusim.kernels.desc import int64_table
from npusim.kernels.dispatch import scratch
from npusim.kernels.epilogue import Epilogue, split_target
from npusim.kernels.ir import FLOATS, I1, I64, SIZE, Kernel, Val
from npusim.kernels.store import kernel_address
from npusim.kernels.tiles import HALF, RAW, SUMS, WIDENING, tile_name

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
    TAP_BYTES,
    CHUNK_TAPS,
    PARTIAL,
    PLACE_BYTES,
    BLOCK_TAPS,
    UNIT_SUMS,
    EPILOGUE,
) = range(1, 30)
CORE_END = EPILOGUE + epilogue.FIELDS
BUFFER_BYTES = 14 * 2 * 64 + 64  # fp32 sums of the largest tile on any CPU
# Taps that are multiplied with all units of the output before the next ones: about so many with 256-bit tiles, with
# 512-bit ones as many as fill half of the level-2 cache in a band of so many pixels.
_BLOCK_TAPS, _BLOCK_PIXELS = 16, 128


# supply(k, desc, target, source, first row, rows, first tap) emits how the pixels of a tile come to scratch. It returns
# what the next tile reads, and how much of it to ask for in a tap (0: nothing).
Supply = Callable[[Kernel, Val, Val, Val, Val, Val, Val], tuple[Val, Val]]


@dataclass(frozen=True)
class TileStep:
    """One register tile of a band: where its pixels start in scratch and how many of them count."""

    segments: int
    length: int
    x_offset: int
    pixels: int


@dataclass(frozen=True)
class Block:
    """Taps are multiplied in blocks, whose pixels fill the scratch block by turns: of how many taps in all, and for
    how many units of output channels sums rest in between."""

    all_taps: int
    units: int


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
    pitch: int | np.ndarray  # between segments, or the places of all pixels in scratch (see tiles)
    buffer_offset: int
    vectors: int
    unit_shifts: np.ndarray | None = None
    epilogue: Epilogue = field(default_factory=Epilogue)
    out_dtype: str = RAW
    block: Block | None = None
    halves: bool = False  # the second tile of a step computes eight output channels
    chunk: int = 0  # taps multiplied with all tiles before the next ones, where the kernel decides (tiles of `sums`)

    def fields(self) -> list[int | float | np.ndarray]:
        """Descriptor fields 1 .. CORE_END - 1."""
        return [
            self.weights,
            self.bias,
            self.out,
            *self.units,
            self._unit_elements * SIZE[self.weights_dtype],
            self.tap_count,
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
            self._widened_offset if self.widens else 0,
            self._tap_elements // self.vectors * SIZE[self.weights_dtype],
            self._chunk_taps,
            self.buffer_offset + BUFFER_BYTES,
            8 if isinstance(self.pitch, np.ndarray) else 0,
            self.taps.size,
            self._partial_bytes if self.block else 0,
            *self.epilogue.fields(),
        ]

    @property
    def finish(self) -> str:
        """How tiles end: they round to a floating-point output type and store by themselves."""
        return self.out_dtype if self.out_dtype == SUMS or finishes(self.out_dtype) else RAW

    @property
    def _unit_elements(self) -> int:
        # A depthwise tap (no channels of its own to sum over) is one vector of weights.
        return self._tap_elements * self.tap_count

    @property
    def _tap_elements(self) -> int:
        return max(1, self.tap_channels) * 16 * self.vectors

    @property
    def widens(self) -> bool:
        """Whether the first tile of a band leaves narrow weights behind as fp32 for the others.

        To convert inside the tile takes an eighth to a quarter of its time unless it is free; it pays where the
        widened ones stay in a cache.
        """
        return (
            SIZE[self.weights_dtype] < 4
            and not widens_freely(self.weights_dtype)
            and len(self.tiles) > 1
            and (self._chunk_taps < self.tap_count or self._unit_elements * 4 <= l2_bytes() // 3)
        )

    @property
    def tap_count(self) -> int:
        """Taps of a sum, where the table holds those of one block."""
        return self.block.all_taps if self.block else self.taps.size

    @property
    def _chunk_taps(self) -> int:
        """Taps that are multiplied with all tiles of the band before the next ones: all, or what leaves room for the
        pixels in the level-2 cache.

        In between, sums rest in scratch as they are, so that the result does not depend on it.
        """
        if self.chunk:
            return self.chunk
        taps, fitting = self.taps.size, max(1, l2_bytes() // 8 // (self._tap_elements * 4))
        if len(self.tiles) < 2 or self.finish == RAW or widens_freely(self.weights_dtype) or taps <= fitting * 3 // 2:
            return taps
        return -(-taps // -(-taps // fitting))

    @property
    def _partial_bytes(self) -> int:
        """Where the sums of one unit rest."""
        rest = self._chunk_taps < self.tap_count and self.finish != SUMS
        return len(self.tiles) * sums_bytes(host()) if rest else 0

    @property
    def _widened_offset(self) -> int:
        many = self.block.units if self.block else 1
        return self.buffer_offset + BUFFER_BYTES + many * self._partial_bytes

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory of one part."""
        taps = self._chunk_taps if self.widens else 0
        return self._widened_offset + taps * self._tap_elements * 4

    def _tile_table(self, steps: Sequence[TileStep]) -> np.ndarray:
        full, all_units = self.units
        narrow = self.weights_dtype
        kinds = [narrow + WIDENING, *["f32"] * len(steps)] if self.widens and len(steps) > 1 else [narrow] * len(steps)
        rows = []
        for t, weights in zip(steps, kinds, strict=False):
            main, tail = (
                kernel_address(
                    tile_name(weights, n, t.segments, t.length, self.tap_channels, self.pixel_bytes, self.finish)
                )
                if used
                else 0
                for n, used in ((self.vectors, full > 0), (HALF if self.halves else 1, self.halves or all_units > full))
            )
            rows.append((main, tail, t.x_offset, t.pixels))
        return int64_table(rows)


def finishes(out_dtype: str) -> bool:
    """Whether tiles round to this output type and store by themselves, and go on from sums that rested."""
    return split_target(out_dtype)[0] in FLOATS


def groups_of_block(groups: int, taps: int, pixels: int, out_dtype: str) -> int:
    """Groups of 16 channels, of so many taps each, that fill a block: an even number, or all of them.

    The pixels of a block stay in the caches nearest to the core while all units' weights go by. Sums of few pixels
    would rest too often for what that saves.
    """
    if pixels < 3 * host().tile_rows or not finishes(out_dtype):
        return groups
    blocks = _blocks(groups, taps, pixels)
    return min(groups, -(-groups // blocks) + -(-groups // blocks) % 2)


def _blocks(groups: int, taps: int, pixels: int) -> int:
    """How many blocks a sum goes in: shallow ones for small tiles, which read more for what they compute."""
    if host().wide:
        return -(-groups * 64 * min(pixels, _BLOCK_PIXELS) // (l2_bytes() // 2))
    return max(1, round(groups * taps / _BLOCK_TAPS))


def sums_bytes(cpu: Cpu) -> int:
    """fp32 sums of the largest tile."""
    return cpu.tile_rows * cpu.panel * 4


def widens_freely(dtype: str) -> bool:
    """Whether tiles take weights of this type as fast as fp32: 256-bit units convert halves beside multiply-adds."""
    return dtype == "f32" or (dtype == "f16" and host().half and not host().wide)


def panel_vectors() -> int:
    """Groups of 16 output channels in a full unit."""
    return host().panel // 16


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


def run_lengths(count: int) -> list[int]:
    """Pixels that each of the fewest tiles over a run computes: even above four, so that few variants exist.

    At most the last pixel of the last tile is one too many.
    """
    if count <= 4:
        return [count] if count > 0 else []
    return [2 * n for n in balanced(-(-count // 2), host().tile_rows // 2)]


def run_extent(count: int) -> tuple[int, int]:
    """Tiles, and pixels they compute, of `run_tiles(count)`."""
    if count <= 4:
        return int(count > 0), max(0, count)
    even = count + count % 2
    return -(-even // (host().tile_rows // 2 * 2)), even


def run_tiles(count: int, pixel_bytes: int) -> list[TileStep]:
    """Tiles over `count` pixels in a row of the scratch block."""
    steps, at = [], 0
    for n in run_lengths(count):
        steps.append(TileStep(1, n, at * pixel_bytes, min(n, count - at)))
        at += n
    return steps


def check_weights(weights: str, source: str) -> None:
    """Raise ValueError where narrow weights are not of the type that goes with the activations."""
    if SIZE[weights] < 4 and weights != (source if SIZE[source] < 4 else "f16"):
        raise ValueError(f"{weights} weights do not go with {source} activations")


def unit_of(k: Kernel, desc: Val, unit: Val) -> tuple[Val, Val, Val]:
    """Whether a unit of output channels is a full one, its first 16-channel group, and how many it has.

    Tail units come after the full ones and are one vector wide.
    """
    full_units, most = k.field(desc, FULL_UNITS), k.field(desc, VECTORS)
    full = unit < full_units
    return full, k.select(full, unit * most, full_units * most + unit - full_units), k.select(full, most, 1)


def tiles_of(k: Kernel, desc: Val, last: Val) -> tuple[Val, Val]:
    """The table of a band's tiles, and how many there are."""
    table = k.select(last.ne(0), k.field(desc, LAST_TILES), k.field(desc, TILES))
    return table, k.select(last.ne(0), k.field(desc, LAST_TILE_COUNT), k.field(desc, TILE_COUNT))


def define(k: Kernel, dtype: str, supply: Supply | None = None) -> None:
    """Emit the functions `epilogue` and `panels(desc, ctx, x, out, weights, first unit, end, last band?, first tap,
    source, first row)`.

    `dtype` is that of the results. Where `supply` is given, the pixels of a tile come to scratch just before the first
    unit reads them, and those of the next one nearer meanwhile.
    """
    epilogue.emit_function(k, dtype, EPILOGUE)
    with k.function("panels", [I64] * 11) as (desc, ctx, base, out, weights, begin, end, last, first_tap, source, top):
        f = {n: k.field(desc, n) for n in range(WEIGHTS, EPILOGUE)}
        buffer = scratch(k, ctx) + f[BUFFER]
        block = k.alloca(8 * tiles.BLOCK_FIELDS)
        table, count = tiles_of(k, desc, last)
        shift = k.field(desc, EPILOGUE) - f[OUT]
        stores = emit_block(k, desc, f, block, (buffer, shift), dtype)
        with k.loop(end, start=begin) as unit:
            full, group, vectors = unit_of(k, desc, unit)
            panel = weights + group * (f[UNIT_BYTES] / f[VECTORS])
            k.store(f[BIAS] + group * 64, block + 8 * tiles.BIAS)
            x = k.var(base)
            with k.when(f[UNIT_SHIFTS].ne(0)):
                x.set(base + k.load(f[UNIT_SHIFTS] + unit * 8))
            lanes = (f[CHANNELS] - group * 16, f[STORED] - group * 16)
            itself = stores & (k.minimum(*lanes) >= vectors * 16)
            rest = scratch(k, ctx) + f[PARTIAL] + (unit - begin) * f[UNIT_SUMS]
            end_tap = k.minimum(first_tap + f[BLOCK_TAPS], f[TAP_COUNT])
            with k.loop(end_tap, start=first_tap, step=f[CHUNK_TAPS]) as tap:
                taps, wide, nearer = _place_chunk(k, desc, ctx, block, (panel, vectors), (tap, first_tap, end_tap))
                ahead, ahead_end = k.var(nearer), nearer + f[CHUNK_TAPS] * f[TAP_BYTES] * vectors
                finishes = (tap + taps).eq(f[TAP_COUNT])
                pixels, resting = k.var(out + group * f[OC]), k.var(rest)
                pitch, above = k.var(f[PITCH]), k.var(top)
                with k.loop(count) as t:
                    row = table + t * 32
                    live, at = k.field(row, 3), pixels.get()
                    _ask_for(k, block, ahead.get(), tiles.prefetched_bytes(k.cpu))
                    if supply is not None:
                        now, own = (
                            unit.eq(begin) & tap.eq(first_tap),
                            (base + k.field(row, 2), source, above.get(), live),
                        )
                        _supply_tile(k, block, now, t + 1 < count, partial(supply, k, desc, *own, first_tap))
                    above.set(above.get() + live)
                    k.store(x.get() + k.field(row, 2), block + 8 * tiles.X)
                    k.store(k.select(itself & finishes, at, 0), block + 8 * tiles.OUT)
                    k.store(k.select(finishes, buffer, resting.get()), block + 8 * tiles.BUFFER)
                    k.store(k.select(tap.eq(0), 0, resting.get()), block + 8 * tiles.START)
                    k.store(live, block + 8 * tiles.LIVE)
                    k.store(pitch.get(), block + 8 * tiles.PITCH)
                    pitch.set(pitch.get() + live * f[PLACE_BYTES])
                    k.call_address(k.select(full, k.field(row, 0), k.field(row, 1)), block, 0, 0)
                    with k.when(t.eq(0)):
                        k.store(wide, block + 8 * tiles.WEIGHTS)
                    with k.when(finishes & ~itself):
                        places = (at, shift, f[OC], f[OH], f[PIXEL_PITCH])
                        k.call("epilogue", desc, buffer, vectors, live, *places, *lanes)
                    pixels.set(at + live * f[PIXEL_PITCH])
                    resting.set(resting.get() + sums_bytes(k.cpu))
                    further = ahead.get() + taps * tiles.prefetched_bytes(k.cpu)
                    ahead.set(k.select(further < ahead_end, further, panel))


def _place_chunk(
    k: Kernel, desc: Val, ctx: Val, block: Val, weights: tuple[Val, Val], places: tuple[Val, Val, Val]
) -> tuple[Val, Val, Val]:
    """Tell the tiles which taps come now, and the first one about their weights.

    `weights` are a unit's and its vectors, `places` the tap, and the first and the last of the block. Returns how many
    taps there are, where the weights of the other tiles are, and those to bring nearer while these are multiplied.
    """
    (panel, vectors), (tap, first_tap, end_tap) = weights, places
    bytes_of_tap = k.field(desc, TAP_BYTES) * vectors
    taps = k.minimum(end_tap - tap, k.field(desc, CHUNK_TAPS))
    k.store(k.field(desc, TAPS) + (tap - first_tap) * 8, block + 8 * tiles.TAPS)
    k.store(taps, block + 8 * tiles.TAP_COUNT)
    wide = place_weights(k, desc, ctx, block, panel + tap * bytes_of_tap)
    following = k.select((tap + taps) < end_tap, tap + taps, k.field(desc, TAP_COUNT) + first_tap)
    return taps, wide, panel + following * bytes_of_tap


def _supply_tile(k: Kernel, block: Val, now: Val, more: Val, act: Callable[[], tuple[Val, Val]]) -> None:
    """Where it is time to, bring a tile's pixels to scratch and ask for those of the next, if there are more."""
    with k.when(now):
        asked, some = act()
        with k.when(some.ne(0) & more):
            _ask_for(k, block, asked, some)


def _ask_for(k: Kernel, block: Val, address: Val, tap_bytes: Val | int) -> None:
    """Let a tile bring some memory nearer meanwhile."""
    k.store(address, block + 8 * tiles.NEXT)
    if k.cpu.wide:  # other tiles ask for what they always do
        k.store(k.const(0) + tap_bytes, block + 8 * tiles.AHEAD_BYTES)


def place_weights(k: Kernel, desc: Val, ctx: Val, block: Val, weights: Val) -> Val:
    """Tell the first tile of a band where its weights are and go as fp32; returns where those of the others are."""
    widened = k.field(desc, WIDENED)
    wide = k.select(widened.ne(0), scratch(k, ctx) + widened, weights)
    k.store(weights, block + 8 * tiles.WEIGHTS)
    k.store(wide, block + 8 * tiles.WIDE)
    return wide


def emit_block(k: Kernel, desc: Val, f: dict[int, Val], block: Val, places: tuple[Val, Val], dtype: str) -> Val:
    """Fill what all tiles of a part share (places: buffer, way from the output to the residual).

    Returns whether the tiles store whole blocks of channels by themselves.
    """
    buffer, shift = places
    values = {
        tiles.START: k.const(0),
        tiles.KEPT: k.const(0),
        tiles.BUFFER: buffer,
        tiles.OC: f[OC],
        tiles.OH: f[OH],
        tiles.OP: f[PIXEL_PITCH],
        tiles.ADDS: k.field(desc, EPILOGUE),
        tiles.SHIFT: shift,
        tiles.LOW: k.field(desc, EPILOGUE + 2),
        tiles.HIGH: k.field(desc, EPILOGUE + 3),
    }
    for number, value in values.items():
        k.store(value, block + 8 * number)
    return epilogue.only_clamps(k, desc, EPILOGUE) if split_target(dtype)[0] in FLOATS else k.const(0, I1)


def call_panels(
    k: Kernel,
    desc: Val,
    ctx: Val,
    x: Val,
    out: Val,
    weights: Val,
    units: tuple[Val, Val],
    last: Val,
    first_tap: Val | int = 0,
    source: tuple[Val, Val] | None = None,
) -> None:
    """Emit the call of `panels` for one part; `x` is the block, its pixels in the order of the tile tables.

    `source` is what `supply` reads and the part's first row there; without it, the block is filled.
    """
    band = k.convert(last, "zext", I64)
    k.call("panels", desc, ctx, x, out, weights, units[0], units[1], band, first_tap, *(source or (0, 0)))


def weights_field(k: Kernel, desc: Val) -> Val:
    """Address of the packed weights."""
    return k.field(desc, WEIGHTS)
