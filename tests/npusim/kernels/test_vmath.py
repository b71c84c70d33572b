"""Errors of the elementary functions in units in the last place of fp32, over random bit patterns and common ranges."""

import math

import numpy as np
import pytest

from npusim.kernels.cpu import host
from npusim.kernels.elementwise import View, elementwise
from tests.npusim.kernels.inputs import address, run
from tests.npusim.kernels.twins import same_bits

VECTOR_ERF = np.vectorize(math.erf, otypes=[float])
VECTOR_ERFC = np.vectorize(math.erfc, otypes=[float])
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 88.7, 88.8, -87.3, -103.9, -104.1, 1e-45, 3.4e38, -3.4e38, 0.6]
CASES = {
    "exp": (np.exp, 1.1),
    "log": (np.log, 0.9),
    "log1p": (np.log1p, 1.6),
    "expm1": (np.expm1, 1.7),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 2.7),
    "tanh": (np.tanh, 2.5),
    "erf": (VECTOR_ERF, 2.5),
    "softplus": (lambda x: np.logaddexp(x, 0), 2.1),
    "sqrt": (np.sqrt, 0.501),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.6),
    "reciprocal": (lambda x: 1 / x, 0.501),
    "floor": (np.floor, 0),
    "ceil": (np.ceil, 0),
    "round": (np.rint, 0),
    "trunc": (np.trunc, 0),
    "abs": (np.abs, 0),
    "neg": (np.negative, 0),
    "sign": (np.sign, 0),
    "square": (np.square, 0.501),
}


def inputs(count: int = 60000) -> np.ndarray:
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ranges = [rng.uniform(-r, r, count // 2).astype(np.float32) for r in (1, 20, 110)]
    return np.concatenate([bits, *ranges, np.array(EDGES, np.float32)])


def apply(expression: str, *operands: np.ndarray) -> np.ndarray:
    out = np.zeros(operands[0].shape, np.float32)
    views = [View.dense(address(x), "f32", x.shape) for x in operands]
    run(elementwise(expression, views, View.dense(address(out), "f32", out.shape), out.shape))
    return out


def check_ulp(got: np.ndarray, exact: np.ndarray, limit: float, x: np.ndarray) -> None:
    target = exact.astype(np.float32)
    finite = np.isfinite(target) & np.isfinite(got)
    same = (got == target) | (np.isnan(got) & np.isnan(target))
    # Just below overflow a result within the limit may round to infinity.
    edge = np.abs(exact) > 3.4028e38
    assert (finite | same | edge).all(), x[~(finite | same | edge)][:3]
    unit = np.spacing(np.abs(target[finite])).astype(np.float64)
    error = np.abs(got[finite].astype(np.float64) - exact[finite]) / unit
    assert error.max() <= limit, (error.max(), x[finite][error.argmax()])


@pytest.mark.parametrize("name", list(CASES))
def test_error(name: str) -> None:
    function, limit = CASES[name]
    x = inputs()
    with np.errstate(all="ignore"):
        check_ulp(apply(f"{name}(x0)", x), function(x.astype(np.float64)), limit, x)


@pytest.mark.parametrize("name", ["tanh", "erf", "expm1", "log1p", "gelu", "gelu_tanh", "silu", "sqrt", "trunc", "neg"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_zeros_keep_their_sign(name: str, dtype: type) -> None:
    x = np.array([0.0, -0.0] * 200, dtype)
    out = np.ones_like(x)
    views = [View.dense(address(t), "f16" if dtype is np.float16 else "f32", t.shape) for t in (x, out)]
    run(elementwise(f"{name}(x0)", views[:1], views[1], x.shape))
    assert not out.any() and np.array_equal(np.signbit(out), np.signbit(x) ^ (name == "neg"))


def test_gelu() -> None:
    x = np.concatenate(
        [np.random.default_rng(1).uniform(-13, 13, 50000).astype(np.float32), [0.0, np.inf, np.nan, -np.inf]]
    )
    x = x.astype(np.float32)
    exact = x * 0.5 * VECTOR_ERFC(-x.astype(np.float64) / math.sqrt(2))
    got = apply("gelu(x0)", x)
    near = (x > -1) | ~np.isfinite(x)
    check_ulp(got[near], exact[near], 8, x[near])
    tail = ~near
    relative = np.abs(got[tail] / exact[tail] - 1)
    growth = 0 if host().fma else 2 * x[tail].astype(np.float64) ** 2
    assert (relative <= 2.0**-24 * (12 + growth)).all()


def test_power() -> None:
    x = inputs(40000)
    rng = np.random.default_rng(3)
    choices = np.array([0, 1, 2, -1, 0.5, 3, -2.5, np.inf, -np.inf, np.nan, 1e30, 7, -3], np.float32)
    y = rng.choice(choices, x.size)
    y[::2] = rng.uniform(-10, 10, y[::2].size)
    with np.errstate(all="ignore"):
        check_ulp(apply("pow(x0,x1)", x, y), np.power(x.astype(np.float64), y.astype(np.float64)), 0.51, x)


def gelu(x: np.ndarray) -> np.ndarray:
    """x * Phi(x) in float64; at minus infinity no number, as in the operator's reference."""
    return x * 0.5 * VECTOR_ERFC(-x / math.sqrt(2))


HALVES = {"exp": np.exp, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "tanh": np.tanh, "erf": VECTOR_ERF, "gelu": gelu}


@pytest.mark.parametrize("name", HALVES)
def test_results_in_half_err_little_more_than_their_rounding(name: str) -> None:
    """Every half there is; a unit in the last place is that of f16."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    out = np.zeros(x.shape, np.float16)
    views = [View.dense(address(t), "f16", t.shape) for t in (x, out)]
    run(elementwise(f"{name}(x0)", views[:1], views[1], x.shape))
    with np.errstate(all="ignore"):
        exact = HALVES[name](x.astype(np.float64))
        target = exact.astype(np.float16)
        unit = np.spacing(np.abs(target)).astype(np.float64)
        error = np.abs(out.astype(np.float64) - exact) / unit
    assert np.array_equal(np.isnan(out), np.isnan(target))
    finite = np.isfinite(target)
    assert (np.isfinite(out) == finite).all() and (out[~finite & ~np.isnan(out)] == np.inf).all()
    assert error[finite].max() <= 0.52, (error[finite].max(), x[finite][error[finite].argmax()])
    assert np.mean(out[finite] != target[finite]) < 0.005
    assert np.array_equal(np.signbit(out[finite]), np.signbit(target[finite]))


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("name", [*HALVES, "silu", "gelu_tanh", "softplus"])
def test_results_do_not_depend_on_where_a_block_lies(name: str, dtype: str) -> None:
    """Long runs hand values on from block to block; the last blocks, short runs and results in place do not."""
    x = np.random.default_rng(5).standard_normal(16 * 97 + 5).astype({"f16": np.float16, "f32": np.float32}[dtype])
    x[::50] = np.nan
    out, single = np.zeros_like(x), x.copy()
    views = [View.dense(address(t), dtype, t.shape) for t in (x, out)]
    run(elementwise(f"{name}(x0)", views[:1], views[1], x.shape))
    for first in range(0, x.size, 16):
        part = single[first : first + 16]
        view = View.dense(address(part), dtype, part.shape)
        run(elementwise(f"{name}(x0)", [view], view, part.shape))
    assert same_bits(out, single)
    run(elementwise(f"{name}(x0)", views[:1], views[0], x.shape))
    assert same_bits(out, x)
