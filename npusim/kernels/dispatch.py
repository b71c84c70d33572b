"""The compiled loop over a task table and its resident workers, as two generated kernels.

`exec:main` walks rows (function address, part count, descriptor address) of a table; `exec:worker` is what every extra
thread runs. A task of several parts is published as one word, sequence << 40 | parts << 20 | next part; everyone claims
parts by adding one to it, and the returned word alone says whether the claim is good, so a late worker never touches a
finished task. `npusim.executor` owns the control block whose layout stands here.

On a crowded machine a worker may lose its CPU in the middle of a part, and the whole task then waits for it. A wait
much longer than a part takes makes the main thread work alone for four times as long as it waited, so that such waits
cost a fifth of the time at most.

Rows whose function field is below 16 steer the loop instead of calling a kernel: see the `ROW_*` constants.
"""

from __future__ import annotations

import llvmlite.ir as ir

from npusim.kernels.ir import I8, I32, I64, VOID, Kernel, Val

# Control block, indices of int64 (each group on its own pair of cache lines).
TICKET, DONE, CURRENT_ROW, SEQUENCE, STOP_WORKERS, ACTIVE = 0, 16, 32, 48, 64, 80
STATUS_CODE, STATUS_INFO = 96, 97
TABLE, ROW, STOP_ROW, BUDGET, CONTEXTS, TRACE, TRACE_COUNT, TRACE_CAPACITY, ALONE_UNTIL_NS = range(112, 121)
CONTROL_FIELDS = 128

# Context of one thread, the third argument of every kernel.
CTX_THREAD, CTX_SCRATCH, CTX_SCRATCH_BYTES, CTX_STATUS, CTX_FIELDS = 0, 1, 2, 3, 16

# Status codes.
OK, INDEX_OUT_OF_RANGE, NEED_SCRATCH, HOST_ROW, TRACE_FULL, NOT_FINITE = range(6)

# Rows that are no kernels: nothing; back to Python; jump to row `parts`; jump there if the byte at `desc` is 0 / not 0.
ROW_NOP, ROW_HOST, ROW_JUMP, ROW_JUMP_IF_ZERO, ROW_JUMP_IF_NONZERO = range(5)
_FIRST_ADDRESS = 16

_PART_MASK = (1 << 20) - 1
_SEQUENCE_MASK = (1 << 22) - 1
_SPIN = 2000
_IDLE_POLLS = 400
_POLL_US = 50
_PATIENCE_NS = 150_000
_ALONE_FACTOR = 4


def report(k: Kernel, ctx: Val, code: int, info: Val) -> None:
    """Emit: stop the run after this task with a status code and one number of detail."""
    status = k.field(ctx, CTX_STATUS)
    k.store(info, status + 8)
    k.store(k.const(code), status)


def scratch(k: Kernel, ctx: Val) -> Val:
    """Address of the calling thread's scratch block (64-byte aligned; size is descriptor field 0)."""
    return k.field(ctx, CTX_SCRATCH)


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit `exec:main` or `exec:worker`."""
    if parameters == "main":
        _emit_main(k)
    elif parameters == "worker":
        _emit_worker(k)
    else:
        raise ValueError(f"unknown executor kernel {parameters!r}")


def _word(control: Val, index: int) -> Val:
    return control + 8 * index


def _acquire(k: Kernel, address: Val) -> Val:
    return Val(k, k.b.load_atomic(k.b.inttoptr(address.v, I64.as_pointer()), "acquire", 8))


def _release(k: Kernel, value: Val | int, address: Val) -> None:
    k.b.store_atomic(k.coerce(value, I64), k.b.inttoptr(address.v, I64.as_pointer()), "release", 8)


def _increment(k: Kernel, address: Val) -> Val:
    pointer = k.b.inttoptr(address.v, I64.as_pointer())
    return Val(k, k.b.atomic_rmw("add", pointer, ir.Constant(I64, 1), "seq_cst"))


def _pause(k: Kernel) -> None:
    name = "llvm.x86.sse2.pause" if k.cpu.x86 else "sched_yield"
    k.intrinsic(name, VOID if k.cpu.x86 else I32, [])


def _call_row(k: Kernel, row: Val, part: Val | int, context: Val) -> None:
    k.call_address(k.field(row, 0), k.field(row, 2), part, context)


def _now(k: Kernel, spare: Val) -> Val:
    """Nanoseconds of the monotonic clock; `spare` is the address of 16 bytes."""
    clock = 6 if "apple" in k.cpu.triple else 1
    k.intrinsic("clock_gettime", I32, [k.const(clock, I32), k.pointer(spare)])
    return k.load(spare) * 1_000_000_000 + k.load(spare + 8)


def _run_parts(k: Kernel, control: Val, row: Val, parts: Val, spare: Val) -> None:
    """Do a task of several parts, together with the workers unless they have kept us waiting."""
    begin = _now(k, spare)
    with k.either(begin < k.field(control, ALONE_UNTIL_NS)) as (alone, together):
        with alone, k.loop(parts) as part:
            _call_row(k, row, part, k.field(control, CONTEXTS))
        with together:
            _share_parts(k, control, row, parts, begin, spare)


def _share_parts(k: Kernel, control: Val, row: Val, parts: Val, begin: Val, spare: Val) -> None:
    """Publish a task, take part in it, wait until all parts are done."""
    done, ticket, context = _word(control, DONE), _word(control, TICKET), k.field(control, CONTEXTS)
    sequence = (k.field(control, SEQUENCE) + 1) & _SEQUENCE_MASK
    k.store(sequence, _word(control, SEQUENCE))
    _release(k, 0, done)
    _release(k, row, _word(control, CURRENT_ROW))
    _release(k, (sequence << 40) | (parts << 20), ticket)
    mine, spins = k.var(0), k.var(0)
    with k.while_() as claiming:
        part = _increment(k, ticket) & _PART_MASK
        claiming.stop_if(part >= parts)
        _call_row(k, row, part, context)
        _increment(k, done)
        mine.set(mine.get() + 1)
    finished = _now(k, spare)
    with k.while_() as waiting:
        waiting.stop_if(_acquire(k, done) >= parts)
        _pause(k)
        spins.set(spins.get() + 1)
        with k.when(spins.get() > _SPIN):
            k.intrinsic("sched_yield", I32, [])
    with k.when(spins.get() > _SPIN):
        now = _now(k, spare)
        part_ns = (finished - begin) / k.maximum(mine.get(), 1)
        with k.when(now - finished > part_ns * 2 + _PATIENCE_NS):
            k.store(now + (now - finished) * _ALONE_FACTOR, _word(control, ALONE_UNTIL_NS))


def _emit_steering(k: Kernel, row: Val, code: Val, table_row: Val, control: Val) -> Val:
    """Next row index after a steering row; HOST_ROW goes into the status word."""
    target, address = k.field(table_row, 1), k.field(table_row, 2)
    following = k.var(row + 1)
    with k.when(code.eq(ROW_JUMP)):
        following.set(target)
    with k.when(code >= ROW_JUMP_IF_ZERO):
        zero = k.load(address, I8).eq(0)
        wanted = code.eq(ROW_JUMP_IF_ZERO)
        with k.when(zero.eq(wanted)):
            following.set(target)
    with k.when(code.eq(ROW_HOST)):
        k.store(k.const(HOST_ROW), _word(control, STATUS_CODE))
        k.store(address, _word(control, STATUS_INFO))
    return following.get()


def _emit_trace(k: Kernel, control: Val, row: Val) -> None:
    with k.when(k.field(control, TRACE).ne(0)):
        count = k.field(control, TRACE_COUNT)
        k.store(row, k.field(control, TRACE) + count * 8)
        k.store(count + 1, _word(control, TRACE_COUNT))


def _emit_main(k: Kernel) -> None:
    with k.main() as (control, _a, _b):
        status = _word(control, STATUS_CODE)
        context = k.field(control, CONTEXTS)
        table, stop = k.field(control, TABLE), k.field(control, STOP_ROW)
        row, budget = k.var(k.field(control, ROW)), k.var(k.field(control, BUDGET))
        spare = k.alloca(16)
        _release(k, 1, _word(control, ACTIVE))
        with k.while_() as rows:
            current = row.get()
            rows.stop_if(current >= stop)
            rows.stop_if(budget.get() <= 0)
            budget.set(budget.get() - 1)
            address = table + current * 24
            code, parts = k.field(address, 0), k.field(address, 1)
            traced = k.field(control, TRACE).ne(0)
            full = k.field(control, TRACE_COUNT) >= k.field(control, TRACE_CAPACITY)
            with k.either(traced & full) as (stopped, runs):
                with stopped:
                    k.store(k.const(TRACE_FULL), status)
                with runs, k.either(code < _FIRST_ADDRESS) as (steering, task):
                    with steering:
                        _emit_trace(k, control, current)
                        row.set(_emit_steering(k, current, code, address, control))
                    with task:
                        need = k.field(k.field(address, 2), 0)
                        with k.either(need > k.field(context, CTX_SCRATCH_BYTES)) as (short, enough):
                            with short:
                                k.store(need, _word(control, STATUS_INFO))
                                k.store(k.const(NEED_SCRATCH), status)
                            with enough:
                                _emit_task(k, control, address, parts, current, spare)
                                row.set(current + 1)
            rows.stop_if(_acquire(k, status).ne(0))
        k.store(row.get(), _word(control, ROW))
        _release(k, 0, _word(control, ACTIVE))


def _emit_task(k: Kernel, control: Val, address: Val, parts: Val, row: Val, spare: Val) -> None:
    _emit_trace(k, control, row)
    with k.either(parts.eq(1)) as (single, several):
        with single:
            _call_row(k, address, 0, k.field(control, CONTEXTS))
        with several, k.when(parts > 1):
            _run_parts(k, control, address, parts, spare)


def _emit_worker(k: Kernel) -> None:
    """Arguments: control block, thread context. Returns when told to stop or after a long time without a run."""
    with k.main() as (control, context, _unused):
        ticket, spins, polls = _word(control, TICKET), k.var(0), k.var(0)
        with k.while_() as serving:
            serving.stop_if(_acquire(k, _word(control, STOP_WORKERS)).ne(0))
            seen = _acquire(k, ticket)
            idle = (seen & _PART_MASK) >= ((seen >> 20) & _PART_MASK)
            with k.either(idle) as (nothing, work):
                with nothing:
                    _pause(k)
                    spins.set(spins.get() + 1)
                    with k.when(spins.get() > 10 * _SPIN):
                        polls.set(k.select(_acquire(k, _word(control, ACTIVE)).ne(0), k.const(0), polls.get() + 1))
                        k.intrinsic("usleep", I32, [k.const(_POLL_US, I32)])
                with work:
                    claimed = _increment(k, ticket)
                    part = claimed & _PART_MASK
                    with k.when(part < ((claimed >> 20) & _PART_MASK)):
                        _call_row(k, _acquire(k, _word(control, CURRENT_ROW)), part, context)
                        _increment(k, _word(control, DONE))
                    spins.set(0)
                    polls.set(0)
            serving.stop_if(polls.get() > _IDLE_POLLS)
