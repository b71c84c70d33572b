"""Pictures of bytes -> NC1HWC0: channels gathered, converted in whole numbers, looked up, a border around them.

What normalisation makes of a byte stands in a table for every channel, made by the builder, so that only stored bits
move here. Kernel name: `aipp:<element bytes>:<C0>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npusim.kernels.desc import Call, call, int64_table, split_count
from npusim.kernels.ir import I8, I64, RAW, Kernel, Val, vec

(
    _X, _OUT, _ROWS, _CHUNK, _OH, _OW, _IMAGE, _TOP, _LEFT, _H, _W, _PLANES, _TABLE, _BLANK, _CONVERTS, _MATRIX,
) = range(1, 17)  # fmt: skip
PLANES = 4
_PLANE_FIELDS = 6
_COLOURS = 3
_PIXEL_US = 6e-3


@dataclass(frozen=True)
class Plane:
    """A channel of a picture: its byte for pixel (y, x) of the cut lies at `offset + (y >> shift) * row + (x >> shift)
    * step` of an image, and goes to `lane` of the result (-1: only the conversion reads it)."""

    offset: int
    row: int
    step: int
    shift: int
    lane: int


@dataclass(frozen=True)
class Picture:
    """Pictures of `image_bytes` each, of which h by w pixels get a border (top, bottom, left, right).

    `planes` are up to four channels, the first three those of the conversion: `matrix` is its nine numbers, three
    biases before and three after (empty: none), in units of `1 / 256` of the bytes.
    """

    n: int
    h: int
    w: int
    border: tuple[int, int, int, int]
    image_bytes: int
    planes: Sequence[Plane]
    matrix: Sequence[int] = ()


def aipp(shape: Picture, x: int, out: int, tables: np.ndarray, blank: np.ndarray) -> Call:
    """Call for pictures at `x`. `tables` holds the stored bits of every byte of every plane (planes, 256), `blank` the
    C0 elements of a pixel of the border."""
    top, bottom, left, right = shape.border
    oh, ow = top + shape.h + bottom, left + shape.w + right
    rows, size = shape.n * oh, tables.dtype.itemsize
    parts = split_count(rows * ow * _PIXEL_US, max(rows, 1))
    chunk = max(1, -(-rows // parts))
    planes = [*shape.planes, *[Plane(0, 0, 0, 0, -1)] * (PLANES - len(shape.planes))]
    whole = np.zeros((PLANES, 256), tables.dtype)
    whole[: len(tables)] = tables
    listed = [(p.offset, p.row, p.step, p.shift, p.lane * size, p.lane >= 0) for p in planes]
    fields = [
        x, out, rows, chunk, oh, ow, shape.image_bytes, top, left, shape.h, shape.w, int64_table(listed), whole,
        np.ascontiguousarray(blank), int(bool(shape.matrix)), int64_table(list(shape.matrix)),
    ]  # fmt: skip
    return call(f"aipp:{size}:{blank.size}", -(-rows // chunk) if rows * ow else 0, 0, fields)


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit `aipp:<element bytes>:<C0>`."""
    size, c0 = map(int, parameters.split(":"))
    pixel, lanes = size * c0, vec(RAW[size], c0)
    with k.main() as (desc, part, _ctx):
        ow, oh, height = k.field(desc, _OW), k.field(desc, _OH), k.field(desc, _H)
        lo = part * k.field(desc, _CHUNK)
        hi = k.minimum(lo + k.field(desc, _CHUNK), k.field(desc, _ROWS))
        blank = k.load(k.field(desc, _BLANK), lanes)
        with k.loop(hi, start=lo) as row:
            y = row % oh - k.field(desc, _TOP)
            inside = (y >= 0) & (y < height)
            begin = k.select(inside, k.field(desc, _LEFT), ow)
            end = k.select(inside, k.field(desc, _LEFT) + k.field(desc, _W), ow)
            target = k.field(desc, _OUT) + row * ow * pixel
            for first, last in ((k.const(0), begin), (end, ow)):
                with k.loop(last, start=first) as column:
                    k.store(blank, target + column * pixel)
            image = k.field(desc, _X) + row / oh * k.field(desc, _IMAGE)
            lines = [_Line(k, desc, image, y, plane, size) for plane in range(PLANES)]
            with k.loop(end - begin) as column:
                at = target + (begin + column) * pixel
                k.store(k.const(0, lanes), at)
                for line, value in zip(lines, _values(k, desc, lines, column)):
                    with k.when(line.live):
                        k.store(k.load(line.table + value * size, RAW[size]), at + line.lane)


class _Line:
    """A plane under one row of the cut."""

    def __init__(self, k: Kernel, desc: Val, image: Val, y: Val, plane: int, size: int) -> None:
        fields = k.field(desc, _PLANES) + plane * (8 * _PLANE_FIELDS)
        offset, row, self.step, self.shift, self.lane, live = (k.field(fields, i) for i in range(_PLANE_FIELDS))
        self.start = image + offset + (y >> self.shift) * row
        self.live = live.ne(0)
        self.table = k.field(desc, _TABLE) + plane * (256 * size)


def _values(k: Kernel, desc: Val, lines: Sequence[_Line], column: Val) -> list[Val]:
    """The bytes of a pixel, the first three in another colour space where that is asked for."""
    read = [k.convert(k.load(line.start + (column >> line.shift) * line.step, I8), "zext", I64) for line in lines]
    values = [k.var(value) for value in read]
    with k.when(k.field(desc, _CONVERTS).ne(0)):
        numbers = k.field(desc, _MATRIX)
        shifted = [read[i] - k.field(numbers, _COLOURS**2 + i) for i in range(_COLOURS)]
        for i in range(_COLOURS):
            total = sum((k.field(numbers, _COLOURS * i + j) * shifted[j] for j in range(_COLOURS)), k.const(0))
            moved = Val(k, k.b.ashr(total.v, k.const(8).v)) + k.field(numbers, _COLOURS**2 + _COLOURS + i)
            values[i].set(k.minimum(k.maximum(moved, 0), 255))
    return [value.get() for value in values]
