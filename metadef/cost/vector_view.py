"""A vector kernel as units: what each unit loads, computes and stores.

Units are those of :class:`metadef.kernel.VectorTile`; every operand and the work are shared out evenly over them.
The instruction list comes from the operator's :class:`metadef.op.VectorWork`, with the casts of a computation in fp32
and the fused operators added; layout changes and windows state the moves that they are made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, log2, prod
from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.format import BLOCK_BYTES, FRACTAL_ROWS, SLOT_BYTES, Format, TensorDesc
from metadef.kernel import Kernel, VectorTile
from metadef.op import CostClass, VectorWork, get_op
from metadef.ops.geometry import PictureGeometry, PoolGeometry, normal_axes, normal_axis
from metadef.target import Target

REPEAT_BYTES = 256
MAX_REPEATS = 255
PICTURE_OP = "Aipp"
"""The move whose bytes pass a unit of their own on the way in: no instruction of the vector unit works on them."""
WINOGRAD_PHASES = ("WinogradInput", "WinogradOutput")
"""Parts of a convolution that are no operators of their own."""
_ROW_MOVES = 2
"""Stores of a row off 32 bytes where the DMA cannot pad: its body, and a tail that overlaps it."""
LONG_ROW = 1024
"""Elements from which on an odd row is handled in vector form, with a tail (first-generation layout changes)."""
EVEN_UNITS = 4
"""Units a core from which on one more or less hardly matters."""
_REDUCTION_CALLS = 5
_FRACTAL_COPY_CYCLES = 6
"""Cycles a repeat of copying between rows and fractals: pieces of 32 bytes (TransData ND to NZ: 6.1 to 6.5). Bytes have
no copy of strided blocks: each piece of 32 takes as long (910B, weights of 8 bits to NZ)."""
_ACROSS = {"reduce_max": "max", "reduce_min": "min", "reduce_sum": "add"}
"""What a reduction is between whole fractals."""
_TWO_SOURCES = frozenset(
    {"add", "sub", "mul", "max", "min", "and", "or", "select", "compare", "axpy", "add_relu", "div", "madd", "mla"}
)


@dataclass(frozen=True)
class Stream:
    """An operand on its way. ``total_bytes`` moves over all cores; ``pieces`` rows of it, ``pitch`` bytes apart.

    ``pieces`` 0 means that a tile is one run; ``once`` that every core loads the whole operand, one time.
    """

    port: int
    total_bytes: float
    pieces: float = 0.0
    pitch: int = 0
    once: bool = False


@dataclass(frozen=True)
class Work:
    """An instruction: ``repeats`` over all units, or ``bytes`` rounded to repeats per tile; calls per tile and in all.

    With ``columns`` the calls in all are one a row, and short rows may be taken together: one call for each 256-byte
    column of all rows of a tile. ``scalar_cycles`` is work of the scalar unit in place of repeats; ``odd_cycles`` what
    odd rows add, over all units; ``start_cycles`` what a tile takes before its first repeat is done.
    """

    mnemonic: str
    width: int
    bytes: float = 0.0
    repeats: float = 0.0
    calls: float = 1.0
    all_calls: float = 0.0
    scalar_cycles: float = 0.0
    cycles_per_repeat: float = 0.0
    odd_cycles: float = 0.0
    two_sources: bool = False
    columns: int = 0
    start_cycles: float = 0.0

    def tile_calls(self, part: Any) -> Any:
        """Dependent calls in a tile that is ``part`` (number or array) of all units."""
        rows = self.all_calls * np.asarray(part)
        if self.columns:
            rows = np.minimum(rows, self.columns * np.ceil(rows / MAX_REPEATS))
        return self.calls + rows


@dataclass(frozen=True)
class VectorView:
    """All streams and instructions of a kernel; ``rows`` is the number of rows of a row kernel (0: flat).

    ``deal`` units go to a core together; with ``serial`` a core that has no more than those uses one set of buffers.
    """

    units: int
    unit_elements: int
    loads: tuple[Stream, ...]
    stores: tuple[Stream, ...]
    work: tuple[Work, ...]
    rows: int = 0
    row_bytes: int = 0
    macs: int = 0
    flops: int = field(default=0)
    deal: int = 1
    serial: bool = False

    @classmethod
    def of(cls, kernel: Kernel, target: Target) -> VectorView:
        """From any kernel of the vector engine.

        Raises:
            TargetError: the instruction list names an instruction that the target lacks.
        """
        from metadef.cost.registers import as_executed

        return as_executed(kernel, target, _as_listed)

    def share(self, pieces: int, *, smallest: bool = False) -> int:
        """Units of the fullest or the emptiest core."""
        whole = ceil(self.units / self.deal)
        return min((whole // pieces if smallest else ceil(whole / pieces)) * self.deal, self.units)

    def as_tile(self, target: Target) -> VectorTile:
        """A tile for kernels that carry none: units dealt so that two copies of all operands fill UB."""
        moved = sum(item.total_bytes for item in (*self.loads, *self.stores) if not item.once)
        room = target.buffer_bytes["UB"] // 2
        per_unit = max(moved / self.units, 1.0)
        return VectorTile(self.units, self.unit_elements, max(1, min(self.units, int(room // per_unit))))


def _as_listed(kernel: Kernel, target: Target) -> VectorView:
    """Streams and the instruction list of an operator as it is declared, instruction by instruction."""
    if kernel.op_type in WINOGRAD_PHASES:
        view: VectorView = kernel.attrs["shape"].view(kernel)
        return view
    opdef = get_op(kernel.op_type)
    build = {
        CostClass.SOFTMAX: _row_kernel,
        CostClass.NORM: _row_kernel,
        CostClass.REDUCE: _row_kernel,
        CostClass.POOL: _pool_kernel,
        CostClass.MOVE: _move_kernel,
        CostClass.GATHER: _gather_kernel,
    }.get(opdef.cost, _flat_kernel)
    return build(kernel, opdef.work, target)


def compute_width(dtype: DType, work: VectorWork) -> int:
    """Bytes of an element inside the vector unit, which has no bfloat16 arithmetic."""
    wide = work.computes_fp32 or dtype is DType.BF16
    return 4 if wide and dtype.bytes < 4 else max(dtype.bytes, 2)


def _stored_elements(desc: TensorDesc) -> int:
    return prod(desc.shape)


def _units(kernel: Kernel, elements: int) -> tuple[int, int]:
    """Units and elements of one: the tile's, else 32-byte blocks of the result."""
    if isinstance(kernel.tile, VectorTile):
        return max(kernel.tile.units, 1), max(kernel.tile.unit_elements, 1)
    block = BLOCK_BYTES // kernel.outputs[0].dtype.bytes
    return max(ceil(elements / block), 1), block


def _flat_streams(kernel: Kernel) -> tuple[list[Stream], list[Stream]]:
    """Operands of an element-wise kernel: full ones stream, small ones stay, leading broadcasts are read again."""
    full = _stored_elements(kernel.outputs[0])
    loads = []
    for port, desc in enumerate(kernel.inputs):
        if desc is None:
            continue
        elements = _stored_elements(desc)
        if elements < full and desc.payload_bytes <= 32768:
            loads.append(Stream(port, desc.payload_bytes, once=True))
        elif elements < full and desc.shape[-1:] == kernel.outputs[0].shape[-1:]:
            loads.append(Stream(port, full * desc.dtype.bytes))
        else:
            loads.append(Stream(port, desc.payload_bytes))
    stores = [Stream(port, desc.payload_bytes) for port, desc in enumerate(kernel.outputs)]
    return loads, stores


def _casts(kernel: Kernel, work: VectorWork) -> int:
    """Conversions around a computation in fp32: one per 16-bit full operand and result."""
    if not work.computes_fp32 and not any(desc.dtype is DType.BF16 for desc in kernel.outputs):
        return 0
    full = _stored_elements(kernel.outputs[0])
    narrow = [desc for desc in kernel.inputs if desc is not None and desc.dtype.bytes == 2]
    return sum(_stored_elements(desc) >= full for desc in narrow) + sum(
        desc.dtype.bytes == 2 for desc in kernel.outputs
    )


def _instructions(kernel: Kernel, work: VectorWork) -> tuple[list[str], int]:
    """Mnemonics that run once per repeat, fused operators and casts included, and the computed width in bytes."""
    first = next(desc for desc in kernel.inputs if desc is not None)
    widths = [compute_width(max(first.dtype, kernel.outputs[0].dtype, key=lambda item: item.bits), work)]
    names = list(work.per_repeat)
    if kernel.op_type == "AccumulateNV2":
        own = len(kernel.inputs) - sum(item.operand is not None for item in kernel.fused)
        names *= max(own - 1, 1)
    for item in kernel.fused:
        extra = get_op(item.op_type).work
        names += extra.per_repeat
        widths.append(compute_width(first.dtype, extra))
    width = max(widths)
    casts = _casts(kernel, work)
    if not casts and width == 4 and first.dtype.bytes == 2 and kernel.op_type != "Cast":
        casts = 2
    return [*names, *["cast"] * casts], width


def _flat_kernel(kernel: Kernel, work: VectorWork, target: Target) -> VectorView:
    elements = _stored_elements(kernel.outputs[0])
    units, unit_elements = _units(kernel, elements)
    names, width = _instructions(kernel, work)
    loads, stores = _flat_streams(kernel)
    listed = _broadcast_work(kernel, names, width, target)
    listed += [Work(name, width, repeats=0.0, all_calls=1.0) for name in work.per_row]
    return VectorView(
        units, unit_elements, tuple(loads), tuple(stores), tuple(listed), flops=elements * len(work.per_repeat),
        deal=_samples(kernel, units, target),
    )  # fmt: skip


def _samples(kernel: Kernel, units: int, target: Target) -> int:
    """Units that go to a core together: first-generation kernels over operands that stretch deal whole samples, if
    they fill enough of the cores (published launches and times)."""
    result = kernel.outputs[0]
    if not target.coupled or not any(desc is not None and _stretches(desc, result) for desc in kernel.inputs):
        return 1
    first = result.shape[0]
    enough = first >= target.value("vector.sample_cores") * target.vector_cores
    return units // first if enough and units % first == 0 else 1


def broadcast_run(result: TensorDesc, operands: Sequence[TensorDesc]) -> tuple[int, bool]:
    """(elements of the innermost axes over which every operand is present throughout or repeated throughout, whether
    one of them repeats there). In blocked layouts one stride serves a line of blocks, or the whole plane of an image
    under values a channel, whose block is read again at stride zero."""
    if not result.is_plain:
        whole = result.format is Format.NC1HWC0 and all(desc.shape[-3:-1] == (1, 1) for desc in operands)
        return prod(result.shape[-3 if whole else -2 :]), False
    full = result.origin_shape
    run, kinds = 1, [""] * len(operands)
    for axis in range(-1, -len(full) - 1, -1):
        for position, desc in enumerate(operands):
            size = desc.origin_shape[axis] if len(desc.origin_shape) >= -axis else 1
            kind = "" if full[axis] == 1 else ("same" if size == full[axis] else "repeat")
            if kind and kinds[position] and kind != kinds[position]:
                return run, "repeat" in kinds
            kinds[position] = kinds[position] or kind
        run *= full[axis]
    return run, "repeat" in kinds


def _stretches(desc: TensorDesc, result: TensorDesc) -> bool:
    """Whether an operand is smaller than the result in another way than by missing leading axes."""
    own = desc.shape
    while own and own[0] == 1:
        own = own[1:]
    return bool(own) and own != result.shape[len(result.shape) - len(own) :]


def _broadcast_work(kernel: Kernel, names: list[str], width: int, target: Target) -> list[Work]:
    """An element-wise list over operands that stretch: runs of equal pattern are taken by row or by column of the tile.

    A value that repeats along a run is spread to a block first, eight a repeat; runs below a block are gathered one by
    one. An operand that is the same for every tile is laid out once and costs nothing more.
    """
    result = kernel.outputs[0]
    elements = _stored_elements(result)
    odd = [desc for desc in kernel.inputs if desc is not None and _stretches(desc, result)]
    run, repeats = broadcast_run(result, odd)
    if not odd or run >= elements or elements == 0:
        return [Work(name, width, bytes=elements * width, two_sources=name in _TWO_SOURCES) for name in names]
    rows = elements // run
    if run * width < BLOCK_BYTES:
        gather = Work("copy", width, repeats=rows, calls=0.0, cycles_per_repeat=target.value("vector.short_run_cycles"))
        return [gather, *(Work(name, width, bytes=elements * width) for name in names)]
    chunks = ceil(run * width / REPEAT_BYTES)
    extra = max(target.value("vector.spread_calls"), len(odd) - 1) if repeats else 0
    spread = [Work("broadcast_block", width, repeats=rows / 8, all_calls=extra * rows)] if repeats else []
    # Operands that stretch differently leave no common stride, so every row is a call of its own.
    together = chunks if len({desc.shape for desc in odd}) < 2 and not extra else 0
    by_row = [Work(name, width, repeats=rows * chunks, calls=0.0, all_calls=rows, columns=together) for name in names]
    return spread + by_row


def _row_shape(kernel: Kernel) -> tuple[int, int, int]:
    """(rows, elements of a row, elements that lie together): rows of the reduced extent; inner > 1 if not the last."""
    x = next(desc for desc in kernel.inputs if desc is not None)
    shape = x.shape
    rank = len(shape)
    if "axes" in kernel.attrs:
        axes = normal_axes(kernel.attrs["axes"], rank) or tuple(range(rank))
    elif "begin_norm_axis" in kernel.attrs:
        axes = tuple(range(normal_axis(kernel.attrs["begin_norm_axis"], rank), rank))
    elif kernel.op_type == "InstanceNorm":
        axes = tuple(range(2, rank))
    else:
        gamma = kernel.inputs[1] if len(kernel.inputs) > 1 else None
        axes = tuple(range(rank - (len(gamma.shape) if gamma is not None else 1), rank))
    inner = prod(shape[max(axes, default=-1) + 1 :])
    length = prod(shape[axis] for axis in axes)
    return max(prod(shape) // max(length * inner, 1), 1), length, inner


def _row_kernel(kernel: Kernel, work: VectorWork, target: Target) -> VectorView:
    """Reductions, softmax, normalisation: every row runs the whole list."""
    if kernel.op_type == "Cumsum":
        return _sum_kernel(kernel, work, target)
    x = next(desc for desc in kernel.inputs if desc is not None)
    if x.format is Format.FRACTAL_NZ:
        return _fractal_rows(kernel, x, work, target)
    elements = _stored_elements(x)
    units, unit_elements = _units(kernel, elements)
    rows, length, inner = _row_shape(kernel)
    names, width = _row_instructions(kernel, work, target)
    if inner > 1:
        # Rows are added up element by element, each into the sums of the one before.
        names = ["accumulate" if name.startswith("reduce_") else name for name in names]
    chunks = ceil((inner if inner > 1 else length) * width / REPEAT_BYTES)
    repeats = rows * (length if inner > 1 else 1) * chunks
    if inner > 1:
        dealt = kernel.tile.strip_columns if isinstance(kernel.tile, VectorTile) else 0
        strip = dealt or column_strip(inner, rows, x.dtype.bytes, target)
        repeats = rows * length * ceil(inner / strip) * ceil(strip * width / REPEAT_BYTES)
    listed = [_row_call(name, width, repeats, rows, chunks, target) for name in names]
    listed += [Work(name, width, bytes=rows * inner * width) for name in work.per_row]
    loads, stores = _flat_streams(kernel)
    row_bytes = length * inner * x.dtype.bytes
    loads = read_again(loads, names, row_bytes if inner == 1 else 0, target)
    if row_bytes % BLOCK_BYTES and rows > 1:
        loads = [item if item.once else Stream(item.port, item.total_bytes, rows, row_bytes) for item in loads]
        stores = [Stream(item.port, item.total_bytes, rows, row_bytes) for item in stores]
        summed = get_op(kernel.op_type).cost is CostClass.REDUCE
        listed += [] if summed else [_odd_rows(target, rows, length * inner)]
    if inner > 1 and inner * x.dtype.bytes % BLOCK_BYTES and target.coupled:
        listed.append(_odd_rows(target, rows * length, inner, "alignment.odd_sum_cycles"))
    return VectorView(
        units, unit_elements, tuple(loads), tuple(stores), tuple(listed), rows, row_bytes,
        flops=elements * len(work.per_repeat),
    )  # fmt: skip


def _row_instructions(kernel: Kernel, work: VectorWork, target: Target) -> tuple[list[str], int]:
    """As :func:`_instructions`; first-generation kernels divide once a row and multiply by the quotient (softmax in
    training steps)."""
    names, width = _instructions(kernel, work)
    once = target.coupled and "div" in work.per_row
    return ["mul" if once and name == "div" else name for name in names], width


def column_strip(columns: int, outer: int, size: int, target: Target) -> int:
    """Columns of one unit of ``outer`` sums over rows of ``columns`` elements (``size`` bytes each): a line, or where
    there are too few lines to share them evenly, what gives most cores the same number of blocks (published launches:
    24 of 30 cores for 768 columns of 16 bits)."""
    block, line = (span // max(size, 2) for span in (BLOCK_BYTES, SLOT_BYTES))
    cores = target.vector_cores
    if outer * ceil(columns / line) >= EVEN_UNITS * cores or outer >= cores:
        return min(columns, line)
    blocks, most = ceil(columns / block), cores // max(outer, 1)
    pieces = max(part for part in range(1, most + 1) if blocks % part == 0)
    return min(columns, block * (blocks // pieces if 2 * pieces >= min(most, blocks) else ceil(blocks / most)))


def _fractal_rows(kernel: Kernel, x: TensorDesc, work: VectorWork, target: Target) -> VectorView:
    """Rows in FRACTAL_NZ: strips of sixteen rows, reduced side by side over their fractals, then within the last one.

    Calls on different blocks do not wait for each other, except where a reduction combines them.
    """
    *_, blocks, row_blocks, rows, c0 = x.shape
    elements = _stored_elements(x)
    units, unit_elements = _units(kernel, elements)
    names, width = _row_instructions(kernel, work, target)
    strips = elements // (blocks * rows * c0)
    listed = []
    for name in names:
        reduces = name.startswith("reduce_")
        # Blocks are combined in pairs, then pairs of pairs: each round waits for the one before.
        rounds = 1 + ceil(log2(max(blocks, 1))) if reduces else 1
        listed.append(Work(_ACROSS.get(name, name), width, bytes=elements * width, calls=rounds))
        if reduces:
            listed.append(Work("block_sum", width, bytes=strips * rows * c0 * width))
            listed.append(Work("broadcast_block", width, repeats=strips * rows / 8))
    listed += [Work(name, width, bytes=strips * rows * BLOCK_BYTES) for name in work.per_row]
    loads, stores = _flat_streams(kernel)
    pitch = row_blocks * rows * c0 * x.dtype.bytes
    full = elements * x.dtype.bytes
    loads = [
        Stream(item.port, item.total_bytes, strips * blocks, pitch) if item.total_bytes == full else item
        for item in loads
    ]
    stores = [Stream(item.port, item.total_bytes, strips * blocks, pitch) for item in stores]
    return VectorView(
        units, unit_elements, tuple(loads), tuple(stores), tuple(listed), flops=elements * len(work.per_repeat)
    )


def read_again(loads: Sequence[Stream], names: Sequence[str], row_bytes: float, target: Target) -> list[Stream]:
    """Loads of rows that UB does not hold: they are read once for every reduction, and once more for what follows."""
    sums = sum(name.startswith(("reduce_", "block_")) for name in names)
    if row_bytes <= target.buffer_bytes["UB"] or sums == len(names):
        return list(loads)
    return [item if item.once else replace(item, total_bytes=item.total_bytes * (sums + 1)) for item in loads]


def _row_call(name: str, width: int, repeats: float, rows: int, chunks: int, target: Target) -> Work:
    """One instruction of a row kernel. A reduction ends in a chain of calls (partial sums, their sum, the value spread
    again); long rows are reduced one by one, rows of few repeats several to a call."""
    reduces = name.startswith(("reduce_", "block_"))
    one_by_one = reduces and chunks > target.value("vector.stacked_repeats")
    calls = rows * (_REDUCTION_CALLS if one_by_one else 1)
    return Work(name, width, repeats=repeats, calls=0.0, all_calls=calls, columns=0 if one_by_one else chunks)


def _odd_rows(
    target: Target, rows: float, row_elements: int, scalar: str = "alignment.scalar_cycles_per_element"
) -> Work:
    """What rows off 32 bytes add: a re-aligning call a row, or scalar code where the DMA cannot pad a row."""
    if target.value("alignment.padded_copy"):
        return Work("copy", 2, calls=0.0, odd_cycles=rows * target.value("alignment.odd_row_cycles"))
    per_element = target.value(scalar)
    return Work("copy", 2, calls=0.0, odd_cycles=rows * row_elements * per_element)


def _pool_kernel(kernel: Kernel, work: VectorWork, target: Target) -> VectorView:
    """Windows over NC1HWC0: every tap is one instruction over a row of results, eight 32-byte pixels a repeat."""
    x, y = kernel.inputs[0], kernel.outputs[0]
    assert x is not None
    g = PoolGeometry.of(kernel)
    units, unit_elements = _units(kernel, _stored_elements(y))
    c0 = x.c0 or 1
    width = compute_width(x.dtype, work)
    planes = max(_stored_elements(x) // max(g.h * g.w * c0, 1), 1)
    pixel_bytes = c0 * width
    listed = []
    if g.is_global:
        repeats = planes * ceil(g.h * g.w * pixel_bytes / REPEAT_BYTES)
        for name in work.per_repeat:
            listed.append(Work(name, width, repeats=repeats, calls=0.0, all_calls=planes * 4))
    else:
        taps, chunks = g.kh * g.kw, ceil(g.ow * pixel_bytes / REPEAT_BYTES)
        repeats = planes * g.oh * taps * chunks
        per_tile = 0.0 if units < planes else float(taps * chunks)
        in_all = planes * taps * chunks if units < planes else 0.0
        for name in work.per_repeat:
            listed.append(Work(name, width, repeats=repeats, calls=per_tile, all_calls=in_all))
    results = planes * g.oh * g.ow * pixel_bytes
    listed += [Work(name, width, bytes=results) for name in work.per_row]
    if width > x.dtype.bytes:
        listed.append(Work("cast", width, bytes=planes * g.h * g.w * pixel_bytes))
        listed.append(Work("cast", width, bytes=results))
    for item in kernel.fused:
        listed += [Work(name, width, bytes=results) for name in get_op(item.op_type).work.per_repeat]
    halo = max(g.kh - g.stride_h, 0) * g.w * c0 * x.dtype.bytes
    tile = kernel.tile.units_per_tile if isinstance(kernel.tile, VectorTile) else units
    extra = halo * ceil(units / tile) if units > planes else 0
    loads = (Stream(0, x.payload_bytes + extra),)
    return VectorView(
        units,
        unit_elements,
        loads,
        (Stream(0, y.payload_bytes),),
        tuple(listed),
        flops=_stored_elements(y) * g.kh * g.kw,
    )


def _runs(kernel: Kernel) -> tuple[int, bool]:
    """(elements that stay together, whether the order of the innermost axis changes) of a move."""
    x, y = kernel.inputs[0], kernel.outputs[0]
    assert x is not None
    if kernel.op_type == "TransData":
        blocked = y if not y.is_plain else x
        channel_first = len(blocked.origin_shape) == 4 and blocked.format is not Format.FRACTAL_NZ
        return (1 if channel_first else max(blocked.c0, 1)), channel_first
    if kernel.op_type == "ShuffleChannel":
        return prod(x.origin_shape[2:]), False
    if kernel.op_type == "TransposeD":
        perm = tuple(kernel.attrs["perm"])
        run, axis = 1, len(perm) - 1
        while axis >= 0 and perm[axis] == axis:
            run *= x.shape[axis]
            axis -= 1
        return run, bool(perm) and perm[-1] != len(perm) - 1
    narrow = min((desc.shape[-1] for desc in (x, y) if desc.shape), default=1)
    same_row = bool(x.shape) and bool(y.shape) and x.shape[-1] == y.shape[-1]
    lead = y.shape[-2] if same_row and len(y.shape) > 1 and len(x.shape) > 1 and x.shape[-2] == y.shape[-2] else 1
    return max(narrow * lead, 1), False


def _move_kernel(kernel: Kernel, work: VectorWork, target: Target) -> VectorView:
    """Data movement: rows by DMA; an exchanged innermost axis passes the transposing instruction block by block."""
    if kernel.moves_lanes:
        return _lane_kernel(kernel, target)
    if kernel.op_type == "ResizeBilinearV2D":
        return _bilinear_kernel(kernel, work, target)
    if kernel.op_type == PICTURE_OP:
        return _picture_kernel(kernel)
    x, y = kernel.inputs[0], kernel.outputs[0]
    assert x is not None
    elements = _stored_elements(y)
    units, unit_elements = _units(kernel, elements)
    run, exchanged = _runs(kernel)
    size = y.dtype.bytes
    run_bytes = run * size
    listed: list[Work] = []
    loads = []
    fractals = kernel.op_type == "TransData" and not exchanged
    for port, desc in enumerate(kernel.inputs):
        if desc is not None:
            pieces = 0.0 if exchanged or fractals or kernel.picks_elements else max(desc.payload_bytes / run_bytes, 1.0)
            loads.append(Stream(port, desc.payload_bytes, pieces, 0 if exchanged else run_bytes))
    stores = tuple(Stream(port, desc.payload_bytes) for port, desc in enumerate(kernel.outputs))
    deal = 1
    if exchanged:
        listed += _exchanged_work(kernel, elements, target)
    elif fractals:
        listed += _fractal_work(kernel, elements, target)
        deal = ceil(units / _strips(kernel)) if target.coupled else 1
    elif kernel.picks_elements:
        listed += _turned_work(elements + _stored_elements(x), size, target)
    elif run_bytes % BLOCK_BYTES:
        rows = elements / run
        if run_bytes < BLOCK_BYTES:
            per_block = target.value("vector.block_move_cycles")
            listed.append(Work("copy", size, repeats=rows, calls=0.0, cycles_per_repeat=per_block))
            listed.append(_odd_rows(target, rows, run))
        elif kernel.op_type == "TransposeD" and not target.value("alignment.padded_copy"):
            moves = _ROW_MOVES * rows * target.path("UB->GM").issue_cycles
            listed.append(Work("copy", size, calls=0.0, odd_cycles=moves))
        else:
            listed.append(_odd_rows(target, rows, run))
    return VectorView(units, unit_elements, tuple(loads), stores, tuple(listed), rows=0, row_bytes=run_bytes, deal=deal)


def _turned_work(elements: int, size: int, target: Target) -> list[Work]:
    """Blocks of 16 x 16 that are turned to pick rows of them, and turned back.

    The transposing instruction takes sixteen row addresses on either side, so that picking rows costs nothing more.
    """
    listed = [Work("transpose", size, bytes=elements * size)]
    if size > 2:
        per_block = target.value("vector.block_move_cycles")
        blocks = elements / FRACTAL_ROWS
        listed.append(Work("copy", size, repeats=blocks, calls=0.0, cycles_per_repeat=per_block))
    return listed


def _exchanged_work(kernel: Kernel, elements: int, target: Target) -> list[Work]:
    """Moves that exchange the innermost axis: 16 x 16 blocks pass the transposing instruction."""
    x, y = kernel.inputs[0], kernel.outputs[0]
    assert x is not None
    size, plane = y.dtype.bytes, prod(y.origin_shape[2:])
    blocks = elements / FRACTAL_ROWS
    if kernel.op_type == "TransData" and plane == 1 and target.coupled:
        # One pixel: channels lie as they did.
        return [Work("copy", size, bytes=elements * size)]
    # Four channels fill no row of a 16 x 16 block: they are put side by side by a second round.
    rounds = 2 if Format.NC1HWC0_C04 in (x.format, y.format) else 1
    listed = [Work("transpose", size, bytes=rounds * elements * size)]
    if Format.FRACTAL_Z in (y.format, x.format):
        # Taps, channels and filters all change places: every block of sixteen moves by itself as well.
        each = target.value("vector.tap_block_cycles")
        listed.append(Work("copy", size, repeats=blocks, calls=0.0, cycles_per_repeat=each))
    odd = plane * size % BLOCK_BYTES and plane <= LONG_ROW and not target.value("alignment.padded_copy")
    if kernel.op_type == "TransData" and odd:
        cycles = blocks * target.value("alignment.scalar_cycles_per_element")
        listed.append(Work("copy", size, calls=0.0, odd_cycles=cycles))
    elif size > 2:
        # A 32-bit block is transposed in halves that have to be put side by side, 16 elements at a time.
        few = y.is_plain or min(x.origin_shape[1], y.origin_shape[1]) < FRACTAL_ROWS
        per_block = target.value(f"vector.{'half_' if few else ''}block_move_cycles")
        listed.append(Work("copy", size, repeats=blocks, calls=0.0, cycles_per_repeat=per_block))
    return listed


def _plain_shape(kernel: Kernel) -> tuple[int, ...]:
    """Shape of the plain side of a layout change to or from fractals."""
    descs = [desc for desc in (*kernel.inputs, *kernel.outputs) if desc is not None]
    return next((desc for desc in descs if desc.is_plain), descs[-1]).shape or (1,)


def _strips(kernel: Kernel) -> int:
    """Strips of sixteen rows of the plain side, which go whole to a core."""
    shape = _plain_shape(kernel)
    rows = shape[-2] if len(shape) > 1 else 1
    return max(prod(shape[:-2]) * ceil(rows / FRACTAL_ROWS), 1)


def _fractal_work(kernel: Kernel, elements: int, target: Target) -> list[Work]:
    """Rows and columns of fractals are whole on either side; the 32-byte pieces are put in order within UB. Of stacks
    whole planes are put in order, fractals with what fills them, so that odd rows cost little."""
    y = kernel.outputs[0]
    shape = _plain_shape(kernel)
    size, width, stack = y.dtype.bytes, shape[-1], len(shape) > 2
    odd = width * size % BLOCK_BYTES != 0
    if stack:
        elements = max(_stored_elements(desc) for desc in (*kernel.inputs, y) if desc is not None)
    pieces = REPEAT_BYTES / BLOCK_BYTES if size == 1 else 1.0
    listed = [Work("copy", size, bytes=elements * size, cycles_per_repeat=pieces * _FRACTAL_COPY_CYCLES)]
    setup = target.value("vector.fractal_setup_cycles") * min(kernel.block_dim, _strips(kernel))
    if setup:
        listed.insert(0, Work("copy", size, calls=0.0, scalar_cycles=float(setup)))
    if odd and stack:
        each = target.value("alignment.odd_stack_row_cycles")
        listed.append(Work("copy", size, calls=0.0, odd_cycles=prod(shape[:-1]) * each))
    elif odd and width <= LONG_ROW and y.is_plain:
        listed.append(_odd_rows(target, elements / width, width, "alignment.odd_fractal_cycles"))
    return listed


def _bilinear_kernel(kernel: Kernel, work: VectorWork, target: Target) -> VectorView:
    """Two rows of an image are mixed, then the pixels left and right of every place: blocks in NC1HWC0, else elements.

    A row of the image is loaded once; it serves the results above and below it.
    """
    x, y = kernel.inputs[0], kernel.outputs[0]
    assert x is not None
    elements = _stored_elements(y)
    units, unit_elements = _units(kernel, elements)
    width, c0 = compute_width(x.dtype, work), max(x.c0, 1)
    ow = y.origin_shape[3]
    rows = elements / (ow * c0)
    mixed = rows * ceil(x.origin_shape[3] * c0 * width / REPEAT_BYTES)
    listed = [Work(name, width, repeats=mixed, calls=0.0, all_calls=rows) for name in ("muls", "axpy")]
    factor, left = divmod(ow, x.origin_shape[3])
    if c0 > 1 and factor > 0 and left == 0:
        # Every factor-th place looks one pixel further, but for one step back a row: strided copies, eight blocks each.
        listed.append(Work("copy", width, bytes=2 * elements * width, calls=0.0, all_calls=2 * factor * rows))
    elif c0 > 1:
        cycles, blocks = target.value("vector.block_move_cycles"), 2 * elements * width / BLOCK_BYTES
        listed.append(Work("copy", width, repeats=blocks, calls=0.0, cycles_per_repeat=cycles))
    else:
        listed.append(Work("gather", width, bytes=2 * elements * width))
    listed += [Work(name, width, bytes=elements * width, two_sources=True) for name in ("mul", "mul", "add")]
    if width > x.dtype.bytes:
        listed += [Work("cast", width, bytes=_stored_elements(desc) * width) for desc in (x, y)]
    stores = (Stream(0, y.payload_bytes),)
    return VectorView(units, unit_elements, (Stream(0, x.payload_bytes),), stores, tuple(listed), flops=7 * elements)


def _picture_kernel(kernel: Kernel) -> VectorView:
    """Pictures: the bytes under the cut, row by row, leave the unit as whole pixels of NC1HWC0."""
    y, g = kernel.outputs[0], PictureGeometry.of(kernel)
    units, unit_elements = _units(kernel, _stored_elements(y))
    loads = (Stream(0, g.n * g.cut_bytes, g.n * g.cut_rows, g.row_bytes),)
    return VectorView(units, unit_elements, loads, (Stream(0, y.payload_bytes),), ())


def _sum_kernel(kernel: Kernel, work: VectorWork, target: Target) -> VectorView:
    """Running sums in two sweeps: an axis is cut into as many stretches as each has elements, which are summed side by
    side, and then every stretch gets what the ones before it add up to. Rows along the last axis are turned first."""
    x = kernel.inputs[0]
    assert x is not None
    elements = _stored_elements(x)
    units, unit_elements = _units(kernel, elements)
    axis = normal_axis(kernel.attrs["axis"], len(x.shape))
    width, length, inner = compute_width(x.dtype, work), x.shape[axis], prod(x.shape[axis + 1 :])
    lanes = REPEAT_BYTES // width
    sweeps = elements / max(inner, 1) * ceil(inner / lanes) if inner > 1 else elements / lanes
    calls = ceil(elements / max(length * lanes, 1)) * 3 * ceil(length**0.5)
    listed = [Work("cast", width, bytes=elements * width)] * _casts(kernel, work)
    if inner == 1:
        per_block = target.value("vector.block_move_cycles")
        listed.append(Work("transpose", width, bytes=2 * elements * width))
        listed.append(Work("copy", width, repeats=2 * elements / FRACTAL_ROWS, calls=0.0, cycles_per_repeat=per_block))
    listed.append(Work("add", width, repeats=2 * sweeps, calls=0.0, all_calls=calls))
    loads, stores = _flat_streams(kernel)
    return VectorView(units, unit_elements, tuple(loads), tuple(stores), tuple(listed), flops=elements)


def _lane_kernel(kernel: Kernel, target: Target) -> VectorView:
    """Single lanes of NC1HWC0: blocks are turned so that channels are rows, and turned back with others beside them."""
    sides = [[desc for desc in side if desc is not None] for side in (kernel.inputs, kernel.outputs)]
    elements = sum(_stored_elements(desc) for desc in kernel.outputs)
    units, unit_elements = _units(kernel, elements)
    size = kernel.outputs[0].dtype.bytes
    turned = elements + sum(_stored_elements(desc) for desc in sides[0])
    loads, stores = (
        tuple(
            Stream(port, desc.payload_bytes, prod(desc.shape[:3]), prod(desc.shape[3:]) * size)
            for port, desc in enumerate(side)
        )
        for side in sides
    )
    return VectorView(units, unit_elements, loads, stores, tuple(_turned_work(turned, size, target)))


def _gather_kernel(kernel: Kernel, work: VectorWork, target: Target) -> VectorView:
    """Rows picked by indices: one copy instruction a row."""
    y = kernel.outputs[0]
    units, unit_elements = _units(kernel, _stored_elements(y))
    indices = kernel.inputs[1] if len(kernel.inputs) > 1 else None
    count = max(indices.elements if indices is not None else y.shape[0] if y.shape else 1, 1)
    issue = target.path("GM->UB").issue_cycles
    loads = [Stream(0, y.payload_bytes, count, max(y.payload_bytes // count, 1))]
    if indices is not None:
        loads.append(Stream(1, indices.payload_bytes))
    listed = (Work("copy", 4, scalar_cycles=float(count * issue), calls=0.0),)
    return VectorView(units, unit_elements, tuple(loads), (Stream(0, y.payload_bytes),), listed)
