"""Direct convolution NC1HWC0 -> NC1HWC0 with any kernel, stride, padding, dilation, batch and groups.

`conv2d` describes one convolution as a Call. A part is (image, band of output rows, range of output-channel units): it
widens the input rows of its band to fp32 in scratch memory, zero padded and with columns sorted by stride phase so that
neighbouring outputs are always neighbours in memory, then runs the register tiles (npusim.kernels.panels).
With at most four input channels the scratch block holds only those, and a tap is a whole kernel row. Depthwise
convolution (groups = channels in = channels out) fills and computes one 16-channel group after the other.
Kernel names: `conv:<input dtype>:<output dtype>:<dense|narrow|depthwise>`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from npusim.kernels import panels
from npusim.kernels.cpu import host, l2_bytes
from npusim.kernels.desc import SIZE, Call, call, element_name, int64_table
from npusim.kernels.dispatch import scratch
from npusim.kernels.epilogue import Epilogue
from npusim.kernels.ir import F32, I64, Kernel, Val, vec
from npusim.kernels.weights import aligned, conv_taps, grouped_taps, narrow_taps, pack_panels, pad_to, padded_bias

(
    _X,
    _BANDS,
    _SPLITS,
    _UNITS_PER_SPLIT,
    _GROUPS,
    _PLANES,
    _H,
    _XN,
    _XC,
    _XH,
    _XP,
    _X_ROW,
    _ON,
    _BAND_OUT,
    _ROWS,
    _ROW_TABLE,
    _PHASES,
    _PHASE_TABLE,
    _STRIDE_W,
    _BAND_IN,
    _PAD_TOP,
    _ROW_BYTES,
    _NARROW_BYTES,
) = range(panels.CORE_END, panels.CORE_END + 23)
_NARROW_LIMIT = 4
_PIXEL = 64


@dataclass(frozen=True)
class Conv2D:
    """Shape of a convolution: N, C, H, W in; O out; kernel, strides, pads (top, left, bottom, right), dilations.

    `c0_in`/`c0_out` are the channels of one C1 plane (16, 8, 32, …; a multiple of 8).
    """

    n: int
    c: int
    h: int
    w: int
    o: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1
    c0_in: int = 16
    c0_out: int = 16

    @property
    def out_hw(self) -> tuple[int, int]:
        """Output height and width."""
        (kh, kw), (sh, sw), (dh, dw) = self.kernel, self.strides, self.dilations
        oh = (self.h + self.pads[0] + self.pads[2] - (kh - 1) * dh - 1) // sh + 1
        ow = (self.w + self.pads[1] + self.pads[3] - (kw - 1) * dw - 1) // sw + 1
        return oh, ow

    @property
    def macs(self) -> int:
        """Multiply-adds of the whole operator."""
        oh, ow = self.out_hw
        return self.n * self.o * oh * ow * (self.c // self.groups) * self.kernel[0] * self.kernel[1]

    def check(self) -> None:
        """Raise ValueError for what no convolution can be."""
        oh, ow = self.out_hw
        if min(oh, ow) < 1:
            raise ValueError(f"convolution of {self.h}x{self.w} by kernel {self.kernel} has no output ({oh}x{ow})")
        if self.c % self.groups or self.o % self.groups:
            raise ValueError(f"{self.groups} groups do not divide {self.c} input and {self.o} output channels")
        if self.c0_in % 8 or self.c0_out % 8:
            raise ValueError(f"C0 must be a multiple of 8, not {self.c0_in} in, {self.c0_out} out")


@dataclass
class PackedConv:
    """Weights of one convolution in tile order, made once at load."""

    weights: np.ndarray
    dtype: str
    bias: np.ndarray
    vectors: int
    narrow: int
    unit_starts: list[int] = field(default_factory=list)
    depthwise: bool = False

    @property
    def kind(self) -> str:
        """Variant of the kernel these weights are for."""
        return "depthwise" if self.depthwise else "narrow" if self.narrow else "dense"


def pack_conv(shape: Conv2D, weights: np.ndarray, bias: np.ndarray | None = None) -> PackedConv:
    """Pack OIHW weights (fp16 or fp32) and an fp32 bias for `conv2d`."""
    shape.check()
    want = (shape.o, shape.c // shape.groups, *shape.kernel)
    if weights.shape != want:
        raise ValueError(f"weights have shape {weights.shape}, expected OIHW {want}")
    dtype, full_bias = element_name(weights.dtype), padded_bias(bias, shape.o)
    if shape.groups == shape.c == shape.o and shape.c > 1:
        taps = pad_to(weights.reshape(shape.c, -1), 0, 16).reshape(-1, 16, shape.kernel[0] * shape.kernel[1])
        starts = list(range(taps.shape[0]))
        return PackedConv(aligned(taps.transpose(0, 2, 1)), dtype, full_bias, 1, 0, starts, depthwise=True)
    if shape.groups > 1:
        flat, starts = grouped_taps(weights, shape.groups)
        return PackedConv(flat, dtype, full_bias, 1, 0, starts)
    vectors = host().panel // 16
    narrow = shape.c if shape.c <= _NARROW_LIMIT and shape.dilations[1] == 1 and shape.c * shape.kernel[1] <= 48 else 0
    taps = narrow_taps(weights) if narrow else conv_taps(weights)
    return PackedConv(pack_panels(taps, vectors), dtype, full_bias, vectors, narrow)


def conv2d(
    shape: Conv2D, x: int, packed: PackedConv, out: int, dtypes: tuple[str, str], epilogue: Epilogue | None = None
) -> Call:
    """Call of a convolution: addresses of NC1HWC0 input and output, their dtypes (`f16` or `f32`)."""
    shape.check()
    layout = _Scratch(shape, packed.narrow, packed.depthwise)
    width = len(packed.unit_starts)
    units = (width, width) if width else panels.split_units(-(-shape.o // 16), packed.vectors)
    band_rows, splits = _choose_split(layout, packed, units[1])
    bands = -(-layout.oh // band_rows)
    layout.set_band(band_rows)
    out_size, x_size = SIZE[dtypes[1]], SIZE[dtypes[0]]
    stored = -(-shape.o // shape.c0_out) * shape.c0_out
    core = panels.Core(
        weights=packed.weights,
        weights_dtype=packed.dtype,
        bias=packed.bias,
        out=out,
        units=units,
        tap_channels=0 if packed.depthwise else layout.tap_channels,
        pixel_bytes=layout.pixel_bytes,
        taps=layout.taps(),
        out_strides=_lane_strides(shape.c0_out, layout.oh * layout.ow, out_size),
        channels=shape.o,
        stored=stored,
        tiles=layout.tiles(band_rows),
        last_tiles=layout.tiles(layout.oh - (bands - 1) * band_rows),
        pitch=layout.out_row_pitch,
        buffer_offset=layout.bytes,
        vectors=packed.vectors,
        unit_shifts=int64_table([s * layout.group_bytes for s in packed.unit_starts]) if width else None,
        epilogue=epilogue or Epilogue(),
    )
    xc, xh, xp = _lane_strides(shape.c0_in, shape.h * shape.w, x_size)
    planes = -(-shape.c // shape.c0_in) * shape.c0_in // 8
    fields = [
        *core.fields(),
        x,
        bands,
        splits,
        -(-units[1] // splits),
        layout.group_bytes if packed.depthwise else layout.groups,
        planes,
        shape.h,
        planes * 8 * shape.h * shape.w * x_size,
        xc,
        xh,
        xp,
        xp * shape.w,
        stored * layout.oh * layout.ow * out_size,
        band_rows * layout.ow * core.out_strides[2],
        layout.rows.size,
        layout.rows,
        len(layout.phases),
        int64_table(layout.phase_rows()),
        shape.strides[1],
        band_rows * shape.strides[0],
        shape.pads[0],
        layout.row_bytes,
        packed.narrow * 4,
    ]
    name = f"conv:{dtypes[0]}:{dtypes[1]}:{packed.kind}"
    return call(name, shape.n * bands * splits, layout.bytes + panels.BUFFER_BYTES, fields)


def _lane_strides(c0: int, plane: int, size: int) -> tuple[int, int, int]:
    """Byte distance of 16 channels, of 8 channels and of pixels in NC1HWC0 with `plane` pixels a plane."""
    if c0 == 8:
        return 2 * plane * 8 * size, plane * 8 * size, 8 * size
    if c0 == 16:
        return plane * 16 * size, 8 * size, 16 * size
    raise ValueError(f"convolution knows C0 = 8 and 16, not {c0}; convert with transdata first")


class _Scratch:
    """Geometry of the fp32 scratch block of one band."""

    def __init__(self, shape: Conv2D, narrow: int, depthwise: bool) -> None:
        self.shape, self.narrow, self.depthwise = shape, narrow, depthwise
        self.oh, self.ow = shape.out_hw
        kh, kw = shape.kernel
        (sh, sw), (dh, dw) = shape.strides, shape.dilations
        self.groups = 1 if narrow or depthwise else -(-shape.c // 16)
        self.sparse_rows = sh > (kh - 1) * dh
        if narrow:
            self.tap_channels, self.pixel_bytes = kw * narrow, narrow * sw * 4
            columns = (self.ow - 1) * sw + kw
            self.phases = {0: (0, columns)}
            # The last pixel is stored as eight lanes and a tile may run one pixel past its row.
            self.row_bytes = columns * narrow * 4
        else:
            self.tap_channels, self.pixel_bytes = 16, _PIXEL
            reach: dict[int, int] = {}
            for j in range(0, kw * dw, dw):
                reach[j % sw] = max(reach.get(j % sw, 0), j // sw)
            self.phases, at = {}, 0
            for phase in sorted(reach):
                self.phases[phase] = (at, self.ow + reach[phase])
                at += self.ow + reach[phase]
            self.row_bytes = at * _PIXEL
        self.out_row_pitch = (kh if self.sparse_rows else sh) * self.row_bytes
        self.set_band(self.oh)

    def set_band(self, band_rows: int) -> None:
        """Fix the number of output rows in a band."""
        (kh, _), (sh, _), (dh, _) = self.shape.kernel, self.shape.strides, self.shape.dilations
        if self.sparse_rows:
            rows = [r * sh + i * dh for r in range(band_rows) for i in range(kh)]
        else:
            rows = list(range((band_rows - 1) * sh + (kh - 1) * dh + 1))
        self.rows = np.array(rows, np.int64)
        self.group_bytes = len(rows) * self.row_bytes
        slack = 256 + (panels.tile_length(host().tile_rows) + 1) * self.pixel_bytes
        self.bytes = -(-(self.groups * self.group_bytes + slack) // 64) * 64

    def taps(self) -> np.ndarray:
        """Byte offsets of the taps in accumulation order."""
        (kh, kw), (_, sw), (dh, dw) = self.shape.kernel, self.shape.strides, self.shape.dilations
        step = 1 if self.sparse_rows else dh
        if self.narrow:
            return np.arange(kh, dtype=np.int64) * step * self.row_bytes
        columns = [(self.phases[j % sw][0] + j // sw) * _PIXEL for j in range(0, kw * dw, dw)]
        return np.array(
            [
                g * self.group_bytes + i * step * self.row_bytes + column
                for g in range(self._tap_groups())
                for i in range(kh)
                for column in columns
            ],
            np.int64,
        )

    def _tap_groups(self) -> int:
        if self.shape.groups == 1 or self.depthwise:
            return self.groups
        per, out_per = self.shape.c // self.shape.groups, self.shape.o // self.shape.groups
        spans = []
        for first in range(0, self.shape.o, 16):
            last = min(first + 15, self.shape.o - 1)
            spans.append((last // out_per * per + per - 1) // 16 - first // out_per * per // 16 + 1)
        return max(spans)

    def tiles(self, band_rows: int) -> list[panels.TileStep]:
        """Register tiles covering a band of `band_rows` output rows."""
        most = host().tile_rows
        if self.ow * 2 <= most:
            steps, row = [], 0
            for rows in panels.balanced(band_rows, most // self.ow):
                steps.append(panels.TileStep(rows, self.ow, row * self.out_row_pitch, rows * self.ow))
                row += rows
            return steps
        if self._contiguous():
            return panels.run_tiles(band_rows * self.ow, self.pixel_bytes)
        return [
            panels.TileStep(1, t.length, row * self.out_row_pitch + t.x_offset, t.pixels)
            for row in range(band_rows)
            for t in panels.run_tiles(self.ow, self.pixel_bytes)
        ]

    def _contiguous(self) -> bool:
        """Whether consecutive output rows follow each other in scratch (1x1 kernels)."""
        return self.out_row_pitch == self.ow * self.pixel_bytes

    def phase_rows(self) -> list[list[int]]:
        """Per phase: zero columns, copied columns, zero columns, first source column."""
        shape = self.shape
        rows = []
        step = 1 if self.narrow else shape.strides[1]
        for phase, (_, width) in self.phases.items():
            left = min(width, max(0, -((phase - shape.pads[1]) // step)))
            first = left * step + phase - shape.pads[1]
            count = min(width - left, max(0, -((first - shape.w) // step)))
            rows.append([left, count, width - left - count, first])
        return rows


def _choose_split(layout: _Scratch, packed: PackedConv, units: int) -> tuple[int, int]:
    """Rows per band and output-channel splits: enough parts, least estimated traffic, scratch within half of L2."""
    shape = layout.shape
    if layout.depthwise:
        return _depthwise_rows(layout), units
    wanted = max(1, min(8, shape.macs // 1_500_000))
    weight_bytes = packed.weights.nbytes
    best: tuple[float, int, int] | None = None
    for bands in sorted({1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 28, 32, 56, layout.oh}):
        if bands > layout.oh:
            continue
        rows = -(-layout.oh // bands)
        layout.set_band(rows)
        actual = -(-layout.oh // rows)
        pressure = max(0, layout.bytes - l2_bytes() // 2)
        for splits in (1, 2, 3, 4, 6, 8):
            if splits > units:
                continue
            missing = max(0, wanted - shape.n * actual * splits)
            fill = actual * splits * layout.groups * layout.group_bytes
            ragged = actual * rows - layout.oh
            cost = fill * 0.5 + actual * weight_bytes * 0.5 + pressure * 40 + missing * 1e6 + ragged * 1e5
            if best is None or cost < best[0]:
                best = (cost, rows, splits)
    assert best is not None
    per_split = -(-units // best[2])
    return best[1], -(-units // per_split)


def _depthwise_rows(layout: _Scratch) -> int:
    """Rows per band of one 16-channel group: the most that stay within an eighth of L2."""
    rows = layout.oh
    layout.set_band(rows)
    while rows > 1 and layout.bytes > l2_bytes() // 8:
        rows = -(-rows // 2)
        layout.set_band(rows)
    return rows


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit `conv:<input dtype>:<output dtype>:<dense|narrow|depthwise>`."""
    source, target, kind = parameters.split(":")
    panels.define(k, target)
    _emit_zeros(k)
    (_emit_narrow_fill if kind == "narrow" else _emit_fill)(k, source)
    with k.main() as (desc, part, ctx):
        splits, bands = k.field(desc, _SPLITS), k.field(desc, _BANDS)
        split, rest = part % splits, part / splits
        band, image = rest % bands, rest / bands
        per = k.field(desc, _UNITS_PER_SPLIT)
        begin = split * per
        end = k.minimum(begin + per, k.field(desc, panels.UNITS))
        first, count, x = k.const(0), k.field(desc, _GROUPS), scratch(k, ctx)
        if kind == "depthwise":
            # Scratch holds only this part's group; unit shifts count from group 0.
            first, count, x = begin, end - begin, x - begin * count
        source_image = k.field(desc, _X) + image * k.field(desc, _XN)
        k.call("fill", desc, scratch(k, ctx), source_image, band, first, count)
        out = k.field(desc, panels.OUT) + image * k.field(desc, _ON) + band * k.field(desc, _BAND_OUT)
        weights = panels.weights_field(k, desc)
        panels.call_panels(k, desc, ctx, x, out, weights, (begin, end), band.eq(bands - 1))


def _emit_zeros(k: Kernel) -> None:
    with k.function("zeros", [I64, I64]) as (at, pixels):
        zero = k.const(0.0, vec(F32))
        with k.loop(pixels) as i:
            k.store(zero, at + i * _PIXEL)


def _emit_fill(k: Kernel, dtype: str) -> None:
    """fill(desc, scratch, image, band, first group, groups): fp32 [group][row][phase, column][16], zero padded."""
    with k.function("fill", [I64] * 6) as (desc, base, image, band, first, count):
        row_bytes, rows = k.field(desc, _ROW_BYTES), k.field(desc, _ROWS)
        height, table = k.field(desc, _H), k.field(desc, _ROW_TABLE)
        top = band * k.field(desc, _BAND_IN) - k.field(desc, _PAD_TOP)
        planes, xc, x_row = k.field(desc, _PLANES), k.field(desc, _XC), k.field(desc, _X_ROW)
        at = k.var(base)
        with k.loop(first + count, start=first) as group:
            both = (group * 2 + 1) < planes
            with k.loop(rows) as r:
                y = top + k.load(table + r * 8)
                to = at.get()
                inside = (y >= 0) & (y < height)
                with k.either(inside) as (copy, blank):
                    with copy:
                        _emit_row(k, desc, dtype, to, image + group * xc + y * x_row, both)
                    with blank:
                        k.call("zeros", to, row_bytes >> 6)
                at.set(to + row_bytes)


def _emit_row(k: Kernel, desc: Val, dtype: str, to: Val, row: Val, both: Val) -> None:
    xp, xh = k.field(desc, _XP), k.field(desc, _XH)
    step = k.field(desc, _STRIDE_W) * xp
    target = k.var(to)
    adjacent = both & xh.eq(8 * SIZE[dtype])
    with k.loop(k.field(desc, _PHASES)) as phase:
        entry = k.field(desc, _PHASE_TABLE) + phase * 32
        left, count, right, first = (k.field(entry, i) for i in range(4))
        k.call("zeros", target.get(), left)
        begin = target.get() + left * _PIXEL
        source = row + first * xp
        with k.either(adjacent) as (whole, halves):
            with whole, k.loop(count) as i:
                k.store(k.load_f32(source + i * step, dtype), begin + i * _PIXEL)
            with halves, k.loop(count) as i:
                k.store(k.load_f32(source + i * step, dtype, 8), begin + i * _PIXEL)
                upper = k.var(0.0, vec(F32, 8))
                with k.when(both):
                    upper.set(k.load_f32(source + xh + i * step, dtype, 8))
                k.store(upper.get(), begin + i * _PIXEL + 32)
        after = begin + count * _PIXEL
        k.call("zeros", after, right)
        target.set(after + right * _PIXEL)


def _emit_narrow_fill(k: Kernel, dtype: str) -> None:
    """fill for few channels: fp32 [row][column][channels], written in order as each store spills over the next."""
    with k.function("fill", [I64] * 6) as (desc, base, image, band, _first, _count):
        row_bytes, pixel = k.field(desc, _ROW_BYTES), k.field(desc, _NARROW_BYTES)
        height, table = k.field(desc, _H), k.field(desc, _ROW_TABLE)
        top = band * k.field(desc, _BAND_IN) - k.field(desc, _PAD_TOP)
        left, count, _right, first = (k.field(k.field(desc, _PHASE_TABLE), i) for i in range(4))
        xp, x_row = k.field(desc, _XP), k.field(desc, _X_ROW)
        zero = k.const(0.0, vec(F32, 8))
        with k.loop(k.field(desc, _ROWS)) as r:
            y = top + k.load(table + r * 8)
            at = base + r * row_bytes
            inside = (y >= 0) & (y < height)
            begin = k.select(inside, left, 0) * pixel
            end = k.select(inside, left + count, 0) * pixel
            with k.loop(begin, step=32) as i:
                k.store(zero, at + i)
            source = image + y * x_row + first * xp
            with k.when(inside), k.loop(count) as i:
                k.store(k.load_f32(source + i * xp, dtype, 8), at + begin + i * pixel)
            with k.loop(row_bytes, start=end, step=32) as i:
                k.store(zero, at + i)
