"""The small expression language inside the names of elementwise kernels, and what each function emits.

An expression is nested calls over operands `x0, x1, …`, fp32 parameters `p0, p1, …` and numbers:
`relu(add(x0,x1))`, `where(x0,x1,x2)`, `mul(x0,p0)`. fp16, bf16 and fp32 operands are fp32 inside, i8 u8 i16 i32 are
int32, i64 is int64, b8 is a truth value. Rounding to the output type happens once, at the end.

Conversions: float to integer truncates toward zero and saturates (NaN gives 0); integer to narrower integer wraps; any
non-zero value (NaN too) is true. Integer division truncates; dividing an integer by zero gives 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from npusim.kernels import vmath
from npusim.kernels.ir import F32, F64, FLOATS, HALVES, I1, I8, I16, I32, I64, LANES, SIZE, Kernel, Val, vec

_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z_0-9]*|[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|inf|nan)|[(),])")
Emitter = Callable[..., Val]
_INTEGER = {"i8": (I8, True), "u8": (I8, False), "i16": (I16, True), "i32": (I32, True), "i64": (I64, True)}


def evaluate(
    k: Kernel, text: str, names: Mapping[str, Val], result: str = "f32", hand_on: vmath.HandOn | None = None
) -> Val:
    """Emit the expression; raises ValueError for bad syntax, unknown names or a wrong number of arguments.

    `result` is the type it will be stored as: in f16, the outermost function may be a shorter form of its own. With
    `hand_on`, its code is cut where `is_staged` says so.
    """
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text.replace(" ", ""):
        raise ValueError(f"cannot read elementwise expression {text!r}")

    def last(k: Kernel, name: str, arguments: list[Val | float]) -> Val:
        emit = _last(name, result)
        if len(arguments) != 1 or emit is None:
            return _apply(k, name, arguments)
        unified = _unify(k, arguments)
        if hand_on is None or not isinstance(emit, vmath.Staged):
            return emit(k, *unified)
        return vmath.passed(emit.stages(k, *unified), hand_on)

    value, rest = _parse(k, tokens, names, text, last)
    if rest:
        raise ValueError(f"unexpected {rest[0]!r} in elementwise expression {text!r}")
    return value if isinstance(value, Val) else k.splat(k.const(value, F32))


def functions() -> list[str]:
    """Names of all functions an expression may use."""
    return sorted({*_UNARY, *_BINARY, *_TERNARY})


def is_staged(k: Kernel, text: str, result: str = "f32") -> bool:
    """Whether the outermost function of an expression is one whose code had better be cut into stages."""
    emit = _last(text.partition("(")[0], result)
    return isinstance(emit, vmath.Staged) and emit.overlaps(k)


def _last(name: str, result: str) -> Emitter | None:
    """The outermost function of a result of a type, where it takes one argument."""
    return (_HALF if result == "f16" else _UNARY).get(name) or _UNARY.get(name)


def _parse(
    k: Kernel,
    tokens: list[str],
    names: Mapping[str, Val],
    text: str,
    apply: Callable[[Kernel, str, list[Val | float]], Val],
) -> tuple[Val | float, list[str]]:
    if not tokens:
        raise ValueError(f"elementwise expression {text!r} ends too early")
    head, rest = tokens[0], tokens[1:]
    if rest and rest[0] == "(":
        arguments: list[Val | float] = []
        while rest[0] != ")":
            value, rest = _parse(k, rest[1:], names, text, _apply)
            arguments.append(value)
            if not rest or rest[0] not in ",)":
                raise ValueError(f"missing ) in elementwise expression {text!r}")
        return apply(k, head, arguments), rest[1:]
    if head in names:
        return names[head], rest
    try:
        return float(head), rest
    except ValueError:
        raise ValueError(f"unknown name {head!r} in {text!r}; known: {', '.join(names)}, {functions()}") from None


def _apply(k: Kernel, name: str, arguments: list[Val | float]) -> Val:
    for table, arity in ((_UNARY, 1), (_BINARY, 2), (_TERNARY, 3)):
        if name in table and len(arguments) == arity:
            return table[name](k, *_unify(k, arguments))
    raise ValueError(f"no elementwise function {name!r} of {len(arguments)} arguments; known: {functions()}")


def _unify(k: Kernel, arguments: list[Val | float]) -> list[Val]:
    """Numbers take the type of the last operand that is a value (so `where` follows its branches)."""
    values = [a for a in arguments if isinstance(a, Val)]
    like = values[-1].type if values else vec(F32)
    return [a if isinstance(a, Val) else Val(k, k.coerce(a, like)) for a in arguments]


def is_float(x: Val) -> bool:
    """Whether a value holds floating-point lanes."""
    return str(x.type.element) in ("float", "double")


def is_bool(x: Val) -> bool:
    """Whether a value holds truth lanes."""
    return x.type.element == I1


def load(k: Kernel, address: Val, dtype: str) -> Val:
    """Sixteen elements as the type the expression computes in."""
    if dtype in FLOATS:
        return k.load_f32(address, dtype)
    if dtype == "b8":
        return k.load(address, vec(I8)).ne(0)
    kind, signed = _INTEGER[dtype]
    raw = k.load(address, vec(kind))
    if dtype in ("i32", "i64"):
        return raw
    return k.convert(raw, "sext" if signed else "zext", vec(I32))


def store(k: Kernel, x: Val, address: Val, dtype: str, past_caches: bool = False) -> None:
    """Sixteen elements converted to their stored type (overflow of 16-bit floats gives infinity)."""
    if dtype == "f16":
        store_half(k, to_float(k, x), address, past_caches)
    elif dtype in FLOATS:
        k.store_f32(to_float(k, x), address, dtype, past_caches)
    elif dtype == "b8":
        k.store(k.convert(truth(k, x), "zext", vec(I8)), address, past_caches=past_caches)
    else:
        k.store(to_integer(k, x, dtype), address, past_caches=past_caches)


def store_past(k: Kernel, blocks: Sequence[Val], address: Val, dtype: str) -> None:
    """Blocks of sixteen elements that lie one behind the other, past the caches.

    They go by whole lines where a register holds one: half lines have to wait for each other.
    """
    step = LANES * SIZE[dtype]
    if not (k.cpu.wide and dtype in HALVES):
        for number, block in enumerate(blocks):
            store(k, block, address + number * step, dtype, past_caches=True)
        return
    narrow = [k.narrowed(to_float(k, block), dtype).bits(vec(I16)) for block in blocks]
    for number, (low, high) in enumerate(zip(narrow[::2], narrow[1::2], strict=True)):
        k.store(k.join(low, high), address + number * 2 * step, past_caches=True)


def store_half(k: Kernel, x: Val, address: Val, past_caches: bool = False) -> None:
    """Sixteen fp32 values rounded to f16 in registers: rounding on the way to memory is slow on some CPUs."""
    if not k.cpu.half or k.cpu.wide:
        k.store_f32(x, address, "f16", past_caches)
        return
    for number, half in enumerate(k.halves(x)):
        rounded = k.narrowed(half, "f16").bits(vec(F32, half.type.count // 2))
        # The fence keeps the rounding from being merged with the store; it is no instruction.
        rounded = k.float_call("arithmetic.fence", rounded)
        k.store(rounded, address + number * 16, align=2, past_caches=past_caches)


def to_float(k: Kernel, x: Val) -> Val:
    """Value as fp32 lanes."""
    if is_float(x):
        return x
    return k.convert(x, "uitofp" if is_bool(x) else "sitofp", vec(F32))


def truth(k: Kernel, x: Val) -> Val:
    """Value as truth lanes."""
    if is_bool(x):
        return x
    return x.ne(0.0) if is_float(x) else x.ne(0)


def to_integer(k: Kernel, x: Val, dtype: str) -> Val:
    """Value as integer lanes of a stored type."""
    kind, signed = _INTEGER[dtype]
    target = vec(kind)
    if is_float(x):
        name = f"llvm.fpto{'s' if signed else 'u'}i.sat.v{LANES}i{kind.width}.v{LANES}f32"
        return k.intrinsic(name, target, [x])
    width = x.type.element.width
    if width == kind.width:
        return x
    if width < kind.width:
        return k.convert(x, "zext" if is_bool(x) else "sext", target)
    return k.convert(x, "trunc", target)


def _same(k: Kernel, a: Val, b: Val) -> tuple[Val, Val]:
    """Bring two operands to one type: float wins, then the wider integer."""
    if a.type == b.type:
        return a, b
    if is_float(a) or is_float(b):
        return to_float(k, a), to_float(k, b)
    wide = "i64" if I64 in (a.type.element, b.type.element) else "i32"
    return to_integer(k, a, wide), to_integer(k, b, wide)


def _arithmetic(op: Callable[[Val, Val], Val]) -> Callable[[Kernel, Val, Val], Val]:
    def emit(k: Kernel, a: Val, b: Val) -> Val:
        a, b = _same(k, a, b)
        return op(a, b)

    return emit


def _extreme(op: Callable[[Val, Val], Val]) -> Callable[[Kernel, Val, Val], Val]:
    def emit(k: Kernel, a: Val, b: Val) -> Val:
        a, b = _same(k, a, b)
        best = k.select(op(a, b), a, b)
        return k.select(a.isnan(), a, best) if is_float(a) else best

    return emit


def _divide(k: Kernel, a: Val, b: Val) -> Val:
    a, b = _same(k, a, b)
    if is_float(a):
        return a / b
    return _integer_quotient(k, a, b)


def _integer_quotient(k: Kernel, a: Val, b: Val) -> Val:
    zero, minus_one = b.eq(0), b.eq(-1)
    safe = k.select(zero | minus_one, 1, b)
    return k.select(zero, 0, k.select(minus_one, 0 - a, a / safe))


def _remainder(floored: bool) -> Callable[[Kernel, Val, Val], Val]:
    def emit(k: Kernel, a: Val, b: Val) -> Val:
        a, b = _same(k, a, b)
        if is_float(a):
            return _float_remainder(k, a, b, floored)
        rest = k.select(b.eq(0), 0, a - _integer_quotient(k, a, b) * b)
        return k.select(rest.ne(0) & ((rest ^ b) < 0), rest + b, rest) if floored else rest

    return emit


def _float_remainder(k: Kernel, a: Val, b: Val, floored: bool) -> Val:
    """Remainder by the quotient in double precision: exact while |a / b| < 2**29."""
    wide = vec(F64)
    x, y = k.convert(a, "fpext", wide), k.convert(b, "fpext", wide)
    quotient = x / y
    size = k.select(quotient < 0.0, -quotient, quotient)
    near = (size + 2.0**52) - 2.0**52
    whole = k.select(size < 2.0**52, k.select(near > size, near - 1.0, near), size)
    rest = x - k.select(quotient < 0.0, -whole, whole) * y
    if floored:
        rest = k.select(rest.ne(0.0) & ((rest < 0.0) ^ (y < 0.0)), rest + y, rest)
    result = k.convert(rest, "fptrunc", vec(F32))
    finite = vmath.absolute(k, a) < float("inf")
    infinite_divisor = finite & vmath.absolute(k, b).eq(float("inf"))
    opposite = (a < 0.0) ^ (b < 0.0)
    kept = k.select(opposite & a.ne(0.0), b, a) if floored else a
    return k.select(infinite_divisor, kept, result)


def _comparison(name: str) -> Callable[[Kernel, Val, Val], Val]:
    def emit(k: Kernel, a: Val, b: Val) -> Val:
        a, b = _same(k, a, b)
        if is_bool(a):
            a, b = to_integer(k, a, "i32"), to_integer(k, b, "i32")
        return getattr(a, name)(b)

    return emit


def _logical(op: Callable[[Val, Val], Val]) -> Callable[[Kernel, Val, Val], Val]:
    return lambda k, a, b: op(truth(k, a), truth(k, b))


def _where(k: Kernel, condition: Val, a: Val, b: Val) -> Val:
    a, b = _same(k, a, b)
    return k.select(truth(k, condition), a, b)


def _clip(k: Kernel, x: Val, lo: Val, hi: Val) -> Val:
    x, lo = _same(k, x, lo)
    x, hi = _same(k, x, hi)
    x = k.select(x < lo, lo, x)
    return k.select(x > hi, hi, x)


def _float(emit: Callable[[Kernel, Val], Val]) -> Emitter:
    if isinstance(emit, vmath.Staged):
        return vmath.Staged(lambda k, x: emit.stages(k, to_float(k, x)), emit.grouped)
    return lambda k, x: emit(k, to_float(k, x))


def _negate(k: Kernel, x: Val) -> Val:
    return -x


def _absolute(k: Kernel, x: Val) -> Val:
    return vmath.absolute(k, x) if is_float(x) else k.select(x < 0, 0 - x, x)


def _sign(k: Kernel, x: Val) -> Val:
    if not is_float(x):
        return k.select(x > 0, 1, k.select(x < 0, Val(k, k.coerce(-1, x.type)), 0 * x))
    return k.select(x > 0.0, 1.0, k.select(x < 0.0, -1.0, x))


def _relu(k: Kernel, x: Val) -> Val:
    zero = 0.0 if is_float(x) else 0
    return k.select(x < zero, zero, x)


def _ramp(k: Kernel, x: Val, slope: float, shift: float) -> Val:
    y = k.fma(x, slope, shift)
    y = k.select(y < 0.0, 0.0, y)
    return k.select(y > 1.0, 1.0, y)


def _softplus(k: Kernel, x: Val) -> Val:
    tail = _log1p(k, vmath.exp(k, -vmath.absolute(k, x), positive=False))
    return tail + k.select(x < 0.0, 0.0, x)


def _log1p(k: Kernel, x: Val) -> Val:
    """log(1 + x) with the rounding of the sum corrected."""
    total = x + 1.0
    lost = x - (total - 1.0)
    plain = vmath.log(k, total)
    ordinary = (total > 0.0) & (total < float("inf"))
    corrected = k.select(ordinary, plain + lost / total, plain)
    return k.select(x.eq(0.0), x, corrected)


def _elu(k: Kernel, x: Val, alpha: Val) -> Val:
    return k.select(x < 0.0, vmath.expm1(k, x) * alpha, x)


def _isinf(k: Kernel, x: Val) -> Val:
    return vmath.absolute(k, x).eq(float("inf"))


def _cast(dtype: str) -> Callable[[Kernel, Val], Val]:
    return lambda k, x: to_integer(k, x, dtype)


_UNARY: dict[str, Emitter] = {
    "identity": lambda k, x: x,
    "neg": _negate,
    "abs": _absolute,
    "sign": _sign,
    "relu": _relu,
    "exp": _float(vmath.exp),
    "log": _float(vmath.log),
    "log1p": _float(_log1p),
    "expm1": _float(vmath.expm1),
    "sqrt": _float(vmath.sqrt),
    "rsqrt": _float(lambda k, x: 1.0 / vmath.sqrt(k, x)),
    "reciprocal": _float(lambda k, x: 1.0 / x),
    "square": lambda k, x: x * x,
    "sigmoid": _float(vmath.sigmoid),
    "silu": _float(vmath.silu),
    "tanh": _float(vmath.tanh),
    "erf": _float(vmath.erf),
    "gelu": _float(vmath.gelu),
    "gelu_tanh": _float(vmath.gelu_tanh),
    "softplus": _float(_softplus),
    "mish": _float(lambda k, x: x * vmath.tanh(k, _softplus(k, x))),
    "softsign": _float(lambda k, x: x / (vmath.absolute(k, x) + 1.0)),
    "hardswish": _float(lambda k, x: x * _ramp(k, x, 1 / 6, 0.5)),
    "floor": _float(vmath.floor),
    "ceil": _float(vmath.ceil),
    "round": _float(vmath.round_even),
    "trunc": _float(vmath.truncate),
    "isnan": _float(lambda k, x: x.isnan()),
    "isinf": _float(_isinf),
    "not": lambda k, x: ~truth(k, x),
    "bool": lambda k, x: truth(k, x),
    "bitnot": lambda k, x: ~x,
    "float": to_float,
    "i32": _cast("i32"),
    "i64": _cast("i64"),
}
_HALF: dict[str, Emitter] = {
    "exp": _float(vmath.half_exp),
    "sigmoid": _float(vmath.half_sigmoid),
    "tanh": _float(vmath.half_tanh),
    "erf": _float(vmath.half_erf),
    "gelu": _float(vmath.half_gelu),
}
_BINARY: dict[str, Emitter] = {
    "add": _arithmetic(lambda a, b: a + b),
    "sub": _arithmetic(lambda a, b: a - b),
    "mul": _arithmetic(lambda a, b: a * b),
    "div": _divide,
    "max": _extreme(lambda a, b: a > b),
    "min": _extreme(lambda a, b: a < b),
    "mod": _remainder(floored=True),
    "fmod": _remainder(floored=False),
    "pow": lambda k, a, b: vmath.power(k, to_float(k, a), to_float(k, b)),
    "leaky_relu": lambda k, x, a: k.select(x < 0.0, x * a, x),
    "elu": _elu,
    "less": _comparison("__lt__"),
    "less_equal": _comparison("__le__"),
    "greater": _comparison("__gt__"),
    "greater_equal": _comparison("__ge__"),
    "equal": _comparison("eq"),
    "not_equal": _comparison("ne"),
    "and": _logical(lambda a, b: a & b),
    "or": _logical(lambda a, b: a | b),
    "xor": _logical(lambda a, b: a ^ b),
    "bitand": _arithmetic(lambda a, b: a & b),
    "bitor": _arithmetic(lambda a, b: a | b),
    "bitxor": _arithmetic(lambda a, b: a ^ b),
}
_TERNARY: dict[str, Emitter] = {
    "where": _where,
    "clip": _clip,
    "fma": lambda k, a, b, c: k.fma(a, b, c),
    "hardsigmoid": lambda k, x, a, b: _clip(k, k.fma(x, a, b), 0.0 * a, 0.0 * a + 1.0),
}
