"""What stands around a memory plan: GE's own beside it, what-if table, gears, time windows, files with a picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metadef.files import write_text
from metadef.memory.plan import MemoryPlan
from metadef.memory.report import allocation_rows, memory_timeline, plan_to_json
from metadef.plan_study import AddressWindow, WhatIf, address_windows
from metadef.schedule import Schedule
from metadef.weight_stream import WeightTraffic
from npusim.report.units import show_bytes, show_share

if TYPE_CHECKING:
    from npusim.report.lifetimes import ArenaStory

SHOWN_HOLDERS = 6


def recorded_json(plan: MemoryPlan) -> dict[str, Any]:
    """The figures of the plan that GE recorded in a dump (bytes)."""
    return {
        "total_size": plan.total_size,
        "no_reuse": plan.no_reuse,
        "io_bytes": plan.io_bytes,
        "weights_bytes": plan.weights_bytes,
        "optimal": plan.optimal,
    }


def print_recorded(ours: MemoryPlan, recorded: MemoryPlan, console: Any) -> None:
    """One line: GE's plan beside ours."""
    ratio = recorded.total_size / ours.total_size if ours.total_size else 1.0
    console.print(
        f"GE's own plan in this file: {recorded.total_size:,} bytes, {ratio:.3f} times ours; "
        f"{show_share(recorded.no_reuse - recorded.total_size, recorded.no_reuse)} saved "
        f"(ours {show_share(ours.no_reuse - ours.total_size, ours.no_reuse)})",
        highlight=False,
    )


def print_traffic(traffic: WeightTraffic, console: Any) -> None:
    """One line: what streaming the weights moves and what it frees."""
    console.print(
        f"weights streamed: {traffic.loads} loads move {show_bytes(traffic.loaded_bytes)} a run "
        f"(largest {show_bytes(traffic.largest_bytes)}); {show_bytes(traffic.streamed_bytes)} need no place of their "
        f"own, {show_bytes(traffic.resident_bytes)} stay resident",
        highlight=False,
    )


def print_what_if(rows: Sequence[WhatIf], console: Any) -> None:
    """The same network planned in other ways."""
    base = rows[0].total_size
    cells = [
        (row.name, str(row.steps), f"{row.total_size:,}", f"{row.total_size / base:.3f}" if base else "-",
         f"{row.theory_min:,}", "yes" if row.optimal else "no")
        for row in rows
    ]  # fmt: skip
    titles = ("what if", "steps", "arena", "ratio", "lower bound", "proved")
    _print_table("", titles, cells, console, left={0})


def print_gears(rows: Sequence[dict[str, Any]], console: Any) -> None:
    """Every gear and its plan, over one arena."""
    arena = max(row["total_size"] for row in rows)
    console.print(f"{len(rows)} gears over one arena of {show_bytes(arena)} ({arena:,} bytes)", highlight=False)
    cells = [
        (row["gear"], f"{row['total_size']:,}", show_share(row["total_size"], arena), f"{row['theory_min']:,}",
         "yes" if row["optimal"] else "no")
        for row in rows
    ]  # fmt: skip
    _print_table("", ("gear", "needs", "of the arena", "lower bound", "proved"), cells, console, left={0})


def print_windows(windows: Sequence[AddressWindow], console: Any, *, rows: int = 24) -> None:
    """Who holds an address when; the largest pieces, in order of address."""
    largest = sorted(windows, key=lambda item: -item.size * len(item.holders))[:rows]
    cells = []
    for item in sorted(largest, key=lambda item: (item.pool, item.offset)):
        held = [f"{first}-{last} {name}" for first, last, name in item.holders]
        more = f", … {len(held) - SHOWN_HOLDERS} more" if len(held) > SHOWN_HOLDERS else ""
        cells.append((f"{item.offset:,}", f"{item.size:,}", ", ".join(held[:SHOWN_HOLDERS]) + more))
    _print_table("who holds an address when (steps)", ("address", "bytes", "holders"), cells, console, left={2})
    if len(windows) > rows:
        console.print(f"… {len(windows) - rows} smaller pieces; --json and --out list all", highlight=False)


def windows_json(windows: Iterable[AddressWindow]) -> list[dict[str, Any]]:
    """Pieces of the arena and their holders, in order of time."""
    return [
        {
            "pool": item.pool,
            "offset": item.offset,
            "size": item.size,
            "holders": [{"first": first, "last": last, "id": name} for first, last, name in item.holders],
        }
        for item in windows
    ]


def write_plan_files(folder: Path, schedule: Schedule, plan: MemoryPlan) -> list[Path]:
    """plan.json, allocation.csv, windows.csv and a picture per memory pool; returns their paths.

    Raises:
        UsageError: the folder cannot be written.
    """
    from npusim.report.pictures import arena_figure, save_figure

    names = [step.name for step in schedule.steps]
    written = [
        write_text(folder / "plan.json", json.dumps(plan_to_json(schedule, plan), indent=1) + "\n"),
        write_text(folder / "allocation.csv", _table_text(allocation_rows(schedule, plan))),
        write_text(folder / "windows.csv", _table_text(_window_rows(plan))),
    ]
    for pool, figures in plan.pools.items():
        title = (
            f"{schedule.name}: {pool} {show_bytes(figures.total_size)}, lower bound {show_bytes(figures.theory_min)}, "
            f"without reuse {show_bytes(figures.no_reuse)}"
        )
        figure = arena_figure(plan_story(schedule, plan, pool), names, figures.total_size, title)
        suffix = "" if len(plan.pools) == 1 else f"_{pool}"
        written.append(save_figure(figure, folder / f"memory{suffix}.png"))
    return written


def plan_story(schedule: Schedule, plan: MemoryPlan, pool: str) -> ArenaStory:
    """Who lies where and when in one pool of the arena."""
    from dataclasses import replace

    from npusim.report.lifetimes import ArenaStory, Life

    own = replace(plan, rows=[row for row in plan.rows if row.region == "arena" and row.pool == pool])
    timeline = memory_timeline(schedule, own)
    lives = tuple(
        Life(rect.name, rect.offset, rect.size, rect.first, rect.last, rect.kind == "workspace")
        for rect in timeline.rects
        if rect.kind != "view"
    )
    return ArenaStory(lives, tuple(timeline.live_bytes), timeline.peak_step)


def _window_rows(plan: MemoryPlan) -> list[dict[str, Any]]:
    return [
        {"pool": item.pool, "offset": item.offset, "size": item.size, "first": first, "last": last, "name": name}
        for item in address_windows(plan)
        for first, last, name in item.holders
    ]


def _table_text(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def _print_table(
    title: str, titles: Sequence[str], cells: Iterable[Sequence[str]], console: Any, left: set[int]
) -> None:
    from rich.table import Table

    table = Table(header_style="bold", title=title or None, title_justify="left")
    for position, name in enumerate(titles):
        table.add_column(name, justify="left" if position in left else "right")
    for row in cells:
        table.add_row(*row)
    console.print(table)
