import numpy as np
import pytest

from npusim.kernels import panels, parts
from npusim.kernels.epilogue import Epilogue
from npusim.kernels.matmul import Batch, Matrix, matmul, pack_b_at_run_time, pack_matmul
from tests.npusim.kernels.inputs import address, run_both, stored, values
from tests.npusim.kernels.twins import DTYPES, Exact, assert_rounded, product, to_nz


def layouts(parts: np.ndarray, dtype: str, nz: bool, transposed: bool, c0: int) -> tuple[np.ndarray, Matrix, list[int]]:
    """Matrices of a batch in one layout: the memory, how it is read, byte offsets."""
    plain = [p.T.copy() if transposed else p for p in parts]
    data = np.stack([to_nz(p, c0) if nz else p for p in plain])
    if nz:
        matrix = Matrix.nz(address(data), dtype, data.shape[2], c0)
    else:
        matrix = Matrix.nd(address(data), dtype, plain[0].shape[1])
    return data, matrix.t if transposed else matrix, [i * data[0].nbytes for i in range(len(parts))]


def unpacked(out: np.ndarray, nz: bool, m: int) -> np.ndarray:
    return out.transpose(0, 2, 1, 3).reshape(out.shape[0], out.shape[2], -1)[:, :m] if nz else out


@pytest.mark.parametrize("dtypes", ["f16 f16", "f16 f32", "f32 f16", "f32 f32", "bf16 bf16", "bf16 f32"])
@pytest.mark.parametrize("b_kind", ["constant", "nd", "nz"])
def test_random_shapes(dtypes: str, b_kind: str, rng: np.random.Generator) -> None:
    for round_ in range(8):
        one_product(*dtypes.split(), b_kind, rng, special=round_ == 7, deep=round_ % 3 == 1)


def one_product(dtype: str, out_dtype: str, b_kind: str, rng: np.random.Generator, special: bool, deep: bool) -> None:
    m, k, n = (int(v) for v in rng.integers(1, 80, 3) * (1, 17 if deep else 1, 1))
    batch, c0 = int(rng.choice([1, 3])), int(rng.choice([8, 16]))
    a_nz, a_t, b_t, out_nz = (bool(v) for v in rng.integers(0, 2, 4))
    a = values(rng, (batch, m, k), dtype, special)
    b, bias = values(rng, (batch, k, n), dtype), values(rng, (n,), "f32")
    held, left, offsets = layouts(a, dtype, a_nz, a_t, c0)
    first = []
    if b_kind == "constant":
        packed = pack_matmul(*stored(b))
    else:
        b_held, right, b_offsets = layouts(b, dtype, b_kind == "nz", b_t, c0)
        packed, task = pack_b_at_run_time(right, k, n, b_offsets)
        task.keep.append(b_held)
        first = [task]
    shape = (batch, -(-n // c0), -(-m // 16) * 16, c0) if out_nz else (batch, m, n)
    out = np.full(shape, 7, DTYPES[out_dtype])
    many = Batch(offsets, list(range(batch)), [i * out[0].nbytes for i in range(batch)])

    def make(target: np.ndarray):
        kind = Matrix.nz(address(target), out_dtype, shape[2], c0) if out_nz else None
        task = matmul(m, k, n, left, packed, kind or Matrix.nd(address(target), out_dtype, n), bias, many)
        task.keep.append(held)
        return [*first, task]

    got = unpacked(run_both(make, out), out_nz, m)
    with np.errstate(all="ignore"):
        assert_rounded(got[..., :n], product(a, b, bias))
    assert not got[..., n:].any(), "lanes beyond N must be zeros"


def test_residual_in_ragged_rows(rng: np.random.Generator) -> None:
    m, k, n = 23, 30, 37
    a, b, start = values(rng, (m, k), "f16"), values(rng, (k, n), "f16"), values(rng, (m, n), "f16")
    packed = pack_matmul(b)

    def make(target: np.ndarray):
        to = Matrix.nd(address(target), "f16", n)
        return matmul(m, k, n, Matrix.nd(address(a), "f16", k), packed, to, epilogue=Epilogue(address(target), "relu"))

    exact = product(a, b, np.zeros(n))
    total = np.maximum(exact.value + start, 0)
    assert_rounded(run_both(make, start), Exact(total, exact.magnitude + np.abs(start), exact.operations))


def test_shared_a_and_large_k(rng: np.random.Generator) -> None:
    m, k, n = 5, 3000, 40
    a, b = values(rng, (m, k), "f32"), values(rng, (2, k, n), "f32")
    packed = pack_matmul(b)
    many = Batch([0, 0], [0, 1], [0, m * n * 4])

    def make(target: np.ndarray):
        return matmul(
            m, k, n, Matrix.nd(address(a), "f32", k), packed, Matrix.nd(address(target), "f32", n), batch=many
        )

    got = run_both(make, np.zeros((2, m, n), np.float32))
    assert_rounded(got, product(a, b, np.zeros(n)))


def test_order_of_summation_is_that_of_a_1x1_convolution(rng: np.random.Generator) -> None:
    from npusim.kernels.conv import Conv2D, conv2d, pack_conv
    from tests.npusim.kernels.twins import from_blocked, to_blocked

    x, w = values(rng, (1, 50, 6, 7), "f32"), values(rng, (30, 50, 1, 1), "f32")
    s = Conv2D(1, 50, 6, 7, 30, (1, 1))
    out = np.zeros((1, 2, 6, 7, 16), np.float32)
    blocked, packed = to_blocked(x, 16), pack_conv(s, w)
    by_conv = run_both(lambda t: conv2d(s, address(blocked), packed, address(t), ("f32", "f32")), out)
    b = pack_matmul(w[:, :, 0, 0].T.copy())
    rows = x[0].reshape(50, 42).T.copy()
    left = Matrix.nd(address(rows), "f32", 50)
    by_matmul = run_both(
        lambda t: matmul(42, 50, 30, left, b, Matrix.nd(address(t), "f32", 30)), np.zeros((42, 30), np.float32)
    )
    np.testing.assert_array_equal(from_blocked(by_conv)[0, :30].reshape(30, 42).T, by_matmul)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_results_depend_neither_on_the_cut_nor_on_who_widens_the_weights(
    dtype: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, k, n = 45, 700, 70
    a, b, bias = values(rng, (m, k), dtype, special=True), values(rng, (k, n), dtype), values(rng, (n,), "f32")
    left, results = Matrix.nd(address(a), dtype, k), []
    for rows, splits, groups in ((m, 1, 100), (16, 2, 100), (28, 1, 20), (30, 3, 7)):
        with monkeypatch.context() as patch:
            patch.setattr(parts, "matmul_split", lambda *_, cut=(rows, splits): cut)
            patch.setattr(panels, "_blocks", lambda all_groups, *_, some=groups: -(-all_groups // some))
            for packed in (pack_matmul(*stored(b)), pack_matmul(b.astype(np.float32))):
                results.append(
                    run_both(
                        lambda t, held=packed: matmul(m, k, n, left, held, Matrix.nd(address(t), dtype, n), bias),
                        np.full((m, n), 7, DTYPES[dtype]),
                    )
                )
    # The sign of NaN is left open.
    assert len({np.where(np.isnan(r), np.array(7, r.dtype), r).tobytes() for r in results}) == 1
    assert len({np.isnan(r).tobytes() for r in results}) == 1
    with np.errstate(all="ignore"):
        assert_rounded(results[0], product(a, b, bias))
