"""Geometry of the Winograd kernel: packed filters, bands of tile rows, and what scratch memory holds for a band.

Scratch of a part: pixels of one channel group (fp32, zero padded), V `[plane][group][tile][16]`, sums of one unit
`[plane][tile][vectors][16]`, one row of finished tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npusim.kernels import panels
from npusim.kernels.conv import lane_strides
from npusim.kernels.conv_scratch import PIXEL, Conv2D, Scratch
from npusim.kernels.cpu import host, l2_bytes
from npusim.kernels.desc import SIZE, element_name
from npusim.kernels.weights import pack_panels, pad_to, padded_bias
from npusim.kernels.winograd_code import OWN_FIELDS

_SLACK_PIXELS = 16
# Between the planes of V and of the sums: without it they would often meet in the same sets of the caches.
_STAGGER_BYTES = 320
_SHARE_OF_L3 = 2.5  # level-2 caches
_LEAST_MACS = 1_500_000
_PARTS = 4  # fewer than direct convolution's: every split of the output channels transforms the image again


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


class Bands:
    """How a convolution is cut: rows of tiles per band, output-channel splits, and the scratch block of a band."""

    def __init__(self, shape: Conv2D, m: int, filter_dtype: str = "f32") -> None:
        oh, ow = shape.out_hw
        self.m, self.planes = m, (m + 2) ** 2
        self.rows, self.columns = -(-oh // m), -(-ow // m)
        self.groups, outputs = -(-shape.c // 16), -(-shape.o // 16)
        self.vectors = host().panel // 16
        self.units = panels.split_units(outputs, self.vectors)
        self.filter_bytes = self.planes * self.groups * 16 * outputs * 16 * SIZE[filter_dtype]
        top, left, bottom, right = shape.pads
        below, beyond = self.rows * m - oh, self.columns * m - ow
        self.grown = replace(shape, pads=(top, left, bottom + below, right + beyond))
        self.layout = Scratch(self.grown, "dense")
        self.band_rows, self.splits = self._choose(shape, self.filter_bytes)
        self.bands = -(-self.rows // self.band_rows)
        self.layout.set_band(self.band_rows * m)

    def bytes(self, rows: int) -> tuple[int, int, int, int]:
        """Scratch of a band: pixels of one group, V, sums of one unit, and one row of finished tiles."""
        pixels = (rows * self.m + 2) * self.layout.row_bytes
        tiles = rows * self.columns
        v = (self.planes * self.groups * tiles + _SLACK_PIXELS) * PIXEL + self.planes * _STAGGER_BYTES
        sums = ((self.planes * tiles + _SLACK_PIXELS) * PIXEL + self.planes * _STAGGER_BYTES) * self.vectors
        finished = self.m * self.columns * self.m * PIXEL * self.vectors
        return pixels, v, sums, finished

    def _choose(self, shape: Conv2D, weight_bytes: int) -> tuple[int, int]:
        """Rows of tiles per band and splits: enough parts, least traffic, scratch near half of L2.

        What does not fit L2 is read again by every unit from the last-level cache, up to a core's share of it.
        """
        wanted = max(1, min(_PARTS, shape.macs // _LEAST_MACS))
        best: tuple[float, int, int] | None = None
        for rows in sorted({-(-self.rows // bands) for bands in range(1, self.rows + 1)}):
            bands = -(-self.rows // rows)
            scratch = sum(self.bytes(rows))
            pressure = max(0, scratch - l2_bytes() // 2) * 8 + max(0, scratch - _SHARE_OF_L3 * l2_bytes()) * 40
            for splits in (1, 2, 3, 4, 6, 8):
                if splits > self.units[1]:
                    continue
                missing = max(0, wanted - shape.n * bands * splits)
                transform = splits * self.planes * self.groups * self.rows * self.columns * PIXEL
                idle = (bands * rows - self.rows) * self.columns * weight_bytes * 0.1
                cost = transform + bands * weight_bytes * 0.5 + pressure + missing * 1e6 + idle
                if best is None or cost < best[0]:
                    best = cost, rows, splits
        assert best is not None
        per_split = -(-self.units[1] // best[2])
        return best[1], -(-self.units[1] // per_split)

    def own_fields(self, shape: Conv2D, target: str) -> tuple[list[int | np.ndarray], int]:
        """The fields after those of a direct convolution, and where in scratch the next free byte is."""
        pixels, v, sums, finished = (-(-size // 64) * 64 for size in self.bytes(self.band_rows))
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
            "sums_pitch": count * PIXEL + _STAGGER_BYTES,
            "oh": shape.out_hw[0],
            "ow": shape.out_hw[1],
            "out_row": shape.out_hw[1] * lane_strides(shape.c0_out, 1, SIZE[target])[2],
            "zeros": np.zeros(16 * self.vectors, np.float32),
        }
        return [fields[name] for name in OWN_FIELDS], pixels + v + sums + finished
