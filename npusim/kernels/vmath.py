"""Elementary functions on fp32 vectors, written in plain arithmetic so that kernels call nothing.

Largest errors against the exact result, in units in the last place, as tests/npusim/kernels/test_vmath.py measures them
over the whole range: exp 1.0, log 0.8, sigmoid 2.4, tanh 2.4, erf 2.4, log1p 1.5, expm1 1.6, softplus 2, pow 0.51; gelu
7.8 down to -14, where it vanishes (without fused multiply-add 8 above -1, growing with x**2 in the tail). NaN,
infinities and subnormal results follow IEEE.
The `half_` functions are for results that are rounded to f16 (or are summed and then rounded so): within 2**-17 of the
result, which adds 0.02 units in the last place of f16 to the half unit of the rounding.
Polynomials: log by its series; exp and gelu by weighted least-squares fits at Chebyshev points; the others as
tools/fit_elementary.py finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from npusim.kernels.ir import F64, I16, I32, I64, LANES, Kernel, Val, vec

_LOG2E = 1.4426950408889634
_LN2 = 0.6931471805599453
# ln 2 split so that n * high is exact for |n| < 2**12.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440054690583e-4
_ROUNDER = 12582912.0  # 1.5 * 2**23: adding it rounds to an integer held in the low bits
_ROUNDER_BITS = 0x4B400000
# e**r for |r| <= ln 2 / 2: weighted minimax fit of (e**r - 1 - r) / r**2, within 2**-28 of the result.
_EXP = (
    1.0,
    1.0,
    0.4999999403953552,
    0.1666652113199234,
    0.04166826978325844,
    0.008368677459657192,
    0.001382041140459478,
)
# 2**f for |f| <= 1/2: minimax fit, within 2**-18.5 of the result.
_HALF_EXP2 = (0.9999992847442627, 0.6931217908859253, 0.240247443318367, 0.05591786280274391, 0.009570102207362652)
# 2**f for 0 <= f <= 1: as near.
_HALF_EXP2_ABOVE = (
    1.0000026226043701,
    0.6930038332939148,
    0.2414427548646927,
    0.05201147496700287,
    0.01353416033089161,
)
# e**r for |r| <= ln(2)/2 but for a constant factor: within 2**-25 of the result.
_SHARE_EXP = (
    722.7083740234375,
    722.7083740234375,
    361.3541259765625,
    120.44961547851562,
    30.113975524902344,
    6.052550315856934,
    1.0,
)
SHARES_MOST = 2.0**115  # of a sum of shares, so that what they are multiplied by is a normal number
_HALF_LIMIT = 87.0  # beyond it, 2**n is no normal number any more
# (2**f - 1) / f for |f| <= 1/2: within 2**-25.5 of the result.
_EXP2_LESS_1 = (
    0.6931471824645996,
    0.24022649228572845,
    0.05550357326865196,
    0.009618237614631653,
    0.0013390735257416964,
    0.00015403507859446108,
)
# (e**(2h) - 1 - 2h) / h**2 for |h| <= ln(2)/4: within 2**-25.8 of e**(2h) - 1.
_EXPM1 = (1.9999998807907104, 1.3333234786987305, 0.6666752099990845, 0.26773107051849365, 0.08884803205728531)
# log2(erfc(a)) / a for 0 <= a <= 3.92: leaves erf(a) within 2**-27.4.
_ERF = (
    -1.6279070377349854,
    -0.9184476137161255,
    -0.14827704429626465,
    0.027631957083940506,
    0.00023154950758907944,
    -0.002405170351266861,
    0.0009130827384069562,
    -0.00016974781465251,
    1.3357189345697407e-05,
)
# tanh(x) / x and erf(x) / x as quotients in x*x, within 2**-20 and 2**-21.1 of the result up to where its f16 is 1.
_HALF_TANH = (
    (0.9999990463256836, 0.117396779358387, 0.001694691483862698),
    (1.0, 0.4507218301296234, 0.018614061176776886, 6.857728294562548e-05),
)
_HALF_ERF = (
    (1.1283795833587646, 0.12794965505599976, 0.03813502937555313),
    (1.0, 0.4467371106147766, 0.08265718817710876, 0.006779641844332218, -8.409950532950461e-05),
)
# (1 - Phi(a)) * e**(a*a/2) as a quotient in a, 0 <= a <= 5.7: within 2**-17.3 of the result.
_HALF_GELU = (
    (0.5000031590461731, 0.2532004415988922, 0.05267065763473511),
    (1.0, 1.3045167922973633, 0.6448231339454651, 0.13148026168346405),
)
# log(erfc(z) / t) + z*z as a polynomial in t = 1 / (1 + z/2), 0 <= z <= 10.4.
_ERFC = (
    -1.2655682563781738,
    1.001582145690918,
    0.35564401745796204,
    0.21860021352767944,
    -0.683311939239502,
    1.5922539234161377,
    -3.4217758178710938,
    4.090885639190674,
    -2.683905839920044,
    0.9301894307136536,
    -0.134593665599823,
)


def polynomial(k: Kernel, x: Val, coefficients: Sequence[float]) -> Val:
    """Horner's rule; coefficients from the constant upwards."""
    total = k.fma(x, coefficients[-1], coefficients[-2])
    for c in reversed(coefficients[:-2]):
        total = k.fma(total, x, c)
    return total


Stages = Generator[tuple[Val, ...], tuple[Val, ...], Val]
HandOn = Callable[[int, tuple[Val, ...]], tuple[Val, ...]]


@dataclass(frozen=True)
class Staged:
    """A function whose code may be cut: `stages` yields the values alive at each cut and goes on with what it is sent.

    Sent the values of an element before, a loop works on several elements at once, each in a stage of its own: a CPU
    holds few operations that wait, so it must not meet a whole chain of dependent ones before the next element's.
    Long registers are enough for a cut to lie between a whole group of elements and the next: `grouped` is for that.
    """

    stages: Callable[..., Stages]
    grouped: bool = False

    def overlaps(self, k: Kernel) -> bool:
        """Whether elements had better be worked on in stages of their own."""
        return self.grouped or not k.cpu.wide

    def __call__(self, k: Kernel, *arguments: Val, **options: bool) -> Val:
        return whole(self.stages(k, *arguments, **options))


def _grouped(stages: Callable[..., Stages]) -> Staged:
    return Staged(stages, grouped=True)


def whole(stages: Stages) -> Val:
    """Result of stages in one piece."""
    return passed(stages, lambda _cut, values: values)


def passed(stages: Stages, hand_on: HandOn) -> Val:
    """Result of stages, with `hand_on(number of the cut, values)` sent back at each cut."""
    cut, values = 0, next(stages)
    while True:
        try:
            values = stages.send(hand_on(cut, values))
        except StopIteration as end:
            return end.value
        cut += 1


def _like(k: Kernel, x: Val, value: float) -> Val:
    return Val(k, k.coerce(value, x.type))


def _ints(x: Val) -> Val:
    return x.bits(vec(I32, x.type.count))


def absolute(k: Kernel, x: Val) -> Val:
    """|x| by clearing the sign bit."""
    return (_ints(x) & 0x7FFFFFFF).bits(x.type)


def copy_sign(k: Kernel, magnitude: Val, sign: Val) -> Val:
    """|magnitude| with the sign bit of `sign`."""
    return ((_ints(magnitude) & 0x7FFFFFFF) | (_ints(sign) & -0x80000000)).bits(magnitude.type)


def _in_fp32(k: Kernel, x: Val) -> Val:
    """The same value: what is made of it is not moved to f16 where it was widened from that, as vectors of f16 have no
    rounding to integers."""
    return k.float_call("arithmetic.fence", x)


def round_even(k: Kernel, x: Val) -> Val:
    """Nearest integer, halves to even."""
    if k.cpu.round:
        return k.float_call("rint", _in_fp32(k, x))
    size = absolute(k, x)
    return k.select(size < 2.0**23, copy_sign(k, (size + 2.0**23) - 2.0**23, x), x)


def floor(k: Kernel, x: Val) -> Val:
    """Largest integer not above x."""
    if k.cpu.round:
        return k.float_call("floor", _in_fp32(k, x))
    near = round_even(k, x)
    return copy_sign(k, k.select(near > x, near - 1.0, near), x)


def ceil(k: Kernel, x: Val) -> Val:
    """Smallest integer not below x."""
    return -floor(k, -x)


def truncate(k: Kernel, x: Val) -> Val:
    """Integer part of x."""
    return copy_sign(k, floor(k, absolute(k, x)), x)


def sqrt(k: Kernel, x: Val) -> Val:
    """Correctly rounded square root."""
    return k.float_call("sqrt", x)


@Staged
def exp(k: Kernel, x: Val, positive: bool = True) -> Stages:
    """e**x: x = n ln 2 + r, a polynomial in r, scaling that rounds subnormal results once.

    `positive` False promises that no x is above zero.
    """
    vanishes = x < -104.0
    x = k.select(vanishes, -104.0, x)
    if positive:
        x = k.select(x > 89.0, 89.0, x)
    if _scales(k, x):
        shifted = k.fma(x, _LOG2E, _ROUNDER)
        n = shifted - _ROUNDER
        r, n = yield _reduced(k, x, n), n
        # The lowest x is rounded to zero by that itself.
        return _scaled(k, polynomial(k, r, _EXP), n)
    # 2**24 more in the power, or half of it, keeps it normal until the last product, which rounds once.
    bias, last = _like(k, x, _ROUNDER + (127 + 24)), _like(k, x, 2.0**-24)
    if positive:
        above = x > 0.0
        bias, last = k.select(above, _ROUNDER + (127 - 1), bias), k.select(above, 2.0, last)
    shifted = k.fma(x, _LOG2E, bias)
    last = k.select(vanishes, 0.0, last)
    r, power, last = yield _reduced(k, x, shifted - bias), (_ints(shifted) << 23).bits(x.type), last
    return polynomial(k, r, _EXP) * power * last


@Staged
def share(k: Kernel, x: Val, top: Val) -> Stages:
    """e**(x - top) times a constant, for shares in a sum: normal numbers, and zeros where the quotient of a share and
    the sum would be one.

    `top` is the largest x, or so near below it that the sum stays under `SHARES_MOST`. The constant takes 2**24 and
    the factor of the polynomial's highest power along.
    """
    x = x - top
    # So low that the power of two is a zero.
    x = k.select(x < -104.665, -104.665, x)
    bias = _ROUNDER + (127 + 24)
    shifted = k.fma(x, _LOG2E, bias)
    n = shifted - bias
    # One product is enough where it is not rounded: ln 2 is held to 2**-28.
    r = k.fma(n, -_LN2, x) if k.cpu.fma else _reduced(k, x, n)
    # Infinite for what is so high that no sum is below the limit; one more bit would make it something else.
    held = k.minimum(_ints(shifted), _ROUNDER_BITS + 255)
    r, power = yield r, (held << 23).bits(x.type)
    return _monic(k, r, _SHARE_EXP) * power


def _monic(k: Kernel, x: Val, coefficients: Sequence[float]) -> Val:
    """A polynomial over the factor of its highest power, which spares a multiplication."""
    total = x + coefficients[-2] / coefficients[-1]
    for c in coefficients[-3::-1]:
        total = k.fma(total, x, c / coefficients[-1])
    return total


@_grouped
def half_exp(k: Kernel, x: Val, positive: bool = True) -> Stages:
    """e**x for results in f16: 2**n * 2**f. What is below e**-87 may come as that, which no f16 tells from zero."""
    if _scales(k, x):
        return (yield from _half_power(k, x * _LOG2E))
    f, power = yield _half_parts(k, x, 1, positive)
    return polynomial(k, f, _HALF_EXP2) * power


@_grouped
def half_share(k: Kernel, x: Val, top: Val) -> Stages:
    """e**(x - top) times a factor that is the same under one `top`, for shares in a sum; x and top come from f16.

    `top` is that of `share`. What is below 2**-125 may come as that.
    """
    if _scales(k, x):
        return (yield from _half_power(k, k.fma(x, _LOG2E, top * -_LOG2E)))
    if not k.cpu.fma:
        f, power = yield _half_parts(k, x - top, 1)
        return polynomial(k, f, _HALF_EXP2) * power
    # The power of two alone is taken off, which spares the difference.
    taken = k.fma(top, _LOG2E, _ROUNDER) - _ROUNDER
    # The highest is above the limit of sums. Infinity is held to it too: as NaN, its bits would take a power along.
    lowest, highest, bias = (taken - 125.0) * _LN2, (taken + 118.0) * _LN2, _ROUNDER - taken
    x = k.select(x < lowest, lowest, x)
    x = k.select(x > highest, highest, x)
    shifted = k.fma(x, _LOG2E, bias)
    f, power = yield k.fma(x, _LOG2E, bias - shifted), _ints(shifted) << 23
    return (_ints(_monic(k, f, _HALF_EXP2)) + power).bits(x.type)


@_grouped
def half_sigmoid(k: Kernel, x: Val) -> Stages:
    """1 / (1 + e**-x), or with e**x = 2**(n + f) 2**f / (2**f + 2**-n), for results in f16."""
    if _scales(k, x):
        power = yield from _half_power(k, x * -_LOG2E)
        (power,) = yield (power,)
        return 1.0 / (power + 1.0)
    f, power = yield _half_parts(k, x, -1)
    p, power = yield polynomial(k, f, _HALF_EXP2), power
    return p / (p + power)


def _half_power(k: Kernel, y: Val) -> Stages:
    """2**y for results in f16, which are right for infinities and NaN too: by AVX-512's own instructions."""
    f, y = yield _fraction(k, y), y
    p, y = yield polynomial(k, f, _HALF_EXP2_ABOVE), y
    return _scaled(k, p, y)


@Staged
def half_tanh(k: Kernel, x: Val) -> Stages:
    """Hyperbolic tangent for results in f16: an odd quotient up to where they are 1."""
    above, under = yield _odd_quotient(k, x, 4.52, _HALF_TANH)
    return above / under


@Staged
def half_erf(k: Kernel, x: Val) -> Stages:
    """Error function for results in f16: an odd quotient up to where they are 1."""
    above, under = yield _odd_quotient(k, x, 2.6, _HALF_ERF)
    return above / under


def _odd_quotient(k: Kernel, x: Val, limit: float, terms: tuple[Sequence[float], Sequence[float]]) -> tuple[Val, Val]:
    """Numerator and denominator of x * P(x*x) / Q(x*x), with x held to the limits; NaN stays."""
    x = k.select(x > limit, limit, x)
    x = k.select(x < -limit, -limit, x)
    square = x * x
    return x * polynomial(k, square, terms[0]), polynomial(k, square, terms[1])


@Staged
def half_gelu(k: Kernel, x: Val) -> Stages:
    """x * Phi(x) for results in f16: the tail on the other side of zero is e**(-x*x/2) times a quotient."""
    size = absolute(k, x)
    size = k.select(size > 5.8, 5.8, size)
    shifted = k.fma(size * size, -_LOG2E / 2, _ROUNDER + 127)
    n = (_ROUNDER + 127) - shifted
    f, n, size, x = yield k.fma(size * size, -_LOG2E / 2, n), (_ints(shifted) << 23).bits(x.type), size, x
    above = size * polynomial(k, size, _HALF_GELU[0])
    under = polynomial(k, size, _HALF_GELU[1])
    above, under, x = yield above * (polynomial(k, f, _HALF_EXP2) * n), under, x
    return _kept(k, x) - above / under


def _kept(k: Kernel, x: Val) -> Val:
    """x where gelu leaves it, zero below; a product with zero, for minus infinity times zero is no number."""
    return k.select(x < 0.0, x * 0.0, x)


def _half_parts(k: Kernel, x: Val, sign: int, positive: bool = True) -> tuple[Val, Val]:
    """f and 2**(sign * n) with e**x = 2**(n + f), |f| <= 1/2; NaN stays NaN in f."""
    x = k.select(x < -_HALF_LIMIT, -_HALF_LIMIT, x)
    if positive:
        x = k.select(x > _HALF_LIMIT, _HALF_LIMIT, x)
    bias = _ROUNDER + 127
    shifted = k.fma(x, sign * _LOG2E, bias)
    n = bias - shifted if sign > 0 else shifted - bias
    return k.fma(x, _LOG2E, n), (_ints(shifted) << 23).bits(x.type)


def _scales(k: Kernel, x: Val) -> bool:
    """Whether AVX-512's own instructions for powers of two are there for x."""
    return k.cpu.wide and x.type.count % LANES == 0


def _scaled(k: Kernel, p: Val, n: Val) -> Val:
    """2**floor(n) * p, rounded once."""
    if p.type.count > LANES:
        return k.join(*(_scaled(k, *part) for part in zip(k.halves(p), k.halves(n), strict=True)))
    nothing, all_lanes, rounding = k.const(0.0, p.type), k.const(-1, I16), k.const(4, I32)
    return k.intrinsic("llvm.x86.avx512.mask.scalef.ps.512", p.type, [p, n, nothing, all_lanes, rounding])


def _fraction(k: Kernel, y: Val) -> Val:
    """y - floor(y), which is zero for infinities."""
    if y.type.count > LANES:
        return k.join(*(_fraction(k, half) for half in k.halves(y)))
    down, nothing, all_lanes, rounding = k.const(1, I32), k.const(0.0, y.type), k.const(-1, I16), k.const(4, I32)
    return k.intrinsic("llvm.x86.avx512.mask.reduce.ps.512", y.type, [y, down, nothing, all_lanes, rounding])


def _reduced(k: Kernel, x: Val, n: Val) -> Val:
    """x - n ln 2."""
    return k.fma(n, -_LN2_LOW, k.fma(n, -_LN2_HIGH, x))


def _exp_sum(k: Kernel, large: Val, small: Val, lift: int = 0) -> Val:
    """2**lift * e**(large + small), which must lie within the normal numbers, without the rounding error of the sum."""
    shifted = k.fma(large + small, _LOG2E, _ROUNDER + lift)
    n = shifted - (_ROUNDER + lift)
    p = polynomial(k, k.fma(n, -_LN2_HIGH, large) + k.fma(n, -_LN2_LOW, small), _EXP)
    # The low bits of `shifted` are n + lift, which go to the exponent.
    return (_ints(p) + (_ints(shifted) << 23)).bits(large.type)


def log(k: Kernel, x: Val) -> Val:
    """Natural logarithm: x = 2**e * m with m near 1, series of atanh in (m-1)/(m+1)."""
    tiny = x < 2.0**-126
    y = k.select(tiny, x * 2.0**23, x)
    offset = 0x3F3504F3
    bits = _ints(y) - offset
    e = k.convert(Val(k, k.b.ashr(bits.v, k.coerce(23, bits.type))), "sitofp", x.type)
    e = e - k.select(tiny, _like(k, x, 23.0), _like(k, x, 0.0))
    f = ((bits & 0x7FFFFF) + offset).bits(x.type) - 1.0
    s = f / (f + 2.0)
    z = s * s
    r = z * polynomial(k, z, [2 / 3, 2 / 5, 2 / 7, 2 / 9, 2 / 11])
    half_square = f * f * 0.5
    low = k.fma(s, half_square + r, e * _LN2_LOW)
    result = k.fma(e, _LN2_HIGH, f - (half_square - low))
    result = k.select(x.eq(float("inf")), x, result)
    result = k.select(x.eq(0.0), float("-inf"), result)
    result = k.select(x < 0.0, float("nan"), result)
    return k.select(x.isnan(), x, result)


@Staged
def sigmoid(k: Kernel, x: Val) -> Stages:
    """p / (p + 2**-n) with e**x = 2**n * p; both terms carry 2**-32, so that no x overflows before its result is 0.

    The lowest x makes the second term infinite and the result a zero without the CPU's slow path.
    """
    x = k.select(x < -110.9, -110.9, x)
    x = k.select(x > 60.0, 60.0, x)
    bias = _ROUNDER + (127 - 32)
    shifted = k.fma(x, -_LOG2E, bias)
    r, power = yield _reduced(k, x, bias - shifted), (_ints(shifted) << 23).bits(x.type)
    p, power = yield polynomial(k, r, [c * 2.0**-32 for c in _EXP]), power
    return p / (p + power)


@Staged
def silu(k: Kernel, x: Val) -> Stages:
    """x * sigmoid(x)."""
    return (yield from _times(x, sigmoid.stages(k, x)))


@Staged
def gelu_tanh(k: Kernel, x: Val) -> Stages:
    """x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x**3))), by the sigmoid of twice the argument."""
    return (yield from _times(x, sigmoid.stages(k, x * k.fma(x * x, 0.07135481282, 1.595769121605731))))


def _times(x: Val, stages: Stages) -> Stages:
    """x times the result of stages, alive across their cuts."""
    values = next(stages)
    while True:
        *before, x = yield *values, x
        try:
            values = stages.send(tuple(before))
        except StopIteration as end:
            return x * end.value


@Staged
def tanh(k: Kernel, x: Val) -> Stages:
    """Hyperbolic tangent: d / (d + 2) with d = e**(2|x|) - 1."""
    size = absolute(k, x)
    h, power, x = yield *_half_reduced(k, k.select(size > 9.02, 9.02, size)), x
    d, x = yield _less_1(k, h, power), x
    return copy_sign(k, d / (d + 2.0), x)


def expm1(k: Kernel, x: Val) -> Val:
    """e**x - 1, near zero without the difference that would cancel."""
    half = k.select(x > 2.0, 2.0, x) * 0.5
    near = _less_1(k, *_half_reduced(k, k.select(half < -1.0, -1.0, half)))
    return k.select(x.eq(0.0), x, k.select(absolute(k, x) < 2.0, near, exp(k, x) - 1.0))


def _half_reduced(k: Kernel, a: Val) -> tuple[Val, Val]:
    """h and 2**n with a = h + n ln(2)/2, |h| <= ln(2)/4."""
    bias = _ROUNDER + 127
    shifted = k.fma(a, 2 * _LOG2E, bias)
    return k.fma(bias - shifted, _LN2 / 2, a), (_ints(shifted) << 23).bits(a.type)


def _less_1(k: Kernel, h: Val, power: Val) -> Val:
    """2**n * e**(2h) - 1."""
    return k.fma(power, k.fma(h * h, polynomial(k, h, _EXPM1), h + h), power - 1.0)


@Staged
def erf(k: Kernel, x: Val) -> Stages:
    """Error function: 1 - e**(-a * P(a)) of a = |x|, the exponential less 1 kept apart from its power of two."""
    size = absolute(k, x)
    size = k.select(size > 3.92, 3.92, size)
    slope, size, x = yield polynomial(k, size, _ERF), size, x
    # The bias of 256 more is the sign.
    bias = _ROUNDER + (127 + 256)
    shifted = k.fma(size, slope, bias)
    f = k.fma(size, slope, bias - shifted)
    f, power, x = yield f, (_ints(shifted) << 23).bits(x.type), x
    return copy_sign(k, k.fma(power, f * polynomial(k, f, _EXP2_LESS_1), power + 1.0), x)


@Staged
def gelu(k: Kernel, x: Val) -> Stages:
    """x * Phi(x) by erfc, whose e**(-x*x/2) takes the rounding error of x*x along: the negative tail stays accurate."""
    size = absolute(k, x)
    size = k.select(size > 14.5, 14.5, size)
    t, size, x = yield 1.0 / k.fma(size, 0.35355339059327373, 1.0), size, x
    exponent = polynomial(k, t, _ERFC)
    exponent, t, size, x = yield exponent, t, size, x
    square = size * size
    error = k.fma(size, size, -square) if k.cpu.fma else _like(k, x, 0.0)
    tail = _exp_sum(k, square * -0.5, k.fma(error, -0.5, exponent), lift=32)
    return k.fma(size * t * tail, -(2.0**-33), _kept(k, x))


def power(k: Kernel, x: Val, y: Val) -> Val:
    """x**y with NumPy's special cases, evaluated in double precision."""
    lanes = x.type.count
    f64, i64 = vec(F64, lanes), vec(I64, lanes)
    size = absolute(k, x)
    bits = k.convert(size, "fpext", f64).bits(i64)
    offset = 0x3FE6A09E667F3BCD
    shifted = bits - offset
    e = Val(k, k.b.ashr(shifted.v, k.coerce(52, i64)))
    m = ((shifted & ((1 << 52) - 1)) + offset).bits(f64)
    exponent = k.convert(k.convert(e, "trunc", vec(I32, lanes)), "sitofp", f64)
    s = (m - 1.0) / (m + 1.0)
    log2 = exponent + s * polynomial(k, s * s, [2 * _LOG2E / (2 * n + 1) for n in range(10)])
    log2 = k.select(k.convert(size, "fpext", f64).eq(0.0), float("-inf"), log2)
    log2 = k.select(k.convert(size, "fpext", f64).eq(float("inf")), float("inf"), log2)
    z = log2 * k.convert(y, "fpext", f64)
    z = k.select(z > 200.0, 200.0, k.select(z < -200.0, -200.0, z))
    rounder = 1.5 * 2.0**52
    near = z + rounder
    r = (z - (near - rounder)) * 0.6931471805599453
    factorials = [1.0]
    for n in range(1, 13):
        factorials.append(factorials[-1] / n)
    whole = near.bits(i64) - Val(k, k.coerce(rounder, f64)).bits(i64)
    result = polynomial(k, r, factorials) * ((whole + 1023) << 52).bits(f64)
    return _power_cases(k, x, y, k.convert(result, "fptrunc", x.type))


def _power_cases(k: Kernel, x: Val, y: Val, magnitude: Val) -> Val:
    size = absolute(k, x)
    integer = truncate(k, y).eq(y)
    half = y * 0.5
    odd = integer & truncate(k, half).ne(half)
    negative = _ints(x) < 0
    result = k.select(negative & odd, -magnitude, magnitude)
    finite = (size < float("inf")) & size.ne(0.0)
    result = k.select(negative & finite & ~integer, float("nan"), result)
    result = k.select(size.eq(1.0) & absolute(k, y).eq(float("inf")), 1.0, result)
    result = k.select(x.isnan(), x, k.select(y.isnan(), y, result))
    return k.select(y.eq(0.0) | x.eq(1.0), 1.0, result)
