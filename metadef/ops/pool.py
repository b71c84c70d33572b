"""Pooling over H and W. A window never counts what lies past the declared padding, as ONNX and the chip agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from metadef.error import InferError
from metadef.format import Format, TensorDesc
from metadef.op import FLOATS, Attr, AttrKind, Attrs, CostClass, FormatRule, OpDef, Port, VectorWork, register
from metadef.ops.common import DATA_FORMAT, PADS, array, arrays_as_descs, check_window, operand, plain, window_attr
from metadef.ops.geometry import Descs, PoolGeometry


def _infer_pool(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    if "ksize" in attrs:
        check_window(attrs, "ksize", "strides")
    g = PoolGeometry.of(inputs, attrs)
    if max(g.pad_top, g.pad_bottom) >= g.kh or max(g.pad_left, g.pad_right) >= g.kw:
        raise InferError(
            "padding is not smaller than the window",
            code="E14001",
            expected="pads < ksize",
            got=f"{attrs['pads']}, {attrs['ksize']}",
        )
    return [plain(g.out_shape, operand(inputs).dtype, Format.NCHW)]


def _fold(x: np.ndarray, g: PoolGeometry, fill: float, combine: Callable[..., np.ndarray]) -> np.ndarray:
    """Combine the taps of every window, one tap (kh, kw) at a time, over an image padded with ``fill``."""
    below, right = g.pad_bottom + g.overhang_h, g.pad_right + g.overhang_w
    padded = np.pad(x, ((0, 0), (0, 0), (g.pad_top, below), (g.pad_left, right)), constant_values=fill)
    result: np.ndarray | None = None
    for row in range(g.kh):
        for column in range(g.kw):
            rows = slice(row, row + (g.oh - 1) * g.stride_h + 1, g.stride_h)
            columns = slice(column, column + (g.ow - 1) * g.stride_w + 1, g.stride_w)
            tap = padded[:, :, rows, columns]
            result = tap.copy() if result is None else combine(result, tap, out=result)
    assert result is not None
    return result


def max_pool_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    """Largest element of each window; padding is minus infinity; a NaN wins."""
    x = array(inputs)
    g = PoolGeometry.of(arrays_as_descs(inputs), attrs)
    if 0 in g.out_shape:
        return [np.empty(g.out_shape, x.dtype)]
    return [_fold(x, g, -np.inf, np.maximum)]


def avg_pool_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    """Mean of each window: ``exclusive`` divides by its real elements, else the declared padding counts as zeros."""
    x = array(inputs)
    g = PoolGeometry.of(arrays_as_descs(inputs), attrs)
    if 0 in g.out_shape:
        return [np.empty(g.out_shape, x.dtype)]
    if g.is_global:
        return [x.mean(axis=(2, 3), keepdims=True, dtype=x.dtype)]
    total = _fold(x, g, 0, np.add)
    return [total / g.window_elements(not attrs.get("exclusive", True)).astype(x.dtype)]


_WINDOW = (
    window_attr("ksize"),
    window_attr("strides"),
    PADS,
    Attr("ceil_mode", AttrKind.BOOL, False),
    Attr("global_pooling", AttrKind.BOOL, False),
    DATA_FORMAT,
)
_INPUTS = (Port("x", FLOATS, type_var="T"),)
_OUTPUTS = (Port("y", FLOATS, type_var="T"),)

register(
    OpDef(
        "MaxPoolV3",
        inputs=_INPUTS,
        outputs=_OUTPUTS,
        attrs=_WINDOW,
        infer=_infer_pool,
        reference=max_pool_reference,
        formats=FormatRule.CHANNEL,
        cost=CostClass.POOL,
        work=VectorWork(per_repeat=("max",)),
        doc="Largest element of each ksize window over H and W; pads are (top, bottom, left, right), filled with minus "
        "infinity. The work is counted once per tap of the window.",
    )
)
register(
    OpDef(
        "AvgPoolV2",
        inputs=_INPUTS,
        outputs=_OUTPUTS,
        attrs=(*_WINDOW, Attr("exclusive", AttrKind.BOOL, True)),
        infer=_infer_pool,
        reference=avg_pool_reference,
        formats=FormatRule.CHANNEL,
        cost=CostClass.POOL,
        work=VectorWork(per_repeat=("add",), per_row=("muls",), computes_fp32=True),
        doc="Mean of each ksize window over H and W; exclusive leaves padding out of the divisor. The work is counted "
        "once per tap of the window, the scaling once per window.",
    )
)
register(
    OpDef(
        "GlobalAveragePool",
        inputs=_INPUTS,
        outputs=_OUTPUTS,
        infer=_infer_pool,
        reference=avg_pool_reference,
        formats=FormatRule.CHANNEL,
        cost=CostClass.POOL,
        work=VectorWork(per_repeat=("add",), per_row=("muls",), computes_fp32=True),
        doc="Mean over H and W: (N, C, H, W) -> (N, C, 1, 1).",
    )
)
