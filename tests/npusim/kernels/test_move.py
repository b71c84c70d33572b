import numpy as np
import pytest

from npusim.executor import INDEX_OUT_OF_RANGE
from npusim.kernels.desc import task_table
from npusim.kernels.move import copy, fill, gather, scatter
from tests.npusim.kernels.inputs import address, executor, run_both, values


@pytest.mark.parametrize("dtype", ["i8", "f16", "f32", "i64"])
def test_strided_copies(dtype: str, rng: np.random.Generator) -> None:
    for round_ in range(25):
        rank = int(rng.integers(1, 7))
        shape = tuple(int(n) for n in rng.integers(1, 12, rank))
        x = values(rng, shape, dtype, special=True)
        view = x.transpose(rng.permutation(rank))
        if round_ % 3 == 0:
            starts = [int(rng.integers(0, max(1, n // 2))) for n in view.shape]
            view = view[tuple(slice(s, None, int(rng.integers(1, 3))) for s in starts)]
        if round_ % 3 == 1:
            view = np.broadcast_to(view, (3, *view.shape))
        got = run_both(
            lambda t, v=view: copy(v.itemsize, address(v), v.strides, address(t), t.strides, v.shape),
            np.zeros(view.shape, x.dtype),
        )
        assert got.tobytes() == np.ascontiguousarray(view).tobytes()


def test_concat_and_pad_by_pieces(rng: np.random.Generator) -> None:
    a, b = values(rng, (3, 4, 5), "f16"), values(rng, (3, 2, 5), "f16")

    def make(target: np.ndarray):
        tasks = [fill(np.float16(-1), address(target), target.strides, target.shape)]
        at = 1
        for piece in (a, b):
            to = target[:, at : at + piece.shape[1]]
            tasks.append(copy(2, address(piece), piece.strides, address(to), to.strides, piece.shape))
            at += piece.shape[1]
        return tasks

    got = run_both(make, np.zeros((3, 8, 5), np.float16))
    want = np.pad(np.concatenate([a, b], 1), ((0, 0), (1, 1), (0, 0)), constant_values=-1)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("index_dtype", ["i32", "i64"])
def test_gather(index_dtype: str, rng: np.random.Generator) -> None:
    data = values(rng, (6, 20, 7), "f16")
    picks = rng.integers(-20, 20, 33).astype(np.int32 if index_dtype == "i32" else np.int64)
    got = run_both(
        lambda t: gather(address(data), 20, 6, 14, address(picks), index_dtype, 33, address(t)),
        np.zeros((6, 33, 7), np.float16),
    )
    np.testing.assert_array_equal(got, data[:, picks])
    groups = rng.integers(0, 20, (3, 5)).astype(picks.dtype)
    got = run_both(
        lambda t: gather(address(data), 20, 6, 14, address(groups), index_dtype, 5, address(t), index_groups=3),
        np.zeros((6, 5, 7), np.float16),
    )
    want = np.stack([data[o][groups[o // 2]] for o in range(6)])
    np.testing.assert_array_equal(got, want)


def test_gather_reports_an_index_out_of_range(rng: np.random.Generator) -> None:
    data, out = values(rng, (1, 20, 4), "f32"), np.zeros((1, 3, 4), np.float32)
    picks = np.array([0, 20, 1], np.int64)
    task = gather(address(data), 20, 1, 16, address(picks), "i64", 3, address(out))
    later = fill(np.float32(9), address(out), out.strides, out.shape)
    status = executor(1).run(task_table([task, later]))
    assert (status.code, status.row, status.info) == (INDEX_OUT_OF_RANGE, 0, 20)
    assert not (out == 9).any(), "nothing runs after a failed task"


@pytest.mark.parametrize("index_dtype", ["i32", "i64"])
@pytest.mark.parametrize("inner", [1, 7, 40])
def test_scatter(index_dtype: str, inner: int, rng: np.random.Generator) -> None:
    whole, rows = values(rng, (20, inner), "f16"), values(rng, (33, inner), "f16", special=True)
    places = rng.integers(-20, 20, 33).astype(np.int32 if index_dtype == "i32" else np.int64)
    got = run_both(
        lambda t: scatter(address(t), 20, 2 * inner, address(places), index_dtype, 33, address(rows)), whole.copy()
    )
    want = whole.copy()
    for place, row in zip(places, rows, strict=True):
        want[place] = row
    assert got.tobytes() == want.tobytes()


def test_scatter_reports_an_index_out_of_range(rng: np.random.Generator) -> None:
    whole, rows = values(rng, (4, 3), "f32"), values(rng, (2, 3), "f32")
    places = np.array([1, -5], np.int32)
    status = executor(1).run(task_table([scatter(address(whole), 4, 12, address(places), "i32", 2, address(rows))]))
    assert (status.code, status.info) == (INDEX_OUT_OF_RANGE, -5)


def test_refusal() -> None:
    with pytest.raises(ValueError, match="3 bytes"):
        copy(3, 0, (3,), 0, (3,), (4,))
