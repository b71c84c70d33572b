"""Normalisation and softmax. Results besides y (means, variances) are not declared: inference never needs them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metadef.error import InferError
from metadef.format import TensorDesc
from metadef.op import FLOATS, Attr, AttrKind, Attrs, CostClass, FormatRule, OpDef, Port, VectorWork, register
from metadef.ops.common import array, like, operand, optional
from metadef.ops.geometry import Descs, normal_axes, normal_axis


def _infer_batch_norm(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    if len(x.origin_shape) < 2:
        raise InferError("x has no channel axis", code="E14001", expected="at least two axes", got=str(x.origin_shape))
    _check_parameters(inputs, (x.origin_shape[1],), ("scale", "offset", "mean", "variance"))
    return [like(x)]


def _check_parameters(inputs: Descs, shape: tuple[int, ...], names: Sequence[str]) -> None:
    for position, name in enumerate(names, 1):
        desc = inputs[position] if position < len(inputs) else None
        if desc is not None and desc.origin_shape != shape:
            raise InferError(
                "parameter does not fit x", code="E14001", port=name, expected=str(shape), got=str(desc.origin_shape)
            )


def _per_channel(value: np.ndarray, rank: int) -> np.ndarray:
    return value.reshape(-1, *(1,) * (rank - 2))


def _batch_norm_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    x = array(inputs)
    scale, offset, mean, variance = (_per_channel(array(inputs, position), x.ndim) for position in range(1, 5))
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + np.asarray(attrs["epsilon"], variance.dtype))
        return [(x - mean) * factor + offset]


def _normalised(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    """(x - mean) / sqrt(variance + epsilon), with the population's variance."""
    centred = x - x.mean(axis=axes, keepdims=True, dtype=x.dtype)
    variance = np.square(centred).mean(axis=axes, keepdims=True, dtype=x.dtype)
    with np.errstate(all="ignore"):
        return centred / np.sqrt(variance + np.asarray(epsilon, x.dtype))


def _infer_layer_norm(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    axis = normal_axis(attrs["begin_norm_axis"], len(x.origin_shape), "begin_norm_axis")
    _check_parameters(inputs, x.origin_shape[axis:], ("gamma", "beta"))
    return [like(x)]


def _layer_norm_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    x, gamma = array(inputs), array(inputs, 1)
    beta = inputs[2] if len(inputs) > 2 else None
    axis = normal_axis(attrs["begin_norm_axis"], x.ndim)
    scaled = _normalised(x, tuple(range(axis, x.ndim)), attrs["epsilon"]) * gamma
    return [scaled if beta is None else scaled + beta]


def _rms_norm_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    x, gamma = array(inputs), array(inputs, 1)
    axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
    mean = np.square(x).mean(axis=axes, keepdims=True, dtype=x.dtype)
    with np.errstate(all="ignore"):
        return [x / np.sqrt(mean + np.asarray(attrs["epsilon"], x.dtype)) * gamma]


def _infer_rms_norm(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x, gamma = operand(inputs), operand(inputs, 1)
    _check_parameters(inputs, x.origin_shape[len(x.origin_shape) - len(gamma.origin_shape) :], ("gamma",))
    return [like(x)]


def _infer_instance_norm(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    if len(x.origin_shape) < 3:
        raise InferError(
            "x has no plane to normalise", code="E14001", expected="at least three axes", got=str(x.origin_shape)
        )
    _check_parameters(inputs, (x.origin_shape[1],), ("gamma", "beta"))
    return [like(x)]


def _instance_norm_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    x = array(inputs)
    gamma, beta = (_per_channel(array(inputs, position), x.ndim) for position in (1, 2))
    return [_normalised(x, tuple(range(2, x.ndim)), attrs["epsilon"]) * gamma + beta]


def _infer_softmax(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    normal_axes(attrs["axes"], len(x.origin_shape))
    return [like(x)]


def _softmax_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    x = array(inputs)
    if x.size == 0:
        return [x.copy()]
    axes = tuple(attrs["axes"])
    with np.errstate(all="ignore"):
        shifted = np.exp(x - x.max(axis=axes, keepdims=True))
        return [shifted / shifted.sum(axis=axes, keepdims=True, dtype=x.dtype)]


def _log_softmax_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    x = array(inputs)
    if x.size == 0:
        return [x.copy()]
    axes = tuple(attrs["axes"])
    with np.errstate(all="ignore"):
        shifted = x - x.max(axis=axes, keepdims=True)
        return [shifted - np.log(np.exp(shifted).sum(axis=axes, keepdims=True, dtype=x.dtype))]


_X = Port("x", FLOATS, type_var="T")
_Y = Port("y", FLOATS, type_var="T")
_AXES = Attr("axes", AttrKind.LIST_INT, (-1,))


def _parameter(name: str) -> Port:
    return Port(name, FLOATS, type_var="P")


def _epsilon(default: float) -> Attr:
    return Attr("epsilon", AttrKind.FLOAT, default, minimum=0.0)


register(
    OpDef(
        "BNInfer",
        inputs=(_X, _parameter("scale"), _parameter("offset"), _parameter("mean"), _parameter("variance")),
        outputs=(_Y,),
        attrs=(_epsilon(1e-5),),
        infer=_infer_batch_norm,
        reference=_batch_norm_reference,
        inplace=((0, 0),),
        formats=FormatRule.CHANNEL,
        cost=CostClass.ELEMENTWISE,
        work=VectorWork(("mul", "add"), per_row=("adds", "sqrt", "div", "mul", "sub"), computes_fp32=True),
        doc="Normalises axis 1 by stored statistics: (x - mean) / sqrt(variance + epsilon) * scale + offset.",
    )
)
register(
    OpDef(
        "LayerNorm",
        inputs=(_X, _parameter("gamma"), optional("beta", FLOATS, "P")),
        outputs=(_Y,),
        attrs=(Attr("begin_norm_axis", AttrKind.INT, -1), _epsilon(1e-5)),
        infer=_infer_layer_norm,
        reference=_layer_norm_reference,
        cost=CostClass.NORM,
        work=VectorWork(
            ("reduce_sum", "sub", "mul", "reduce_sum", "mul", "mul", "add"),
            per_row=("muls", "muls", "adds", "sqrt", "div"),
            computes_fp32=True,
        ),
        doc="Normalises over all axes from begin_norm_axis on, then scales by gamma and adds beta (of those axes).",
    )
)
register(
    OpDef(
        "RmsNorm",
        inputs=(_X, _parameter("gamma")),
        outputs=(_Y,),
        attrs=(_epsilon(1e-6),),
        infer=_infer_rms_norm,
        reference=_rms_norm_reference,
        cost=CostClass.NORM,
        work=VectorWork(
            ("mul", "add", "add", "reduce_sum", "muls", "cast", "cast", "mul", "copy", "copy"),
            per_row=("muls", "adds", "sqrt", "div"),
            computes_fp32=True,
        ),
        doc="x / sqrt(mean(x^2) + epsilon) * gamma over the trailing axes that gamma has.",
    )
)
register(
    OpDef(
        "InstanceNorm",
        inputs=(_X, _parameter("gamma"), _parameter("beta")),
        outputs=(_Y,),
        attrs=(_epsilon(1e-6),),
        infer=_infer_instance_norm,
        reference=_instance_norm_reference,
        cost=CostClass.NORM,
        work=VectorWork(
            ("reduce_sum", "sub", "mul", "reduce_sum", "muls", "adds"),
            per_row=("muls", "muls", "adds", "sqrt", "div"),
            computes_fp32=True,
        ),
        doc="Normalises every plane (all axes from 2 on), then scales by gamma and adds beta, one of each a channel.",
    )
)
register(
    OpDef(
        "SoftmaxV2",
        inputs=(_X,),
        outputs=(_Y,),
        attrs=(_AXES,),
        infer=_infer_softmax,
        reference=_softmax_reference,
        cost=CostClass.SOFTMAX,
        work=VectorWork(
            ("reduce_max", "copy", "sub", "exp", "copy", "reduce_sum", "div"), per_row=("div",), computes_fp32=True
        ),
        doc="exp(x - max) / sum(exp(x - max)) over axes.",
    )
)
register(
    OpDef(
        "LogSoftmaxV2",
        inputs=(_X,),
        outputs=(_Y,),
        attrs=(_AXES,),
        infer=_infer_softmax,
        reference=_log_softmax_reference,
        cost=CostClass.SOFTMAX,
        work=VectorWork(("reduce_max", "adds", "exp", "reduce_sum", "adds"), per_row=("ln",), computes_fp32=True),
        doc="Logarithm of the softmax over axes.",
    )
)
