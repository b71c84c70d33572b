"""Two models, or one model under two sets of options, side by side: graph, tasks, cycles, bytes, memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from metadef.debug import diff_graphs
from metadef.program import Task
from npusim.report.table import gm_bytes
from npusim.report.units import show_us
from npusim.session import InferenceSession

_SHOWN = 20


@dataclass(frozen=True)
class TaskPair:
    """A task of A and the one of B that does its work ("" and 0 where there is none)."""

    name: str
    op_a: str
    op_b: str
    us_a: float
    us_b: float

    @property
    def state(self) -> str:
        if not self.op_a or not self.op_b:
            return "only B" if not self.op_a else "only A"
        return "other kernel" if self.op_a != self.op_b else "slower" if self.us_b > self.us_a else "faster"


@dataclass(frozen=True)
class Contrast:
    """``totals`` maps a figure to its values (A, B); ``tasks`` are those that differ, most time first."""

    a: str
    b: str
    totals: dict[str, tuple[float, float]]
    tasks: tuple[TaskPair, ...]
    edits: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs at all."""
        return not self.tasks and not self.edits and all(one == other for one, other in self.totals.values())

    def as_json(self) -> dict[str, Any]:
        """Plain values for ``--json``."""
        return {**asdict(self), "same": self.same}


def contrast(a: InferenceSession, b: InferenceSession) -> Contrast:
    """Compare two sessions. Tasks are matched by name, then by a source node they share."""
    totals = {name: (value, _totals(b)[name]) for name, value in _totals(a).items()}
    edits = tuple(str(edit) for edit in diff_graphs(a.model.graph, b.model.graph))
    return Contrast(_label(a), _label(b), totals, tuple(_pairs(a, b)), edits)


def _label(session: InferenceSession) -> str:
    program = session.program
    return f"{session.model.name} ({program.soc}, {program.precision})"


def _totals(session: InferenceSession) -> dict[str, float]:
    program, profile = session.program, session.profile.data
    return {
        "tasks": len(program.tasks),
        "host tasks": sum(task.on_host for task in program.tasks),
        "TransData": sum(task.kernel.op_type == "TransData" for task in program.tasks),
        "cycles": profile.cycles,
        "us": round(profile.us, 3),
        "GM bytes": sum(gm_bytes(row) for row in profile.tasks),
        "HBM bytes": sum(row.hbm_read_bytes + row.hbm_write_bytes for row in profile.tasks),
        "arena bytes": program.total_size,
        "arena lower bound": program.theory_min,
        "weights bytes": program.weights_bytes,
    }


def _pairs(a: InferenceSession, b: InferenceSession) -> list[TaskPair]:
    times = [
        {row.name: data.to_us(row.cycles) for row in data.by_task().tasks}
        for data in (session.profile.data for session in (a, b))
    ]
    left = {task.name: task for task in b.program.tasks}
    by_origin = {origin: task.name for task in b.program.tasks for origin in task.origins}
    pairs = []
    for task in a.program.tasks:
        names = (task.name, *(by_origin.get(origin, "") for origin in task.origins))
        partner = next((left.pop(name) for name in names if name in left), None)
        us_b = times[1][partner.name] if partner else 0.0
        pairs.append(TaskPair(task.name, _describe(task), _describe(partner), times[0][task.name], us_b))
    pairs += [TaskPair(task.name, "", _describe(task), 0.0, times[1][task.name]) for task in left.values()]
    changed = [pair for pair in pairs if pair.op_a != pair.op_b or pair.us_a != pair.us_b]
    return sorted(changed, key=lambda pair: -abs(pair.us_b - pair.us_a))


def _describe(task: Task | None) -> str:
    """Type, epilogue and algorithm: what makes a task another kernel."""
    if task is None:
        return ""
    fused = "".join(f"+{item.op_type}" for item in task.kernel.fused)
    algorithm = "" if task.kernel.algorithm == "direct" else f" {task.kernel.algorithm}"
    return f"{task.kernel.op_type}{fused}{algorithm}"


def print_contrast(found: Contrast, console: Any, *, top: int = _SHOWN) -> None:
    """Print totals, tasks that differ and graph edits; fits 110 columns."""
    console.print(f"A  {found.a}\nB  {found.b}", highlight=False, markup=False)
    if found.same:
        console.print("nothing differs")
        return
    for name, (one, other) in found.totals.items():
        console.print(f"  {name:18} {_number(one):>14}  {_number(other):>14}  {_change(one, other)}", highlight=False)
    _print_tasks(found, console, top)
    if found.edits:
        console.print(f"\n{len(found.edits)} differences of the compiled graphs, A to B:")
        for line in found.edits[:top]:
            console.print(f"  {line if len(line) <= 106 else line[:105] + '…'}", highlight=False, markup=False)
        if len(found.edits) > top:
            console.print(f"  … {len(found.edits) - top} more; --json lists all")


def _print_tasks(found: Contrast, console: Any, top: int) -> None:
    if not found.tasks:
        return
    console.print(f"\n{len(found.tasks)} tasks differ; the {min(top, len(found.tasks))} with most time between them:")
    for pair in found.tasks[:top]:
        kernels = pair.op_a if pair.op_a == pair.op_b else f"{pair.op_a or '-'} | {pair.op_b or '-'}"
        name = pair.name if len(pair.name) <= 30 else "…" + pair.name[-29:]
        times = f"{show_us(pair.us_a):>9} {show_us(pair.us_b):>9}"
        console.print(f"  {pair.state:12} {name:30} {times}  {kernels}", highlight=False, markup=False)


def _number(value: float) -> str:
    return f"{value:,}"


def _change(one: float, other: float) -> str:
    if one == other:
        return "same"
    return f"{(other - one) / one:+.2%}" if one else f"+{other:,}"
