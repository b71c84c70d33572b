"""Host plans of pictures: every layout, swap and element type against the derived twin, bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.format import Format, unpack
from metadef.kernel import Engine, FusedOp
from metadef.ops.numeric import widen
from npusim.twin import run_twin
from tests.npusim.mini_program import MiniTask, Value, mini_task

CHANNELS = {"RGB888_U8": (1, 3), "XRGB8888_U8": (1, 3, 4), "YUV400_U8": (1,), "YUV420SP_U8": (1, 3)}
TYPES = {"fp16": (DType.FLOAT16, 16), "bf16": (DType.BF16, 16), "fp32": (DType.FLOAT, 8), "small": (DType.FLOAT16, 4)}


def picture_task(
    rng: np.random.Generator, layout: str, kind: str, shape: tuple[int, int, int], **given: Any
) -> MiniTask:
    dtype, c0 = TYPES[kind]
    n, h, w = shape
    rows, together = {"YUV420SP_U8": (h * 3 // 2, 1), "YUV400_U8": (h, 1), "RGB888_U8": (h, 3)}.get(layout, (h, 4))
    images = Value(rng.integers(0, 256, (n, rows, w, together)).astype(np.uint8), DType.UINT8, Format.NHWC)
    out = Format.NC1HWC0 if c0 > 4 else Format.NC1HWC0_C04
    return mini_task("Aipp", [images], {"input_format": layout, "dst_type": dtype, **given}, out=(out, c0))


def assert_equals_twin(task: MiniTask) -> None:
    assert not task.loaded.fallbacks
    (got,), (wanted,) = task.run(), run_twin(task.task.kernel, task.inputs)
    assert got.tobytes() == wanted.tobytes() and task.untouched()


def options(rng: np.random.Generator, layout: str) -> list[dict[str, Any]]:
    """Every combination of channels and switches that the layout allows."""
    made = []
    for channels, csc, red_blue, first_last in itertools.product(CHANNELS[layout], *[(False, True)] * 3):
        if (csc and layout == "YUV400_U8") or (channels == 1 and not csc and layout != "YUV400_U8"):
            continue
        switches = {"csc_switch": csc, "rbuv_swap_switch": red_blue, "ax_swap_switch": first_last}
        made.append({"channels": channels, "matrix": tuple(rng.integers(-300, 300, 9).tolist()), **switches})
    return made


@pytest.mark.parametrize("layout", CHANNELS)
@pytest.mark.parametrize("kind", TYPES)
def test_layouts_and_switches(rng, layout, kind):
    for given in options(rng, layout):
        task = picture_task(
            rng, layout, kind, (2, 14, 18), crop_size=(8, 6), load_start_pos=(4, 2), padding=(1, 2, 3, 0),
            padding_value=-1.5, input_bias=(16, 128, 128), output_bias=(3, 0, 7), mean_chn=(1, 2, 3, 4),
            min_chn=(100.5, 0.25, 3, 0), var_reci_chn=(0.017, 0.5, -2, 1), **given,
        )  # fmt: skip
        assert_equals_twin(task)


@pytest.mark.parametrize("crop", [(1, 1), (1, 29), (31, 1), (31, 29), (7, 13)], ids=str)
def test_odd_cuts(rng, crop):
    start = tuple(size - taken for size, taken in zip((31, 29), crop))
    task = picture_task(rng, "RGB888_U8", "fp16", (3, 31, 29), channels=3, crop_size=crop, load_start_pos=start)
    assert_equals_twin(task)


@pytest.mark.parametrize("overflow", ["inf", "saturate"])
def test_numbers_past_the_range_of_float16(rng, overflow):
    images = Value(np.arange(192, dtype=np.uint8).reshape(1, 8, 8, 3), DType.UINT8, Format.NHWC)
    attrs = {
        "input_format": "RGB888_U8", "channels": 3, "crop_size": (8, 8), "var_reci_chn": (65504, -65504, 2.0**-24, 1),
        "padding": (0, 0, 1, 1), "padding_value": 65504.0,
    }  # fmt: skip
    task = mini_task("Aipp", [images], attrs, out=(Format.NC1HWC0, 16), overflow=overflow)
    (got,), (wanted,) = task.run(), run_twin(task.task.kernel, task.inputs, overflow=overflow)
    assert got.tobytes() == wanted.tobytes()


def test_many_parts_on_two_threads(rng):
    images = Value(rng.integers(0, 256, (2, 230, 224, 3)).astype(np.uint8), DType.UINT8, Format.NHWC)
    attrs = {"input_format": "RGB888_U8", "channels": 3, "crop_size": (224, 220), "load_start_pos": (6, 4)}
    task = mini_task("Aipp", [images], attrs, out=(Format.NC1HWC0, 16), threads=2)
    assert_equals_twin(task)


def test_no_pictures_is_no_work(rng):
    task = picture_task(rng, "RGB888_U8", "fp16", (0, 8, 8), channels=3, crop_size=(4, 4))
    assert task.run()[0].size == 0


CONVOLUTIONS = {
    "stem": ((20, 3, 7, 7), {"strides": (1, 1, 2, 2), "pads": (3, 3, 3, 3)}),
    "3 x 3": ((33, 3, 3, 3), {"strides": (1, 1, 1, 1), "pads": (1, 1, 1, 1)}),
    "odd": ((5, 3, 2, 3), {"strides": (1, 1, 3, 1), "dilations": (1, 1, 1, 2), "pads": (0, 1, 2, 0)}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("kind", TYPES)
def test_convolutions_over_pictures_are_those_over_images(rng, name, kind):
    """The same bits as the two operators one after the other."""
    (dtype, c0), (shape, window) = TYPES[kind], CONVOLUTIONS[name]
    small, block = c0 == 4, 32 // dtype.bytes
    filters = Format.FRACTAL_Z_C04 if small else Format.FRACTAL_Z
    weights = Value(rng.standard_normal(shape), dtype, filters, block, const=True)
    bias = Value(rng.standard_normal(shape[0]), DType.FLOAT, const=True)
    images = Value(rng.integers(0, 256, (3, 24, 31, 3)).astype(np.uint8), DType.UINT8, Format.NHWC)
    picture = {
        "input_format": "RGB888_U8", "channels": 3, "crop_size": (17, 22), "load_start_pos": (3, 5),
        "padding": (1, 0, 2, 2), "min_chn": (120, 110, 100, 0), "var_reci_chn": (0.0171, 0.0175, 0.0174, 1),
        "dst_type": dtype,
    }  # fmt: skip
    out = (Format.NC1HWC0, block)
    chain = (FusedOp("Relu"),)
    joined = mini_task(
        "AippConv2D", [images, weights, bias], {**picture, **window}, fused=chain, out=out, engine=Engine.AICORE
    )
    assert not joined.loaded.fallbacks
    (got,) = joined.run()
    assert joined.untouched()
    first = mini_task("Aipp", [images], picture, out=(Format.NC1HWC0_C04 if small else Format.NC1HWC0, c0))
    made = widen(unpack(first.run()[0], first.task.kernel.outputs[0]), dtype)
    x = Value(made, dtype, Format.NC1HWC0_C04 if small else Format.NC1HWC0, c0)
    apart = mini_task("Conv2D", [x, weights, bias], window, fused=chain, out=out, engine=Engine.AICORE)
    assert got.tobytes() == apart.run()[0].tobytes()


def test_the_twin_of_both_is_that_of_one_after_the_other(rng):
    images = Value(rng.integers(0, 256, (2, 9, 8, 3)).astype(np.uint8), DType.UINT8, Format.NHWC)
    weights = Value(rng.standard_normal((4, 3, 3, 3)), DType.FLOAT16, Format.FRACTAL_Z, 16, const=True)
    attrs = {
        "input_format": "RGB888_U8", "channels": 3, "crop_size": (9, 8), "var_reci_chn": (0.017, 0.3, 0.9, 1),
        "strides": (1, 1, 1, 1),
    }  # fmt: skip
    task = mini_task("AippConv2D", [images, weights], attrs, out=(Format.NC1HWC0, 16), engine=Engine.AICORE)
    picture = {name: value for name, value in attrs.items() if name != "strides"}
    first = mini_task("Aipp", [images], picture, out=(Format.NC1HWC0, 16))
    (image,) = run_twin(first.task.kernel, first.inputs)
    x = Value(widen(unpack(image, first.task.kernel.outputs[0]), DType.FLOAT16), DType.FLOAT16, Format.NC1HWC0, 16)
    second = mini_task(
        "Conv2D", [x, weights], {"strides": (1, 1, 1, 1)}, out=(Format.NC1HWC0, 16), engine=Engine.AICORE
    )
    (wanted,), (got,) = run_twin(second.task.kernel, second.inputs), run_twin(task.task.kernel, task.inputs)
    assert wanted.tobytes() == got.tobytes()
