from collections.abc import Callable

import numpy as np
import pytest

from npusim.kernels import elementwise as elementwise_module
from npusim.kernels.cpu import last_cache_bytes
from npusim.kernels.elementwise import View, elementwise, merged, passes_caches
from npusim.kernels.expressions import functions
from npusim.kernels.weights import aligned
from tests.npusim.kernels.inputs import address, run, run_both, values
from tests.npusim.kernels.twins import DTYPES, assert_same, is_float, name_of

SHAPES = [
    ((3, 5, 7), (3, 5, 7)),
    ((1000,), (1,)),
    ((2, 3, 4, 5), (3, 1, 1)),
    ((64, 3, 33), (1, 3, 1)),
    ((5, 1, 17), (1, 6, 1)),
    ((4, 40), (4, 1)),
    ((2, 8, 100, 16), (8, 1, 16)),
    ((0, 4), (1, 4)),
    ((), ()),
]


def apply(expression: str, operands: list[np.ndarray], dtype: str, shape: tuple[int, ...], **options) -> np.ndarray:
    views = [View.dense(address(x), name_of(x.dtype), x.shape, shape) for x in operands]
    return run_both(
        lambda t: elementwise(expression, views, View.dense(address(t), dtype, shape), shape, **options),
        np.zeros(shape, DTYPES[dtype]),
    )


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_broadcasting_arithmetic(dtype: str, rng: np.random.Generator) -> None:
    twins: dict[str, Callable] = {
        "add(x0,x1)": np.add,
        "mul(x0,x1)": np.multiply,
        "div(x0,x1)": np.divide,
        "relu(sub(x0,x1))": lambda a, b: np.where(a - b < 0, 0, a - b),
        "max(x0,x1)": np.maximum,
        "min(x0,x1)": np.minimum,
    }
    for expression, twin in twins.items():
        for left, right in SHAPES:
            a, b = values(rng, left, dtype, special=True), values(rng, right, dtype, special=True)
            shape = np.broadcast_shapes(left, right)
            with np.errstate(all="ignore"):
                want = twin(a.astype(np.float32), b.astype(np.float32)).astype(DTYPES[dtype])
            assert_same(apply(expression, [a, b], dtype, shape), want)


def test_in_place_and_strided_output(rng: np.random.Generator) -> None:
    start, b = values(rng, (37, 19), "f16"), values(rng, (37, 19), "f16")

    def make(target: np.ndarray):
        here = View.dense(address(target), "f16", (37, 19))
        return elementwise("relu(add(x0,x1))", [here, View.dense(address(b), "f16", b.shape)], here, (37, 19))

    total = start.astype(np.float32) + b.astype(np.float32)
    np.testing.assert_array_equal(run_both(make, start), np.maximum(total, 0).astype(np.float16))

    wide = np.zeros((19, 80), np.float32)
    got = run_both(
        lambda t: elementwise(
            "neg(x0)",
            [View(address(b), "f16", (2, 38))],
            View(address(t), "f32", (320, 8)),
            (19, 37),
        ),
        wide,
    )
    np.testing.assert_array_equal(got[:, :74:2], -b.T.astype(np.float32))
    assert not got[:, 1::2].any() and not got[:, 74:].any()


def test_comparison_selection_logic(rng: np.random.Generator) -> None:
    a, b = values(rng, (4, 33), "f32", special=True), values(rng, (33,), "f32")
    for name, twin in (
        ("less", np.less),
        ("less_equal", np.less_equal),
        ("greater", np.greater),
        ("greater_equal", np.greater_equal),
        ("equal", np.equal),
        ("not_equal", np.not_equal),
    ):
        np.testing.assert_array_equal(apply(f"{name}(x0,x1)", [a, b], "b8", (4, 33)), twin(a, b))
    mask, other = values(rng, (4, 33), "b8"), values(rng, (4, 33), "b8")
    np.testing.assert_array_equal(apply("and(x0,not(x1))", [mask, other], "b8", (4, 33)), mask & ~other)
    np.testing.assert_array_equal(apply("xor(x0,x1)", [mask, other], "b8", (4, 33)), mask ^ other)
    np.testing.assert_array_equal(apply("where(x0,x1,x2)", [mask, a, b], "f32", (4, 33)), np.where(mask, a, b))
    chosen = apply("where(x0,x1,p0)", [mask, a], "f32", (4, 33), parameters=[-3.5])
    np.testing.assert_array_equal(chosen, np.where(mask, a, np.float32(-3.5)))
    np.testing.assert_array_equal(apply("isnan(x0)", [a], "b8", (4, 33)), np.isnan(a))


def test_integers(rng: np.random.Generator) -> None:
    a = values(rng, (7, 21), "i64")
    b = rng.integers(-5, 6, (21,)).astype(np.int64)
    safe = np.where(b == 0, 1, b)
    quotient = np.where(b == 0, 0, np.trunc(a / safe).astype(np.int64))
    np.testing.assert_array_equal(apply("div(x0,x1)", [a, b], "i64", (7, 21)), quotient)
    np.testing.assert_array_equal(apply("mod(x0,x1)", [a, b], "i64", (7, 21)), np.where(b == 0, 0, np.mod(a, safe)))
    np.testing.assert_array_equal(apply("fmod(x0,x1)", [a, b], "i64", (7, 21)), np.where(b == 0, 0, np.fmod(a, safe)))
    extreme = np.array([2**63 - 1, -(2**63), 5], np.int64)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(apply("add(x0,x0)", [extreme], "i64", (3,)), extreme + extreme)
    minus = np.array([-1, -1, -1], np.int64)
    np.testing.assert_array_equal(apply("div(x0,x1)", [extreme, minus], "i64", (3,))[1:], [-(2**63), -5])


def test_float_remainders(rng: np.random.Generator) -> None:
    a = (values(rng, (500,), "f32") * 200).astype(np.float32)
    for divisor in (7.3, -0.61, np.inf):
        b = np.full(500, divisor, np.float32)
        np.testing.assert_array_equal(apply("fmod(x0,x1)", [a, b], "f32", (500,)), np.fmod(a, b))
        want = np.mod(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
        np.testing.assert_allclose(apply("mod(x0,x1)", [a, b], "f32", (500,)), want, rtol=1e-6)


@pytest.mark.parametrize("source", list(DTYPES))
@pytest.mark.parametrize("target", list(DTYPES))
def test_casts(source: str, target: str, rng: np.random.Generator) -> None:
    x = values(rng, (133,), source, special=True)
    if is_float(source):
        x[:3] = [300.7, -300.7, 1e4]
    got = apply("x0", [x], target, x.shape)
    with np.errstate(all="ignore"):
        if is_float(source) and target[0] in "iu":
            info = np.iinfo(DTYPES[target])
            wide = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
            want = np.array([int(min(max(v, info.min), info.max)) for v in wide], DTYPES[target])
        else:
            halves = target in ("f16", "bf16")
            want = x.astype(np.float32).astype(DTYPES[target]) if halves else x.astype(DTYPES[target])
    assert_same(got, want)


def test_saturation() -> None:
    x = np.array([1e6, -1e6, np.nan, np.inf, 65519.0, 1.0], np.float32)
    got = apply("x0", [x], "f16", x.shape, saturate=True)
    np.testing.assert_array_equal(got, np.array([65504, -65504, 0, 65504, 65504, 1], np.float16))
    got = apply("x0", [x], "f16", x.shape)
    np.testing.assert_array_equal(got, np.array([np.inf, -np.inf, np.nan, np.inf, 65504, 1], np.float16))


def test_activations(rng: np.random.Generator) -> None:
    x = values(rng, (300,), "f32") * 3
    twins = {
        "leaky_relu(x0,p0)": lambda v: np.where(v < 0, v * 0.1, v),
        "elu(x0,p1)": lambda v: np.where(v < 0, 1.5 * np.expm1(v), v),
        "hardswish(x0)": lambda v: v * np.clip(v / 6 + 0.5, 0, 1),
        "hardsigmoid(x0,p0,p2)": lambda v: np.clip(v * 0.1 + 0.5, 0, 1),
        "mish(x0)": lambda v: v * np.tanh(np.logaddexp(v, 0)),
        "softsign(x0)": lambda v: v / (1 + np.abs(v)),
        "silu(x0)": lambda v: v / (1 + np.exp(-v)),
        "gelu_tanh(x0)": lambda v: 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))),
        "clip(x0,-1,p2)": lambda v: np.clip(v, -1, 0.5),
    }
    for expression, twin in twins.items():
        got = apply(expression, [x.astype(np.float32)], "f32", x.shape, parameters=[0.1, 1.5, 0.5])
        np.testing.assert_allclose(got, twin(x.astype(np.float64)), rtol=3e-6, atol=3e-7, err_msg=expression)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("dtype", ["f16", "i8"])
def test_rows_of_one_channel_block(lanes: int, dtype: str, rng: np.random.Generator) -> None:
    for pixels in (1, 2, 7, 50):
        shape = (3, pixels, lanes)
        x, channel, pixel, one = (
            rng.integers(-9, 9, own).astype(DTYPES[dtype]) for own in (shape, (3, 1, lanes), (3, pixels, 1), (1, 1, 1))
        )
        for operands in ([x, channel], [channel, x], [x, pixel], [x, one], [channel, pixel]):
            got = apply("sub(x0,x1)", operands, dtype, shape)
            np.testing.assert_array_equal(got, operands[0] - operands[1])


def test_merging() -> None:
    assert merged((2, 3, 1, 4), [(48, 16, 16, 4), (24, 8, 8, 2)]) == ([24], [[4], [2]])
    assert merged((2, 3, 4), [(0, 0, 4), (48, 16, 4)]) == ([6, 4], [[0, 4], [16, 4]])
    assert merged((1, 1), [(5, 5)]) == ([1], [[0]])


def test_refusals() -> None:
    view = View(0, "f32", (4,))
    with pytest.raises(ValueError, match="does not broadcast"):
        View.dense(0, "f32", (3, 2), (3, 4))
    from npusim.kernels.store import kernel_address

    for bad in ("nonsense(x0)", "add(x0", "add(x0,x1,x2,x3)", "x0 x0", "y7"):
        with pytest.raises(ValueError, match=r"expression|function|unknown name|unexpected"):
            kernel_address(elementwise(bad, [view], view, (4,)).kernel)
    assert "gelu" in functions()


@pytest.mark.parametrize("expression", ["sigmoid(x0)", "relu(x0)", "less(x0,0.5)", "i64(x0)"])
@pytest.mark.parametrize("dtype", ["f16", "f32", "bf16"])
@pytest.mark.parametrize("saturate", [False, True])
def test_results_past_the_caches_have_the_bits_of_others(
    expression: str, dtype: str, saturate: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elementwise_module, "last_cache_bytes", lambda: 1 << 16)
    target = {"less": "b8", "i64(": "i64"}.get(expression[:4], dtype)
    for count in (1 << 16, 70001):
        x = values(rng, (count,), dtype, special=True)
        results = []
        for skip in (0, 1):  # one element off a cache line, results are stored as usual
            room = aligned(np.zeros(count + 1, DTYPES[target]))
            out = room[skip : count + skip]
            view = View.dense(address(out), target, out.shape)
            call = elementwise(expression, [View.dense(address(x), dtype, x.shape)], view, x.shape, (), saturate)
            assert call.kernel.startswith(("stream:", "flat:")[skip])
            run(call, threads=3)
            results.append(out.tobytes())
        assert results[0] == results[1]


def test_only_what_exceeds_the_caches_goes_past_them() -> None:
    memory = aligned(np.zeros(4096, np.float32))
    view, onto = (View.dense(memory.ctypes.data + at, "f32", (512,)) for at in (0, 8192))
    assert elementwise("relu(x0)", [view], onto, (512,)).kernel.startswith("flat:")
    count = last_cache_bytes() // 8
    assert passes_caches(count, [view], onto) and not passes_caches(count - 1, [view], onto)
    assert not passes_caches(count, [view], view), "results that lie on an operand"
