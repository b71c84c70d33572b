"""The vector phases of a Winograd convolution: what a unit loads, computes and stores.

A unit is a strip of a row of output tiles: ``strip_columns`` tiles of one channel block. The input transform loads the
strip's pixels (two rows and columns more than its results) and stores 16 or 36 runs, one for each product. The output
transform loads as many runs of fp32 sums and stores finished pixels. Both transforms are two passes of additions and
multiply-adds, along columns and along rows; where pixels lie apart (a stride of the tile's edge), an instruction takes
32-byte blocks of eight tiles a repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from metadef.cost.vector_view import REPEAT_BYTES, WINOGRAD_PHASES, Stream, VectorView, Work
from metadef.format import BLOCK_BYTES, FRACTAL_ROWS, ceil_div
from metadef.kernel import Kernel, VectorTile
from metadef.op import get_op
from metadef.ops.geometry import ConvGeometry
from metadef.winograd import planes_of, tile_edge

INPUT_PHASE, OUTPUT_PHASE = WINOGRAD_PHASES
WIDE_BYTES = 4
_INPUT_PASS = {2: {"add": 1, "sub": 3}, 4: {"add": 3, "sub": 4, "axpy": 6, "copy": 4}}
"""One pass of B^T d over a tile's edge. ``axpy`` adds a multiple to a register that ``copy`` prepared."""
_OUTPUT_PASS = {2: {"add": 2, "sub": 2}, 4: {"add": 5, "sub": 2, "axpy": 3, "copy": 1}}
"""One pass of A^T m."""


@dataclass(frozen=True)
class PhaseShape:
    """A band of a Winograd convolution: ``rows`` rows of output tiles, of all images together, ``columns`` tiles each.

    ``m`` is the tile's edge in output pixels, ``strips`` how many pieces a row is cut into, ``copies`` how often the
    input is transformed (by every group of cores that cannot share it).
    """

    conv: ConvGeometry
    m: int
    rows: int
    columns: int
    c0_in: int
    element_bytes: int
    strips: int = 1
    copies: int = 1

    @property
    def planes(self) -> int:
        return planes_of(self.m)

    @property
    def edge(self) -> int:
        return tile_edge(self.m)

    @property
    def strip_columns(self) -> int:
        """Tiles of the widest strip."""
        return ceil_div(self.columns, self.strips)

    @property
    def strip_pixels(self) -> int:
        """Columns of input pixels under the widest strip."""
        return self.strip_columns * self.m + 2

    @property
    def all_rows(self) -> int:
        """Rows of output tiles of all images."""
        return self.conv.n * ceil_div(self.conv.oh, self.m)

    @property
    def input_pixels(self) -> float:
        """Pixels of one channel block that the band's strips load, padding left out."""
        g = self.conv
        rows = _covered(ceil_div(g.oh, self.m), self.m, g.pad_top, g.h) * g.n * self.rows / self.all_rows
        return rows * _covered(self.strips, self.strip_columns * self.m, g.pad_left, g.w)

    @property
    def input_units(self) -> int:
        return ceil_div(self.conv.c, self.c0_in) * self.rows * self.strips * self.copies

    @property
    def output_units(self) -> int:
        return ceil_div(self.conv.oc, FRACTAL_ROWS) * self.rows * self.strips

    def view(self, kernel: Kernel) -> VectorView:
        """What a vector phase of this shape moves and computes."""
        return _input_view(kernel, self) if kernel.op_type == INPUT_PHASE else _output_view(kernel, self)


def _covered(count: int, step: int, pad: int, size: int) -> int:
    """Pixels along one axis that ``count`` windows of ``step`` + 2 load, padding left out."""
    starts = [index * step - pad for index in range(count)]
    return sum(max(min(start + step + 2, size) - max(start, 0), 0) for start in starts)


def input_buffers(shape: PhaseShape) -> tuple[int, int, int]:
    """(pixels, results, fp32 scratch) bytes of UB that a unit of the input transform takes."""
    lane, half = shape.c0_in, shape.element_bytes < WIDE_BYTES
    pixels = shape.edge * shape.strip_pixels * lane
    results = shape.planes * shape.strip_columns * lane * shape.element_bytes
    rows = shape.edge * shape.strip_columns * lane if half else 0
    return pixels * shape.element_bytes, results, (pixels * (1 + half) + rows) * WIDE_BYTES


def output_buffers(shape: PhaseShape) -> tuple[int, int, int]:
    """(sums, results, fp32 scratch) bytes of UB that a unit of the output transform takes."""
    lanes = shape.strip_columns * FRACTAL_ROWS
    results = shape.m * shape.m * lanes
    passed = shape.m * shape.edge * lanes
    return shape.planes * lanes * WIDE_BYTES, results * shape.element_bytes, (passed + results) * WIDE_BYTES


def _tiles(kernel: Kernel, units: int) -> int:
    """Vector tiles of the phase over all cores."""
    assert isinstance(kernel.tile, VectorTile)
    return ceil_div(units, kernel.tile.units_per_tile)


def _input_view(kernel: Kernel, shape: PhaseShape) -> VectorView:
    units, lane, size = shape.input_units, shape.c0_in, shape.element_bytes
    blocks = ceil_div(shape.conv.c, lane)
    x, run = shape.input_pixels * blocks * lane * size * shape.copies, shape.strip_columns * lane * size
    load = Stream(0, x, units * (1 if shape.strips == 1 else shape.edge), shape.conv.w * lane * size)
    tiles = shape.rows * shape.columns
    stored = shape.planes * tiles * blocks * lane * size * shape.copies
    store = Stream(0, stored, shape.planes * _tiles(kernel, units), run)
    listed = []
    if size < WIDE_BYTES:
        pixels = units * shape.edge * shape.strip_pixels * lane * WIDE_BYTES
        listed += [Work(name, WIDE_BYTES, bytes=pixels) for name in ("cast", "muls")]
    along = ceil(shape.strip_pixels * lane * WIDE_BYTES / REPEAT_BYTES)
    listed += _pass(_INPUT_PASS[shape.m], units * along, 1)
    listed += _pass(_INPUT_PASS[shape.m], units * shape.edge * _apart(shape, lane), lane * WIDE_BYTES // BLOCK_BYTES)
    if size < WIDE_BYTES:
        listed.append(Work("cast", WIDE_BYTES, bytes=stored / size * WIDE_BYTES))
    elements = shape.planes * shape.strip_columns * lane
    return VectorView(units, elements, (load,), (store,), tuple(listed))


def _output_view(kernel: Kernel, shape: PhaseShape) -> VectorView:
    units, g, result = shape.output_units, shape.conv, kernel.outputs[0]
    part = shape.rows / shape.all_rows
    lanes = ceil_div(g.oc, FRACTAL_ROWS) * FRACTAL_ROWS
    sums = shape.planes * shape.rows * shape.columns * lanes * WIDE_BYTES
    run = shape.strip_columns * FRACTAL_ROWS * WIDE_BYTES
    loads = [Stream(0, sums, shape.planes * _tiles(kernel, units), run)]
    pitch = g.ow * result.c0 * shape.element_bytes
    pieces = units * (1 if shape.strips == 1 else shape.m)
    if len(kernel.inputs) > 2 and (bias := kernel.inputs[2]) is not None:
        loads.append(Stream(2, bias.payload_bytes, once=True))
    names = [name for item in kernel.fused for name in get_op(item.op_type).work.per_repeat]
    for item in kernel.fused:
        desc = kernel.inputs[item.operand] if item.operand is not None else None
        if item.operand is not None and desc is not None:
            whole = desc.elements == result.elements
            amount = desc.payload_bytes * (part if whole else 1)
            loads.append(Stream(item.operand, amount, pieces if whole else 0, pitch if whole else 0, once=not whole))
            names += ["cast"] * (whole and desc.dtype.bytes < WIDE_BYTES)
    names += ["add"] * (len(kernel.inputs) > 2 and kernel.inputs[2] is not None)
    names += ["cast"] * (shape.element_bytes < WIDE_BYTES)
    along = ceil(run / REPEAT_BYTES)
    listed = _pass(_OUTPUT_PASS[shape.m], units * shape.edge * along, 1)
    listed += _pass(_OUTPUT_PASS[shape.m], units * shape.m * _apart(shape, FRACTAL_ROWS), 2)
    finished = units * shape.m * shape.m * shape.strip_columns * FRACTAL_ROWS * WIDE_BYTES
    listed += [Work(name, WIDE_BYTES, bytes=finished) for name in names]
    store = Stream(0, result.payload_bytes * part, pieces, pitch)
    elements = shape.m * shape.m * shape.strip_columns * FRACTAL_ROWS
    return VectorView(units, elements, tuple(loads), (store,), tuple(listed))


def _apart(shape: PhaseShape, lane: int) -> int:
    """Repeats of an instruction over the tiles of a strip whose operands lie a tile's edge apart."""
    return lane * WIDE_BYTES // BLOCK_BYTES * ceil(shape.strip_columns * BLOCK_BYTES / REPEAT_BYTES)


def _pass(counts: dict[str, int], repeats: float, calls: int) -> list[Work]:
    """Instructions of one pass: each runs ``repeats`` times over all units, in ``calls`` dependent calls a tile."""
    two = ("add", "sub", "axpy")
    return [
        Work(name, WIDE_BYTES, repeats=repeats, calls=calls, two_sources=name in two)
        for name, count in counts.items()
        for _ in range(count)
    ]
