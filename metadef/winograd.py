"""Winograd's minimal filtering F(m x m, 3x3): its matrices, the transformed filter, and the whole algorithm in NumPy.

An output tile of m x m pixels is Y = A^T [(G g G^T) * (B^T d B)] A, with g the 3x3 filter and d the input tile of
(m + 2) x (m + 2) pixels: (m + 2)^2 products instead of 9 m^2 (Winograd; Lavin and Gray, "Fast algorithms for
convolutional neural networks", 2015, whose interpolation points are used). Tiles overlap by two pixels.

Where a tile is 16-bit, B is divided and G multiplied by :func:`scale_of`, a power of two: this changes no mantissa and
keeps the transformed input of F(2x2) from overflowing float16 (F(4x4): inputs up to 10480). A transformed input and a
transformed filter are rounded once, to the element type that the cube multiplies; products are summed in fp32, and the
result is rounded once. With float16 operands the error against direct summation is about 5e-4 of the result's norm for
F(2x2) and 3e-3 for F(4x4) (:data:`RELATIVE_ERROR` are the limits). A tile that holds a NaN or an infinity gives NaN in
all its pixels, also in those whose own 3x3 window does not.
"""

from __future__ import annotations

import numpy as np

TAPS = 3
ALGORITHMS = {"winograd_f2": 2, "winograd_f4": 4}
"""Output pixels along a tile's edge, by ``Kernel.algorithm``."""

CONV_CHOICES = ("direct", "auto", *ALGORITHMS, "winograd")
"""How convolutions may be computed: ``auto`` takes what the chip's model says is faster, ``winograd`` the better of
both tile sizes wherever that is possible."""

RELATIVE_ERROR = {"winograd_f2": 1e-3, "winograd_f4": 5e-3}
"""Limits of the relative L2 error of an operator with float16 operands against its sum in float64."""

_B = {
    2: ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    4: (
        (4, 0, -5, 0, 1, 0),
        (0, -4, -4, 1, 1, 0),
        (0, 4, -4, -1, 1, 0),
        (0, -2, -1, 2, 1, 0),
        (0, 2, -1, -2, 1, 0),
        (0, 4, 0, -5, 0, 1),
    ),
}
_G = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}
_A = {
    2: ((1, 1, 1, 0), (0, 1, -1, -1)),
    4: ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
}
_FILTERS_AT_ONCE = 2048  # what a step makes in double precision stays within a cache
_HALF_SCALE = {2: 2.0, 4: 4.0}


def tile_edge(m: int) -> int:
    """Input pixels along a tile's edge."""
    return m + TAPS - 1


def planes_of(m: int) -> int:
    """Products a tile and channel pair takes: one matrix product each."""
    return tile_edge(m) ** 2


def scale_of(m: int, half: bool) -> float:
    """What B is divided by and G multiplied by, along one axis; 1 for 32-bit tiles."""
    return _HALF_SCALE[m] if half else 1.0


def transform_filter(weights: np.ndarray, m: int) -> np.ndarray:
    """Filter (O, I, 3, 3) -> U ((m+2)^2, O, I), computed in float64 and rounded once to the filter's element type."""
    g = np.array(_G[m]) * scale_of(m, weights.dtype == np.float16)
    outputs, inputs = weights.shape[:2]
    flat = weights.reshape(outputs * inputs, TAPS, TAPS)
    planes = np.empty((len(g), len(g), outputs * inputs), weights.dtype)
    with np.errstate(all="ignore"):
        for first in range(0, outputs * inputs, _FILTERS_AT_ONCE):
            some = slice(first, first + _FILTERS_AT_ONCE)
            wide = flat[some].transpose(1, 2, 0).astype(np.float64, order="C")
            # einsum adds in one order and wakes no threads, which matrix products of this size would.
            columns = np.einsum("ir,rcn->icn", g, wide)
            planes[:, :, some] = np.einsum("jc,icn->ijn", g, columns)
    return planes.reshape(-1, outputs, inputs)


def restore_filter(planes: np.ndarray, m: int) -> np.ndarray:
    """The filter (O, I, 3, 3) that a U stands for: least squares in float64, rounded to U's element type.

    The rounding of U is not undone: what comes back may differ from the filter U was made of in its last places.
    """
    g = np.array(_G[m]) * scale_of(m, planes.dtype == np.float16)
    outputs, inputs = planes.shape[1:]
    flat = planes.reshape(planes.shape[0], outputs * inputs).astype(np.float64)
    with np.errstate(all="ignore"):
        filters = (np.linalg.pinv(np.kron(g, g)) @ flat).T
        return np.ascontiguousarray(filters.reshape(outputs, inputs, TAPS, TAPS).astype(planes.dtype))


def convolve(
    x: np.ndarray, planes: np.ndarray, pads: tuple[int, int, int, int], m: int, wide: type[np.floating] = np.float32
) -> np.ndarray:
    """The device's computation: x (N, C, H, W), U as from :func:`transform_filter` -> (N, O, OH, OW) before rounding.

    Args:
        x: float16 or float32; the transformed input is rounded to its element type.
        planes: U, of the same element type.
        pads: top, bottom, left, right.
        m: output pixels along a tile's edge.
        wide: the type of transforms and sums.
    """
    n, _, h, w = x.shape
    top, bottom, left, right = pads
    oh, ow = h + top + bottom - TAPS + 1, w + left + right - TAPS + 1
    rows, columns = -(-oh // m), -(-ow // m)
    edge = tile_edge(m)
    below, beyond = rows * m + 2 - h - top, columns * m + 2 - w - left
    padded = np.pad(x.astype(wide), ((0, 0), (0, 0), (top, max(below, 0)), (left, max(beyond, 0))))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (edge, edge), (2, 3))
    windows = windows[:, :, : rows * m : m, : columns * m : m]
    b = (np.array(_B[m]) / scale_of(m, x.dtype == np.float16)).astype(wide)
    a = np.array(_A[m], wide)
    with np.errstate(all="ignore"):
        inner = np.einsum("ai,nchwij,bj->abnchw", b, windows, b, optimize=True).astype(x.dtype)
        v = inner.reshape(edge * edge, *inner.shape[2:]).astype(wide)
        sums = np.einsum("eoc,enchw->enohw", planes.astype(wide), v, optimize=True)
        sums = sums.reshape(edge, edge, *sums.shape[1:])
        tiles = np.einsum("ia,abnohw,jb->nohiwj", a, sums, a, optimize=True)
    return tiles.reshape(n, -1, rows * m, columns * m)[:, :, :oh, :ow]
