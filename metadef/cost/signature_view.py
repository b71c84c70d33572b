"""Timing-only kernels as vector views: streams, instructions and units from a ``metadef.cost.signatures.Signature``.

:func:`signature_kernel` makes a kernel of one from descriptors alone, as they stand in a profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

from metadef.cost.signature import SIGNATURE, Deal, Moves, Rows, Signature
from metadef.cost.signatures import SIGNATURES, find_signature
from metadef.cost.vector_view import REPEAT_BYTES, Stream, VectorView, Work, read_again
from metadef.error import OperatorError
from metadef.format import BLOCK_BYTES, SLOT_BYTES, Format, TensorDesc, ceil_div
from metadef.kernel import TIMING_ONLY, Engine, Kernel
from metadef.target import Target

BYTES_PER_CORE = 2048
"""First-generation kernels take a core for every 512 elements of fp32 (published launches: 74 % exact), those of the
second generation for twice as many (95 % exact)."""
_STAYS = 32768


def signature_kernel(
    op_type: str,
    inputs: Sequence[TensorDesc],
    outputs: Sequence[TensorDesc],
    target: Target,
    *,
    block_dim: int | None = None,
    signature: Signature | None = None,
) -> Kernel:
    """A kernel that is timed and cannot run; ``block_dim`` imposes the cores, ``signature`` another list.

    Raises:
        OperatorError: there is no signature of that type.
    """
    attrs = {} if signature is None else {SIGNATURE: signature}
    signature = signature or find_signature(op_type)
    if signature is None:
        raise OperatorError(f"no timing signature of '{op_type}'", hint="declare one in metadef.cost.signatures")
    results = tuple(outputs) or tuple(inputs[:1])
    kernel = Kernel(op_type, Engine.VECTOR, tuple(inputs), results, attrs, algorithm=TIMING_ONLY)
    if block_dim is None:
        view = signature_view(kernel, target)
        largest = max(prod(desc.shape) * max(desc.dtype.bytes, 2) for desc in (*inputs, *results))
        each = BYTES_PER_CORE if target.coupled else 2 * BYTES_PER_CORE
        block_dim = min(target.vector_cores, ceil_div(max(largest, 1), each), view.units // view.deal)
    one = signature.deal is Deal.ONE
    return replace(kernel, block_dim=1 if one else max(block_dim, 1))


def signature_view(kernel: Kernel, target: Target) -> VectorView:
    """Streams, instructions and units of a timing-only kernel."""
    signature = kernel.attrs.get(SIGNATURE) or SIGNATURES[kernel.op_type]
    build = {
        Moves.WRITTEN: _written,
        Moves.PARTS: _parts,
        Moves.PICKED: _picked,
        Moves.SCATTERED: _scattered,
        Moves.WINDOWS: _windows,
        Moves.ELEMENTS: _elements,
    }.get(signature.moves, _whole)
    return build(kernel, signature, target)


def _descs(kernel: Kernel) -> list[TensorDesc]:
    return [desc for desc in (*kernel.inputs, *kernel.outputs) if desc is not None]


def _stored(desc: TensorDesc) -> int:
    return prod(desc.shape)


def _streams(kernel: Kernel, largest: int) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    """Every operand moves once; a small one stays on every core."""
    loads = [
        Stream(port, desc.payload_bytes, once=_stored(desc) < largest and desc.payload_bytes <= _STAYS)
        for port, desc in enumerate(kernel.inputs)
        if desc is not None
    ]
    return tuple(loads), tuple(Stream(port, desc.payload_bytes) for port, desc in enumerate(kernel.outputs))


def _listed(names: Sequence[str], target: Target, width: int, *, bytes_: float = 0.0, repeats: float = 0.0) -> Work:
    """A whole instruction list as one entry: its cycles a repeat, a dependent call a tile for each instruction."""
    cycles = sum(target.vector_instruction(name, width)[1] for name in names)
    return Work(names[0], width, bytes=bytes_, repeats=repeats, calls=float(len(names)), cycles_per_repeat=cycles)


def _rows(kind: Rows, big: TensorDesc) -> int:
    """Rows of the largest operand."""
    shape = big.shape
    if kind is Rows.NONE or not shape:
        return 0
    if kind is Rows.PLANES:
        return prod(shape[:2])
    if big.format is Format.FRACTAL_NZ and len(shape) >= 4:
        if kind is Rows.LAST:
            return 0
        return prod(shape[:-4]) * shape[-3] * shape[-2]
    return prod(shape[:-1])


def _dealt(deal: Deal, big: TensorDesc, rows: int, target: Target) -> tuple[int, int]:
    """(units, how many of them go together): rows and planes are cut so that a tile of one fits UB."""
    total = max(_stored(big), 1)
    size = big.dtype.bytes
    if deal is Deal.FLAT or not big.shape:
        return ceil_div(total * size, SLOT_BYTES), 1
    if deal is Deal.ROWS:
        return (rows, 1) if rows else (ceil_div(total * size, SLOT_BYTES), 1)
    first = big.shape[0 if deal is Deal.SAMPLES else min(1, len(big.shape) - 1)]
    inside = total // first * size
    cuts = max(ceil_div(inside, target.buffer_bytes["UB"] // 12), 1)
    return first * cuts, cuts


def _whole(kernel: Kernel, signature: Signature, target: Target) -> VectorView:
    planes = [desc for desc in _descs(kernel) if len(desc.shape) == 5]
    big = max(planes if signature.rows is Rows.PLANES and planes else _descs(kernel), key=_stored)
    rows = _rows(signature.rows, big)
    units, deal = _dealt(signature.deal, big, rows, target)
    wide = big.dtype.bytes >= 4
    width = 4 if wide or signature.fp32 else 2
    names = list(signature.wide_work or signature.work) if wide else list(signature.work)
    if signature.odd_work and len(big.shape) == 5 and prod(big.shape[2:4]) % 2:
        names = list(signature.odd_work)
    if signature.fp32 and not wide:
        names += ["cast"] * sum(_stored(desc) == _stored(big) for desc in _descs(kernel))
    listed = []
    if names and rows:
        length = _stored(big) / rows
        listed.append(_listed(names, target, width, repeats=rows * ceil(length * width / REPEAT_BYTES)))
    elif names:
        listed.append(_listed(names, target, width, bytes_=_stored(big) * width))
    if rows and signature.row_calls:
        listed.append(Work("copy", width, calls=0.0, all_calls=float(rows * signature.row_calls)))
    listed += _scalar_work(kernel, signature, _stored(big), units, target)
    loads, stores = _streams(kernel, _stored(big))
    if rows:
        loads = tuple(read_again(loads, names, _stored(big) / rows * big.dtype.bytes, target))
    return VectorView(
        units, _stored(big) // units, loads, stores, tuple(listed), rows, deal=deal, serial=signature.serial
    )


def _scalar_work(kernel: Kernel, signature: Signature, elements: int, units: int, target: Target) -> list[Work]:
    """What scalar code does: per element, and on every core at the start (kernels of the second generation)."""
    cycles = elements * signature.scalar
    if not target.coupled:
        cycles += min(kernel.block_dim, units) * signature.setup
    return [Work("copy", 4, calls=0.0, scalar_cycles=float(cycles))] if cycles else []


def _written(kernel: Kernel, signature: Signature, target: Target) -> VectorView:
    """Fills: one pattern in UB, stored as often as needed.

    What a profile prints for a kernel that clears accumulators is its consumer's shape. One core never clears more than
    48 KB; where over 2 MB a core are shown 45 KB are cleared by each (published launches: cores = bytes / 43690).
    """
    result = kernel.outputs[0]
    amount = float(result.payload_bytes)
    computed = [_listed(signature.work, target, 4, bytes_=_stored(result) * 4)] if signature.work else []
    if kernel.op_type == "AtomicAddrClean":
        if kernel.block_dim == 1 and amount > 49152:
            amount = BLOCK_BYTES
        elif kernel.block_dim < target.vector_cores and amount > 2e6 * kernel.block_dim:
            amount = 45000.0 * kernel.block_dim
    units = max(int(amount) // SLOT_BYTES, 1)
    return VectorView(
        units,
        SLOT_BYTES // result.dtype.bytes,
        (),
        (Stream(0, amount),),
        (_listed(("dup",), target, 4), *computed, *_scalar_work(kernel, signature, 0, units, target)),
    )


def _run(part: TensorDesc, whole: TensorDesc) -> int:
    """Elements of ``part`` that lie together in ``whole``."""
    run = 1
    for own, full in zip(reversed(part.shape), reversed(whole.shape)):
        run *= own
        if own != full:
            break
    return max(run, 1)


def _parts(kernel: Kernel, signature: Signature, target: Target) -> VectorView:
    """Slices, splits, concatenations, tiles: contiguous runs by DMA; short ones one element or one block at a time.

    Where the DMA cannot pad, runs below 512 bytes off 32 bytes are picked by scalar code out of whole rows; of rows
    that fit a few blocks all columns are turned around by transposing instructions instead.
    """
    descs = _descs(kernel)
    whole = max(descs, key=_stored)
    parts = [desc for desc in descs if desc is not whole and _stored(desc) > 1] or [whole]
    run, size = min(_run(part, whole) for part in parts), whole.dtype.bytes
    elements = sum(_stored(part) for part in parts)
    length = run * size
    row = whole.shape[-1] * size if whole.shape else size
    spreads = kernel.op_type == "StridedSliceGrad"
    short = length < SLOT_BYTES and (row if spreads else length) % BLOCK_BYTES != 0
    listed: list[Work] = []
    taken = whole if short else min(parts[0], whole, key=_stored)
    sides = []
    for port_descs in (kernel.inputs, kernel.outputs):
        amounts = [(port, desc) for port, desc in enumerate(port_descs) if desc is not None and _stored(desc) > 1]
        sides.append([(port, desc.payload_bytes) for port, desc in amounts])
    if len(kernel.inputs) == 1 and not short:
        sides[0] = [(port, min(size_, sum(stored for _, stored in sides[1]))) for port, size_ in sides[0]]
    pieces = elements / run
    if short and row <= 2 * BLOCK_BYTES and spreads:
        listed.append(Work("transpose", size, bytes=_stored(whole) * size, cycles_per_repeat=8))
    elif short and row <= 2 * BLOCK_BYTES and len(parts) == 1:
        listed.append(Work("transpose", size, bytes=_stored(whole) * size, cycles_per_repeat=16))
        listed.append(Work("copy", size, repeats=elements / run, calls=0.0, cycles_per_repeat=1.2))
    elif short and kernel.op_type == "Concat":
        # Each operand is put into the columns of all rows by a pass of its own.
        passes = 2.7 * len(parts)
        listed.append(Work("transpose", size, bytes=_stored(whole) * size, cycles_per_repeat=passes))
    elif kernel.op_type == "Tile":
        listed += _repeated(parts[0], whole, run, target)
    elif short and spreads:
        listed.append(Work("copy", size, bytes=_stored(whole) * size, cycles_per_repeat=6))
        listed.append(Work("copy", size, repeats=elements / run, calls=0.0, cycles_per_repeat=36))
    elif short and not target.value("alignment.padded_copy"):
        cycles = elements * target.value("alignment.scalar_cycles_per_element")
        listed.append(Work("copy", size, calls=0.0, scalar_cycles=cycles))
    pitch = length if not short else 0
    moved = [tuple(Stream(port, amount, 0.0 if short else pieces, pitch) for port, amount in side) for side in sides]
    units = max(ceil_div(taken.payload_bytes, SLOT_BYTES), 1)
    deal = 1
    first = whole.shape[0] if whole.shape else 1
    if kernel.op_type == "Tile" and 2 * first >= target.vector_cores:
        # Whole samples, if there are enough of them.
        deal = ceil_div(units, first)
        units = deal * first
    return VectorView(units, max(_stored(taken) // units, 1), moved[0], moved[1], tuple(listed), deal=deal)


def _repeated(part: TensorDesc, whole: TensorDesc, run: int, target: Target) -> list[Work]:
    """Copies of a row side by side; where they end off 32 bytes the next one is put there by scalar code."""
    size = part.dtype.bytes
    listed = [Work("copy", size, bytes=_stored(whole) * size, cycles_per_repeat=9)] if run > 1 else []
    pieces = _stored(part) / run
    if pieces > 1 and _stored(whole) / pieces * size % BLOCK_BYTES:
        listed.append(Work("copy", size, calls=0.0, scalar_cycles=pieces * target.value("vector.pick_cycles")))
    return listed


def _picked(kernel: Kernel, signature: Signature, target: Target) -> VectorView:
    """Rows by index: scalar code reads an index and starts one copy each."""
    table, result = kernel.inputs[0], kernel.outputs[0]
    assert table is not None
    places = [desc for desc in kernel.inputs[1:] if desc is not None and not desc.dtype.is_float]
    indices = max(places, key=_stored, default=table)
    count = max(_stored(indices), 1)
    each = target.value("vector.pick_cycles")
    if result.payload_bytes < BLOCK_BYTES * count and not target.coupled:
        # Single elements are read by scalar code, which waits for each.
        each += target.path("GM->UB").latency_cycles
    picking = Work("copy", 4, calls=0.0, scalar_cycles=float(count * each))
    loads = [Stream(kernel.inputs.index(indices), indices.payload_bytes)]
    if indices is not table:
        small = table.payload_bytes <= target.value("memory.l2_bytes")
        amount = min(table.payload_bytes, result.payload_bytes) if small else result.payload_bytes
        loads.append(Stream(0, amount, count, max(result.payload_bytes // count, 1)))
    return VectorView(
        count, max(_stored(result) // count, 1), tuple(loads), (Stream(0, result.payload_bytes),), (picking,)
    )


def _scattered(kernel: Kernel, signature: Signature, target: Target) -> VectorView:
    """Rows added into a table by index: each is read, added and written back alone."""
    data, indices = kernel.inputs[:2]
    assert data is not None and indices is not None
    count = max(_stored(indices), 1)
    picking = Work("copy", 4, calls=0.0, scalar_cycles=float(4 * count * target.value("vector.pick_cycles")))
    loads = (Stream(0, data.payload_bytes, count, data.payload_bytes // count), Stream(1, indices.payload_bytes))
    stores = (Stream(0, data.payload_bytes, count, data.payload_bytes // count),)
    return VectorView(count, max(_stored(data) // count, 1), loads, stores, (picking,))


def _windows(kernel: Kernel, signature: Signature, target: Target) -> VectorView:
    """Pooling in training: the list runs for every tap of every row of results, eight pixels a repeat."""
    small, masks = _window_planes(kernel)
    taps = masks.shape[2] if masks is not None else 1
    width = max(small.dtype.bytes, 2)
    planes = prod(small.shape[:2])
    chunks = ceil(small.shape[3] * small.shape[4] * width / REPEAT_BYTES)
    repeats = planes * taps * small.shape[2] * chunks
    loads, stores = _streams(kernel, max(_stored(desc) for desc in _descs(kernel)))
    units = planes * small.shape[2]
    return VectorView(
        units, _stored(small) // units, loads, stores, (_listed(signature.work, target, width, repeats=repeats),)
    )


def _window_planes(kernel: Kernel) -> tuple[TensorDesc, TensorDesc | None]:
    """(the pooled planes, the masks of the window's taps if there are any)."""
    descs = [desc for desc in _descs(kernel) if len(desc.shape) == 5]
    masks = next((desc for desc in descs if desc.dtype.bytes == 2 and not desc.dtype.is_float), None)
    return min((desc for desc in descs if desc is not masks), key=_stored), masks


def _elements(kernel: Kernel, signature: Signature, target: Target) -> VectorView:
    """Transposes that leave no run: whole 32-byte blocks are turned around, shorter runs move one element at a time."""
    x, y = kernel.inputs[0], kernel.outputs[0]
    assert x is not None
    size = y.dtype.bytes
    elements = _stored(y)
    order = kernel.attrs.get("perm")
    stays = order is None or order[-1] == len(order) - 1
    run = y.shape[-1] if stays and y.shape and x.shape and y.shape[-1] == x.shape[-1] else 1
    blocks = ceil(run * size / BLOCK_BYTES)
    listed: list[Work] = []
    if run > 1:
        listed.append(Work("transpose", size, bytes=elements * size))
    elif target.value("alignment.padded_copy"):
        each = target.value("vector.transpose_repeat_cycles")
        listed.append(Work("transpose", size, bytes=elements * size, cycles_per_repeat=each))
    else:
        cycles = elements * target.value("vector.move_element_cycles")
        listed.append(Work("copy", size, calls=0.0, scalar_cycles=cycles))
    units = max(ceil_div(elements * size, SLOT_BYTES), 1)
    listed += _scalar_work(kernel, signature, 0, units, target)
    loads = (Stream(0, x.payload_bytes, elements / run if blocks > 1 else 0.0, run * size),)
    return VectorView(units, max(elements // units, 1), loads, (Stream(0, y.payload_bytes),), tuple(listed))
