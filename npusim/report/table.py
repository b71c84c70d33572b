"""The per-operator table of a profile, as rows for machines and as text for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metadef.files import write_text
from npusim.profile import Profile, TaskProfile
from npusim.report.units import show_bytes, show_share, show_us

PIPES = ("MTE2", "MTE1", "CUBE", "FIXPIPE", "VECTOR", "MTE3", "SCALAR")


def task_rows(profile: Profile) -> list[dict[str, Any]]:
    """One dictionary a task with plain values, in execution order (what ``--json`` prints).

    A task that ran several times has one row, with its ``runs`` added up.
    """
    return [
        {
            "task": task.task,
            "name": task.name,
            "op_type": task.op_type,
            "algorithm": task.algorithm,
            "engine": task.engine,
            "block_dim": task.block_dim,
            "runs": task.runs,
            "start_cycles": task.start_cycles,
            "cycles": task.cycles,
            "us": round(profile.to_us(task.cycles), 4),
            "share": round(task.cycles / profile.cycles, 6) if profile.cycles else 0.0,
            "pipes": dict(task.pipes),
            "causes": dict(task.causes),
            "bytes": dict(task.bytes),
            "hbm_read_bytes": task.hbm_read_bytes,
            "hbm_write_bytes": task.hbm_write_bytes,
            "l2_hit_bytes": task.l2_hit_bytes,
            "flops": task.flops,
            "energy_pj": task.energy_pj,
            "bound_by": task.bound_by,
            "origins": list(task.origins),
            "layer": task.layer,
        }
        for task in profile.by_task().tasks
    ]


def write_table(path: Path, profile: Profile) -> Path:
    """Write the table as CSV. Raises UsageError if it cannot be written."""
    return write_text(path, _csv(profile))


def _csv(profile: Profile) -> str:
    """The per-operator table; nested columns become ``pipes.CUBE`` and so on, lists are joined with ``;``."""
    rows = []
    for row in task_rows(profile):
        flat: dict[str, object] = {}
        for key, value in row.items():
            if isinstance(value, dict):
                flat.update({f"{key}.{name}": item for name, item in value.items()})
            else:
                flat[key] = ";".join(value) if isinstance(value, list) else value
        rows.append(flat)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval=0, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def by_time(profile: Profile, count: int | None = None) -> list[TaskProfile]:
    """Longest tasks first, all their runs added up."""
    return sorted(profile.by_task().tasks, key=lambda task: -task.cycles)[:count]


def print_table(profile: Profile, console: Any, *, top: int | None = None, compact: bool = False) -> None:
    """Print the table to a rich console: all tasks in order, or the ``top`` longest.

    ``compact`` names the busiest pipe instead of giving every pipe a column, and fits 110 columns.
    """
    from rich.table import Table

    tasks: Sequence[TaskProfile] = profile.by_task().tasks if top is None else by_time(profile, top)
    repeats = any(task.runs > 1 for task in tasks)
    pipes = () if compact else tuple(pipe for pipe in PIPES if any(task.pipes.get(pipe) for task in tasks))
    total = (
        f"{len(profile.tasks)} {'executed ' if repeats else ''}tasks, {profile.cycles:,} cycles = {show_us(profile.us)}"
    )
    title = f"{profile.name} on {profile.soc}: {total}" + ("" if top is None else f"; the {len(tasks)} longest")
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("#", justify="right")
    table.add_column("operator")
    table.add_column("from nodes", max_width=28 if compact else 34)
    table.add_column("on")
    table.add_column("cores", justify="right")
    if repeats:
        table.add_column("runs", justify="right")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    for pipe in pipes:
        table.add_column(f"{pipe}\ncycles", justify="right")
    if compact:
        table.add_column("busiest pipe\n(cycles)")
    table.add_column("GM bytes", justify="right")
    table.add_column("bound by")
    for task in tasks:
        busiest = max(task.pipes, key=lambda pipe: task.pipes[pipe], default="")
        table.add_row(
            str(task.task),
            task.op_type if task.algorithm == "direct" else f"{task.op_type} {task.algorithm}",
            _origins(task),
            _where(task.engine),
            str(task.block_dim),
            *((str(task.runs),) if repeats else ()),
            show_us(profile.to_us(task.cycles)),
            show_share(task.cycles, profile.cycles),
            *(f"{task.pipes[pipe]:,}" if task.pipes.get(pipe) else "" for pipe in pipes),
            *((f"{busiest} {task.pipes[busiest]:,}" if busiest else "",) if compact else ()),
            show_bytes(gm_bytes(task)),
            task.bound_by,
        )
    console.print(table)


def _origins(task: TaskProfile) -> str:
    """Source nodes; the layer path that all share is written once. Tasks the compiler added show their own name."""
    if not task.origins:
        return f"({task.name})"
    paths = [origin.split("/") for origin in task.origins]
    shared = 0
    while len(paths) > 1 and all(len(path) > shared + 1 and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    lead = "/".join(paths[0][:shared])
    names = " + ".join("/".join(path[shared:]) for path in paths)
    return f"{lead}/ {names}" if lead else names


def gm_bytes(task: TaskProfile) -> int:
    """Bytes between the cores and global memory (L2 or HBM behind it), both ways."""
    return sum(count for path, count in task.bytes.items() if "GM" in path.split("->"))


def _where(engine: str) -> str:
    names = {"AIcoreEngine": "cube", "VectorEngine": "vector", "DNN_VM_RTS": "scheduler"}
    return names.get(engine, "host")
