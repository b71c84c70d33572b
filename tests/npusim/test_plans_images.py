"""Host plans of transposed and grouped convolutions and of pixel moves in NC1HWC0, against the derived twin."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.format import Format, TensorDesc, pack, unpack
from metadef.kernel import Engine, FusedOp
from metadef.ops.cube import turned_filter
from metadef.ops.geometry import ConvGeometry
from npusim.kernels.conv import Conv2D, conv2d, pack_conv
from npusim.kernels.conv_pieces import made_of_pieces
from tests.npusim.kernels.inputs import run as run_call
from tests.npusim.mini_program import MiniTask, mini_task
from tests.npusim.test_plans import HALF, NC1, SINGLE, Draw, blocks, check, draw  # noqa: F401

TYPES = pytest.mark.parametrize("dtype", [HALF, SINGLE], ids=["fp16", "fp32"])

TRANSPOSED = {
    "doubling": ((1, 24, 5, 7), (24, 24, 2, 2), (10, 14), {"strides": (1, 1, 2, 2)}),
    "cut and padded": (
        (2, 20, 4, 5),
        (20, 9, 3, 4),
        (8, 17),
        {"strides": (1, 1, 2, 3), "pads": (1, 1, 0, 0), "output_padding": (0, 0, 1, 1)},
    ),
    "grouped, dilated": (
        (1, 12, 6, 4),
        (12, 5, 3, 2),
        (15, 9),
        {"strides": (1, 1, 2, 2), "dilations": (1, 1, 2, 2), "groups": 3},
    ),
    "three apart, one row more": (
        (1, 20, 5, 4),
        (20, 33, 4, 5),
        (17, 12),
        {"strides": (1, 1, 3, 3), "pads": (0, 0, 1, 1), "output_padding": (0, 0, 1, 0)},
    ),
    "filter shorter than the stride": ((2, 16, 4, 3), (16, 16, 1, 2), (13, 8), {"strides": (1, 1, 4, 3)}),
    "dilation and stride with a common factor": (
        (1, 18, 5, 6),
        (18, 8, 3, 2),
        (25, 19),
        {"strides": (1, 1, 4, 3), "dilations": (1, 1, 6, 3), "pads": (2, 2, 0, 0)},
    ),
    "pads that cut off pixels": (
        (1, 16, 4, 5),
        (16, 24, 5, 5),
        (6, 9),
        {"strides": (1, 1, 2, 2), "pads": (3, 2, 2, 2), "output_padding": (0, 0, 0, 0)},
    ),
    "stride 1": ((1, 16, 5, 5), (16, 16, 3, 3), (7, 7), {"strides": (1, 1, 1, 1)}),
    "to one channel": ((1, 24, 6, 6), (24, 1, 2, 2), (12, 12), {"strides": (1, 1, 2, 2)}),
}
GROUPED = {
    "straddling": ((2, 60, 5, 6), (84, 20, 3, 3), {"groups": 3, "pads": (1, 1, 1, 1)}),
    "shuffle": ((1, 112, 7, 7), (136, 28, 1, 1), {"groups": 4}),
    "narrow": ((1, 24, 9, 8), (112, 6, 1, 1), {"groups": 4, "strides": (1, 1, 2, 2)}),
    "wide results": ((1, 24, 6, 6), (96, 12, 3, 1), {"groups": 2}),
}


def transposed(draw: Draw, dtype: DType, name: str, chain: tuple[FusedOp, ...] = ()) -> MiniTask:  # noqa: F811
    x_shape, w_shape, size, attrs = TRANSPOSED[name]
    channels = w_shape[1] * attrs.get("groups", 1)
    c0 = blocks(dtype)
    operands = [
        draw(dtype, *x_shape, format=NC1, c0=c0),
        draw(dtype, *w_shape, format=Format.FRACTAL_Z, c0=c0, const=True),
        draw(SINGLE, channels, const=True),
    ]
    if any(item.operand is not None for item in chain):
        operands.append(draw(dtype, x_shape[0], channels, *size, format=NC1, c0=c0))
    attrs = {"input_size": (x_shape[0], channels, *size), **attrs}
    return mini_task("Conv2DTransposeD", operands, attrs, fused=chain, engine=Engine.AICORE)


@TYPES
@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolution(draw: Draw, name: str, dtype: DType):  # noqa: F811
    _, (c, _, kh, kw), _, attrs = TRANSPOSED[name]
    check(transposed(draw, dtype, name), terms=c // attrs.get("groups", 1) * kh * kw + 1)


@TYPES
@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolution_has_the_bits_of_one_over_zeros(draw: Draw, name: str, dtype: DType):  # noqa: F811
    task = transposed(draw, dtype, name)
    x, weight, bias = (unpack(array, desc) for array, desc in zip(task.inputs, task.task.kernel.inputs, strict=True))
    g = ConvGeometry.of(task.task.kernel)
    pads = (g.pad_top, g.pad_left, g.pad_bottom, g.pad_right)
    window = ((g.kh, g.kw), (1, 1), pads, (g.dilation_h, g.dilation_w))
    shape = Conv2D(g.n, g.c, g.h, g.w, g.oc, *window, groups=g.groups, c0_in=8, c0_out=8)
    spread = np.zeros((g.n, g.c, g.h, g.w), x.dtype)
    spread[:, :, :: g.spread_h, :: g.spread_w] = x
    stored = pack(spread, TensorDesc(spread.shape, dtype, Format.NCHW, NC1, 8))
    out = np.zeros((shape.n, -(-shape.o // 8), *shape.out_hw, 8), dtype.numpy)
    packed = pack_conv(shape, turned_filter(weight, g.groups), bias)
    name_of = {HALF: "f16", SINGLE: "f32"}[dtype]
    run_call(conv2d(shape, stored.ctypes.data, packed, out.ctypes.data, (name_of, name_of)))
    wanted = unpack(out, TensorDesc((shape.n, shape.o, *shape.out_hw), dtype, Format.NCHW, NC1, 8))
    got = unpack(task.run()[0], task.task.kernel.outputs[0])
    np.testing.assert_array_equal(got, wanted)


@TYPES
def test_transposed_convolution_adds_in_place(draw: Draw, dtype: DType):  # noqa: F811
    chain = (FusedOp("Add", operand=3), FusedOp("Relu"))
    check(transposed(draw, dtype, "three apart, one row more", chain), terms=402)


def test_transposed_convolution_with_activation(draw: Draw):  # noqa: F811
    check(transposed(draw, HALF, "doubling", (FusedOp("Relu"),)), terms=100)


def grouped(draw: Draw, dtype: DType, name: str, chain: tuple[FusedOp, ...] = ()) -> MiniTask:  # noqa: F811
    x_shape, w_shape, attrs = GROUPED[name]
    c0 = blocks(dtype)
    operands = [
        draw(dtype, *x_shape, format=NC1, c0=c0),
        draw(dtype, *w_shape, format=Format.FRACTAL_Z, c0=c0, const=True),
        draw(SINGLE, w_shape[0], const=True),
    ]
    attrs = {"strides": (1, 1, 1, 1), **attrs}
    return mini_task("Conv2D", operands, attrs, fused=chain, engine=Engine.AICORE)


@TYPES
@pytest.mark.parametrize("name", GROUPED)
def test_groups_that_straddle_blocks(draw: Draw, name: str, dtype: DType):  # noqa: F811
    check(grouped(draw, dtype, name), terms=int(np.prod(GROUPED[name][1][1:])) + 1)


@TYPES
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_few_channels_without_padding(draw: Draw, channels: int, dtype: DType):  # noqa: F811
    operands = [
        draw(dtype, 2, channels, 11, 9, format=Format.NC1HWC0_C04, c0=4),
        draw(dtype, 20, channels, 3, 3, format=Format.FRACTAL_Z_C04, c0=blocks(dtype), const=True),
        draw(SINGLE, 20, const=True),
    ]
    attrs = {"strides": (1, 1, 2, 1), "pads": (1, 1, 0, 2)}
    out = (NC1, blocks(dtype))
    check(mini_task("Conv2D", operands, attrs, fused=(FusedOp("Relu"),), out=out, engine=Engine.AICORE), terms=37)
    names = {"src_format": "NCHW", "dst_format": "NC1HWC0_C04"}
    plain = draw(dtype, 2, channels, 11, 9, format=Format.NCHW)
    check(mini_task("TransData", [plain], names, out=(Format.NC1HWC0_C04, 4)))
    back = {"src_format": names["dst_format"], "dst_format": "NCHW"}
    check(mini_task("TransData", [operands[0]], back, out=(Format.NCHW, 0)))


def test_activations_do_not_reach_padding_lanes(draw: Draw):  # noqa: F811
    check(grouped(draw, HALF, "straddling", (FusedOp("Sigmoid"),)), terms=200)


def test_infinities_stay_in_their_group(draw: Draw):  # noqa: F811
    task = grouped(draw, HALF, "straddling")
    x = task.inputs[0]
    assert x is not None
    x[:, 0, :, :, 3] = np.inf  # channel 3: the first of three groups of 20 channels and 28 results
    (result,) = task.run()
    flat = result.transpose(0, 1, 4, 2, 3).reshape(2, -1, 5, 6)[:, :84]
    assert not np.isfinite(flat[:, :28]).all() and np.isfinite(flat[:, 28:]).all()


def test_which_groups_are_made_of_pieces():
    wanted = {(32, 32, 32): False, (64, 64, 4): False, (136, 136, 4): True, (136, 136, 1): False, (48, 24, 12): False}
    for (c, o, groups), pieces in wanted.items():
        assert made_of_pieces(Conv2D(1, c, 4, 4, o, (1, 1), groups=groups)) is pieces


@pytest.mark.parametrize("dtype", [DType.INT8, HALF, SINGLE], ids=str)
def test_pixels_are_repeated(draw: Draw, dtype: DType):  # noqa: F811
    attrs = {"size": (8, 15)}
    check(mini_task("ResizeNearestNeighborV2D", [draw(dtype, 2, 20, 4, 5)], attrs))
    if dtype.is_float:
        x = draw(dtype, 2, 20, 4, 5, format=NC1, c0=blocks(dtype))
        check(mini_task("ResizeNearestNeighborV2D", [x], attrs))


@TYPES
def test_images_are_padded_and_cut_in_blocks(draw: Draw, dtype: DType):  # noqa: F811
    c0 = blocks(dtype)
    x = draw(dtype, 2, 3 * c0 + 5, 4, 6, format=NC1, c0=c0)
    check(mini_task("PadD", [x], {"paddings": (0, 1, 0, 0, 2, 1, 0, 3)}))
    cut = {"begin": (0, c0, 3, 1), "end": (2, 3 * c0, 0, 6), "strides": (1, 1, -1, 2)}
    check(mini_task("StridedSliceD", [x], cut))
    check(mini_task("StridedSliceD", [x], cut | {"end": (2, 3 * c0 + 5, 0, 6)}))
    odd = mini_task("StridedSliceD", [x], cut | {"begin": (0, 3, 3, 1)})
    assert "parts of channel blocks" in str(odd.loaded.fallbacks)
    odd = mini_task("PadD", [x], {"paddings": (0, 0, 1, 0, 1, 0, 0, 0)})
    assert "PadD of channels" in str(odd.loaded.fallbacks)


@TYPES
@pytest.mark.parametrize("flags", [{}, {"align_corners": True}, {"half_pixel_centers": True}], ids=str)
def test_pixels_are_mixed(draw: Draw, flags: dict[str, bool], dtype: DType):  # noqa: F811
    for size in ((8, 15), (3, 1), (4, 7)):
        attrs = {"size": size, **flags}
        check(mini_task("ResizeBilinearV2D", [draw(dtype, 2, 20, 4, 5)], attrs), terms=4)
        x = draw(dtype, 2, 20, 4, 5, format=NC1, c0=blocks(dtype))
        check(mini_task("ResizeBilinearV2D", [x], attrs), terms=4)


LANES = {
    "ShuffleChannel": {"group": 3},
    "SplitD": {"split_dim": -3, "num_split": 3},
    "StridedSliceD": {"begin": (0, -2), "end": (2, 1), "strides": (1, -3)},
    "PadD": {"paddings": (0, 0, 5, 20, 0, 0, 0, 0)},
}


@pytest.mark.parametrize("dtype", [DType.INT8, HALF, SINGLE], ids=str)
@pytest.mark.parametrize("op_type", LANES)
def test_single_channels_change_places(draw: Draw, op_type: str, dtype: DType):  # noqa: F811
    x = draw(dtype, 2, 42, 5, 7, format=NC1, c0=32 // dtype.bytes)
    check(mini_task(op_type, [x], LANES[op_type]))
    check(mini_task(op_type, [draw(dtype, 2, 42, 5, 7)], LANES[op_type]))
    check(mini_task(op_type, [draw(dtype, 1, 6, 1, 1, format=NC1, c0=32 // dtype.bytes)], LANES[op_type]))


@TYPES
def test_channels_of_several_tensors_meet_in_a_block(draw: Draw, dtype: DType):  # noqa: F811
    c0 = blocks(dtype)
    parts = [draw(dtype, 2, channels, 4, 6, format=NC1, c0=c0) for channels in (3, 2 * c0, 1, c0 + 5, 24)]
    check(mini_task("ConcatD", parts, {"concat_dim": 1}))
