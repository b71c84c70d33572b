"""Accuracy of the passes that row operators are made of, at the ends of the range and over long rows."""

import numpy as np
import pytest

from npusim.kernels.row_passes import GROUP
from npusim.kernels.rows import RowShape, layer_norm, softmax
from tests.npusim.kernels import twins
from tests.npusim.kernels.inputs import address, run
from tests.npusim.kernels.twins import DTYPES


def softmax_of(x: np.ndarray, dtype: str) -> np.ndarray:
    out = np.full(x.shape, 7, DTYPES[dtype])
    run(softmax(*RowShape.axis(x.shape, -1, (address(x), dtype), (address(out), dtype))))
    return out


def unlike(got: np.ndarray, exact: np.ndarray) -> float:
    """Share of results that are not the exact ones rounded once."""
    return float(np.mean(got != exact.astype(got.dtype)))


@pytest.mark.parametrize("spread", [0.1, 3, 100])
@pytest.mark.parametrize("count", [7, 64, 777, 8192])
def test_nearly_all_shares_of_halves_are_the_nearest(spread: float, count: int, rng: np.random.Generator) -> None:
    x = (rng.standard_normal((40, count)) * spread + rng.uniform(-20, 20, (40, 1)) * spread).astype(np.float16)
    assert unlike(softmax_of(x, "f16"), twins.softmax(x, -1, False)) < 0.01


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_shares_fade_through_subnormal_numbers_to_zero(dtype: str) -> None:
    x = np.zeros((1, 64 * GROUP), DTYPES[dtype])
    x[0, 1:] = -np.arange(1, x.size) * (0.1 if dtype == "f16" else 0.5)
    exact = twins.softmax(x, -1, False)
    got = softmax_of(x, dtype)
    smallest = np.finfo(DTYPES[dtype]).smallest_subnormal.astype(np.float64)
    fading = exact < np.finfo(DTYPES[dtype]).tiny
    error = np.abs(got.astype(np.float64) - exact)
    assert fading.any() and (error <= 0.51 * smallest + exact * 2.0**-22)[fading].all()
    assert (got[exact < smallest / 2] == 0).all()


@pytest.mark.parametrize("height", [5, 60, 80, 100, 130, 250, 400, 6e4])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_peaks_and_gaps_that_a_sample_misses(dtype: str, height: float, rng: np.random.Generator) -> None:
    """A few blocks of a long row stand in for it at first: one element stands out, or all before it are masked."""
    count = 2237
    x = rng.standard_normal((count // 7, count)).astype(DTYPES[dtype])
    for row, place in enumerate(range(3, count - 7, 7)):
        x[row, place] += height
        x[row, : place if row % 3 else 0] = -np.inf
    exact = twins.softmax(x, -1, False)
    got = softmax_of(x, dtype).astype(np.float64)
    assert not got[exact == 0].any()
    spacing = np.spacing(np.maximum(exact, np.finfo(DTYPES[dtype]).tiny).astype(DTYPES[dtype])).astype(np.float64)
    # One rounding of the quotient; in fp32 also those of the exponential, the sum and the difference to the start.
    bound = 0.52 * spacing + (0 if dtype == "f16" else exact * (2.0**-20 + height * 2.0**-24))
    assert (np.abs(got - exact) <= bound).all(), (np.abs(got - exact) / spacing).max()


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtypes", [("f16", "f16"), ("f32", "f32"), ("f16", "f32"), ("bf16", "bf16")])
def test_long_rows_have_the_bits_of_strided_and_split_ones(
    dtypes: tuple[str, str], log: bool, rng: np.random.Generator
) -> None:
    """Also where what a sample of the row gave has to be taken back."""
    count, c0 = 2240, 16
    x = rng.standard_normal((6, count)).astype(DTYPES[dtypes[0]])
    x[1, 16:32], x[2, -1], x[3, : count // 2], x[4, -1], x[5, 40] = 300, 110, -np.inf, np.inf, np.nan
    across, blocks = np.ascontiguousarray(x.T), np.ascontiguousarray(x.reshape(6, -1, c0).swapaxes(0, 1))
    dense, strided, split = (np.full(a.shape, 7, DTYPES[dtypes[1]]) for a in (x, across, blocks))

    def sides(*arrays: np.ndarray) -> list[tuple[int, str]]:
        return [(address(a), dtype) for a, dtype in zip(arrays, dtypes, strict=True)]

    run(softmax(*RowShape.axis(x.shape, 1, *sides(x, dense)), log=log))
    run(softmax(*RowShape.axis(across.shape, 0, *sides(across, strided)), log=log))
    run(softmax(*RowShape.nz(1, 6, count, 6, c0, *sides(blocks, split)), log=log))
    wide = dense.astype(np.float64)
    np.testing.assert_array_equal(strided.T.astype(np.float64), wide)
    np.testing.assert_array_equal(split.swapaxes(0, 1).reshape(x.shape).astype(np.float64), wide)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_rows_that_are_written_over(dtype: str, rng: np.random.Generator) -> None:
    """The elements are still there where what a sample gave is taken back."""
    x = rng.standard_normal((3, 2500)).astype(DTYPES[dtype])
    x[1:, 77] = 200
    expected = softmax_of(x, dtype)
    run(softmax(*RowShape.axis(x.shape, -1, (address(x), dtype), (address(x), dtype))))
    assert x.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["f16", "f32", "bf16"])
def test_masked_elements_have_no_share(dtype: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 200)).astype(DTYPES[dtype])
    hidden = rng.random(x.shape) < 0.7
    for mask in (-np.inf, -6e4):
        x[hidden] = mask
        got = softmax_of(x, dtype).astype(np.float64)
        assert not got[hidden].any()
        np.testing.assert_allclose(got.sum(1), 1, atol=0.02)


@pytest.mark.parametrize("dtype", ["f16", "f32", "bf16"])
@pytest.mark.parametrize("count", [3, 130, 2048, 5003])
def test_rows_of_infinities_and_nan_are_nan(dtype: str, count: int) -> None:
    """Also where a sample of a long row does not look: between its first blocks and at the end."""
    x = np.zeros((7, count), DTYPES[dtype])
    x[0, 1], x[1, 1], x[2] = np.nan, np.inf, -np.inf
    x[3, count // 32], x[4, -1], x[5, count // 32] = np.inf, np.inf, -np.nan
    got = softmax_of(x, dtype).astype(np.float64)
    assert np.isnan(got[:6]).all() and not np.isnan(got[6]).any()


@pytest.mark.parametrize("mean", [0, 1, 100])
@pytest.mark.parametrize("rms", [False, True])
def test_nearly_all_normalised_halves_are_the_nearest(mean: float, rms: bool, rng: np.random.Generator) -> None:
    for count in (100, 768, 4096):
        x = (rng.standard_normal((20, count)) * 3 + mean).astype(np.float16)
        gain, shift = (rng.standard_normal(count).astype(np.float16) for _ in range(2))
        out = np.zeros_like(x)
        places = RowShape.axis(x.shape, -1, (address(x), "f16"), (address(out), "f16"))
        run(layer_norm(*places, address(gain), address(shift), "f16", 1e-5, rms))
        assert unlike(out, twins.layer_norm(x, gain, shift, 1e-5, rms)) < 0.01


@pytest.mark.parametrize("mean", [1, 1e3, 1e6])
@pytest.mark.parametrize("count", [7, 100, 4096, 8200])
def test_a_mean_far_above_the_spread_costs_no_accuracy(mean: float, count: int, rng: np.random.Generator) -> None:
    x = (rng.standard_normal((5, count)) + mean).astype(np.float32)
    gain, shift = (rng.standard_normal(count).astype(np.float32) for _ in range(2))
    out = np.zeros_like(x)
    places = RowShape.axis(x.shape, -1, (address(x), "f32"), (address(out), "f32"))
    run(layer_norm(*places, address(gain), address(shift), "f32", 1e-5))
    exact = twins.layer_norm(x, gain, shift, 1e-5, False)
    size = np.abs(exact - shift) + np.abs(shift) + np.abs(gain)
    assert (np.abs(out - exact) <= 2.0**-22 * size).all(), (np.abs(out - exact) / size).max() * 2**24


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
def test_rows_of_one_fp32_value_leave_beta(epsilon: float) -> None:
    """Also where their sums, and so the mean, are rounded."""
    for count, value in ((7, 0.1), (100, 3.3e6), (4096, -1.7e4), (8200, 1e-3)):
        x = np.full((3, count), value, np.float32)
        gain, shift, out = np.ones(count, np.float32), np.full(count, 0.5, np.float32), np.zeros_like(x)
        places = RowShape.axis(x.shape, -1, (address(x), "f32"), (address(out), "f32"))
        run(layer_norm(*places, address(gain), address(shift), "f32", epsilon))
        assert np.abs(out - 0.5).max() < 2.0**-12, (count, value)
