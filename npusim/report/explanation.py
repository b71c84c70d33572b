"""An explanation as text: history, refusals, task, memory, cycles, judgement; and the summary of a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from npusim.explain import Explanation
from npusim.report.units import show_bytes, show_share, show_us
from npusim.task_facts import OperandFacts, TaskFacts

_LABEL = 11
_REFUSALS = 12


def print_explanation(explanation: Explanation, console: Any) -> None:
    """Print one node; fits 110 columns."""
    console.print(f"[bold]{explanation.node}[/bold]", highlight=False)
    _lines(console, "history", explanation.history)
    _lines(console, "notes", explanation.notes)
    _lines(console, "refused", explanation.refusals)
    if explanation.view:
        _lines(console, "task", [explanation.view])
    for task in explanation.tasks:
        _print_task(console, task)


def _print_task(console: Any, task: TaskFacts) -> None:
    title = f"task {task.task}: {task.op_type}{' + ' + task.epilogue if task.epilogue else ''}  ({task.name})"
    console.print(f"\n[bold]{title}[/bold]", highlight=False)
    made_of = ", ".join(task.origins) or "nothing in the source model: the compiler added it"
    _lines(console, "made of", [made_of])
    _lines(console, "engine", [_joined(task.engine, task.engine_reason)])
    _lines(
        console,
        "kernel",
        [_joined(f"{task.algorithm}, {task.block_dim} piece" + "s" * (task.block_dim != 1), task.kernel_reason)],
    )
    _lines(console, "tile", [task.tile] if task.tile else [])
    _lines(console, "host", [task.host] if task.host else [])
    _lines(console, "operands", [_operand(item) for item in task.operands])
    if task.workspace_bytes:
        _lines(console, "workspace", [show_bytes(task.workspace_bytes)])
    _lines(console, "time", [f"{task.cycles:,} cycles = {show_us(task.us)}, {task.share:.1%} of the network"])
    _lines(console, "causes", [_parts(task.causes, task.cycles)])
    _lines(console, "pipes", [_parts(task.pipes, task.cycles)] if task.pipes else [])
    _lines(console, "traffic", [", ".join(_amount(*item) for item in task.traffic.items() if item[1])])
    _lines(console, "bound by", [task.bound_by])
    if task.limits:
        _lines(console, "limits", [", ".join(f"{name} {count:,} cycles" for name, count in task.limits.items())])
    _lines(console, "verdict", [task.verdict])
    _lines(console, "try", task.advice)


def _operand(item: OperandFacts) -> str:
    place = f"{item.region} {item.address:#x} (mod 512: {item.residue}), {show_bytes(item.payload_bytes)}"
    life = f", tasks {item.life[0]} to {item.life[1]}" if item.life and item.region == "arena" else ""
    shares = f", {item.shares}" if item.shares else ""
    return f"{item.port} '{item.name}' {item.desc}: {place}{life}{shares}"


def print_network(facts: Mapping[str, Any], console: Any) -> None:
    """Print the summary of a network; fits 110 columns."""
    console.print(
        f"[bold]{facts['model']}[/bold] on {facts['soc']}, precision {facts['precision']}: "
        f"{facts['source_nodes']} source nodes became {facts['tasks']} tasks, "
        f"{facts['cycles']:,} cycles = {show_us(facts['us'])}",
        highlight=False,
    )
    _lines(console, "causes", [_parts(facts["causes"], facts["cycles"])])
    _lines(console, "assumed", facts["assumed"])
    console.print("\n[bold]passes that found something[/bold]")
    for item in facts["passes"]:
        nodes = f"{item['nodes_before']} -> {item['nodes_after']}"
        counts = f"{item['effects']:>4} done {item['refused']:>4} refused"
        console.print(f"  {item['name']:34} {nodes:>11} nodes {counts}", highlight=False)
    _section(
        console,
        "refused",
        [f"{item['count']} x {item['pass']}: {item['reason']} (first: {item['first']})" for item in facts["refusals"]],
        "nothing",
    )
    changes = [
        f"task {item['task']} {item['name']}, {item['cycles']:,} cycles: {item['reason']}"
        for item in facts["format_changes"]
    ]
    _section(console, "format changes (TransData)", changes, "none")
    hosts = [
        f"task {item['task']} {item['name']} ({item['op_type']}): {item['reason']}" for item in facts["host_tasks"]
    ]
    _section(console, "tasks on the host", hosts, "none")
    longest = [
        f"task {item['task']} {item['op_type']} {item['name'][:34]}: {item['cycles']:,} cycles "
        f"({item['share']:.1%}), {item['bound_by']}"
        for item in facts["longest"]
    ]
    _section(console, "longest tasks", longest, "none")
    console.print("\nnext: npusim explain MODEL NODE, with a source node's or a task's name", highlight=False)


def _section(console: Any, title: str, lines: list[str], nothing: str) -> None:
    console.print(f"\n[bold]{title}[/bold]")
    for line in lines[:_REFUSALS] or [nothing]:
        _wrapped(console, line, "  ")
    if len(lines) > _REFUSALS:
        console.print(f"  … {len(lines) - _REFUSALS} more; --json lists all", highlight=False)


def _lines(console: Any, label: str, lines: Iterable[str]) -> None:
    """Labelled lines, wrapped under each other."""
    for index, line in enumerate(lines):
        _wrapped(console, line, f"  {label if index == 0 else '':{_LABEL}}")


def _wrapped(console: Any, text: str, head: str) -> None:
    import textwrap

    room = max(console.width, 60)
    for line in textwrap.wrap(text, room, initial_indent=head, subsequent_indent=" " * (len(head) + 2)) or [head]:
        console.print(line, highlight=False, markup=False)


def _parts(parts: Mapping[str, int], whole: int) -> str:
    return ", ".join(f"{name} {count:,} ({show_share(count, whole)})" for name, count in parts.items() if count)


def _amount(name: str, count: int) -> str:
    return f"{name} {count:,}" if name == "requests" else f"{name} {show_bytes(count)}"


def _joined(head: str, reason: str) -> str:
    return f"{head}: {reason}" if reason else head
