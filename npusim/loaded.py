"""A program made ready to run: device memory, one row table for the compiled loop, and the tasks that need Python.

Host plans (``npusim.kernels.plans``) turn every device task into rows once; a run is then one call into the executor
per stretch between host tasks. :class:`LoadedProgram` is what a session holds for one set of shapes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from metadef.error import DeviceFault, UsageError
from metadef.program import Program, Task
from npusim.device import Device
from npusim.executor import HOST_ROW, INDEX_OUT_OF_RANGE, OK, Executor
from npusim.host import run_host_task
from npusim.kernels.desc import Call, task_table
from npusim.kernels.dispatch import ROW_HOST
from npusim.kernels.plans import Planner, PlanOptions

NUMERICS = ("exact", "fast")


@dataclass(frozen=True)
class TaskRun:
    """A task with copies of its operands: ``inputs`` before it ran, ``outputs`` after, all in storage layout."""

    task: Task
    inputs: tuple[np.ndarray | None, ...]
    outputs: tuple[np.ndarray, ...]


class LoadedProgram:
    """One program on one device. Threads may call it at once; runs follow one another.

    Args:
        program, weights: what the compiler made, or the model file holds.
        overflow: the chip's float16 overflow, ``inf`` or ``saturate``.
        threads: host threads (0: one per CPU this process may use).
        numerics: ``exact`` uses algorithms whose error is that of direct summation; ``fast`` allows Winograd F(4x4).
        deterministic: direct algorithms only, so that results are bit-equal on every chip.
        checked: poison unwritten memory and check every read; slow.
    """

    def __init__(
        self,
        program: Program,
        weights: np.ndarray,
        *,
        overflow: str = "inf",
        threads: int = 0,
        numerics: str = "exact",
        deterministic: bool = False,
        checked: bool = False,
    ) -> None:
        if numerics not in NUMERICS:
            raise UsageError(f"unknown numerics '{numerics}'", expected=" or ".join(NUMERICS))
        if threads < 0:
            raise UsageError(f"threads must not be negative, got {threads}", hint="0 uses every CPU of this process")
        self.program = program
        self.overflow = overflow
        self.checked = checked
        self.device = Device(program, weights)
        self.threads = threads or usable_cpus()
        options = PlanOptions(saturate=overflow == "saturate", numerics=numerics, deterministic=deterministic)
        self._calls, self._rows, self.fallbacks = _plan(program, Planner(self.device, options))
        self._table = self._build_table()
        self._executor = Executor(self.threads)
        self._lock = threading.Lock()
        self._runs = 0

    @property
    def executor(self) -> Executor:
        """The loop that runs the rows."""
        return self._executor

    @property
    def host_tasks(self) -> list[Task]:
        """Tasks that Python runs, fallbacks of device tasks included."""
        return [task for task, calls in zip(self.program.tasks, self._calls, strict=True) if calls is None]

    def run(self, feeds: Mapping[str, np.ndarray], names: Sequence[str] | None = None) -> list[np.ndarray]:
        """Copy in, execute all tasks, copy out.

        Raises:
            UsageError: feeds or output names do not fit. DeviceFault: a task stopped the device.
        """
        with self._lock:
            self._runs += 1
            self.device.copy_in(feeds)
            if self.checked:
                self.device.poison_arena()
                for position in range(len(self.program.tasks)):
                    self._run_checked(position)
            else:
                self._run_rows(0, len(self._table))
            return self.device.copy_out(names)

    def run_layers(self, feeds: Mapping[str, np.ndarray]) -> Iterator[TaskRun]:
        """Execute task by task, yielding each with its operands; the device then holds the results for ``copy_out``.

        Raises:
            UsageError: feeds do not fit, or another run took the device before the last task was asked for.
        """
        with self._lock:
            self._runs += 1
            mine = self._runs
            self.device.copy_in(feeds)
        for position, task in enumerate(self.program.tasks):
            with self._lock:
                if self._runs != mine:
                    hint = "read all layers of one run before the next run"
                    raise UsageError("another run took the device between two layers", node=task.name, hint=hint)
                inputs = tuple(None if item is None else self.device.read_tensor(item).copy() for item in task.inputs)
                self._run_rows(self._rows[position], self._rows[position + 1])
                outputs = tuple(self.device.read_tensor(item).copy() for item in task.outputs)
            yield TaskRun(task, inputs, outputs)

    def close(self) -> None:
        """Stop the worker threads."""
        self._executor.close()

    def _build_table(self) -> np.ndarray:
        flat = [call for calls in self._calls if calls for call in calls]
        kernels = iter(task_table(flat))
        table = np.zeros((self._rows[-1], 3), np.int64)
        for position, calls in enumerate(self._calls):
            first = self._rows[position]
            if calls is None:
                table[first] = ROW_HOST, 0, position
            else:
                for row in range(first, self._rows[position + 1]):
                    table[row] = next(kernels)
        return table

    def _run_rows(self, start: int, stop: int) -> None:
        row = start
        while row < stop:
            status = self._executor.run(self._table, row, stop)
            if status.code == OK:
                return
            task = self.program.tasks[int(np.searchsorted(self._rows, status.row, side="right")) - 1]
            if status.code != HOST_ROW:
                raise _fault(status.code, status.info, task)
            run_host_task(task, self.device, self.overflow)
            row = status.row + 1

    def _run_checked(self, position: int) -> None:
        task = self.program.tasks[position]
        self.device.check_reads(task)
        self.device.poison_results(task)
        self._run_rows(self._rows[position], self._rows[position + 1])


def usable_cpus() -> int:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _plan(program: Program, planner: Planner) -> tuple[list[list[Call] | None], list[int], dict[str, str]]:
    """Calls per task (None: Python runs it), first row per task and the end, and why device tasks fell back."""
    calls: list[list[Call] | None] = []
    rows = [0]
    fallbacks = {}
    for task in program.tasks:
        made: list[Call] | None = None
        if task.on_device:
            made, reason = planner.plan(task)
            if made is None:
                fallbacks[task.name] = reason
        calls.append(made)
        rows.append(rows[-1] + (1 if made is None else len(made)))
    return calls, rows, fallbacks


def _fault(code: int, info: int, task: Task) -> DeviceFault:
    if code == INDEX_OUT_OF_RANGE:
        return DeviceFault(
            f"{task.kernel.op_type} read an index that is out of range", node=task.name, got=f"index {info}"
        )
    return DeviceFault(f"{task.kernel.op_type} stopped the device", node=task.name, got=f"status {code}, detail {info}")
