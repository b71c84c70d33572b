"""A program made ready to run: device memory, one row table for the compiled loop, and the tasks that need Python.

Host plans (``npusim.kernels.plans``) turn every device task into rows once; a run is then one call into the executor
per stretch between host tasks. :class:`LoadedProgram` is what a session holds for one set of shapes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metadef.error import DeviceFault, UsageError
from metadef.program import Program, Task
from npusim.device import Device, release_pages
from npusim.executor import HOST_ROW, INDEX_OUT_OF_RANGE, NOT_FINITE, OK, TRACE_FULL, Executor
from npusim.flow import Tracer, stepwise
from npusim.kernels.plans import PlanOptions, StoredPlan, loaded_tensors, plan_program, plan_task, task_table

NUMERICS = ("exact", "fast")


@dataclass(frozen=True)
class TaskRun:
    """A task with copies of its operands: ``inputs`` before it ran, ``outputs`` after, all in storage layout."""

    task: Task
    inputs: tuple[np.ndarray | None, ...]
    outputs: tuple[np.ndarray, ...]


class _Turns:
    """Who has the device: a lock, and a count of runs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0


class LoadedProgram:
    """One program on one device. Threads may call it at once; runs follow one another.

    ``trace`` lists the ids of the tasks of the last run where the program jumps (None: all of them, in order).

    Args:
        program, weights: what the compiler made, or the model file holds.
        overflow: the chip's float16 overflow, ``inf`` or ``saturate``.
        threads: host threads (0: one per CPU this process may use).
        numerics: ``exact`` uses algorithms whose error is that of direct summation; ``fast`` allows Winograd F(4x4)
            and, for large windows, Fourier transforms.
        deterministic: direct algorithms only, so that results are bit-equal on every chip.
        checked: poison unwritten memory and check every read; slow.
        beside: a program to take turns with (another gear of the model): its memory and worker threads are used, and
            its packed weights where both have the same weights.
        memory: device memory other than that of ``beside``.
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
        beside: LoadedProgram | None = None,
        memory: np.ndarray | None = None,
    ) -> None:
        if numerics not in NUMERICS:
            raise UsageError(f"unknown numerics '{numerics}'", expected=" or ".join(NUMERICS))
        if threads < 0:
            raise UsageError(f"threads must not be negative, got {threads}", hint="0 uses every CPU of this process")
        self.program = program
        self.overflow = overflow
        self.checked = checked
        if memory is None and beside is not None:
            memory = beside.device.memory
        self.device: Device = Device(program, weights, memory)
        self.threads = threads or usable_cpus()
        self.options = PlanOptions(saturate=overflow == "saturate", numerics=numerics, deterministic=deterministic)
        alike = beside is not None and beside.device.holds_weights_of(self.device)
        self._packed: dict[object, Any] = beside._packed if beside and alike else {}
        self.stored_plan = StoredPlan.of(program, self.options)
        self.plan = plan_program(self.device, self.options, self._packed, self.stored_plan)
        self._loaded = loaded_tensors(program)
        self._executor = beside.executor if beside else Executor(self.threads)
        if len(self.plan.packing):
            self._executor.run(self.plan.packing)
            release_pages(self.device.weights)
        self._turns: _Turns = beside._turns if beside else _Turns()
        self.trace: tuple[int, ...] | None = None

    @property
    def executor(self) -> Executor:
        """The loop that runs the rows."""
        return self._executor

    @property
    def host_tasks(self) -> list[Task]:
        """Tasks that Python runs, fallbacks of device tasks included."""
        return [self.program.tasks[position] for position in self.plan.python_tasks]

    @property
    def fallbacks(self) -> dict[str, str]:
        """Device tasks that run on their slow twin, with the reason."""
        return self.plan.fallbacks

    def run(self, feeds: Mapping[str, np.ndarray], names: Sequence[str] | None = None) -> list[np.ndarray]:
        """Copy in, execute all tasks, copy out.

        Raises:
            UsageError: feeds or output names do not fit. DeviceFault: a task stopped the device.
        """
        with self._turns.lock:
            self._turns.count += 1
            self.device.copy_in(feeds)
            if self.checked:
                self.device.poison_arena()
                self.trace = tuple(self._run_checked(task) for task in stepwise(self.device))
            else:
                tracer = None if self.program.is_straight else Tracer(self.plan.first_row)
                self._run_rows(0, len(self.plan.table), tracer)
                self.trace = tracer.tasks if tracer else None
            return self.device.copy_out(names)

    def run_layers(self, feeds: Mapping[str, np.ndarray]) -> Iterator[TaskRun]:
        """Execute task by task, yielding each with its operands; the device then holds the results for ``copy_out``.

        Raises:
            UsageError: feeds do not fit, or another run took the device before the last task was asked for.
        """
        with self._turns.lock:
            self._turns.count += 1
            mine = self._turns.count
            self.device.copy_in(feeds)
        for task in stepwise(self.device):
            if task.is_jump:
                continue
            with self._turns.lock:
                if self._turns.count != mine:
                    hint = "read all layers of one run before the next run"
                    raise UsageError("another run took the device between two layers", node=task.name, hint=hint)
                inputs = tuple(None if item is None else self.device.read_tensor(item).copy() for item in task.inputs)
                self._run_task(task)
                outputs = tuple(self.device.read_tensor(item).copy() for item in task.outputs)
            yield TaskRun(task, inputs, outputs)

    def close(self) -> None:
        """Stop the worker threads."""
        self._executor.close()

    def _run_rows(self, start: int, stop: int, tracer: Tracer | None = None) -> None:
        row = start
        while row < stop:
            status = self._executor.run(self.plan.table, row, stop, tracer.buffer if tracer else None)
            if tracer:
                tracer.take()
            if status.code == OK:
                return
            if status.code == TRACE_FULL:
                row = status.row
                continue
            task, *merged = [self.program.tasks[position] for position in self.plan.tasks_of(status.row)]
            if status.code not in (HOST_ROW, NOT_FINITE):
                raise _fault(status.code, status.info, task)
            if status.code == HOST_ROW and task.id in self.plan.late:
                self._run_late(task)
            else:
                self._run_on_host(task)
            for follower in merged:
                self._run_task(follower)
            row = status.row + 1

    def _run_late(self, task: Task) -> None:
        """Load a streamed weight; or plan a task now that its weight is there, run it, and forget the packed weight."""
        if task.is_load:
            self.device.load(task)
            return
        chosen = self.stored_plan.algorithm
        calls = plan_task(task, self.device, self.options, self._loaded, chosen=chosen)[0] if task.on_device else None
        if calls is None:
            self._run_on_host(task)
            return
        status = self._executor.run(task_table(calls))
        if status.code == NOT_FINITE:
            self._run_on_host(task)
        elif status.code != OK:
            raise _fault(status.code, status.info, task)

    def _run_on_host(self, task: Task) -> None:
        from npusim.host import run_host_task

        run_host_task(task, self.device, self.overflow)

    def _run_task(self, task: Task) -> None:
        first, last = self.plan.rows_of(task.id)
        self._run_rows(first, last)

    def _run_checked(self, task: Task) -> int:
        """Run one task between checks; its id."""
        self.device.check_reads(task)
        if not task.is_jump:
            self.device.poison_results(task)
            self._run_task(task)
        return task.id


def usable_cpus() -> int:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _fault(code: int, info: int, task: Task) -> DeviceFault:
    if code == INDEX_OUT_OF_RANGE:
        return DeviceFault(
            f"{task.kernel.op_type} read an index that is out of range", node=task.name, got=f"index {info}"
        )
    return DeviceFault(f"{task.kernel.op_type} stopped the device", node=task.name, got=f"status {code}, detail {info}")
