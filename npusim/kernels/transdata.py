"""Layout changes between plain tensors (NCHW, NHWC, ND) and blocked ones (NC1HWC0, FRACTAL_NZ).

Both sides are seen as [batch][channel][pixel]: in NCHW pixels lie together, in NHWC and in the rows of a matrix
channels do, and the blocked side keeps C0 channels of a pixel together. One pass moves, pads with zeros and, where the
dtypes differ, converts between fp16, bf16 and fp32. `to_blocked` and `from_blocked` describe the task as a Call.
Kernel names: `transdata:<source dtype>:<target dtype>:<C0>:<to|from>`; without conversion only the element size counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from npusim.kernels.desc import Call, call, split_count
from npusim.kernels.elementwise import emit_lane_copy
from npusim.kernels.epilogue import saturated
from npusim.kernels.ir import F32, FLOATS, RAW, SIZE, Kernel, Val, vec

(
    _SOURCE,
    _TARGET,
    _BATCHES,
    _CHANNELS,
    _BLOCKS,
    _PIXELS,
    _ALL_PIXELS,
    _PN,
    _PC,
    _PP,
    _BN,
    _BB,
    _CHUNKS,
    _CHUNK,
    _SATURATE,
) = range(1, 16)
_TILE = 16


@dataclass(frozen=True)
class Plain:
    """A plain tensor as [batch][channel][pixel] with byte strides."""

    address: int
    dtype: str
    batches: int
    channels: int
    pixels: int
    strides: tuple[int, int, int]

    @staticmethod
    def nchw(address: int, dtype: str, shape: Sequence[int]) -> Plain:
        """[N, C, spatial…] row-major."""
        n, c = shape[0], shape[1]
        pixels = _product(shape[2:])
        size = SIZE[dtype]
        return Plain(address, dtype, n, c, pixels, (c * pixels * size, pixels * size, size))

    @staticmethod
    def nhwc(address: int, dtype: str, shape: Sequence[int]) -> Plain:
        """[N, spatial…, C] row-major."""
        n, c = shape[0], shape[-1]
        pixels = _product(shape[1:-1])
        size = SIZE[dtype]
        return Plain(address, dtype, n, c, pixels, (c * pixels * size, size, c * size))

    @staticmethod
    def matrix(address: int, dtype: str, shape: Sequence[int]) -> Plain:
        """[batch…, M, K] row-major, K being the channel of FRACTAL_NZ."""
        size, (m, k) = SIZE[dtype], shape[-2:]
        return Plain(address, dtype, _product(shape[:-2]), k, m, (m * k * size, size, k * size))


def retyped(plain: Plain, dtype: str, address: int) -> Plain:
    """The same dense tensor with elements of another type, elsewhere."""
    old, new = SIZE[plain.dtype], SIZE[dtype]
    batch, channel, pixel = (step // old * new for step in plain.strides)
    return replace(plain, dtype=dtype, address=address, strides=(batch, channel, pixel))


def _product(values: Sequence[int]) -> int:
    total = 1
    for v in values:
        total *= v
    return total


def to_blocked(
    plain: Plain, target: int, dtype: str, c0: int, stored_pixels: int | None = None, saturate: bool = False
) -> Call:
    """Plain -> [batch][C/c0][stored pixels][c0]; channels beyond C and pixels beyond the tensor's become zeros."""
    return _describe(plain, target, dtype, c0, stored_pixels, saturate, "to")


def from_blocked(
    source: int, dtype: str, c0: int, plain: Plain, stored_pixels: int | None = None, saturate: bool = False
) -> Call:
    """[batch][C/c0][stored pixels][c0] -> plain, padding dropped."""
    return _describe(plain, source, dtype, c0, stored_pixels, saturate, "from")


def _describe(
    plain: Plain, blocked: int, dtype: str, c0: int, stored: int | None, saturate: bool, direction: str
) -> Call:
    if c0 % 8 and c0 != 4:
        raise ValueError(f"C0 must be 4 or a multiple of 8, not {c0}")
    pixels = plain.pixels if stored is None else stored
    if pixels < plain.pixels:
        raise ValueError(f"{pixels} stored pixels cannot hold {plain.pixels}")
    blocks, size = -(-plain.channels // c0), SIZE[dtype]
    source, target = (plain.dtype, dtype) if direction == "to" else (dtype, plain.dtype)
    if source != target and not {source, target} <= set(FLOATS):
        raise ValueError(f"transdata converts between f16, bf16 and f32 only, not {source} to {target}")
    if source == target:
        source = target = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}[size]
    lines = plain.batches * blocks
    work = lines * pixels * c0
    parts = split_count(work * 4e-4, lines * max(1, pixels // 64))
    per_line = max(1, -(-parts // lines)) if lines else 1
    per_part = -(-pixels // per_line)
    chunk = max(_TILE, -(-per_part // _TILE) * _TILE)
    chunks = -(-pixels // chunk) if pixels else 0
    group = 1
    while lines * chunks > 64 and -(-lines // (group * 2)) * chunks >= 8:
        group *= 2
    addresses = (plain.address, blocked) if direction == "to" else (blocked, plain.address)
    fields = [*addresses, plain.batches, plain.channels, blocks, plain.pixels, pixels, *plain.strides]
    fields += [blocks * pixels * c0 * size, pixels * c0 * size, chunks, chunk, int(saturate), group, lines]
    name = f"transdata:{source}:{target}:{c0}:{direction}"
    return call(name, -(-lines // group) * chunks if work else 0, 0, fields)


_GROUP, _LINES = 16, 17


class _Mover:
    """Loads and stores of 16 lanes in the working type: fp32 when converting, else raw integers."""

    def __init__(self, k: Kernel, source: str, target: str, flag: Val) -> None:
        self.k, self.source, self.target, self.flag = k, source, target, flag
        self.convert = source != target
        self.lane_type = F32 if self.convert else RAW[SIZE[source]]

    def load(self, at: Val, lanes: int) -> Val:
        if self.convert:
            return self.k.load_f32(at, self.source, lanes)
        return self.k.load(at, vec(self.lane_type, lanes))

    def store(self, x: Val, at: Val) -> None:
        if not self.convert:
            self.k.store(x, at)
            return
        self.k.store_f32(saturated(self.k, x, self.flag, self.target), at, self.target)

    def zero(self, lanes: int) -> Val:
        return self.k.const(0, vec(self.lane_type, lanes))


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit `transdata:<source>:<target>:<C0>:<to|from>`."""
    source, target, c0_text, direction = parameters.split(":")
    c0 = int(c0_text)
    lanes = 16 if c0 % 16 == 0 else min(c0, 8)
    for size in sorted({SIZE[source], SIZE[target]}):
        emit_lane_copy(k, size)
    with k.main() as (desc, part, _ctx):
        mover = _Mover(k, source, target, k.field(desc, _SATURATE))
        chunks, blocks = k.field(desc, _CHUNKS), k.field(desc, _BLOCKS)
        chunk, group = part % chunks, part / chunks
        lo = group * k.field(desc, _GROUP)
        hi = k.minimum(lo + k.field(desc, _GROUP), k.field(desc, _LINES))
        begin = chunk * k.field(desc, _CHUNK)
        end = k.minimum(begin + k.field(desc, _CHUNK), k.field(desc, _ALL_PIXELS))
        plain, blocked = (_SOURCE, _TARGET) if direction == "to" else (_TARGET, _SOURCE)
        blocked_size = SIZE[target if direction == "to" else source]
        spare = k.alloca(_TILE * 8 * 2)
        with k.loop(hi, start=lo) as line:
            batch, block = line / blocks, line % blocks
            flat = k.field(desc, plain) + batch * k.field(desc, _PN)
            packed = k.field(desc, blocked) + batch * k.field(desc, _BN) + block * k.field(desc, _BB)
            with k.loop(c0, step=lanes) as lane0:
                channel = block * c0 + lane0
                with k.loop(end, start=begin, step=_TILE) as pixel:
                    at = packed + pixel * (c0 * blocked_size) + lane0 * blocked_size
                    tile = _Tile(k, mover, desc, flat, at, channel, pixel, end, lanes, c0 * blocked_size, spare)
                    (tile.to_blocked if direction == "to" else tile.from_blocked)()


class _Tile:
    """Code for one tile of up to 16 channels by 16 pixels."""

    def __init__(
        self,
        k: Kernel,
        mover: _Mover,
        desc: Val,
        flat: Val,
        packed: Val,
        channel: Val,
        pixel: Val,
        end: Val,
        lanes: int,
        pitch: int,
        spare: Val,
    ) -> None:
        self.k, self.mover, self.lanes, self.pitch, self.spare = k, mover, lanes, pitch, spare
        self.packed = packed
        self.channels = k.maximum(k.minimum(k.field(desc, _CHANNELS) - channel, lanes), 0)
        self.pixels = k.maximum(k.minimum(k.field(desc, _PIXELS) - pixel, _TILE), 0)
        self.stored = k.minimum(end - pixel, _TILE)
        self.pc, self.pp = k.field(desc, _PC), k.field(desc, _PP)
        self.flat = flat + channel * self.pc + pixel * self.pp

    def to_blocked(self) -> None:
        k = self.k
        size = SIZE[self.mover.source]
        by_pixel = self.pp.eq(size) & self.pc.ne(size)
        with k.either(by_pixel) as (turn, straight):
            with turn:
                rows = [self._plain_row(self.flat + c * self.pc, self.pixels, self.pp, c) for c in range(self.lanes)]
                rows += [self.mover.zero(_TILE)] * (_TILE - self.lanes)
                for p, column in enumerate(transposed(k, rows)):
                    with k.when(self.stored > p):
                        self._put(column, self.packed + p * self.pitch)
            with straight, k.loop(self.stored) as pixel:
                count = k.select(pixel < self.pixels, self.channels, 0)
                self._put(self._gather(self.flat + pixel * self.pp, count, self.pc), self.packed + pixel * self.pitch)

    def from_blocked(self) -> None:
        k = self.k
        size = SIZE[self.mover.target]
        by_pixel = self.pp.eq(size) & self.pc.ne(size)
        with k.either(by_pixel) as (turn, straight):
            with turn:
                rows = []
                for p in range(_TILE):
                    row = k.var(self.mover.zero(_TILE))
                    with k.when(self.pixels > p):
                        row.set(self._wide(self.mover.load(self.packed + p * self.pitch, self.lanes)))
                    rows.append(row.get())
                for c, line in enumerate(transposed(k, rows)[: self.lanes]):
                    with k.when(self.channels > c):
                        self._scatter(line, self.flat + c * self.pc, self.pixels, self.pp)
            with straight, k.loop(self.pixels) as pixel:
                line = self._wide(self.mover.load(self.packed + pixel * self.pitch, self.lanes))
                self._scatter(line, self.flat + pixel * self.pp, self.channels, self.pc)

    def _wide(self, x: Val) -> Val:
        for lanes in (4, 8):
            if self.lanes <= lanes:
                x = self.k.join(x, self.mover.zero(lanes))
        return x

    def _put(self, x: Val, at: Val) -> None:
        for lanes in (8, 4):
            if self.lanes <= lanes:
                x = self.k.halves(x)[0]
        self.mover.store(x, at)

    def _plain_row(self, at: Val, count: Val, step: Val, channel: int) -> Val:
        """Pixels of one channel; zeros beyond the tensor and in channels that do not exist."""
        row = self.k.var(self.mover.zero(_TILE))
        with self.k.when(self.channels > channel):
            row.set(self._gather(at, count, step))
        return row.get()

    def _gather(self, at: Val, count: Val, step: Val) -> Val:
        """16 lanes of which `count` come from memory at a stride, the others zero."""
        k = self.k
        size = SIZE[self.mover.source]
        come = k.var(at)
        with k.when(~(count.eq(_TILE) & step.eq(size))):
            k.store(k.const(0, vec(RAW[size], _TILE)), self.spare)
            k.call(f"lanes{size}", at, step, self.spare, size, count)
            come.set(self.spare)
        return self.mover.load(come.get(), _TILE)

    def _scatter(self, x: Val, at: Val, count: Val, step: Val) -> None:
        k = self.k
        size = SIZE[self.mover.target]
        straight = count.eq(_TILE) & step.eq(size)
        self.mover.store(x, k.select(straight, at, self.spare))
        with k.when(~straight):
            k.call(f"lanes{size}", self.spare, size, at, step, count)


def transposed(k: Kernel, rows: list[Val]) -> list[Val]:
    """Transpose 16 vectors of 16 lanes by four rounds of block exchanges."""
    rows = list(rows)
    for step in (8, 4, 2, 1):
        keep = [lane if not lane & step else 16 + lane - step for lane in range(16)]
        take = [lane + step if not lane & step else 16 + lane for lane in range(16)]
        for i in range(16):
            if not i & step:
                a, b = rows[i], rows[i + step]
                rows[i], rows[i + step] = k.shuffle(a, b, keep), k.shuffle(a, b, take)
    return rows
