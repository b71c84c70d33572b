"""Geometry of the Winograd kernel: packed filters, bands of tile rows, and what scratch memory holds for a band.

Scratch of a part: pixels of one channel group (fp32, zero padded), V `[plane][group][tile][16]`, sums
`[plane][unit][tile][vectors][16]`, one row of finished tiles.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from npusim.kernels import panels
from npusim.kernels.conv_scratch import PIXEL, Conv2D, Scratch
from npusim.kernels.cpu import host, l1_bytes, l2_bytes, last_cache_bytes
from npusim.kernels.desc import SIZE, element_name
from npusim.kernels.parts import SPLIT_COUNTS, shared_cycles
from npusim.kernels.weights import pack_panels, pad_to, padded_bias
from npusim.kernels.winograd_code import OWN_FIELDS

_SLACK_PIXELS = 16
# Between the planes of V and of the sums: without it they would often meet in the same sets of the caches.
_STAGGER_BYTES = 320
# Measured on AVX2 machines: share of the multiply-add peak in the products, a tile's beginning and end, cycles for a
# vector of V to be made and for a vector of sums to be turned; bytes a cycle of the filter, which comes from memory,
# and of V and sums where they rest beyond the level-2 cache.
_PRODUCT_SHARE, _TILE_CYCLES = 0.8, 10.0
_V_CYCLES, _SUM_CYCLES = 4.0, 3.0
_FILTER_BYTES_PER_CYCLE, _FAR_BYTES_PER_CYCLE = 4.0, 12.0
_EXPOSED = 0.5  # of the filter's way, although it is asked for in advance
_MOST_SCRATCH = 16  # level-2 caches; every thread has its own
_SLACK = 0.3  # of a part is waited in the end: parts last longer than those of a direct convolution


@dataclass
class PackedWinograd:
    """A transformed filter in tile order, made once at load: units, planes, input channels, output channels."""

    weights: np.ndarray
    dtype: str
    bias: np.ndarray
    vectors: int
    m: int


def pack_winograd(planes: np.ndarray, m: int, bias: np.ndarray | None = None) -> PackedWinograd:
    """Pack U (products, O, I), fp16 or fp32, as `metadef.winograd.transform_filter` makes it, and an fp32 bias."""
    if planes.shape[0] != (m + 2) ** 2:
        raise ValueError(f"F({m}x{m}) takes {(m + 2) ** 2} planes, not {planes.shape[0]}")
    vectors = host().panel // 16
    outputs = planes.shape[1]
    padded = pad_to(pad_to(planes, 1, 16), 2, 16).transpose(0, 2, 1)
    taps = padded.reshape(-1, 16, padded.shape[2])
    return PackedWinograd(
        pack_panels(taps, vectors), element_name(planes.dtype), padded_bias(bias, outputs), vectors, m
    )


@functools.lru_cache(maxsize=256)
def bands_of(shape: Conv2D, m: int, filter_dtype: str = "f32") -> Bands:
    """The bands of a shape, of which networks have several layers."""
    return Bands(shape, m, filter_dtype)


class Bands:
    """How a convolution is cut: rows of tiles per band, output-channel splits, and the scratch block of a band.

    The products of a plane go by chunks of channel groups, whose weights for a unit fill half of the level-1 cache.
    `cycles` is the estimated time of the whole convolution on one thread.
    """

    def __init__(self, shape: Conv2D, m: int, filter_dtype: str = "f32") -> None:
        oh, ow = shape.out_hw
        self.images, self.m, self.planes = shape.n, m, (m + 2) ** 2
        self.rows, self.columns = -(-oh // m), -(-ow // m)
        self.groups, self.outputs = -(-shape.c // 16), -(-shape.o // 16)
        self.vectors = host().panel // 16
        self.units = panels.split_units(self.outputs, self.vectors)
        self.tap_bytes = 16 * 16 * self.vectors * SIZE[filter_dtype]
        self.filter_bytes = self.planes * self.groups * 16 * self.outputs * 16 * SIZE[filter_dtype]
        fitting = max(1, l1_bytes() // 2 // (16 * 16 * self.vectors * 4))
        self.chunk = -(-self.groups // max(1, round(self.groups / fitting)))
        top, left, bottom, right = shape.pads
        below, beyond = self.rows * m - oh, self.columns * m - ow
        self.grown = replace(shape, pads=(top, left, bottom + below, right + beyond))
        self.layout = Scratch(self.grown, "dense")
        cuts = [
            (self._shared_cycles(rows, splits), rows, splits)
            for rows in sorted({-(-self.rows // bands) for bands in range(1, self.rows + 1)})
            for splits in SPLIT_COUNTS
            if splits <= self.units[1] and (rows == 1 or sum(self.bytes(rows, splits)) <= _MOST_SCRATCH * l2_bytes())
        ]
        _, self.band_rows, splits = min(cuts)
        self.splits = -(-self.units[1] // -(-self.units[1] // splits))
        self.cycles = self.images * self._cycles(self.band_rows, self.splits)
        self.bands = -(-self.rows // self.band_rows)
        self.layout.set_band(self.band_rows * m)

    def bytes(self, rows: int, splits: int) -> tuple[int, int, int, int]:
        """Scratch of a band: pixels of one group, V, sums of one split, and one row of finished tiles."""
        pixels = (rows * self.m + 2) * self.layout.row_bytes
        v = (self.planes * self.groups * rows * self.columns + _SLACK_PIXELS) * PIXEL + self.planes * _STAGGER_BYTES
        sums = self.planes * self._sums_pitch(rows, splits) + _SLACK_PIXELS * PIXEL * self.vectors
        finished = self.m * self.columns * self.m * PIXEL * self.vectors
        return pixels, v, sums, finished

    def _sums_pitch(self, rows: int, splits: int) -> int:
        return -(-self.units[1] // splits) * self._unit_sums(rows) + _STAGGER_BYTES

    def _unit_sums(self, rows: int) -> int:
        """Bytes of a plane's sums of one unit: the last register tile may compute a pixel that does not count."""
        count = rows * self.columns
        return (count + count % 2) * PIXEL * self.vectors

    def _cycles(self, rows: int, splits: int) -> float:
        """Estimated time of an image: products or the filter's way, transforms, what does not fit the level-2 cache."""
        width, bands = 1 if host().wide else 2, -(-self.rows // rows)
        last = self.rows - (bands - 1) * rows
        whole, rest = (panels.run_extent(some * self.columns) for some in (rows, last))
        steps, pixels = ((bands - 1) * a + b for a, b in zip(whole, rest, strict=True))
        chunks, tiles = -(-self.groups // self.chunk), self.rows * self.columns
        products = self.planes * pixels * self.groups * 8 * self.outputs * width / _PRODUCT_SHARE
        products += self.planes * steps * self.units[1] * chunks * _TILE_CYCLES
        stream = bands * self.filter_bytes / _FILTER_BYTES_PER_CYCLE
        transforms = self.planes * tiles * width * (splits * self.groups * _V_CYCLES + self.outputs * _SUM_CYCLES)
        _, v, sums, _ = self.bytes(rows, splits)
        far = _clipped((v + sums) / l2_bytes() - 0.5) * 2 * (v + sums) * bands * splits
        far *= 1 + _clipped((v + sums) / (last_cache_bytes() // 2))
        # V of a chunk is read by unit after unit.
        near = rows * self.columns * self.chunk * PIXEL + self._sums_pitch(rows, splits)
        far += _clipped(near / (l2_bytes() // 2) - 1) * v * bands * self.units[1]
        return max(products, stream) + min(products, stream) * _EXPOSED + transforms + far / _FAR_BYTES_PER_CYCLE

    def _shared_cycles(self, rows: int, splits: int) -> float:
        """What parts of so many rows and splits cost, where one or two threads take them one by one."""
        bands = -(-self.rows // rows)
        last = self.rows - (bands - 1) * rows
        whole, rest = self.images * (bands - 1) * splits, self.images * splits
        busier = -(-whole // 2) * rows
        busier += -(-max(0, rest - whole % 2 * (rows // last)) // 2) * last
        idle = 2 * busier / (self.images * self.rows * splits) - 1
        return shared_cycles(self.images * self._cycles(rows, splits), whole + rest, idle, _SLACK)

    def own_fields(self, shape: Conv2D, pixel_bytes: int) -> tuple[list[int | np.ndarray], int]:
        """The fields after those of a direct convolution, and where in scratch the next free byte is.

        `pixel_bytes` is the distance of neighbouring pixels of the output.
        """
        rows, splits = self.band_rows, self.splits
        pixels, v, sums, finished = (-(-size // 64) * 64 for size in self.bytes(rows, splits))
        count = self.band_rows * self.columns
        fields: dict[str, int | np.ndarray] = {
            "tile_columns": self.columns,
            "band_tile_rows": self.band_rows,
            "last_tile_rows": self.rows - (self.bands - 1) * self.band_rows,
            "v_offset": pixels,
            "sums_offset": pixels + v,
            "finished_offset": pixels + v + sums,
            "group_pitch": count * PIXEL,
            "plane_pitch": self.groups * count * PIXEL + _STAGGER_BYTES,
            "sums_pitch": self._sums_pitch(rows, splits),
            "unit_sums": self._unit_sums(rows),
            "ahead_bytes": -(-self.tap_bytes // panels.run_extent(count)[0] // 64) * 64,
            "oh": shape.out_hw[0],
            "ow": shape.out_hw[1],
            "out_row": shape.out_hw[1] * pixel_bytes,
            "zeros": np.zeros(16 * self.vectors, np.float32),
        }
        return [fields[name] for name in OWN_FIELDS], pixels + v + sums + finished


def _clipped(share: float) -> float:
    return min(1.0, max(0.0, share))
