"""Convolution by Fourier transforms against sums in float64: its error bound, odd sizes, epilogues, special values."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.executor import NOT_FINITE
from npusim.kernels import fourier_shape
from npusim.kernels.conv import Conv2D
from npusim.kernels.desc import task_table
from npusim.kernels.epilogue import Epilogue
from npusim.kernels.fourier import (
    PackedSpectrum,
    fourier2d,
    pack_depthwise_spectrum,
    pack_spectrum,
    workspace_bytes,
)
from npusim.kernels.fourier_shape import Tiles, error_factor, products_of, spectra
from npusim.kernels.weights import aligned_empty
from tests.npusim.kernels.inputs import address, executor, run_both
from tests.npusim.kernels.twins import DTYPES, EPS32, convolution, from_blocked, to_blocked

# n, c, h, w, o, window, pads (top, left, bottom, right), tile edge
DENSE = [
    (1, 16, 14, 14, 16, (7, 7), (3, 3, 3, 3), 16),
    (2, 40, 23, 9, 24, (7, 7), (3, 3, 3, 3), 12),
    (1, 3, 18, 15, 70, (9, 9), (0, 4, 2, 1), 20),
    (3, 33, 7, 7, 17, (7, 7), (0, 0, 0, 0), 24),
    (1, 20, 1, 1, 8, (11, 11), (5, 5, 5, 5), 16),
    (1, 17, 30, 41, 33, (5, 13), (2, 6, 2, 6), 32),
    (2, 5, 40, 26, 9, (31, 31), (15, 15, 15, 15), 48),
]
DEPTHWISE = [
    (2, 24, 19, 21, (7, 7), (3, 3, 3, 3), 16),
    (1, 9, 33, 8, (9, 11), (4, 0, 3, 9), 20),
    (1, 16, 40, 45, (13, 13), (6, 6, 6, 6), 32),
    (2, 17, 30, 23, (31, 31), (15, 15, 15, 15), 40),
]
HALVES = ("f16", "bf16")


def block_of(dtype: str) -> int:
    return 8 if dtype == "f32" else 16


def dense(case: tuple, dtype: str = "f16") -> Conv2D:
    n, c, h, w, o, window, pads, _ = case
    return Conv2D(n, c, h, w, o, window, pads=pads, c0_in=block_of(dtype), c0_out=block_of(dtype))


def depthwise(case: tuple, dtype: str = "f16") -> Conv2D:
    n, c, h, w, window, pads, _ = case
    return Conv2D(n, c, h, w, c, window, pads=pads, groups=c, c0_in=block_of(dtype), c0_out=block_of(dtype))


def operands(rng: np.random.Generator, shape: Conv2D, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Image, filter (fp32 values of the type) and bias."""
    per = shape.c // shape.groups
    x = rng.standard_normal((shape.n, shape.c, shape.h, shape.w)).astype(DTYPES[dtype])
    filters = rng.standard_normal((shape.o, per, *shape.kernel)) / np.sqrt(per * shape.kernel[0] * shape.kernel[1])
    return x, filters.astype(DTYPES[dtype]).astype(np.float32), rng.standard_normal(shape.o).astype(np.float32)


def packed_of(shape: Conv2D, filters: np.ndarray, bias: np.ndarray, edge: int) -> PackedSpectrum:
    return (pack_depthwise_spectrum if shape.groups > 1 else pack_spectrum)(filters, edge, bias)


def run(
    shape: Conv2D,
    x: np.ndarray,
    filters: np.ndarray,
    bias: np.ndarray,
    dtype: str,
    edge: int,
    rule: Epilogue | None = None,
) -> np.ndarray:
    """The kernels' result in framework layout; padding lanes must be zero."""
    packed, blocked = packed_of(shape, filters, bias, edge), to_blocked(x, shape.c0_in)
    out = np.zeros((shape.n, -(-shape.o // shape.c0_out), *shape.out_hw, shape.c0_out), DTYPES[dtype])

    def make(target: np.ndarray):
        workspace = aligned_empty(workspace_bytes(shape, edge), np.dtype(np.uint8))
        workspace[:] = 0xFF  # NaN wherever it is not written
        return fourier2d(shape, address(blocked), packed, address(target), (dtype, dtype), workspace, rule)

    plain = from_blocked(run_both(make, out))
    assert not plain[:, shape.o :].any()
    return plain[:, : shape.o].astype(np.float64)


def exact(shape: Conv2D, x: np.ndarray, filters: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return convolution(x.astype(np.float64), filters, bias, (1, 1), shape.pads, (1, 1), shape.groups).value


def bound(shape: Conv2D, x: np.ndarray, filters: np.ndarray, edge: int) -> np.ndarray:
    """The documented bound of every pixel, in whose place 8 units suffice for random operands: norms of its tile and of
    the filter, channel by channel."""
    tiles = Tiles(shape, edge)
    top, left, _, _ = shape.pads
    oh, ow = shape.out_hw
    padded = np.zeros((*x.shape[:2], tiles.rows * tiles.m[0] + edge, tiles.columns * tiles.m[1] + edge))
    height, width = padded[:, :, top:, left:].shape[2:]
    padded[:, :, top : top + shape.h, left : left + shape.w] = x[:, :, :height, :width]
    windows = np.sqrt((filters.astype(np.float64) ** 2).sum((2, 3)))
    limit = np.zeros((shape.n, shape.o, tiles.rows * tiles.m[0], tiles.columns * tiles.m[1]))
    for i in range(0, limit.shape[2], tiles.m[0]):
        for j in range(0, limit.shape[3], tiles.m[1]):
            norms = np.sqrt((padded[:, :, i : i + edge, j : j + edge] ** 2).sum((2, 3)))
            sums = norms * windows[:, 0] if shape.groups > 1 else norms @ windows.T
            limit[:, :, i : i + tiles.m[0], j : j + tiles.m[1]] = sums[:, :, None, None]
    assert error_factor(edge, shape.c // shape.groups) > 8
    return 8 * EPS32 * limit[:, :, :oh, :ow]


def check(shape: Conv2D, x: np.ndarray, filters: np.ndarray, bias: np.ndarray, dtype: str, edge: int) -> None:
    got, wanted = run(shape, x, filters, bias, dtype, edge), exact(shape, x, filters, bias)
    if dtype == "f16":
        wanted = np.clip(wanted, -65504, 65504)
    unit = np.abs(wanted) * {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24}[dtype] + 2.0**-25
    assert (np.abs(got - wanted) <= bound(shape, x, filters, edge) + EPS32 * np.abs(bias).max() + unit).all()
    usual = {"f16": 3e-4, "bf16": 2.5e-3, "f32": 1e-6}[dtype]
    assert np.linalg.norm(got - wanted) <= usual * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("case", "dtype"), [(c, "f32") for c in DENSE] + [(c, d) for c in DENSE[:2] for d in HALVES], ids=str
)
def test_dense_channels_agree_with_sums_in_double_precision(rng, case, dtype):
    shape = dense(case, dtype)
    check(shape, *operands(rng, shape, dtype), dtype, case[-1])


@pytest.mark.parametrize(
    ("case", "dtype"), [(c, "f32") for c in DEPTHWISE] + [(DEPTHWISE[0], d) for d in HALVES], ids=str
)
def test_single_channels_agree_with_sums_in_double_precision(rng, case, dtype):
    shape = depthwise(case, dtype)
    check(shape, *operands(rng, shape, dtype), dtype, case[-1])


@pytest.mark.parametrize("grouped", [False, True])
def test_errors_are_those_of_the_tile_where_magnitudes_differ(rng, grouped):
    shape = depthwise(DEPTHWISE[0], "f32") if grouped else dense(DENSE[0], "f32")
    x, filters, bias = operands(rng, shape, "f32")
    x *= np.exp(rng.uniform(-20, 20, x.shape)).astype(np.float32)
    filters *= np.exp(rng.uniform(-10, 10, filters.shape)).astype(np.float32)
    got, wanted = run(shape, x, filters, bias, "f32", 16), exact(shape, x, filters, bias)
    limit = bound(shape, x, filters, 16) + EPS32 * (np.abs(wanted) + np.abs(bias).max())
    assert (np.abs(got - wanted) <= limit).all()


def test_bands_of_tiles_change_no_bit(rng, monkeypatch):
    case = (3, 20, 40, 22, 24, (7, 7), (3, 3, 3, 3), 12)
    shape = dense(case)
    given = operands(rng, shape, "f16")
    whole = run(shape, *given, "f16", 12)
    assert Tiles(shape, 12).band_rows == 21
    monkeypatch.setattr(fourier_shape, "_BAND_BYTES", 12 * 12 * 4 * 64 * 22)
    assert Tiles(shape, 12).band_rows < 7
    assert np.array_equal(run(shape, *given, "f16", 12), whole)


@pytest.mark.parametrize("grouped", [False, True])
def test_residual_activation_and_expression(rng, grouped):
    shape, edge = (depthwise(DEPTHWISE[0]), 16) if grouped else (dense(DENSE[1]), 12)
    x, filters, bias = operands(rng, shape, "f16")
    residual = rng.standard_normal((shape.n, shape.o, *shape.out_hw)).astype(np.float16)
    blocked = to_blocked(residual, 16)
    got = run(shape, x, filters, bias, "f16", edge, Epilogue(residual=address(blocked), activation="relu"))
    wanted = np.maximum(exact(shape, x, filters, bias) + residual, 0)
    assert np.linalg.norm(got - wanted) <= 3e-4 * np.linalg.norm(wanted)
    followed = run(shape, x, filters, bias, "f16", edge, Epilogue(then="neg(x0)"))
    assert np.array_equal(followed, -run(shape, x, filters, bias, "f16", edge))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("grouped", [False, True])
def test_what_is_not_finite_spoils_its_tiles_and_is_reported(rng, grouped, special, threads):
    shape = Conv2D(1, 16, 30, 33, 16, (7, 7), pads=(3, 3, 3, 3), groups=16 if grouped else 1)
    x, filters, bias = operands(rng, shape, "f16")
    clean = run(shape, x, filters, bias, "f16", 16)
    x[0, 3, 5, 20] = special
    blocked, out = to_blocked(x, 16), np.zeros((1, 1, 30, 33, 16), np.float16)
    workspace = aligned_empty(workspace_bytes(shape, 16), np.dtype(np.uint8))
    packed = packed_of(shape, filters, bias, 16)
    calls = fourier2d(shape, address(blocked), packed, address(out), ("f16", "f16"), workspace)
    status = executor(threads).run(task_table(calls * 2))
    assert (status.code, status.row) == (NOT_FINITE, len(calls) - 1)
    got = from_blocked(out).astype(np.float64)
    # Row 5 lies in the first row of tiles alone; column 20 in the second and the third, each 10 results wide.
    spoiled = np.zeros(got.shape, bool)
    spoiled[:, 3 if grouped else slice(None), :10, 10:30] = True
    assert not np.isfinite(got[spoiled]).any()
    assert np.array_equal(got[~spoiled], clean[~spoiled])


def test_spectra_are_those_of_numpy(rng):
    filters = rng.standard_normal((3, 7, 5))
    made, wanted = spectra(filters, 12), np.fft.fft2(filters, (12, 12)) / 144
    assert np.allclose(made[0, 0], wanted[:, 0, 0].real) and np.allclose(made[1, 1], wanted[:, 6, 6].real)
    assert np.allclose(made[4] - 1j * made[5], wanted[:, :, 2].T / 2)
    assert products_of(12) == 3 * 70 + 4


def test_refuses_what_it_cannot_do(rng):
    shape = dense(DENSE[0])
    _, filters, bias = operands(rng, shape, "f16")
    packed = pack_spectrum(filters, 16, bias)
    with pytest.raises(ValueError, match="workspace"):
        fourier2d(shape, 64, packed, 64, ("f16", "f16"))
    strided = Conv2D(1, 16, 14, 14, 16, (7, 7), strides=(2, 2))
    with pytest.raises(ValueError, match="spectra"):
        fourier2d(strided, 64, packed, 64, ("f16", "f16"))
    with pytest.raises(ValueError, match="smaller than the window"):
        Tiles(Conv2D(1, 16, 40, 40, 16, (31, 31)), 24)
