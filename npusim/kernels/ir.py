"""Vocabulary in which every kernel is written: a thin layer over llvmlite's IR builder.

A kernel is a Python function that receives a `Kernel` and emits LLVM IR through it. Values are `Val`s with the usual
operators, addresses are plain 64-bit integers, mutable variables are stack slots that LLVM promotes to registers, and
loops and branches are context managers, so that generator code reads like the loop nest it produces. The module ends
in one external symbol `void name(i64 desc, i64 part, i64 ctx)` and holds no call out of itself: where the target CPU
lacks an instruction (fused multiply-add, half conversion, rounding) plain arithmetic is emitted instead.

Type names used throughout: f16, bf16, f32, f64, i8, u8, i16, i32, i64, b8 (one byte, 0 or 1). LLVM narrows to bfloat
by library calls, so bf16 is 16-bit integers to it and converted by arithmetic on every CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite.ir as ir

from npusim.kernels.cpu import Cpu

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
VOID = ir.VoidType()
_POINTER = ir.PointerType()
LANES = 16

MEMORY_TYPE = {
    "f16": F16,
    "bf16": I16,
    "f32": F32,
    "f64": F64,
    "i8": I8,
    "u8": I8,
    "b8": I8,
    "i16": I16,
    "i32": I32,
    "i64": I64,
}
SIZE = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i8": 1, "u8": 1, "b8": 1, "i16": 2, "i32": 4, "i64": 8}
HALVES = ("f16", "bf16")
FLOATS = (*HALVES, "f32")  # stored types that are fp32 inside
RAW = {1: I8, 2: I16, 4: I32, 8: I64}  # integer type that moves an element of so many bytes
_SHORT = ('"prefer-vector-width"="256"', '"min-legal-vector-width"="256"')
LARGEST = {"f16": 65504.0, "bf16": 2.0**128 - 2.0**120}


def vec(ty: ir.Type, lanes: int = LANES) -> ir.VectorType:
    """Vector type of `lanes` elements."""
    return ir.VectorType(ty, lanes)


def _element(ty: ir.Type) -> ir.Type:
    return ty.element if isinstance(ty, ir.VectorType) else ty


def _is_float(ty: ir.Type) -> bool:
    return isinstance(_element(ty), (ir.FloatType, ir.HalfType, ir.DoubleType))


def _suffix(ty: ir.Type) -> str:
    """A type in the names of intrinsics, such as ``v16f32``."""
    element = _element(ty)
    name = {"float": "f32", "double": "f64", "half": "f16"}.get(str(element), str(element))
    return f"v{ty.count}{name}" if isinstance(ty, ir.VectorType) else name


def _constant(ty: ir.Type, value: float | int | bool) -> ir.Constant:
    scalar: float | int = float(value) if _is_float(ty) else int(value)
    if isinstance(ty, ir.VectorType):
        return ir.Constant(ty, [scalar] * ty.count)
    return ir.Constant(ty, scalar)


class Val:
    """An SSA value with operators. Integers are signed except for `>>`, which is logical."""

    __slots__ = ("k", "v")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, k: Kernel, v: Any) -> None:
        self.k, self.v = k, v

    @property
    def type(self) -> ir.Type:
        return self.v.type

    def _binary(self, other: Val | float, int_op: str, float_op: str | None, swap: bool = False) -> Val:
        a, b = self.v, self.k.coerce(other, self.v.type)
        if swap:
            a, b = b, a
        op = float_op if _is_float(a.type) else int_op
        if op is None:
            raise TypeError(f"{int_op} is not defined for floating-point values")
        return Val(self.k, getattr(self.k.b, op)(a, b))

    def __add__(self, o: Val | float) -> Val:
        return self._binary(o, "add", "fadd")

    def __radd__(self, o: Val | float) -> Val:
        return self._binary(o, "add", "fadd", swap=True)

    def __sub__(self, o: Val | float) -> Val:
        return self._binary(o, "sub", "fsub")

    def __rsub__(self, o: Val | float) -> Val:
        return self._binary(o, "sub", "fsub", swap=True)

    def __mul__(self, o: Val | float) -> Val:
        return self._binary(o, "mul", "fmul")

    def __rmul__(self, o: Val | float) -> Val:
        return self._binary(o, "mul", "fmul", swap=True)

    def __truediv__(self, o: Val | float) -> Val:
        return self._binary(o, "sdiv", "fdiv")

    def __rtruediv__(self, o: Val | float) -> Val:
        return self._binary(o, "sdiv", "fdiv", swap=True)

    def __floordiv__(self, o: Val | float) -> Val:
        return self._binary(o, "sdiv", None)

    def __mod__(self, o: Val | float) -> Val:
        return self._binary(o, "srem", None)

    def __and__(self, o: Val | float) -> Val:
        return self._binary(o, "and_", None)

    def __or__(self, o: Val | float) -> Val:
        return self._binary(o, "or_", None)

    def __xor__(self, o: Val | float) -> Val:
        return self._binary(o, "xor", None)

    def __lshift__(self, o: Val | float) -> Val:
        return self._binary(o, "shl", None)

    def __rshift__(self, o: Val | float) -> Val:
        return self._binary(o, "lshr", None)

    def __neg__(self) -> Val:
        return Val(self.k, self.k.b.fneg(self.v)) if _is_float(self.type) else 0 - self

    def __invert__(self) -> Val:
        return Val(self.k, self.k.b.not_(self.v))

    def _compare(self, op: str, other: Val | float) -> Val:
        b = self.k.coerce(other, self.v.type)
        if _is_float(self.type):
            emit = self.k.b.fcmp_unordered if op == "!=" else self.k.b.fcmp_ordered
            return Val(self.k, emit(op, self.v, b))
        return Val(self.k, self.k.b.icmp_signed(op, self.v, b))

    def __lt__(self, o: Val | float) -> Val:
        return self._compare("<", o)

    def __le__(self, o: Val | float) -> Val:
        return self._compare("<=", o)

    def __gt__(self, o: Val | float) -> Val:
        return self._compare(">", o)

    def __ge__(self, o: Val | float) -> Val:
        return self._compare(">=", o)

    def eq(self, o: Val | float) -> Val:
        """Equality as a value (False for NaN)."""
        return self._compare("==", o)

    def ne(self, o: Val | float) -> Val:
        """Inequality as a value (True for NaN)."""
        return self._compare("!=", o)

    def isnan(self) -> Val:
        return Val(self.k, self.k.b.fcmp_unordered("uno", self.v, self.v))

    def bits(self, ty: ir.Type) -> Val:
        """The same bits read as another type of equal size."""
        return Val(self.k, self.k.b.bitcast(self.v, ty))


class Var:
    """A mutable variable (a stack slot that LLVM turns into registers)."""

    __slots__ = ("k", "slot", "ty")

    def __init__(self, k: Kernel, slot: Any, ty: ir.Type) -> None:
        self.k, self.slot, self.ty = k, slot, ty

    def get(self) -> Val:
        return Val(self.k, self.k.b.load(self.slot, typ=self.ty))

    def set(self, value: Val | float) -> None:
        self.k.b.store(self.k.coerce(value, self.ty), self.slot)


class Kernel:
    """One LLVM module under construction with a current function and insertion point."""

    def __init__(self, symbol: str, cpu: Cpu) -> None:
        self.cpu = cpu
        self.symbol = symbol
        self.module = ir.Module(name=symbol)
        self.module.triple = cpu.triple
        self.b: ir.IRBuilder = ir.IRBuilder()
        self._functions: dict[str, ir.Function] = {}
        self._short = False

    # -- functions ----------------------------------------------------------------------------------------------
    @contextmanager
    def function(
        self, name: str, args: Sequence[ir.Type], ret: ir.Type = VOID, external: bool = False
    ) -> Iterator[list[Val]]:
        """Open a function; body code goes inside. A void function returns by itself at the end."""
        fn = ir.Function(self.module, ir.FunctionType(ret, list(args)), name=name)
        for attribute in ('"no-builtins"', *(_SHORT if self._short else ())):
            set.add(fn.attributes, attribute)
        fn.attributes.add("nounwind")
        if not external:
            fn.linkage = "internal"
            fn.attributes.add("noinline")
        self._functions[name] = fn
        outer = self.b
        entry, body = fn.append_basic_block("entry"), fn.append_basic_block("body")
        self.b = ir.IRBuilder(body)
        yield [Val(self, a) for a in fn.args]
        if ret == VOID:
            self.b.ret_void()
        ir.IRBuilder(entry).branch(body)
        self.b = outer

    def short_registers(self) -> None:
        """Keep to 256-bit registers, of more there are, in the functions opened from here on."""
        self._short = True

    def main(self, args: int = 3) -> Any:
        """Open the external entry `void symbol(i64, ...)`."""
        return self.function(self.symbol, [I64] * args, external=True)

    def call(self, name: str, *args: Val | int) -> Val:
        fn = self._functions[name]
        types = fn.function_type.args
        return Val(self, self.b.call(fn, [self.coerce(a, t) for a, t in zip(args, types, strict=True)]))

    def call_address(self, address: Val, *args: Val | int) -> None:
        """Call `void(i64, ...)` at a run-time address."""
        ty = ir.FunctionType(VOID, [I64] * len(args))
        pointer = self.b.inttoptr(address.v, ty.as_pointer())
        self.b.call(pointer, [self.coerce(a, I64) for a in args])

    def intrinsic(self, name: str, ret: ir.Type, args: Sequence[Val | Any]) -> Val:
        values = [a.v if isinstance(a, Val) else a for a in args]
        if name not in self._functions:
            ty = ir.FunctionType(ret, [v.type for v in values])
            self._functions[name] = ir.Function(self.module, ty, name=name)
        return Val(self, self.b.call(self._functions[name], values))

    # -- values -------------------------------------------------------------------------------------------------
    def coerce(self, x: Val | float, ty: ir.Type) -> Any:
        """LLVM value of a Val or Python number in type `ty` (scalars are broadcast to vectors)."""
        if not isinstance(x, Val):
            return _constant(ty, x)
        if x.type != ty and isinstance(ty, ir.VectorType) and x.type == ty.element:
            return self.splat(x, ty.count).v
        return x.v

    def const(self, value: float | int, ty: ir.Type = I64) -> Val:
        return Val(self, _constant(ty, value))

    def splat(self, x: Val, lanes: int = LANES) -> Val:
        """Broadcast a scalar over a vector."""
        empty = ir.Constant(vec(x.type, lanes), ir.Undefined)
        one = self.b.insert_element(empty, x.v, ir.Constant(I32, 0))
        return Val(self, self.b.shuffle_vector(one, empty, ir.Constant(vec(I32, lanes), [0] * lanes)))

    def lane_index(self, lanes: int = LANES) -> Val:
        """The i32 vector 0, 1, 2, …"""
        return Val(self, ir.Constant(vec(I32, lanes), list(range(lanes))))

    def shuffle(self, a: Val, b: Val, indices: Sequence[int]) -> Val:
        return Val(self, self.b.shuffle_vector(a.v, b.v, ir.Constant(vec(I32, len(indices)), list(indices))))

    def gathered(self, values: Sequence[Val]) -> Val:
        """Scalars as the lanes of a vector."""
        whole: Any = ir.Constant(vec(values[0].type, len(values)), ir.Undefined)
        for lane, value in enumerate(values):
            whole = self.b.insert_element(whole, value.v, ir.Constant(I32, lane))
        return Val(self, whole)

    def halves(self, x: Val) -> tuple[Val, Val]:
        """Lower and upper half of a vector."""
        n = x.type.count
        return self.shuffle(x, x, range(n // 2)), self.shuffle(x, x, range(n // 2, n))

    def join(self, low: Val, high: Val) -> Val:
        """Two vectors end to end."""
        return self.shuffle(low, high, range(2 * low.type.count))

    def extract(self, x: Val, lane: int) -> Val:
        return Val(self, self.b.extract_element(x.v, ir.Constant(I32, lane)))

    def select(self, cond: Val, a: Val | float, b: Val | float) -> Val:
        ty = a.type if isinstance(a, Val) else b.type  # type: ignore[union-attr]
        if isinstance(b, Val) and isinstance(b.type, ir.VectorType):
            ty = b.type
        return Val(self, self.b.select(cond.v, self.coerce(a, ty), self.coerce(b, ty)))

    def minimum(self, a: Val, b: Val | int) -> Val:
        """Smaller of two integers."""
        return self.select(a < b, a, b)

    def maximum(self, a: Val, b: Val | int) -> Val:
        """Larger of two integers."""
        return self.select(a > b, a, b)

    def convert(self, x: Val, op: str, ty: ir.Type) -> Val:
        """Raw LLVM cast (`sext`, `zext`, `trunc`, `sitofp`, `uitofp`, `fptosi`, `fpext`, `fptrunc`)."""
        return Val(self, getattr(self.b, op)(x.v, ty))

    def fma(self, a: Val, b: Val | float, c: Val | float) -> Val:
        """a*b+c with one rounding where the CPU has it, with two elsewhere."""
        b, c = Val(self, self.coerce(b, a.type)), Val(self, self.coerce(c, a.type))
        if not self.cpu.fma:
            return a * b + c
        return self.float_call("fma", a, b, c)

    def plus(self, a: Val, b: Val) -> Val:
        """a + b with the same bits, by the pipes that multiply where those that add have the conversions to do."""
        if not self.cpu.halved:
            return a + b
        # Behind the fence LLVM does not see that an addition would do.
        return self.fma(a, self.float_call("arithmetic.fence", Val(self, self.coerce(1.0, a.type))), b)

    def float_call(self, name: str, *args: Val) -> Val:
        """Overloaded LLVM floating-point intrinsic on scalars or vectors."""
        ty = args[0].type
        return self.intrinsic(f"llvm.{name}.{_suffix(ty)}", ty, args)

    # -- memory -------------------------------------------------------------------------------------------------
    def pointer(self, address: Val) -> Any:
        return self.b.inttoptr(address.v, _POINTER)

    def load(self, address: Val, ty: ir.Type = I64, align: int | None = None, live: Val | None = None) -> Val:
        """Load promising only element alignment; where there are `live` lanes, of those alone, and zeros in others."""
        if live is None:
            return Val(self, self.b.load(self.pointer(address), typ=ty, align=align or _align(ty)))
        rest = [self.const(_align(ty), I32), live, self.const(0, ty)]
        return self.intrinsic(f"llvm.masked.load.{_suffix(ty)}.p0", ty, [self.pointer(address), *rest])

    def store_live(self, value: Val, address: Val, live: Val) -> None:
        """Store of the `live` lanes alone."""
        rest = [self.pointer(address), self.const(_align(value.type), I32), live]
        self.intrinsic(f"llvm.masked.store.{_suffix(value.type)}.p0", VOID, [value, *rest])

    def store(self, value: Val, address: Val, align: int | None = None, past_caches: bool = False) -> None:
        """Store promising only element alignment; `past_caches` promises a vector's or a cache line's, and leaves the
        caches alone."""
        if past_caches:
            align = min(64, value.type.count * _align(value.type))
        stored = self.b.store(value.v, self.pointer(address), align=align or _align(value.type))
        if past_caches:
            stored.set_metadata("nontemporal", self.module.add_metadata([self.const(1, I32).v]))

    def fence(self) -> None:
        """Let everybody see what was stored past the caches before anything that is stored later."""
        if self.cpu.x86:
            self.intrinsic("llvm.x86.sse.sfence", VOID, [])
        else:
            self.b.fence("release")

    def prefetch(self, address: Val, write: bool = False) -> None:
        """Ask for a cache line to come to the level-2 cache, or near and to be written; any address is allowed."""
        flags = [self.const(n, I32) for n in ((1, 3, 1) if write else (0, 2, 1))]
        self.intrinsic("llvm.prefetch.p0", VOID, [self.pointer(address), *flags])

    def field(self, base: Val, index: int) -> Val:
        """int64 number `index` of a descriptor."""
        return self.load(base + 8 * index)

    def float_field(self, base: Val, index: int) -> Val:
        """A float32 kept in the low half of an int64 descriptor field."""
        return self.load(base + 8 * index, F32)

    def load_f32(self, address: Val, dtype: str, lanes: int = LANES, live: Val | None = None) -> Val:
        """Vector load of f16, bf16, f32, i8 or u8 memory as f32; `live` is that of `load`."""
        if dtype == "f32":
            return self.load(address, vec(F32, lanes), live=live)
        if dtype in ("i8", "u8"):
            whole = self.convert(
                self.load(address, vec(I8, lanes), live=live), "sext" if dtype == "i8" else "zext", vec(I32, lanes)
            )
            return self.convert(whole, "sitofp", vec(F32, lanes))
        if dtype == "bf16":
            wide = self.convert(self.load(address, vec(I16, lanes), live=live), "zext", vec(I32, lanes))
            return (wide << 16).bits(vec(F32, lanes))
        short = self.load(address, vec(I16, lanes), live=live)
        if self.cpu.half:
            return self.convert(short.bits(vec(F16, lanes)), "fpext", vec(F32, lanes))
        return _half_to_float(self, short)

    def store_f32(self, value: Val, address: Val, dtype: str, past_caches: bool = False) -> None:
        """Vector store of f32 as f32, or rounded to nearest even as f16 or bf16 (overflow gives infinity).

        `past_caches` is that of `store`, and wants a `fence` before the part ends.
        """
        self.store(self.narrowed(value, dtype), address, past_caches=past_caches)

    def narrowed(self, value: Val, dtype: str) -> Val:
        """A vector of f32 as elements of a float type."""
        if dtype == "f32":
            return value
        if dtype == "bf16":
            return _float_to_bfloat(self, value)
        if self.cpu.half:
            return self.convert(value, "fptrunc", vec(F16, value.type.count))
        return _float_to_half(self, value)

    def alloca(self, nbytes: int) -> Val:
        """Address of a 64-byte aligned stack buffer of the current function."""
        fn = self.b.function
        entry = ir.IRBuilder(fn.entry_basic_block)
        slot = entry.alloca(ir.ArrayType(I8, nbytes))
        slot.align = 64
        return Val(self, self.b.ptrtoint(slot, I64))

    def var(self, init: Val | float, ty: ir.Type | None = None) -> Var:
        """A mutable variable with an initial value."""
        kind = ty if ty is not None else init.type if isinstance(init, Val) else I64
        entry = ir.IRBuilder(self.b.function.entry_basic_block)
        variable = Var(self, entry.alloca(kind), kind)
        variable.set(init)
        return variable

    # -- control ------------------------------------------------------------------------------------------------
    @contextmanager
    def loop(self, stop: Val | int, start: Val | int = 0, step: Val | int = 1) -> Iterator[Val]:
        """for i in range(start, stop, step)."""
        i = self.var(self.const(start) if not isinstance(start, Val) else start)
        limit = stop if isinstance(stop, Val) else self.const(stop)
        fn = self.b.function
        head, body, end = (fn.append_basic_block(n) for n in ("head", "loop", "end"))
        self.b.branch(head)
        self.b.position_at_end(head)
        index = i.get()
        self.b.cbranch((index < limit).v, body, end)
        self.b.position_at_end(body)
        yield index
        i.set(index + step)
        self.b.branch(head)
        self.b.position_at_end(end)

    @contextmanager
    def when(self, cond: Val) -> Iterator[None]:
        """if cond:"""
        with self.b.if_then(cond.v):
            yield

    @contextmanager
    def either(self, cond: Val) -> Iterator[tuple[Any, Any]]:
        """if cond … else …: `with k.either(c) as (yes, no): with yes: …; with no: …`."""
        with self.b.if_else(cond.v) as branches:
            yield branches

    @contextmanager
    def while_(self) -> Iterator[_While]:
        """Endless loop left through `.stop_if(cond)`."""
        fn = self.b.function
        body, end = fn.append_basic_block("while"), fn.append_basic_block("done")
        self.b.branch(body)
        self.b.position_at_end(body)
        yield _While(self, end)
        self.b.branch(body)
        self.b.position_at_end(end)


class _While:
    def __init__(self, k: Kernel, end: Any) -> None:
        self.k, self._end = k, end

    def stop_if(self, cond: Val) -> None:
        rest = self.k.b.function.append_basic_block("on")
        self.k.b.cbranch(cond.v, self._end, rest)
        self.k.b.position_at_end(rest)


def _align(ty: ir.Type) -> int:
    element = _element(ty)
    if isinstance(element, ir.IntType):
        return max(1, element.width // 8)
    return {"half": 2, "float": 4, "double": 8}[str(element)]


def _half_to_float(k: Kernel, h: Val) -> Val:
    """Exact widening of IEEE halves by integer arithmetic, for CPUs without a conversion instruction."""
    lanes = h.type.count
    i32, f32 = vec(I32, lanes), vec(F32, lanes)
    bits = k.convert(h, "zext", i32)
    magnitude = bits & 0x7FFF
    scaled = ((magnitude << 13).bits(f32) * 2.0**112).bits(i32)
    special = (magnitude << 13) | 0x7F800000
    special = k.select(magnitude > 0x7C00, special | 0x00400000, special)
    value = k.select(magnitude >= 0x7C00, special, scaled)
    return (value | ((bits & 0x8000) << 16)).bits(f32)


def _float_to_bfloat(k: Kernel, x: Val) -> Val:
    """Upper halves of floats, nearest even; every NaN becomes the canonical one."""
    lanes = x.type.count
    bits = x.bits(vec(I32, lanes))
    rounded = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16
    return k.convert(k.select(x.isnan(), 0x7FC0, rounded), "trunc", vec(I16, lanes))


def _float_to_half(k: Kernel, x: Val) -> Val:
    """Narrowing to IEEE half, nearest even, by integer arithmetic."""
    lanes = x.type.count
    i32, f32 = vec(I32, lanes), vec(F32, lanes)
    bits = x.bits(i32)
    magnitude = bits & 0x7FFFFFFF
    rounded = (magnitude + ((magnitude >> 13) & 1) + (0xFFF - (112 << 23))) >> 13
    # Below 2**-14 the sum with 0.5 puts the half subnormal's unit at the float's last place.
    tiny = (magnitude.bits(f32) + 0.5).bits(i32) - 0x3F000000
    out = k.select(magnitude < 0x38800000, tiny, rounded)
    out = k.select(magnitude >= 0x47800000, 0x7C00, out)
    out = k.select(magnitude > 0x7F800000, ((magnitude >> 13) & 0x3FF) | 0x7E00, out)
    return k.convert(out | ((bits >> 16) & 0x8000), "trunc", vec(I16, lanes))
