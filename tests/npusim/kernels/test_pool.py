import numpy as np
import pytest

from npusim.kernels.ir import LARGEST
from npusim.kernels.pool import Pool2D, pool2d
from tests.npusim.kernels.inputs import address, run_both, values
from tests.npusim.kernels.twins import DTYPES, assert_rounded, pooling


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_random_windows(kind: str, dtype: str, rng: np.random.Generator) -> None:
    done = 0
    while done < 12:
        kernel = tuple(int(v) for v in rng.integers(1, 4, 2))
        p = Pool2D(
            planes=int(rng.integers(1, 5)),
            h=int(rng.integers(2, 18)),
            w=int(rng.integers(2, 18)),
            kernel=kernel,
            strides=tuple(int(v) for v in rng.integers(1, 4, 2)),
            pads=tuple(int(rng.integers(0, kernel[i % 2])) for i in range(4)),
            dilations=tuple(int(v) for v in rng.integers(1, 3, 2)),
            ceil_mode=bool(rng.integers(0, 2)),
            count_include_pad=bool(rng.integers(0, 2)),
            c0=int(rng.choice([8, 16, 32])),
        )
        if min(p.out_hw) < 1:
            continue
        done += 1
        x = values(rng, (p.planes, p.h, p.w, p.c0), dtype, special=done % 4 == 0)
        out = np.zeros((p.planes, *p.out_hw, p.c0), DTYPES[dtype])
        got = run_both(lambda t, p=p, x=x: pool2d(p, kind, address(x), address(t), dtype), out)
        assert_rounded(got, pooling(x, kind, p))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_a_maximum_lets_every_nan_through(dtype: str, rng: np.random.Generator) -> None:
    x = values(rng, (3, 9, 10, 16), dtype)
    for place, value in enumerate((np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0)):
        x[place % 3, place : place + 3, 2:9, place] = value
    p = Pool2D(3, 9, 10, (3, 2), (2, 1), (1, 1, 0, 0))
    for saturate in (False, True):
        out = np.zeros((3, *p.out_hw, 16), DTYPES[dtype])
        got = run_both(lambda t, s=saturate: pool2d(p, "max", address(x), address(t), dtype, s), out)
        want = pooling(x, "max", p).value
        if saturate and dtype != "f32":
            want = np.clip(want, -float(LARGEST[dtype]), float(LARGEST[dtype]))
            want = np.where(np.isnan(want) & (dtype == "f16"), 0, want)
        np.testing.assert_array_equal(got.astype(np.float64), want)


def test_global_average(rng: np.random.Generator) -> None:
    x = values(rng, (40, 7, 7, 16), "f16")
    p = Pool2D(40, 7, 7, (7, 7))
    got = run_both(lambda t: pool2d(p, "avg", address(x), address(t), "f16"), np.zeros((40, 1, 1, 16), np.float16))
    assert_rounded(got, pooling(x, "avg", p))


def test_ceil_mode_drops_a_window_that_starts_in_the_far_pad() -> None:
    assert Pool2D(1, 4, 4, (1, 1), (2, 2), ceil_mode=True).out_hw == (2, 2)
    assert Pool2D(1, 6, 6, (3, 3), (2, 2), ceil_mode=True).out_hw == (3, 3)
    assert Pool2D(1, 6, 6, (3, 3), (2, 2)).out_hw == (2, 2)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="pooling"):
        pool2d(Pool2D(1, 2, 2, (3, 3)), "max", 0, 0, "f16")
