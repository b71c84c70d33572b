"""Operators of the cube unit: convolution and matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from metadef.dtype import DType
from metadef.error import InferError
from metadef.format import Format, TensorDesc
from metadef.op import FLOATS, Attr, AttrKind, Attrs, CostClass, FormatRule, OpDef, Port, register
from metadef.ops.common import (
    DATA_FORMAT,
    PADS,
    array,
    arrays_as_descs,
    check_window,
    operand,
    optional,
    plain,
    window_attr,
)
from metadef.ops.geometry import ConvGeometry, Descs, MatMulGeometry

MULTIPLIED = (*FLOATS, DType.INT8)
SUMMED = (*FLOATS, DType.INT32)


def sum_type(dtype: DType) -> DType:
    """The element type of a product's result: sums of int8 are int32, floats keep their type."""
    return DType.INT32 if dtype is DType.INT8 else dtype


CONV_ATTRS = (
    window_attr("strides"),
    PADS,
    window_attr("dilations", (1, 1, 1, 1)),
    Attr("groups", AttrKind.INT, 1, minimum=1),
    DATA_FORMAT,
)
"""Attributes of a convolution."""


def infer_conv(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    """Result (N, OC, OH, OW) of a convolution of x by a filter. Raises InferError where they do not fit."""
    check_window(attrs, "strides", "dilations")
    geometry = ConvGeometry.of(inputs, attrs)
    _check_bias(inputs, geometry.oc)
    return [plain(geometry.out_shape, sum_type(operand(inputs).dtype), Format.NCHW)]


def _check_bias(inputs: Descs, length: int) -> None:
    bias = inputs[2] if len(inputs) > 2 else None
    if bias is None:
        return
    whole = operand(inputs).dtype is DType.INT8
    if whole is not (bias.dtype is DType.INT32):
        raise InferError(
            "bias is not of the type that the product sums in",
            code="E14001",
            port="bias",
            expected="int32" if whole else "a floating type",
            got=bias.dtype.label,
        )
    if bias.origin_shape != (length,):
        raise InferError(
            "bias does not fit the output channels",
            code="E14001",
            port="bias",
            expected=f"shape ({length},)",
            got=str(bias.origin_shape),
        )


def conv2d_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    """Image-to-column and one matrix product for every image and group, in the type of the operands (int8: int32)."""
    x, weight = _exact(array(inputs, 0)), _exact(array(inputs, 1))
    bias = inputs[2] if len(inputs) > 2 else None
    g = ConvGeometry.of(arrays_as_descs(inputs), attrs)
    result = np.empty(g.out_shape, np.result_type(x, weight))
    if result.size == 0:
        return [_summed(result, array(inputs, 0))]
    filters = weight.reshape(g.groups, g.group_oc, g.group_c * g.kh * g.kw)
    pads = ((0, 0), (g.pad_top, g.pad_bottom), (g.pad_left, g.pad_right))
    for image in range(g.n):
        padded = np.pad(x[image], pads)
        columns = _columns(padded, g).reshape(g.groups, g.group_c * g.kh * g.kw, g.oh * g.ow)
        result[image] = np.matmul(filters, columns).reshape(g.oc, g.oh, g.ow)
    if bias is not None:
        result += bias.reshape(1, -1, 1, 1)
    return [_summed(result, array(inputs, 0))]


def _exact(value: np.ndarray) -> np.ndarray:
    """int8 operands as float64, in which their products and sums are exact (and the matrix product is quick)."""
    return value.astype(np.float64) if value.dtype == np.int8 else value


def _summed(result: np.ndarray, operand_: np.ndarray) -> np.ndarray:
    """Exact sums of int8 products in their own type, int32; they wrap as its additions do."""
    return result.astype(np.int64).astype(np.int32) if operand_.dtype == np.int8 else result


def _columns(padded: np.ndarray, g: ConvGeometry) -> np.ndarray:
    """View (c, kh, kw, oh, ow) of every window of a padded image."""
    plane, row, pixel = padded.strides
    strides = (plane, row * g.dilation_h, pixel * g.dilation_w, row * g.stride_h, pixel * g.stride_w)
    return np.lib.stride_tricks.as_strided(padded, (g.c, g.kh, g.kw, g.oh, g.ow), strides, writeable=False)


def turned_filter(weight: np.ndarray, groups: int) -> np.ndarray:
    """The filter (C, OC / groups, KH, KW) of a transposed convolution as one of a convolution: (OC, C / groups, ...).

    Rows and columns are reversed.
    """
    c, group_oc, kh, kw = weight.shape
    grouped = weight.reshape(groups, c // groups, group_oc, kh, kw).transpose(0, 2, 1, 3, 4)[..., ::-1, ::-1]
    return np.ascontiguousarray(grouped).reshape(groups * group_oc, c // groups, kh, kw)


def grouped_filter(weight: np.ndarray) -> np.ndarray:
    """The filter (multiplier, C, KH, KW) of a depthwise convolution as a grouped one's: (C * multiplier, 1, KH, KW)."""
    times, channels, *window = weight.shape
    return np.ascontiguousarray(weight.swapaxes(0, 1)).reshape(channels * times, 1, *window)


def _infer_depthwise(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x, weight = operand(inputs), operand(inputs, 1)
    if len(weight.origin_shape) != 4:
        raise InferError("a filter has four axes", code="E14001", port="filter", got=str(list(weight.origin_shape)))
    times, channels, *window = weight.origin_shape
    grouped = replace(weight, origin_shape=(channels * times, 1, *window))
    return infer_conv([x, grouped, *inputs[2:]], {**attrs, "groups": channels})


def depthwise_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    """The grouped convolution that it is."""
    weight = array(inputs, 1)
    operands = [inputs[0], grouped_filter(weight), *inputs[2:]]
    return conv2d_reference(operands, {**attrs, "groups": weight.shape[1]})


def conv2d_transpose_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    """The convolution that it amounts to, over x with zeros between its pixels."""
    x, weight = array(inputs, 0), array(inputs, 1)
    g = ConvGeometry.of(arrays_as_descs(inputs), attrs)
    spread = np.zeros((g.n, g.c, g.h, g.w), x.dtype)
    spread[:, :, :: g.spread_h, :: g.spread_w] = x
    window = {
        "strides": (1, 1, 1, 1),
        "dilations": attrs["dilations"],
        "pads": (g.pad_top, g.pad_bottom, g.pad_left, g.pad_right),
        "groups": g.groups,
    }
    return conv2d_reference([spread, turned_filter(weight, g.groups), *inputs[2:]], window)


def _infer_matmul(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    for position, port in enumerate(("x1", "x2")):
        shape = operand(inputs, position).origin_shape
        if len(shape) != 2:
            raise InferError(
                "operand is not a matrix",
                code="E14001",
                port=port,
                expected="two axes",
                got=str(shape),
                hint="use BatchMatMulV2 for stacks of matrices",
            )
    return _infer_batch_matmul(inputs, attrs)


def _infer_batch_matmul(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    geometry = MatMulGeometry.of(inputs, attrs)
    _check_bias(inputs, geometry.n)
    return [plain(geometry.out_shape, sum_type(operand(inputs).dtype))]


def matmul_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    """Matrix product in the type of the operands (int8: int32); leading axes broadcast; K = 0 gives zeros."""
    a, b = _exact(array(inputs, 0)), _exact(array(inputs, 1))
    bias = inputs[2] if len(inputs) > 2 else None
    if attrs.get("transpose_x1", attrs.get("adj_x1", False)):
        a = np.swapaxes(a, -1, -2)
    if attrs.get("transpose_x2", attrs.get("adj_x2", False)):
        b = np.swapaxes(b, -1, -2)
    with np.errstate(all="ignore"):
        product = np.matmul(a, b)
        return [_summed(product if bias is None else product + bias, array(inputs, 0))]


_PRODUCT = (Port("x1", MULTIPLIED, type_var="T"), Port("x2", MULTIPLIED, type_var="T"), optional("bias", SUMMED))
_RESULT = (Port("y", SUMMED),)

register(
    OpDef(
        "Conv2D",
        inputs=(
            Port("x", MULTIPLIED, type_var="T"),
            Port("filter", MULTIPLIED, type_var="T"),
            optional("bias", SUMMED),
        ),
        outputs=_RESULT,
        attrs=CONV_ATTRS,
        infer=infer_conv,
        reference=conv2d_reference,
        formats=FormatRule.CONV,
        cost=CostClass.CONV,
        doc="2-D convolution, y = x * filter + bias. x (N, C, H, W), filter (OC, C / groups, KH, KW), bias (OC,); "
        "pads are (top, bottom, left, right); groups = C is a depthwise convolution. int8 operands give int32 sums.",
    )
)
register(
    OpDef(
        "DepthwiseConv2D",
        inputs=(
            Port("x", MULTIPLIED, type_var="T"),
            Port("filter", MULTIPLIED, type_var="T"),
            optional("bias", SUMMED),
        ),
        outputs=_RESULT,
        attrs=(window_attr("strides"), PADS, window_attr("dilations", (1, 1, 1, 1)), DATA_FORMAT),
        infer=_infer_depthwise,
        reference=depthwise_reference,
        formats=FormatRule.CONV,
        cost=CostClass.CONV,
        doc="2-D convolution of every channel by filters of its own: x (N, C, H, W), filter (multiplier, C, KH, KW), "
        "bias (C * multiplier,). The compiler makes a grouped Conv2D of it.",
    )
)
register(
    OpDef(
        "Conv2DTransposeD",
        inputs=(Port("x", FLOATS, type_var="T"), Port("filter", FLOATS, type_var="T"), optional("bias", FLOATS)),
        outputs=_RESULT,
        attrs=(
            Attr("input_size", AttrKind.LIST_INT, minimum=0, length=4),
            window_attr("strides"),
            PADS,
            window_attr("dilations", (1, 1, 1, 1)),
            Attr("groups", AttrKind.INT, 1, minimum=1),
            DATA_FORMAT,
            Attr("output_padding", AttrKind.LIST_INT, (0, 0, 0, 0), minimum=0, length=4),
        ),
        infer=infer_conv,
        reference=conv2d_transpose_reference,
        formats=FormatRule.CONV,
        cost=CostClass.CONV,
        doc="2-D transposed convolution: what a convolution with this filter (C, OC / groups, KH, KW) takes to x, "
        "(N, C, H, W), this takes back to input_size (N, OC, OH, OW). pads are cut off (top, bottom, left, right), "
        "output_padding is added at the bottom and right. Its stride is a spread: zeros lie between the pixels of x.",
    )
)
register(
    OpDef(
        "MatMulV2",
        inputs=_PRODUCT,
        outputs=_RESULT,
        attrs=(Attr("transpose_x1", AttrKind.BOOL, False), Attr("transpose_x2", AttrKind.BOOL, False)),
        infer=_infer_matmul,
        reference=matmul_reference,
        formats=FormatRule.MATMUL,
        cost=CostClass.MATMUL,
        doc="Matrix product of two matrices, y = x1 @ x2 + bias, with x1 (M, K), x2 (K, N), bias (N,). A transpose "
        "flag says that the operand is stored with its two axes exchanged. int8 operands give int32 sums.",
    )
)
register(
    OpDef(
        "BatchMatMulV2",
        inputs=_PRODUCT,
        outputs=_RESULT,
        attrs=(Attr("adj_x1", AttrKind.BOOL, False), Attr("adj_x2", AttrKind.BOOL, False)),
        infer=_infer_batch_matmul,
        reference=matmul_reference,
        formats=FormatRule.MATMUL,
        cost=CostClass.MATMUL,
        doc="Matrix products over broadcast leading axes: x1 (…, M, K), x2 (…, K, N), bias (N,). adj_x1 and adj_x2 say "
        "that an operand's last two axes are stored exchanged.",
    )
)
