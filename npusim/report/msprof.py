"""A profile as the real profiler's folder: ``PROF_*`` with op_summary, op_statistic, task_time and a timeline.

Columns and file names are those of msprof (older spelling ``Block Dim``, which every reader accepts), so that tools
made for it open them. One file is ours: ``cycles_by_cause``, whose causes add up to each task's cycles.
"""

from __future__ import annotations

import csv
import io
import json
import random
import string
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from metadef.files import write_text
from metadef.format import TensorDesc
from metadef.program import Program, Task
from metadef.target import Target
from npusim.profile import CAUSES, Profile, TaskProfile

BASE_COLUMNS = (
    "Device_id", "Model ID", "Task ID", "Stream ID", "Op Name", "OP Type", "OP State", "Task Type",
    "Task Start Time(us)", "Task Duration(us)", "Task Wait Time(us)", "Block Dim", "Mix Block Dim", "HF32 Eligible",
    "Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats",
    "Context ID",
)  # fmt: skip
_CUBE_PIPES = (("mac", "CUBE"), ("scalar", "SCALAR"), ("mte1", "MTE1"), ("mte2", "MTE2"), ("fixpipe", "FIXPIPE"))
_VECTOR_PIPES = (("vec", "VECTOR"), ("scalar", "SCALAR"), ("mte2", "MTE2"), ("mte3", "MTE3"))
_COUPLED_PIPES = (
    ("vec", "VECTOR"), ("mac", "CUBE"), ("scalar", "SCALAR"), ("mte1", "MTE1"), ("mte2", "MTE2"), ("mte3", "MTE3"),
)  # fmt: skip
_NONE = "N/A"
Row = dict[str, Any]


def write_msprof(folder: Path, program: Program, profile: Profile, target: Target) -> Path:
    """Write ``PROF_000001_<17 digits>_<8 letters>`` into ``folder`` and return its path.

    Raises:
        UsageError: the folder cannot be written.
    """
    now = datetime.now()
    letters = "".join(random.Random(now.timestamp()).choices(string.ascii_uppercase, k=8))
    root = folder / f"PROF_000001_{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}_{letters}"
    output, stamp = root / "mindstudio_profiler_output", f"{now:%Y%m%d%H%M%S}"
    tables = {
        "op_summary": op_summary(program, profile, target),
        "op_statistic": op_statistic(profile, target),
        "task_time": _task_time(program, profile),
        "cycles_by_cause": cycles_by_cause(profile),
    }
    for name, rows in tables.items():
        write_text(output / f"{name}_{stamp}.csv", _csv(rows))
    write_text(output / f"msprof_{stamp}.json", json.dumps(_events(program, profile), separators=(",", ":")))
    info = {
        "id": 0, "ai_core_num": target.cube_cores, "aiv_num": 0 if target.coupled else target.vector_cores,
        "aic_frequency": str(round(target.clock_mhz)),
    }  # fmt: skip
    write_text(root / "device_0" / "info.json.0", json.dumps({"DeviceInfo": [info]}))
    return root


def op_summary(program: Program, profile: Profile, target: Target) -> list[Row]:
    """One row a task with the profiler's columns; PMU columns are those of the chip's family."""
    tasks = {task.id: task for task in program.tasks}
    rows, ends = [], dict.fromkeys((task.stream for task in program.tasks), 0)
    for at, row in enumerate(profile.tasks):
        task = tasks[row.task]
        wait = max(row.start_cycles - ends[task.stream], 0)
        ends[task.stream] = row.start_cycles + row.cycles
        rows.append(
            dict(zip(BASE_COLUMNS, _base(task, row, profile, target, at, wait), strict=True))
            | pmu_columns(row, profile, target)
        )
    return rows


def _base(task: Task, row: TaskProfile, profile: Profile, target: Target, at: int, wait: int) -> list[Any]:
    inputs = [item.desc for item in task.inputs if item is not None]
    outputs = [item.desc for item in task.outputs]
    return [
        0, 1, at, task.stream, row.name, row.op_type, "static", task_type(row, target),
        f"{profile.to_us(row.start_cycles):.3f}\t", round(profile.to_us(row.cycles), 3),
        round(profile.to_us(wait), 3), row.block_dim, 0, "NO", *_tensors(inputs), *_tensors(outputs), _NONE,
    ]  # fmt: skip


def task_type(row: TaskProfile, target: Target) -> str:
    """The profiler's name of the engine: chips whose cores have both units know AI_CORE alone."""
    if row.engine == "VectorEngine":
        return "AI_CORE" if target.coupled else "AI_VECTOR_CORE"
    return "AI_CORE" if row.engine == "AIcoreEngine" else "AI_CPU"


def _tensors(descs: Sequence[TensorDesc]) -> tuple[str, str, str]:
    """Shapes (a quoted string, as the profiler prints them), element types and formats."""
    if not descs:
        return _NONE, _NONE, _NONE
    shapes = ";".join(",".join(map(str, desc.shape)) for desc in descs)
    return f'"{shapes}"', ";".join(desc.dtype.name for desc in descs), ";".join(desc.format.name for desc in descs)


def pmu_columns(row: TaskProfile, profile: Profile, target: Target) -> Row:
    """Counters of PipeUtilization. Times are those of an average core, ratios of its cycles."""
    core = max(row.cycles - row.causes.get("launch", 0) - row.causes.get("imbalance", 0), 0)
    slowest = core + row.causes.get("imbalance", 0)
    on_cube = row.engine == "AIcoreEngine"
    cores = min(row.block_dim, target.cores(on_cube))

    def side(prefix: str, time_name: str, pipes: Iterable[tuple[str, str]], busy: bool) -> Row:
        total = f"{prefix}total_cycles"
        values: Row = {time_name: round(profile.to_us(core), 3) if busy else 0, total: core * cores if busy else 0}
        for name, pipe in pipes:
            share = min(row.pipes.get(pipe, 0) / slowest, 1.0) if busy and slowest else 0.0
            values[f"{prefix}{name}_time(us)"] = round(profile.to_us(round(share * core)), 3)
            values[f"{prefix}{name}_ratio"] = round(share, 4)
        return values

    whole = target.cores(on_cube) * row.cycles
    used = round(100 * core * cores / whole, 3) if whole and on_cube else 0
    device = row.engine in ("AIcoreEngine", "VectorEngine")
    if target.coupled:
        values = side("", "aicore_time(us)", _COUPLED_PIPES, device)
        work = max(values["mac_ratio"], values["vec_ratio"])
        bound = round(values["mte2_ratio"] / work, 4) if work else 0
        return {**values, "icache_miss_rate": 0, "memory_bound": bound, "cube_utilization(%)": used}
    vector = device and (not on_cube or row.pipes.get("VECTOR", 0) > 0)
    return {
        **side("aic_", "aicore_time(us)", _CUBE_PIPES, on_cube), "aic_icache_miss_rate": 0,
        **side("aiv_", "aiv_time(us)", _VECTOR_PIPES, vector), "aiv_icache_miss_rate": 0,
        "cube_utilization(%)": used,
    }  # fmt: skip


def op_statistic(profile: Profile, target: Target) -> list[Row]:
    """Count and times of each operator type, longest first."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in profile.tasks:
        groups.setdefault((row.op_type, task_type(row, target)), []).append(profile.to_us(row.cycles))
    total = sum(sum(times) for times in groups.values())
    return [
        {
            "Device_id": 0, "Model Name": profile.name, "OP Type": kind, "Core Type": core, "Count": len(times),
            "Total Time(us)": round(sum(times), 3), "Min Time(us)": round(min(times), 3),
            "Avg Time(us)": round(sum(times) / len(times), 3), "Max Time(us)": round(max(times), 3),
            "Ratio(%)": round(100 * sum(times) / total, 3) if total else 0,
        }
        for (kind, core), times in sorted(groups.items(), key=lambda item: -sum(item[1]))
    ]  # fmt: skip


def cycles_by_cause(profile: Profile) -> list[Row]:
    """Cycles of every task and what they were spent on; the causes add up to the cycles."""
    return [
        {
            "Task ID": at, "Op Name": row.name, "OP Type": row.op_type, "cycles": row.cycles,
            **{cause: row.causes.get(cause, 0) for cause in CAUSES}, "bound by": row.bound_by,
        }
        for at, row in enumerate(profile.tasks)
    ]  # fmt: skip


def _task_time(program: Program, profile: Profile) -> list[Row]:
    streams = {task.id: task.stream for task in program.tasks}
    kinds = {"AIcoreEngine": "KERNEL_AICORE", "VectorEngine": "KERNEL_AIVEC"}
    return [
        {
            "Device_id": 0, "kernel_name": row.name, "kernel_type": kinds.get(row.engine, "KERNEL_AICPU"),
            "stream_id": streams[row.task], "task_id": at, "task_time(us)": round(profile.to_us(row.cycles), 3),
            "task_start(us)": f"{profile.to_us(row.start_cycles):.3f}\t",
            "task_stop(us)": f"{profile.to_us(row.start_cycles + row.cycles):.3f}\t",
        }
        for at, row in enumerate(profile.tasks)
    ]  # fmt: skip


def _events(program: Program, profile: Profile) -> list[Row]:
    """The layer Ascend Hardware of the profiler's timeline: a thread a stream, a slice a task."""
    streams = {task.id: task.stream for task in program.tasks}
    pid = 1 << 10 | 14 << 5
    events: list[Row] = [
        {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": "Ascend Hardware"}},
        {"name": "process_labels", "ph": "M", "pid": pid, "tid": 0, "args": {"labels": "NPU"}},
        {"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": 14}},
    ]
    for stream in sorted(set(streams.values())):
        name = {"name": f"Stream {stream}"}
        events.append({"name": "thread_name", "ph": "M", "pid": pid, "tid": stream, "args": name})
    for at, row in enumerate(profile.tasks):
        arguments = {
            "Model Id": 1, "Task Type": row.engine, "Physic Stream Id": streams[row.task], "Task Id": at,
            "Batch Id": 0, "Subtask Id": 4294967295, "connection_id": at,
        }  # fmt: skip
        start, length = f"{profile.to_us(row.start_cycles):.3f}", round(profile.to_us(row.cycles), 3)
        slice_ = {"name": row.name, "ph": "X", "pid": pid, "tid": streams[row.task], "ts": start, "dur": length}
        events.append({**slice_, "args": arguments})
    return events


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["Device_id"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
