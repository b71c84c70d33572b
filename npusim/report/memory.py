"""A memory plan as text: the three numbers, the peak step with who is alive there, top consumers, allocation table."""

from __future__ import annotations

from typing import Any

from metadef.memory.plan import MemoryPlan
from metadef.memory.report import byte_steps, fragmentation, memory_timeline, source_nodes, top_consumers
from metadef.schedule import Schedule
from npusim.report.plans import print_rows
from npusim.report.units import show_bytes, show_share

SHOWN_ALIVE = 6
SHOWN_CONSUMERS = 5
SHOWN_NODES = 3


def print_plan(schedule: Schedule, plan: MemoryPlan, console: Any, *, rows: int = 40) -> None:
    """Print the plan to a rich console; the table is cut after ``rows`` rows, largest first."""
    proof = "proved minimal" if plan.optimal else f"gap to the bound {show_bytes(plan.total_size - plan.theory_min)}"
    lines = [
        f"[bold]{schedule.name}[/bold] for {schedule.soc or 'any chip'}: {len(schedule.steps)} steps",
        f"arena {show_bytes(plan.total_size)} ({plan.total_size:,} bytes, {proof}, by {plan.method}); "
        f"lower bound {show_bytes(plan.theory_min)}; without reuse {show_bytes(plan.no_reuse)}: "
        f"{show_share(plan.no_reuse - plan.total_size, plan.no_reuse)} saved; "
        f"fragmentation {100 * fragmentation(plan):.1f} %",
        f"weights {show_bytes(plan.weights_bytes)}, inputs and outputs {show_bytes(plan.io_bytes)}",
    ]
    for line in lines:
        console.print(line, highlight=False)
    if schedule.steps:
        console.print(_peak_line(schedule, plan), highlight=False, markup=False)
    _print_consumers(schedule, plan, console)
    _print_allocation(plan, console, rows)


def _peak_line(schedule: Schedule, plan: MemoryPlan) -> str:
    timeline = memory_timeline(schedule, plan)
    step = schedule.steps[timeline.peak_step]
    sizes = {row.name: row.slot_bytes for row in plan.rows if row.region == "arena" and row.alias_kind != "group"}
    names = [name for name in timeline.peak_tensors if name in sizes]
    alive = ", ".join(f"{name} {sizes[name]:,}" for name in names[:SHOWN_ALIVE])
    more = f" and {len(names) - SHOWN_ALIVE} more" if len(names) > SHOWN_ALIVE else ""
    live = show_bytes(timeline.live_bytes[timeline.peak_step])
    return f"peak at step {step.id} ({step.name}): {live} in live slots" + (f": {alive}{more}" if alive else "")


def _print_consumers(schedule: Schedule, plan: MemoryPlan, console: Any) -> None:
    found = top_consumers(plan, SHOWN_CONSUMERS)
    whole = sum(byte_steps(row) for row in top_consumers(plan, len(plan.rows)))
    cells = []
    for row, nodes in zip(found, source_nodes(schedule, found)):
        more = f", … {len(nodes) - SHOWN_NODES} more" if len(nodes) > SHOWN_NODES else ""
        text = ", ".join(nodes[:SHOWN_NODES]) + more
        held = row.last - row.first + 1
        cells.append((row.name, f"{row.slot_bytes:,}", str(held), show_share(byte_steps(row), whole), text))
    if cells:
        titles = ("tensor", "slot", "steps", "of all bytes x steps", "source nodes")
        print_rows("top consumers", titles, cells, console, {0, 4})


def _print_allocation(plan: MemoryPlan, console: Any, rows: int) -> None:
    arena = sorted((row for row in plan.rows if row.region == "arena"), key=lambda row: (-row.slot_bytes, row.first))
    names = {row.tensor: row.name for row in plan.rows if row.tensor >= 0}
    cells = []
    for row in arena[:rows]:
        shared = f"{row.alias_kind} of {names.get(row.alias_of, '?')}" if row.alias_of >= 0 else ""
        place = (f"{row.offset:,}", f"{row.slot_bytes:,}", row.name, str(row.first), str(row.last))
        cells.append((*place, shared, row.no_reuse))
    titles = ("offset", "slot", "tensor", "first", "last", "shares memory", "not reusable because")
    print_rows("", titles, cells, console, {2, 5, 6})
    if len(arena) > rows:
        console.print(f"… {len(arena) - rows} smaller rows; --json lists all", highlight=False)
