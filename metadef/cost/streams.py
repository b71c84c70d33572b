"""Instruction streams: a kernel's loops on one core, as the pipe engine executes them.

:func:`kernel_streams` turns kernel, target and the state of memory (what L2 holds, where operands lie, how many cores
share the bandwidth) into a :class:`CoreStream`; the rows themselves are written batch by batch when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from metadef.cost import engine
from metadef.cost.cube_view import CubeView, Piece, is_cube_kernel, piece_of
from metadef.cost.vector_view import Stream, VectorView, Work
from metadef.error import ContractError
from metadef.format import FRACTAL_ROWS, Format, ceil_div
from metadef.kernel import Buffer, CubeTile, Kernel, VectorTile, WinogradTile
from metadef.target import Target

BATCH_ROWS = 1 << 15
_REST_EVENTS = 10
_L0C_BYTES = 4
_UB_PARTS = 6
"""Accumulators that UB takes at a time, as a part of UB: with a copy in work and the rounded results, each twice."""


@dataclass(frozen=True)
class MemoryState:
    """What surrounds a kernel. Tuples follow the kernel's inputs and outputs; missing entries count as 0.

    ``cold`` is the share of an input that is not in L2 when the task starts; ``write_back`` the bytes that leave L2 for
    memory per byte stored; residues are addresses modulo 512.
    """

    cold: tuple[float, ...] = ()
    write_back: float = 0.0
    in_residues: tuple[int, ...] = ()
    out_residues: tuple[int, ...] = ()

    def cold_of(self, port: int) -> float:
        return self.cold[port] if port < len(self.cold) else 0.0

    def in_residue(self, port: int) -> int:
        return self.in_residues[port] if port < len(self.in_residues) else 0

    def out_residue(self, port: int) -> int:
        return self.out_residues[port] if port < len(self.out_residues) else 0


DIRECT = "direct"
"""Attribute of a stage of a mixed kernel whose operands do not all pass through memory (a :class:`Direct`)."""


@dataclass(frozen=True)
class Direct:
    """What stays in the core: ``inputs`` are ports that another stage left there, ``result`` what this one leaves."""

    inputs: frozenset[int] = frozenset()
    result: bool = False


_THROUGH_MEMORY = Direct()

WARM = MemoryState()
"""Everything in L2, everything aligned."""


@dataclass(frozen=True)
class CoreStream:
    """The instructions of one core, not yet written. ``events`` is how many flags they use."""

    events: int
    plan: engine.CubePlan | None
    moves: np.ndarray
    loads: int
    work: np.ndarray
    units: int
    tile_units: int
    slots: int
    call_cycles: int

    @property
    def rounds(self) -> int:
        """Tiles the core computes one after another."""
        if self.plan is None:
            return ceil_div(self.units, max(self.tile_units, 1))
        plan = self.plan
        return plan.images * ceil_div(plan.m, plan.m0) * ceil_div(plan.n, plan.n0) * ceil_div(plan.k, plan.k1)

    def batches(self, rows: int = BATCH_ROWS) -> Iterator[np.ndarray]:
        """Instructions in program order, (n, N_FIELDS) int64 at a time; the array is reused between batches."""
        at, pending = np.zeros(8, np.int64), np.zeros(self.events, np.int64)
        table = np.empty((max(rows, self._least_rows()), engine.N_FIELDS), np.int64)
        while True:
            if self.plan is not None:
                count = engine.emit_cube(self.plan, self.moves, at, pending, table)
            else:
                count = engine.emit_vector(
                    self.units, self.tile_units, self.slots, self.moves, self.loads, self.work, self.call_cycles,
                    at, pending, table,
                )  # fmt: skip
            if count == 0:
                return
            yield table[:count]

    def instructions(self) -> np.ndarray:
        """All instructions at once, as a structured array with the names of ``engine.FIELDS``."""
        parts = [batch.copy() for batch in self.batches()]
        whole = np.concatenate(parts) if parts else np.empty((0, engine.N_FIELDS), np.int64)
        return whole.view([(name, np.int64) for name in engine.FIELDS]).reshape(-1)

    def _least_rows(self) -> int:
        if self.plan is None:
            return self.moves.shape[0] + self.work.shape[0] + self.events + 8
        plan = self.plan
        parts = ceil_div(plan.m0 * plan.n0 * _L0C_BYTES, plan.part_bytes)
        return ceil_div(plan.k, plan.k1) * (2 + 3 * ceil_div(plan.k1, plan.k0)) + 3 * parts + self.events + 16


def kernel_streams(
    kernel: Kernel, target: Target, memory: MemoryState = WARM, *, smallest: bool = False
) -> CoreStream | None:
    """The stream of the fullest core (or of the emptiest; None if all cores have the same share).

    Raises:
        ContractError: a cube kernel without a tile. TargetError: the target lacks a path or an instruction.
    """
    if isinstance(kernel.tile, CubeTile):
        view = CubeView.of(kernel, target)
        piece, least = piece_of(view, kernel.tile), piece_of(view, kernel.tile, smallest=True)
        if smallest and least == piece:
            return None
        return _cube_stream(kernel, view, kernel.tile, least if smallest else piece, target, memory, smallest)
    if is_cube_kernel(kernel):
        raise ContractError(f"{kernel.op_type} reached costing without a tile", expected="a CubeTile", got="none")
    vector = VectorView.of(kernel, target)
    tile = kernel.tile if isinstance(kernel.tile, VectorTile) else vector.as_tile(target)
    most, fewest = vector.share(kernel.block_dim), vector.share(kernel.block_dim, smallest=True)
    if vector.serial and most <= vector.deal:
        tile = replace(tile, double_buffer=False)
    if smallest and most == fewest:
        return None
    return _vector_stream(kernel, vector, tile, max(fewest, 1) if smallest else most, target, memory)


def heavy_share(kernel: Kernel, target: Target) -> float:
    """The share of pieces that have the full size; the others are taken to be as small as the smallest."""
    if not isinstance(kernel.tile, CubeTile):
        view = VectorView.of(kernel, target)
        units = ceil(view.units / view.deal)
        remainder = units % kernel.block_dim
        return remainder / kernel.block_dim if units >= kernel.block_dim else units / kernel.block_dim
    cube, tile = CubeView.of(kernel, target), kernel.tile
    piece = piece_of(cube, tile)
    share = 1.0
    sizes = ((cube.batch, piece.batch, tile.split_batch), (cube.m, piece.m, tile.split_m))
    for whole, part, split in (*sizes, (cube.n, piece.n, tile.split_n), (cube.k, piece.k, tile.split_k)):
        share *= min(whole // part, split) / split
    return share


def even_pieces(kernel: Kernel, target: Target) -> float:
    """How many pieces as large as the fullest one make up the whole work; no more than ``block_dim``."""
    if not isinstance(kernel.tile, CubeTile):
        view = VectorView.of(kernel, target)
        return min(view.units / max(view.share(kernel.block_dim), 1), kernel.block_dim)
    cube, tile = CubeView.of(kernel, target), kernel.tile
    piece = piece_of(cube, tile)
    count = min(cube.batch / piece.batch, tile.split_batch)
    for whole, part, unit, split in (
        (cube.m, piece.m, FRACTAL_ROWS, tile.split_m), (cube.n, piece.n, FRACTAL_ROWS, tile.split_n),
        (cube.k, piece.k, cube.fractal_k, tile.split_k),
    ):  # fmt: skip
        count *= min(ceil_div(whole, unit) * unit / part, split)
    return count


def arithmetic(kernel: Kernel, target: Target) -> tuple[int, int]:
    """(multiply-accumulates of the cube, floating-point operations) of a kernel."""
    if isinstance(kernel.tile, WinogradTile):
        return kernel.tile.macs, 2 * kernel.tile.macs
    if isinstance(kernel.tile, CubeTile):
        macs = CubeView.of(kernel, target).macs
        return macs, 2 * macs
    return 0, VectorView.of(kernel, target).flops


def transfer(
    target: Target,
    path: str,
    *,
    cold: float = 0.0,
    to_memory: float = 0.0,
    residue: int = 0,
    pitch: int = 0,
    unit_bytes: float = 0.0,
    unit_rows: float = 0.0,
    once: bool = False,
    readers: float = 1.0,
) -> np.ndarray:
    """A row of ``engine.TRANSFER``: a path's constants, with ``cold`` of it missing L2 on the way in and ``to_memory``
    bytes moved between L2 and memory per byte.

    ``readers`` is how many cores read the same lines at once: of their requests to a line all but one wait.
    """
    way = target.path(path)
    odd = target.value("alignment.odd_request_cycles_l1" if "L1" in path else "alignment.odd_request_cycles_ub")
    warm_odd = target.value("alignment.odd_request_cycles_l2")
    row = np.zeros(len(engine.TRANSFER))
    row[:] = (
        engine.PATHS.index(path), way.issue_cycles, way.burst_cycles, way.latency_cycles, way.cold_latency_cycles,
        way.bytes_per_cycle, way.cold_bytes_per_cycle, cold, to_memory, residue, pitch,
        warm_odd + (odd - warm_odd) * cold, target.value("alignment.odd_request_bytes"),
        1 / target.value("alignment.off_line_rate"), unit_bytes, unit_rows, once,
        _port_share(target, path, readers) * _line_share(target, path, pitch, unit_bytes / max(unit_rows, 1.0)),
        target.value("alignment.line_bytes"),
    )  # fmt: skip
    return row


def _port_share(target: Target, path: str, readers: float) -> float:
    """What a byte takes of L2's port: one, more if several cores ask for its line, less for writes, none on chip."""
    if "GM" not in path:
        return 0.0
    if path.split()[0].endswith("->GM"):
        return float(target.value("memory.l2_write_weight"))
    worst = target.value(f"alignment.same_line_{'l1' if 'L1' in path else 'ub'}")
    return 1 + (worst - 1) * (1 - 1 / readers)


def _line_share(target: Target, path: str, pitch: int, row_bytes: float) -> float:
    """How much of L2 a byte of a strided load takes: the line that a short row lies in passes whole."""
    line = target.value("memory.l2_line_bytes")
    if not path.startswith(("GM->UB", "GM->L1 ND2NZ")) or row_bytes >= line or pitch <= row_bytes or row_bytes <= 0:
        return 1.0
    return float(min(line, pitch) / row_bytes)


# -- cube --------------------------------------------------------------------------------------------------------------


def _modes(view: CubeView, tile: CubeTile, target: Target) -> tuple[bool, int, int]:
    """(columns outermost, how A stays in L1, how B does) of ``tile.resident``.

    With nothing resident the outer loop walks the larger operand, so that the smaller one is read again, from L2.
    """
    none, panel, whole, shared = (
        engine.RESIDENT_NONE,
        engine.RESIDENT_PANEL,
        engine.RESIDENT_ALL,
        engine.RESIDENT_SHARED,
    )
    if tile.resident == "a":
        return True, whole, panel if view.panel_fits(target, tile) else none
    if tile.resident == "b":
        return False, panel if view.panel_fits(target, tile) else none, shared if view.shared_b else whole
    return {
        "": (view.n > view.m, none, none),
        "a_panel": (False, panel, none),
        "b_panel": (True, none, panel),
    }[tile.resident]


def _starts(view: CubeView, piece: Piece, tile: CubeTile, last: bool) -> int:
    """First row of the piece that is simulated: one from the middle, or the last."""
    pieces = ceil_div(ceil_div(view.m, FRACTAL_ROWS) * FRACTAL_ROWS, piece.m)
    if last:
        return max(view.m - piece.m, 0) // FRACTAL_ROWS * FRACTAL_ROWS
    return min(tile.split_m // 2, pieces - 1) // 2 * 2 * piece.m if pieces > 2 else 0


def _a_loaded(view: CubeView, piece: Piece, tile: CubeTile, start: int, mode: int) -> float:
    """Bytes of A that the core loads."""
    stop = min(start + piece.m, view.m)
    if mode == engine.RESIDENT_ALL:
        each = float(view.a_bytes(start, max(stop, start + 1)))
    else:
        begins = np.arange(start, max(stop, start + 1), tile.m0)
        each = float(np.sum(view.a_bytes(begins, np.minimum(begins + tile.m0, max(stop, start + 1)))))
    times = 1 if mode else ceil_div(piece.n, tile.n0)
    return each * view.a_share * piece.k / view.k * times * piece.batch


def _cube_stream(
    kernel: Kernel, view: CubeView, tile: CubeTile, piece: Piece, target: Target, memory: MemoryState, last: bool
) -> CoreStream:
    by_columns, a_mode, b_mode = _modes(view, tile, target)
    start = _starts(view, piece, tile, last)
    blocks = ceil_div(piece.k, tile.k1)
    tm, tn = ceil_div(piece.m, tile.m0), ceil_div(piece.n, tile.n0)
    copies = 1 + tile.double_l1
    a_slots = {engine.RESIDENT_NONE: copies, engine.RESIDENT_PANEL: blocks}.get(a_mode, tm * blocks)
    b_slots = {engine.RESIDENT_NONE: copies, engine.RESIDENT_PANEL: blocks}.get(b_mode, tn * blocks)
    x, window = kernel.inputs[0], view.window
    assert x is not None
    a_rate, b_rate = view.l0_rates(target)
    slope, calls = _epilogue(view, target)
    shape = (
        (window.h, window.w, window.ow, window.stride_h, window.stride_w, window.extent_h, window.extent_w)
        if window
        else (0,) * 7
    )
    pads = (window.pad_top, window.pad_left) if window else (0, 0)
    plan = engine.CubePlan(
        piece.batch, piece.m, piece.n, piece.k, start, view.m, tile.m0, tile.n0, tile.k0, tile.k1,
        int(by_columns), a_mode, b_mode, a_slots, b_slots, 1 + tile.double_l0, 1 + tile.double_l0c,
        view.element_bytes, view.fractal_k, view.fractal_cycles(target),
        target.value("cube.streamed_overhead_cycles"), target.value("cube.isolated_overhead_cycles"),
        target.value("cube.accumulate_barrier_fractals"), _a_rows(kernel, view), _b_rows(kernel, view),
        view.a_channels, target.c0(view.dtype), view.k, *shape, *pads,
        float(a_rate), float(b_rate), int(view.has_bias),
        1 / target.path("L1->BT").bytes_per_cycle if target.has_fixpipe else 1 / target.value("vector.repeat_bytes"),
        int(target.has_fixpipe), _out_bytes(view, tile),
        0.0 if target.has_fixpipe else float(target.path("L0C->UB").bytes_per_cycle),
        slope, calls, target.value("vector.dependent_call_cycles"), sum(view.extra_bytes), view.b_share,
        window.spread if window else 1, view.a_share, view.made_cycles(target),
        target.buffer_bytes["UB"] // _UB_PARTS,
    )  # fmt: skip
    moves = _cube_moves(kernel, view, tile, piece, target, memory, start, (a_mode, b_mode))
    events = 2 * (a_slots + b_slots + plan.l0_slots + plan.out_slots) + _REST_EVENTS
    empty = np.zeros((0, len(engine.WORK)))
    return CoreStream(events, plan, moves, 0, empty, 0, 0, 0, plan.call_cycles)


def _out_bytes(view: CubeView, tile: CubeTile) -> int:
    """Bytes of a stored element; pieces of K add up in fp32."""
    return _L0C_BYTES if tile.split_k > 1 else view.out_bytes


def _epilogue(view: CubeView, target: Target) -> tuple[int, int]:
    """(vector cycles per 256-byte repeat of fp32, dependent calls a tile) where results pass the vector unit."""
    if target.has_fixpipe:
        return 0, 0
    # Results are rounded on their way from L0C; what is read beside them is widened first.
    names = list(view.epilogue) + ["add"] * view.has_bias
    names += ["cast"] * sum(size < 4 for size in view.extra_bytes)
    return sum(target.vector_instruction(name, 4)[1] for name in names), len(names)


def _a_rows(kernel: Kernel, view: CubeView) -> int:
    x = kernel.inputs[0]
    assert x is not None
    if view.window is not None or not x.is_plain:
        return engine.ROWS_BLOCKS
    return engine.ROWS_K if kernel.attrs.get("transpose_x1", kernel.attrs.get("adj_x1")) else engine.ROWS_M


def _b_rows(kernel: Kernel, view: CubeView) -> int:
    w = kernel.inputs[1]
    assert w is not None
    if w.format in (Format.FRACTAL_Z, Format.FRACTAL_Z_C04):
        return engine.ROWS_BLOCKS
    if w.format == Format.FRACTAL_NZ:
        return engine.ROWS_N_BLOCKS
    return engine.ROWS_N if kernel.attrs.get("transpose_x2", kernel.attrs.get("adj_x2")) else engine.ROWS_K


def _cube_moves(
    kernel: Kernel, view: CubeView, tile: CubeTile, piece: Piece, target: Target, memory: MemoryState, start: int,
    modes: tuple[int, int],
) -> np.ndarray:  # fmt: skip
    """Transfers of A, B, result, bias and epilogue operand."""
    a, b, result = kernel.inputs[0], kernel.inputs[1], kernel.outputs[0]
    assert a is not None and b is not None
    pieces = kernel.block_dim
    a_total = _a_loaded(view, piece, tile, start, modes[0]) * pieces
    b_times = {engine.RESIDENT_NONE: piece.batch * ceil_div(piece.m, tile.m0), engine.RESIDENT_SHARED: 1}
    b_total = view.b_share * piece.k * piece.n * view.element_bytes * b_times.get(modes[1], piece.batch) * pieces
    inner = a if _modes(view, tile, target)[0] else b
    lost = max(0.0, 1 - target.value("memory.l2_bytes") / max(inner.payload_bytes, 1))
    a_again, b_again = (lost if inner is operand else 0.0 for operand in (a, b))
    a_cold = _missing(memory, 0, a.payload_bytes / max(a_total, 1), a_again)
    b_cold = _missing(memory, 1, b.payload_bytes / max(b_total, 1), b_again)
    # A line on its way from memory is waited for by every core that asks for it, though it moves once.
    a_wait = max(a_cold, _missing(memory, 0, 1 if modes[0] else 1 / ceil_div(piece.n, tile.n0), a_again))
    b_wait = max(b_cold, _missing(memory, 1, 1 if modes[1] else 1 / ceil_div(piece.m, tile.m0), b_again))
    window = view.window
    a_pitch = _pitch(a) if window is None else window.h * window.w * (a.c0 or 1) * a.dtype.bytes
    direct = kernel.attrs.get(DIRECT, _THROUGH_MEMORY)
    a_path, b_path = (
        "UB->L1" if port in direct.inputs else path for port, path in enumerate((view.a_path, view.b_path))
    )
    out_path = ("L0C->GM NZ2ND" if view.plain_out else "L0C->GM") if target.has_fixpipe else "UB->GM"
    out_path = "L0C->UB" if direct.result else out_path
    out_rows = engine.ROWS_M if view.plain_out else engine.ROWS_N_BLOCKS
    out_pitch = _pitch(result) if view.plain_out else view.m * (result.c0 or 1) * view.out_bytes
    extra = next((item.operand for item in kernel.fused if item.operand is not None), 0)
    # The fixpipe stores parts of lines, which are fetched first.
    stored = (
        0.0
        if direct.result
        else memory.write_back * (target.value("memory.fixpipe_line_moves") if target.has_fixpipe else 1)
    )
    out = transfer(
        target, out_path, to_memory=stored, residue=memory.out_residue(0), pitch=out_pitch, unit_rows=out_rows
    )
    if target.has_fixpipe:
        out[engine.T_COLD_RATE] = target.path(out_path).sustained_bytes_per_cycle
    bias_path = "GM->L1" if target.has_fixpipe else "GM->UB"
    extra_cold = memory.cold_of(extra) * _unique_share(kernel, extra)
    return np.stack([
        transfer(
            target, a_path, cold=a_wait, to_memory=a_cold, residue=memory.in_residue(0), pitch=a_pitch,
            readers=tile.split_n,
        ),
        transfer(
            target, b_path, cold=b_wait, to_memory=b_cold, residue=memory.in_residue(1), pitch=_pitch(b),
            readers=tile.split_m * (tile.split_batch if view.shared_b else 1),
        ),
        out,
        transfer(target, bias_path, residue=memory.in_residue(2)),
        transfer(
            target, "GM->UB", cold=extra_cold, to_memory=extra_cold, residue=memory.in_residue(extra), pitch=out_pitch
        ),
    ])  # fmt: skip


def _unique_share(kernel: Kernel, port: int) -> float:
    """Bytes of an epilogue's operand by those read: one laid over several products is in L2 after the first."""
    operand = kernel.inputs[port]
    assert operand is not None
    return min(1.0, operand.payload_bytes / max(kernel.outputs[0].elements * operand.dtype.bytes, 1))


def _missing(memory: MemoryState, port: int, first: float, again: float) -> float:
    """Share of an operand's loads that miss L2: the ``first`` touch as the task finds it, ``again`` of the others."""
    first = min(first, 1.0)
    return memory.cold_of(port) * first + again * (1 - first)


def _pitch(desc: Any) -> int:
    """Bytes between the rows of a plain matrix; blocked formats keep whole fractals (512 bytes)."""
    return desc.shape[-1] * desc.dtype.bytes if desc.is_plain and desc.shape else 512


# -- vector ------------------------------------------------------------------------------------------------------------


def _vector_stream(
    kernel: Kernel, view: VectorView, tile: VectorTile, units: int, target: Target, memory: MemoryState
) -> CoreStream:
    cores = min(kernel.block_dim, target.vector_cores)

    def move(path: str, item: Stream, cold: float, to_memory: float, residue: int) -> np.ndarray:
        share = 1 if item.once else view.units
        pieces = item.pieces / view.units
        return transfer(
            target, path, cold=cold, to_memory=to_memory, residue=residue, pitch=item.pitch,
            unit_bytes=item.total_bytes / share, unit_rows=pieces, once=item.once,
            readers=cores if item.once else 1,
        )  # fmt: skip

    # What another stage left in UB, or takes from there, moves with that stage.
    direct = kernel.attrs.get(DIRECT, _THROUGH_MEMORY)
    loads = [item for item in view.loads if item.port not in direct.inputs]
    stores = [] if direct.result else view.stores
    moves = []
    for item in loads:
        desc = kernel.inputs[item.port]
        assert desc is not None
        copies = kernel.block_dim if item.once else 1
        cold = memory.cold_of(item.port) * min(1.0, desc.payload_bytes / max(item.total_bytes * copies, 1))
        moves.append(move("GM->UB", item, cold, cold, memory.in_residue(item.port)))
    for item in stores:
        moves.append(move("UB->GM", item, 0.0, memory.write_back, memory.out_residue(item.port)))
    slots = 1 + tile.double_buffer
    table = np.stack(moves) if moves else np.zeros((0, len(engine.TRANSFER)))
    work = _work_table(view, tile, target, _conflict(kernel, tile, view, target))
    call = target.value("vector.dependent_call_cycles")
    return CoreStream(
        4 * slots, None, table, len(loads), work, units, min(tile.units_per_tile, units), slots, call
    )  # fmt: skip


def _work_table(view: VectorView, tile: VectorTile, target: Target, conflict: int) -> np.ndarray:
    rows = []
    for item in view.work:
        first, slope = target.vector_instruction(item.mnemonic, item.width)
        rows.append(_work_row(item, view.units, tile.units_per_tile, (first, slope), conflict))
        conflict = 0 if item.two_sources else conflict
    return np.asarray(rows, np.float64).reshape(-1, len(engine.WORK))


def _work_row(item: Work, units: int, length: int, cycles: tuple[int, int], conflict: int) -> tuple[float, ...]:
    """A row of ``engine.WORK`` for tiles of ``length`` units."""
    first, slope = cycles
    if item.scalar_cycles:
        return (engine.SCALAR, 0, 1, item.scalar_cycles / units, True, 0, 0, 0, 0, 0)
    each = item.cycles_per_repeat or slope
    lost = conflict if item.two_sources and slope == 1 else 0
    amount = item.bytes / units if item.bytes else item.repeats / units
    return (
        engine.VECTOR, first, each, amount, not item.bytes, item.calls,
        (item.tile_calls(length / units) - item.calls) / length, lost, item.odd_cycles / units, item.start_cycles,
    )  # fmt: skip


def _conflict(kernel: Kernel, tile: VectorTile, view: VectorView, target: Target) -> int:
    """Cycles a repeat that two sources lose because they meet in a bank group of UB.

    Eight blocks a repeat touch eight neighbouring groups of sixteen: only sources half a period apart never meet.
    Buffers that nobody placed lie one after another and meet.
    """
    if sum(not item.once for item in view.loads) < 2:
        return 0
    placed: list[Buffer] = [item for item in tile.buffers if item.memory == "UB"]
    groups = target.value("vector.bank_groups")
    if len(placed) >= 2:
        distance = (placed[1].offset_bytes - placed[0].offset_bytes) // 32 % groups
        if distance == groups // 2:
            return 0
    return int(ceil(target.value("vector.bank_conflict_cycles")))
