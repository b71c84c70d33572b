"""Register tiles of convolution and matrix products: the one loop where the multiply-adds happen.

A tile computes `segments * length` pixels by `vectors * 16` output channels, reading fp32 pixels from a scratch block
and fp16 or fp32 weights from a packed panel. It is indirect: pixel (s, i) of tap t lies at
`x + s*pitch + i*PIXEL + taps[t]` with PIXEL = 64 bytes (16 channels), so stride, dilation, padding, 1x1, 3x3 and matrix
products differ only in tables. Sums start from the bias and run over taps, then over the channels of a tap, one fused
multiply-add each: the order does not depend on the tile's shape.

Kernel name: `tile:<weights dtype>:<vectors>:<segments>x<length>:<channels per tap>:<pixel bytes>`; with 0 channels per
tap the tile is depthwise: a tap multiplies each of 16 channels by its own weight.
Signature `void(i64 block, i64 unused, i64 unused)`, with block the address of an int64 array:
[0] x  [1] taps (int64 byte offsets)  [2] tap count  [3] weights  [4] bias (fp32)  [5] out (fp32 buffer
[pixels][vectors*16])  [6] pitch between segments in bytes.
"""

from __future__ import annotations

from npusim.kernels.ir import F32, LANES, SIZE, Kernel, Val, vec

X, TAPS, TAP_COUNT, WEIGHTS, BIAS, OUT, PITCH, BLOCK_FIELDS = range(8)


def tile_name(weights: str, vectors: int, segments: int, length: int, channels: int, pixel: int) -> str:
    """Kernel name of a tile; `channels` per tap, `pixel` bytes from one pixel to the next."""
    return f"tile:{weights}:{vectors}:{segments}x{length}:{channels}:{pixel}"


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit a tile, or for family `peak` a register-only multiply-add loop."""
    if family == "peak":
        _emit_peak(k, int(parameters))
        return
    weights, vectors, shape, channels, pixel = parameters.split(":")
    segments, length = (int(n) for n in shape.split("x"))
    with k.main() as (block, _part, _ctx):
        _emit_tile(k, block, weights, int(vectors), segments, length, int(channels), int(pixel))


def _emit_tile(
    k: Kernel, block: Val, weights: str, vectors: int, segments: int, length: int, channels: int, pixel: int
) -> None:
    x, taps, count, w, bias, out, pitch = (k.field(block, i) for i in range(BLOCK_FIELDS))
    pixels = segments * length
    start = [k.load(bias + 64 * j, vec(F32)) for j in range(vectors)]
    acc = [[k.var(start[j]) for j in range(vectors)] for _ in range(pixels)]
    panel = k.var(w)
    step = LANES * vectors * SIZE[weights]
    with k.loop(count) as t:
        row0 = x + k.load(taps + t * 8)
        rows = [row0]
        for _ in range(segments - 1):
            rows.append(rows[-1] + pitch)
        at = panel.get()
        sums = [[v.get() for v in row] for row in acc]
        if channels == 0:
            own = k.load_f32(at, weights)
            for p in range(pixels):
                value = k.load(rows[p // length] + (p % length) * pixel, vec(F32))
                sums[p] = [k.fma(value, own, sums[p][0])]
        for c in range(channels):
            base = at + c * step
            wide = [k.load_f32(base + j * LANES * SIZE[weights], weights) for j in range(vectors)]
            for p in range(pixels):
                value = k.splat(k.load(rows[p // length] + ((p % length) * pixel + c * 4), F32))
                sums[p] = [k.fma(value, wide[j], sums[p][j]) for j in range(vectors)]
        for row, new in zip(acc, sums, strict=True):
            for variable, value in zip(row, new, strict=True):
                variable.set(value)
        panel.set(at + max(1, channels) * step)
    for p in range(pixels):
        for j in range(vectors):
            k.store(acc[p][j].get(), out + (p * vectors + j) * 64)


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
