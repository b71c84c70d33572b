"""AIPP: the reference against the documented steps written down one by one, and what does not fit."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.error import InferError
from metadef.format import TensorDesc
from metadef.op import get_op
from metadef.ops.aipp import converted, normal_table

BT601 = {"matrix": (298, 0, 409, 298, -100, -208, 298, 516, 0), "input_bias": (16, 128, 128)}
TO_YUV = {"matrix": (66, 129, 25, -38, -74, 112, 112, -94, -18), "output_bias": (16, 128, 128)}
STATISTICS = {
    "mean_chn": (1, 2, 30, 4),
    "min_chn": (123.6875, 0.25, 3.0, 7.0),
    "var_reci_chn": (0.017120361328125, -0.5, 2.0, 1.0),
}


def run(images: np.ndarray, **given: Any) -> np.ndarray:
    opdef = get_op("Aipp")
    attrs = opdef.complete_attrs({"dst_type": DType.FLOAT, **given})
    (desc,) = opdef.infer([TensorDesc(images.shape, DType.UINT8)], attrs)
    (made,) = opdef.reference([images], attrs)
    assert made.shape == desc.origin_shape and desc.dtype is DType.FLOAT
    return made


def pixels(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 256, shape).astype(np.uint8)


def normalised(value: int, channel: int) -> float:
    mean, least, factor = (STATISTICS[name][channel] for name in ("mean_chn", "min_chn", "var_reci_chn"))
    return (value - mean - least) * factor


@pytest.mark.parametrize("layout", ["RGB888_U8", "XRGB8888_U8"])
@pytest.mark.parametrize("swaps", range(4))
@pytest.mark.parametrize("colours", [{}, TO_YUV], ids=["rgb", "yuv"])
def test_every_pixel_goes_through_the_documented_steps(rng, layout, swaps, colours):
    images = pixels(rng, 2, 9, 11, 4 if layout.startswith("X") else 3)
    red_blue, first_last = bool(swaps & 1), bool(swaps & 2)
    made = run(
        images, input_format=layout, channels=3, crop_size=(5, 7), load_start_pos=(3, 1), padding=(2, 1, 0, 3),
        padding_value=-1.5, rbuv_swap_switch=red_blue, ax_swap_switch=first_last, csc_switch=bool(colours),
        **colours, **STATISTICS,
    )  # fmt: skip
    assert made.shape == (2, 3, 8, 10)
    for image, y, x in np.ndindex(2, 8, 10):
        got = made[image, :, y, x]
        if not (2 <= y < 7 and x < 7):
            assert got.tolist() == [-1.5] * 3
            continue
        pixel = [int(value) for value in images[image, y - 2 + 3, x + 1]]
        if layout == "XRGB8888_U8":
            # The switch makes ARGB of RGBA; what stands in front is dropped.
            pixel = pixel[:3] if first_last else pixel[1:]
        if red_blue:
            pixel = pixel[::-1]
        if colours:
            rows = np.array(TO_YUV["matrix"]).reshape(3, 3).tolist()
            sums = [sum(cell * value for cell, value in zip(row, pixel)) >> 8 for row in rows]
            pixel = [min(max(value + bias, 0), 255) for value, bias in zip(sums, TO_YUV["output_bias"])]
        np.testing.assert_array_equal(got, np.float32([normalised(value, at) for at, value in enumerate(pixel)]))


@pytest.mark.parametrize("swap", [False, True])
def test_yuv420sp_becomes_rgb_by_bt601(rng, swap):
    height, width = 6, 10
    images = pixels(rng, 2, height * 3 // 2, width, 1)
    made = run(
        images, input_format="YUV420SP_U8", channels=3, crop_size=(4, 6), load_start_pos=(2, 4), csc_switch=True,
        rbuv_swap_switch=swap, **BT601,
    )  # fmt: skip
    for image, y, x in np.ndindex(2, 4, 6):
        row, column = y + 2, x + 4
        bright = int(images[image, row, column, 0]) - 16
        pair = [int(images[image, height + row // 2, column // 2 * 2 + at, 0]) - 128 for at in (0, 1)]
        u, v = pair[::-1] if swap else pair
        wanted = [298 * bright + 409 * v, 298 * bright - 100 * u - 208 * v, 298 * bright + 516 * u]
        assert made[image, :, y, x].tolist() == [min(max(value >> 8, 0), 255) for value in wanted]


def test_bt601_is_the_standard_conversion_within_its_steps():
    """Against the formula in real numbers: the matrix counts 1/256, and the shift rounds down."""
    triple = np.stack(np.meshgrid(*[np.arange(16, 236, 9)] * 3, indexing="ij")).reshape(1, 3, -1, 1)
    y, u, v = (triple[0, at, :, 0].astype(float) for at in range(3))
    luma, u, v = 255 / 219 * (y - 16), u - 128, v - 128
    exact = [luma + 1.596 * v, luma - 0.392 * u - 0.813 * v, luma + 2.017 * u]
    got = converted(triple.astype(np.uint8), {"output_bias": (0, 0, 0), **BT601})
    assert np.abs(got[0, :, :, 0] - np.clip(exact, 0, 255)).max() < 1.6


def test_grey_pictures_and_one_channel_of_colours(rng):
    grey = pixels(rng, 1, 3, 5, 1)
    made = run(grey, input_format="YUV400_U8", channels=1, crop_size=(3, 5))
    np.testing.assert_array_equal(made[0, 0], grey[0, :, :, 0])
    colours = pixels(rng, 1, 3, 5, 3)
    to_grey = {"matrix": (76, 150, 30, 0, 0, 0, 0, 0, 0)}
    made = run(colours, input_format="RGB888_U8", channels=1, crop_size=(3, 5), csc_switch=True, **to_grey)
    wide = colours[0].astype(int)
    np.testing.assert_array_equal(made[0, 0], (76 * wide[..., 0] + 150 * wide[..., 1] + 30 * wide[..., 2]) >> 8)


def test_four_channels_keep_the_one_in_front_out_of_the_conversion(rng):
    images = pixels(rng, 1, 2, 3, 4)
    made = run(images, input_format="XRGB8888_U8", channels=4, crop_size=(2, 3), csc_switch=True, **TO_YUV)
    np.testing.assert_array_equal(made[0, 0], images[0, :, :, 0])
    plain = run(images, input_format="XRGB8888_U8", channels=3, crop_size=(2, 3), csc_switch=True, **TO_YUV)
    np.testing.assert_array_equal(made[:, 1:], plain)


def test_normalisation_is_exact_before_its_one_rounding():
    table = normal_table(STATISTICS)
    assert all(np.float16(value) == value for value in STATISTICS["min_chn"] + STATISTICS["var_reci_chn"])
    for channel in range(4):
        mean, least, factor = (Fraction(STATISTICS[name][channel]) for name in STATISTICS)
        assert [Fraction(value) for value in table[channel]] == [(v - mean - least) * factor for v in range(256)]


@pytest.mark.parametrize(
    ("shape", "change", "message"),
    [
        ((1, 8, 8, 4), {}, "no pictures of RGB888_U8"),
        ((1, 8, 8, 1), {"input_format": "YUV420SP_U8"}, "no pictures of YUV420SP_U8"),
        ((1, 9, 7, 1), {"input_format": "YUV420SP_U8"}, "no pictures of YUV420SP_U8"),
        ((1, 9, 8, 1), {"input_format": "YUV420SP_U8", "load_start_pos": (1, 0)}, "pixels in pairs"),
        ((1, 8, 8, 3), {"load_start_pos": (5, 0)}, "the cut leaves the picture"),
        ((1, 8, 8, 3), {"load_start_pos": (0, 5)}, "the cut leaves the picture"),
        ((1, 8, 8, 3), {"channels": 4}, "RGB888_U8 has no 4 channels"),
        ((1, 8, 8, 3), {"channels": 1}, "RGB888_U8 has no 1 channels"),
        ((1, 8, 8, 1), {"input_format": "YUV400_U8", "channels": 1, "csc_switch": True}, "no colours to convert"),
    ],
)
def test_what_does_not_fit_is_refused(shape, change, message):
    attrs = {"input_format": "RGB888_U8", "channels": 3, "crop_size": (4, 4), **change}
    opdef = get_op("Aipp")
    complete = opdef.complete_attrs(attrs)
    with pytest.raises(InferError, match=message):
        opdef.infer([TensorDesc(shape, DType.UINT8)], complete)
