"""Rules for element-wise operators, comparisons, activations and casts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from metadef.dtype import DType
from metadef.graph import Tensor
from metadef.legalize.table import Step, Unmapped, rule
from metadef.ops.numeric import convert, numbers

_SAME = (
    "Abs Add Ceil Cos Equal Erf Exp Floor Greater HardSwish Less Log Mish Mul Neg Reciprocal Relu Round Sigmoid Sign "
    "Sin Softplus Softsign Sqrt Sub Tanh"
)
_RENAMED = {
    "And": "LogicalAnd",
    "Div": "RealDiv",
    "GreaterOrEqual": "GreaterEqual",
    "IsNaN": "IsNan",
    "LessOrEqual": "LessEqual",
    "Not": "LogicalNot",
    "Or": "LogicalOr",
    "Where": "SelectV2",
    "Xor": "LogicalXor",
}
ASCEND_NAMES = {name: name for name in _SAME.split()} | _RENAMED
"""ONNX operators whose operands and meaning carry over as they are."""

SELU_ALPHA = 1.67326319217681884765625
SELU_GAMMA = 1.05070102214813232421875


@rule(*ASCEND_NAMES)
def one_to_one(step: Step) -> Sequence[Tensor]:
    return step.out(ASCEND_NAMES[step.node.op_type], step.inputs)


@rule("Identity", "Dropout")
def pass_through(step: Step) -> Sequence[Tensor | None]:
    """Dropout does nothing at inference; its mask, if anybody asks, is all true."""
    if step.node.op_type == "Dropout":
        training = step.optional(2)
        if training is not None and (training.const is None or training.const.any()):
            raise Unmapped("training mode draws random numbers")
        if step.is_read(1):
            return [step[0], step.constant(np.ones(step.shape(), bool), "mask")]
    return [step[0]]


@rule("Sum")
def total(step: Step) -> Sequence[Tensor]:
    if len(step.inputs) == 1:
        return [step[0]]
    return step.out("Add" if len(step.inputs) == 2 else "AccumulateNV2", step.inputs)


@rule("Mean")
def mean(step: Step) -> Sequence[Tensor]:
    if len(step.inputs) == 1:
        return [step[0]]
    accumulated = step.op("AccumulateNV2", step.inputs)
    return step.out("Mul", [accumulated, step.scalar(1 / len(step.inputs), "share", step[0])])


@rule("Max", "Min")
def extreme(step: Step) -> Sequence[Tensor]:
    op_type = {"Max": "Maximum", "Min": "Minimum"}[step.node.op_type]
    if len(step.inputs) == 1:
        return [step[0]]
    first = reduce(lambda a, b: step.op(op_type, [a, b]), [step[i] for i in range(len(step.inputs) - 1)])
    return step.out(op_type, [first, step[len(step.inputs) - 1]])


@rule("Pow")
def power(step: Step) -> Sequence[Tensor]:
    exponent = step[1]
    if exponent.desc.dtype is not step.dtype():
        if not step.dtype().is_float:
            raise Unmapped("an integer base with an exponent of another type")
        exponent = cast(step, exponent, step.dtype())
    return step.out("Pow", [step[0], exponent])


def cast(step: Step, tensor: Tensor, dtype: DType) -> Tensor:
    """A tensor in another type; constants are converted on the spot."""
    if tensor.desc.dtype is dtype:
        return tensor
    if tensor.const is not None:
        value = convert(numbers(tensor.const, tensor.desc.dtype), dtype)
        return step.constant(value, f"{tensor.name.rpartition('/')[2]}_{dtype.label}", dtype)
    return step.op("Cast", [tensor], {"dst_type": dtype})


@rule("Mod")
def modulo(step: Step) -> Sequence[Tensor]:
    if step.attr("fmod", 0):
        raise Unmapped("the remainder takes the dividend's sign (fmod=1)")
    return step.out("FloorMod", step.inputs)


@rule("Clip")
def clip(step: Step) -> Sequence[Tensor]:
    bounds = [step.optional(1), step.optional(2)]
    computed = any(bound is not None and bound.const is None for bound in bounds)
    if computed or not step.dtype().is_float:
        return _clip_by_operands(step, bounds)
    low, high = step.number(1, "min"), step.number(2, "max")
    if low is None and high is None:
        return [step[0]]
    if (low, high) == (0.0, None):
        return step.out("Relu", [step[0]])
    if (low, high) == (0.0, 6.0):
        return step.out("Relu6", [step[0]])
    attrs = {"clip_value_min": -np.inf if low is None else low, "clip_value_max": np.inf if high is None else high}
    return step.out("ClipByValue", [step[0]], attrs)


def _clip_by_operands(step: Step, bounds: Sequence[Tensor | None]) -> Sequence[Tensor]:
    pairs = [(op_type, bound) for op_type, bound in zip(("Maximum", "Minimum"), bounds) if bound is not None]
    if not pairs:
        return [step[0]]
    (*first, (last_type, last)) = pairs
    value = reduce(lambda value, pair: step.op(pair[0], [value, pair[1]]), first, step[0])
    return step.out(last_type, [value, last])


@rule("LeakyRelu")
def leaky_relu(step: Step) -> Sequence[Tensor]:
    return step.out("LeakyRelu", [step[0]], {"negative_slope": step.attr("alpha", 0.01)})


@rule("PRelu")
def prelu(step: Step) -> Sequence[Tensor]:
    """Old files give one slope a channel where the specification wants it stretched to the right."""
    slope, shape = step[1], step.shape()
    count = slope.desc.origin_shape
    if len(count) == 1 and count[0] not in (1, shape[-1]) and len(shape) > 1 and count[0] == shape[1]:
        slope = step.reshape(slope, (*count, *(1,) * (len(shape) - 2)))
    return step.out("PRelu", [step[0], slope])


@rule("Elu")
def elu(step: Step) -> Sequence[Tensor]:
    return step.out("Elu", [step[0]], {"alpha": step.attr("alpha", 1.0)})


@rule("Selu")
def selu(step: Step) -> Sequence[Tensor]:
    inner = step.op("Elu", [step[0]], {"alpha": step.attr("alpha", SELU_ALPHA)})
    return step.out("Mul", [inner, step.scalar(step.attr("gamma", SELU_GAMMA), "gamma", inner)])


@rule("HardSigmoid")
def hard_sigmoid(step: Step) -> Sequence[Tensor]:
    return step.out("HardSigmoid", [step[0]], {"alpha": step.attr("alpha", 0.2), "beta": step.attr("beta", 0.5)})


@rule("Gelu")
def gelu(step: Step) -> Sequence[Tensor]:
    return step.out("Gelu", [step[0]], {"approximate": step.attr("approximate", "none")})


@rule("Swish")
def swish(step: Step) -> Sequence[Tensor]:
    return step.out("Swish", [step[0]], {"scale": step.attr("alpha", 1.0)})


@rule("ThresholdedRelu")
def thresholded_relu(step: Step) -> Sequence[Tensor]:
    above = step.op("Greater", [step[0], step.scalar(step.attr("alpha", 1.0), "alpha", step[0])])
    return step.out("SelectV2", [above, step[0], step.scalar(0.0, "zero", step[0])])


@rule("Cast", "CastLike")
def cast_rule(step: Step) -> Sequence[Tensor]:
    wanted = step.result().dtype
    if step.dtype() is wanted or step[0].is_const:
        return [cast(step, step[0], wanted)]
    return step.out("Cast", [step[0]], {"dst_type": wanted})
