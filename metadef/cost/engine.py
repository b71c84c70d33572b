"""The pipe engine of one core: instructions in program order, in-order queues, flags, shared bandwidth.

An instruction starts when its pipe is free, the scalar unit has issued it into a queue with room, and all flags it
waits for are set. Cycles are integers. Each point in time carries the breakdown of how it came about: the cycles of
the chain of releases behind it, by resource. So the breakdown of a core's end adds up to its cycles, without a trace.

Instructions are rows of int64 (``FIELDS``); a transfer also passes the ports of L2 and memory, which serve this core's
share of bytes in the order of need, filling gaps. Everything compiled for timing lives in this one file, also what
writes the instructions tile by tile, because the compiler's cache is keyed by the file alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from metadef.jit import compiled

PIPES = ("MTE2", "MTE1", "CUBE", "FIXPIPE", "VECTOR", "MTE3", "SCALAR")
MTE2, MTE1, CUBE, FIXPIPE, VECTOR, MTE3, SCALAR = range(7)

PATHS = (
    "GM->UB", "UB->GM", "GM->L1", "GM->L1 ND2NZ", "L1->L0A", "L1->L0B", "L1->BT", "L0C->GM", "L0C->GM NZ2ND", "L0C->UB",
    "GM->L0A", "GM->L0B", "UB->UB", "L1->UB", "UB->L1", "L0C->L1", "L1->GM",
)  # fmt: skip
NO_PATH = len(PATHS)
PATH_L0A, PATH_L0B, PATH_BT, PATH_L0C_UB = (PATHS.index(name) for name in ("L1->L0A", "L1->L0B", "L1->BT", "L0C->UB"))

RESOURCES = (*PIPES, "FLAG", "L2", "HBM", "MISALIGNED", "BANK")
"""What a cycle may be attributed to: a pipe at work, the hand-over by a flag, a shared port, or a penalty."""
FLAG, L2, HBM, MISALIGNED, BANK = range(7, 12)
N_RESOURCES = len(RESOURCES)

FIELDS = (
    "pipe", "path", "bytes", "hold", "latency", "l2_bytes", "hbm_bytes", "misaligned", "conflict",
    "wait0", "wait1", "wait2", "set0", "set1", "set2", "buffer", "requests",
)  # fmt: skip
"""Columns of an instruction: cycles are those of the core, -1 is no flag. ``hold`` includes neither penalty.
``requests`` are those that a transfer sends to global memory."""
F_PIPE, F_PATH, F_BYTES, F_HOLD, F_LATENCY, F_L2, F_HBM, F_MISALIGNED, F_CONFLICT = range(9)
F_WAIT, F_SET, F_BUFFER, F_REQUESTS = 9, 12, 15, 16
N_FIELDS = len(FIELDS)

QUEUE_DEPTH = 32
FLAG_DEPTH = 4
GAPS = 32
ONE = 1 << 20

OK, FLAG_OVERFLOW, FLAG_UNDERFLOW = 0, 1, 2

_entry = compiled()
_no_wrappers: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_inner = compiled(**_no_wrappers)
"""What Python calls, and what only compiled code calls: without wrappers it compiles in half the time."""


class Core(NamedTuple):
    """State of a core between two batches of instructions. All arrays are int64; ``*_why`` hold breakdowns."""

    free: np.ndarray
    free_why: np.ndarray
    started: np.ndarray
    started_why: np.ndarray
    issued: np.ndarray
    scalar_why: np.ndarray
    flag: np.ndarray
    flag_why: np.ndarray
    flag_pipe: np.ndarray
    flag_count: np.ndarray
    path_free: np.ndarray
    port: np.ndarray
    gaps: np.ndarray
    rates: np.ndarray
    clock: np.ndarray
    end_why: np.ndarray
    busy: np.ndarray
    moved: np.ndarray
    sync: np.ndarray


def new_core(events: int, sustained: np.ndarray, shares: tuple[float, float], sync: tuple[int, int, int]) -> Core:
    """A core at cycle 0.

    ``sustained`` is bytes per cycle of each path, ``shares`` the core's share of L2 and of memory in bytes per cycle,
    ``sync`` the cycles of (a flag, a hand-over to another pipe, issuing one instruction).
    """
    zeros = np.zeros
    rates = np.rint(np.concatenate([np.asarray(shares), np.asarray(sustained)]) * ONE).astype(np.int64)
    return Core(
        free=zeros(7, np.int64),
        free_why=zeros((7, N_RESOURCES), np.int64),
        started=zeros((7, QUEUE_DEPTH), np.int64),
        started_why=zeros((7, QUEUE_DEPTH, N_RESOURCES), np.int64),
        issued=zeros(7, np.int64),
        scalar_why=zeros(N_RESOURCES, np.int64),
        flag=zeros((max(events, 1), FLAG_DEPTH), np.int64),
        flag_why=zeros((max(events, 1), FLAG_DEPTH, N_RESOURCES), np.int64),
        flag_pipe=zeros(max(events, 1), np.int64),
        flag_count=zeros((max(events, 1), 2), np.int64),
        path_free=zeros(NO_PATH + 1, np.int64),
        port=zeros((2, 4), np.int64),
        gaps=zeros((2, GAPS, 2), np.int64),
        rates=np.maximum(rates, 1),
        clock=zeros(2, np.int64),
        end_why=zeros(N_RESOURCES, np.int64),
        busy=zeros(7, np.int64),
        moved=zeros(NO_PATH + 4, np.int64),
        sync=np.asarray(sync, np.int64),
    )


@_inner
def _copy(to: np.ndarray, source: np.ndarray) -> None:
    for index in range(N_RESOURCES):
        to[index] = source[index]


@_inner
def _keep_gap(core: Core, which: int, at: int, low: int, high: int) -> None:
    """Put idle time of a port before the gap in slot ``at``; a gap that is used up, or the oldest, makes room."""
    gone = 0
    for slot in range(at - 1, -1, -1):
        if core.gaps[which, slot, 1] <= core.gaps[which, slot, 0]:
            gone = slot
            break
    for slot in range(gone, at - 1):
        core.gaps[which, slot, 0] = core.gaps[which, slot + 1, 0]
        core.gaps[which, slot, 1] = core.gaps[which, slot + 1, 1]
    if at > 0:
        core.gaps[which, at - 1, 0] = low
        core.gaps[which, at - 1, 1] = high


@_inner
def _serve(core: Core, which: int, start: int, amount: int) -> int:
    """When port ``which`` (0 L2, 1 memory) has moved ``amount`` bytes asked for at ``start``. Gaps lie in order."""
    need = amount * ONE + core.port[which, 1]
    work = need // core.rates[which]
    core.port[which, 1] = need - work * core.rates[which]
    last = start
    for slot in range(GAPS):
        if work == 0:
            return last
        low, high = core.gaps[which, slot, 0], core.gaps[which, slot, 1]
        if high > low and high > start:
            first = max(low, start)
            used = min(work, high - first)
            work -= used
            last = first + used
            core.gaps[which, slot, 0] = last
            if first > low:
                _keep_gap(core, which, slot, low, first)
    if work == 0:
        return last
    if start < core.port[which, 2]:  # the last one was asked for later: it makes room
        core.port[which, 0] += work
        core.port[which, 3] += work
        return core.port[which, 3]
    first = max(core.port[which, 0], start)
    if first > core.port[which, 0]:
        _keep_gap(core, which, GAPS, core.port[which, 0], first)
    core.port[which, 0], core.port[which, 2], core.port[which, 3] = first + work, start, first
    return first + work


@_inner
def _start(core: Core, row: np.ndarray, why: np.ndarray) -> int:
    """When an instruction may start, and why (``why`` is filled); -1 if it waits for a flag that nobody sets."""
    pipe = row[F_PIPE]
    start = core.free[pipe]
    _copy(why, core.free_why[pipe])
    issue = core.clock[0] + core.sync[2]
    core.scalar_why[SCALAR] += core.sync[2]
    slot = core.issued[pipe] % QUEUE_DEPTH
    if core.issued[pipe] >= QUEUE_DEPTH and core.started[pipe, slot] > issue:
        issue = core.started[pipe, slot]
        _copy(core.scalar_why, core.started_why[pipe, slot])
    core.clock[0] = issue
    if issue > start:
        start = issue
        _copy(why, core.scalar_why)
    for field in range(F_WAIT, F_WAIT + 3):
        event = row[field]
        if event < 0:
            continue
        head = core.flag_count[event, 0]
        if head >= core.flag_count[event, 1]:
            return -1
        core.flag_count[event, 0] = head + 1
        extra = core.sync[1] if core.flag_pipe[event] != pipe else 0
        seen = core.flag[event, head % FLAG_DEPTH] + extra
        if seen > start:
            start = seen
            _copy(why, core.flag_why[event, head % FLAG_DEPTH])
            why[FLAG] += extra
    return start


@_inner
def _arrival(core: Core, row: np.ndarray, start: int) -> tuple[int, int]:
    """When the shared resources of a transfer have moved its bytes, and which of them was last (0: no transfer)."""
    path, limiter = row[F_PATH], row[F_PIPE]
    if path >= NO_PATH or row[F_BYTES] <= 0:
        return 0, limiter
    begin = max(core.path_free[path], start)
    limit = begin + (row[F_BYTES] * ONE + core.rates[2 + path] - 1) // core.rates[2 + path]
    core.path_free[path] = limit
    for which in range(2):
        amount = row[F_L2 + which]
        if amount > 0:
            served = _serve(core, which, start, amount)
            if served > limit:
                limit, limiter = served, L2 + which
    return limit, limiter


@_inner
def _signal(core: Core, row: np.ndarray, end: int, why: np.ndarray) -> bool:
    """Set the flags of an instruction whose pipe is free at ``end``; False if one is set too often.

    The cube's accumulator is free when the fixpipe has read it; every other flag waits until the bytes have arrived.
    """
    pipe = row[F_PIPE]
    latency = 0 if pipe == FIXPIPE else row[F_LATENCY]
    for field in range(F_SET, F_SET + 3):
        event = row[field]
        if event >= 0:
            tail = core.flag_count[event, 1]
            if tail - core.flag_count[event, 0] >= FLAG_DEPTH:
                return False
            core.flag[event, tail % FLAG_DEPTH] = end + latency
            _copy(core.flag_why[event, tail % FLAG_DEPTH], why)
            core.flag_why[event, tail % FLAG_DEPTH, pipe] += latency
            core.flag_pipe[event] = pipe
            core.flag_count[event, 1] = tail + 1
    return True


@_entry
def execute(core: Core, rows: np.ndarray, count: int, intervals: np.ndarray) -> int:
    """Run ``count`` instructions. ``intervals`` (n, 2) receives start and end of each, if it has room (n may be 0).

    Returns OK, or what is wrong with the flags.
    """
    why = np.zeros(N_RESOURCES, np.int64)
    for index in range(count):
        row = rows[index]
        pipe, path = row[F_PIPE], row[F_PATH]
        start = _start(core, row, why)
        if start < 0:
            return FLAG_UNDERFLOW
        slot = core.issued[pipe] % QUEUE_DEPTH
        core.started[pipe, slot] = start
        _copy(core.started_why[pipe, slot], why)
        core.issued[pipe] += 1
        flags = 0
        for field in range(F_WAIT, F_SET + 3):
            flags += row[field] >= 0
        flags *= core.sync[0]
        latency = row[F_LATENCY]
        plain = start + row[F_HOLD] + flags + row[F_CONFLICT]
        done = plain + row[F_MISALIGNED] + latency
        limit, limiter = _arrival(core, row, start)
        aligned = max(plain + latency, limit)
        done = max(done, limit)
        end = done - latency
        why[pipe] += row[F_HOLD]
        why[FLAG] += flags
        why[BANK] += row[F_CONFLICT]
        why[limiter] += aligned - latency - plain
        why[MISALIGNED] += done - aligned
        core.free[pipe] = end
        _copy(core.free_why[pipe], why)
        core.busy[pipe] += end - start
        core.moved[path] += row[F_BYTES]
        core.moved[NO_PATH + 1] += row[F_L2]
        core.moved[NO_PATH + 2] += row[F_HBM]
        core.moved[NO_PATH + 3] += row[F_REQUESTS]
        if index < intervals.shape[0]:
            intervals[index, 0], intervals[index, 1] = start, end
        if not _signal(core, row, end, why):
            return FLAG_OVERFLOW
        if done > core.clock[1]:
            core.clock[1] = done
            _copy(core.end_why, why)
            core.end_why[pipe] += latency
    return OK


# -- what writes the instructions ------------------------------------------------------------------------------------

TRANSFER = (
    "path", "issue", "burst", "latency", "cold_latency", "rate", "cold_rate", "cold_share", "memory_share",
    "residue", "pitch", "odd_request_cycles", "odd_request_bytes", "line_limit", "unit_bytes", "unit_rows", "once",
    "same_line", "line_bytes",
)  # fmt: skip
"""Columns of a transfer (float64): its path's constants, how much of it misses L2 and how it lies in memory."""
(
    T_PATH, T_ISSUE, T_BURST, T_LATENCY, T_COLD_LATENCY, T_RATE, T_COLD_RATE, T_COLD, T_MEMORY,
    T_RESIDUE, T_PITCH, T_ODD_CYCLES, T_ODD_BYTES, T_LINE_LIMIT, T_UNIT_BYTES, T_UNIT_ROWS, T_ONCE, T_SAME_LINE,
    T_LINE_BYTES,
) = range(19)  # fmt: skip

WORK = ("pipe", "first", "slope", "amount", "by_unit", "calls", "unit_calls", "conflict", "unit_odd", "start")
"""Columns of an instruction list (float64): ``amount`` is bytes a unit, or repeats a unit if ``by_unit``;
``conflict`` is cycles a repeat lost to banks, ``unit_odd`` cycles a unit lost to rows off 32 bytes, ``start`` cycles a
tile before the first repeat is done."""
W_PIPE, W_FIRST, W_SLOPE, W_AMOUNT, W_BY_UNIT, W_CALLS, W_UNIT_CALLS, W_CONFLICT, W_ODD, W_START = range(10)

ND_ROW = 256
"""Elements of a row that the fixpipe writes as one burst when it turns fractals into rows."""
REPEAT_BYTES = 256
BLOCK_BYTES = 32
FRACTAL = 16


class CubePlan(NamedTuple):
    """The loops of a cube kernel on one core; sizes in elements. See ``metadef.cost.streams`` for how it is filled."""

    images: int
    m: int
    n: int
    k: int
    m_start: int
    m_limit: int
    m0: int
    n0: int
    k0: int
    k1: int
    by_columns: int
    a_mode: int
    b_mode: int
    a_slots: int
    b_slots: int
    l0_slots: int
    out_slots: int
    size: int
    fractal_k: int
    fractal_cycles: int
    streamed: int
    isolated: int
    barrier: int
    a_rows_by: int
    b_rows_by: int
    channels: int
    c0: int
    k_total: int
    h: int
    w: int
    ow: int
    stride_h: int
    stride_w: int
    extent_h: int
    extent_w: int
    pad_top: int
    pad_left: int
    a_rate: float
    b_rate: float
    has_bias: int
    bias_cycles_per_byte: float
    fixpipe: int
    out_bytes: int
    to_ub_rate: float
    epilogue_slope: int
    epilogue_calls: int
    call_cycles: int
    extra_bytes: int
    b_share: float
    spread: int
    a_share: float
    insert_cycles: float
    part_bytes: int


RESIDENT_NONE, RESIDENT_PANEL, RESIDENT_ALL, RESIDENT_SHARED = 0, 1, 2, 3
ROWS_ONE, ROWS_M, ROWS_K, ROWS_BLOCKS, ROWS_N, ROWS_N_BLOCKS = range(6)
A_OPERAND, B_OPERAND, OUT_OPERAND, BIAS_OPERAND, EXTRA_OPERAND = range(5)
TILE_AT, A_AT, B_AT, STEP_AT, OUT_AT, PART_AT = range(6)


@_inner
def _row(rows: np.ndarray, index: int, pipe: int, path: int) -> np.ndarray:
    """An empty instruction."""
    row = rows[index]
    for field in range(N_FIELDS):
        row[field] = -1 if F_WAIT <= field < F_SET + 3 else 0
    row[F_PIPE], row[F_PATH] = pipe, path
    return row


@_inner
def _wait(row: np.ndarray, place: int, event: int, pending: np.ndarray) -> None:
    """Wait for a flag if one is set and not yet waited for."""
    if pending[event] > 0:
        pending[event] -= 1
        row[F_WAIT + place] = event


@_inner
def _set(row: np.ndarray, place: int, event: int, pending: np.ndarray) -> None:
    pending[event] += 1
    row[F_SET + place] = event


@_inner
def _move(row: np.ndarray, how: np.ndarray, amount: float, pieces: float) -> None:
    """Fill in a transfer of ``amount`` bytes in ``pieces`` rows: what it holds, and what misalignment adds.

    A row that starts off 32 bytes moves as 2 ceil(B / 128) requests; one that starts off a line touches one line more
    (sources: the request formula fitted to published copies; lines are what memory serves).
    """
    line = how[T_LINE_BYTES]
    amount, pieces = np.ceil(amount), max(np.ceil(pieces), 1.0)
    if amount <= 0:
        return
    cold = amount * how[T_COLD]
    rate = (amount - cold) / how[T_RATE] + cold / how[T_COLD_RATE]
    fixed = how[T_ISSUE] + (pieces - 1) * how[T_BURST]
    hold = np.ceil(max(fixed, rate))
    row[F_BYTES], row[F_HOLD] = int(amount), int(hold)
    row[F_LATENCY] = int(how[T_LATENCY] + (how[T_COLD_LATENCY] if cold > 0 else 0.0))
    length = amount / pieces
    odd = how[T_RESIDUE] % BLOCK_BYTES != 0 or (pieces > 1 and how[T_PITCH] % BLOCK_BYTES != 0)
    off_line = how[T_RESIDUE] % line != 0 or (pieces > 1 and how[T_PITCH] % line != 0)
    lines, requests = 1.0, pieces * np.ceil(length / line)
    if off_line:
        least = np.ceil(length / line)
        if pieces > 1 and how[T_PITCH] % line != 0:
            touched = (length - 1) / line + 1
        else:
            touched = np.ceil((how[T_RESIDUE] % line + length) / line)
        requests = pieces * max(touched, least)
        lines = min(max(touched / least, 1.0), how[T_LINE_LIMIT])
        if lines > 1.0:
            row[F_MISALIGNED] = int(max(np.ceil(max(fixed, rate * lines) - hold), 1.0))
    if odd:
        requests = pieces * 2 * np.ceil(length / how[T_ODD_BYTES])
        row[F_MISALIGNED] = max(row[F_MISALIGNED], int(np.ceil(requests * how[T_ODD_CYCLES] - hold)), 1)
    row[F_REQUESTS] = int(np.ceil(requests))
    row[F_L2] = int(amount * lines * how[T_SAME_LINE])
    row[F_HBM] = int(np.rint(amount * how[T_MEMORY] * lines))


@_inner
def _pixels(plan: CubePlan, start: int, stop: int) -> int:
    """Input pixels under output pixels start..stop-1 (rows of A if there is no window)."""
    if plan.w == 0 or stop <= start:
        return max(stop - start, 0)
    first, last = start // plan.ow, (stop - 1) // plan.ow
    top = max(first * plan.stride_h - plan.pad_top, 0)
    bottom = min(last * plan.stride_h - plan.pad_top + plan.extent_h, plan.h)
    width = plan.w
    if first == last:
        left = max((start - first * plan.ow) * plan.stride_w - plan.pad_left, 0)
        right = min((stop - 1 - last * plan.ow) * plan.stride_w - plan.pad_left + plan.extent_w, plan.w)
        width = max(right - left, 0)
    return max(bottom - top, 0) * width


@_inner
def _pieces(rows_by: int, m: int, n: int, k: int, block: int) -> int:
    """Rows of a strided load of an operand."""
    if rows_by == ROWS_M:
        return m
    if rows_by == ROWS_K:
        return k
    if rows_by == ROWS_N:
        return n
    if rows_by == ROWS_BLOCKS:
        return -(-k // block)
    if rows_by == ROWS_N_BLOCKS:
        return -(-n // block)
    return 1


@_entry
def emit_cube(plan: CubePlan, moves: np.ndarray, at: np.ndarray, pending: np.ndarray, rows: np.ndarray) -> int:
    """Write instructions of whole tiles into ``rows`` and say how many; ``at`` remembers the place between calls.

    ``moves`` holds a transfer per operand (A, B, result, bias, epilogue operand). Nothing is written once all is done.
    """
    tm, tn = -(-plan.m // plan.m0), -(-plan.n // plan.n0)
    total = plan.images * tm * tn
    blocks = -(-plan.k // plan.k1)
    room = blocks * (2 + 3 * -(-plan.k1 // plan.k0)) + 10 + 3 * -(-plan.m0 * plan.n0 * 4 // plan.part_bytes)
    count = 0
    while at[TILE_AT] < total and count + room <= rows.shape[0]:
        tile = at[TILE_AT]
        image, inner = tile // (tm * tn), tile % (tm * tn)
        mt, nt = (inner % tm, inner // tm) if plan.by_columns else (inner // tn, inner % tn)
        count = _tile_head(plan, moves, pending, rows, count, mt, nt, at[TILE_AT])
        for block in range(blocks):
            count = _load(plan, moves, at, pending, rows, count, A_OPERAND, image, mt, nt, block)
            count = _load(plan, moves, at, pending, rows, count, B_OPERAND, image, mt, nt, block)
            count = _steps(plan, at, pending, rows, count, image, mt, nt, block)
        count = _tile_tail(plan, moves, at, pending, rows, count, mt, nt)
        at[TILE_AT] += 1
    if at[TILE_AT] == total:
        count = _drain(pending, rows, count)
    return count


@_inner
def _drain(pending: np.ndarray, rows: np.ndarray, count: int) -> int:
    """Wait for what is still set, as a kernel must before it ends."""
    for event in range(pending.shape[0]):
        while pending[event] > 0 and count < rows.shape[0]:
            _wait(_row(rows, count, SCALAR, NO_PATH), 0, event, pending)
            count += 1
    return count


@_inner
def _events(plan: CubePlan) -> tuple[int, int, int, int]:
    """First event of (B's slots, L0, L0C, the rest); each slot has a ready and a free event."""
    b = 2 * plan.a_slots
    l0 = b + 2 * plan.b_slots
    out = l0 + 2 * plan.l0_slots
    return b, l0, out, out + 2 * plan.out_slots


@_inner
def _tile_head(
    plan: CubePlan, moves: np.ndarray, pending: np.ndarray, rows: np.ndarray, count: int, mt: int, nt: int, tile: int
) -> int:
    """Loads that a tile's end will need: bias of these columns, and the epilogue's operand."""
    rest = _events(plan)[3]
    columns = min(plan.n0, plan.n - nt * plan.n0)
    if plan.has_bias and (tile == 0 or (plan.n > plan.n0 and (not plan.by_columns or mt == 0))):
        row = _row(rows, count, MTE2, 0)
        row[F_PATH] = int(moves[BIAS_OPERAND, T_PATH])
        _move(row, moves[BIAS_OPERAND], columns * 4, 1)
        _set(row, 0, rest, pending)
        row = _row(rows, count + 1, MTE1 if plan.fixpipe else VECTOR, PATH_BT if plan.fixpipe else NO_PATH)
        _wait(row, 0, rest, pending)
        row[F_BYTES] = columns * 4 if plan.fixpipe else 0
        row[F_HOLD] = max(int(np.ceil(columns * 4 * plan.bias_cycles_per_byte)), 1)
        _set(row, 0, rest + 1, pending)
        count += 2
    if plan.extra_bytes:
        height = min(plan.m0, plan.m - mt * plan.m0)
        row = _row(rows, count, MTE2, 0)
        row[F_PATH] = int(moves[EXTRA_OPERAND, T_PATH])
        _wait(row, 0, rest + 4 + tile % 2, pending)
        pieces = -(-columns // FRACTAL)
        _move(row, moves[EXTRA_OPERAND], height * columns * plan.extra_bytes, pieces)
        _set(row, 0, rest + 2 + tile % 2, pending)
        count += 1
    return count


@_inner
def _slot(plan: CubePlan, at: np.ndarray, operand: int, mt: int, nt: int, block: int) -> int:
    """Where in L1 a block of an operand lies."""
    blocks = -(-plan.k // plan.k1)
    if operand == A_OPERAND:
        if plan.a_mode == RESIDENT_NONE:
            return (at[A_AT] - 1) % plan.a_slots
        return (mt * blocks + block) % plan.a_slots
    if plan.b_mode == RESIDENT_NONE:
        return (at[B_AT] - 1) % plan.b_slots
    return (nt * blocks + block) % plan.b_slots


@_inner
def _load(
    plan: CubePlan, moves: np.ndarray, at: np.ndarray, pending: np.ndarray, rows: np.ndarray, count: int,
    operand: int, image: int, mt: int, nt: int, block: int,
) -> int:  # fmt: skip
    """Load one block of K of A or B into L1, unless it is there."""
    mode = plan.a_mode if operand == A_OPERAND else plan.b_mode
    passed = nt if operand == A_OPERAND else mt
    if (mode != RESIDENT_NONE and passed > 0) or (mode == RESIDENT_SHARED and image > 0):
        return count
    at[A_AT if operand == A_OPERAND else B_AT] += 1
    slot = _slot(plan, at, operand, mt, nt, block)
    base = 0 if operand == A_OPERAND else _events(plan)[0]
    slots = plan.a_slots if operand == A_OPERAND else plan.b_slots
    row = _row(rows, count, MTE2, int(moves[operand, T_PATH]))
    row[F_BUFFER] = operand * 64 + slot
    _wait(row, 0, base + slots + slot, pending)
    depth = min(plan.k1, plan.k - block * plan.k1)
    if operand == A_OPERAND:
        start = plan.m_start + mt * plan.m0
        stop = max(min(start + min(plan.m0, plan.m - mt * plan.m0), plan.m_limit), start + 1)
        pixels = _pixels(plan, start, stop)
        if mode >= RESIDENT_ALL and mt > 0:
            pixels = _pixels(plan, plan.m_start, stop) - _pixels(plan, plan.m_start, start)
        amount = pixels * plan.channels * plan.size * (depth / plan.k_total) / plan.spread * plan.a_share
        inserted = pixels * plan.channels * (depth / plan.k_total) / plan.c0 * plan.insert_cycles
        pieces = _pieces(plan.a_rows_by, stop - start, 0, depth * plan.channels // plan.k_total, plan.c0)
    else:
        columns = min(plan.n0, plan.n - nt * plan.n0)
        amount = depth * columns * plan.size * plan.b_share
        inserted = 0.0
        pieces = _pieces(plan.b_rows_by, 0, columns, depth, plan.c0)
    _move(row, moves[operand], amount, pieces)
    row[F_HOLD] += int(inserted)
    _set(row, 0, base + slot, pending)
    return count + 1


@_inner
def _steps(
    plan: CubePlan, at: np.ndarray, pending: np.ndarray, rows: np.ndarray, count: int, image: int, mt: int, nt: int,
    block: int,
) -> int:  # fmt: skip
    """L1 to L0 and products of one block of K."""
    b_base, l0, out, rest = _events(plan)
    a_slot, b_slot = _slot(plan, at, A_OPERAND, mt, nt, block), _slot(plan, at, B_OPERAND, mt, nt, block)
    out_slot = at[OUT_AT] % plan.out_slots
    m_parts = -(-min(plan.m0, plan.m - mt * plan.m0) // FRACTAL)
    n_parts = -(-min(plan.n0, plan.n - nt * plan.n0) // FRACTAL)
    a_last = plan.a_mode == RESIDENT_NONE or nt == -(-plan.n // plan.n0) - 1
    b_last = plan.b_mode == RESIDENT_NONE or mt == -(-plan.m // plan.m0) - 1
    if plan.b_mode == RESIDENT_SHARED:
        b_last = b_last and image == plan.images - 1
    first, last = block * plan.k1, min(plan.k, (block + 1) * plan.k1)
    for begin in range(first, last, plan.k0):
        depth = min(plan.k0, last - begin)
        k_parts = -(-depth // plan.fractal_k)
        slot = at[STEP_AT] % plan.l0_slots
        at[STEP_AT] += 1
        ends = begin + plan.k0 >= last
        row = _row(rows, count, MTE1, PATH_L0A)
        row[F_BYTES] = m_parts * FRACTAL * k_parts * plan.fractal_k * plan.size
        row[F_HOLD] = max(int(np.ceil(row[F_BYTES] / plan.a_rate)), 1)
        row[F_LATENCY] = 2
        _wait(row, 0, a_slot, pending)
        _wait(row, 1, l0 + plan.l0_slots + slot, pending)
        if ends and a_last:
            _set(row, 0, plan.a_slots + a_slot, pending)
        row = _row(rows, count + 1, MTE1, PATH_L0B)
        row[F_BYTES] = n_parts * FRACTAL * k_parts * plan.fractal_k * plan.size
        row[F_HOLD] = max(int(np.ceil(row[F_BYTES] / plan.b_rate)), 1)
        row[F_LATENCY] = 2
        _wait(row, 0, b_base + b_slot, pending)
        _set(row, 0, l0 + slot, pending)
        if ends and b_last:
            _set(row, 1, b_base + plan.b_slots + b_slot, pending)
        row = _row(rows, count + 2, CUBE, NO_PATH)
        gap = plan.isolated if m_parts * n_parts < plan.barrier and begin > 0 else plan.streamed
        row[F_HOLD] = m_parts * n_parts * k_parts * plan.fractal_cycles + gap
        row[F_LATENCY] = plan.isolated - gap
        _wait(row, 0, l0 + slot, pending)
        if begin == 0:
            _wait(row, 1, out + plan.out_slots + out_slot, pending)
            _wait(row, 2, rest + 1, pending)
        _set(row, 0, l0 + plan.l0_slots + slot, pending)
        if ends and last == plan.k:
            _set(row, 1, out + out_slot, pending)
        count += 3
    return count


@_inner
def _tile_tail(
    plan: CubePlan, moves: np.ndarray, at: np.ndarray, pending: np.ndarray, rows: np.ndarray, count: int, mt: int,
    nt: int,
) -> int:  # fmt: skip
    """Move the tile's result out: by the fixpipe, or through the vector unit and UB."""
    out = _events(plan)[2]
    slot = at[OUT_AT] % plan.out_slots
    at[OUT_AT] += 1
    height = min(plan.m0, plan.m - mt * plan.m0)
    start = plan.m_start + mt * plan.m0
    kept = max(min(height, plan.m_limit - start), 1)
    columns = min(plan.n0, plan.n - nt * plan.n0)
    pieces = _pieces(int(moves[OUT_OPERAND, T_UNIT_ROWS]), kept, columns, 0, plan.c0)
    if int(moves[OUT_OPERAND, T_UNIT_ROWS]) == ROWS_M:
        pieces *= -(-columns // ND_ROW)
    if plan.fixpipe:
        row = _row(rows, count, FIXPIPE, int(moves[OUT_OPERAND, T_PATH]))
        _wait(row, 0, out + slot, pending)
        _move(row, moves[OUT_OPERAND], kept * columns * plan.out_bytes, pieces)
        row[F_HOLD] = max(row[F_HOLD], int(np.ceil(kept * columns * 4 / moves[OUT_OPERAND, T_COLD_RATE])))
        _set(row, 0, out + plan.out_slots + slot, pending)
        return count + 1
    return _parts_out(plan, moves, at, pending, rows, count, height, columns, kept, pieces, slot)


@_inner
def _parts_out(
    plan: CubePlan, moves: np.ndarray, at: np.ndarray, pending: np.ndarray, rows: np.ndarray, count: int, height: int,
    columns: int, kept: int, pieces: int, slot: int,
) -> int:  # fmt: skip
    """A tile's results through UB, as many at a time as it holds; the accumulators are free when the last have left."""
    _, _, out, rest = _events(plan)
    extra = at[TILE_AT] % 2
    whole = height * columns * 4
    parts = max(-(-whole // plan.part_bytes), 1)
    for part in range(parts):
        half = at[PART_AT] % 2
        at[PART_AT] += 1
        row = _row(rows, count, VECTOR, PATH_L0C_UB)
        row[F_BYTES] = whole * (part + 1) // parts - whole * part // parts
        repeats = -(-row[F_BYTES] // REPEAT_BYTES)
        row[F_HOLD] = int(np.ceil(row[F_BYTES] / plan.to_ub_rate)) + plan.call_cycles
        if part == 0:
            _wait(row, 0, out + slot, pending)
        _wait(row, 1, rest + 8 + half, pending)
        if part == parts - 1:
            _set(row, 0, out + plan.out_slots + slot, pending)
        row = _row(rows, count + 1, VECTOR, NO_PATH)
        row[F_HOLD] = plan.epilogue_slope * repeats + plan.epilogue_calls * plan.call_cycles
        if plan.extra_bytes and part == 0:
            _wait(row, 0, rest + 2 + extra, pending)
        if plan.extra_bytes and part == parts - 1:
            _set(row, 0, rest + 4 + extra, pending)
        _set(row, 1, rest + 6 + half, pending)
        row = _row(rows, count + 2, MTE3, int(moves[OUT_OPERAND, T_PATH]))
        _wait(row, 0, rest + 6 + half, pending)
        _move(row, moves[OUT_OPERAND], kept * columns * plan.out_bytes / parts, -(-pieces // parts))
        _set(row, 0, rest + 8 + half, pending)
        count += 3
    return count


@_entry
def emit_vector(
    units: int, tile_units: int, slots: int, moves: np.ndarray, loads: int, work: np.ndarray, call_cycles: int,
    at: np.ndarray, pending: np.ndarray, rows: np.ndarray,
) -> int:  # fmt: skip
    """Write instructions of whole tiles of a vector kernel and say how many; ``at[0]`` is the next tile.

    The first ``loads`` transfers are loads, the others stores. Events: in-ready, in-free, out-ready, out-free a slot.
    With one set of buffers a tile ends before the next begins.
    """
    tiles = -(-units // tile_units)
    stores = moves.shape[0] - loads
    room = moves.shape[0] + work.shape[0]
    count = 0
    while at[0] < tiles and count + room <= rows.shape[0]:
        tile = at[0]
        slot = tile % slots
        size = min(tile_units, units - tile * tile_units)
        fresh = 0
        for index in range(loads):
            if moves[index, T_ONCE] and tile > 0:
                continue
            row = _row(rows, count, MTE2, int(moves[index, T_PATH]))
            if fresh == 0 and work.shape[0] + stores > 0:
                _wait(row, 0, slots + slot, pending)
                if slots == 1:
                    _wait(row, 1, (3 if work.shape[0] else 1) * slots + slot, pending)
            fresh += 1
            times = 1 if moves[index, T_ONCE] else size
            _move(row, moves[index], times * moves[index, T_UNIT_BYTES], times * moves[index, T_UNIT_ROWS])
            row[F_BUFFER] = index * 2 + slot
            count += 1
        if fresh and work.shape[0] + stores > 0:
            _set(rows[count - 1], 0, slot, pending)
        for index in range(work.shape[0]):
            count = _work(work, call_cycles, pending, rows, count, index, size, slot, slots, stores, fresh)
        for index in range(stores):
            row = _row(rows, count, MTE3, int(moves[loads + index, T_PATH]))
            if index == 0:
                _wait(row, 0, (2 * slots if work.shape[0] else 0) + slot, pending)
            _move(
                row, moves[loads + index], size * moves[loads + index, T_UNIT_BYTES],
                size * moves[loads + index, T_UNIT_ROWS],
            )  # fmt: skip
            row[F_BUFFER] = (loads + index) * 2 + slot
            if index == stores - 1:
                _set(row, 0, (3 if work.shape[0] else 1) * slots + slot, pending)
            count += 1
        at[0] += 1
    if at[0] == tiles:
        count = _drain(pending, rows, count)
    return count


@_inner
def _work(
    work: np.ndarray, call_cycles: int, pending: np.ndarray, rows: np.ndarray, count: int, index: int, size: int,
    slot: int, slots: int, stores: int, fresh: int,
) -> int:  # fmt: skip
    """One entry of a vector kernel's instruction list, for a tile of ``size`` units that ``fresh`` loads fed."""
    what = work[index]
    row = _row(rows, count, int(what[W_PIPE]), NO_PATH)
    if what[W_BY_UNIT]:
        repeats = np.ceil(size * what[W_AMOUNT])
    else:
        repeats = np.ceil(size * what[W_AMOUNT] / REPEAT_BYTES)
    body = max(what[W_FIRST], np.ceil(what[W_SLOPE] * repeats)) if repeats > 0 else 0.0
    row[F_HOLD] = int(body + what[W_START] + call_cycles * np.ceil(what[W_CALLS] + size * what[W_UNIT_CALLS]))
    row[F_CONFLICT] = int(what[W_CONFLICT] * repeats)
    row[F_MISALIGNED] = int(np.ceil(what[W_ODD] * size))
    if index == 0:
        _wait(row, 0, slot, pending)
        _wait(row, 1, 3 * slots + slot, pending)
    if index == work.shape[0] - 1:
        if fresh:
            _set(row, 0, slots + slot, pending)
        if stores:
            _set(row, 1, 2 * slots + slot, pending)
    return count + 1
