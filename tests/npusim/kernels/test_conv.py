import numpy as np
import pytest

from npusim.kernels import panels
from npusim.kernels.conv import Conv2D, conv2d, pack_conv
from npusim.kernels.conv_scratch import Scratch
from npusim.kernels.cpu import host
from npusim.kernels.elementwise import View, elementwise
from npusim.kernels.epilogue import Epilogue
from tests.npusim.kernels.inputs import address, run_both, stored, values
from tests.npusim.kernels.twins import DTYPES, Exact, assert_rounded, convolution, from_blocked, name_of, to_blocked


def random_shape(rng: np.random.Generator, kind: str) -> Conv2D:
    groups, c, o = 1, int(rng.choice([5, 16, 17, 33, 40])), int(rng.choice([1, 8, 16, 20, 32, 48, 70]))
    if kind == "narrow":
        c = int(rng.integers(1, 5))
    elif kind == "depthwise":
        groups = c = o = int(rng.integers(2, 50))
    elif kind == "grouped":
        groups = int(rng.choice([2, 3, 4]))
        c, o = groups * int(rng.integers(1, 20)), groups * int(rng.integers(1, 20))
    while True:
        shape = Conv2D(
            n=int(rng.integers(1, 4)),
            c=c,
            h=int(rng.integers(1, 34)),
            w=int(rng.integers(1, 34)),
            o=o,
            kernel=(int(rng.integers(1, 5)), int(rng.integers(1, 5))),
            strides=(int(rng.integers(1, 4)), int(rng.integers(1, 4))),
            pads=tuple(int(p) for p in rng.integers(0, 3, 4)),
            dilations=(int(rng.integers(1, 3)), int(rng.integers(1, 3))),
            groups=groups,
            c0_in=int(rng.choice([8, 16])),
            c0_out=int(rng.choice([8, 16])),
        )
        if min(shape.out_hw) >= 1:
            return shape


def convolve(shape: Conv2D, x: np.ndarray, w: np.ndarray, bias: np.ndarray, out_dtype: str) -> np.ndarray:
    kinds = (name_of(x.dtype), out_dtype)
    blocked = to_blocked(x, shape.c0_in)
    out = np.full((shape.n, -(-shape.o // shape.c0_out), *shape.out_hw, shape.c0_out), 7, DTYPES[out_dtype])
    raw, name = stored(w)
    packed = pack_conv(shape, raw, bias, name)
    return run_both(lambda target: conv2d(shape, address(blocked), packed, address(target), kinds), out)


@pytest.mark.parametrize("kind", ["dense", "narrow", "depthwise", "grouped"])
@pytest.mark.parametrize("dtypes", [("f16", "f16"), ("f32", "f32"), ("f16", "f32"), ("bf16", "bf16")])
def test_random_shapes(kind: str, dtypes: tuple[str, str], rng: np.random.Generator) -> None:
    for round_ in range(5):
        s = random_shape(rng, kind)
        x = values(rng, (s.n, s.c, s.h, s.w), dtypes[0], special=round_ == 4)
        w = values(rng, (s.o, s.c // s.groups, *s.kernel), dtypes[round_ % 2])
        bias = values(rng, (s.o,), "f32")
        got = from_blocked(convolve(s, x, w, bias, dtypes[1]))
        assert_rounded(got[:, : s.o], convolution(x, w, bias, s.strides, s.pads, s.dilations, s.groups))
        assert not got[:, s.o :].any(), "lanes beyond the channels must be zeros"


@pytest.mark.parametrize("outputs", [4, 7, 34])
@pytest.mark.parametrize("dtypes", [("f16", "f16"), ("f32", "f32"), ("i8", "i32")])
def test_groups_that_share_a_block_are_apart(dtypes: tuple[str, str], outputs: int, rng: np.random.Generator) -> None:
    s = Conv2D(1, 4 * 18, 7, 9, 4 * outputs, (1, 1), groups=4, c0_in=16, c0_out=16)
    kind = DTYPES["f32" if dtypes[0] == "i8" else dtypes[0]]
    x, w = values(rng, (1, s.c, s.h, s.w), dtypes[0]), values(rng, (s.o, 18, 1, 1), "i8").astype(kind)
    if dtypes[0] == "i8":
        x %= 5
    zero = np.zeros(s.o, np.float32)
    clean = from_blocked(convolve(s, x, w, zero, dtypes[1]))
    want = convolution(x.astype(kind), w, zero, s.strides, s.pads, s.dilations, s.groups)
    assert_rounded(clean[:, : s.o].astype(kind), want)
    if dtypes[0] != "i8":
        x[:, 20, 3, 4], x[:, 21, 3, 4] = np.inf, np.nan  # of the second group
        got = from_blocked(convolve(s, x, w, zero, dtypes[1]))
        others = np.delete(np.arange(s.o), np.arange(outputs, 2 * outputs))
        assert np.array_equal(got[:, others], clean[:, others])
        assert np.isnan(got[:, outputs : 2 * outputs, 3, 4]).all()


@pytest.mark.parametrize("activation", ["none", "relu", "clip", "leaky_relu", "sigmoid", "silu", "gelu", "tanh"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_residual_in_place_and_activation(activation: str, dtype: str, rng: np.random.Generator) -> None:
    s = Conv2D(2, 20, 9, 11, 24, (3, 3), (1, 1), (1, 1, 1, 1), c0_out=8)
    x, w = values(rng, (2, 20, 9, 11), dtype), values(rng, (24, 20, 3, 3), dtype)
    bias = values(rng, (24,), "f32")
    residual = to_blocked(values(rng, (2, 24, 9, 11), dtype), 8)
    blocked, packed = to_blocked(x, 16), pack_conv(s, stored(w)[0], bias, dtype)

    def make(target: np.ndarray):
        rule = Epilogue(address(target), activation, lo=-1.5, hi=2.0, alpha=0.125)
        return conv2d(s, address(blocked), packed, address(target), (dtype, dtype), rule)

    got = from_blocked(run_both(make, residual))
    exact = convolution(x, w, bias, s.strides, s.pads, s.dilations, 1)
    total = exact.value + from_blocked(residual).astype(np.float64)
    erf = np.vectorize(__import__("math").erf)
    applied = {
        "none": lambda v: v,
        "relu": lambda v: np.maximum(v, 0),
        "clip": lambda v: np.clip(v, -1.5, 2.0),
        "leaky_relu": lambda v: np.where(v < 0, v * 0.125, v),
        "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
        "silu": lambda v: v / (1 + np.exp(-v)),
        "gelu": lambda v: v * 0.5 * (1 + erf(v / np.sqrt(2))),
        "tanh": np.tanh,
    }[activation](total)
    # No activation here is steeper than 1.13, and its own error is a few units of its magnitude.
    assert_rounded(got, Exact(applied, 1.13 * (exact.magnitude + np.abs(total)) + 8, exact.operations + 8))


def test_nan_passes_relu_and_overflow_rules(rng: np.random.Generator) -> None:
    s = Conv2D(1, 16, 4, 4, 16, (1, 1))
    x = values(rng, (1, 16, 4, 4), "f16")
    x[0, :, 0, 0], x[0, :, 1, 1] = np.nan, 60000
    w = np.ones((16, 16, 1, 1), np.float16)
    packed, blocked = pack_conv(s, w), to_blocked(x, 16)
    out = np.zeros((1, 1, 4, 4, 16), np.float16)
    for saturate, nan, big in ((False, np.nan, np.inf), (True, 0.0, 65504.0)):
        rule = Epilogue(activation="relu", saturate=saturate)
        got = run_both(lambda t, r=rule: conv2d(s, address(blocked), packed, address(t), ("f16", "f16"), r), out)
        np.testing.assert_array_equal(got[0, 0, 0, 0], np.full(16, nan))
        np.testing.assert_array_equal(got[0, 0, 1, 1], np.full(16, big))


def test_result_does_not_depend_on_c0(rng: np.random.Generator) -> None:
    results = []
    x, w = values(rng, (1, 37, 13, 10), "f32"), values(rng, (21, 37, 3, 2), "f32")
    bias = values(rng, (21,), "f32")
    for c0_in, c0_out in ((16, 16), (8, 16), (16, 8), (8, 8)):
        s = Conv2D(1, 37, 13, 10, 21, (3, 2), (2, 1), (1, 0, 2, 1), c0_in=c0_in, c0_out=c0_out)
        results.append(from_blocked(convolve(s, x, w, bias, "f32"))[:, :21])
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_tiles_over_the_ends_of_rows_sum_as_tiles_within_them(
    dtype: str, groups: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    crossing = 0
    for width in (4, 5, 7, 8, 13, 14):
        s = Conv2D(2, 33, 9, width, 42, (3, 3), (2, 1), (1, 1, 1, 1), (1, 1), groups)
        x, w = values(rng, (2, 33, 9, width), dtype), values(rng, (42, 33 // groups, 3, 3), dtype)
        results = []
        for crosses in (True, False):
            with monkeypatch.context() as patch:
                if not crosses:
                    patch.setattr(Scratch, "_crosses", lambda self, rows: False)
                results.append(convolve(s, x, w, np.ones(42, np.float32), dtype))
                crossing += Scratch(s, "dense")._crosses(5)
        assert results[0].tobytes() == results[1].tobytes()
    assert crossing > 0 or host().tile_rows > 8


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_sums_that_rest_between_blocks_are_as_those_that_do_not(
    dtype: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for c, size, o, kernel, c0_in in (
        (600, 5, 70, 1, 16),
        (600, 21, 20, 1, 8),
        (150, 7, 40, 3, 16),
        (290, 9, 33, 2, 8),
    ):
        s = Conv2D(2, c, size, size, o, (kernel, kernel), (1, 1), (kernel // 2,) * 4, c0_in=c0_in)
        x, w = values(rng, (2, c, size, size), dtype, special=size == 9), values(rng, (o, c, kernel, kernel), dtype)
        bias, results = values(rng, (o,), "f32"), []
        for taps in (16, 40, 10**6):
            monkeypatch.setattr(panels, "_blocks", lambda groups, each, _, taps=taps: max(1, groups * each // taps))
            results.append(convolve(s, x, w, bias, dtype))
        assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()
        assert_rounded(from_blocked(results[0])[:, :o], convolution(x, w, bias, s.strides, s.pads, s.dilations, 1))


def test_refusals() -> None:
    with pytest.raises(ValueError, match="no output"):
        pack_conv(Conv2D(1, 4, 2, 2, 4, (3, 3)), np.zeros((4, 4, 3, 3), np.float32))
    with pytest.raises(ValueError, match="groups"):
        pack_conv(Conv2D(1, 5, 4, 4, 4, (1, 1), groups=2), np.zeros((4, 2, 1, 1), np.float32))
    with pytest.raises(ValueError, match="OIHW"):
        pack_conv(Conv2D(1, 4, 4, 4, 4, (3, 3)), np.zeros((4, 4, 1, 3), np.float32))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("kind", ["dense", "depthwise", "grouped"])
def test_an_expression_that_follows_reads_rounded_results(kind: str, dtype: str, rng: np.random.Generator) -> None:
    text = "hardswish(x0)"
    for _ in range(3):
        s = random_shape(rng, kind)
        x = to_blocked(values(rng, (s.n, s.c, s.h, s.w), dtype), s.c0_in)
        raw, name = stored(values(rng, (s.o, s.c // s.groups, *s.kernel), dtype))
        packed = pack_conv(s, raw, None, name)
        out = np.full((s.n, -(-s.o // s.c0_out), *s.out_hw, s.c0_out), 7, DTYPES[dtype])
        x_at, kinds = address(x), (dtype, dtype)
        alone = run_both(lambda target: conv2d(s, x_at, packed, address(target), kinds), out)  # noqa: B023
        rule = Epilogue(then=text)
        got = run_both(lambda target: conv2d(s, x_at, packed, address(target), kinds, rule), out)  # noqa: B023
        view = View.dense(address(alone), dtype, alone.shape)
        want = run_both(
            lambda target: elementwise(text, [view], View.dense(address(target), dtype, target.shape), target.shape),  # noqa: B023
            out,
        )
        assert got.tobytes() == want.tobytes()
