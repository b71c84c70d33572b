import numpy as np
import pytest

from npusim.kernels.transdata import Plain, from_blocked, to_blocked
from tests.npusim.kernels import twins
from tests.npusim.kernels.inputs import address, run_both, values
from tests.npusim.kernels.twins import DTYPES

PAIRS = [
    ("f16", "f16"),
    ("f32", "f32"),
    ("f32", "f16"),
    ("f16", "f32"),
    ("f32", "bf16"),
    ("bf16", "f16"),
    ("bf16", "bf16"),
    ("i8", "i8"),
    ("i64", "i64"),
]


@pytest.mark.parametrize("dtypes", PAIRS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc", "matrix"])
def test_both_directions(dtypes: tuple[str, str], layout: str, rng: np.random.Generator) -> None:
    source, target = dtypes
    for round_ in range(8):
        n, c, h, w = (int(v) for v in rng.integers(1, 41, 4))
        n, c0 = n % 3 + 1, (4, 8, 16, 32)[round_ % 4]
        x = values(rng, (n, c, h, w), source, special=True)
        pixels = h * w
        if layout == "nchw":
            plain, make = x, Plain.nchw
        elif layout == "nhwc":
            plain, make = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), Plain.nhwc
        else:
            plain, make = np.ascontiguousarray(x.reshape(n, c, -1).transpose(0, 2, 1)), Plain.matrix
            pixels = -(-pixels // 16) * 16
        padded = np.zeros((n, c, pixels), x.dtype)
        padded[:, :, : h * w] = x.reshape(n, c, -1)
        with np.errstate(over="ignore"):
            want = twins.to_blocked(padded, c0).astype(DTYPES[target])
        side = make(address(plain), source, plain.shape)
        got = run_both(
            lambda t, s=side, c0=c0, p=pixels: to_blocked(s, address(t), target, c0, p),
            np.full(want.shape, 9, want.dtype),
        )
        twins.assert_same(got, want)
        if source == target:
            assert got.tobytes() == want.tobytes()
        back = run_both(
            lambda t, g=got, s=plain.shape, m=make, c0=c0, p=pixels: from_blocked(
                address(g), target, c0, m(address(t), source, s), p
            ),
            np.zeros(plain.shape, plain.dtype),
        )
        with np.errstate(over="ignore"):
            twins.assert_same(back, plain.astype(DTYPES[target]).astype(DTYPES[source]))


def test_refusals() -> None:
    plain = Plain.nchw(0, "i32", (1, 3, 2, 2))
    with pytest.raises(ValueError, match="converts between"):
        to_blocked(plain, 0, "f16", 16)
    with pytest.raises(ValueError, match="cannot hold"):
        to_blocked(plain, 0, "i32", 16, 3)
    with pytest.raises(ValueError, match="multiple of 8"):
        to_blocked(plain, 0, "i32", 12)
