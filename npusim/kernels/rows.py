"""Operators over whole rows: softmax, log-softmax, layer norm, RMS norm.

A row is read once into fp32 scratch (from any stride, or from the split columns of FRACTAL_NZ), worked on there, and
written with one rounding. Sums run over 16 fixed lanes which are then added in pairs, so a result depends on the row
alone. `softmax` and `layer_norm` describe a task as a Call.
Kernel names: `softmax:<in>:<out>:<plain|log>`, `layernorm:<in>:<out>:<parameter dtype>:<layer|rms>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npusim.kernels import vmath
from npusim.kernels.desc import Call, call, split_count
from npusim.kernels.dispatch import scratch
from npusim.kernels.elementwise import fit_rank
from npusim.kernels.epilogue import saturated
from npusim.kernels.ir import F32, I8, I32, I64, LANES, RAW, SIZE, Kernel, Val, vec

OUTER = 4
_UNROLL = 4
_DIMS, _SOURCE, _TARGET = 1, 1 + OUTER, 4 + 2 * OUTER
_SEGMENTS, _SEGMENT, _COUNT, _ROWS, _CHUNK, _SATURATE, _PAD = range(7 + 3 * OUTER, 14 + 3 * OUTER)
_GAMMA, _BETA, _EPSILON = range(14 + 3 * OUTER, 17 + 3 * OUTER)


@dataclass(frozen=True)
class Rows:
    """Rows of one tensor: byte strides of the outer dimensions, of row segments and of elements in a segment."""

    address: int
    dtype: str
    outer: tuple[int, ...]
    segment: int
    element: int


@dataclass(frozen=True)
class RowShape:
    """outer: dimensions apart from the row; a row of `count` elements lies in `segments` runs of `length`."""

    outer: tuple[int, ...]
    count: int
    segments: int = 1
    length: int = 0

    @staticmethod
    def axis(
        shape: Sequence[int], axis: int, source: tuple[int, str], target: tuple[int, str]
    ) -> tuple[RowShape, Rows, Rows]:
        """Row-major source and target (address, dtype) of `shape`, rows along `axis`."""
        axis %= len(shape)
        outer = tuple(n for a, n in enumerate(shape) if a != axis)
        sides = []
        for address, dtype in (source, target):
            steps = [SIZE[dtype] * int(np.prod(shape[a + 1 :], dtype=np.int64)) for a in range(len(shape))]
            others = tuple(s for a, s in enumerate(steps) if a != axis)
            sides.append(Rows(address, dtype, others, 0, steps[axis]))
        return RowShape(outer, shape[axis], 1, shape[axis]), sides[0], sides[1]

    @staticmethod
    def nz(
        batch: int, m: int, n: int, stored_rows: int, c0: int, source: tuple[int, str], target: tuple[int, str]
    ) -> tuple[RowShape, Rows, Rows]:
        """FRACTAL_NZ [batch][n/c0][stored rows][c0], rows along n; lanes beyond n are written as zeros."""
        blocks = -(-n // c0)
        sides = []
        for address, dtype in (source, target):
            size = SIZE[dtype]
            plane = stored_rows * c0 * size
            sides.append(Rows(address, dtype, (blocks * plane, c0 * size), plane, size))
        return RowShape((batch, m), n, blocks, c0), sides[0], sides[1]


def softmax(shape: RowShape, source: Rows, target: Rows, log: bool = False, saturate: bool = False) -> Call:
    """Call of (log-)softmax over rows. A row of only -inf gives NaN, as NumPy does."""
    name = f"softmax:{source.dtype}:{target.dtype}:{'log' if log else 'plain'}"
    return _describe(name, shape, source, target, saturate, [0, 0, 0.0], 1.2e-3)


def layer_norm(
    shape: RowShape,
    source: Rows,
    target: Rows,
    gamma: int,
    beta: int,
    parameter_dtype: str,
    epsilon: float,
    rms: bool = False,
    saturate: bool = False,
) -> Call:
    """Call of (x - mean) / sqrt(var + epsilon) * gamma + beta over rows; addresses 0 leave gamma or beta out.

    gamma and beta are contiguous vectors of the row's length. `rms` skips the mean.
    """
    kind = "rms" if rms else "layer"
    name = f"layernorm:{source.dtype}:{target.dtype}:{parameter_dtype}:{kind}"
    return _describe(name, shape, source, target, saturate, [gamma, beta, float(epsilon)], 8e-4)


def _describe(
    name: str, shape: RowShape, source: Rows, target: Rows, saturate: bool, extra: list[int | float], cost_us: float
) -> Call:
    dims, (src, dst) = fit_rank(shape.outer, [source.outer, target.outer], OUTER)
    rows = int(np.prod(dims, dtype=np.int64))
    parts = split_count(rows * (shape.count * cost_us + 0.02), max(1, rows))
    chunk = max(1, -(-rows // parts))
    padded = -(-shape.count // LANES) * LANES
    fields: list[int | float] = [*dims]
    for side, steps in ((source, src), (target, dst)):
        fields += [side.address, *steps, side.segment, side.element]
    length = shape.length or shape.count
    fields += [shape.segments, length, shape.count, rows, chunk, int(saturate), shape.segments * length]
    live = rows if shape.count else 0
    return call(name, -(-live // chunk), (max(padded, shape.segments * length) + LANES) * 4, fields + extra)


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit a `softmax` or `layernorm` kernel."""
    source, target, *rest = parameters.split(":")
    _emit_read(k, source)
    _emit_write(k, target)
    with k.main() as (desc, part, ctx):
        row = scratch(k, ctx)
        lo = part * k.field(desc, _CHUNK)
        hi = k.minimum(lo + k.field(desc, _CHUNK), k.field(desc, _ROWS))
        with k.loop(hi, start=lo) as number:
            places = _outer_offsets(k, desc, number)
            k.call("read", desc, k.field(desc, _SOURCE) + places[0], row)
            if family == "softmax":
                _emit_softmax(k, desc, row, rest[0])
            else:
                _emit_norm(k, desc, row, rest[0], rest[1])
            k.call("write", desc, row, k.field(desc, _TARGET) + places[1])


def _outer_offsets(k: Kernel, desc: Val, number: Val) -> tuple[Val, Val]:
    rest, source, target = number, k.const(0), k.const(0)
    for a in reversed(range(OUTER)):
        n = k.field(desc, _DIMS + a)
        index = rest % n
        rest = rest / n
        source = source + index * k.field(desc, _SOURCE + 1 + a)
        target = target + index * k.field(desc, _TARGET + 1 + a)
    return source, target


def _emit_read(k: Kernel, dtype: str) -> None:
    """read(desc, source, scratch): all segments as fp32."""
    size = SIZE[dtype]
    with k.function("read", [I64] * 3) as (desc, source, row):
        step, element = k.field(desc, _SOURCE + 1 + OUTER), k.field(desc, _SOURCE + 2 + OUTER)
        length, count = k.field(desc, _SEGMENT), k.field(desc, _COUNT)
        with k.loop(k.field(desc, _SEGMENTS)) as s:
            here, to = source + s * step, row + s * length * 4
            live = k.minimum(count - s * length, length)
            blocks = k.select(element.eq(size), live & -LANES, 0)
            with k.loop(blocks, step=LANES) as i:
                k.store(k.load_f32(here + i * size, dtype), to + i * 4)
            with k.loop(live, start=blocks) as i:
                k.store(k.load_f32(here + i * element, dtype, 1), to + i * 4)


def _emit_write(k: Kernel, dtype: str) -> None:
    """write(desc, scratch, target): all segments, one rounding, zeros beyond the row's count."""
    size, kind = SIZE[dtype], RAW[SIZE[dtype]]
    with k.function("write", [I64] * 3) as (desc, row, target):
        step, element = k.field(desc, _TARGET + 1 + OUTER), k.field(desc, _TARGET + 2 + OUTER)
        length, count, flag = k.field(desc, _SEGMENT), k.field(desc, _COUNT), k.field(desc, _SATURATE)
        with k.loop(k.field(desc, _SEGMENTS)) as s:
            to, here = target + s * step, row + s * length * 4
            live = k.minimum(count - s * length, length)
            blocks = k.select(element.eq(size), live & -LANES, 0)
            for begin, end, lanes in ((k.const(0), blocks, LANES), (blocks, live, 1)):
                with k.loop(end, start=begin, step=lanes) as i:
                    x = saturated(k, k.load(here + i * 4, vec(F32, lanes)), flag, dtype)
                    k.store_f32(x, to + i * (size if lanes > 1 else element), dtype)
            with k.loop(length, start=live) as i:
                k.store(k.const(0, kind), to + i * element)


def _reduce_row(k: Kernel, row: Val, count: Val, start: float, step: object, combine: object) -> Val:
    """Fold a row over 16 lanes, then the lanes in pairs; `step(acc, x, index)` and `combine(a, b)` act on vectors.

    Whole groups of blocks go to accumulators of their own, so that one block need not wait for the one before it.
    Elements beyond `count` in the last block are replaced by `start`.
    """
    totals = [k.var(start, vec(F32)) for _ in range(_UNROLL)]
    whole = count & -(LANES * _UNROLL)
    with k.loop(whole, step=LANES * _UNROLL) as i:
        for number, total in enumerate(totals):
            at = i + number * LANES
            total.set(step(total.get(), k.load(row + at * 4, vec(F32)), at))  # type: ignore[operator]
    with k.loop(count, start=whole, step=LANES) as i:
        x = k.load(row + i * 4, vec(F32))
        live = k.lane_index() < k.splat(k.convert(count - i, "trunc", I32))
        first = totals[0].get()
        totals[0].set(k.select(live, step(first, x, i), first))  # type: ignore[operator]
    parts = [total.get() for total in totals]
    while len(parts) > 1:
        parts = [combine(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]  # type: ignore[operator]
    return fold_lanes(k, parts[0], combine)


def fold_lanes(k: Kernel, x: Val, combine: object) -> Val:
    """Combine the lanes of a vector in pairs and spread the result over all of them."""
    for step in (8, 4, 2, 1):
        turned = k.shuffle(x, x, [(lane + step) % LANES for lane in range(LANES)])
        x = combine(x, turned)  # type: ignore[operator]
    return x


def _maximum(k: Kernel) -> object:
    return lambda a, b, *_: k.select((b > a) | b.isnan(), b, a)


def _emit_softmax(k: Kernel, desc: Val, row: Val, kind: str) -> None:
    count = k.field(desc, _COUNT)
    top = _reduce_row(k, row, count, float("-inf"), _maximum(k), _maximum(k))

    def accumulate(acc: Val, x: Val, index: Val) -> Val:
        e = vmath.exp(k, x - top)
        if kind == "plain":
            k.store(e, row + index * 4)
        return acc + e

    total = _reduce_row(k, row, count, 0.0, accumulate, lambda a, b: a + b)
    scale = vmath.log(k, total) if kind == "log" else 1.0 / total
    with k.loop(count, step=LANES) as i:
        x = k.load(row + i * 4, vec(F32))
        k.store((x - top) - scale if kind == "log" else x * scale, row + i * 4)


def _emit_norm(k: Kernel, desc: Val, row: Val, dtype: str, kind: str) -> None:
    count = k.field(desc, _COUNT)
    length = k.splat(k.convert(count, "sitofp", F32))
    mean = k.const(0.0, vec(F32))
    if kind == "layer":
        mean = _reduce_row(k, row, count, 0.0, lambda a, x, _i: a + x, lambda a, b: a + b) / length

    def square(acc: Val, x: Val, _index: Val) -> Val:
        d = x - mean
        return k.fma(d, d, acc)

    variance = _reduce_row(k, row, count, 0.0, square, lambda a, b: a + b) / length
    scale = 1.0 / vmath.sqrt(k, variance + k.splat(k.float_field(desc, _EPSILON)))
    gamma, beta = k.field(desc, _GAMMA), k.field(desc, _BETA)
    size, spare = SIZE[dtype], k.alloca(LANES * 4)
    with k.loop(count, step=LANES) as i:
        left = k.minimum(count - i, LANES)
        y = k.var((k.load(row + i * 4, vec(F32)) - mean) * scale)
        for source, apply in ((gamma, lambda a, b: a * b), (beta, lambda a, b: a + b)):
            with k.when(source.ne(0)):
                at = k.var(source + i * size)
                with k.when(left < LANES):
                    with k.loop(left * size) as byte:
                        k.store(k.load(source + i * size + byte, I8), spare + byte)
                    at.set(spare)
                y.set(apply(y.get(), k.load_f32(at.get(), dtype)))
        k.store(y.get(), row + i * 4)
