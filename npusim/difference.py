"""How far two arrays are apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metadef.error import UsageError
from metadef.format import TensorDesc
from metadef.ops.numeric import widen


@dataclass(frozen=True)
class Difference:
    """``rel_l2`` is |a - b| / |b|, ``cosine`` of the flattened arrays, ``top1_equal`` along the last axis."""

    rel_l2: float
    max_abs: float
    cosine: float
    top1_equal: bool


def difference(ours: np.ndarray, wanted: np.ndarray) -> Difference:
    """Distance of two arrays of one shape. Equal infinities and matching NaNs count as equal; others as infinitely far.

    Raises:
        UsageError: the shapes differ.
    """
    if ours.shape != wanted.shape:
        raise UsageError(
            "arrays of different shape cannot be compared", expected=str(wanted.shape), got=str(ours.shape)
        )
    a, b = ours.astype(np.float64), wanted.astype(np.float64)
    top1 = bool(np.array_equal(_top1(a), _top1(b)))
    odd = ~(np.isfinite(a) & np.isfinite(b))
    if odd.any():
        if not np.array_equal(a[odd], b[odd], equal_nan=True):
            return Difference(np.inf, np.inf, 0.0, top1)
        a, b = np.where(odd, 0.0, a), np.where(odd, 0.0, b)
    gap, size = float(np.linalg.norm(a - b)), float(np.linalg.norm(b))
    own = float(np.linalg.norm(a))
    rel = gap / size if size else (np.inf if gap else 0.0)
    cosine = float(np.sum(a * b)) / (own * size) if own and size else float(own == size)
    return Difference(rel, float(np.max(np.abs(a - b), initial=0.0)), cosine, top1)


def stored_distance(got: np.ndarray, wanted: np.ndarray, desc: TensorDesc) -> float:
    """Relative L2 of stored elements (bfloat16 as bits); discrete results are right or infinitely wrong."""
    if not desc.dtype.is_float:
        return 0.0 if np.array_equal(got, wanted) else float("inf")
    return difference(widen(got, desc.dtype), widen(wanted, desc.dtype)).rel_l2


def _top1(array: np.ndarray) -> np.ndarray:
    if array.ndim == 0 or array.size == 0:
        return np.zeros(0)
    return np.argmax(array, axis=-1)
