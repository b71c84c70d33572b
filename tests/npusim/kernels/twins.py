"""Plain NumPy twins of the kernels, in float64, with the error bounds that follow from the arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from npusim.kernels.ir import FLOATS

EPS32 = 2.0**-24
DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "i8": np.int8,
    "u8": np.uint8,
    "b8": np.bool_,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
}


def name_of(dtype: np.dtype) -> str:
    """Kernel name of an array's element type."""
    return next(name for name, kind in DTYPES.items() if np.dtype(kind) == dtype)


def is_float(dtype: str) -> bool:
    """Whether a kernel dtype is floating."""
    return dtype in FLOATS


def assert_same(actual: np.ndarray, wanted: np.ndarray) -> None:
    """Equal element by element, NaN where NaN; NumPy's own check does not know bfloat16's NaN."""
    assert actual.dtype == wanted.dtype
    if name_of(actual.dtype) == "bf16":
        actual, wanted = actual.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_array_equal(actual, wanted)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether numbers have the same bits, and NaN stand in the same places (their signs depend on operand order)."""
    number = ~np.isnan(a)
    return np.array_equal(number, ~np.isnan(b)) and a[number].tobytes() == b[number].tobytes()


@dataclass(frozen=True)
class Exact:
    """A float64 result, the sum of the magnitudes of its terms, and how many rounded operations made it."""

    value: np.ndarray
    magnitude: np.ndarray
    operations: int


def assert_rounded(actual: np.ndarray, exact: Exact) -> None:
    """actual lies within the fp32 summation bound plus one unit in the last place of its own dtype."""
    with np.errstate(all="ignore"):
        target = exact.value.astype(actual.dtype).astype(np.float64)
        bound = exact.operations * EPS32 * exact.magnitude
        bound = bound + np.spacing(np.abs(target).astype(actual.dtype)).astype(np.float64)
        got = actual.astype(np.float64)
        special = ~np.isfinite(target) | ~np.isfinite(got)
        same = (got == target) | (np.isnan(got) & np.isnan(target))
        # A sum whose magnitude overflows fp32 may become infinite or NaN in another order of summation.
        excused = special & ~(exact.magnitude < np.finfo(np.float32).max)
        near = np.abs(got - exact.value) <= bound
    bad = ~np.where(special, same | excused, near)
    assert not bad.any(), (
        f"{int(bad.sum())} of {bad.size} differ, first at {np.argwhere(bad)[0]}: {got[bad][0]} instead of "
        f"{exact.value[bad][0]} (bound {bound[bad][0]})"
    )


def to_blocked(x: np.ndarray, c0: int, dtype: type | None = None) -> np.ndarray:
    """[N, C, spatial…] -> [N, C1, spatial…, C0], zero padded."""
    n, c = x.shape[:2]
    blocks = -(-c // c0)
    padded = np.zeros((n, blocks * c0, *x.shape[2:]), dtype or x.dtype)
    padded[:, :c] = x
    split = padded.reshape(n, blocks, c0, *x.shape[2:])
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))


def from_blocked(x: np.ndarray) -> np.ndarray:
    """[N, C1, spatial…, C0] -> [N, C1 * C0, spatial…]."""
    moved = np.moveaxis(x, -1, 2)
    return moved.reshape(x.shape[0], -1, *x.shape[2:-1])


def to_nz(x: np.ndarray, c0: int) -> np.ndarray:
    """[M, K] -> [K1, M padded to 16, C0]."""
    m = -(-x.shape[0] // 16) * 16
    padded = np.zeros((m, x.shape[1]), x.dtype)
    padded[: x.shape[0]] = x
    return np.ascontiguousarray(to_blocked(padded.T[None], c0)[0])


def convolution(
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray,
    strides: tuple[int, int],
    pads: tuple[int, int, int, int],
    dilations: tuple[int, int],
    groups: int,
) -> Exact:
    """NCHW convolution in float64."""
    n, c, h, width = x.shape
    o, per, kh, kw = w.shape
    oh = (h + pads[0] + pads[2] - (kh - 1) * dilations[0] - 1) // strides[0] + 1
    ow = (width + pads[1] + pads[3] - (kw - 1) * dilations[1] - 1) // strides[1] + 1
    padded = np.zeros((n, c, h + pads[0] + pads[2], width + pads[1] + pads[3]))
    padded[:, :, pads[0] : pads[0] + h, pads[1] : pads[1] + width] = x
    total, magnitude = np.zeros((n, o, oh, ow)), np.zeros((n, o, oh, ow))
    step = o // groups
    with np.errstate(all="ignore"):
        for i in range(kh):
            for j in range(kw):
                top, left = i * dilations[0], j * dilations[1]
                view = padded[:, :, top:, left:][:, :, : (oh - 1) * strides[0] + 1 : strides[0]]
                view = view[:, :, :, : (ow - 1) * strides[1] + 1 : strides[1]]
                for g in range(groups):
                    part = view[:, g * per : (g + 1) * per]
                    taps = w[g * step : (g + 1) * step, :, i, j].astype(np.float64)
                    rows = slice(g * step, (g + 1) * step)
                    total[:, rows] += np.einsum("nchw,oc->nohw", part, taps)
                    magnitude[:, rows] += np.einsum("nchw,oc->nohw", np.abs(part), np.abs(taps))
    full = bias.astype(np.float64)[None, :, None, None]
    return Exact(total + full, magnitude + np.abs(full), per * kh * kw + 2)


def product(a: np.ndarray, b: np.ndarray, bias: np.ndarray) -> Exact:
    """Batched matrix product in float64."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    return Exact(x @ y + bias, np.abs(x) @ np.abs(y) + np.abs(bias), a.shape[-1] + 2)


def pooling(x: np.ndarray, kind: str, geometry: object) -> Exact:
    """Pooling of [planes, H, W, C0] by a Pool2D's window, stride, padding, dilation and counting rule."""
    p = geometry
    oh, ow = p.out_hw  # type: ignore[attr-defined]
    (kh, kw), (sh, sw), (dh, dw) = p.kernel, p.strides, p.dilations  # type: ignore[attr-defined]
    top, left, bottom, right = p.pads  # type: ignore[attr-defined]
    planes, h, w, c0 = x.shape
    value, magnitude = np.zeros((planes, oh, ow, c0)), np.zeros((planes, oh, ow, c0))
    with np.errstate(all="ignore"):
        for i in range(oh):
            for j in range(ow):
                rows = [i * sh - top + a * dh for a in range(kh)]
                columns = [j * sw - left + b * dw for b in range(kw)]
                cells = [x[:, r, q].astype(np.float64) for r in rows for q in columns if 0 <= r < h and 0 <= q < w]
                counted = sum(1 for r in rows for q in columns if r < h + bottom and q < w + right)
                if kind == "max":
                    value[:, i, j] = np.maximum.reduce([np.full((planes, c0), -np.inf), *cells])
                else:
                    divisor = counted if p.count_include_pad else len(cells)  # type: ignore[attr-defined]
                    value[:, i, j] = np.divide(sum(cells, np.zeros((planes, c0))), divisor)
                    magnitude[:, i, j] = np.divide(sum(map(np.abs, cells), np.zeros((planes, c0))), divisor)
    return Exact(value, magnitude, kh * kw + 2)


def softmax(x: np.ndarray, axis: int, log: bool) -> np.ndarray:
    """Softmax or log-softmax in float64."""
    with np.errstate(all="ignore"):
        shifted = x.astype(np.float64) - x.astype(np.float64).max(axis, keepdims=True)
        total = np.exp(shifted).sum(axis, keepdims=True)
        return shifted - np.log(total) if log else np.exp(shifted) / total


def layer_norm(
    x: np.ndarray, gamma: np.ndarray | None, beta: np.ndarray | None, epsilon: float, rms: bool
) -> np.ndarray:
    """Layer norm or RMS norm over the last axis in float64."""
    wide = x.astype(np.float64)
    centred = wide if rms else wide - wide.mean(-1, keepdims=True)
    out = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    out = out if gamma is None else out * gamma
    return out if beta is None else out + beta


REDUCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "sumsq": lambda x, axis: (x * x).sum(axis),
    "l1": lambda x, axis: np.abs(x).sum(axis),
    "l2": lambda x, axis: np.sqrt((x * x).sum(axis)),
    "logsum": lambda x, axis: np.log(x.sum(axis)),
    "any": lambda x, axis: (x != 0).any(axis),
    "all": lambda x, axis: (x != 0).all(axis),
    "argmax": np.argmax,
    "argmin": np.argmin,
}
