"""Register tiles of convolution and matrix products: the one loop where the multiply-adds happen.

A tile computes `segments * length` pixels by `vectors * 16` output channels (by 8 where `vectors` is 0), reading fp32
pixels from a scratch block and fp16 or fp32 weights from a packed panel. It is indirect: pixel (s, i) of tap t lies at
`x + s*pitch + i*PIXEL + taps[t]` with PIXEL = 64 bytes (16 channels), so stride, dilation, padding, 1x1, 3x3 and matrix
products differ only in tables. With length 0, pixels lie apart: that of segment s at `x + places[s] + taps[t]`. Sums
start from the bias and run over taps, then over the channels of a tap, one fused multiply-add each: the order does not
depend on the tile's shape.

Kernel name: `tile:<weights dtype>:<vectors>:<segments>x<length>:<channels per tap>:<pixel bytes>:<finish>`; with 0
channels per tap the tile is depthwise: a tap multiplies each of 16 channels by its own weight. `finish` is the output
dtype of a tile that can round and store by itself, with the expression that follows (see epilogue), or `raw`, or
`sums` for one that leaves sums as a raw tile does, but knows the fields from [16] on. Weights of a type with `>f32`
behind it are left at [22] as fp32, in the same order: the first tile of many widens them for all.
Signature `void(i64 block, i64 unused, i64 unused)`, with block the address of an int64 array:
[0] x  [1] taps (int64 byte offsets)  [2] tap count  [3] weights  [4] bias (fp32)  [5] buffer (fp32
[pixels][vectors*16], 16 at least)  [6] pitch between segments in bytes, or address of their places; for tiles that
store also [7] out (0: leave the sums in the buffer)  [8] out step of 16 channels  [9] of 8 channels  [10] of pixels
[11] whether there is a residual and [12] its distance from out  [13] pixels that count  [14] lower and [15] upper
bound (fp32)  [16] memory to be brought into the level-2 cache meanwhile, `prefetched_bytes` a tap  [17] sums to go on
from, laid out as the buffer (0: begin with the bias)  [18] for `sums` and 512-bit tiles, another size (multiple of 64)
[19] sums that replace those of each vector in the end, laid out as the buffer (0: none), but for the lanes from [20] up
to [21]  [22] where weights go as fp32.
A tile that stores by itself adds the residual, clamps (NaN passes) and rounds, in registers all the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial

from npusim.kernels.cpu import Cpu
from npusim.kernels.epilogue import followed, split_target
from npusim.kernels.ir import F32, I32, LANES, SIZE, Kernel, Val, Var, vec

(
    X,
    TAPS,
    TAP_COUNT,
    WEIGHTS,
    BIAS,
    BUFFER,
    PITCH,
    OUT,
    OC,
    OH,
    OP,
    ADDS,
    SHIFT,
    LIVE,
    LOW,
    HIGH,
    NEXT,
    START,
    AHEAD_BYTES,
    KEPT,
    FIRST_LANE,
    END_LANE,
    WIDE,
    BLOCK_FIELDS,
) = range(24)
HALF = 0
RAW = "raw"
SUMS = "sums"
WIDENING = ">f32"  # after the type of narrow weights: the tile leaves them behind as fp32
# Channels in a row without a branch where there are 16 vector registers, and 32: LLVM's scheduler moves the
# multiply-adds of longer runs apart until sums no longer fit the registers. Where a spilt sum happens to cross the end
# of a page of the stack, a tile takes twice as long.
_RUN, _WIDE_RUN = 4, 1
_FEW_PIXELS, _FEW_RUN = 4, 32  # leave registers enough for longer runs, whose compilation takes the time they spare


def prefetched_bytes(cpu: Cpu) -> int:
    """What a tile asks for in a tap: few lines where tiles are small, so that many share the weights."""
    return 512 if cpu.wide else 128


def tile_name(
    weights: str, vectors: int, segments: int, length: int, channels: int, pixel: int, finish: str = RAW
) -> str:
    """Kernel name of a tile; `channels` per tap, `pixel` bytes from one pixel to the next; `HALF` a vector or more."""
    return f"tile:{weights}:{vectors}:{segments}x{length}:{channels}:{pixel}:{finish}"


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit a tile, or for family `peak` a register-only multiply-add loop."""
    if family == "peak":
        _emit_peak(k, int(parameters))
        return
    stored, vectors, shape, channels, pixel, finish = parameters.split(":")
    weights, leaves = stored.removesuffix(WIDENING), stored.endswith(WIDENING)
    segments, length = (int(n) for n in shape.split("x"))
    with k.main() as (block, _part, _ctx):
        extent = (segments * max(1, length), max(1, int(vectors)), LANES if int(vectors) else LANES // 2)
        sums = _emit_start(k, block, extent, finish != RAW)
        some = k.field(block, AHEAD_BYTES) if finish == SUMS or k.cpu.wide else prefetched_bytes(k.cpu)
        ahead = (k.field(block, NEXT), some) if finish != RAW and int(channels) == 16 else None
        if finish not in (RAW, SUMS) and k.cpu.wide:  # small tiles would lose more than they wait
            _ask_for_outputs(k, block, sums)
        wide = k.field(block, WIDE) if leaves else None
        _emit_sums(k, block, weights, sums, (segments, length, int(channels), int(pixel)), ahead, wide)
        if finish != RAW:
            _emit_kept(k, block, sums)
        if finish in (RAW, SUMS):
            _emit_raw(k, block, sums)
            return
        with k.either(k.field(block, OUT).eq(0)) as (raw, finished):
            with raw:
                _emit_raw(k, block, sums)
            with finished:
                _emit_finish(k, block, sums, finish)


def _emit_start(k: Kernel, block: Val, shape: tuple[int, int, int], resumes: bool) -> list[list[Var]]:
    """Sums by pixel and vector of some lanes, at the bias or where an earlier tile left them."""
    pixels, vectors, lanes = shape
    bias = k.field(block, BIAS)
    first = [k.load(bias + 64 * j, vec(F32, lanes)) for j in range(vectors)]
    sums = [[k.var(first[j]) for j in range(vectors)] for _ in range(pixels)]
    if resumes:
        start = k.field(block, START)
        with k.when(start.ne(0)):
            for p, row in enumerate(sums):
                for j, total in enumerate(row):
                    total.set(k.load(start + (p * vectors + j) * 64, total.ty))
    return sums


def _ask_for_outputs(k: Kernel, block: Val, sums: list[list[Var]]) -> None:
    """The lines that results go to come nearer while those are computed."""
    out, oc, op = (k.field(block, i) for i in (OUT, OC, OP))
    with k.when(out.ne(0)):
        at = out
        for row in sums:
            for j in range(len(row)):
                k.prefetch(at + j * oc if j else at, write=True)
            at = at + op


def _emit_sums(
    k: Kernel,
    block: Val,
    weights: str,
    acc: list[list[Var]],
    shape: tuple[int, int, int, int],
    ahead: tuple[Val, Val | int] | None,
    wide: Val | None,
) -> None:
    """The multiply-adds: over taps, and over runs of a tap's channels; `ahead` is memory asked for, bytes a tap, and
    `wide` where the weights go as fp32."""
    segments, length, channels, pixel = shape
    x, taps, count, w, pitch = (k.field(block, i) for i in (X, TAPS, TAP_COUNT, WEIGHTS, PITCH))
    places = [k.field(pitch, s) if length == 0 else pitch * s for s in range(segments)]
    panel, vectors, lanes = k.var(w), len(acc[0]), acc[0][0].ty.count
    step = lanes * vectors * SIZE[weights]
    run = _run_of(k.cpu, channels, len(acc))
    with k.loop(count) as t:
        row = x + k.load(taps + t * 8)
        pixels = [(row + place, i * pixel) for place in places for i in range(max(1, length))]
        at = panel.get()
        to = None if wide is None else wide + t * (max(1, channels) * lanes * vectors * 4)
        if channels == 0:
            own = _weights(k, at, to, weights, 1, lanes)
            _multiply(acc, (k.load(base + skip, vec(F32)) for base, skip in pixels), own)
        if ahead is not None:
            asked, some = ahead[0] + t * ahead[1], ahead[1]
            with k.loop(some, step=64) as line:
                k.prefetch(asked + line)
        with k.loop(channels, step=run) if run < channels else nullcontext(k.const(0)) as first:
            here, shifted = at + first * step, [(base + first * 4, skip) for base, skip in pixels]
            left = None if to is None else to + first * (lanes * vectors * 4)
            for c in range(run):
                kept = None if left is None else left + c * (lanes * vectors * 4)
                own = _weights(k, here + c * step, kept, weights, vectors, lanes)
                _multiply(acc, (k.splat(k.load(base + (skip + 4 * c), F32), lanes) for base, skip in shifted), own)
        panel.set(at + max(1, channels) * step)


def _run_of(cpu: Cpu, channels: int, pixels: int) -> int:
    """Channels of a tap that follow each other without a branch."""
    if cpu.wide:
        most = min(_FEW_RUN if pixels <= _FEW_PIXELS else _WIDE_RUN, channels)
        return max((run for run in range(1, most + 1) if channels % run == 0), default=0)
    return channels if channels % _RUN else min(_RUN, channels)


def _weights(k: Kernel, at: Val, wide: Val | None, dtype: str, vectors: int, lanes: int) -> list[Val]:
    """Vectors of weights as fp32, stored as such at `wide` where that is given."""
    own = [k.load_f32(at + j * lanes * SIZE[dtype], dtype, lanes) for j in range(vectors)]
    if wide is not None:
        for j, weight in enumerate(own):
            k.store(weight, wide + j * lanes * 4)
    return own


def _multiply(acc: list[list[Var]], values: Iterable[Val], weights: list[Val]) -> None:
    """One multiply-add for every sum; a value is loaded where its pixel's turn comes."""
    for row, value in zip(acc, values, strict=True):
        for total, weight in zip(row, weights, strict=True):
            total.set(value.k.fma(value, weight, total.get()))


def _emit_kept(k: Kernel, block: Val, sums: list[list[Var]]) -> None:
    """All lanes of every vector but some as earlier tiles left them."""
    kept = k.field(block, KEPT)
    with k.when(kept.ne(0)):
        lanes = sums[0][0].ty.count
        first, end = (k.splat(k.convert(k.field(block, n), "trunc", I32), lanes) for n in (FIRST_LANE, END_LANE))
        own = (k.lane_index(lanes) >= first) & (k.lane_index(lanes) < end)
        for p, row in enumerate(sums):
            for j, total in enumerate(row):
                total.set(k.select(own, total.get(), k.load(kept + (p * len(row) + j) * 64, total.ty)))


def _emit_raw(k: Kernel, block: Val, sums: list[list[Var]]) -> None:
    """fp32 sums into the buffer."""
    buffer = k.field(block, BUFFER)
    for p, row in enumerate(sums):
        for j, total in enumerate(row):
            k.store(total.get(), buffer + (p * len(row) + j) * 64)


def _emit_finish(k: Kernel, block: Val, sums: list[list[Var]], finish: str) -> None:
    """Residual, clamp, rounding and store of all pixels; only the last of a tile may not count."""
    dtype, _ = split_target(finish)
    oh = k.field(block, OH)
    lanes = sums[0][0].ty.count
    low, high = (k.splat(k.float_field(block, n), lanes) for n in (LOW, HIGH))
    adds, shift = k.field(block, ADDS), k.field(block, SHIFT)
    if lanes < LANES:
        with k.when(adds.ne(0)):
            _visit(k, block, sums, partial(_add, k, shift, None, dtype))
        _visit(k, block, sums, partial(_store, k, (low, high), None, finish))
        return
    with k.either(oh.eq(8 * SIZE[dtype])) as (joined, apart):
        for branch, half in ((joined, None), (apart, oh)):
            with branch:
                with k.when(adds.ne(0)):
                    _visit(k, block, sums, partial(_add, k, shift, half, dtype))
                _visit(k, block, sums, partial(_store, k, (low, high), half, finish))


def _visit(k: Kernel, block: Val, sums: list[list[Var]], act: Callable[[Var, Val], None]) -> None:
    """Call `act(sum, address of its output)` for all sums."""
    out, oc, op, live = (k.field(block, i) for i in (OUT, OC, OP, LIVE))
    at = out
    for p, row in enumerate(sums):
        if p == len(sums) - 1:
            with k.when(live > p):
                for j, total in enumerate(row):
                    act(total, at + j * oc if j else at)
            return
        for j, total in enumerate(row):
            act(total, at + j * oc if j else at)
        at = at + op


def _add(k: Kernel, shift: Val, half: Val | None, dtype: str, total: Var, out: Val) -> None:
    at = out + shift
    if half is None:
        total.set(total.get() + k.load_f32(at, dtype, total.ty.count))
    else:
        total.set(total.get() + k.join(k.load_f32(at, dtype, 8), k.load_f32(at + half, dtype, 8)))


def _store(k: Kernel, bounds: tuple[Val, Val], half: Val | None, finish: str, total: Var, at: Val) -> None:
    x, (low, high), (dtype, then) = total.get(), bounds, split_target(finish)
    x = k.select(x < low, low, x)
    x = k.select(x > high, high, x)
    if then:
        x = followed(k, x, dtype, then, k.alloca(64))
    if half is None:
        k.store_f32(x, at, dtype)
    else:
        first, second = k.halves(x)
        k.store_f32(first, at, dtype)
        k.store_f32(second, at + half, dtype)


def _emit_peak(k: Kernel, lanes: int) -> None:
    """Multiply-add throughput: desc = address of [iterations, out address]; 48 * lanes multiply-adds an iteration."""
    with k.main() as (desc, _part, _ctx):
        n, out = k.field(desc, 0), k.field(desc, 1)
        one = k.splat(k.load(out, F32), lanes)
        acc = [k.var(one + float(i)) for i in range(12)]
        with k.loop(n):
            for _ in range(4):
                for variable in acc:
                    variable.set(k.fma(variable.get(), one, one))
        total = acc[0].get()
        for variable in acc[1:]:
            total = total + variable.get()
        k.store(total, out)
