"""Winograd's algorithm in NumPy against direct summation, and transformed filters as a storage format."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.format import Format, TensorDesc, pack, storage_shape, unpack, winograd_planes
from metadef.ops.cube import conv2d_reference
from metadef.winograd import ALGORITHMS, RELATIVE_ERROR, convolve, restore_filter, transform_filter

FORMATS = {2: Format.FRACTAL_Z_WINO_F2, 4: Format.FRACTAL_Z_WINO_F4}


def direct(x: np.ndarray, weights: np.ndarray, pads: tuple[int, int, int, int]) -> np.ndarray:
    attrs = {"strides": (1, 1, 1, 1), "pads": pads, "dilations": (1, 1, 1, 1), "groups": 1}
    return conv2d_reference([x.astype(np.float64), weights.astype(np.float64)], attrs)[0]


def distance(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize(("size", "pads"), [((7, 7), (1, 1, 1, 1)), ((13, 9), (0, 2, 1, 0)), ((3, 4), (0, 0, 0, 0))])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_error_stays_within_the_stated_bounds(rng, algorithm, size, pads):
    m = ALGORITHMS[algorithm]
    x = np.maximum(rng.standard_normal((2, 40, *size)), 0)
    weights = rng.standard_normal((24, 40, 3, 3)) / 19
    for dtype, limit in ((np.float16, RELATIVE_ERROR[algorithm]), (np.float32, 5e-6)):
        a, w = x.astype(dtype), weights.astype(dtype)
        got = convolve(a, transform_filter(w, m), pads, m)
        assert got.shape == direct(a, w, pads).shape
        assert distance(got, direct(a, w, pads)) < limit


def test_double_precision_is_the_same_function(rng):
    x, weights = rng.standard_normal((1, 5, 9, 6)), rng.standard_normal((4, 5, 3, 3))
    for m in (2, 4):
        planes = transform_filter(weights, m)
        got = convolve(x, planes, (1, 1, 1, 1), m, np.float64)
        np.testing.assert_allclose(got, direct(x, weights, (1, 1, 1, 1)), atol=1e-12)


def test_the_largest_half_does_not_overflow_in_a_small_tile(rng):
    x = np.full((1, 1, 6, 6), 65504, np.float16) * rng.choice([-1, 1], (1, 1, 6, 6)).astype(np.float16)
    weights = (rng.standard_normal((1, 1, 3, 3)) / 16).astype(np.float16)
    assert np.isfinite(convolve(x, transform_filter(weights, 2), (0, 0, 0, 0), 2)).all()


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(("dtype", "c0"), [(DType.FLOAT16, 16), (DType.FLOAT, 8)])
def test_storage_holds_the_planes_and_gives_the_filter_back(rng, m, dtype, c0):
    weights = (rng.standard_normal((20, 11, 3, 3)) / 10).astype(dtype.numpy)
    desc = TensorDesc(weights.shape, dtype, Format.NCHW, FORMATS[m], c0)
    stored = pack(weights, desc)
    assert stored.shape == storage_shape(desc) == ((m + 2) ** 2, -(-11 // c0), 2, 16, c0)
    assert stored.nbytes == desc.payload_bytes and stored.dtype == weights.dtype
    assert np.array_equal(winograd_planes(stored, desc), transform_filter(weights, m))
    lanes = stored.reshape((m + 2) ** 2, -1, 2, 16, c0)
    assert not lanes[:, :, 1, 4:].any() and not lanes[:, -1, :, :, 11 % c0 :].any()
    back = unpack(stored, desc)
    assert np.abs(back - weights).max() <= 2 * np.finfo(dtype.numpy).eps * np.abs(weights).max()
    assert np.array_equal(back, restore_filter(transform_filter(weights, m), m))
