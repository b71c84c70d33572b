"""Distances between arrays, and the report of a model against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.error import UsageError
from npusim.compare import difference, random_feeds
from npusim.session import NodeArg


def test_distance_has_its_textbook_values():
    result = difference(np.array([[3.0, 5.0]]), np.array([[3.0, 4.0]]))
    assert result.rel_l2 == pytest.approx(1 / 5)
    assert result.max_abs == 1.0
    assert result.cosine == pytest.approx((9 + 20) / (5 * np.hypot(3, 5)))
    assert result.top1_equal


def test_top1_is_taken_row_by_row():
    wanted = np.array([[0.1, 0.9], [0.8, 0.2]])
    assert difference(wanted + 0.01, wanted).top1_equal
    assert not difference(wanted[::-1].copy(), wanted).top1_equal


def test_equal_infinities_and_nans_agree_and_others_are_infinitely_far():
    odd = np.array([np.inf, np.nan, 2.0])
    assert difference(odd, odd.copy()).rel_l2 == 0
    assert difference(np.array([1.0, np.nan, 2.0]), odd).rel_l2 == np.inf


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_empty_and_scalar_arrays_have_no_distance(shape: tuple[int, ...]):
    result = difference(np.zeros(shape), np.zeros(shape))
    assert (result.rel_l2, result.max_abs, result.top1_equal) == (0.0, 0.0, True)


def test_different_shapes_are_an_error():
    with pytest.raises(UsageError, match="different shape"):
        difference(np.zeros(3), np.zeros(4))


def test_random_feeds_fit_their_inputs_and_repeat():
    inputs = [
        NodeArg("image", [2, 3], "tensor(float)"),
        NodeArg("half", [4], "tensor(float16)"),
        NodeArg("wide", [4], "tensor(double)"),
        NodeArg("ids", [5], "tensor(int64)"),
        NodeArg("mask", [5], "tensor(bool)"),
        NodeArg("brain", [6], "tensor(bfloat16)"),
    ]
    feeds = random_feeds(inputs)
    kinds = {name: (array.dtype.name, array.shape) for name, array in feeds.items()}
    assert kinds["image"] == ("float32", (2, 3)) and kinds["wide"] == ("float64", (4,))
    assert kinds["ids"] == ("int64", (5,)) and kinds["mask"] == ("bool", (5,)) and kinds["brain"] == ("uint16", (6,))
    assert set(feeds["ids"].tolist()) <= {0, 1}
    again = random_feeds(inputs)
    assert all(np.array_equal(feeds[name], again[name]) for name in feeds)
    assert not np.array_equal(random_feeds(inputs, seed=1)["image"], feeds["image"])
