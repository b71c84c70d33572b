"""Max and average pooling on NC1HWC0, global pooling included.

`pool2d` describes one as a Call. Which input rows and columns an output reads, and by what an average is divided,
stands in tables made by the builder, so padding, dilation, ceil mode and count_include_pad cost the kernel nothing.
Sums run over rows, then columns, in fp32; a maximum is one of integers in the floats' order, and lets NaN through as
numpy.maximum does.
Kernel names: `pool:<dtype>:<C0>:<max|avg>`.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.kernels.desc import Call, call, int64_table, split_count
from npusim.kernels.epilogue import saturated
from npusim.kernels.ir import F32, RAW, SIZE, Kernel, Val, vec

_INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000}
_X, _OUT, _ROWS, _CHUNK, _OH, _OW, _PLANE, _X_ROW, _H_TABLE, _W_TABLE, _ROW_STEP, _COLUMN_STEP, _SATURATE = range(1, 14)


@dataclass(frozen=True)
class Pool2D:
    """Shape of a pooling: `planes` = N * C1 planes of H * W * C0; pads are top, left, bottom, right."""

    planes: int
    h: int
    w: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    ceil_mode: bool = False
    count_include_pad: bool = False
    c0: int = 16

    @property
    def out_hw(self) -> tuple[int, int]:
        """Output height and width; with ceil_mode a last window must still start inside the input or its left pad."""
        sizes = []
        for axis, extent in enumerate((self.h, self.w)):
            before, after = self.pads[axis], self.pads[axis + 2]
            span = extent + before + after - (self.kernel[axis] - 1) * self.dilations[axis] - 1
            n = (-(-span // self.strides[axis]) if self.ceil_mode else span // self.strides[axis]) + 1
            if self.ceil_mode and (n - 1) * self.strides[axis] >= extent + before:
                n -= 1
            sizes.append(n)
        return sizes[0], sizes[1]

    def taps(self, axis: int) -> list[tuple[int, int, int]]:
        """Per output position: first input position read, how many are read, and the count an average divides by."""
        extent, before, after = (self.h, self.w)[axis], self.pads[axis], self.pads[axis + 2]
        size, stride, dilation = self.kernel[axis], self.strides[axis], self.dilations[axis]
        rows = []
        for i in range(self.out_hw[axis]):
            start = i * stride - before
            inside = [start + j * dilation for j in range(size) if 0 <= start + j * dilation < extent]
            padded = sum(1 for j in range(size) if start + j * dilation < extent + after)
            divisor = padded if self.count_include_pad else len(inside)
            rows.append((inside[0] if inside else 0, len(inside), divisor))
        return rows


def pool2d(shape: Pool2D, kind: str, x: int, out: int, dtype: str, saturate: bool = False) -> Call:
    """Call of a pooling; `kind` is `max` or `avg`, `dtype` f16, bf16 or f32. Raises ValueError for an empty output."""
    oh, ow = shape.out_hw
    if kind not in ("max", "avg") or min(oh, ow) < 1:
        raise ValueError(f"no {kind!r} pooling of {shape.h}x{shape.w} by kernel {shape.kernel}: output {oh}x{ow}")
    pixel = shape.c0 * SIZE[dtype]
    rows = shape.planes * oh
    work_us = rows * ow * shape.kernel[0] * shape.kernel[1] * shape.c0 / 16 * 1.5e-3
    parts = split_count(work_us, rows)
    chunk = -(-rows // parts)
    tables = [int64_table([t for row in shape.taps(axis) for t in row]) for axis in (0, 1)]
    plane, x_row = shape.h * shape.w * pixel, shape.w * pixel
    steps = (shape.dilations[0] * x_row, shape.dilations[1] * pixel)
    fields = [x, out, rows, chunk, oh, ow, plane, x_row, *tables, *steps, int(saturate)]
    return call(f"pool:{dtype}:{shape.c0}:{kind}", -(-rows // chunk), 0, fields)


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit `pool:<dtype>:<C0>:<max|avg>`."""
    dtype, c0, kind = parameters.split(":")
    lanes = 16 if int(c0) % 16 == 0 else 8
    groups, step = int(c0) // lanes, lanes * SIZE[dtype]
    start = k.const(0, vec(F32 if kind == "avg" else RAW[SIZE[dtype]], lanes))
    with k.main() as (desc, part, _ctx):
        ow, oh = k.field(desc, _OW), k.field(desc, _OH)
        row_step, column_step = k.field(desc, _ROW_STEP), k.field(desc, _COLUMN_STEP)
        saturates = k.field(desc, _SATURATE)
        lo = part * k.field(desc, _CHUNK)
        hi = k.minimum(lo + k.field(desc, _CHUNK), k.field(desc, _ROWS))
        pixel = groups * step
        with k.loop(hi, start=lo) as row:
            entry = k.field(desc, _H_TABLE) + (row % oh) * 24
            top, rows, h_count = k.field(entry, 0), k.field(entry, 1), k.field(entry, 2)
            band = k.field(desc, _X) + row / oh * k.field(desc, _PLANE) + top * k.field(desc, _X_ROW)
            target = k.field(desc, _OUT) + row * ow * pixel
            with k.loop(ow) as column:
                cell = k.field(desc, _W_TABLE) + column * 24
                first, columns, w_count = k.field(cell, 0), k.field(cell, 1), k.field(cell, 2)
                divisor = k.splat(k.convert(h_count * w_count, "sitofp", F32), lanes)
                with k.loop(groups * step, step=step) as lane:
                    total = k.var(start)
                    with k.loop(rows) as i:
                        line = band + i * row_step + first * pixel + lane
                        with k.loop(columns) as j:
                            at = line + j * column_step
                            if kind == "avg":
                                total.set(total.get() + k.load_f32(at, dtype, lanes))
                            else:
                                total.set(_larger(k, total.get(), _ordered(k, k.load(at, start.type), dtype)))
                    at = target + column * pixel + lane
                    if kind == "avg":
                        k.store_f32(saturated(k, total.get() / divisor, saturates, dtype), at, dtype)
                    else:
                        k.store(_unordered(k, total.get(), dtype), at)
                        with k.when(saturates.ne(0)):
                            k.store_f32(saturated(k, k.load_f32(at, dtype, lanes), saturates, dtype), at, dtype)


def _ordered(k: Kernel, bits: Val, dtype: str) -> Val:
    """Floats as unsigned integers in their order from minus infinity on; NaNs of either sign come last."""
    return _turned(k, bits, dtype) + (_INFINITY[dtype] + 1)


def _unordered(k: Kernel, number: Val, dtype: str) -> Val:
    """The float of which `_ordered` made this."""
    return _turned(k, number - (_INFINITY[dtype] + 1), dtype)


def _turned(k: Kernel, bits: Val, dtype: str) -> Val:
    """Negative floats <-> integers that grow as they do."""
    magnitude = (1 << (8 * SIZE[dtype] - 1)) - 1
    return k.select(bits < 0, bits ^ magnitude, bits)


def _larger(k: Kernel, a: Val, b: Val) -> Val:
    """The larger of unsigned integers."""
    return k.intrinsic(f"llvm.umax.v{a.type.count}i{a.type.element.width}", a.type, (a, b))
