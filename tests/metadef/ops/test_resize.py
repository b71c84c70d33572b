"""Bilinear interpolation: places by convention, borders, and the reference against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.error import InferError
from metadef.format import TensorDesc
from metadef.op import get_op
from metadef.ops.resize import bilinear_places, bilinear_taps


def attrs(**given: bool) -> dict[str, object]:
    return get_op("ResizeBilinearV2D").complete_attrs({"size": (3, 3), **given})


def test_places_follow_the_convention():
    np.testing.assert_allclose(bilinear_places(4, 8, attrs(half_pixel_centers=True))[:3], [-0.25, 0.25, 0.75])
    np.testing.assert_allclose(bilinear_places(4, 7, attrs(align_corners=True)), np.arange(7) / 2)
    np.testing.assert_allclose(bilinear_places(4, 8, attrs()), np.arange(8) / 2)
    assert bilinear_places(4, 1, attrs(align_corners=True)).tolist() == [0.0]


@pytest.mark.parametrize("flags", [{}, {"align_corners": True}, {"half_pixel_centers": True}], ids=str)
@pytest.mark.parametrize(("size", "made"), [(1, 5), (5, 1), (4, 11), (9, 4), (6, 6)])
def test_weights_are_shares_of_neighbours_inside(size, made, flags):
    taps = bilinear_taps(size, made, attrs(**flags))
    np.testing.assert_allclose(taps.first_weight + taps.second_weight, 1)
    assert taps.first.min() >= 0 and taps.second.max() < size
    place = np.clip(bilinear_places(size, made, attrs(**flags)), 0, size - 1)
    np.testing.assert_allclose(taps.first * taps.first_weight + taps.second * taps.second_weight, place, atol=1e-12)


def test_reference_mixes_four_pixels(rng):
    x = rng.standard_normal((2, 3, 4, 5))
    given = get_op("ResizeBilinearV2D").complete_attrs({"size": (7, 3), "half_pixel_centers": True})
    (made,) = get_op("ResizeBilinearV2D").reference([x], given)
    h, w = bilinear_taps(4, 7, given), bilinear_taps(5, 3, given)
    for i in range(7):
        for j in range(3):
            rows = [(h.first[i], h.first_weight[i]), (h.second[i], h.second_weight[i])]
            columns = [(w.first[j], w.first_weight[j]), (w.second[j], w.second_weight[j])]
            wanted = sum(x[:, :, r, c] * a * b for r, a in rows for c, b in columns)
            np.testing.assert_allclose(made[:, :, i, j], wanted, rtol=1e-12, atol=1e-14)


def test_only_images_with_pixels():
    for shape in ((2, 3, 4), (1, 3, 0, 4)):
        with pytest.raises(InferError, match="images with pixels"):
            get_op("ResizeBilinearV2D").infer([TensorDesc(shape, DType.FLOAT)], attrs())
