"""What happens to a finished fp32 sum before it is stored: residual, activation, one rounding, overflow rule.

Convolution and matrix product share it. An `Epilogue` is host-side description; `emit` is the code that applies it to a
tile's fp32 buffer and stores the channels of each pixel into their eight-lane planes.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.kernels import vmath
from npusim.kernels.ir import F32, HALF_MAX, I32, I64, MEMORY_TYPE, SIZE, Kernel, Val, vec

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


@dataclass(frozen=True)
class Epilogue:
    """residual: address of a tensor laid out like the output (may be the output itself), 0 for none.

    The activation comes after the residual sum. `lo`/`hi` bound `clip`, `alpha` is the slope of `leaky_relu`.
    `saturate` stores fp16 overflow as +-65504 and NaN as 0 (Ascend 310P) instead of infinity and NaN.
    """

    residual: int = 0
    activation: str = "none"
    lo: float = float("-inf")
    hi: float = float("inf")
    alpha: float = 0.0
    saturate: bool = False

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


def saturated(k: Kernel, x: Val, flag: Val) -> Val:
    """Apply the saturating overflow rule of fp16 where `flag` (i64) is not 0."""
    limit = k.select(flag.ne(0), k.const(HALF_MAX, F32), k.const(float("inf"), F32))
    limits = k.splat(limit, x.type.count)
    x = clamp(k, x, -limits, limits)
    drop = k.splat(flag.ne(0), x.type.count)
    return k.select(Val(k, k.b.and_(x.isnan().v, drop.v)), 0.0, x)


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


def emit_function(k: Kernel, dtype: str, first: int, name: str = "epilogue") -> None:
    """Define `epilogue(desc, buffer, vectors, pixels, out, shift, oc, oh, op, channels, stored)`.

    buffer holds fp32 [pixels][vectors][16]. Vector j, lane half h of pixel p goes to `out + j*oc + h*oh + p*op`; the
    residual element lies `shift` bytes from its output element (used where the descriptor names a residual).
    `channels` counts the lanes that carry values: those beyond are stored as zeros, up to `stored` lanes.
    """
    with k.function(name, [I64] * 11) as args:
        desc, buffer, vectors, pixels, out, shift, oc, oh, op, channels, stored = args
        residual = k.field(desc, first)
        flag = k.field(desc, first + 5)
        spare = k.alloca(128)
        half = 8 * SIZE[dtype]
        with k.loop(vectors) as j:
            live = k.lane_index() < k.splat(k.convert(channels - j * 16, "trunc", I32))
            room = k.minimum(stored - j * 16, 16)
            second, ragged = room > 8, (room & 7).ne(0)
            with k.loop(pixels) as p:
                low = out + j * oc + p * op
                to = k.var(low), k.var(low + oh)
                come = k.var(low + shift), k.var(low + oh + shift)
                with k.when(ragged):
                    to[0].set(spare)
                    to[1].set(spare + half)
                    with k.when(residual.ne(0)):
                        _copy_lanes(k, dtype, room, low + shift, oh, spare + 64, k.const(half), k.const(SIZE[dtype]))
                        come[0].set(spare + 64)
                        come[1].set(spare + 64 + half)
                x = k.var(k.load(buffer + (p * vectors + j) * 64, vec(F32)))
                with k.when(residual.ne(0)):
                    upper = k.var(0.0, vec(F32, 8))
                    with k.when(second):
                        upper.set(k.load_f32(come[1].get(), dtype, 8))
                    x.set(x.get() + k.join(k.load_f32(come[0].get(), dtype, 8), upper.get()))
                y = activate(k, x.get(), desc, first)
                if dtype == "f16":
                    y = saturated(k, y, flag)
                first_half, second_half = k.halves(k.select(live, y, 0.0))
                k.store_f32(first_half, to[0].get(), dtype)
                with k.when(second):
                    k.store_f32(second_half, to[1].get(), dtype)
                with k.when(ragged):
                    _copy_lanes(k, dtype, room, spare, k.const(half), low, oh, k.const(SIZE[dtype]))


def _copy_lanes(
    k: Kernel, dtype: str, count: Val, source: Val, source_half: Val, target: Val, target_half: Val, step: Val
) -> None:
    """Copy `count` elements one by one between two lane layouts (halves of eight at their own distance)."""
    kind = MEMORY_TYPE["i16" if dtype == "f16" else "i32"]
    with k.loop(count) as lane:
        half, within = lane >> 3, (lane & 7) * step
        k.store(k.load(source + half * source_half + within, kind), target + half * target_half + within)
