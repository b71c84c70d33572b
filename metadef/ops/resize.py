"""Bilinear interpolation of images: two neighbours along W, then two along H."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metadef.dtype import DType
from metadef.error import InferError
from metadef.format import Format, TensorDesc
from metadef.op import FLOATS, Attr, AttrKind, Attrs, CostClass, OpDef, Port, VectorWork, register
from metadef.ops.common import Y, array, operand, plain

_REAL = (*FLOATS, DType.DOUBLE)


@dataclass(frozen=True)
class Taps:
    """The two neighbours of every result element along an axis, and their weights (float64)."""

    first: np.ndarray
    second: np.ndarray
    first_weight: np.ndarray
    second_weight: np.ndarray


def bilinear_places(size: int, made: int, attrs: Attrs) -> np.ndarray:
    """Where along an axis of ``size`` elements each of ``made`` result elements lies (float64)."""
    index = np.arange(made, dtype=np.float64)
    if attrs["align_corners"]:
        return index * ((size - 1) / (made - 1) if made > 1 else 0.0)
    if attrs["half_pixel_centers"]:
        return (index + 0.5) * (size / made) - 0.5
    return index * (size / made)


def bilinear_taps(size: int, made: int, attrs: Attrs) -> Taps:
    """Neighbours inside the axis. At its end, where both are one, each has half of the weight (as in onnxruntime)."""
    place = np.clip(bilinear_places(size, made, attrs), 0, size - 1)
    first = np.floor(place).astype(np.int64)
    at_end = first + 1 > size - 1
    share = np.where(at_end, 0.5, place - first)
    return Taps(first, np.where(at_end, first, first + 1), 1 - share, share)


def _infer(inputs: Sequence[TensorDesc | None], attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    if len(x.origin_shape) != 4 or 0 in x.origin_shape[2:]:
        raise InferError(
            "only images with pixels can be interpolated",
            code="E14001",
            expected="(N, C, H, W)",
            got=str(x.origin_shape),
        )
    return [plain((*x.origin_shape[:2], *attrs["size"]), x.dtype, Format.NCHW)]


def _reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    x = array(inputs)
    for axis in (3, 2):
        taps = bilinear_taps(x.shape[axis], attrs["size"][axis - 2], attrs)
        spread = (-1,) + (1,) * (3 - axis)
        first, second = (weights.reshape(spread).astype(x.dtype) for weights in (taps.first_weight, taps.second_weight))
        x = np.take(x, taps.first, axis) * first + np.take(x, taps.second, axis) * second
    return [np.ascontiguousarray(x)]


register(
    OpDef(
        "ResizeBilinearV2D",
        (Port("x", _REAL, type_var="T"),),
        (Y,),
        _infer,
        _reference,
        "Images (N, C, H, W) at another size; each pixel is mixed from the four around its place in x.",
        (
            Attr("size", AttrKind.LIST_INT, minimum=1, length=2),
            Attr("align_corners", AttrKind.BOOL, False),
            Attr("half_pixel_centers", AttrKind.BOOL, False),
        ),
        cost=CostClass.MOVE,
        work=VectorWork(("mul", "axpy"), computes_fp32=True),
    )
)
