"""Shape of a convolution, and the geometry of the fp32 scratch block it fills for one band of output rows.

The block is [group][row][stride phase, column][16 channels]: columns are sorted by their phase modulo the horizontal
stride, so that inputs of neighbouring outputs always lie one pixel apart; the narrow form is [row][column][channel].
From it follow the tap table, the register tiles of a band and the padding table of a row.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from npusim.kernels import panels, parts
from npusim.kernels.cpu import host, l2_bytes
from npusim.kernels.desc import SIZE

PIXEL = 64
_ADDRESSES = 8  # pixels of a tile whose addresses general registers hold


@dataclass(frozen=True)
class Conv2D:
    """Shape of a convolution: N, C, H, W in; O out; kernel, strides, pads (top, left, bottom, right), dilations.

    `c0_in`/`c0_out` are the channels of one C1 plane (16, 8, 32, …; a multiple of 8). Up to four input channels may
    also lie in planes of four.
    """

    n: int
    c: int
    h: int
    w: int
    o: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1
    c0_in: int = 16
    c0_out: int = 16

    @property
    def out_hw(self) -> tuple[int, int]:
        """Output height and width."""
        (kh, kw), (sh, sw), (dh, dw) = self.kernel, self.strides, self.dilations
        oh = (self.h + self.pads[0] + self.pads[2] - (kh - 1) * dh - 1) // sh + 1
        ow = (self.w + self.pads[1] + self.pads[3] - (kw - 1) * dw - 1) // sw + 1
        return oh, ow

    @property
    def macs(self) -> int:
        """Multiply-adds of the whole operator."""
        oh, ow = self.out_hw
        return self.n * self.o * oh * ow * (self.c // self.groups) * self.kernel[0] * self.kernel[1]

    def check(self) -> None:
        """Raise ValueError for what no convolution can be."""
        oh, ow = self.out_hw
        if min(oh, ow) < 1:
            raise ValueError(f"convolution of {self.h}x{self.w} by kernel {self.kernel} has no output ({oh}x{ow})")
        if self.c % self.groups or self.o % self.groups:
            raise ValueError(f"{self.groups} groups do not divide {self.c} input and {self.o} output channels")
        small = self.c0_in == 4 and self.c <= 4 and self.groups == 1
        if (self.c0_in % 8 and not small) or self.c0_out % 8:
            raise ValueError(f"C0 must be a multiple of 8, not {self.c0_in} in, {self.c0_out} out")


class Scratch:
    """Geometry of the scratch block for one way of computing: `dense`, `narrow`, `depthwise` or `lanes`.

    Results of type `out_dtype` decide whether the block holds all groups of channels or some at a time.
    """

    def __init__(self, shape: Conv2D, kind: str, out_dtype: str = panels.RAW) -> None:
        self.shape, self.kind = shape, kind
        self.narrow = shape.c if kind == "narrow" else 0
        self.oh, self.ow = shape.out_hw
        kh, kw = shape.kernel
        (sh, sw), (dh, dw) = shape.strides, shape.dilations
        per_group = shape.c // shape.groups
        self.groups = {"dense": -(-shape.c // 16), "lanes": per_group}.get(kind, 1)
        self.block_groups = self.groups
        if kind == "dense" and shape.groups == 1:
            self.block_groups = panels.groups_of_block(self.groups, kh * kw, self.oh * self.ow, out_dtype)
        self.sparse_rows = sh > (kh - 1) * dh
        if self.narrow:
            # Without dilation a row of the window lies together: its columns count as channels of one tap, whose loop
            # costs large tiles nothing and small ones much.
            self.tap_columns = kw if dw == 1 and host().wide else 1
            self.tap_channels, self.pixel_bytes = self.narrow * self.tap_columns, self.narrow * sw * 4
            columns = (self.ow - 1) * sw + (kw - 1) * dw + 1
            self.phases = {0: (0, columns)}
            # The last pixel is stored as eight lanes and a tile may run one pixel past its row.
            self.row_bytes = columns * self.narrow * 4
        else:
            self.tap_channels, self.pixel_bytes = 16 if kind == "dense" else 0, PIXEL
            reach: dict[int, int] = {}
            for j in range(0, kw * dw, dw):
                reach[j % sw] = max(reach.get(j % sw, 0), j // sw)
            self.phases, at = {}, 0
            for phase in sorted(reach):
                self.phases[phase] = (at, self.ow + reach[phase])
                at += self.ow + reach[phase]
            self.row_bytes = at * PIXEL
        self.out_row_pitch = (kh if self.sparse_rows else sh) * self.row_bytes
        self.set_band(self.oh)

    def set_band(self, band_rows: int) -> None:
        """Fix the number of output rows in a band."""
        (kh, _), (sh, _), (dh, _) = self.shape.kernel, self.shape.strides, self.shape.dilations
        if self.sparse_rows:
            rows = [r * sh + i * dh for r in range(band_rows) for i in range(kh)]
        else:
            rows = list(range((band_rows - 1) * sh + (kh - 1) * dh + 1))
        self.rows = np.array(rows, np.int64)
        self.group_bytes = len(rows) * self.row_bytes
        slack = 256 + (host().tile_rows + 1) * self.pixel_bytes
        self.bytes = -(-(self.block_groups * self.group_bytes + slack) // 64) * 64

    def bands(self, band_rows: int) -> int:
        """Fix the number of output rows in a band; how many bands there are."""
        self.set_band(band_rows)
        return -(-self.oh // band_rows)

    def taps(self) -> np.ndarray:
        """Byte offsets of the taps of a block in accumulation order."""
        (kh, kw), (_, sw), (dh, dw) = self.shape.kernel, self.shape.strides, self.shape.dilations
        step = 1 if self.sparse_rows else dh
        if self.narrow:
            rows = np.arange(kh, dtype=np.int64).reshape(-1, 1) * step * self.row_bytes
            return (rows + np.arange(0, kw, self.tap_columns, dtype=np.int64) * (dw * self.narrow * 4)).ravel()
        columns = [(self.phases[j % sw][0] + j // sw) * PIXEL for j in range(0, kw * dw, dw)]
        places = [i * step * self.row_bytes + column for i in range(kh) for column in columns]
        if self.kind == "lanes":
            blocks = [range(g, min(g + 16, self.groups)) for g in range(0, self.groups, 16)]
            order = [g * self.group_bytes + at for block in blocks for at in places for g in block]
        else:
            order = [g * self.group_bytes + at for g in range(self._tap_groups()) for at in places]
        return np.array(order, np.int64)

    def block(self, units: int) -> panels.Block | None:
        """How a part of so many output units works off the taps, where not all at once."""
        if self.block_groups == self.groups:
            return None
        return panels.Block(self.groups * self.shape.kernel[0] * self.shape.kernel[1], units)

    def _tap_groups(self) -> int:
        """16-channel input groups one output reads."""
        return self.block_groups if self.kind != "dense" else self.block_groups // self.shape.groups or 1

    def tiles(self, band_rows: int) -> list[panels.TileStep]:
        """Register tiles covering a band of `band_rows` output rows."""
        most = host().tile_rows
        if self.ow * 2 <= most:
            steps, row = [], 0
            for rows in panels.balanced(band_rows, most // self.ow):
                steps.append(panels.TileStep(rows, self.ow, row * self.out_row_pitch, rows * self.ow))
                row += rows
            return steps
        if self._contiguous():
            return panels.run_tiles(band_rows * self.ow, self.pixel_bytes)
        if self._crosses(band_rows):
            return [panels.TileStep(t.length, 0, 0, t.pixels) for t in panels.run_tiles(band_rows * self.ow, 0)]
        return [
            panels.TileStep(1, t.length, row * self.out_row_pitch + t.x_offset, t.pixels)
            for row in range(band_rows)
            for t in panels.run_tiles(self.ow, self.pixel_bytes)
        ]

    def extent(self, band_rows: int) -> tuple[int, int]:
        """Tiles of a band, and the pixels they compute."""
        most = host().tile_rows
        if self.ow * 2 <= most:
            return -(-band_rows // (most // self.ow)), band_rows * self.ow
        if self._contiguous() or self._crosses(band_rows):
            return panels.run_extent(band_rows * self.ow)
        tiles, pixels = panels.run_extent(self.ow)
        return band_rows * tiles, band_rows * pixels

    def places(self, band_rows: int) -> int | np.ndarray:
        """Bytes between segments of a tile or, where tiles run over the ends of rows, the place of every pixel."""
        if not self._crosses(band_rows):
            return self.out_row_pitch
        rows = np.arange(band_rows, dtype=np.int64).reshape(-1, 1) * self.out_row_pitch
        places = (rows + np.arange(self.ow, dtype=np.int64) * self.pixel_bytes).ravel()
        return np.append(places, places[-1])  # the last tile may compute a pixel that does not count

    def _crosses(self, band_rows: int) -> bool:
        """Whether tiles run over the ends of rows: where that saves tiles and their addresses fit the registers."""
        most = host().tile_rows
        if most > _ADDRESSES or self.ow * 2 <= most or self._contiguous():
            return False
        return panels.run_extent(band_rows * self.ow)[0] < band_rows * panels.run_extent(self.ow)[0]

    def _contiguous(self) -> bool:
        """Whether consecutive output rows follow each other in scratch (1x1 kernels)."""
        return self.out_row_pitch == self.ow * self.pixel_bytes

    @property
    def merged(self) -> bool:
        """Whether rows follow each other in the image and in scratch alike."""
        shape = self.shape
        return self.kind == "dense" and (shape.kernel, shape.strides, shape.pads) == ((1, 1), (1, 1), (0, 0, 0, 0))

    def phase_rows(self) -> list[list[int]]:
        """Per phase: zero columns, copied columns, zero columns, first source column."""
        shape = self.shape
        rows = []
        step = 1 if self.narrow else shape.strides[1]
        for phase, (_, width) in self.phases.items():
            left = min(width, max(0, -((phase - shape.pads[1]) // step)))
            first = left * step + phase - shape.pads[1]
            count = min(width - left, max(0, -((first - shape.w) // step)))
            rows.append([left, count, width - left - count, first])
        return rows


def choose_split(layout: Scratch, weight_bytes: int, units: int, dtype: str) -> tuple[int, int]:
    """Rows per band and output-channel splits of the least estimated time."""
    if layout.kind in ("depthwise", "lanes"):
        return _rows_of_one_unit(layout), units
    return _least_cost(layout.shape, layout.kind, weight_bytes, units, dtype, layout.block_groups)


@functools.lru_cache(maxsize=1024)
def _least_cost(
    shape: Conv2D, kind: str, weight_bytes: int, units: int, dtype: str, block_groups: int
) -> tuple[int, int]:
    """The same for a shape, of which networks have several layers."""
    layout = Scratch(shape, kind)
    groups = -(-shape.o // 16)
    depth = weight_bytes // (SIZE[dtype] * groups * 16)
    layout.block_groups = block_groups
    best: tuple[float, int, int] | None = None
    for bands in sorted({*parts.BAND_COUNTS, layout.oh}):
        if bands > layout.oh:
            continue
        rows = -(-layout.oh // bands)
        layout.set_band(rows)
        actual = -(-layout.oh // rows)
        whole, last = layout.extent(rows), layout.extent(layout.oh - (actual - 1) * rows)
        for splits in parts.SPLIT_COUNTS:
            if splits > units:
                continue
            cut = parts.Cut(
                parts=shape.n * actual * splits,
                bands=shape.n * actual,
                splits=splits,
                pixels=shape.n * (whole[1] * (actual - 1) + last[1]),
                tiles=shape.n * (whole[0] * (actual - 1) + last[0]),
                fewest=whole[0],
                filled=shape.n * actual * layout.groups * layout.group_bytes // PIXEL,
                scratch_bytes=layout.bytes,
                blocks=-(-layout.groups // block_groups),
            )
            cost = parts.cut_cost(cut, depth, groups, weight_bytes, dtype)
            if best is None or cost < best[0]:
                best = (cost, rows, splits)
    assert best is not None
    per_split = -(-units // best[2])
    return best[1], -(-units // per_split)


def _rows_of_one_unit(layout: Scratch) -> int:
    """Rows per band where a part computes one unit of 16 channels: the most that stay within an eighth of L2."""
    rows = layout.oh
    layout.set_band(rows)
    while rows > 1 and layout.bytes > l2_bytes() // 8:
        rows = -(-rows // 2)
        layout.set_band(rows)
    return rows
