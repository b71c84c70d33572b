"""Elementwise kernels: any expression over broadcast, strided operands, one rounding at the store.

`elementwise` describes one as a Call. Operands are byte-strided views over a common shape of up to six dimensions
(stride 0 broadcasts); dimensions that lie together are merged first. Writing over an operand of the same layout is
allowed.
Kernel names: `map:<input dtypes, comma separated>:<output dtype>:<expression>` (see npusim.kernels.expressions), and
`flat:…` with the same parameters where all operands are one dense run: next to no work besides the elements' own.
`stream:…` is `flat:…` for more than the last-level cache holds: results go past the caches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import llvmlite.ir as ir

from npusim.kernels import expressions, vmath
from npusim.kernels.cpu import last_cache_bytes
from npusim.kernels.desc import Call, call, split_count
from npusim.kernels.epilogue import saturated
from npusim.kernels.ir import FLOATS, HALVES, I1, I64, LANES, RAW, SIZE, Kernel, Val, Var

RANK = 6
_SPLIT, _CHUNK, _DIMS, _SATURATE, _OPERANDS = 1, 2, 3, 3 + RANK, 4 + RANK
_OPERAND_FIELDS = 1 + RANK
_FEW, _FEW_WIDE = 16, 64  # blocks: of fewer, those made twice would weigh
_UNROLL = 4  # blocks of 16 lanes in flight: one alone waits for the latency of its own chain of operations
_LINE = 64  # bytes of a cache line
_AHEAD = 2048  # bytes: the CPU's own prefetching stops at the end of a 4 KiB page
_NAME = re.compile(r"[a-z_0-9]+(?=\()")
_LONG = {"tanh", "erf", "gelu"}  # a chain of dependent operations too long for several blocks to overlap by themselves
_BESIDE_LONG = {"add", "sub", "mul", "relu"}  # functions of floats alone, whose code fits vectors of any length
_SLOW = {"exp", "log", "pow", "tanh", "erf", "gelu", "sigmoid", "silu", "div", "sqrt", "rsqrt", "mish", "softplus"}


@dataclass(frozen=True)
class View:
    """A strided operand: address of its first element, element type, byte stride per dimension."""

    address: int
    dtype: str
    strides: tuple[int, ...]

    @staticmethod
    def dense(address: int, dtype: str, shape: Sequence[int], onto: Sequence[int] | None = None) -> View:
        """Row-major tensor, broadcast to shape `onto` by NumPy's rule; raises ValueError where it does not fit."""
        target = tuple(shape) if onto is None else tuple(onto)
        strides, step = [], SIZE[dtype]
        for n in reversed(shape):
            strides.append(0 if n == 1 else step)
            step *= n
        full = tuple([0] * (len(target) - len(shape)) + strides[::-1])
        aligned = (1,) * (len(target) - len(shape)) + tuple(shape)
        if len(full) != len(target) or any(n not in (1, t) for n, t in zip(aligned, target, strict=True)):
            raise ValueError(f"shape {tuple(shape)} does not broadcast to {target}")
        return View(address, dtype, full)


def merged(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Drop size-1 dimensions and join neighbours that every operand steps through evenly."""
    dims: list[int] = []
    out: list[list[int]] = [[] for _ in strides]
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        steps = [s[axis] for s in strides]
        if dims and all(o[-1] == step * n for o, step in zip(out, steps, strict=True)):
            dims[-1] *= n
            for o, step in zip(out, steps, strict=True):
                o[-1] = step
        else:
            dims.append(n)
            for o, step in zip(out, steps, strict=True):
                o.append(step)
    if not dims:
        return [1], [[0] for _ in strides]
    return dims, out


def fit_rank(shape: Sequence[int], strides: Sequence[Sequence[int]], rank: int) -> tuple[list[int], list[list[int]]]:
    """Merged dimensions, padded in front to `rank`; raises ValueError where more remain."""
    dims, steps = merged(shape, strides)
    if len(dims) > rank:
        raise ValueError(f"{len(dims)} dimensions remain of shape {tuple(shape)} after merging; at most {rank} work")
    front = rank - len(dims)
    return [1] * front + dims, [[0] * front + s for s in steps]


def split_axis(dims: Sequence[int], parts: int, granule: int) -> tuple[int, int]:
    """(axis, chunk) that cuts a box into about `parts`; chunks of the last axis are multiples of `granule`."""
    last = len(dims) - 1
    axis = next((a for a, n in enumerate(dims) if n >= 2 * parts or (n >= parts and n % parts == 0)), -1)
    if axis < 0:
        axis = max(range(len(dims)), key=lambda a: dims[a] if a < last else dims[a] / granule)
    chunk = max(1, -(-dims[axis] // parts))
    return axis, -(-chunk // granule) * granule if axis == last else chunk


def elementwise(
    expression: str,
    inputs: Sequence[View],
    out: View,
    shape: Sequence[int],
    parameters: Sequence[float] = (),
    saturate: bool = False,
) -> Call:
    """Call computing `out = expression(inputs, parameters)` over `shape`.

    `saturate` applies to fp16 and bf16 output as in `Epilogue`. An empty shape dimension gives a Call of zero parts.
    """
    views = [*inputs, out]
    dims, strides = fit_rank(shape, [v.strides for v in views], RANK)
    total = 1
    for n in dims:
        total *= n
    per_element_us = 1.0e-3 if any(f"{name}(" in expression for name in _SLOW) else 1.5e-4
    parts = split_count(total * per_element_us, max(1, total // 64))
    flat = total == dims[-1] and all(steps[-1] == SIZE[v.dtype] for v, steps in zip(views, strides, strict=True))
    if flat:
        dims = [total]
    axis, chunk = split_axis(dims, parts, 64)
    fields: list[int | float] = [chunk, total, int(saturate)] if flat else [axis, chunk, *dims, int(saturate)]
    for view, steps in zip(views, strides, strict=True):
        fields += [view.address] if flat else [view.address, *steps]
    fields += [float(p) for p in parameters]
    family = ("stream" if total and passes_caches(total, inputs, out) else "flat") if flat else "map"
    parameter_text = f"{','.join(v.dtype for v in inputs)}:{out.dtype}:{expression.replace(' ', '')}"
    return call(f"{family}:{parameter_text}", -(-dims[axis] // chunk) if total else 0, 0, fields)


def passes_caches(count: int, inputs: Sequence[View], out: View) -> bool:
    """Whether `count` elements are so many that their results had better go past the caches.

    A line that is stored whole then need not be read first. Results that lie on an operand have their lines already.
    """
    size = count * (SIZE[out.dtype] + sum(SIZE[view.dtype] for view in inputs))
    apart = all(view.address != out.address for view in inputs)
    return size >= last_cache_bytes() and apart and out.address % _LINE == 0


@dataclass
class _Operand:
    """Code-generation state of one operand."""

    dtype: str
    first: int
    base: Val
    spare: Val
    strides: list[Val]
    held: Val


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit `map:<inputs>:<output>:<expression>` or `flat:…`."""
    ins, target, expression = parameters.split(":")
    dtypes = [*(ins.split(",") if ins else []), target]
    for size in sorted({SIZE[d] for d in dtypes}):
        emit_lane_copy(k, size)
    if family in ("flat", "stream"):
        _emit_flat(k, dtypes, expression, past_caches=family == "stream")
        return
    with k.main() as (desc, part, _ctx):
        dims, lo = split_box(k, desc, part, _SPLIT, _CHUNK, _DIMS, RANK)
        operands = []
        for number, dtype in enumerate(dtypes):
            first = _OPERANDS + number * _OPERAND_FIELDS
            strides = [k.field(desc, first + 1 + a) for a in range(RANK)]
            shift = lo * k.load(desc + 8 * (first + 1) + k.field(desc, _SPLIT) * 8)
            spare = k.alloca(LANES * 8)
            operands.append(_Operand(dtype, first, k.field(desc, first) + shift, spare, strides, k.const(0, I1)))
        flag = k.field(desc, _SATURATE)
        end = _OPERANDS + len(dtypes) * _OPERAND_FIELDS
        _emit_nest(k, flag, dims, operands, expression, _scalars(k, desc, end, expression), 0)


def _scalars(k: Kernel, desc: Val, first: int, expression: str) -> dict[str, Val]:
    """The expression's parameters, which begin at a descriptor field."""
    return {f"p{i}": k.splat(k.float_field(desc, first + i)) for i in range(8) if f"p{i}" in expression}


def _emit_flat(k: Kernel, dtypes: Sequence[str], expression: str, past_caches: bool) -> None:
    """Descriptor: chunk, elements, saturation, addresses, parameters. What is less than a block has its own function,
    so that small tasks of whole blocks need neither its registers nor its buffers."""
    with k.function("rest", [I64] * 2) as (desc, part):
        flag, count, operands, scalars = _flat_part(k, desc, part, dtypes, expression)
        _emit_rest(k, flag, count & -LANES, count, operands, expression, scalars)
    with k.main() as (desc, part, _ctx):
        if expressions.is_staged(k, expression, dtypes[-1]):
            # What registers cannot hold should lie across no cache line.
            k.b.function.attributes.alignstack = _LINE
        flag, count, operands, scalars = _flat_part(k, desc, part, dtypes, expression, spare=False)
        steps = [k.const(LANES * SIZE[dtype]) for dtype in dtypes]
        _emit_blocks(k, flag, count >> 4, steps, operands, expression, scalars, past_caches)
        with k.when((count & (LANES - 1)).ne(0)):
            k.call("rest", desc, part)
        if past_caches:
            k.fence()


def _flat_part(
    k: Kernel, desc: Val, part: Val, dtypes: Sequence[str], expression: str, spare: bool = True
) -> tuple[Val, Val, list[_Operand], dict[str, Val]]:
    """Saturation flag, number of elements, operands and parameters of a part; buffers only where there is a rest."""
    lo = part * k.field(desc, 1)
    count = k.minimum(k.field(desc, 2) - lo, k.field(desc, 1))
    operands = []
    for number, dtype in enumerate(dtypes):
        base, size = k.field(desc, 4 + number) + lo * SIZE[dtype], k.const(SIZE[dtype])
        buffer = k.alloca(LANES * 8) if spare else k.const(0)
        operands.append(_Operand(dtype, number, base, buffer, [size, size], k.const(0, I1)))
    return k.field(desc, 3), count, operands, _scalars(k, desc, 4 + len(dtypes), expression)


def split_box(k: Kernel, desc: Val, part: Val, split: int, chunk: int, first: int, rank: int) -> tuple[list[Val], Val]:
    """Dimensions of this part's box and its start along the split axis."""
    axis, step = k.field(desc, split), k.field(desc, chunk)
    lo = part * step
    dims = []
    for a in range(rank):
        n = k.field(desc, first + a)
        dims.append(k.select(axis.eq(a), k.minimum(n - lo, step), n))
    return dims, lo


def _emit_nest(
    k: Kernel, flag: Val, dims: list[Val], operands: list[_Operand], text: str, scalars: dict[str, Val], axis: int
) -> None:
    if axis == RANK - 2:
        _emit_plane(k, flag, dims[-2:], operands, text, scalars)
        return
    saved = [o.base for o in operands]
    with k.loop(dims[axis]) as i:
        for o in operands:
            o.base = o.base + i * o.strides[axis]
        _emit_nest(k, flag, dims, operands, text, scalars, axis + 1)
    for o, base in zip(operands, saved, strict=True):
        o.base = base


def _emit_plane(
    k: Kernel, flag: Val, dims: list[Val], operands: list[_Operand], text: str, scalars: dict[str, Val]
) -> None:
    """The last two dimensions. Rows of just 16 or 8 elements (a channel block) are blocks of one long row."""
    whole, paired = dims[1].eq(LANES), dims[1].eq(LANES // 2)
    for o in operands:
        (outer, inner), size = o.strides[-2:], SIZE[o.dtype]
        whole = whole & (inner.eq(size) | (inner.eq(0) & outer.eq(0)))
        paired = paired & ((inner.eq(size) & (outer.eq(size * LANES // 2) | outer.eq(0))) | (inner.eq(0) & outer.eq(0)))
    paired = paired & operands[-1].strides[-2].ne(0)
    saved = [o.base for o in operands]
    with k.loop(k.select(whole | paired, 1, dims[0])) as i:
        for o in operands:
            o.base = o.base + i * o.strides[-2]
        simple = _spread_scalars(k, operands, paired)
        blocks = k.select(paired, dims[0] >> 1, k.select(whole, dims[0], k.select(simple, dims[1] >> 4, 0)))
        steps = [
            k.select(paired, o.strides[-2] * 2, k.select(whole, o.strides[-2], o.strides[-1] * LANES)) for o in operands
        ]
        _emit_blocks(k, flag, blocks, steps, operands, text, scalars)
        # An odd row of eight is left over from the pairs.
        odd = k.select(paired, dims[0] & 1, 0)
        begin = k.select(whole, LANES, k.select(simple, dims[1] & -LANES, 0))
        begin = k.select(paired, (1 - odd) * LANES, begin)
        for o in operands:
            o.base = o.base + odd * (dims[0] - 1) * o.strides[-2]
        _emit_rest(k, flag, begin, dims[1], operands, text, scalars)
    for o, base in zip(operands, saved, strict=True):
        o.base = base


def _spread_scalars(k: Kernel, operands: list[_Operand], paired: Val) -> Val:
    """Fill the buffers of operands that are constant along the row, or the same in both rows of a pair.

    Returns whether all others lie together.
    """
    simple = operands[-1].strides[-1].eq(SIZE[operands[-1].dtype])
    for o in operands[:-1]:
        size, step = SIZE[o.dtype], o.strides[-1]
        o.held = step.eq(0) | (paired & o.strides[-2].eq(0))
        with k.when(o.held):
            half = LANES // 2
            k.call(f"lanes{size}", o.base, step, o.spare, size, half)
            k.call(f"lanes{size}", o.spare, size, o.spare + half * size, size, half)
        simple = simple & (step.eq(0) | step.eq(size))
    return simple


def _emit_blocks(
    k: Kernel,
    flag: Val,
    blocks: Val,
    steps: list[Val],
    operands: list[_Operand],
    text: str,
    scalars: dict[str, Val],
    past_caches: bool = False,
) -> None:
    """Whole blocks of 16 lanes straight from memory, `steps` bytes apart."""
    if operands[-1].dtype not in HALVES:
        _emit_run(k, None, blocks, steps, operands, text, scalars, past_caches)
        return
    # Saturation is rarely on; without it the blocks do none of its work.
    with k.either(flag.eq(0)) as (free, bound):
        with free:
            _emit_run(k, None, blocks, steps, operands, text, scalars, past_caches)
        with bound:
            _emit_run(k, flag, blocks, steps, operands, text, scalars)


def _emit_run(
    k: Kernel,
    flag: Val | None,
    blocks: Val,
    steps: list[Val],
    operands: list[_Operand],
    text: str,
    scalars: dict[str, Val],
    past_caches: bool = False,
) -> None:
    """The blocks with or without (None) saturation, several in flight."""
    sources, out = operands[:-1], operands[-1]
    starts = [k.select(o.held, o.spare, o.base) for o in sources]

    def taken(index: Val) -> dict[str, Val]:
        names = dict(scalars)
        for number, (o, start) in enumerate(zip(sources, starts, strict=True)):
            names[f"x{number}"] = expressions.load(k, start + index * steps[number], o.dtype)
        return names

    def put(value: Val, index: Val) -> None:
        expressions.store(k, value, out.base + index * steps[-1], out.dtype)

    def put_group(values: list[Val], index: Val, late: int = 0) -> None:
        """Results of a group, or of blocks so `late`: those that come before the first are stored upon it."""
        if past_caches and late % _UNROLL == 0:
            place = out.base + k.maximum(index - late, 0) * steps[-1]
            expressions.store_past(k, values, place, out.dtype)
            return
        for block, value in enumerate(values):
            place = out.base + k.maximum(index + (block - late), 0) * steps[-1]
            expressions.store(k, value, place, out.dtype, past_caches)

    begin = k.const(0)
    if flag is None:
        line = _Line(k) if expressions.is_staged(k, text, out.dtype) else None
        together = blocks & -_UNROLL
        together = k.select(blocks >= (_FEW_WIDE if k.cpu.wide else _FEW), together, 0) if line else together
        woven = k.cpu.wide and all(o.dtype in FLOATS for o in operands) and _is_long(text)
        with k.loop(together, step=_UNROLL) as i:
            # What is read CPUs of long registers fetch better by themselves; what goes past the caches need not come.
            wanted = slice(len(sources) if k.cpu.wide else 0, len(sources) if past_caches else None)
            _prefetch_group(k, i, [*starts, out.base][wanted], steps[wanted], operands[wanted])
            if line:
                ways = [(taken(i + block), line.hand_on(block)) for block in range(_UNROLL)]
                values = [expressions.evaluate(k, text, names, out.dtype, hand_on) for names, hand_on in ways]
                put_group(values, i, line.late)
            else:
                names = [taken(i + block) for block in range(_UNROLL)]
                put_group((_evaluate_woven if woven else _evaluate_apart)(k, out.dtype, text, names), i)
        # What is still on the line is made once more.
        begin = k.maximum(together - line.late, 0) if line else together
    with k.loop(blocks, start=begin) as i:
        put(_evaluate(k, flag, out.dtype, text, taken(i)), i)


class _Line:
    """What blocks hand on where their function is cut: the code after a cut goes on with the block before.

    So the stages of a long chain of dependent operations belong to different blocks and overlap. Where there are
    registers enough it is the block of the group before, and a group's chains are independent of each other. The first
    blocks find zeros, and what becomes of those is overwritten by what the next ones find.
    """

    def __init__(self, k: Kernel) -> None:
        self.k, self._apart = k, _UNROLL if k.cpu.wide else 1
        self._held: list[dict[int, list[Var]]] = []

    @property
    def late(self) -> int:
        """How many blocks a result lags behind."""
        return len(self._held) * self._apart

    def hand_on(self, block: int) -> vmath.HandOn:
        """What gives the values of the block before at a cut, in exchange for those of a block of a group."""

        def exchange(cut: int, values: tuple[Val, ...]) -> tuple[Val, ...]:
            if cut == len(self._held):
                self._held.append({})
            slots = self._held[cut].setdefault(block % self._apart, [])
            if not slots:
                slots.extend(self._holder(value.type) for value in values)
            before = tuple(slot.get() for slot in slots)
            for slot, value in zip(slots, values, strict=True):
                slot.set(value)
            return before

        return exchange

    def _holder(self, kind: ir.Type) -> Var:
        entry = ir.IRBuilder(self.k.b.function.entry_basic_block)
        slot = entry.alloca(kind)
        entry.store(ir.Constant(kind, None), slot)
        return Var(self.k, slot, kind)


def _is_long(text: str) -> bool:
    names = set(_NAME.findall(text))
    return bool(names & _LONG) and names <= _LONG | _BESIDE_LONG


def _evaluate_apart(k: Kernel, dtype: str, text: str, taken: list[dict[str, Val]]) -> list[Val]:
    """Blocks one after the other."""
    return [_evaluate(k, None, dtype, text, names) for names in taken]


def _evaluate_woven(k: Kernel, dtype: str, text: str, taken: list[dict[str, Val]]) -> list[Val]:
    """Blocks as one long vector, whose operations therefore alternate.

    Chains of dependent operations one after the other would fill the CPU's scheduler with operations that wait.
    """
    level = taken
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [{name: k.join(a[name], b[name]) for name in a} for a, b in pairs]
    results = [expressions.evaluate(k, text, level[0], dtype)]
    while len(results) < len(taken):
        results = [half for result in results for half in k.halves(result)]
    return results


def _prefetch_group(k: Kernel, first: Val, bases: list[Val], steps: list[Val], operands: list[_Operand]) -> None:
    """Ask for the cache lines `_AHEAD` bytes after a group of blocks, those of the result too."""
    for base, step, o in zip(bases, steps, operands, strict=True):
        for line in range(0, _UNROLL * LANES * SIZE[o.dtype], 64):
            k.prefetch(base + first * step + (line + _AHEAD))


def _emit_rest(
    k: Kernel, flag: Val, begin: Val, count: Val, operands: list[_Operand], text: str, scalars: dict[str, Val]
) -> None:
    """Ragged and strided elements through a small buffer."""
    sources, out = operands[:-1], operands[-1]
    with k.loop(count, start=begin, step=LANES) as i:
        left = k.minimum(count - i, LANES)
        names = dict(scalars)
        for number, o in enumerate(sources):
            size, step = SIZE[o.dtype], o.strides[-1]
            with k.when(step.ne(0)):
                k.call(f"lanes{size}", o.base + i * step, step, o.spare, size, left)
            names[f"x{number}"] = expressions.load(k, o.spare, o.dtype)
        expressions.store(k, _evaluate(k, flag, out.dtype, text, names), out.spare, out.dtype)
        size, step = SIZE[out.dtype], out.strides[-1]
        k.call(f"lanes{size}", out.spare, size, out.base + i * step, step, left)


def _evaluate(k: Kernel, flag: Val | None, dtype: str, text: str, names: dict[str, Val]) -> Val:
    """The expression over one block of 16 lanes, ready to be stored."""
    value = expressions.evaluate(k, text, names, dtype)
    if flag is None or dtype not in HALVES:
        return value
    return saturated(k, expressions.to_float(k, value), flag, dtype)


def emit_lane_copy(k: Kernel, size: int) -> None:
    """Define lanes<size>(source, source stride, target, target stride, count): element by element."""
    kind = RAW[size]
    with k.function(f"lanes{size}", [I64] * 5) as (source, step, target, target_step, count), k.loop(count) as i:
        k.store(k.load(source + i * step, kind), target + i * target_step)
