"""A memory plan as text: the three numbers, the peak step with who is alive there, and the allocation table."""

from __future__ import annotations

from typing import Any

from metadef.memory.plan import MemoryPlan
from metadef.schedule import Schedule
from npusim.report.units import show_bytes, show_share


def print_plan(schedule: Schedule, plan: MemoryPlan, console: Any, *, rows: int = 40) -> None:
    """Print the plan to a rich console; the table is cut after ``rows`` rows, largest first."""
    from rich.table import Table

    from metadef.memory.report import memory_timeline

    proof = "proved minimal" if plan.optimal else f"gap to the bound {show_bytes(plan.total_size - plan.theory_min)}"
    console.print(
        f"[bold]{schedule.name}[/bold] for {schedule.soc or 'any chip'}: {len(schedule.steps)} steps", highlight=False
    )
    console.print(
        f"arena {show_bytes(plan.total_size)} ({plan.total_size:,} bytes, {proof}, by {plan.method}); "
        f"lower bound {show_bytes(plan.theory_min)}; without reuse {show_bytes(plan.no_reuse)}: "
        f"{show_share(plan.no_reuse - plan.total_size, plan.no_reuse)} saved",
        highlight=False,
    )
    console.print(
        f"weights {show_bytes(plan.weights_bytes)}, inputs and outputs {show_bytes(plan.io_bytes)}", highlight=False
    )
    timeline = memory_timeline(schedule, plan)
    if schedule.steps:
        step, live = schedule.steps[timeline.peak_step], timeline.live_bytes[timeline.peak_step]
        console.print(
            f"peak at step {step.id} ({step.name}): {show_bytes(live)} in live slots",
            highlight=False,
        )
    arena = sorted((row for row in plan.rows if row.region == "arena"), key=lambda row: (-row.slot_bytes, row.first))
    table = Table(header_style="bold")
    for title, side in (
        ("offset", "right"),
        ("slot", "right"),
        ("tensor", "left"),
        ("first", "right"),
        ("last", "right"),
        ("shares memory", "left"),
    ):
        table.add_column(title, justify=side)  # type: ignore[arg-type]
    names = {row.tensor: row.name for row in plan.rows if row.tensor >= 0}
    for row in arena[:rows]:
        shared = f"{row.alias_kind} of {names.get(row.alias_of, '?')}" if row.alias_of >= 0 else row.no_reuse
        table.add_row(f"{row.offset:,}", f"{row.slot_bytes:,}", row.name, str(row.first), str(row.last), shared)
    console.print(table)
    if len(arena) > rows:
        console.print(f"… {len(arena) - rows} smaller rows; --json lists all", highlight=False)
