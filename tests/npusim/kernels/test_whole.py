"""Products of int8 against integer arithmetic, bit for bit."""

import numpy as np
import pytest

from npusim.kernels.conv import Conv2D, conv2d, pack_conv
from npusim.kernels.epilogue import Epilogue
from npusim.kernels.matmul import Matrix, matmul, pack_b_at_run_time, pack_matmul
from tests.npusim.kernels.inputs import address, run_both
from tests.npusim.kernels.test_conv import random_shape
from tests.npusim.kernels.twins import convolution, from_blocked, to_blocked


def bytes_of(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-128, 128, shape).astype(np.int8)


@pytest.mark.parametrize("c0", [(32, 8), (32, 16), (16, 16)], ids=str)
@pytest.mark.parametrize("kind", ["dense", "narrow", "depthwise", "grouped"])
def test_convolution(kind: str, c0: tuple[int, int], rng: np.random.Generator) -> None:
    for _ in range(3):
        drawn = random_shape(rng, kind)
        s = Conv2D(**{**vars(drawn), "c0_in": c0[0], "c0_out": c0[1]})
        x, w = bytes_of(rng, s.n, s.c, s.h, s.w), bytes_of(rng, s.o, s.c // s.groups, *s.kernel)
        blocked, packed = to_blocked(x, s.c0_in), pack_conv(s, w)
        start = rng.integers(-(2**30), 2**30, (s.n, -(-s.o // s.c0_out), *s.out_hw, s.c0_out)).astype(np.int32)
        exact = convolution(x, w, np.zeros(s.o), s.strides, s.pads, s.dilations, s.groups).value.astype(np.int64)
        for adds in (False, True):
            got = run_both(
                lambda t, s=s, b=blocked, p=packed, a=adds: conv2d(
                    s, address(b), p, address(t), ("i8", "i32"), Epilogue(residual=address(t) if a else 0)
                ),
                start,
            )
            wanted = exact + (from_blocked(start)[:, : s.o] if adds else 0)
            np.testing.assert_array_equal(from_blocked(got)[:, : s.o], wanted)


@pytest.mark.parametrize("constant", [True, False])
def test_matmul(constant: bool, rng: np.random.Generator) -> None:
    for m, k, n in ((1, 7, 3), (23, 50, 37), (9, 1000, 64), (40, 33, 100)):
        a, b = bytes_of(rng, m, k), bytes_of(rng, k, n)
        first = []
        if constant:
            packed = pack_matmul(b)
        else:
            packed, task = pack_b_at_run_time(Matrix.nd(address(b), "i8", n), k, n)
            first = [task]
        got = run_both(
            lambda t, a=a, p=packed, f=first, m=m, k=k, n=n: [
                *f,
                matmul(m, k, n, Matrix.nd(address(a), "i8", k), p, Matrix.nd(address(t), "i32", n)),
            ],
            np.zeros((m, n), np.int32),
        )
        np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


def test_weights_of_another_narrow_type_are_refused() -> None:
    s = Conv2D(1, 20, 4, 4, 8, (1, 1))
    packed = pack_conv(s, np.zeros((8, 20, 1, 1), np.float16))
    with pytest.raises(ValueError, match="f16 weights do not go with bf16 activations"):
        conv2d(s, 0, packed, 0, ("bf16", "bf16"))
