"""Fitting a chip's constants to a user's own op_summary: kernels placed once, a handful of constants moved.

Every row that can be expressed is predicted with its own block_dim. The constants of :data:`FITTED` are then moved in
steps, one after another, as long as the error falls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from metadef.cost.run import run_kernel
from metadef.cost.streams import MemoryState
from metadef.kernel import TIMING_ONLY, Engine, Kernel
from metadef.select.cube import choose_cube_kernel
from metadef.select.vector import choose_vector_kernel
from metadef.target import Target, replaced
from npusim.op_summary import Loaded, MeasuredTask, read_tasks

FITTED = (
    "launch.task_us", "launch.core_graph_us", "memory.hbm_efficiency", "memory.l2_tb_s", "vector.dependent_call_cycles",
    "cores.clock_mhz",
)  # fmt: skip
"""Constants moved unless others are asked for; the clock is read off cycles and times where a file has both."""
_STEPS = (1.5, 1.2, 1.07, 1.02, 1.005)
_BOUND = 4.0


@dataclass(frozen=True)
class Figures:
    """Errors of predictions: median and 90th percentile of |predicted / measured - 1|, and the median ratio."""

    median: float
    p90: float
    bias: float


@dataclass(frozen=True)
class Calibration:
    """What a fit found. ``before`` and ``after`` are microseconds per task, in order."""

    target: Target
    fitted: Target
    tasks: tuple[MeasuredTask, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    moved: dict[str, tuple[float, float]]

    def figures(self, predicted: Sequence[float]) -> Figures:
        ratio = np.array([value / task.measured_us for value, task in zip(predicted, self.tasks)])
        error = np.abs(ratio - 1)
        return Figures(float(np.median(error)), float(np.quantile(error, 0.9)), float(np.median(ratio)))


def load_op_summary(path: Path, target: Target) -> Loaded:
    """Tasks of an op_summary or kernel_details CSV.

    Raises:
        UsageError: no such file, no CSV of a profiler, or nothing in it can be predicted.
    """
    return read_tasks(path, target, predict)


def predict(task: MeasuredTask, target: Target) -> float:
    """Microseconds of a task with its own block_dim; operands as they lie in L2 in the middle of a network."""
    return _placed_us(_place(task, target), target)


def _placed_us(kernel: Kernel, target: Target) -> float:
    size = target.value("memory.l2_bytes")
    moved = sum(desc.payload_bytes for desc in (*kernel.inputs, *kernel.outputs) if desc is not None)
    beyond = max(0.0, 1 - size / max(moved, 1))
    weights = 1.0 if kernel.engine is Engine.AICORE else beyond
    memory = MemoryState(cold=(beyond, weights, *[beyond] * (len(kernel.inputs) - 2)), write_back=beyond)
    return run_kernel(kernel, target, memory).cycles / target.clock_mhz


def calibrate(
    loaded: Loaded, target: Target, keys: Sequence[str] = FITTED, on_step: Callable[[str], None] = lambda text: None
) -> Calibration:
    """Move the constants, one after another and in ever smaller steps, as long as the error falls.

    Tiles are chosen once, with the chip's own constants: a fit moves times, not the vendor's choices.

    Raises:
        TargetError: the chip lacks one of the constants, or it is no number.
    """
    start = {key: target.number(key) for key in keys}
    placed = [_place(task, target) for task in loaded.tasks]
    measured = np.array([task.measured_us for task in loaded.tasks])

    def times(chip: Target) -> np.ndarray:
        return np.array([_placed_us(kernel, chip) for kernel in placed])

    def loss(chip: Target) -> float:
        error = np.abs(np.log(times(chip) / measured))
        return float(np.mean(np.minimum(error, 0.7)))

    values, chip = dict(start), target
    if loaded.clock_mhz and "cores.clock_mhz" in values:
        values["cores.clock_mhz"] = round(loaded.clock_mhz)
        chip = replaced(target, values)
    best = loss(chip)
    free = [key for key in keys if key != "cores.clock_mhz"]
    for step in _STEPS:
        moving = True
        while moving:
            moving = False
            for key in free:
                for factor in (step, 1 / step):
                    value = values[key] * factor
                    if not start[key] / _BOUND <= value <= start[key] * _BOUND:
                        continue
                    trial = replaced(target, {**values, key: value})
                    found = loss(trial)
                    if found < best * (1 - 1e-4):
                        best, chip, values, moving = found, trial, {**values, key: value}, True
                        break
        on_step(f"steps of {step:g}: error {best:.1%}")
    moved = {key: (start[key], values[key]) for key in keys}
    return Calibration(target, chip, loaded.tasks, tuple(times(target)), tuple(times(chip)), moved)


def _place(task: MeasuredTask, target: Target) -> Kernel:
    cores = task.block_dim or None
    if task.kernel.algorithm == TIMING_ONLY:
        return replace(task.kernel, block_dim=cores or task.kernel.block_dim)
    if task.kernel.engine is Engine.VECTOR:
        return choose_vector_kernel(task.kernel, target, block_dim=cores)
    return choose_cube_kernel(task.kernel, target, cold_b=True, block_dim=cores)[0]
