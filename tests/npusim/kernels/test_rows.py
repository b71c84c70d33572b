import numpy as np
import pytest

from npusim.kernels import elementwise, store
from npusim.kernels.cpu import describe, host
from npusim.kernels.rows import RowShape, layer_norm, softmax
from npusim.kernels.weights import aligned
from tests.npusim.kernels import twins
from tests.npusim.kernels.inputs import address, at_end_of_memory, run, run_both, values
from tests.npusim.kernels.twins import DTYPES, Exact, assert_rounded


@pytest.mark.parametrize("dtypes", [("f16", "f16"), ("f32", "f32"), ("f16", "f32"), ("bf16", "bf16")])
@pytest.mark.parametrize("log", [False, True])
def test_softmax(dtypes: tuple[str, str], log: bool, rng: np.random.Generator) -> None:
    for round_ in range(8):
        shape = tuple(int(v) for v in rng.integers(1, 60, 3))
        axis = int(rng.integers(0, 3))
        x = values(rng, shape, dtypes[0], special=round_ == 7)
        with np.errstate(invalid="ignore"):
            x[np.abs(x) < 100] *= DTYPES[dtypes[0]](3)
        exact = twins.softmax(x, axis, log)
        got = run_both(
            lambda t, s=shape, a=axis, x=x: softmax(
                *RowShape.axis(s, a, (address(x), dtypes[0]), (address(t), dtypes[1])), log=log
            ),
            np.zeros(shape, DTYPES[dtypes[1]]),
        )
        # The exponent's argument is rounded once, exp errs by one ulp, each sum of up to 60 terms by at most 60.
        with np.errstate(all="ignore"):
            scale = np.abs(exact) + np.where(log, np.abs(x.astype(np.float64)) + 8, 0)
            spread = np.abs(np.nan_to_num(x.astype(np.float64), posinf=0, neginf=0)).max()
        assert_rounded(got, Exact(exact, scale, 70 + int(2 * spread) if not log else 70))


def test_softmax_over_fractal_nz(rng: np.random.Generator) -> None:
    m, n, c0 = 19, 37, 16
    x = values(rng, (2, m, n), "f16")
    blocked = np.stack([twins.to_nz(one, c0) for one in x])
    got = run_both(
        lambda t: softmax(*RowShape.nz(2, m, n, 32, c0, (address(blocked), "f16"), (address(t), "f16"))),
        np.full(blocked.shape, 7, np.float16),
    )
    flat = got.transpose(0, 2, 1, 3).reshape(2, 32, 48)[:, :m]
    exact = twins.softmax(x, 2, False)
    assert_rounded(flat[..., :n], Exact(exact, np.abs(exact), 80))
    assert not flat[..., n:].any()


@pytest.mark.parametrize("log", [False, True])
def test_short_and_dense_rows_have_the_bits_of_others(log: bool, rng: np.random.Generator) -> None:
    """Rows of up to 16 elements go side by side, dense ones of whole blocks in place: with the same sums."""
    for count in (1, 2, 5, 16, 32, 80, 208):
        x = values(rng, (3, 21, count), "f16")
        padded = np.full((3, 21, count + 16), -np.inf, np.float16)
        padded[..., :count] = x
        got, want = (
            run_both(
                lambda t, a=a: softmax(*RowShape.axis(a.shape, 2, (address(a), "f16"), (address(t), "f16")), log=log),
                np.zeros(a.shape, np.float16),
            )
            for a in (x, padded)
        )
        apart = np.ascontiguousarray(x.transpose(0, 2, 1))
        strided = run_both(
            lambda t, a=apart: softmax(*RowShape.axis(a.shape, 1, (address(a), "f16"), (address(t), "f16")), log=log),
            np.zeros(apart.shape, np.float16),
        )
        assert got.tobytes() == np.ascontiguousarray(strided.transpose(0, 2, 1)).tobytes()
        if count <= 16:
            assert got.tobytes() == np.ascontiguousarray(want[..., :count]).tobytes()


def test_rows_of_minus_infinity_and_nan() -> None:
    x = np.array([[-np.inf, -np.inf], [np.nan, 1], [-np.inf, 2], [60000, -60000]], np.float16)
    got = run_both(
        lambda t: softmax(*RowShape.axis((4, 2), 1, (address(x), "f16"), (address(t), "f16"))),
        np.zeros((4, 2), np.float16),
    )
    np.testing.assert_array_equal(got, np.array([[np.nan] * 2, [np.nan] * 2, [0, 1], [1, 0]], np.float16))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("rms", [False, True])
def test_layer_norm(dtype: str, rms: bool, rng: np.random.Generator) -> None:
    for n in (1, 7, 16, 33, 768):
        x = values(rng, (5, 3, n), dtype) + DTYPES[dtype](2)
        gamma, beta = values(rng, (n,), dtype), values(rng, (n,), dtype)
        for g, b in ((gamma, beta), (None, beta), (gamma, None)):
            got = run_both(
                lambda t, x=x, g=g, b=b: layer_norm(
                    *RowShape.axis(x.shape, 2, (address(x), dtype), (address(t), dtype)),
                    0 if g is None else address(g),
                    0 if b is None else address(b),
                    dtype,
                    1e-3,
                    rms,
                ),
                np.zeros(x.shape, DTYPES[dtype]),
            )
            exact = twins.layer_norm(x, g, b, 1e-3, rms)
            size = np.abs(twins.layer_norm(x, g, None, 1e-3, rms)) + 4 * np.abs(1.0 if g is None else g)
            assert_rounded(got, Exact(exact, size + np.abs(0 if b is None else b), 80 + n // 8))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_layer_norm_of_rows_with_hardly_any_spread(dtype: str) -> None:
    """A level far above the deviations costs nothing: what is left of a row of one value is beta."""
    for n, level in ((1, 300.25), (64, 2000.0), (768, 60000.0)):
        x = np.full((3, n), level, np.float32).astype(DTYPES[dtype])
        x[2, 0] = DTYPES[dtype](level * 1.01)
        gamma, beta = (np.full(n, value, DTYPES[dtype]) for value in (1, 0.5))
        got = run_both(
            lambda t, x=x, g=gamma, b=beta: layer_norm(
                *RowShape.axis(x.shape, 1, (address(x), dtype), (address(t), dtype)),
                address(g),
                address(b),
                dtype,
                1e-5,
            ),
            np.zeros(x.shape, DTYPES[dtype]),
        )
        assert (got[:2].astype(np.float32) == 0.5).all()
        exact = twins.layer_norm(x, gamma, beta, 1e-5, False)
        np.testing.assert_allclose(got[2].astype(np.float64), exact[2], rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("kind", ["softmax", "log", "layer", "rms"])
@pytest.mark.parametrize("dtype", ["f16", "f32", "bf16"])
def test_results_past_the_caches_have_the_bits_of_others(
    kind: str, dtype: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elementwise, "last_cache_bytes", lambda: 1 << 16)
    many = ":stream" if host().wide and dtype == "f32" and kind in ("layer", "rms") else ":turns"
    for shape, ending in (
        ((64, 512), many),
        ((3, 60, 1152), many),
        ((300, 2048), ":pairs" if kind == "softmax" else many),
        ((33, 1056), ":stream"),
        ((9, 4096), ":stream"),
    ):
        x = values(rng, shape, dtype, special=True)
        x[..., ::2, 40] = 120  # in half of the rows, far above what is looked at first
        gain = values(rng, shape[-1:], dtype)
        results = []
        for skip in (0, 1):  # one element off a cache line, results are stored as usual
            out = aligned(np.zeros(x.size + 1, DTYPES[dtype]))[skip : x.size + skip]
            places = RowShape.axis(shape, -1, (address(x), dtype), (address(out), dtype))
            if kind in ("layer", "rms"):
                call = layer_norm(*places, address(gain), address(gain), dtype, 1e-5, kind == "rms")
            else:
                call = softmax(*places, log=kind == "log")
            assert call.kernel.endswith(ending) == (skip == 0)
            run(call, threads=3)
            results.append(out)
        assert twins.same_bits(*results)


@pytest.mark.parametrize("kind", ["softmax", "log", "layer", "rms"])
@pytest.mark.parametrize("dtypes", [("f16", "f16"), ("f32", "f32"), ("bf16", "bf16"), ("f16", "f32")])
@pytest.mark.parametrize("count", [17, 49, 96, 197, 1000, 1024, 1027])
def test_rows_beside_each_other_have_the_bits_of_single_ones(
    kind: str, dtypes: tuple[str, str], count: int, rng: np.random.Generator
) -> None:
    """However many there are, whatever their neighbours hold, and nothing is written around them."""
    source, target = dtypes
    x = values(rng, (9, count), source)
    x[2, -1], x[4] = np.nan, np.inf
    gain = values(rng, (2, count), source)

    def results(rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        places = RowShape.axis(rows.shape, -1, (address(rows), source), (address(out), target))
        if kind in ("layer", "rms"):
            run(layer_norm(*places, address(gain), address(gain[1:]), source, 1e-5, kind == "rms"))
        else:
            run(softmax(*places, log=kind == "log"))
        return out

    single = np.concatenate([results(x[n : n + 1], np.zeros((1, count), DTYPES[target])) for n in range(9)])
    for rows in (2, 3, 4, 7, 9):
        around = np.full(rows * count + 64, 7, DTYPES[target])
        results(x[:rows], around[32 : 32 + rows * count].reshape(rows, count))
        assert twins.same_bits(around[32:-32], single[:rows].ravel())
        assert (around[:32] == 7).all() and (around[-32:] == 7).all()
        if source == target:
            again = x[:rows].copy()
            assert twins.same_bits(results(again, again), single[:rows])


@pytest.mark.parametrize("dtype", ["f16", "f32", "bf16"])
@pytest.mark.parametrize("form", ["dense", "strided", "nz"])
@pytest.mark.parametrize("kind", ["softmax", "layer", "rms"])
def test_nothing_is_read_behind_an_operand(kind: str, form: str, dtype: str, rng: np.random.Generator) -> None:
    for count in (5, 21, 64, 133):
        x = values(rng, (3, count), dtype)
        gamma, beta = (at_end_of_memory(values(rng, (count,), dtype)) for _ in range(2))
        if form == "nz":
            source = at_end_of_memory(twins.to_nz(x, 16)[:, :3].copy())
            out = at_end_of_memory(np.zeros_like(source))
            places = RowShape.nz(1, 3, count, 3, 16, (address(source), dtype), (address(out), dtype))
        else:
            axis = 1 if form == "dense" else 0
            source = at_end_of_memory(np.ascontiguousarray(x if axis else x.T))
            out = at_end_of_memory(np.zeros_like(source))
            places = RowShape.axis(source.shape, axis, (address(source), dtype), (address(out), dtype))
        if kind == "softmax":
            run(softmax(*places))
        else:
            run(layer_norm(*places, address(gamma), address(beta), dtype, 1e-5, kind == "rms"))
        assert np.isfinite(out.astype(np.float64)).all() and out.any()


@pytest.mark.parametrize("rms", [False, True])
def test_norms_without_parameters_and_epsilon(rms: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many rows that results go past the caches; nothing is read for gamma and beta."""
    monkeypatch.setattr(elementwise, "last_cache_bytes", lambda: 1 << 16)
    x = aligned(np.arange(256 * 448, dtype=np.float32) % 7).reshape(256, 448)
    out = aligned(np.zeros(x.size, np.float32)).reshape(x.shape)
    places = RowShape.axis(x.shape, 1, (address(x), "f32"), (address(out), "f32"))
    run(layer_norm(*places, 0, 0, "f32", 0.0, rms))
    np.testing.assert_allclose(out, twins.layer_norm(x, None, None, 0.0, rms), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("n", "c0"), [(10, 16), (5, 8), (12, 32), (20, 32), (20, 16)])
def test_lanes_beyond_a_row_of_fractal_nz_are_zeros(n: int, c0: int, rng: np.random.Generator) -> None:
    x = values(rng, (7, n), "f16")
    blocked, gain = twins.to_nz(x, c0), values(rng, (n,), "f16")

    def normalised(t: np.ndarray, places: tuple) -> object:
        return layer_norm(*places, address(gain), address(gain), "f16", 1e-5)

    for make in (lambda t, places: softmax(*places), normalised):
        got = run_both(
            lambda t, make=make: make(
                t, RowShape.nz(1, 7, n, blocked.shape[1], c0, (address(blocked), "f16"), (address(t), "f16"))
            ),
            np.full(blocked.shape, 7, np.float16),
        )
        flat = got.transpose(1, 0, 2).reshape(blocked.shape[1], -1)[:7]
        assert flat[:, :n].any(1).all() and not flat[:, n:].any()


@pytest.mark.parametrize(("cpu", "longest"), [("znver4", "ymm"), ("x86-64-v4", "zmm")])
def test_norms_of_halves_take_the_registers_that_convert_fastest(cpu: str, longest: str) -> None:
    long = "+avx512f,+avx512vl,+avx512bw,+avx512dq,+avx2,+fma,+f16c,+sse4.1"
    target = describe("x86_64-unknown-linux-gnu", cpu, long)
    for name in ("layernorm:f16:f16:f16:layer", "layernorm:f16:f16:f32:rms:stream"):
        text = store.assembly(name, target)
        assert longest in text and ("zmm" in text) == (longest == "zmm")
    assert "zmm" in store.assembly("layernorm:f32:f32:f32:layer", target)
