"""Chrome / Perfetto trace of a profile: a track of tasks, one track per pipe of the slowest core, counters of bytes.

Format: the Trace Event list that ``chrome://tracing`` and ui.perfetto.dev open. Times are microseconds of the chip.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from metadef.files import write_text
from metadef.program import Program
from metadef.target import Target
from npusim.profile import Profile
from npusim.report.lifetimes import arena_story
from npusim.report.table import PIPES, gm_bytes

DEVICE_PID, PIPE_PID = 1, 2


def trace_events(
    program: Program, profile: Profile, target: Target, *, max_intervals: int = 400
) -> list[dict[str, Any]]:
    """Trace events; pipes are those of a repeated run, as ``profile`` is timed.

    ``max_intervals`` bounds the pipe intervals drawn per task; how many of the slowest core's instructions are left out
    is said in their arguments.
    """
    from npusim.timing import executed_tasks, memory_state, task_timeline

    events = _names(profile)
    live = arena_story(program).live_bytes
    executed = executed_tasks(program, target, [row.task for row in profile.tasks])
    for row, (task, access) in zip(profile.tasks, executed, strict=True):
        start = profile.to_us(row.start_cycles)
        arguments = {
            "operator": row.op_type,
            "cycles": row.cycles,
            "bound by": row.bound_by,
            "cores": row.block_dim,
            "origins": ", ".join(row.origins),
            "layer": row.layer,
            "causes": row.causes,
            "bytes": row.bytes,
        }
        track = 1 if row.engine == "AIcoreEngine" else 2 if row.engine == "VectorEngine" else 3
        events.append(_slice(DEVICE_PID, track, row.name, start, profile.to_us(row.cycles), arguments))
        events.append(_counter("arena live bytes", start, live[row.task]))
        events.append(_counter("GM bytes per us", start, round(gm_bytes(row) / max(profile.to_us(row.cycles), 1e-9))))
        if task.on_device:
            timeline = task_timeline(task, target, memory=memory_state(task, access))
            shown = timeline.intervals[:max_intervals]
            left_out = timeline.left_out + len(timeline.intervals) - len(shown)
            for interval in shown:
                begin = start + profile.to_us(interval.start)
                length = profile.to_us(interval.end - interval.start)
                details = {"task": row.name, "left out": left_out}
                events.append(_slice(PIPE_PID, PIPES.index(interval.pipe) + 1, interval.label, begin, length, details))
    return events


def write_trace(path: str | Path, program: Program, profile: Profile, target: Target) -> Path:
    """Write the trace as JSON. Raises UsageError if it cannot be written."""
    document = {
        "traceEvents": trace_events(program, profile, target),
        "displayTimeUnit": "ns",
        "otherData": {"soc": profile.soc, "network": profile.name, "clock_mhz": profile.clock_mhz},
    }
    return write_text(path, json.dumps(document, separators=(",", ":")))


def _names(profile: Profile) -> list[dict[str, Any]]:
    named = [
        (DEVICE_PID, 0, "process_name", f"{profile.soc}: tasks"),
        (PIPE_PID, 0, "process_name", f"{profile.soc}: pipes of the slowest core"),
    ]
    named += [
        (DEVICE_PID, track, "thread_name", name)
        for track, name in ((1, "cube tasks"), (2, "vector tasks"), (3, "host tasks"))
    ]
    named += [(PIPE_PID, index + 1, "thread_name", pipe) for index, pipe in enumerate(PIPES)]
    return [{"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}} for pid, tid, kind, name in named]


def _slice(pid: int, tid: int, name: str, start: float, length: float, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "ts": round(start, 4),
        "dur": round(length, 4),
        "args": arguments,
    }


def _counter(name: str, start: float, value: int) -> dict[str, Any]:
    return {"ph": "C", "pid": DEVICE_PID, "name": name, "ts": round(start, 4), "args": {"value": value}}
