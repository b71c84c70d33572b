"""How a convolution or matrix product is cut into parts: by least estimated time."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.kernels import panels
from npusim.kernels.cpu import host, l2_bytes
from npusim.kernels.ir import SIZE

BAND_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 56, 64, 128)
SPLIT_COUNTS = (1, 2, 3, 4, 6, 8)
# Cycles, measured on AVX2 and AVX-512 machines: 16 channels of a pixel widened into scratch, a vector of weights
# widened inside a tile, a tile's beginning and end, a part handed to a thread; bytes of weights from beyond the level-2
# cache in a cycle.
_FILL_CYCLES, _WIDEN_CYCLES, _TILE_CYCLES, _PART_CYCLES = 14.0, 1.0, 60.0, 400.0
_WEIGHT_BYTES_PER_CYCLE = 12.0
_SLACK = 0.12
_REST_CYCLES = 3.0  # a vector of sums stored and loaded again


@dataclass(frozen=True)
class Cut:
    """A way to cut a product into parts: bands of pixels, splits of the output channels."""

    parts: int
    bands: int
    splits: int
    pixels: int  # computed, those that do not count included
    tiles: int
    fewest: int  # tiles of a whole band
    filled: int  # vectors of 16 channels widened for one split
    scratch_bytes: int
    blocks: int = 1  # of the sums' depth


def cut_cost(cut: Cut, depth: int, groups: int, weight_bytes: int, dtype: str) -> float:
    """Estimated cycles of a product with `depth` multiply-adds a sum and `groups` groups of 16 output channels.

    A mean over one thread and two: an odd part more keeps one of two threads waiting, few parts leave no slack.
    """
    width = 1 if host().wide else 2
    units = -(-groups * 16 // host().panel)
    cycles = depth * groups * width * cut.pixels / 2 + cut.tiles * units * _TILE_CYCLES
    cycles += cut.filled * cut.splits * _FILL_CYCLES
    widened = cut.bands if cut.fewest > 1 else cut.tiles
    cycles += 0 if panels.widens_freely(dtype) else widened * depth * groups * width * _WIDEN_CYCLES
    cycles += cut.bands * weight_bytes / _WEIGHT_BYTES_PER_CYCLE
    resting = -(-cut.pixels // cut.bands) * -(-groups // cut.splits) * 64 if cut.blocks > 1 else 0
    cycles += (cut.blocks - 1) * cut.pixels * groups * width * _REST_CYCLES
    cycles += max(0, cut.scratch_bytes + resting - l2_bytes() // (2 * width)) * cut.bands * units / 8
    return shared_cycles(cycles, cut.parts, 2 * -(-cut.parts // 2) / cut.parts - 1, _SLACK)


def shared_cycles(cycles: float, parts: int, idle: float, slack: float) -> float:
    """Mean over one thread and two of what parts cost that take so many cycles in all.

    `idle` is how much longer the busier of two threads works than half of all; `slack` is the share of a part that the
    other thread waits in the end.
    """
    return cycles * (1 + idle / 2 + slack / parts) + (parts + 4 if parts > 1 else 0) * _PART_CYCLES


def matmul_split(m: int, k: int, n: int, batch: int, units: int, dtype: str, block_groups: int) -> tuple[int, int]:
    """Rows per band and splits of the output columns of the least estimated time."""
    tile, depth, groups = host().tile_rows, -(-k // 16) * 16, -(-n // 16)
    best: tuple[float, int, int] | None = None
    for bands in sorted({*BAND_COUNTS, -(-m // tile)}):
        band = -(-m // bands)
        band = m if bands == 1 else min(m, -(-band // tile) * tile)
        actual = -(-m // band)
        whole, last = panels.run_extent(band), panels.run_extent(m - (actual - 1) * band)
        for splits in SPLIT_COUNTS:
            if splits > units:
                continue
            cut = Cut(
                parts=batch * actual * splits,
                bands=batch * actual,
                splits=splits,
                pixels=batch * (whole[1] * (actual - 1) + last[1]),
                tiles=batch * (whole[0] * (actual - 1) + last[0]),
                fewest=whole[0],
                filled=batch * m * depth // 16,
                scratch_bytes=band * min(depth, block_groups * 16) * 4,
                blocks=-(-depth // (block_groups * 16)),
            )
            cost = cut_cost(cut, depth, groups, groups * 16 * depth * SIZE[dtype], dtype)
            if best is None or cost < best[0]:
                best = (cost, band, splits)
    assert best is not None
    per_split = -(-units // best[2])
    return best[1], -(-units // per_split)
