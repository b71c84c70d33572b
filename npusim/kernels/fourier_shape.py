"""Geometry of convolution by Fourier transforms, and the filter spectra it multiplies with.

An image is cut into square tiles of `edge` pixels that overlap by the window less one, so that a tile gives
(edge - window + 1) results a side (overlap-save). The spectrum of edge^2 real pixels is edge^2 real numbers, in the
order of the columns a row transform leaves: column 0 (horizontal frequency 0), column edge/2, then real and imaginary
part of frequencies 1 .. edge/2 - 1. The first two are real down the tile; there the vertical bins 0 and edge/2 are real
points, the others complex; the remaining columns are complex at every vertical frequency.

Between dense channels every complex point takes three real products (Gauss): with image a + ib and filter c + id,
p0 = a (d - c), p1 = b (c + d), p2 = (a + b) c give p2 - p1 + i (p2 + p0). Image spectra and sums are kept in planes,
one for each real number of a spectrum: `[plane][channel group][tile][16]`, the four real points first, then real and
imaginary part of the others by column. Depthwise, the spectra are multiplied point by point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npusim.kernels import fourier_passes, panels
from npusim.kernels.conv_scratch import PIXEL, Conv2D, Scratch
from npusim.kernels.cpu import host
from npusim.kernels.fourier_passes import STRAIGHT
from npusim.kernels.weights import aligned_empty, padded_bias

__all__ = [
    "DENSE_EDGES",
    "DEPTHWISE_EDGES",
    "SLACK_PIXELS",
    "STRAIGHT",
    "PackedSpectrum",
    "Tiles",
    "complex_points",
    "error_factor",
    "pack_depthwise_spectrum",
    "pack_spectrum",
    "products_of",
    "spectra",
    "workspace_of",
]

DENSE_EDGES = (12, 16, 20, 24, 32, 40, 48, 64)
DEPTHWISE_EDGES = (12, 16, 20, 24, 32, 40, 48, 64, 80, 96)
# Between planes: without it they would often meet in the same sets of the caches. It also takes what the last register
# tile of a plane computes beyond its last pixel.
STAGGER_BYTES = 320
SLACK_PIXELS = 1
_AT_ONCE_BYTES = 128 << 10  # of spectra of neighbouring tiles, that are turned together
_BAND_BYTES = 8 << 20  # of spectra and sums: what a last-level cache can be trusted to keep
_FILTERS_AT_ONCE = 1 << 20  # elements of a spectrum that are made in double precision at a time


def complex_points(edge: int) -> int:
    """Points of a spectrum that are not real; four are."""
    return edge * edge // 2 - 2


def products_of(edge: int) -> int:
    """Real matrix products per tile between dense channels."""
    return 3 * complex_points(edge) + 4


def error_factor(edge: int, channels: int) -> float:
    """Bound of a result's error before rounding, in units of 2^-24 * sum over channels of |tile|_2 * |window|_2.

    The norms are those of the tile's pixels and of the filter's taps. Higham, Accuracy and Stability of Numerical
    Algorithms, theorem 24.2: each of the 2 log2(edge) butterfly levels, forward and backward, adds at most 7 units to
    the relative error of the norm; a product of Gauss' scheme, its sums over `channels` and their combination at most
    4 (channels + 4). Random images and filters, those of large dynamic range among them, stay below 3.
    """
    return 28 * float(np.log2(edge)) + 4 * (channels + 4)


@dataclass
class PackedSpectrum:
    """A filter's spectra in the order the kernels read them, made once at load (fp32).

    Dense: the four real points as `[point][unit of 16 * vectors output channels][input channel][16 * vectors]`, then
    the complex ones as `[point][unit][real, imaginary][input channel][16 * vectors]`; tail units are one vector wide.
    Depthwise (vectors 0): `[16-channel group][spectrum in the order of the columns][16]`.
    """

    weights: np.ndarray
    bias: np.ndarray
    vectors: int
    edge: int
    window: tuple[int, int]


def workspace_of(size: int) -> np.ndarray:
    """Memory that the calls of a convolution share."""
    return aligned_empty(size, np.dtype(np.uint8))


def spectra(filters: np.ndarray, edge: int) -> np.ndarray:
    """Filters (…, kh, kw) -> spectra (edge, edge, …) in float64: [column][vertical] as in the module's description.

    Conjugate, as correlation wants them, and divided by edge^2, which the transforms leave out; all but the real points
    by 2 besides, since the transforms of the image double those. In the first two columns vertical numbers 0 and 1 are
    the real points, then come real and imaginary parts; the other columns come in pairs of real and imaginary part.
    """
    half = edge // 2
    with np.errstate(all="ignore"):
        full = np.conj(np.fft.rfft2(filters.astype(np.float64), (edge, edge))) / (2 * edge**2)
    full = np.moveaxis(full, (-1, -2), (0, 1))
    out = np.empty((edge, *full.shape[1:]))
    out[2::2], out[3::2] = full[1:half].real, full[1:half].imag
    for column, line in ((0, full[0]), (1, full[half])):
        out[column, 0], out[column, 1] = 2 * line[0].real, 2 * line[half].real
        out[column, 2::2], out[column, 3::2] = line[1:half].real, line[1:half].imag
    return out


def pack_spectrum(filters: np.ndarray, edge: int, bias: np.ndarray | None = None) -> PackedSpectrum:
    """Pack the spectra of an OIHW filter (float32) between dense channels, and an fp32 bias."""
    outputs, inputs, *window = filters.shape
    wide, deep = -(-outputs // 16) * 16, -(-inputs // 16) * 16
    vectors = panels.panel_vectors()
    packed = aligned_empty(edge * edge * deep * wide, np.dtype(np.float32))
    packed[:] = 0
    real, points = packed[: 4 * deep * wide].reshape(4, -1), packed[4 * deep * wide :].reshape(-1, 2 * deep * wide)
    for at, columns in _units(wide, vectors):
        own = filters[at : at + columns]
        here, size = at * deep, columns * deep
        unit = real[:, here : here + size].reshape(4, deep, columns)
        pairs = points[:, 2 * here : 2 * (here + size)].reshape(-1, 2, deep, columns)
        step = max(1, _FILTERS_AT_ONCE // (len(own) * edge * edge))
        for first in range(0, inputs, step):
            some = slice(first, min(first + step, inputs))
            made = _planes(spectra(own[:, some], edge)).transpose(0, 2, 1)
            unit[:, some, : len(own)] = made[:4]
            pairs[:, :, some, : len(own)] = made[4:].reshape(-1, 2, *made.shape[1:])
    return PackedSpectrum(packed, padded_bias(bias, outputs), vectors, edge, (window[0], window[1]))


def _units(wide: int, vectors: int) -> list[tuple[int, int]]:
    """First output channel and number of them, of every unit."""
    full = wide // (16 * vectors) * 16 * vectors
    return [(at, 16 * vectors) for at in range(0, full, 16 * vectors)] + [(at, 16) for at in range(full, wide, 16)]


def pack_depthwise_spectrum(filters: np.ndarray, edge: int, bias: np.ndarray | None = None) -> PackedSpectrum:
    """Pack the spectra of a depthwise filter (C, 1, KH, KW) and an fp32 bias."""
    channels, _, *window = filters.shape
    groups = -(-channels // 16)
    packed = aligned_empty(groups * edge * edge * 16, np.dtype(np.float32))
    packed[:] = 0
    for group, points in enumerate(packed.reshape(groups, edge, edge, 16)):
        own = filters[group * 16 : group * 16 + 16, 0]
        made = spectra(own, edge)
        points[:2, :, : len(own)] = made[:2]
        # The pairs of columns as complex numbers one after the other.
        pairs = made[2:].reshape(edge // 2 - 1, 2, edge, len(own)).transpose(0, 2, 1, 3)
        points[2:, :, : len(own)] = pairs.reshape(edge - 2, edge, len(own))
    return PackedSpectrum(packed, padded_bias(bias, channels), 0, edge, (window[0], window[1]))


def _planes(made: np.ndarray) -> np.ndarray:
    """Spectra [column][vertical](O, I) in the order of the planes: the real points, then pairs by column."""
    edge = len(made)
    pairs = made[2:].reshape(edge // 2 - 1, 2, edge, *made.shape[2:]).swapaxes(1, 2)
    parts = (made[0, :2], made[1, :2], made[0, 2:], made[1, 2:], pairs.reshape(-1, *made.shape[2:]))
    return np.concatenate(parts).astype(np.float32)


class Tiles:
    """How a convolution is cut into tiles, and the sizes that follow."""

    def __init__(self, shape: Conv2D, edge: int) -> None:
        oh, ow = shape.out_hw
        self.edge, self.dense = edge, shape.groups == 1
        self.groups, self.out_groups = -(-shape.c // 16), -(-shape.o // 16)
        self.m = (edge - shape.kernel[0] + 1, edge - shape.kernel[1] + 1)
        if min(self.m) < 1:
            raise ValueError(f"tiles of {edge} pixels are smaller than the window {shape.kernel}")
        self.rows, self.columns = -(-oh // self.m[0]), -(-ow // self.m[1])
        top, left, bottom, right = shape.pads
        below, beyond = self.rows * self.m[0] - oh, self.columns * self.m[1] - ow
        grown = replace(shape, pads=(top, left, bottom + below, right + beyond))
        self.layout = Scratch(grown, "dense" if self.dense else "depthwise")
        self.layout.set_band(self.m[0])
        self.grown = grown
        self.all_rows, self.count = shape.n * self.rows, shape.n * self.rows * self.columns
        per_row = edge * edge * self.columns * (self.groups + self.out_groups) * PIXEL
        # Every band reads the filter again, which costs more than spectra that leave the cache.
        most = max(_BAND_BYTES, self.filter_bytes)
        bands = -(-self.all_rows // max(1, most // per_row))
        self.band_rows = -(-self.all_rows // bands)

    @property
    def filter_bytes(self) -> int:
        """A filter's spectra."""
        return self.edge**2 * 4 * self.groups * 16 * (self.out_groups * 16 if self.dense else 1)

    @property
    def lanes(self) -> int:
        """Channels of a vector."""
        return 16 if host().wide else 8

    @property
    def pixel_bytes(self) -> int:
        """Pixels of one row of tiles, one channel group."""
        return -(-(len(self.layout.rows) * self.layout.row_bytes) // 64) * 64

    @property
    def tile_bytes(self) -> int:
        """The spectrum of a tile's rows, one vector of channels."""
        return self.edge * fourier_passes.row_pitch(self.edge, self.lanes)

    @property
    def line_bytes(self) -> int:
        """What transforms of a line work in."""
        return fourier_passes.room_bytes(self.edge, self.lanes)

    @property
    def turns(self) -> np.ndarray:
        """The table that transforms of a line use."""
        return fourier_passes.turn_table(self.edge)

    @property
    def at_once(self) -> int:
        """Tiles of a 16-channel group whose spectra lie in scratch together, at most; even."""
        return max(2, min(self.columns, _AT_ONCE_BYTES // (self.tile_bytes * 16 // self.lanes)) // 2 * 2)

    def finished_bytes(self, vectors: int) -> int:
        """Results of one row of tiles; two rows of a tile are stored whole, its neighbour's over what is too much."""
        return -(-self.m[0] // 2) * 2 * self.finished_columns * PIXEL * vectors

    @property
    def finished_columns(self) -> int:
        return self.columns * self.m[1] + self.edge - self.m[1]

    def plane_bytes(self, tile_rows: int, groups: int) -> int:
        """One plane of the image's spectra or of the sums over channels."""
        return tile_rows * self.columns * groups * PIXEL + STAGGER_BYTES
