import numpy as np
import pytest

from npusim.kernels.elementwise import View
from npusim.kernels.reduce import OPERATIONS, reduce
from tests.npusim.kernels.inputs import address, run_both, values
from tests.npusim.kernels.twins import DTYPES, REDUCTIONS, Exact, assert_rounded, is_float, name_of


def out_dtype(operation: str, dtype: str) -> str:
    if operation.startswith("arg"):
        return "i64"
    if operation in ("any", "all"):
        return "b8"
    return "f32" if operation in ("l2", "logsum") and dtype[0] == "i" else dtype


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "i64", "i32"])
def test_random_axes(operation: str, dtype: str, rng: np.random.Generator) -> None:
    for round_ in range(6):
        rank = int(rng.integers(1, 5))
        shape = tuple(int(n) for n in rng.integers(1, 40 if rank < 3 else 11, rank))
        count = 1 if operation.startswith("arg") else int(rng.integers(1, rank + 1))
        axes = tuple(sorted(int(a) for a in rng.choice(rank, count, replace=False)))
        x = values(rng, shape, dtype, special=round_ == 5 and operation in ("max", "min", "argmax", "argmin"))
        if dtype[0] == "i":
            x = (x % 5 - 2).astype(x.dtype)
        if operation == "prod" and is_float(dtype):
            x = (1 + x * 0.01).astype(x.dtype)
        if operation == "logsum":
            x = np.abs(x) + x.dtype.type(1)
        view = x.transpose(rng.permutation(rank))
        wide = view.astype(np.float64) if is_float(dtype) else view
        exact = REDUCTIONS[operation](wide, axis=axes[0] if operation.startswith("arg") else axes)
        if dtype[0] == "i" and operation == "mean":
            exact = np.trunc(exact)  # an integer mean truncates toward zero
        out = np.zeros(np.shape(exact), DTYPES[out_dtype(operation, dtype)])
        got = run_both(
            lambda t, v=view, a=axes, o=out: reduce(
                operation,
                View(address(v), dtype, v.strides),
                v.shape,
                a,
                address(t),
                out_dtype(operation, dtype),
            ),
            out,
        )
        if is_float(name_of(out.dtype)):
            size = np.abs(wide).max() * np.ones(np.shape(exact))
            terms = x.size // max(1, out.size)
            scale = {"sumsq": size**2 * terms, "sum": size * terms, "l1": size * terms}.get(
                operation, np.abs(exact) + 1
            )
            with np.errstate(all="ignore"):
                assert_rounded(got, Exact(np.asarray(exact), np.asarray(scale), terms + 4))
        else:
            np.testing.assert_array_equal(got, np.asarray(exact).astype(out.dtype))


def test_ties_and_nan_in_argmax() -> None:
    x = np.array([[1, 3, 3, 2], [np.nan, 5, np.nan, 9], [-np.inf] * 4], np.float32)
    got = run_both(
        lambda t: reduce("argmax", View.dense(address(x), "f32", x.shape), x.shape, [1], address(t), "i64"),
        np.zeros(3, np.int64),
    )
    np.testing.assert_array_equal(got, np.argmax(x, 1))


def test_refusals() -> None:
    view = View.dense(0, "f32", (0, 3))
    with pytest.raises(ValueError, match="no elements"):
        reduce("max", view, (0, 3), [0], 0, "f32")
    with pytest.raises(ValueError, match="unknown reduction"):
        reduce("median", view, (0, 3), [0], 0, "f32")
    with pytest.raises(ValueError, match="one axis"):
        reduce("argmax", View.dense(0, "f32", (2, 3)), (2, 3), [0, 1], 0, "i64")
