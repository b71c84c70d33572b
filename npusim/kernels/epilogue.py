"""What happens to a finished fp32 sum before it is stored: residual, activation, one rounding, overflow rule.

Convolution and matrix product share it. An `Epilogue` is host-side description; `emit` is the code that applies it to a
tile's fp32 buffer and stores the channels of each pixel into their eight-lane planes.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.kernels import expressions, vmath
from npusim.kernels.ir import F32, HALVES, I32, I64, LANES, LARGEST, RAW, SIZE, Kernel, Val, vec

ACTIVATIONS = ("none", "relu", "clip", "leaky_relu", "sigmoid", "silu", "gelu", "tanh")
_CLAMP, _LEAKY, _SIGMOID, _SILU, _GELU, _TANH = range(6)
_CODES = {
    "none": _CLAMP,
    "relu": _CLAMP,
    "clip": _CLAMP,
    "leaky_relu": _LEAKY,
    "sigmoid": _SIGMOID,
    "silu": _SILU,
    "gelu": _GELU,
    "tanh": _TANH,
}
FIELDS = 6
FOLLOWED = ">"
"""Parts the output type of a kernel from the expression of `x0` that follows its rounding: `f16>hardswish(x0)`."""


@dataclass(frozen=True)
class Epilogue:
    """residual: address of a tensor laid out like the output (may be the output itself), 0 for none.

    The activation comes after the residual sum. `lo`/`hi` bound `clip`, `alpha` is the slope of `leaky_relu`.
    `saturate` stores overflow of 16-bit floats as the largest number and an fp16 NaN as 0 (Ascend 310P) instead of
    infinity and NaN.
    """

    residual: int = 0
    activation: str = "none"
    lo: float = float("-inf")
    hi: float = float("inf")
    alpha: float = 0.0
    saturate: bool = False
    then: str = ""

    def target(self, dtype: str) -> str:
        """Output type of the kernel that applies this, as it stands in names."""
        return f"{dtype}{FOLLOWED}{self.then}" if self.then else dtype

    def fields(self) -> list[int | float]:
        """Descriptor fields in the order `emit` reads them; raises ValueError for an unknown activation."""
        if self.activation not in _CODES:
            raise ValueError(f"unknown activation {self.activation!r}; known: {', '.join(ACTIVATIONS)}")
        lo, hi = self.lo, self.hi
        if self.activation == "relu":
            lo, hi = 0.0, float("inf")
        elif self.activation != "clip":
            lo, hi = float("-inf"), float("inf")
        return [self.residual, _CODES[self.activation], float(lo), float(hi), float(self.alpha), int(self.saturate)]


def clamp(k: Kernel, x: Val, lo: Val, hi: Val) -> Val:
    """min(max(x, lo), hi) that lets NaN pass."""
    x = k.select(x < lo, lo, x)
    return k.select(x > hi, hi, x)


def saturated(k: Kernel, x: Val, flag: Val, dtype: str) -> Val:
    """Apply the saturating overflow rule of a 16-bit float where `flag` (i64) is not 0; others stay as they are."""
    if dtype not in HALVES:
        return x
    limits = k.splat(_limit(k, flag, dtype), x.type.count)
    x = clamp(k, x, -limits, limits)
    if dtype == "bf16":
        return x
    drop = k.splat(flag.ne(0), x.type.count)
    return k.select(Val(k, k.b.and_(x.isnan().v, drop.v)), 0.0, x)


def split_target(target: str) -> tuple[str, str]:
    """Output type, and the expression that follows (or nothing)."""
    dtype, _, then = target.partition(FOLLOWED)
    return dtype, then


def followed(k: Kernel, x: Val, dtype: str, then: str, spare: Val) -> Val:
    """The expression of 8 or 16 finished values as a task of its own would read them: rounded. `spare`: 64 bytes."""
    if not then:
        return x
    if x.type.count < LANES:
        return k.halves(followed(k, k.join(x, x), dtype, then, spare))[0]
    k.store_f32(x, spare, dtype)
    return expressions.to_float(k, expressions.evaluate(k, then, {"x0": k.load_f32(spare, dtype)}, dtype))


def only_clamps(k: Kernel, base: Val, first: int) -> Val:
    """Whether the fields at `first` ask for no more than residual, bounds and rounding."""
    return k.field(base, first + 1).eq(_CLAMP) & k.field(base, first + 5).eq(0)


def _limit(k: Kernel, flag: Val, dtype: str) -> Val:
    """What results are clipped to: the largest number of the type where `flag` is set, else infinity."""
    return k.select(flag.ne(0), k.const(LARGEST[dtype], F32), k.const(float("inf"), F32))


def activate(k: Kernel, x: Val, base: Val, first: int) -> Val:
    """Activation described by the fields at `first` (as from Epilogue.fields) of the descriptor."""
    code = k.field(base, first + 1)
    result = k.var(x)
    with k.either(code.eq(_CLAMP)) as (plain, other):
        with plain:
            result.set(clamp(k, x, k.splat(k.float_field(base, first + 2)), k.splat(k.float_field(base, first + 3))))
        with other:
            _special(k, x, code, k.float_field(base, first + 4), result)
    return result.get()


def _special(k: Kernel, x: Val, code: Val, alpha: Val, result: object) -> None:
    table = {
        _LEAKY: lambda: k.select(x < 0.0, x * k.splat(alpha), x),
        _SIGMOID: lambda: vmath.sigmoid(k, x),
        _SILU: lambda: x * vmath.sigmoid(k, x),
        _GELU: lambda: vmath.gelu(k, x),
        _TANH: lambda: vmath.tanh(k, x),
    }
    for number, compute in table.items():
        with k.when(code.eq(number)):
            result.set(compute())  # type: ignore[attr-defined]


def emit_function(k: Kernel, target: str, first: int) -> None:
    """Define `epilogue(desc, buffer, vectors, pixels, out, shift, oc, oh, op, channels, stored)`.

    buffer holds fp32 [pixels][vectors][16]. Vector j, lane half h of pixel p goes to `out + j*oc + h*oh + p*op`; the
    residual element lies `shift` bytes from its output element (used where the descriptor names a residual).
    `channels` counts the lanes that carry values: those beyond are stored as zeros, up to `stored` lanes. Sums that
    are stored as i32 know a residual and no activation.
    """
    dtype, then = split_target(target)
    if dtype == "i32":
        _emit_whole(k, first)
        return
    _emit_general(k, dtype, first, then)
    with k.function("epilogue", [I64] * 11) as args:
        desc, buffer, vectors, pixels, out, shift, oc, oh, op, channels, stored = args
        clamps = k.field(desc, first + 1).eq(_CLAMP)
        with k.loop(vectors) as j:
            left, room = channels - j * 16, k.minimum(stored - j * 16, 16)
            here, source, step = out + j * oc, buffer + j * 64, vectors * 64
            with k.either(clamps & (room & 7).eq(0)) as (plain, other):
                with plain:
                    _emit_plain(k, desc, target, first, (source, step, pixels, here, shift, oh, op, left, room))
                with other:
                    k.call("general", desc, source, step, pixels, here, shift, oh, op, left, room)


def _emit_plain(k: Kernel, desc: Val, target: str, first: int, places: tuple[Val, ...]) -> None:
    """The common case, clamping whole halves, with everything constant kept out of the loops."""
    (dtype, then), spare = split_target(target), k.alloca(64)
    source, step, pixels, out, shift, oh, op, left, room = places
    live = k.lane_index() < k.splat(k.convert(left, "trunc", I32))
    lo, hi = k.float_field(desc, first + 2), k.float_field(desc, first + 3)
    drop_nan = k.splat(k.field(desc, first + 5).ne(0))
    if dtype in HALVES:
        limit = _limit(k, k.field(desc, first + 5), dtype)
        lo, hi = k.select(lo < -limit, -limit, lo), k.select(hi > limit, limit, hi)
    low, high = k.splat(lo), k.splat(hi)

    def finish(x: Val) -> Val:
        y = clamp(k, x, low, high)
        keep = live & ~(y.isnan() & drop_nan) if dtype == "f16" else live
        y = k.select(keep, y, 0.0)
        return k.select(live, followed(k, y, dtype, then, spare), 0.0) if then else y

    adds = k.field(desc, first).ne(0)
    whole = room.eq(16) & oh.eq(8 * SIZE[dtype])
    with k.either(whole) as (joined, apart):
        with joined, k.either(adds) as (residual, alone):
            with residual, k.loop(pixels) as p:
                at = out + p * op
                x = k.load(source + p * step, vec(F32)) + k.load_f32(at + shift, dtype)
                k.store_f32(finish(x), at, dtype)
            with alone, k.loop(pixels) as p:
                k.store_f32(finish(k.load(source + p * step, vec(F32))), out + p * op, dtype)
        with apart, k.loop(pixels) as p:
            at = out + p * op
            total = k.var(k.load(source + p * step, vec(F32)))
            with k.when(adds):
                total.set(total.get() + _halves(k, at + shift, oh, room > 8, dtype))
            first_half, second_half = k.halves(finish(total.get()))
            k.store_f32(first_half, at, dtype)
            with k.when(room > 8):
                k.store_f32(second_half, at + oh, dtype)


def _emit_whole(k: Kernel, first: int) -> None:
    """`epilogue` of whole numbers: sums become i32, to which a residual is added."""
    with k.function("epilogue", [I64] * 11) as args:
        desc, buffer, vectors, pixels, out, shift, oc, oh, op, channels, stored = args
        adds, spare, half = k.field(desc, first).ne(0), k.alloca(64), vec(I32, 8)
        with k.loop(vectors) as j:
            left, room = channels - j * 16, k.minimum(stored - j * 16, 16)
            live = k.lane_index() < k.splat(k.convert(left, "trunc", I32))
            with k.loop(pixels) as p:
                at = out + j * oc + p * op
                x = k.convert(k.load(buffer + j * 64 + p * (vectors * 64), vec(F32)), "fptosi", vec(I32))
                x = k.select(live, x, 0)
                with k.either((room & 7).eq(0)) as (whole, ragged):
                    with whole:
                        for number, part in enumerate(k.halves(x)):
                            here, sums = at + number * oh, k.var(part)
                            with k.when(room > 8 * number):
                                with k.when(adds):
                                    sums.set(part + k.load(here + shift, half))
                                k.store(sums.get(), here)
                    with ragged:
                        k.store(x, spare)
                        with k.loop(room) as lane:
                            here = at + (lane >> 3) * oh + (lane & 7) * 4
                            one = k.var(k.load(spare + lane * 4, I32))
                            with k.when(adds):
                                one.set(one.get() + k.load(here + shift, I32))
                            k.store(one.get(), here)


def _halves(k: Kernel, at: Val, apart: Val, second: Val, dtype: str) -> Val:
    """Sixteen lanes kept as two halves, the second of which may not exist."""
    upper = k.var(0.0, vec(F32, 8))
    with k.when(second):
        upper.set(k.load_f32(at + apart, dtype, 8))
    return k.join(k.load_f32(at, dtype, 8), upper.get())


def _emit_general(k: Kernel, dtype: str, first: int, then: str) -> None:
    """Define `general(desc, source, step, pixels, out, shift, oh, op, channels, lanes)`: any activation, any lanes."""
    half, size = 8 * SIZE[dtype], k.const(SIZE[dtype])
    with k.function("general", [I64] * 10) as (desc, source, step, pixels, out, shift, oh, op, left, room):
        adds = k.field(desc, first).ne(0)
        spare, ragged = k.alloca(128), (room & 7).ne(0)
        live = k.lane_index() < k.splat(k.convert(left, "trunc", I32))
        with k.loop(pixels) as p:
            at = out + p * op
            x = k.var(k.load(source + p * step, vec(F32)))
            with k.when(adds), k.either(ragged) as (lanes, whole):
                with lanes:
                    _copy_lanes(k, dtype, room, at + shift, oh, spare + 64, k.const(half), size)
                    x.set(x.get() + k.select(live, k.load_f32(spare + 64, dtype), 0.0))
                with whole:
                    x.set(x.get() + _halves(k, at + shift, oh, room > 8, dtype))
            y = saturated(k, activate(k, x.get(), desc, first), k.field(desc, first + 5), dtype)
            y = followed(k, y, dtype, then, spare)
            low, high = k.halves(k.select(live, y, 0.0))
            to = k.select(ragged, spare, at)
            k.store_f32(low, to, dtype)
            with k.when(room > 8):
                k.store_f32(high, k.select(ragged, spare + half, at + oh), dtype)
            with k.when(ragged):
                _copy_lanes(k, dtype, room, spare, k.const(half), at, oh, size)


def _copy_lanes(
    k: Kernel, dtype: str, count: Val, source: Val, source_half: Val, target: Val, target_half: Val, step: Val
) -> None:
    """Copy `count` elements one by one between two lane layouts (halves of eight at their own distance)."""
    kind = RAW[SIZE[dtype]]
    with k.loop(count) as lane:
        half, within = lane >> 3, (lane & 7) * step
        k.store(k.load(source + half * source_half + within, kind), target + half * target_half + within)
