"""Reductions over any axes: sum, mean, max, min, prod, norms, any, all, argmax, argmin.

`reduce` describes one as a Call over a strided source and a dense output. Where the reduced elements lie together, 16
lanes run over them and are folded in pairs at the end (`across`); where kept elements lie together, 16 outputs are
computed at once (`along`). Floats accumulate in fp32, integers in int64; the order depends on shape and strides alone.
Kernel names: `reduce:<source dtype>:<output dtype>:<operation>:<across|along>`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from npusim.kernels import expressions, vmath
from npusim.kernels.desc import Call, call, split_count
from npusim.kernels.elementwise import View, emit_lane_copy, fit_rank
from npusim.kernels.epilogue import saturated
from npusim.kernels.ir import F32, FLOATS, I32, I64, LANES, SIZE, Kernel, Val, vec
from npusim.kernels.row_passes import fold_lanes

OUTER, INNER = 5, 4
OPERATIONS = ("sum", "mean", "max", "min", "prod", "sumsq", "l1", "l2", "logsum", "any", "all", "argmax", "argmin")
_SOURCE, _TARGET, _ITEMS, _CHUNK, _SATURATE, _COUNT = range(1, 7)
_OUTER_DIMS, _OUTER_SOURCE, _OUTER_TARGET = 7, 7 + OUTER, 7 + 2 * OUTER
_INNER_DIMS, _INNER_SOURCE = 7 + 3 * OUTER, 7 + 3 * OUTER + INNER
_LANE_COUNT, _LANE_TARGET = 7 + 3 * OUTER + 2 * INNER, 8 + 3 * OUTER + 2 * INNER


def reduce(
    operation: str,
    source: View,
    shape: Sequence[int],
    axes: Sequence[int],
    out: int,
    out_dtype: str,
    saturate: bool = False,
) -> Call:
    """Call reducing `axes` of a strided source into a dense row-major output of the remaining axes.

    argmax and argmin take one axis and an i32 or i64 output; the first of equal values wins, NaN counts as extreme.
    Raises ValueError for an unknown operation, or for an empty reduction that has no neutral element.
    """
    rank = len(shape)
    gone = sorted({a % rank for a in axes})
    if operation not in OPERATIONS:
        raise ValueError(f"unknown reduction {operation!r}; known: {', '.join(OPERATIONS)}")
    if operation.startswith("arg") and (len(gone) != 1 or out_dtype not in ("i32", "i64")):
        raise ValueError(f"{operation} takes one axis and an i32 or i64 output, got axes {gone} and {out_dtype}")
    kept = [a for a in range(rank) if a not in gone]
    kept_dims, gone_dims = [shape[a] for a in kept], [shape[a] for a in gone]
    count = int(np.prod(gone_dims, dtype=np.int64))
    if count == 0 and operation in ("max", "min", "argmax", "argmin"):
        raise ValueError(f"{operation} of no elements (shape {tuple(shape)}, axes {gone}) has no value")
    target = View.dense(out, out_dtype, kept_dims).strides
    outer, (outer_source, outer_target) = fit_rank(kept_dims, [[source.strides[a] for a in kept], target], OUTER)
    inner, (inner_source,) = fit_rank(gone_dims, [[source.strides[a] for a in gone]], INNER)
    size = SIZE[source.dtype]
    along = outer_source[-1] == size and inner_source[-1] != size and outer[-1] >= 4
    lane_count, lane_target = 1, 0
    if along:
        lane_count, lane_target = outer[-1], outer_target[-1]
        outer[-1], outer_source[-1], outer_target[-1] = -(-outer[-1] // LANES), LANES * size, LANES * lane_target
    items = int(np.prod(outer, dtype=np.int64))
    elements = int(np.prod(shape, dtype=np.int64))
    parts = split_count(elements * 2e-4 + items * 0.02, max(1, items))
    chunk = max(1, -(-items // parts))
    fields = [source.address, out, items, chunk, int(saturate), count, *outer, *outer_source, *outer_target]
    fields += [*inner, *inner_source, lane_count, lane_target]
    name = f"reduce:{source.dtype}:{out_dtype}:{operation}:{'along' if along else 'across'}"
    return call(name, -(-items // chunk), 0, fields)


@dataclass(frozen=True)
class _Fold:
    """How an operation folds: per-element map, start value, combination, final map."""

    start: Callable[[bool], float | int]
    combine: Callable[[Kernel, Val, Val], Val]
    before: Callable[[Kernel, Val], Val] = lambda k, x: x
    after: Callable[[Kernel, Val], Val] = lambda k, x: x


def _lowest(floating: bool) -> float | int:
    return float("-inf") if floating else -(2**63)


def _highest(floating: bool) -> float | int:
    return float("inf") if floating else 2**63 - 1


def _zero(floating: bool) -> float | int:
    return 0.0 if floating else 0


def _one(floating: bool) -> float | int:
    return 1.0 if floating else 1


def _extreme(sign: int) -> Callable[[Kernel, Val, Val], Val]:
    def combine(k: Kernel, a: Val, b: Val) -> Val:
        better = b > a if sign > 0 else b < a
        return k.select(better | b.isnan(), b, a) if expressions.is_float(a) else k.select(better, b, a)

    return combine


def _add(k: Kernel, a: Val, b: Val) -> Val:
    return a + b


def _magnitude(k: Kernel, x: Val) -> Val:
    return vmath.absolute(k, x) if expressions.is_float(x) else k.select(x < 0, 0 - x, x)


def _square(k: Kernel, x: Val) -> Val:
    return x * x


def _as_truth(k: Kernel, x: Val) -> Val:
    one = expressions.truth(k, x)
    return k.convert(one, "uitofp", vec(F32)) if expressions.is_float(x) else k.convert(one, "zext", vec(I64))


_FOLDS = {
    "sum": _Fold(_zero, _add),
    "mean": _Fold(_zero, _add),
    "prod": _Fold(_one, lambda k, a, b: a * b),
    "max": _Fold(_lowest, _extreme(1)),
    "min": _Fold(_highest, _extreme(-1)),
    "sumsq": _Fold(_zero, _add, _square),
    "l1": _Fold(_zero, _add, _magnitude),
    "l2": _Fold(_zero, _add, _square, lambda k, x: vmath.sqrt(k, expressions.to_float(k, x))),
    "logsum": _Fold(_zero, _add, after=lambda k, x: vmath.log(k, expressions.to_float(k, x))),
    "any": _Fold(_zero, _extreme(1), _as_truth),
    "all": _Fold(_one, _extreme(-1), _as_truth),
}


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit `reduce:<source>:<output>:<operation>:<across|along>`."""
    source, target, operation, mode = parameters.split(":")
    for size in sorted({SIZE[source], SIZE[target]}):
        emit_lane_copy(k, size)
    with k.main() as (desc, part, _ctx):
        lo = part * k.field(desc, _CHUNK)
        hi = k.minimum(lo + k.field(desc, _CHUNK), k.field(desc, _ITEMS))
        spare = k.alloca(LANES * 8)
        with k.loop(hi, start=lo) as item:
            rest, at, to = item, k.field(desc, _SOURCE), k.field(desc, _TARGET)
            block = k.const(0)
            for a in reversed(range(OUTER)):
                n = k.field(desc, _OUTER_DIMS + a)
                index, rest = rest % n, rest / n
                if a == OUTER - 1:
                    block = index
                at = at + index * k.field(desc, _OUTER_SOURCE + a)
                to = to + index * k.field(desc, _OUTER_TARGET + a)
            lanes = k.minimum(k.field(desc, _LANE_COUNT) - block * LANES, LANES) if mode == "along" else None
            emit = _emit_argument if operation.startswith("arg") else _emit_fold
            value = emit(k, desc, source, operation, at, lanes, spare)
            if target in FLOATS:
                value = saturated(k, expressions.to_float(k, value), k.field(desc, _SATURATE), target)
            expressions.store(k, value, spare, target)
            count = lanes if lanes is not None else k.const(1)
            k.call(f"lanes{SIZE[target]}", spare, SIZE[target], to, k.field(desc, _LANE_TARGET), count)


def _loop_elements(
    k: Kernel, desc: Val, dtype: str, at: Val, lanes: Val | None, spare: Val, visit: Callable[[Val, Val, Val], None]
) -> None:
    """visit(vector, live lane count, index of the innermost reduced position) over all reduced elements."""
    dims = [k.field(desc, _INNER_DIMS + a) for a in range(INNER)]
    steps = [k.field(desc, _INNER_SOURCE + a) for a in range(INNER)]
    size = SIZE[dtype]
    with k.loop(dims[0]) as i, k.loop(dims[1]) as j, k.loop(dims[2]) as m:
        base = at + i * steps[0] + j * steps[1] + m * steps[2]
        if lanes is not None:
            with k.loop(dims[3]) as n:
                visit(_lanes(k, dtype, base + n * steps[3], k.const(size), lanes, spare), lanes, n)
        else:
            with k.loop(dims[3], step=LANES) as n:
                live = k.minimum(dims[3] - n, LANES)
                visit(_lanes(k, dtype, base + n * steps[3], steps[3], live, spare), live, n)


def _lanes(k: Kernel, dtype: str, at: Val, step: Val, count: Val, spare: Val) -> Val:
    come = k.var(at)
    with k.when(~(count.eq(LANES) & step.eq(SIZE[dtype]))):
        k.call(f"lanes{SIZE[dtype]}", at, step, spare, SIZE[dtype], count)
        come.set(spare)
    x = expressions.load(k, come.get(), dtype)
    return x if expressions.is_float(x) else expressions.to_integer(k, x, "i64")


def _live(k: Kernel, count: Val) -> Val:
    return k.lane_index() < k.splat(k.convert(count, "trunc", I32))


def _emit_fold(k: Kernel, desc: Val, dtype: str, operation: str, at: Val, lanes: Val | None, spare: Val) -> Val:
    fold = _FOLDS[operation]
    floating = dtype in FLOATS
    total = k.var(fold.start(floating), vec(F32) if floating else vec(I64))

    def visit(x: Val, live: Val, _index: Val) -> None:
        now = total.get()
        total.set(k.select(_live(k, live), fold.combine(k, now, fold.before(k, x)), now))

    _loop_elements(k, desc, dtype, at, lanes, spare, visit)
    value = total.get()
    if lanes is None:
        value = fold_lanes(k, value, lambda a, b: fold.combine(k, a, b))
    if operation == "mean":
        count = k.field(desc, _COUNT)
        if floating:
            return value / k.splat(k.convert(count, "sitofp", F32))
        return value / k.splat(k.maximum(count, 1))
    return fold.after(k, value)


def _emit_argument(k: Kernel, desc: Val, dtype: str, operation: str, at: Val, lanes: Val | None, spare: Val) -> Val:
    floating = dtype in FLOATS
    up = operation == "argmax"
    kind = vec(F32) if floating else vec(I64)
    best = k.var((_lowest if up else _highest)(floating), kind)
    place = k.var(2**31 - 1, vec(I32))

    def better(a: Val, i: Val, b: Val, j: Val) -> Val:
        """Whether (b, at j) comes before (a, at i)."""
        wins, ties = (b > a if up else b < a), a.eq(b)
        if floating:
            wins, ties = wins | (b.isnan() & ~a.isnan()), ties | (a.isnan() & b.isnan())
            wins = wins & ~(a.isnan() & ~b.isnan())
        return wins | (ties & (j < i))

    def visit(x: Val, live: Val, index: Val) -> None:
        here = k.splat(k.convert(index, "trunc", I32))
        if lanes is None:
            here = here + k.lane_index()
        take = better(best.get(), place.get(), x, here) & _live(k, live)
        best.set(k.select(take, x, best.get()))
        place.set(k.select(take, here, place.get()))

    _loop_elements(k, desc, dtype, at, lanes, spare, visit)
    if lanes is None:
        for step in (8, 4, 2, 1):
            turn = [(lane + step) % LANES for lane in range(LANES)]
            a, i = best.get(), place.get()
            b, j = k.shuffle(a, a, turn), k.shuffle(i, i, turn)
            take = better(a, i, b, j)
            best.set(k.select(take, b, a))
            place.set(k.select(take, j, i))
    return place.get()
