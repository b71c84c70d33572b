"""The per-operator table of a profile, as rows for machines and as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npusim.profile import Profile, TaskProfile
from npusim.report.units import show_bytes, show_share, show_us

PIPES = ("MTE2", "MTE1", "CUBE", "FIXPIPE", "VECTOR", "MTE3", "SCALAR")


def task_rows(profile: Profile) -> list[dict[str, Any]]:
    """One dictionary a task with plain values, in execution order (what ``--json`` prints)."""
    return [
        {
            "task": task.task,
            "name": task.name,
            "op_type": task.op_type,
            "engine": task.engine,
            "block_dim": task.block_dim,
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
        for task in profile.tasks
    ]


def by_time(profile: Profile, count: int | None = None) -> list[TaskProfile]:
    """Longest tasks first."""
    return sorted(profile.tasks, key=lambda task: -task.cycles)[:count]


def print_table(profile: Profile, console: Any, *, top: int | None = None) -> None:
    """Print the table to a rich console: all tasks in order, or the ``top`` longest."""
    from rich.table import Table

    tasks: Sequence[TaskProfile] = profile.tasks if top is None else by_time(profile, top)
    pipes = [pipe for pipe in PIPES if any(task.pipes.get(pipe) for task in tasks)]
    total = f"{len(profile.tasks)} tasks, {profile.cycles:,} cycles = {show_us(profile.us)}"
    title = f"{profile.name} on {profile.soc}: {total}"
    table = Table(
        title=title if top is None else f"{title}; the {len(tasks)} longest", title_justify="left", header_style="bold"
    )
    table.add_column("#", justify="right")
    table.add_column("operator", overflow="fold", max_width=36)
    table.add_column("on")
    table.add_column("cores", justify="right")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    for pipe in pipes:
        table.add_column(f"{pipe}\ncycles", justify="right")
    table.add_column("GM bytes", justify="right")
    table.add_column("bound by")
    table.add_column("from", overflow="ellipsis", no_wrap=True, max_width=28)
    for task in tasks:
        table.add_row(
            str(task.task),
            f"{task.op_type} {task.name}",
            _where(task.engine),
            str(task.block_dim),
            show_us(profile.to_us(task.cycles)),
            show_share(task.cycles, profile.cycles),
            *(f"{task.pipes.get(pipe, 0):,}" if task.pipes.get(pipe) else "" for pipe in pipes),
            show_bytes(gm_bytes(task)),
            task.bound_by,
            ", ".join(task.origins),
        )
    console.print(table)


def gm_bytes(task: TaskProfile) -> int:
    """Bytes between the cores and global memory (L2 or HBM behind it), both ways."""
    return sum(count for path, count in task.bytes.items() if "GM" in path.split("->"))


def _where(engine: str) -> str:
    return {"AIcoreEngine": "cube", "VectorEngine": "vector"}.get(engine, "host")
