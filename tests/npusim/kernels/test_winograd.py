"""The Winograd kernel against its NumPy twin: odd sizes, batch, channel remainders, epilogues, special values."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.winograd import convolve, scale_of, transform_filter
from npusim.executor import NOT_FINITE
from npusim.kernels.conv import Conv2D
from npusim.kernels.desc import task_table
from npusim.kernels.epilogue import Epilogue
from npusim.kernels.winograd import pack_winograd, winograd2d
from npusim.kernels.winograd_shape import Bands, bands_of
from tests.npusim.kernels.inputs import address, executor, run_both
from tests.npusim.kernels.twins import DTYPES, from_blocked, to_blocked

# n, c, h, w, o, pads (top, left, bottom, right)
SHAPES = [
    (1, 16, 7, 7, 16, (1, 1, 1, 1)),
    (2, 40, 13, 9, 24, (1, 1, 1, 1)),
    (3, 3, 8, 5, 70, (0, 1, 2, 0)),
    (1, 33, 3, 3, 17, (0, 0, 0, 0)),
    (1, 20, 1, 1, 8, (1, 1, 1, 1)),
    (1, 48, 40, 31, 40, (1, 1, 1, 1)),
    (1, 410, 10, 6, 49, (1, 1, 1, 1)),
]


def blocks_of(dtype: str) -> int:
    return 16 if dtype == "f16" else 8


def run(
    shape: Conv2D, x: np.ndarray, weights: np.ndarray, bias: np.ndarray, dtype: str, m: int, rounding: str, **more
) -> np.ndarray:
    """The kernel's result in framework layout; padding lanes must be zero."""
    planes = transform_filter(weights, m)
    packed, blocked = pack_winograd(planes, m, bias), to_blocked(x, shape.c0_in)
    out = np.zeros((shape.n, -(-shape.o // shape.c0_out), *shape.out_hw, shape.c0_out), DTYPES[dtype])
    epilogue = more.get("epilogue", lambda target: Epilogue())

    def make(target: np.ndarray):
        scale = scale_of(m, rounding in ("half", "saturate"))
        places = (address(blocked), packed, address(target))
        return winograd2d(shape, *places, (dtype, dtype), epilogue(target), rounding, scale)

    got = run_both(make, more.get("start", out))
    plain = from_blocked(got)
    assert not plain[:, shape.o :].any()
    return plain[:, : shape.o]


def operands(rng, shape: Conv2D, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    kind = DTYPES[dtype]
    x = rng.standard_normal((shape.n, shape.c, shape.h, shape.w)).astype(kind)
    weights = (rng.standard_normal((shape.o, shape.c, 3, 3)) / (3 * np.sqrt(shape.c))).astype(kind)
    return x, weights, rng.standard_normal(shape.o).astype(np.float32)


def twin(shape: Conv2D, x: np.ndarray, planes: np.ndarray, bias: np.ndarray, m: int) -> np.ndarray:
    top, left, bottom, right = shape.pads
    return convolve(x, planes, (top, bottom, left, right), m) + bias.reshape(1, -1, 1, 1)


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_agrees_with_its_twin(rng, case, dtype, m):
    *sizes, pads = case
    block = blocks_of(dtype)
    shape = Conv2D(*sizes, (3, 3), pads=pads, c0_in=block, c0_out=block)
    x, weights, bias = operands(rng, shape, dtype)
    got = run(shape, x, weights, bias, dtype, m, "half" if dtype == "f16" else "none")
    wanted = twin(shape, x, transform_filter(weights, m), bias, m)
    # A value of V that lies between two halves may go either way: an fp16 unit of one product, far below the limits.
    limit = 6e-4 if dtype == "f16" else 5e-6
    assert np.linalg.norm(got - wanted) <= limit * np.linalg.norm(wanted)


@pytest.mark.parametrize("m", [2, 4])
def test_unrounded_transforms_are_as_exact_as_direct_sums(rng, m):
    shape = Conv2D(1, 64, 21, 22, 32, (3, 3), pads=(1, 1, 1, 1))
    x, weights, bias = operands(rng, shape, "f16")
    got = run(shape, x, weights.astype(np.float32), bias, "f16", m, "guarded")
    planes = transform_filter(weights.astype(np.float64), m)
    exact = convolve(x.astype(np.float64), planes, (1, 1, 1, 1), m, np.float64) + bias.reshape(1, -1, 1, 1)
    assert np.linalg.norm(got - exact) <= 2.3e-4 * np.linalg.norm(exact)
    differs = np.mean(got != exact.astype(np.float16))
    assert differs < (0.01 if m == 2 else 0.03)


@pytest.mark.parametrize("m", [2, 4])
def test_residual_in_place_and_activation(rng, m):
    shape = Conv2D(2, 32, 9, 11, 40, (3, 3), pads=(1, 1, 1, 1))
    x, weights, bias = operands(rng, shape, "f16")
    residual = rng.standard_normal((2, 40, 9, 11)).astype(np.float16)

    def onto(target: np.ndarray) -> Epilogue:
        return Epilogue(residual=address(target), activation="relu")

    start = to_blocked(residual, 16)
    got = run(shape, x, weights, bias, "f16", m, "half", epilogue=onto, start=start)
    wanted = np.maximum(twin(shape, x, transform_filter(weights, m), bias, m) + residual, 0)
    assert np.linalg.norm(got - wanted) <= 6e-4 * np.linalg.norm(wanted)


@pytest.mark.parametrize("m", [2, 4])
def test_nan_spoils_its_tiles_and_no_others(rng, m):
    shape = Conv2D(1, 16, 12, 13, 16, (3, 3), pads=(1, 1, 1, 1))
    x, weights, bias = operands(rng, shape, "f16")
    clean = run(shape, x, weights, bias, "f16", m, "half")
    x[0, 3, 5, 6] = np.nan
    got = run(shape, x, weights, bias, "f16", m, "half")
    assert np.isnan(got[:, :, 4:7, 5:8]).all()
    rows, columns = (slice((first - 1) // m * m, (first + 1) // m * m + m) for first in (5, 6))
    outside = np.ones(got.shape, bool)
    outside[:, :, rows, columns] = False
    assert np.array_equal(got[outside], clean[outside])


def test_saturation_of_the_transformed_image(rng):
    shape = Conv2D(1, 16, 8, 8, 16, (3, 3), pads=(1, 1, 1, 1))
    x, weights, bias = operands(rng, shape, "f16")
    x[:] = 60000 * np.sign(x)
    loose = run(shape, x, weights, bias, "f16", 4, "half", epilogue=lambda _: Epilogue())
    tight = run(shape, x, weights, bias, "f16", 4, "saturate", epilogue=lambda _: Epilogue(saturate=True))
    assert not np.isfinite(loose).all() and np.isfinite(tight).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_guarded_sums_report_what_is_not_finite(rng, threads):
    shape = Conv2D(1, 16, 40, 40, 32, (3, 3), pads=(1, 1, 1, 1))
    x, weights, bias = operands(rng, shape, "f16")
    packed = pack_winograd(transform_filter(weights.astype(np.float32), 2), 2, bias)
    blocked, out = to_blocked(x, 16), np.zeros((1, 2, 40, 40, 16), np.float16)
    call = winograd2d(shape, address(blocked), packed, address(out), ("f16", "f16"), None, "guarded")
    table = task_table([call, call])
    assert executor(threads).run(table).code == 0
    blocked[0, 0, 20, 20, 3] = np.inf
    status = executor(threads).run(table)
    assert (status.code, status.row) == (NOT_FINITE, 0)


@pytest.mark.parametrize("m", [2, 4])
def test_no_cut_changes_a_bit(rng, monkeypatch, m):
    shape = Conv2D(2, 410, 11, 7, 70, (3, 3), pads=(1, 1, 1, 1))
    x, weights, bias = operands(rng, shape, "f16")
    results = []
    for rows, splits in ((1, 1), (2, 3), (3, 2), (shape.h, 1)):
        monkeypatch.setattr(Bands, "_shared_cycles", lambda _, *cut, best=(rows, splits): sum(map(distance, cut, best)))
        bands_of.cache_clear()
        results.append(run(shape, x, weights.astype(np.float32), bias, "f16", m, "none"))
    bands_of.cache_clear()
    assert all(np.array_equal(results[0], other) for other in results[1:])


def distance(a: int, b: int) -> int:
    return abs(a - b)


@pytest.mark.parametrize("m", [2, 4])
def test_a_large_filter_is_read_in_few_passes(m):
    bands = bands_of(Conv2D(1, 512, 28, 28, 512, (3, 3), pads=(1, 1, 1, 1)), m)
    assert bands.bands <= 2 and bands.bands * bands.splits >= 2


def test_other_windows_are_refused():
    shape = Conv2D(1, 16, 8, 8, 16, (3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    packed = pack_winograd(np.zeros((16, 16, 16), np.float16), 2)
    with pytest.raises(ValueError, match="stride and dilation 1"):
        winograd2d(shape, 0, packed, 0, ("f16", "f16"))
    with pytest.raises(ValueError, match="36 planes"):
        pack_winograd(np.zeros((16, 16, 16), np.float16), 4)
