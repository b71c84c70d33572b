"""Reductions over the axes named by an attribute (no axes means all of them), and running sums along one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from metadef.dtype import DType
from metadef.error import InferError
from metadef.format import Shape, TensorDesc
from metadef.op import NUMBERS, Attr, AttrKind, Attrs, CostClass, OpDef, Port, VectorWork, register
from metadef.ops.common import REAL, Y, array, like, operand
from metadef.ops.geometry import Descs, normal_axes, normal_axis

KEEP_DIMS = Attr("keep_dims", AttrKind.BOOL, False)


def reduced_axes(rank: int, attrs: Attrs) -> tuple[int, ...]:
    """Sorted non-negative axes that a reduction removes; an empty attribute means every axis."""
    return normal_axes(attrs["axes"], rank) or tuple(range(rank))


def _reduced(shape: Shape, axes: tuple[int, ...], keep: bool) -> Shape:
    if keep:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _infer_reduce(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    shape = x.origin_shape
    return [like(x, _reduced(shape, reduced_axes(len(shape), attrs), attrs["keep_dims"]))]


def _reduction(
    op_type: str,
    function: Callable[..., np.ndarray],
    doc: str,
    per_repeat: tuple[str, ...],
    per_row: tuple[str, ...] = (),
    types: tuple[DType, ...] = NUMBERS,
) -> None:
    def reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
        x = array(inputs)
        with np.errstate(all="ignore"):
            result = function(x, axis=reduced_axes(x.ndim, attrs), keepdims=attrs["keep_dims"])
        return [np.asarray(result, dtype=x.dtype)]

    register(
        OpDef(
            op_type,
            (Port("x", types, type_var="T"),),
            (Y,),
            _infer_reduce,
            reference,
            doc,
            (Attr("axes", AttrKind.LIST_INT, ()), KEEP_DIMS),
            cost=CostClass.REDUCE,
            work=VectorWork(per_repeat, per_row, computes_fp32=True),
        )
    )


def _sum(x: np.ndarray, **where: object) -> np.ndarray:
    return np.sum(x, dtype=x.dtype, **where)  # type: ignore[call-overload]


def _mean(x: np.ndarray, **where: object) -> np.ndarray:
    if not x.size:  # NumPy would warn; integers have no NaN
        return _sum(x, **where) * (np.nan if x.dtype.kind == "f" else 1)
    return np.mean(x, dtype=x.dtype, **where)  # type: ignore[call-overload]


def _prod(x: np.ndarray, **where: object) -> np.ndarray:
    return np.prod(x, dtype=x.dtype, **where)  # type: ignore[call-overload]


def _max(x: np.ndarray, **where: object) -> np.ndarray:
    low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return np.max(x, initial=low, **where)  # type: ignore[call-overload]


def _min(x: np.ndarray, **where: object) -> np.ndarray:
    high = np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max
    return np.min(x, initial=high, **where)  # type: ignore[call-overload]


def _infer_arg(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    axis = normal_axis(attrs["dimension"], len(x.origin_shape))
    if x.origin_shape[axis] == 0:
        text, got = "no element is the largest or smallest of none", str(list(x.origin_shape))
        raise InferError(text, code="E14001", port="x", expected=f"elements along axis {axis}", got=got)
    return [like(x, _reduced(x.origin_shape, (axis,), attrs["keep_dims"]), attrs["dtype"])]


def _arg(op_type: str, function: Callable[..., np.ndarray], doc: str, per_repeat: tuple[str, ...]) -> None:
    def reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
        found = function(array(inputs), axis=attrs["dimension"], keepdims=attrs["keep_dims"])
        return [np.asarray(found, dtype=attrs["dtype"].numpy)]

    register(
        OpDef(
            op_type,
            (Port("x", NUMBERS),),
            (Port("y", (DType.INT32, DType.INT64)),),
            _infer_arg,
            reference,
            doc,
            (
                Attr("dimension", AttrKind.INT),
                KEEP_DIMS,
                Attr("dtype", AttrKind.TYPE, DType.INT32, choices=(DType.INT32, DType.INT64)),
            ),
            cost=CostClass.REDUCE,
            work=VectorWork(per_repeat),
        )
    )


_reduction("ReduceSumD", _sum, "Sum over axes; of nothing 0.", ("reduce_sum",))
_reduction("ReduceMeanD", _mean, "Mean over axes.", ("reduce_sum",), ("muls",), REAL)
_reduction("ReduceMaxD", _max, "Largest element over axes; a NaN wins; of nothing minus infinity.", ("reduce_max",))
_reduction("ReduceMinD", _min, "Smallest element over axes; a NaN wins; of nothing plus infinity.", ("reduce_min",))
_reduction("ReduceProdD", _prod, "Product over axes; of nothing 1.", ("mul",))
_arg("ArgMaxD", np.argmax, "Index of the first largest element along dimension.", ("reduce_max",))
_arg("ArgMinD", np.argmin, "Index of the first smallest element along dimension.", ("reduce_min",))


def _infer_cumsum(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    normal_axis(attrs["axis"], len(x.origin_shape))
    return [like(x)]


def _cumsum_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    """One element after the other in the type of x; of an exclusive sum the last element is never added."""
    x = np.moveaxis(array(inputs), attrs["axis"], -1)
    x = x[..., ::-1] if attrs["reverse"] else x
    with np.errstate(all="ignore"):
        if attrs["exclusive"]:
            result = np.zeros_like(x)
            np.cumsum(x[..., :-1], axis=-1, dtype=x.dtype, out=result[..., 1:])
        else:
            result = np.cumsum(x, axis=-1, dtype=x.dtype)
    result = result[..., ::-1] if attrs["reverse"] else result
    return [np.ascontiguousarray(np.moveaxis(result, -1, attrs["axis"]))]


register(
    OpDef(
        "Cumsum",
        (Port("x", NUMBERS, type_var="T"),),
        (Y,),
        _infer_cumsum,
        _cumsum_reference,
        "Sums of all elements up to each one along axis; exclusive leaves the element itself out, reverse starts last.",
        (
            Attr("axis", AttrKind.INT),
            Attr("exclusive", AttrKind.BOOL, False),
            Attr("reverse", AttrKind.BOOL, False),
        ),
        cost=CostClass.REDUCE,
        work=VectorWork(("add",), computes_fp32=True),
    )
)
