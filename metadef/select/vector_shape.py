"""How the work of a vector kernel is dealt: units that go whole to a core, and what one unit moves and computes.

Units follow the operator's family: 512-byte pieces where everything flattens, rows of broadcasts, reductions and norms,
output rows of pooling, image rows of layout changes, slices of gathers. Tiles are then runs of units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from metadef.cost.vector_view import PICTURE_OP, broadcast_run, column_strip, compute_width
from metadef.format import BLOCK_BYTES, IMAGE_FORMATS, SLOT_BYTES, Format, Shape, TensorDesc, ceil_div, round_up
from metadef.kernel import Buffer, Kernel, VectorTile
from metadef.op import CostClass, get_op
from metadef.ops.geometry import PictureGeometry, PoolGeometry, normal_axis
from metadef.ops.reduce import reduced_axes
from metadef.target import Target


@dataclass(frozen=True)
class Stream:
    """An operand that moves with the units: ``units * unit_bytes + fixed_bytes`` a tile (window rows overlap)."""

    name: str
    unit_bytes: float
    fixed_bytes: float = 0.0


@dataclass(frozen=True)
class VectorShape:
    """A vector kernel's work, dealt in ``units`` of ``unit_elements`` elements.

    ``resident`` operands (name, bytes) stay in UB for the whole task; ``scratch_bytes`` is the fp32 copy of a unit;
    ``rule_bytes`` is what the block_dim rule counts; no more than ``max_cores`` cores share. ``divisible`` says that
    parts of one unit may go to several cores. ``strip_columns`` is that of :class:`metadef.kernel.VectorTile`.
    """

    units: int
    unit_elements: int
    inputs: tuple[Stream, ...]
    outputs: tuple[Stream, ...]
    resident: tuple[tuple[str, int], ...] = ()
    scratch_bytes: float = 0.0
    rule_bytes: int = 0
    max_cores: int = 1 << 30
    divisible: bool = True
    strip_columns: int = 0

    def tile(self, length: int, double_buffer: bool = True, buffers: tuple[Buffer, ...] = ()) -> VectorTile:
        """A tile of ``length`` units."""
        return VectorTile(self.units, self.unit_elements, length, double_buffer, buffers, self.strip_columns)

    def cut(self, pieces: int) -> VectorShape:
        """The same work with every unit cut into ``pieces`` (rows that are longer than UB)."""
        elements = ceil_div(self.unit_elements, pieces)
        part = elements / self.unit_elements

        def smaller(streams: tuple[Stream, ...]) -> tuple[Stream, ...]:
            return tuple(Stream(item.name, item.unit_bytes * part, item.fixed_bytes * part) for item in streams)

        return replace(
            self,
            units=self.units * ceil_div(self.unit_elements, elements),
            unit_elements=elements,
            inputs=smaller(self.inputs),
            outputs=smaller(self.outputs),
            scratch_bytes=self.scratch_bytes * part,
            max_cores=self.max_cores if self.divisible else min(self.max_cores, self.units),
        )


def vector_shape(kernel: Kernel, target: Target) -> VectorShape:
    """The work of a vector kernel.

    Raises:
        InferError: shapes do not fit the operator.
    """
    opdef = get_op(kernel.op_type)
    shape = _FAMILIES[opdef.cost](kernel, target)
    descs = _present(kernel)
    moved = kernel.outputs if opdef.cost is CostClass.GATHER else descs
    narrow = max(desc.dtype.bytes for desc in descs) < 4
    widened = narrow and any(compute_width(desc.dtype, opdef.work) == 4 for desc in descs)
    return replace(
        shape,
        scratch_bytes=shape.unit_elements * 4.0 if widened else 0.0,
        rule_bytes=max(prod(desc.shape) for desc in moved) * max(_width(kernel), 2),
    )


def _present(kernel: Kernel) -> list[TensorDesc]:
    return [desc for desc in (*kernel.inputs, *kernel.outputs) if desc is not None]


def _width(kernel: Kernel) -> int:
    """Bytes of the widest element type among operands and results."""
    return max(desc.dtype.bytes for desc in _present(kernel))


def _flat(kernel: Kernel, target: Target) -> VectorShape:
    """Pieces of 512 bytes (of the widest type) of the results; operands move in proportion, tiny ones stay."""
    total = max(sum(prod(desc.shape) for desc in kernel.outputs), 1)
    elements = SLOT_BYTES // max(_width(kernel), 2)
    return _dealt(kernel, target, ceil_div(total, elements), elements, total)


def _dealt(kernel: Kernel, target: Target, units: int, elements: int, total: int) -> VectorShape:
    """Units of the results; full-sized operands stream beside them, small ones are resident."""
    streams, resident = [], []
    for slot, desc in enumerate(kernel.inputs):
        if desc is None:
            continue
        size = desc.payload_bytes
        if prod(desc.shape) < total and size <= target.buffer_bytes["UB"] // 8:
            resident.append((f"x{slot}", round_up(size, BLOCK_BYTES)))
        else:
            streams.append(Stream(f"x{slot}", size * elements / total))
    results = [Stream(f"y{slot}", desc.payload_bytes * elements / total) for slot, desc in enumerate(kernel.outputs)]
    return VectorShape(units, elements, tuple(streams), tuple(results), tuple(resident))


def _elementwise(kernel: Kernel, target: Target) -> VectorShape:
    result = kernel.outputs[0]
    total = prod(result.shape)
    odd = [desc for desc in kernel.inputs if desc is not None and prod(desc.shape) not in (1, total)]
    if not odd or total == 0:
        return _flat(kernel, target)
    run, _ = broadcast_run(result, odd)
    return _dealt(kernel, target, total // run, run, total)


def _move(kernel: Kernel, target: Target) -> VectorShape:
    """Flattened, except layout changes around NC1HWC0: they move rows of an image (of all blocks, for lanes)."""
    blocked = next((desc for desc in _present(kernel) if desc.format in IMAGE_FORMATS), None)
    if blocked is None or get_op(kernel.op_type).cost is not CostClass.MOVE or not prod(blocked.shape):
        return _flat(kernel, target)
    n, c1, h, w, c0 = blocked.shape
    units = n * h if kernel.moves_lanes else n * c1 * h
    moved = [Stream(f"x{slot}", _read_bytes(kernel, slot) / units) for slot, desc in enumerate(kernel.inputs) if desc]
    results = [Stream(f"y{slot}", desc.payload_bytes / units) for slot, desc in enumerate(kernel.outputs)]
    elements = sum(prod(desc.shape) for desc in kernel.outputs) // units if units < n * c1 * h else w * c0
    return VectorShape(units, elements, tuple(moved), tuple(results))


def _read_bytes(kernel: Kernel, slot: int) -> int:
    """Bytes of an operand that a move reads: of pictures those under the cut."""
    if kernel.op_type == PICTURE_OP:
        g = PictureGeometry.of(kernel)
        return g.n * g.cut_bytes
    desc = kernel.inputs[slot]
    return desc.payload_bytes if desc is not None else 0


def _gather(kernel: Kernel, target: Target) -> VectorShape:
    """Slices by index; slices below 512 bytes are dealt in 512-byte pieces of the result."""
    x, indices, result = kernel.inputs[0], kernel.inputs[1], kernel.outputs[0]
    assert x is not None and indices is not None
    run = 1
    if "axis" in kernel.attrs:
        run = prod(x.origin_shape[normal_axis(kernel.attrs["axis"], len(x.origin_shape)) + 1 :])
    total = max(result.elements, 1)
    size = result.dtype.bytes
    elements = run if run * size >= SLOT_BYTES else SLOT_BYTES // size
    picks = ceil_div(elements, max(run, 1))
    streams = (Stream("indices", picks * indices.dtype.bytes), Stream("x", elements * size))
    return VectorShape(ceil_div(total, elements), elements, streams, (Stream("y", elements * size),))


def _rows(kernel: Kernel, target: Target) -> VectorShape:
    """Rows of a reduction, softmax or norm. Where the axes are not the last ones a unit is a strip of 512 bytes."""
    x = kernel.inputs[0]
    assert x is not None
    if x.format is Format.FRACTAL_NZ:
        *_, blocks, _, rows, c0 = x.shape
        strip = blocks * rows * c0
        return replace(_dealt(kernel, target, prod(x.shape) // strip, strip, prod(x.shape)), divisible=False)
    shape = x.origin_shape
    axes = _row_axes(kernel, shape)
    inner = prod(shape[max(axes) + 1 :]) if axes else 1
    depth = prod(shape[axis] for axis in axes)
    outer = prod(shape) // (depth * inner) if depth * inner else 0
    strip = column_strip(inner, outer, x.dtype.bytes, target) if inner > 1 else 0
    units = max(outer * ceil_div(inner, strip or 1), 1) if prod(shape) else 1
    elements = max(depth * (strip or 1), 1)
    streams, resident = [Stream("x0", elements * x.dtype.bytes)], []
    for slot, desc in enumerate(kernel.inputs[1:], 1):
        if desc is None:
            continue
        if prod(desc.shape) == prod(shape):
            streams.append(Stream(f"x{slot}", elements * desc.dtype.bytes))
        elif desc.payload_bytes <= target.buffer_bytes["UB"] // 8:
            resident.append((f"x{slot}", round_up(desc.payload_bytes, BLOCK_BYTES)))
        else:
            streams.append(Stream(f"x{slot}", float(min(desc.payload_bytes, elements * desc.dtype.bytes))))
    results = tuple(Stream(f"y{slot}", desc.payload_bytes / units) for slot, desc in enumerate(kernel.outputs))
    stays = tuple(resident)
    return VectorShape(units, elements, tuple(streams), results, stays, divisible=False, strip_columns=strip)


def _row_axes(kernel: Kernel, shape: Shape) -> tuple[int, ...]:
    """Axes that a row runs over."""
    rank = len(shape)
    for name in ("dimension", "axis"):
        if name in kernel.attrs:
            return (normal_axis(kernel.attrs[name], rank),)
    if "axes" in kernel.attrs:
        return reduced_axes(rank, kernel.attrs)
    if "begin_norm_axis" in kernel.attrs:
        return tuple(range(normal_axis(kernel.attrs["begin_norm_axis"], rank), rank))
    gamma = kernel.inputs[1] if len(kernel.inputs) > 1 else None
    if kernel.op_type == "InstanceNorm" or gamma is None:
        return tuple(range(min(2, rank - 1), rank))
    return tuple(range(rank - len(gamma.origin_shape), rank))


def _pool(kernel: Kernel, target: Target) -> VectorShape:
    """Rows of output windows with the input rows under them; a tile may straddle two planes."""
    x, result = kernel.inputs[0], kernel.outputs[0]
    assert x is not None
    g = PoolGeometry.of(kernel)
    lanes = 1 if x.is_plain else x.c0
    planes = prod(x.shape[:2])
    row = g.w * lanes * x.dtype.bytes
    height = min(g.kh, g.h)
    source = Stream("x0", height * row)
    if g.oh > 1:
        source = Stream("x0", min(g.stride_h, g.h) * row, 2 * max(height - g.stride_h, 0) * row)
    elements = max(g.ow * lanes, 1)
    return VectorShape(
        max(planes * g.oh, 1),
        elements,
        (source,),
        (Stream("y0", elements * result.dtype.bytes),),
        divisible=g.oh > 1,
    )


_FAMILIES: dict[CostClass, Callable[[Kernel, Target], VectorShape]] = {
    CostClass.ELEMENTWISE: _elementwise,
    CostClass.REDUCE: _rows,
    CostClass.SOFTMAX: _rows,
    CostClass.NORM: _rows,
    CostClass.POOL: _pool,
    CostClass.MOVE: _move,
    CostClass.GATHER: _gather,
}
