"""What stands around a memory plan: GE's own beside it, what-if table, gears, streamed weights, time windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from metadef.memory.plan import MemoryPlan, PoolFigures
from metadef.plan_study import AddressWindow, WhatIf, address_windows
from metadef.weight_stream import WeightTraffic
from npusim.report.units import show_bytes, show_share

SHOWN_HOLDERS = 6


def recorded_json(plan: MemoryPlan) -> dict[str, Any]:
    """The figures of the plan that GE recorded in a dump, or we in an offline model (bytes)."""
    return {
        "total_size": plan.total_size,
        "no_reuse": plan.no_reuse,
        "io_bytes": plan.io_bytes,
        "weights_bytes": plan.weights_bytes,
        "optimal": plan.optimal,
    }


def print_recorded(ours: MemoryPlan, recorded: MemoryPlan, console: Any, *, made_here: bool = False) -> None:
    """One line: the plan in a file, GE's or of a model that was ``made_here``, beside the one made now."""
    whose, now = ("The plan", "the one above") if made_here else ("GE's own plan", "ours")
    ratio = recorded.total_size / ours.total_size if ours.total_size else 1.0
    console.print(
        f"{whose} in this file: {recorded.total_size:,} bytes, {ratio:.3f} times {now}; "
        f"{show_share(recorded.no_reuse - recorded.total_size, recorded.no_reuse)} saved "
        f"({now} {show_share(ours.no_reuse - ours.total_size, ours.no_reuse)})",
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
    print_rows("", titles, cells, console, left={0})


def print_gears(rows: Sequence[dict[str, Any]], console: Any) -> None:
    """Every gear and its plan, over one arena."""
    arena = max(row["total_size"] for row in rows)
    console.print(f"{len(rows)} gears over one arena of {show_bytes(arena)} ({arena:,} bytes)", highlight=False)
    cells = [
        (row["gear"], f"{row['total_size']:,}", show_share(row["total_size"], arena), f"{row['theory_min']:,}",
         "yes" if row["optimal"] else "no")
        for row in rows
    ]  # fmt: skip
    print_rows("", ("gear", "needs", "of the arena", "lower bound", "proved"), cells, console, left={0})


def print_windows(windows: Sequence[AddressWindow], console: Any, *, rows: int = 24) -> None:
    """Who holds an address when; the largest pieces, in order of address."""
    largest = sorted(windows, key=lambda item: -item.size * len(item.holders))[:rows]
    cells = []
    for item in sorted(largest, key=lambda item: (item.pool, item.offset)):
        held = [f"{first}-{last} {name}" for first, last, name in item.holders]
        more = f", … {len(held) - SHOWN_HOLDERS} more" if len(held) > SHOWN_HOLDERS else ""
        cells.append((f"{item.offset:,}", f"{item.size:,}", ", ".join(held[:SHOWN_HOLDERS]) + more))
    print_rows("who holds an address when (steps)", ("address", "bytes", "holders"), cells, console, left={2})
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


def window_rows(plan: MemoryPlan) -> list[dict[str, Any]]:
    """One row for every holder of every piece, for a CSV file."""
    return [
        {"pool": item.pool, "offset": item.offset, "size": item.size, "first": first, "last": last, "name": name}
        for item in address_windows(plan)
        for first, last, name in item.holders
    ]


def plan_title(name: str, pool: str, figures: PoolFigures) -> str:
    """The heading of a pool's picture."""
    return (
        f"{name}: {pool} {show_bytes(figures.total_size)}, lower bound {show_bytes(figures.theory_min)}, "
        f"without reuse {show_bytes(figures.no_reuse)}"
    )


def print_rows(title: str, titles: Sequence[str], cells: Iterable[Sequence[str]], console: Any, left: set[int]) -> None:
    """A table of texts; columns in ``left`` are aligned to the left, all others to the right."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(header_style="bold", title=title or None, title_justify="left")
    for position, name in enumerate(titles):
        table.add_column(name, justify="left" if position in left else "right")
    for row in cells:
        table.add_row(*map(escape, row))
    console.print(table)
