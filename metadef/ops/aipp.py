"""AIPP, the unit on the load path that makes images of camera pictures: bytes in, normalised channels out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metadef.dtype import DType
from metadef.format import Format, TensorDesc
from metadef.op import FLOATS, Attr, AttrKind, Attrs, CostClass, FormatRule, OpDef, Port, register
from metadef.ops.common import array, plain
from metadef.ops.geometry import PICTURE_BYTES, PictureGeometry
from metadef.ops.numeric import HALF_MAX

BYTE = 255
"""Largest value of a channel of a picture."""
CHANNELS = 4
SHIFT = 8
"""Numbers of the colour conversion's matrix count 1 / 256."""
_UNIT_MATRIX = (1 << SHIFT, 0, 0, 0, 1 << SHIFT, 0, 0, 0, 1 << SHIFT)

IMAGES = Port("images", (DType.UINT8,))
PICTURE_ATTRS = (
    Attr("input_format", AttrKind.STRING, choices=tuple(PICTURE_BYTES)),
    Attr("channels", AttrKind.INT, minimum=1, maximum=CHANNELS),
    Attr("crop_size", AttrKind.LIST_INT, minimum=1, length=2),
    Attr("load_start_pos", AttrKind.LIST_INT, (0, 0), minimum=0, length=2),
    Attr("padding", AttrKind.LIST_INT, (0, 0, 0, 0), minimum=0, length=4),
    Attr("padding_value", AttrKind.FLOAT, 0.0, minimum=-HALF_MAX, maximum=HALF_MAX),
    Attr("rbuv_swap_switch", AttrKind.BOOL, False),
    Attr("ax_swap_switch", AttrKind.BOOL, False),
    Attr("csc_switch", AttrKind.BOOL, False),
    Attr("matrix", AttrKind.LIST_INT, _UNIT_MATRIX, minimum=-32677, maximum=32676, length=9),
    Attr("input_bias", AttrKind.LIST_INT, (0, 0, 0), minimum=0, maximum=BYTE, length=3),
    Attr("output_bias", AttrKind.LIST_INT, (0, 0, 0), minimum=0, maximum=BYTE, length=3),
    Attr("mean_chn", AttrKind.LIST_INT, (0,) * CHANNELS, minimum=0, maximum=BYTE, length=CHANNELS),
    Attr("min_chn", AttrKind.LIST_FLOAT, (0.0,) * CHANNELS, minimum=0, maximum=BYTE, length=CHANNELS),
    Attr("var_reci_chn", AttrKind.LIST_FLOAT, (1.0,) * CHANNELS, minimum=-HALF_MAX, maximum=HALF_MAX, length=CHANNELS),
    Attr("dst_type", AttrKind.TYPE, DType.FLOAT16, choices=FLOATS),
)
"""Attributes of every operator that reads pictures: AIPP's keys, with lists in the order of channels, (H, W), or (top,
bottom, left, right). Ranges are those of the configuration file."""


def channel_bytes(images: np.ndarray, attrs: Attrs) -> np.ndarray:
    """Pictures as uint8 channels (n, 1 to 4, h, w), swapped as the attributes say; colours are laid over their pixels.

    XRGB8888 keeps X in front: that is the order which ``ax_swap_switch`` makes of RGBX.
    """
    layout = attrs["input_format"]
    if layout == "YUV420SP_U8":
        rows = images.shape[1] // 3 * 2
        bright, colours = images[:, :rows, :, 0], images[:, rows:, :, 0]
        pairs = [np.repeat(np.repeat(colours[:, :, at::2], 2, axis=1), 2, axis=2) for at in (0, 1)]
        channels = np.stack([bright, *pairs], axis=1)
    else:
        channels = np.moveaxis(images, 3, 1)
    if attrs["ax_swap_switch"] and layout == "XRGB8888_U8":
        channels = channels[:, [3, 0, 1, 2]]
    if attrs["rbuv_swap_switch"] and layout != "YUV400_U8":
        order = {"RGB888_U8": [2, 1, 0], "XRGB8888_U8": [0, 3, 2, 1], "YUV420SP_U8": [0, 2, 1]}[layout]
        channels = channels[:, order]
    return channels


def converted(channels: np.ndarray, attrs: Attrs) -> np.ndarray:
    """Three channels (n, 3, h, w) in another colour space: matrix times (in - input_bias), shifted right by 8 bits
    (rounded down), plus output_bias, kept within a byte."""
    matrix = np.array(attrs["matrix"], np.int64).reshape(3, 3)
    before, after = (np.array(attrs[name], np.int64).reshape(1, 3, 1, 1) for name in ("input_bias", "output_bias"))
    mixed = np.einsum("ij,njhw->nihw", matrix, channels.astype(np.int64) - before)
    return np.clip((mixed >> SHIFT) + after, 0, BYTE).astype(np.uint8)


def normal_table(attrs: Attrs) -> np.ndarray:
    """What every byte of every channel becomes: (in - mean - min) * var_reci, float64 (4, 256).

    Byte, mean, min and factor are short enough for this to be exact.
    """
    mean, least, factor = (np.array(attrs[name], np.float64) for name in ("mean_chn", "min_chn", "var_reci_chn"))
    return (np.arange(BYTE + 1.0) - mean[:, None] - least[:, None]) * factor[:, None]


def picture_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> np.ndarray:
    """Images of pictures in the documented order: swap, cut, colour conversion, normalisation, border; not rounded."""
    images = array(inputs)
    g = PictureGeometry.of([TensorDesc(images.shape, DType.UINT8)], attrs)
    channels = channel_bytes(images, attrs)
    channels = channels[:, :, g.first_row : g.first_row + g.h, g.first_column : g.first_column + g.w]
    extra, colours = np.split(channels, [max(channels.shape[1] - 3, 0)], axis=1)
    if attrs["csc_switch"]:
        colours = converted(colours, attrs)
    kept = np.concatenate([extra, colours], axis=1) if g.c == CHANNELS else colours[:, : g.c]
    table = normal_table(attrs)
    result = np.full(g.out_shape, attrs["padding_value"])
    inner = result[:, :, g.top : g.top + g.h, g.left : g.left + g.w]
    for channel in range(g.c):
        inner[:, channel] = table[channel][kept[:, channel]]
    return result


def image_desc(inputs: Sequence[TensorDesc | None], attrs: Attrs) -> TensorDesc:
    """What AIPP makes of operand 0. Raises InferError where the attributes do not fit it."""
    return plain(PictureGeometry.of(inputs, attrs).out_shape, attrs["dst_type"], Format.NCHW)


def _infer(inputs: Sequence[TensorDesc | None], attrs: Attrs) -> list[TensorDesc]:
    return [image_desc(inputs, attrs)]


def _reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    made = picture_reference(inputs, attrs)
    return [made.astype(np.float32) if attrs["dst_type"] is DType.FLOAT else made]


register(
    OpDef(
        "Aipp",
        inputs=(IMAGES,),
        outputs=(Port("features", FLOATS),),
        infer=_infer,
        reference=_reference,
        doc="Images (N, C, H, W) of camera pictures, in this order: swapped channels, a cut, another colour space, "
        "(in - mean_chn - min_chn) * var_reci_chn, a border of padding_value. images are bytes: (N, h, w, 3) of "
        "RGB888_U8, (N, h, w, 4) of XRGB8888_U8, (N, h, w, 1) of YUV400_U8, (N, 3 h / 2, w, 1) of YUV420SP_U8.",
        attrs=PICTURE_ATTRS,
        formats=FormatRule.PICTURE,
        cost=CostClass.MOVE,
    )
)
