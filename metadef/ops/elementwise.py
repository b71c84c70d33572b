"""Element-wise arithmetic and activations: one table row each; operands of two and more broadcast.

The instruction lists say what one 256-byte repeat executes; for AccumulateNV2 they count per operand after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from metadef.dtype import DType
from metadef.op import (
    NUMBERS,
    Attr,
    AttrKind,
    Attrs,
    FormatRule,
    OpDef,
    Port,
    PortKind,
    Reference,
    VectorWork,
    register,
)
from metadef.ops.common import (
    REAL,
    SIGNED,
    X_REAL,
    Y,
    array,
    binary_reference,
    broadcast_rule,
    same_as_first,
    unary_reference,
)
from metadef.ops.numeric import divide, erf, power, sigmoid, softplus

Function = Callable[..., np.ndarray]

SIGMOID = ("muls", "exp", "adds", "div")
TANH = ("maxs", "mins", "muls", "exp", "adds", "adds", "div")
ERF = ("maxs", "mins", "mul", *("muls", "adds") * 10, "mul", "div")


def _float(name: str, default: float) -> Attr:
    return Attr(name, AttrKind.FLOAT, default)


def _with_attrs(function: Function, *names: str) -> Reference:
    """Reference of a one-operand operator whose attributes follow the operand as plain numbers."""

    def reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [function(array(inputs), *(attrs[name] for name in names))]

    return reference


def _unary(
    op_type: str,
    reference: Reference,
    work: tuple[str, ...],
    doc: str,
    types: tuple[DType, ...] = REAL,
    attrs: tuple[Attr, ...] = (),
    fp32: bool = False,
) -> None:
    register(
        OpDef(
            op_type,
            inputs=(Port("x", types, type_var="T"),),
            outputs=(Y,),
            attrs=attrs,
            infer=same_as_first,
            reference=reference,
            inplace=((0, 0),),
            formats=FormatRule.ANY,
            work=VectorWork(work, computes_fp32=fp32),
            doc=doc,
        )
    )


def _binary(
    op_type: str,
    function: Function,
    work: tuple[str, ...],
    doc: str,
    types: tuple[DType, ...] = NUMBERS,
    fp32: bool = False,
) -> None:
    register(
        OpDef(
            op_type,
            inputs=(Port("x1", types, type_var="T"), Port("x2", types, type_var="T")),
            outputs=(Y,),
            infer=broadcast_rule(),
            reference=binary_reference(function),
            inplace=((0, 0), (1, 0)),
            formats=FormatRule.ANY,
            work=VectorWork(work, computes_fp32=fp32),
            doc=doc,
        )
    )


def _gelu(x: np.ndarray, approximate: str) -> np.ndarray:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi).astype(x.dtype) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + erf(x * np.sqrt(0.5).astype(x.dtype)))


def _accumulate(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return [reduce(np.add, [array(inputs, position) for position in range(len(inputs))])]


def _prelu(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.where(x < 0, x * weight, x)


def _hard_sigmoid(x: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    return np.clip(alpha * x + beta, 0, 1)


_binary("Add", np.add, ("add",), "x1 + x2; integers wrap.")
_binary("Sub", np.subtract, ("sub",), "x1 - x2; integers wrap.")
_binary("Mul", np.multiply, ("mul",), "x1 * x2; integers wrap.")
_binary("RealDiv", divide, ("div",), "x1 / x2; integers truncate toward zero and a zero divisor gives zero.")
_binary("Maximum", np.maximum, ("max",), "The larger operand; a NaN wins.")
_binary("Minimum", np.minimum, ("min",), "The smaller operand; a NaN wins.")
_binary("Pow", power, ("abs", "ln", "mul", "exp", "compare_scalar", "select"), "x1 to the power x2.", fp32=True)
_binary(
    "FloorMod",
    np.mod,
    ("div", "cast", "mul", "sub"),
    "Remainder with the sign of the divisor.",
    types=tuple(dtype for dtype in NUMBERS if dtype.is_integer),
)
register(
    OpDef(
        "PRelu",
        inputs=(X_REAL, Port("weight", REAL, type_var="T")),
        outputs=(Y,),
        infer=broadcast_rule(),
        reference=binary_reference(_prelu),
        inplace=((0, 0),),
        formats=FormatRule.ANY,
        work=VectorWork(("mul", "compare_scalar", "select")),
        doc="x where x >= 0, else x * weight; weight broadcasts to x.",
    )
)
register(
    OpDef(
        "AccumulateNV2",
        inputs=(Port("x", NUMBERS, PortKind.DYNAMIC, "T"),),
        outputs=(Y,),
        infer=broadcast_rule(),
        reference=_accumulate,
        inplace=((0, 0),),
        formats=FormatRule.ANY,
        work=VectorWork(("add",)),
        doc="Sum of any number of operands, added from left to right.",
    )
)

_unary("Relu", unary_reference(lambda x: np.maximum(x, 0)), ("relu",), "max(x, 0); NaN stays NaN.", SIGNED)
_unary("Relu6", unary_reference(lambda x: np.minimum(np.maximum(x, 0), 6)), ("maxs", "mins"), "min(max(x, 0), 6).")
_unary(
    "LeakyRelu",
    _with_attrs(lambda x, slope: np.where(x < 0, x * slope, x).astype(x.dtype), "negative_slope"),
    ("muls", "compare_scalar", "select"),
    "x where x >= 0, else x * negative_slope.",
    attrs=(_float("negative_slope", 0.0),),
)
_unary(
    "ClipByValue",
    _with_attrs(lambda x, low, high: np.minimum(np.maximum(x, low), high), "clip_value_min", "clip_value_max"),
    ("maxs", "mins"),
    "min(max(x, clip_value_min), clip_value_max): the upper bound wins; NaN stays NaN.",
    attrs=(_float("clip_value_min", -np.inf), _float("clip_value_max", np.inf)),
)
_unary(
    "Elu",
    _with_attrs(lambda x, alpha: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x).astype(x.dtype), "alpha"),
    ("mins", "exp", "adds", "muls", "maxs", "add"),
    "x where x >= 0, else alpha * (exp(x) - 1).",
    attrs=(_float("alpha", 1.0),),
    fp32=True,
)
_unary(
    "HardSigmoid",
    _with_attrs(_hard_sigmoid, "alpha", "beta"),
    ("muls", "adds", "maxs", "mins"),
    "min(max(alpha * x + beta, 0), 1).",
    attrs=(_float("alpha", 1 / 6), _float("beta", 0.5)),
)
_unary(
    "HardSwish",
    unary_reference(lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5)),
    ("adds", "maxs", "mins", "muls", "mul"),
    "x * min(max(x + 3, 0), 6) / 6.",
)
_unary(
    "Gelu",
    _with_attrs(_gelu, "approximate"),
    ("mul", "muls", "adds", "mul", "exp", "adds", "div"),
    "x * P(X <= x) of the normal distribution, exact or by tanh. The instructions are those of the logistic form.",
    attrs=(Attr("approximate", AttrKind.STRING, "none", choices=("none", "tanh")),),
    fp32=True,
)
_unary("Sigmoid", unary_reference(sigmoid), SIGMOID, "1 / (1 + exp(-x)).", fp32=True)
_unary("Tanh", unary_reference(np.tanh), TANH, "Hyperbolic tangent.", fp32=True)
_unary(
    "Swish",
    _with_attrs(lambda x, scale: x * sigmoid(x * np.asarray(scale, x.dtype)), "scale"),
    (*SIGMOID, "mul"),
    "x * sigmoid(scale * x).",
    attrs=(_float("scale", 1.0),),
    fp32=True,
)
_unary(
    "Mish",
    unary_reference(lambda x: x * np.tanh(softplus(x))),
    ("abs", "muls", "exp", "adds", "ln", *("muls", "adds") * 12, "maxs", "add", *TANH, "mul"),
    "x * tanh(log(1 + exp(x))). The instructions are those of softplus, refined by a polynomial, and of tanh.",
    fp32=True,
)
_unary(
    "Softplus",
    unary_reference(softplus),
    ("abs", "muls", "exp", "adds", "ln", "maxs", "add"),
    "log(1 + exp(x)).",
    fp32=True,
)
_unary("Softsign", unary_reference(lambda x: x / (1 + np.abs(x))), ("abs", "adds", "div"), "x / (1 + |x|).")
_unary("Erf", unary_reference(erf), ERF, "Error function.", fp32=True)
_unary("Exp", unary_reference(np.exp), ("exp",), "e to the power x.", fp32=True)
_unary("Log", unary_reference(np.log), ("ln",), "Natural logarithm.", fp32=True)
_unary("Sqrt", unary_reference(np.sqrt), ("sqrt",), "Square root.", fp32=True)
_unary("Rsqrt", unary_reference(lambda x: 1 / np.sqrt(x)), ("sqrt", "dup", "div"), "1 / sqrt(x).", fp32=True)
_unary("Reciprocal", unary_reference(lambda x: 1 / x), ("dup", "div"), "1 / x.", fp32=True)
_unary("Neg", unary_reference(np.negative), ("muls",), "-x; integers wrap.", SIGNED)
_unary("Abs", unary_reference(np.abs), ("abs",), "Absolute value.", NUMBERS)
_unary(
    "Sign",
    unary_reference(np.sign),
    ("compare_scalar", "select", "compare_scalar", "select"),
    "-1, 0 or 1; NaN stays NaN.",
    SIGNED,
)
_unary("Floor", unary_reference(np.floor), ("cast",), "Largest whole number not above x.")
_unary("Ceil", unary_reference(np.ceil), ("cast",), "Smallest whole number not below x.")
_unary("Round", unary_reference(np.rint), ("cast",), "Nearest whole number; halves go to the even one.")
_TRIGONOMETRY = ("muls", "cast", "cast", "axpy", "mul", *("muls", "adds") * 4, "mul", "mul")
_unary("Sin", unary_reference(np.sin), _TRIGONOMETRY, "Sine of x in radians.", fp32=True)
_unary("Cos", unary_reference(np.cos), _TRIGONOMETRY, "Cosine of x in radians.", fp32=True)
