"""Runs a task table: the one compiled loop, its resident worker threads, its scratch memory and its status word.

A table is an int64 array of rows (kernel address, parts, descriptor address); `npusim.kernels` makes the rows. Tasks
run in table order, the parts of a task are shared out among the threads as they become free. Which elements a part
computes depends on shapes alone, so results are bitwise equal at any thread count. The loop is entered through ctypes,
which drops the GIL; it comes back to Python after bounded stretches so that Ctrl-C is seen between tasks.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
import weakref
from dataclasses import dataclass, field

import numpy as np

from npusim.kernels import dispatch as dp
from npusim.kernels.store import kernel_address

OK = dp.OK
INDEX_OUT_OF_RANGE = dp.INDEX_OUT_OF_RANGE
HOST_ROW = dp.HOST_ROW
TRACE_FULL = dp.TRACE_FULL
NOT_FINITE = dp.NOT_FINITE

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_STRETCH_S = 0.03
_current_cpu = getattr(ctypes.CDLL(None), "sched_getcpu", None) if hasattr(os, "sched_setaffinity") else None
_executors: weakref.WeakSet[Executor] = weakref.WeakSet()
_serving: dict[threading.Thread, tuple[_State, _Bell]] = {}


@dataclass(frozen=True)
class Status:
    """How a run ended: `code` OK at row `stop`, else the code and the row it belongs to.

    `info` is the bad index for INDEX_OUT_OF_RANGE and the descriptor field for HOST_ROW (a row that asks for Python;
    continue with `start=row + 1`).
    """

    code: int
    row: int
    info: int = 0


class _State:
    """Memory the compiled loop works on: control block, thread contexts, scratch blocks."""

    def __init__(self, threads: int) -> None:
        self.control = aligned_int64(dp.CONTROL_FIELDS)
        self.contexts = aligned_int64(threads * dp.CTX_FIELDS)
        self.scratch: list[np.ndarray] = []
        for thread in range(threads):
            self.contexts[thread * dp.CTX_FIELDS + dp.CTX_THREAD] = thread
            self.contexts[thread * dp.CTX_FIELDS + dp.CTX_STATUS] = self.control[dp.STATUS_CODE :].ctypes.data
        self.control[dp.CONTEXTS] = self.contexts.ctypes.data
        # What a run sets and reads: a memoryview costs a third of NumPy's indexing.
        self.words = self.control.data
        self.address: int = self.control.ctypes.data
        self.grow(1 << 18)

    def grow(self, nbytes: int) -> None:
        """Give every thread at least `nbytes` of scratch (only while no task runs)."""
        words = -(-nbytes // 8) + 64
        threads = self.contexts.size // dp.CTX_FIELDS
        self.scratch = [aligned_int64(words) for _ in range(threads)]
        for thread, block in enumerate(self.scratch):
            self.contexts[thread * dp.CTX_FIELDS + dp.CTX_SCRATCH] = block.ctypes.data
            self.contexts[thread * dp.CTX_FIELDS + dp.CTX_SCRATCH_BYTES] = (words - 64) * 8


@dataclass
class _Bell:
    """What an executor and its workers share beside the state: runs so far, workers asleep, and how to wake them."""

    wake: threading.Condition = field(default_factory=threading.Condition)
    runs: int = 0
    sleeping: int = 0


class Executor:
    """`threads` counts the calling thread. One run at a time; concurrent callers queue.

    Its workers hold none of its references and end when it is closed or collected.
    """

    _end: weakref.finalize | None = None

    def __init__(self, threads: int = 2) -> None:
        if threads < 1:
            raise ValueError(f"an executor needs at least one thread, not {threads}")
        self.threads = threads
        self._lock = threading.Lock()
        self._main = _ENTRY(kernel_address("exec:main"))
        self._worker = _ENTRY(kernel_address("exec:worker")) if threads > 1 else None
        self._closed = False
        self._reset()
        _executors.add(self)

    def _reset(self) -> None:
        """Fresh memory and no workers: at start, and in a child process after fork."""
        if self._end is not None:
            self._end.detach()
        self._lock = threading.Lock()
        self._state = _State(self.threads)
        self._bell = _Bell()
        self._workers: list[threading.Thread] = []
        self._avoided_cpu = -1
        self._end = weakref.finalize(self, _stop_workers, self._state, self._bell)
        self._end.atexit = False
        self._rows_per_stretch = 64
        self._table: np.ndarray | None = None
        self._table_address = 0

    def run(
        self, table: np.ndarray, start: int = 0, stop: int | None = None, trace: np.ndarray | None = None
    ) -> Status:
        """Execute rows start..stop of an int64 [n, 3] table.

        `trace`, an int64 array, receives in [1:] the numbers of all rows in the order they ran, in [0] their count; a
        run that would overflow it ends with TRACE_FULL. Raises ValueError for a table of another kind or bad bounds.
        """
        rows = len(table) if table is self._table else _check_table(table)
        end = rows if stop is None else stop
        if not 0 <= start <= end <= rows:
            raise ValueError(f"rows {start}..{end} do not lie within a table of {rows} rows")
        if trace is not None and (trace.dtype != np.int64 or trace.ndim != 1 or not trace.flags.c_contiguous):
            raise ValueError("trace must be a contiguous one-dimensional int64 array")
        with self._lock:
            if self._closed:
                raise ValueError("this executor is closed")
            if self.threads > 1:
                self._start_workers()
            return self._run_locked(table, start, end, trace)

    def _run_locked(self, table: np.ndarray, start: int, stop: int, trace: np.ndarray | None) -> Status:
        if table is not self._table:
            self._table, self._table_address = table, table.ctypes.data
        control = self._state.words
        control[dp.TABLE], control[dp.ROW], control[dp.STOP_ROW] = self._table_address, start, stop
        control[dp.TRACE] = 0 if trace is None else trace.ctypes.data + 8
        control[dp.TRACE_COUNT], control[dp.TRACE_CAPACITY] = 0, 0 if trace is None else trace.size - 1
        address = self._state.address
        while True:
            control[dp.STATUS_CODE] = control[dp.STATUS_INFO] = 0
            control[dp.BUDGET] = self._rows_per_stretch
            clock = time.perf_counter()
            self._main(address, 0, 0)
            self._adapt(time.perf_counter() - clock)
            code, row = int(control[dp.STATUS_CODE]), int(control[dp.ROW])
            if code == dp.NEED_SCRATCH:
                self._state.grow(int(control[dp.STATUS_INFO]))
                continue
            if code == OK and row < stop:
                continue
            if trace is not None:
                trace[0] = control[dp.TRACE_COUNT]
            if code == OK:
                return Status(OK, row)
            info = int(control[dp.STATUS_INFO])
            return Status(code, row if code == TRACE_FULL else row - 1, info)

    def _adapt(self, seconds: float) -> None:
        """Keep one stay in compiled code near 30 ms."""
        if seconds < _STRETCH_S / 4:
            self._rows_per_stretch = min(self._rows_per_stretch * 2, 1 << 20)
        elif seconds > 2 * _STRETCH_S:
            self._rows_per_stretch = max(self._rows_per_stretch // 2, 1)

    def close(self) -> None:
        """Stop the workers; further runs are refused."""
        with self._lock:
            self._closed = True
            _stop_workers(self._state, self._bell)
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.join()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _start_workers(self) -> None:
        """Start missing workers, keep all off the caller's CPU, wake those that went to sleep after a quiet time."""
        bell = self._bell
        missing = range(len(self._workers) + 1, self.threads)
        for thread in missing:
            worker = threading.Thread(target=_serve, args=(self._state, self._worker, bell, thread), daemon=True)
            self._workers.append(worker)
            worker.start()
        if _current_cpu is not None:
            cpu = _current_cpu()
            if missing or cpu != self._avoided_cpu:
                self._avoided_cpu = cpu
                self._keep_workers_off(cpu)
        with bell.wake:
            bell.runs += 1
            if bell.sleeping:
                bell.wake.notify_all()

    def _keep_workers_off(self, cpu: int) -> None:
        """Let the workers run on all CPUs of the calling thread but this one.

        Schedulers that pack threads to save power wake a worker on the very CPU its caller computes on, where it waits
        for milliseconds. Nothing is done where the caller has only one CPU, or the system refuses.
        """
        others = os.sched_getaffinity(0) - {cpu}
        for worker in self._workers if others else ():
            if worker.native_id is not None:
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(worker.native_id, others)


def _stop_workers(state: _State, bell: _Bell) -> None:
    """End of an executor, whoever brings it about: polling workers see the word, sleeping ones are woken."""
    state.control[dp.STOP_WORKERS] = 1
    # The condition's lock is re-entrant: collection may begin in a thread that holds it.
    with bell.wake:
        bell.wake.notify_all()


def _serve(state: _State, entry: object, bell: _Bell, n: int) -> None:
    """Body of a worker thread, known to the exit handler while it lives."""
    me = threading.current_thread()
    _serving[me] = (state, bell)
    try:
        _poll(state, entry, bell, n)
    finally:
        _serving.pop(me, None)


def _poll(state: _State, entry: object, bell: _Bell, n: int) -> None:
    """Compiled polling while runs come, sleep on a condition in quiet times."""
    context = state.contexts[n * dp.CTX_FIELDS :].ctypes.data
    control = state.control.ctypes.data
    while not state.control[dp.STOP_WORKERS]:
        seen = bell.runs
        entry(control, context, 0)  # type: ignore[operator]
        with bell.wake:
            while not state.control[dp.STOP_WORKERS] and bell.runs == seen:
                bell.sleeping += 1
                try:
                    bell.wake.wait()
                finally:
                    bell.sleeping -= 1


def aligned_int64(words: int) -> np.ndarray:
    """Zeroed int64 array starting on a 128-byte boundary."""
    raw = np.zeros(words + 16, np.int64)
    skip = (-raw.ctypes.data % 128) // 8
    return raw[skip : skip + words]


def _check_table(table: np.ndarray) -> int:
    good = isinstance(table, np.ndarray) and table.dtype == np.int64 and table.ndim == 2 and table.shape[1] == 3
    if not good or not table.flags.c_contiguous:
        raise ValueError("a task table is a contiguous int64 array of shape [rows, 3]")
    return int(table.shape[0])


def _after_fork() -> None:
    _serving.clear()
    for executor in list(_executors):
        executor._reset()


def _at_exit() -> None:
    """Bring all workers home before the interpreter frees what they poll."""
    for thread, (state, bell) in list(_serving.items()):
        _stop_workers(state, bell)
        thread.join(timeout=5)


atexit.register(_at_exit)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
