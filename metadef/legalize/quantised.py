"""Rules of quantised arithmetic: int8 products that the cube sums in int32, and what turns numbers into int8 and back.

A product of x - zero and w - zero is summed as a product of x and w whose bias takes the zero point of x along; padding
holds that zero point. uint8 operands become int8 by 128 less, their zero points too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metadef.dtype import DType
from metadef.graph import Tensor
from metadef.legalize.arithmetic import cast
from metadef.legalize.networks import window_attrs
from metadef.legalize.table import Step, Unmapped, rule
from metadef.ops.quantise import packed_scale

_SHIFT = 128
_LIMITS = {
    DType.INT8: (-128, 127),
    DType.UINT8: (0, 255),
    DType.INT16: (-(2**15), 2**15 - 1),
    DType.UINT16: (0, 2**16 - 1),
}


# -- numbers to integers and back -------------------------------------------------------------------------------------


def _per_axis(step: Step, parameter: Tensor) -> Tensor:
    """A scale or zero point, one for all or one an index of ``axis``, shaped to broadcast with x."""
    if step.attr("block_size", 0):
        raise Unmapped("blocked quantisation")
    count = parameter.desc.elements
    if count == 1:
        return step.reshape(parameter, ())
    axis = step.axis(1)
    return step.reshape(parameter, tuple(count if i == axis else 1 for i in range(step.rank())))


def _real(step: Step, value: Tensor, scale: Tensor, zero: Tensor | None, dtype: DType) -> tuple[Tensor, Tensor]:
    """The factors of what a quantised tensor stands for: value less its zero point in ``dtype``, and the scale."""
    wide = cast(step, value, dtype)
    if zero is not None:
        wide = step.op("Sub", [wide, cast(step, zero, dtype)])
    return wide, scale


def _rounded(step: Step, value: Tensor, scale: Tensor, zero: Tensor | None, wanted: DType) -> Tensor:
    """value / scale as whole numbers (halves to even) plus the zero point, clipped to the type, still floating."""
    if wanted not in _LIMITS:
        raise Unmapped(f"quantisation to {wanted.label}")
    low, high = _LIMITS[wanted]
    whole = step.op("Round", [step.op("RealDiv", [value, scale])])
    if zero is not None:
        whole = step.op("Add", [whole, cast(step, zero, whole.desc.dtype)])
    return step.op("ClipByValue", [whole], {"clip_value_min": float(low), "clip_value_max": float(high)})


@rule("DequantizeLinear")
def dequantize(step: Step) -> Sequence[Tensor]:
    """(x - zero point) * scale."""
    zero = None if step.optional(2) is None else _per_axis(step, step[2])
    return step.out("Mul", _real(step, step[0], _per_axis(step, step[1]), zero, step.result().dtype))


@rule("QuantizeLinear")
def quantize(step: Step) -> Sequence[Tensor]:
    """x / scale to the nearest whole number (halves to even), plus the zero point, clipped to the type."""
    wanted = step.result().dtype
    zero = None if step.optional(2) is None else _per_axis(step, step[2])
    clipped = _rounded(step, step[0], _per_axis(step, step[1]), zero, wanted)
    return step.out("Cast", [clipped], {"dst_type": wanted})


@rule("DynamicQuantizeLinear")
def dynamic_quantize(step: Step) -> Sequence[Tensor]:
    """Scale and zero point from the range of x and zero; a range of nothing has scale 1."""
    x, axes = step[0], tuple(range(step.rank()))
    nought = step.scalar(0, "zero", x)
    low = step.op("Minimum", [step.op("ReduceMinD", [x], {"axes": axes, "keep_dims": False}), nought])
    high = step.op("Maximum", [step.op("ReduceMaxD", [x], {"axes": axes, "keep_dims": False}), nought])
    span = step.op("RealDiv", [step.op("Sub", [high, low]), step.scalar(255, "steps", x)])
    flat = step.op("Equal", [span, nought])
    scale = step.op("SelectV2", [flat, step.scalar(1, "one", x), span])
    scale = step.reshape(scale, ())
    below = step.op("RealDiv", [step.op("Sub", [nought, step.reshape(low, ())]), scale])
    clipped = step.op("ClipByValue", [step.op("Round", [below])], {"clip_value_min": 0.0, "clip_value_max": 255.0})
    zero = step.reshape(step.op("Cast", [clipped], {"dst_type": DType.UINT8}), ())
    (y,) = step.out("Cast", [_rounded(step, x, scale, zero, DType.UINT8)], {"dst_type": DType.UINT8})
    return [y, scale, zero]


# -- products ---------------------------------------------------------------------------------------------------------


def _whole(step: Step, position: int, what: str) -> int:
    """A constant zero point, one for all; 0 if absent."""
    if step.optional(position) is None:
        return 0
    values = np.unique(step.value(position, what))
    if values.size != 1:
        raise Unmapped(f"{what} differs from row to row")
    return int(values[0])


def _signed(step: Step, x: Tensor) -> tuple[Tensor, int]:
    """The operand as int8, and what was taken from its values."""
    if x.desc.dtype is not DType.UINT8:
        return x, 0
    bits = cast(step, x, DType.INT8)
    return step.op("Add", [bits, step.constant(np.array([-_SHIFT], np.int8), "shift")]), _SHIFT


def _weights(step: Step, position: int, zero_position: int, axis: int) -> np.ndarray:
    """Constant weights less their zero point (one, or one an index of ``axis``), as int8."""
    value = step.value(position, "the second factor").astype(np.int32)
    if step.optional(zero_position) is not None:
        zero = step.value(zero_position, "its zero point").astype(np.int32)
        if zero.ndim > 1:
            raise Unmapped("a zero point for every matrix")
        shape = tuple(zero.size if i == axis % value.ndim else 1 for i in range(value.ndim))
        value = value - zero.reshape(shape if zero.size > 1 else (1,) * value.ndim)
    if value.size and (value.min() < -_SHIFT or value.max() >= _SHIFT):
        raise Unmapped("weights less their zero point need more than eight bits")
    return value.astype(np.int8)


def _convolved(step: Step, zero: int, weights: np.ndarray, bias: np.ndarray | None) -> tuple[str, list[Tensor], dict]:
    """Type, operands and attributes of the convolution that sums (x - zero) * weights + bias."""
    if weights.ndim != 4:
        raise Unmapped(f"a quantised convolution over {weights.ndim - 2} spatial axes")
    step.check_kernel(weights.shape[2:])
    attrs = window_attrs(step, weights.shape[2:], step.shape()[2:])
    x, shift = _signed(step, step.images(step[0]))
    zero -= shift
    pads = attrs["pads"]
    if zero and any(pads):
        border = {"paddings": (0, 0, 0, 0, *pads), "mode": "constant", "constant_values": float(zero)}
        x, attrs = step.op("PadD", [x], border), {**attrs, "pads": (0, 0, 0, 0)}
    total = -zero * weights.sum((1, 2, 3), dtype=np.int32)
    if bias is not None:
        total = total + bias.astype(np.int32)
    filters = step.images(step.constant(weights, "int8"))
    operands = [step.images(x), filters]
    if total.any():
        operands.append(step.constant(total, "bias"))
    return "Conv2D", operands, {**attrs, "groups": step.attr("group", 1)}


@rule("ConvInteger")
def conv_integer(step: Step) -> Sequence[Tensor]:
    """Sums of (x - zero point) * (w - zero point)."""
    weights = _weights(step, 1, 3, 0)
    return step.out(*_convolved(step, _whole(step, 2, "the zero point of x"), weights, None))


@rule("QLinearConv")
def qlinear_conv(step: Step) -> Sequence[Tensor]:
    """The sums of ConvInteger, quantised anew by x_scale * w_scale / y_scale."""
    weights = _weights(step, 3, 5, 0)
    bias = None if step.optional(8) is None else step.value(8, "the bias")
    scale = _ratio(step, (1, 4), 6)
    sums = step.op(*_convolved(step, _whole(step, 2, "the zero point of x"), weights, bias))
    return _requantised(step, sums, scale.reshape(-1, 1, 1) if scale.size > 1 else scale.reshape(1), 7)


def _ratio(step: Step, factors: tuple[int, int], divisor: int) -> np.ndarray:
    """Product of two constant scales over a third, in float32 as every runtime computes it."""
    one, other, below = (step.value(position, "a scale").astype(np.float32) for position in (*factors, divisor))
    if one.size != 1 or below.size != 1:
        raise Unmapped("a scale for every row")
    return np.asarray(one.reshape(()) * other / below.reshape(()), np.float32)


def _requantised(step: Step, sums: Tensor, scale: np.ndarray, zero: int) -> Sequence[Tensor]:
    wanted = step.result().dtype
    if wanted not in (DType.INT8, DType.UINT8):
        raise Unmapped(f"quantisation to {wanted.label}")
    packed = step.constant(packed_scale(scale), "scale", DType.UINT64)
    return step.out("AscendRequant", [sums, packed], {"offset": _whole(step, zero, "the zero point"), "dtype": wanted})


@rule("MatMulInteger")
def matmul_integer(step: Step) -> Sequence[Tensor]:
    """Sums of (a - zero point) * (b - zero point)."""
    return [_multiplied(step, 1, 2, 3)]


@rule("QLinearMatMul")
def qlinear_matmul(step: Step) -> Sequence[Tensor]:
    """The sums of MatMulInteger, quantised anew by a_scale * b_scale / y_scale."""
    scale = _ratio(step, (1, 4), 6)
    if scale.ndim > 1:
        raise Unmapped("a scale for every matrix")
    return _requantised(step, _multiplied(step, 3, 2, 5), scale.reshape(-1), 7)


def _multiplied(step: Step, second: int, zero_first: int, zero_second: int) -> Tensor:
    """int32 sums of (a - zero) * (b - zero); the zero point of a may be computed if b is constant."""
    if min(step.rank(), step.rank(second)) < 2:
        raise Unmapped("a product with a vector")
    kind = "MatMulV2" if step.rank() == step.rank(second) == 2 else "BatchMatMulV2"
    a, shift = _signed(step, step[0])
    zero = step.optional(zero_first)
    known = zero is None or zero.const is not None
    if step[second].const is None:
        b, taken = _signed(step, step[second])
        zeros = [
            _whole(step, zero_first, "the zero point of a") - shift,
            _whole(step, zero_second, "that of b") - taken,
        ]
        if any(zeros):
            raise Unmapped("a zero point beside a factor that is computed")
        return step.op(kind, [a, b])
    weights = _weights(step, second, zero_second, -1)
    b, sums = step.constant(weights, "int8"), weights.sum(-2, keepdims=True, dtype=np.int32)
    if known:
        bias = (shift - _whole(step, zero_first, "the zero point of a")) * sums
        if not bias.any():
            return step.op(kind, [a, b])
        if bias.ndim == 2:
            return step.op(kind, [a, b, step.constant(bias.reshape(-1), "bias")])
        return step.op("Add", [step.op(kind, [a, b]), step.constant(bias, "bias")])
    assert zero is not None
    if zero.desc.elements != 1:
        raise Unmapped("a zero point for every row")
    moved = step.op("Sub", [cast(step, zero, DType.INT32), step.constant(np.array([shift], np.int32), "shift_of_zero")])
    correction = step.op("Mul", [moved, step.constant(sums, "sums")])
    return step.op("Sub", [step.op(kind, [a, b]), correction])
