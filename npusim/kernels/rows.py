"""Operators over whole rows: softmax, log-softmax, layer norm, RMS norm.

A row is read once into fp32 scratch (from any stride, or from the split columns of FRACTAL_NZ), worked on there, and
written with one rounding; dense rows are read and written where they lie. Sums run over 16 fixed lanes
which are then added in pairs, so a result depends on the row alone. `softmax` and `layer_norm` describe a task as a
Call.
Kernel names: `softmax:<in>:<out>:<plain|log>`, `layernorm:<in>:<out>:<parameter dtype>:<layer|rms>`; with `:stream`
behind for dense rows that are more than the last-level cache holds, whose results go past the caches, and `:turns` or
`:pairs` where of many such rows three are worked on at a time, each in a pass of its own, or two where a sample of
blocks is enough for the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from npusim.kernels.cpu import host
from npusim.kernels.desc import Call, call, split_count
from npusim.kernels.dispatch import scratch
from npusim.kernels.elementwise import View, fit_rank, passes_caches
from npusim.kernels.epilogue import saturated
from npusim.kernels.ir import F32, I1, I64, LANES, RAW, SIZE, Kernel, Val, vec
from npusim.kernels.row_passes import (
    BESIDE_MOST,
    CHUNK,
    COUNT,
    GROUP,
    LINE,
    OUTER,
    PAD,
    ROWS,
    SAMPLED,
    SATURATE,
    SEGMENT,
    SEGMENTS,
    SOURCE,
    SOURCE_STEP,
    TARGET,
    TARGET_STEP,
    Norm,
    Operator,
    Softmax,
    Straight,
    Sums,
    Work,
    emit_row,
    emit_rows,
    fits,
    outer_offsets,
    sample,
    samples,
)

_STREAM, _TURNS, _PAIRS = ":stream", ":turns", ":pairs"
# Of each of the rows that are worked on at a time: few enough for passes to overlap.
_STRIP_BYTES, _WIDE_STRIP_BYTES = 512, 256
_SHORT = 1024  # elements of a row of which several fit the nearest cache
_MANY = 16  # rows of a part, among which the two turns that fill and empty the line of rows do not weigh


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
    dense = (shape.segments, length) == (1, shape.count) and _dense(source) and _dense(target)
    if dense and not any(step % LINE for step in target.outer):
        views = [View(side.address, side.dtype, ()) for side in (source, target)]
        if rows > 1 and passes_caches(rows * shape.count, views[:1], views[1]):
            family, *types = name.split(":")
            whole = shape.count % (LANES * GROUP) == 0 and (family == "softmax" or all(extra[:2]))
            # A norm of fp32 waits for memory, which CPUs of long registers overlap with its short passes by themselves.
            norm = family == "layernorm" and host().wide and source.dtype == "f32"
            overlap = whole and chunk >= _MANY and not saturate and not norm
            pairs = family == "softmax" and shape.count >= SAMPLED and samples(*types)
            name += _STREAM if not overlap else _PAIRS if pairs else _TURNS
    live = rows if shape.count else 0
    scratch_bytes = (max(padded, shape.segments * length, LANES * LANES) + LANES) * 4
    scratch_bytes += padded * SIZE[target.dtype] if name.endswith((_TURNS, _PAIRS)) else 0
    if shape.count <= _SHORT:
        scratch_bytes *= BESIDE_MOST
    return call(name, -(-live // chunk), scratch_bytes, fields + extra)


def _dense(side: Rows) -> bool:
    return side.element == SIZE[side.dtype]


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit a `softmax` or `layernorm` kernel."""
    source, target, *rest = parameters.split(":")
    form = f":{rest[-1]}"
    operator: Operator = Norm(k, source, *rest[:2]) if family == "layernorm" else Softmax(k, source, target, rest[0])
    if family == "layernorm" and k.cpu.halved and "f16" in (source, target, rest[0]):
        # Of conversions, which are half of a norm's work, those of 512 bits take shuffles to join the halves.
        k.short_registers()
    if form in (_TURNS, _PAIRS):
        _emit_turns(k, operator, (source, target), sampled=form == _PAIRS)
        return
    past_caches = form == _STREAM
    _emit_read(k, source)
    _emit_write(k, target)
    with k.function("apart", [I64] * 4) as (desc, row, come, go):
        work = Work(k, desc, row, read=lambda: k.call("read", desc, come, row))
        work.read()
        emit_row(work, operator)
        k.call("write", desc, row, go)
    _emit_straight(k, operator, (source, target), past_caches)
    beside = operator.beside
    _emit_beside(k, operator, (source, target), past_caches)
    if isinstance(operator, Softmax):
        _emit_narrow(k, source, target, operator)
    with k.main() as (desc, part, ctx):
        row, count = scratch(k, ctx), k.field(desc, COUNT)
        lo, hi = _part_rows(k, desc, part)
        # Lanes beyond the count, where there are any, are zeros.
        one = k.field(desc, PAD).eq(count) & k.field(desc, SEGMENTS).eq(1)
        dense = k.field(desc, SOURCE_STEP).eq(SIZE[source]) & k.field(desc, TARGET_STEP).eq(SIZE[target])
        straight = one & dense
        begin = k.var(lo)
        if family == "softmax":
            with k.when(one & (count <= LANES)):
                k.call("narrow", desc, row, lo, hi)
                begin.set(hi)
        short = straight & k.field(desc, SATURATE).eq(0) & (count <= _SHORT) & operator.may_beside(desc)
        end = begin.get() + k.select(short, (hi - begin.get()) / beside * beside, 0)
        with k.loop(end, start=begin.get(), step=beside) as number:
            k.call("beside", desc, row, number)
        with k.loop(hi, start=end) as number:
            places = outer_offsets(k, desc, number)
            come, go = k.field(desc, SOURCE) + places[0], k.field(desc, TARGET) + places[1]
            with k.either(straight) as (plain, other):
                with plain:
                    k.call("straight", desc, row, come, go)
                with other:
                    k.call("apart", desc, row, come, go)
        if past_caches:
            k.fence()


def _emit_straight(k: Kernel, operator: Operator, dtypes: tuple[str, str], past_caches: bool) -> None:
    """straight(desc, scratch, source, target): a dense row."""
    with k.function("straight", [I64] * 4) as (desc, row, come, go):
        work = Straight(k, desc, row, (come, go), dtypes, past_caches)
        emit_row(work, operator)


def _emit_beside(k: Kernel, operator: Operator, dtypes: tuple[str, str], past_caches: bool) -> None:
    """beside(desc, scratch, first row): short dense rows beside each other, each with scratch of its own."""
    with k.function("beside", [I64] * 3) as (desc, row, first):
        pitch, works = ((k.field(desc, COUNT) + 2 * LANES - 1) & -LANES) * 4, []
        for number in range(operator.beside):
            come, go = outer_offsets(k, desc, first + number)
            places = k.field(desc, SOURCE) + come, k.field(desc, TARGET) + go
            works.append(Straight(k, desc, row + pitch * number, places, dtypes, past_caches))
        emit_rows(works, operator)


def _part_rows(k: Kernel, desc: Val, part: Val) -> tuple[Val, Val]:
    """First row of a part, and the one after its last."""
    lo = part * k.field(desc, CHUNK)
    return lo, k.minimum(lo + k.field(desc, CHUNK), k.field(desc, ROWS))


def _emit_turns(k: Kernel, operator: Operator, dtypes: tuple[str, str], sampled: bool) -> None:
    """Several rows at a time: the first pass of one, the second of another, the results of a third.

    So memory is read and written while others compute. In the first and last turns a part's end rows stand in for those
    that are not there, and results go to scratch.
    """
    if sampled:
        _emit_straight(k, operator, dtypes, past_caches=False)
    with k.main() as (desc, part, ctx):
        # Sums rest on the stack between strips: none across cache lines.
        k.b.function.attributes.alignstack = LINE
        row, count = scratch(k, ctx), k.field(desc, COUNT)
        lo, hi = _part_rows(k, desc, part)
        nowhere = row + (count + LANES) * 4
        waiting, settled, *totals = (k.var(0.0, vec(F32)) for _ in range(2 + operator.sums))
        failed = k.var(k.const(0, I1))
        with k.loop(hi + 2, start=lo) as number:
            rows = [k.minimum(k.maximum(number - turn, lo), hi - 1) for turn in range(3)]
            places = [outer_offsets(k, desc, index) for index in rows]
            comes = [k.field(desc, SOURCE) + come for come, _ in places]
            target = k.select((number < lo + 2) | failed.get(), nowhere, k.field(desc, TARGET) + places[2][1])
            works = [Straight(k, desc, row, (come, target), dtypes, past_caches=True) for come in comes]
            first, now = operator.first(works[0]), operator.settle(works[1], waiting.get())
            if sampled and first is not None:
                waiting.set(sample(works[0], first))
                first = None
            sums = [Sums(works[1], operator.second(works[1], now))]
            if first is not None:
                sums.insert(0, Sums(works[0], first))
            results = operator.results(works[2], settled.get(), tuple(total.get() for total in totals))
            if SIZE[dtypes[0]] == 2 and (first is None or k.cpu.wide):
                _emit_together(k, count, sums, works[2], results, operator.leaves)
            else:
                _emit_strips(k, count, sums, works[2], results, dtypes[0])
            settled.set(now)
            for total, value in zip(totals, sums[-1].folded(), strict=True):
                total.set(value)
            if sampled:
                failed.set(~fits(totals[0].get(), operator) & (number > lo))
                with k.when(failed.get()):
                    k.call("straight", desc, row, comes[1], k.field(desc, TARGET) + places[1][1])
            elif first is not None:
                waiting.set(sums[0].folded()[0])
        k.fence()


def _emit_together(
    k: Kernel, count: Val, sums: list[Sums], making: Straight, results: Callable[[Val, Val], Val], leaves: bool
) -> None:
    """The passes of a turn over their rows, group by group.

    For elements of two bytes; where memory has more to do, it had better read and write some lines at a time. What a
    pass `leaves` lies over what the other's results were made of, which therefore come first; else they come last, as
    what is read after them would wait for them wherever rows agree in the address within a page. The row after those
    looked into is asked for.
    """
    terms = [each.terms(k.const(0), count) for each in sums]
    with k.loop(count, step=LANES * GROUP) as i:
        sums[-1].work.ahead(i, "after")
        if leaves:
            making.put_group(results, i)
        for each, found in zip(sums, terms, strict=True):
            each.take_group(found, i)
        if not leaves:
            making.put_group(results, i)


def _emit_strips(
    k: Kernel, count: Val, sums: list[Sums], making: Straight, results: Callable[[Val, Val], Val], dtype: str
) -> None:
    """The passes of a turn over their rows, strip by strip.

    Each is one strip behind the one before it: a CPU tells loads from stores that wait by the address within a page, in
    which long rows agree.
    """
    strip = (_WIDE_STRIP_BYTES if k.cpu.wide else _STRIP_BYTES) // SIZE[dtype]
    last = sums[-1]
    terms = last.terms(k.const(0), count)
    with k.loop(count + 2 * strip, step=strip) as begin:
        if last is not sums[0]:
            with k.when(begin < count):
                sums[0].take_groups(begin, k.minimum(begin + strip, count), "source")
        # Before the second pass leaves its terms where those of the row before lie.
        late = begin - strip
        with k.when((late >= 0) & (late < count)):
            making.put_groups(results, late, k.minimum(late + strip, count))
        late = late - strip
        with k.when(late >= 0):
            ahead = "both" if last is sums[0] else ""
            last.take_groups(late, k.minimum(late + strip, count), ahead, terms)


def _emit_read(k: Kernel, dtype: str) -> None:
    """read(desc, source, scratch): all segments as fp32."""
    size = SIZE[dtype]
    with k.function("read", [I64] * 3) as (desc, source, row):
        step, element = k.field(desc, SOURCE + 1 + OUTER), k.field(desc, SOURCE + 2 + OUTER)
        length, count = k.field(desc, SEGMENT), k.field(desc, COUNT)
        with k.loop(k.field(desc, SEGMENTS)) as s:
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
        step, element = k.field(desc, TARGET + 1 + OUTER), k.field(desc, TARGET + 2 + OUTER)
        length, count, flag = k.field(desc, SEGMENT), k.field(desc, COUNT), k.field(desc, SATURATE)
        with k.loop(k.field(desc, SEGMENTS)) as s:
            to, here = target + s * step, row + s * length * 4
            live = k.minimum(count - s * length, length)
            blocks = k.select(element.eq(size), live & -LANES, 0)
            for begin, end, lanes in ((k.const(0), blocks, LANES), (blocks, live, 1)):
                with k.loop(end, start=begin, step=lanes) as i:
                    x = saturated(k, k.load(here + i * 4, vec(F32, lanes)), flag, dtype)
                    k.store_f32(x, to + i * (size if lanes > 1 else element), dtype)
            with k.loop(length, start=live) as i:
                k.store(k.const(0, kind), to + i * element)


def _emit_narrow(k: Kernel, source: str, target: str, operator: Softmax) -> None:
    """narrow(desc, scratch, first row, end row): softmax of rows of at most 16 elements, sixteen rows at a time.

    Lanes are rows; element sums go in the same pairs as those of one row over its lanes do.
    """
    with k.function("narrow", [I64] * 4) as (desc, row, lo, hi):
        count, flag = k.field(desc, COUNT), k.field(desc, SATURATE)
        steps = (k.field(desc, SOURCE_STEP), k.field(desc, TARGET_STEP))
        sums = k.alloca(LANES * 64)
        for place in range(LANES):
            k.store(k.const(0.0, vec(F32)), sums + place * 64)
        with k.loop(hi, start=lo, step=LANES) as first:
            rows = k.minimum(hi - first, LANES)
            with k.loop(rows) as lane:
                come = k.field(desc, SOURCE) + outer_offsets(k, desc, first + lane)[0]
                with k.loop(count) as j:
                    k.store(k.load_f32(come + j * steps[0], source, 1), row + j * 64 + lane * 4)
            top = k.var(k.load(row, vec(F32)))
            with k.loop(count, start=1) as j:
                top.set(operator.maximum(top.get(), k.load(row + j * 64, vec(F32))))
            with k.loop(count) as j:
                k.store(operator.term(k.load(row + j * 64, vec(F32)), top.get()), sums + j * 64)
            parts = [k.load(sums + place * 64, vec(F32)) for place in range(LANES)]
            while len(parts) > 1:
                parts = [a + b for a, b in zip(parts[: len(parts) // 2], parts[len(parts) // 2 :], strict=True)]
            scale = operator.scale(parts[0])
            with k.loop(count) as j:
                x, e = k.load(row + j * 64, vec(F32)), k.load(sums + j * 64, vec(F32))
                y = (x - top.get()) - scale if operator.log else e * scale
                k.store(saturated(k, y, flag, target), row + j * 64)
            with k.loop(rows) as lane:
                go = k.field(desc, TARGET) + outer_offsets(k, desc, first + lane)[1]
                with k.loop(count) as j:
                    k.store_f32(k.load(row + j * 64 + lane * 4, vec(F32, 1)), go + j * steps[1], target)
