"""Feeds: arrays from files that may be damaged, and generated ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metadef.error import UsageError
from npusim.feeds import FeedSpec, generate_feeds, read_array


def saved(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


def test_arrays_come_back_in_any_order_of_bytes_and_axes(tmp_path: Path):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for kind in (x, np.asfortranarray(x), x.astype(">f4")):
        np.testing.assert_array_equal(read_array("x", saved(tmp_path / "x.npy", kind)), x)


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"(2, 3)", b"(1<<40"), (b"(2, 3)", b"9**99,"), (b"'<f4'", b"'<f9'"), (b"\x93NUMPY\x01", b"\x93NUMPY\x07")],
)
def test_damaged_headers_are_told(tmp_path: Path, old: bytes, new: bytes):
    path = saved(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    assert path.read_bytes().count(old) == 1 and len(old) == len(new)
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(UsageError, match="cannot read input 'x'"):
        read_array("x", path)


@pytest.mark.parametrize("cut", [0, 5, 60, -1])
def test_truncated_files_and_pickles_are_told(tmp_path: Path, cut: int):
    path = saved(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    path.write_bytes(path.read_bytes()[:cut])
    pickled = tmp_path / "p.npy"
    np.save(pickled, np.array([{}], object), allow_pickle=True)
    for damaged in (path, pickled, tmp_path, tmp_path / "none.npy"):
        with pytest.raises(UsageError, match="cannot read input 'x'"):
            read_array("x", damaged)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float16, np.float32])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (1, 2, 8, 8), (1, 0, 8, 8)])
def test_generated_values_are_arrays_of_their_type_and_shape(dtype: type, shape: tuple[int, ...]):
    specs = [FeedSpec("a", shape, np.dtype(dtype)), FeedSpec("b", shape, np.dtype(dtype))]
    first, again = generate_feeds(specs, 3), generate_feeds(specs, 3)
    for name, array in first.items():
        assert isinstance(array, np.ndarray) and (array.shape, array.dtype) == (shape, dtype)
        np.testing.assert_array_equal(array, again[name])
