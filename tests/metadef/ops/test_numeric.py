"""Rounding to storage types and the functions NumPy lacks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadef.dtype import DType
from metadef.ops.numeric import HALF_MAX, convert, divide, erf, narrow, power, sigmoid, widen

ml_dtypes = pytest.importorskip("ml_dtypes", reason="comes with onnx")


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_bfloat16_rounds_to_nearest_even(items: list[float]) -> None:
    value = np.array(items, np.float32)
    with np.errstate(all="ignore"):
        expected = value.astype(ml_dtypes.bfloat16)
    stored = narrow(value, DType.BF16)
    assert stored.dtype == np.uint16
    np.testing.assert_array_equal(widen(stored, DType.BF16), expected.astype(np.float32))


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_half_overflow_modes(items: list[float]) -> None:
    value = np.array(items, np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(narrow(value, DType.FLOAT16), value.astype(np.float16))
        saturated = narrow(value, DType.FLOAT16, "saturate").astype(np.float32)
    assert not np.isinf(saturated).any()
    large = np.abs(value) > HALF_MAX
    np.testing.assert_array_equal(saturated[large], np.copysign(HALF_MAX, value[large]))


def test_bfloat16_saturates_on_request() -> None:
    big = np.array([np.inf, -np.inf, 3.4e38], np.float32)
    assert np.isinf(widen(narrow(big, DType.BF16), DType.BF16)).all()
    assert np.isfinite(widen(narrow(big, DType.BF16, "saturate"), DType.BF16)).all()


@given(st.floats(-8, 8))
def test_erf_is_the_libm_one(x: float) -> None:
    assert erf(np.array([x]))[0] == pytest.approx(math.erf(x), abs=4e-16, rel=1e-14)


def test_erf_at_the_edges() -> None:
    np.testing.assert_array_equal(erf(np.array([np.inf, -np.inf, np.nan, 0.0])), [1, -1, np.nan, 0])


def test_sigmoid_does_not_overflow() -> None:
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_allclose(sigmoid(np.array([-1e4, 0.0, 1e4])), [0, 0.5, 1])


@given(st.integers(-100, 100), st.integers(-10, 10))
def test_integer_division_truncates(a: int, b: int) -> None:
    got = int(divide(np.array(a, np.int32), np.array(b, np.int32)))
    assert got == (0 if b == 0 else math.trunc(a / b))


@given(st.integers(-4, 4), st.integers(-4, 6))
def test_integer_power_never_raises(a: int, b: int) -> None:
    got = int(power(np.array(a, np.int64), np.array(b, np.int64)))
    expected = a**b if b >= 0 else {1: 1, -1: (-1) ** b}.get(a, 0)
    assert got == expected


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT32, DType.INT64])
def test_casts_to_integers_truncate_and_saturate(dtype: DType) -> None:
    limits = np.iinfo(dtype.numpy)
    value = np.array([2.9, -0.9, np.nan, np.inf, -np.inf, 1e30, -1e30])
    expected = [2, 0, 0, limits.max, limits.min, limits.max, limits.min]
    assert convert(value, dtype).tolist() == expected


def test_casts_between_others() -> None:
    assert convert(np.array([300, -1], np.int32), DType.UINT8).tolist() == [44, 255]
    assert convert(np.array([0.0, np.nan, 0.5]), DType.BOOL).tolist() == [False, True, True]
    assert convert(np.array([3], np.int64), DType.FLOAT16).dtype == np.float32
    assert convert(np.array([3.0]), DType.FLOAT16).dtype == np.float64


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_subnormal_halves_round_as_single_ones_do(rng, dtype):
    value = (rng.standard_normal((300, 20)) * 10.0 ** rng.uniform(-9, -3, (300, 20))).astype(dtype)
    value[0, :6] = [0.0, -0.0, 2.0**-14, -(2.0**-14) * (1 - 2.0**-12), 2.0**-25, 3 * 2.0**-25]
    want = np.array([np.float16(item) for item in value.reshape(-1)]).reshape(value.shape)
    for order in (value, value.T):
        got = narrow(order, DType.FLOAT16)
        assert np.array_equal(got.view(np.uint16), (want if order is value else want.T).view(np.uint16))
