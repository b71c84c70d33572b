"""Operators over whole rows: softmax, log-softmax, layer norm, RMS norm.

A row is read once into fp32 scratch (from any stride, or from the split columns of FRACTAL_NZ), worked on there, and
written with one rounding; dense rows are read and written where they lie. Sums run over 16 fixed lanes
which are then added in pairs, so a result depends on the row alone. `softmax` and `layer_norm` describe a task as a
Call.
Kernel names: `softmax:<in>:<out>:<plain|log>`, `layernorm:<in>:<out>:<parameter dtype>:<layer|rms>`; with `:stream`
behind for dense rows that are more than the last-level cache holds, whose results go past the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from npusim.kernels import vmath
from npusim.kernels.desc import Call, call, split_count
from npusim.kernels.dispatch import scratch
from npusim.kernels.elementwise import View, fit_rank, passes_caches
from npusim.kernels.epilogue import saturated
from npusim.kernels.ir import F32, I8, I32, I64, LANES, RAW, SIZE, Kernel, Val, vec

OUTER = 4
_UNROLL = 4
_LINE = 64  # bytes of a cache line
_STREAM = ":stream"
_DIMS, _SOURCE, _TARGET = 1, 1 + OUTER, 4 + 2 * OUTER
_SOURCE_STEP, _TARGET_STEP = _SOURCE + 2 + OUTER, _TARGET + 2 + OUTER
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
    if shape.segments == 1 and _dense(source) and _dense(target) and not any(step % _LINE for step in target.outer):
        views = [View(side.address, side.dtype, ()) for side in (source, target)]
        name += _STREAM if rows > 1 and passes_caches(rows * shape.count, views[:1], views[1]) else ""
    live = rows if shape.count else 0
    return call(
        name, -(-live // chunk), (max(padded, shape.segments * length, LANES * LANES) + LANES) * 4, fields + extra
    )


def _dense(side: Rows) -> bool:
    return side.element == SIZE[side.dtype]


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit a `softmax` or `layernorm` kernel."""
    past_caches = parameters.endswith(_STREAM)
    source, target, *rest = parameters.removesuffix(_STREAM).split(":")
    _emit_read(k, source)
    _emit_write(k, target)
    for name in ("apart", "straight"):
        with k.function(name, [I64] * 4) as (desc, row, come, go):
            work = _Work(k, desc, row)
            if name == "straight":
                work = _Straight(k, desc, row, (come, go), (source, target), past_caches)
            else:
                k.call("read", desc, come, row)
            if family == "softmax":
                _emit_softmax(work, rest[0], target)
            else:
                _emit_norm(work, rest[0], rest[1])
            if name == "apart":
                k.call("write", desc, row, go)
    if family == "softmax":
        _emit_narrow(k, source, target, rest[0])
    with k.main() as (desc, part, ctx):
        row, count = scratch(k, ctx), k.field(desc, _COUNT)
        lo = part * k.field(desc, _CHUNK)
        hi = k.minimum(lo + k.field(desc, _CHUNK), k.field(desc, _ROWS))
        one = k.field(desc, _SEGMENTS).eq(1)
        dense = k.field(desc, _SOURCE_STEP).eq(SIZE[source]) & k.field(desc, _TARGET_STEP).eq(SIZE[target])
        straight = one & dense
        begin = k.var(lo)
        if family == "softmax":
            with k.when(one & (count <= LANES)):
                k.call("narrow", desc, row, lo, hi)
                begin.set(hi)
        with k.loop(hi, start=begin.get()) as number:
            places = _outer_offsets(k, desc, number)
            come, go = k.field(desc, _SOURCE) + places[0], k.field(desc, _TARGET) + places[1]
            with k.either(straight) as (plain, other):
                with plain:
                    k.call("straight", desc, row, come, go)
                with other:
                    k.call("apart", desc, row, come, go)
        if past_caches:
            k.fence()


class _Work:
    """A row in scratch: where elements are read, and where results go."""

    def __init__(self, k: Kernel, desc: Val, row: Val) -> None:
        self.k, self.desc, self.row = k, desc, row
        self.count = k.field(desc, _COUNT)
        self.blocks = self.count & -LANES  # elements in whole blocks

    def load(self, index: Val) -> Val:
        return self.k.load(self.row + index * 4, vec(F32))

    def load_rest(self) -> Val:
        """The block after the whole ones, whose last lanes are of no meaning."""
        return self.load(self.blocks)

    def kept(self, index: Val) -> Val:
        """Where a pass leaves 16 fp32 values for the next one."""
        return self.row + index * 4

    def ahead(self, index: Val, what: str) -> None:
        """Ask for memory that a later pass needs, around the group of blocks at `index`: `source` or `target`."""

    def put_all(self, value: Callable[[Val, Val], Val], ahead: str = "") -> None:
        """Results of the whole row; `value(index, x)` makes 16 of them."""
        with self.k.loop(self.count, step=LANES) as i:
            self.k.store(value(i, self.load(i)), self.row + i * 4)


class _Straight(_Work):
    """A dense row, read and written where it lies; scratch holds what is made in between."""

    def __init__(
        self, k: Kernel, desc: Val, row: Val, places: tuple[Val, Val], dtypes: tuple[str, str], past_caches: bool
    ) -> None:
        super().__init__(k, desc, row)
        (self.source, self.target), (self.come, self.go), self.past_caches = places, dtypes, past_caches
        self.rest = self.count & (LANES - 1)
        self.spare = k.alloca(LANES * 4)
        self._move(self.come, self.source + self.blocks * SIZE[self.come], self.spare)

    def _move(self, dtype: str, source: Val, target: Val) -> None:
        """The elements after the whole blocks, one by one."""
        k, size, kind = self.k, SIZE[dtype], RAW[SIZE[dtype]]
        with k.loop(self.rest) as lane:
            k.store(k.load(source + lane * size, kind), target + lane * size)

    def load(self, index: Val) -> Val:
        return self.k.load_f32(self.source + index * SIZE[self.come], self.come)

    def load_rest(self) -> Val:
        return self.k.load_f32(self.spare, self.come)

    def kept(self, index: Val) -> Val:
        """In the target itself where that is fp32, but for the lanes after the whole blocks."""
        whole = self.go == "f32" and index is not self.blocks and not self.past_caches
        return (self.target if whole else self.row) + index * 4

    def ahead(self, index: Val, what: str) -> None:
        """The next row of the source, or where this one's results go (if it must come at all)."""
        if what == "target" and self.past_caches:
            return
        k, last = self.k, OUTER - 1
        following = self.source + k.field(self.desc, _SOURCE + 1 + last)
        base, dtype = (following, self.come) if what == "source" else (self.target, self.go)
        for line in range(0, LANES * _UNROLL * SIZE[dtype], _LINE):
            k.prefetch(base + index * SIZE[dtype] + line)

    def put_all(self, value: Callable[[Val, Val], Val], ahead: str = "") -> None:
        k, flag = self.k, self.k.field(self.desc, _SATURATE)
        together = self.blocks & -(LANES * _UNROLL)
        with k.either(flag.eq(0)) as (free, bound):
            with free:
                for begin, end, blocks in ((k.const(0), together, _UNROLL), (together, self.blocks, 1)):
                    with k.loop(end, start=begin, step=LANES * blocks) as i:
                        if ahead and blocks > 1:
                            self.ahead(i, ahead)
                        places = [i + block * LANES for block in range(blocks)]
                        for place, result in zip(places, [value(at, self.load(at)) for at in places], strict=True):
                            past = self.past_caches and blocks > 1
                            k.store_f32(result, self.target + place * SIZE[self.go], self.go, past)
            with bound, k.loop(self.blocks, step=LANES) as i:
                result = saturated(k, value(i, self.load(i)), flag, self.go)
                k.store_f32(result, self.target + i * SIZE[self.go], self.go)
        with k.when(self.rest > 0):
            result = saturated(k, value(self.blocks, self.load_rest()), flag, self.go)
            k.store_f32(result, self.spare, self.go)
            self._move(self.go, self.spare, self.target + self.blocks * SIZE[self.go])


def _outer_offsets(k: Kernel, desc: Val, number: Val) -> tuple[Val, Val]:
    """Byte offsets of a row of the source and of the target."""
    last = OUTER - 1
    source = k.var(number * k.field(desc, _SOURCE + 1 + last))
    target = k.var(number * k.field(desc, _TARGET + 1 + last))
    with k.when(number >= k.field(desc, _DIMS + last)):
        rest = number
        source.set(k.const(0))
        target.set(k.const(0))
        for a in reversed(range(OUTER)):
            n = k.field(desc, _DIMS + a)
            index = rest % n
            rest = rest / n
            source.set(source.get() + index * k.field(desc, _SOURCE + 1 + a))
            target.set(target.get() + index * k.field(desc, _TARGET + 1 + a))
    return source.get(), target.get()


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


def _reduce_row(work: _Work, start: float, step: object, combine: object, ahead: str = "") -> Val:
    """Fold a row over 16 lanes, then the lanes in pairs; `step(acc, x, index)` and `combine(a, b)` act on vectors.

    Whole groups of blocks go to accumulators of their own, so that one block need not wait for the one before it.
    Elements beyond the row in the last block are left out. `ahead`: what memory to fetch beside this pass;
    two passes share it, as one alone would ask faster than memory answers.
    """
    k, count = work.k, work.count
    totals = [k.var(start, vec(F32)) for _ in range(_UNROLL)]
    whole = count & -(LANES * _UNROLL)
    with k.loop(whole, step=LANES * _UNROLL) as i:
        if ahead:
            work.ahead(i, ahead)
        for number, total in enumerate(totals):
            at = i + number * LANES
            total.set(step(total.get(), work.load(at), at))  # type: ignore[operator]
    with k.loop(work.blocks, start=whole, step=LANES) as i:
        totals[0].set(step(totals[0].get(), work.load(i), i))  # type: ignore[operator]
    with k.when(work.blocks < count):
        live = k.lane_index() < k.splat(k.convert(count - work.blocks, "trunc", I32))
        first = totals[0].get()
        totals[0].set(k.select(live, step(first, work.load_rest(), work.blocks), first))  # type: ignore[operator]
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
    """The larger of a and b; a NaN in b is left out (the sum of exponentials brings it back)."""
    return lambda a, b, *_: k.select(b > a, b, a)


def _exponential(target: str, kind: str) -> Callable[..., Val]:
    """Terms of the sum: short ones where shares of it are rounded to f16."""
    return vmath.half_exp if (target, kind) == ("f16", "plain") else vmath.exp


def _emit_softmax(work: _Work, kind: str, target: str) -> None:
    k, exp = work.k, _exponential(target, kind)
    top = _reduce_row(work, float("-inf"), _maximum(k), _maximum(k), ahead="target")

    def accumulate(acc: Val, x: Val, index: Val) -> Val:
        e = exp(k, x - top, positive=False)
        if kind == "plain":
            k.store(e, work.kept(index))
        return acc + e

    total = _reduce_row(work, 0.0, accumulate, lambda a, b: a + b, ahead="source")
    if kind == "log":
        shift = vmath.log(k, total)
        work.put_all(lambda _i, x: (x - top) - shift)
        return
    scale = 1.0 / total
    work.put_all(lambda i, _x: k.load(work.kept(i), vec(F32)) * scale)


def _emit_norm(work: _Work, dtype: str, kind: str) -> None:
    k, desc = work.k, work.desc
    length = k.splat(k.convert(work.count, "sitofp", F32))
    mean = k.const(0.0, vec(F32))
    if kind == "layer":
        mean = _reduce_row(work, 0.0, lambda a, x, _i: a + x, lambda a, b: a + b) / length

    def square(acc: Val, x: Val, _index: Val) -> Val:
        d = x - mean
        return k.fma(d, d, acc)

    variance = _reduce_row(work, 0.0, square, lambda a, b: a + b, ahead="target") / length
    scale = 1.0 / vmath.sqrt(k, variance + k.splat(k.float_field(desc, _EPSILON)))
    gamma, beta = k.field(desc, _GAMMA), k.field(desc, _BETA)
    size, spare = SIZE[dtype], k.alloca(LANES * 4)

    def general(i: Val, x: Val) -> Val:
        left = k.minimum(work.count - i, LANES)
        factors = []
        for source, neutral in ((gamma, 1.0), (beta, -0.0)):
            factor = k.var(neutral, vec(F32))
            with k.when(source.ne(0)):
                at = k.var(source + i * size)
                with k.when(left < LANES):
                    with k.loop(left * size) as byte:
                        k.store(k.load(source + i * size + byte, I8), spare + byte)
                    at.set(spare)
                factor.set(k.load_f32(at.get(), dtype))
            factors.append(factor.get())
        return k.fma((x - mean) * scale, *factors)

    def usual(i: Val, x: Val) -> Val:
        return k.fma((x - mean) * scale, k.load_f32(gamma + i * size, dtype), k.load_f32(beta + i * size, dtype))

    with k.either(gamma.ne(0) & beta.ne(0) & (work.count & (LANES - 1)).eq(0)) as (both, other):
        with both:
            work.put_all(usual, ahead="source")
        with other:
            work.put_all(general, ahead="source")


def _emit_narrow(k: Kernel, source: str, target: str, kind: str) -> None:
    """narrow(desc, scratch, first row, end row): softmax of rows of at most 16 elements, sixteen rows at a time.

    Lanes are rows; element sums go in the same pairs as those of one row over its lanes do.
    """
    with k.function("narrow", [I64] * 4) as (desc, row, lo, hi):
        count, flag = k.field(desc, _COUNT), k.field(desc, _SATURATE)
        steps = (k.field(desc, _SOURCE_STEP), k.field(desc, _TARGET_STEP))
        sums = k.alloca(LANES * 64)
        for place in range(LANES):
            k.store(k.const(0.0, vec(F32)), sums + place * 64)
        with k.loop(hi, start=lo, step=LANES) as first:
            rows = k.minimum(hi - first, LANES)
            with k.loop(rows) as lane:
                come = k.field(desc, _SOURCE) + _outer_offsets(k, desc, first + lane)[0]
                with k.loop(count) as j:
                    k.store(k.load_f32(come + j * steps[0], source, 1), row + j * 64 + lane * 4)
            top = k.var(k.load(row, vec(F32)))
            with k.loop(count, start=1) as j:
                top.set(_maximum(k)(top.get(), k.load(row + j * 64, vec(F32))))  # type: ignore[operator]
            with k.loop(count) as j:
                e = _exponential(target, kind)(k, k.load(row + j * 64, vec(F32)) - top.get(), positive=False)
                k.store(e, sums + j * 64)
            parts = [k.load(sums + place * 64, vec(F32)) for place in range(LANES)]
            while len(parts) > 1:
                parts = [a + b for a, b in zip(parts[: len(parts) // 2], parts[len(parts) // 2 :], strict=True)]
            scale = vmath.log(k, parts[0]) if kind == "log" else 1.0 / parts[0]
            with k.loop(count) as j:
                x, e = k.load(row + j * 64, vec(F32)), k.load(sums + j * 64, vec(F32))
                y = (x - top.get()) - scale if kind == "log" else e * scale
                k.store(saturated(k, y, flag, target), row + j * 64)
            with k.loop(rows) as lane:
                go = k.field(desc, _TARGET) + _outer_offsets(k, desc, first + lane)[1]
                with k.loop(count) as j:
                    k.store_f32(k.load(row + j * 64 + lane * 4, vec(F32, 1)), go + j * steps[1], target)
