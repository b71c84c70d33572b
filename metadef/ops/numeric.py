"""Numbers at rest and in flight: 16-bit floats are widened to compute, rounded once; functions that NumPy lacks."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from metadef.dtype import DType

HALF_MAX = 65504.0
HALF_TINY = 2.0**-14
"""Largest and smallest normal float16 number."""


def condensed(value: np.ndarray) -> np.ndarray:
    """The array with length 1 along every axis that only repeats (stride 0); ``np.broadcast_to`` undoes it.

    Element-wise work on a stretched constant costs what its own elements cost.
    """
    return value[tuple(slice(0, 1) if step == 0 else slice(None) for step in value.strides)]


def widen(value: np.ndarray, dtype: DType, compute: type = np.float32) -> np.ndarray:
    """A stored value as operands of a reference: 16-bit floats as ``compute``, everything else as it is.

    float32 becomes float64 where ``compute`` asks for it. bfloat16 is stored as its bits in uint16.
    """
    if dtype is DType.BF16:
        return (value.astype(np.uint32) << 16).view(np.float32).astype(compute, copy=False)
    if dtype in (DType.FLOAT16, DType.FLOAT):
        return value.astype(compute, copy=False)
    return value


def numbers(value: np.ndarray, dtype: DType) -> np.ndarray:
    """A stored constant's elements as numbers in the narrowest type that NumPy has: bfloat16, kept as bits, as float32.

    Whoever compares or computes with a constant's elements reads them so.
    """
    return widen(value, dtype) if dtype is DType.BF16 else value


def narrow(value: np.ndarray, dtype: DType, overflow: str = "inf") -> np.ndarray:
    """Round a computed value to its storage type, to nearest even.

    ``overflow`` "inf" lets large values become infinite; "saturate" clips all, infinite too, to the largest number,
    and a float16 NaN becomes 0 (Ascend C: 310P).
    """
    value = np.asarray(value)
    if dtype is DType.BF16:
        return _to_bfloat16(value.astype(np.float32, copy=False), overflow)
    with np.errstate(all="ignore"):
        if dtype is DType.FLOAT16 and overflow == "saturate":
            value = np.nan_to_num(np.clip(value, -HALF_MAX, HALF_MAX), nan=0.0)
        if dtype is DType.FLOAT16 and value.dtype in (np.float32, np.float64):
            return _to_half(value)
        return value.astype(dtype.numpy, copy=False)


def _to_half(value: np.ndarray) -> np.ndarray:
    """float16, to nearest even. Where subnormal results are many they are rounded as whole multiples of 2**-24:
    NumPy's conversion raises a flag for each, which costs a hundred times the conversion."""
    sample = np.abs(value.reshape(-1)[:: max(1, value.size // 1024)])
    if value.size < 4096 or np.count_nonzero((sample > 0) & (sample < HALF_TINY)) * 50 < sample.size:
        return value.astype(np.float16)
    tiny = np.abs(value) < HALF_TINY
    result = np.where(tiny, np.zeros_like(value), value).astype(np.float16)
    part = value[tiny]
    multiples = np.rint(np.abs(part) * 2.0**24).astype(np.uint16)
    result[tiny] = (multiples | (np.signbit(part).astype(np.uint16) << 15)).view(np.float16)
    return result


def _to_bfloat16(value: np.ndarray, overflow: str) -> np.ndarray:
    bits = np.ascontiguousarray(value).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    if overflow == "saturate":
        infinite = (rounded & 0x7FFF) == 0x7F80
        rounded = np.where(infinite, (rounded & 0x8000) | 0x7F7F, rounded).astype(np.uint16)
    return np.where(np.isnan(value), np.uint16(0x7FC0), rounded).reshape(value.shape)


def convert(value: np.ndarray, to: DType) -> np.ndarray:
    """Cast as the device does: float to integer toward zero, saturating, NaN to 0; wrapping between integers.

    For a float target the result keeps a float operand's width: the caller rounds it once.
    """
    if to.is_float:
        wanted = np.float64 if to is DType.DOUBLE else np.float32
        return value if value.dtype.kind == "f" and to is not DType.DOUBLE else value.astype(wanted)
    if to is DType.BOOL:
        return value != 0
    if value.dtype.kind != "f":
        return value.astype(to.numpy)
    limits = np.iinfo(to.numpy)
    whole = np.trunc(np.nan_to_num(value.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    low, high = whole <= float(limits.min), whole >= float(limits.max)
    inner = np.where(low | high, 0.0, whole).astype(to.numpy)
    return np.where(low, limits.min, np.where(high, limits.max, inner)).astype(to.numpy)


_ERF_STEP = 1 / 16
_ERF_END = 6.0
_ERF_TERMS = 9


@lru_cache(maxsize=1)
def _erf_table() -> np.ndarray:
    """Taylor coefficients (knot, term) of erf around multiples of the step, by the Hermite recurrence."""
    knots = np.arange(0, _ERF_END + 2 * _ERF_STEP, _ERF_STEP)
    table = np.empty((len(knots), _ERF_TERMS))
    table[:, 0] = [math.erf(knot) for knot in knots]
    before, hermite = np.zeros_like(knots), np.ones_like(knots)
    slope = 2 / math.sqrt(math.pi) * np.exp(-knots * knots)
    for term in range(1, _ERF_TERMS):
        table[:, term] = slope * hermite * (-1) ** (term - 1) / math.factorial(term)
        before, hermite = hermite, 2 * knots * hermite - 2 * (term - 1) * before
    return table


def erf(value: np.ndarray) -> np.ndarray:
    """The error function, exact to about 1e-15, in the type of the operand. NaN stays NaN."""
    table = _erf_table()
    size = np.minimum(np.abs(value.astype(np.float64)), _ERF_END)
    knot = np.nan_to_num(np.rint(size / _ERF_STEP)).astype(np.int64)
    offset = size - knot * _ERF_STEP
    result = table[knot, _ERF_TERMS - 1]
    for term in range(_ERF_TERMS - 2, -1, -1):
        result = result * offset + table[knot, term]
    return np.copysign(result, value).astype(value.dtype)


def sigmoid(value: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    small = np.exp(-np.abs(value))
    return np.where(value >= 0, 1 / (1 + small), small / (1 + small)).astype(value.dtype)


def softplus(value: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)) without overflow."""
    return np.logaddexp(value, np.zeros((), value.dtype))


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quotient; integers truncate toward zero, and a zero divisor gives zero."""
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, np.ones_like(b), b)
    floor = a // safe
    truncated = floor + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, np.zeros_like(floor), truncated).astype(a.dtype)


def power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a ** b in the type of a. Negative integer exponents give 0 or, for bases 1 and -1, the exact result."""
    if a.dtype.kind == "f":
        return np.power(a, b)
    whole = np.power(a, np.maximum(b, 0).astype(a.dtype))
    if b.dtype.kind == "u":
        return whole
    sign = np.where((a == -1) & (b % 2 != 0), -1, (np.abs(a) == 1).astype(np.int64))
    return np.where(b < 0, sign.astype(a.dtype), whole)
