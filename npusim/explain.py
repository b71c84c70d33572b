"""Why is this node the way it is: from the source model through every pass to its task, address, cycles and advice.

A :class:`History` listens to the compiler and keeps, for every source node, each form it took. An :class:`Explainer`
joins that with the pass report, the memory plan and the profile, for one node or for the whole network.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from metadef.error import UsageError, suggest
from metadef.graph import Graph, Node
from metadef.program import Task
from metadef.text import fused_types
from npusim.report.table import by_time
from npusim.session import InferenceSession, SessionOptions
from npusim.task_facts import TaskFacts, task_facts


class History:
    """Every form that every source node took; pass it to a session as ``on_stage``.

    ``aipp`` has the name of the AIPP behind every input that takes pictures.
    """

    def __init__(self) -> None:
        self.forms: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
        self.names: dict[str, set[str]] = {}
        self.aipp: dict[str, str] = {}

    def __call__(self, stage: str, value: Any) -> None:
        if not isinstance(value, Graph):
            return
        present: dict[str, list[str]] = {}
        for node in (node for graph in value.graphs() for node in graph.nodes):
            for origin in node.origins or (node.name,):
                present.setdefault(origin, []).append(_form(node))
                self.names.setdefault(origin, set()).add(node.name)
        self.aipp.update(
            {item.name: node.name for item in value.inputs for node in item.users if node.op_type == "Aipp"}
        )
        for origin in {**self.forms, **present}:
            form = tuple(present.get(origin, ()))
            past = self.forms.setdefault(origin, [])
            if not past or past[-1][1] != form:
                past.append((stage, form))

    def of(self, origin: str) -> list[str]:
        """Lines ``stage: form`` of one source node; a form that vanished says so."""
        return [f"{stage}: {' ; '.join(form) or 'removed'}" for stage, form in self.forms.get(origin, ())]


def _form(node: Node) -> str:
    """A node in one line: name, type, epilogue, results, engine."""
    fused = f" + {fused_types(node.fused)}" if node.fused else ""
    results = ", ".join(str(tensor.desc) for tensor in node.outputs)
    engine = f" on {node.engine.value}" if node.engine is not None else ""
    return f"{node.name} = {node.op_type}{fused} -> {results}{engine}"


@dataclass(frozen=True)
class Explanation:
    """One source node (or a task that the compiler added)."""

    node: str
    history: tuple[str, ...]
    notes: tuple[str, ...]
    refusals: tuple[str, ...]
    tasks: tuple[TaskFacts, ...]
    view: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values for ``--json``."""
        return asdict(self)


class Explainer:
    """A compiled model that answers questions; compile once, ask often.

    Raises:
        UsageError: the source is a compiled model, which knows no compilation.
    """

    def __init__(self, source: str | Path | bytes | Any, options: SessionOptions | None = None) -> None:
        self.history = History()
        self.session = InferenceSession(source, options, on_stage=self.history)
        self.made = self.session.compilation
        self.rows = self.session.task_rows()

    def node(self, name: str) -> Explanation:
        """Explain a source node, a task, the task that makes a tensor, or the first that reads an input, by name.

        An input that takes pictures for AIPP stands for the AIPP behind it.

        Raises:
            UsageError: nothing has that name, with near misses.
        """
        origin, tasks = self._find(name)
        names = {origin, *self.history.names.get(origin, ()), *(task.name for task in tasks)}
        notes, refusals = [], []
        for record in self.made.report.passes:
            notes += [f"{record.name}: {text}" for node, text in record.notes.items() if node in names]
            refusals += [f"{record.name}: {item.reason}" for item in record.refusals if item.node in names]
        view = "" if tasks else self._view(origin)
        facts = tuple(task_facts(self.session, task) for task in tasks)
        return Explanation(origin, tuple(self.history.of(origin)), tuple(notes), tuple(refusals), facts, view)

    def network(self) -> dict[str, Any]:
        """The whole network in plain values: passes, refusals, format changes, host tasks, where the time goes."""
        program, profile, report = self.session.program, self.session.profile.data, self.made.report
        notes = report.notes()
        causes: Counter[str] = Counter()
        for row in profile.tasks:
            causes.update(row.causes)
        refused = Counter((name, refusal.reason) for name, refusal in report.refusals())
        first = {(name, refusal.reason): refusal.node for name, refusal in reversed(report.refusals())}
        return {
            "model": self.session.model.name,
            "soc": program.soc,
            "precision": program.precision,
            "source_nodes": len(self._origins()),
            "tasks": len(program.tasks),
            "cycles": profile.cycles,
            "us": round(profile.us, 3),
            "causes": dict(causes.most_common()),
            "assumed": [*self.made.graph.notes, *self._assumed_path()],
            "passes": [
                {"name": item.name, "reason": item.reason, "effects": item.effect_times, "refused": len(item.refusals),
                 "nodes_before": item.nodes_before, "nodes_after": item.nodes_after}
                for item in report.passes if item.changed or item.effect_times or item.refusals
            ],
            "refusals": [
                {"pass": key[0], "reason": key[1], "count": count, "first": first[key]}
                for key, count in refused.most_common()
            ],
            "format_changes": [
                {"task": task.id, "name": task.name, "cycles": self.rows[task.id].cycles,
                 "reason": "; ".join(notes.get(task.name, [])) or "in the model"}
                for task in program.tasks if task.kernel.op_type == "TransData"
            ],
            "host_tasks": [
                {"task": task.id, "name": task.name, "op_type": task.kernel.op_type, "reason": task.kernel.reason}
                for task in program.tasks if task.on_host
            ],
            "longest": [
                {"task": row.task, "name": row.name, "op_type": row.op_type, "cycles": row.cycles,
                 "share": row.cycles / max(profile.cycles, 1), "bound_by": row.bound_by}
                for row in by_time(profile, 8)
            ],
        }  # fmt: skip

    def _assumed_path(self) -> list[str]:
        """What the time of a program that jumps rests on while nothing has run."""
        if self.session.program.is_straight or self.session.loaded.trace is not None:
            return []
        return ["nothing has run: timed are the first side of every branch and one turn of every loop"]

    # -- finding -----------------------------------------------------------------------------------------------------

    def _origins(self) -> set[str]:
        """Names of the source model's nodes: those that were there when the file had been read."""
        return {origin for origin, forms in self.history.forms.items() if forms[0][0] in ("parse", "legalize")}

    def _find(self, name: str) -> tuple[str, list[Task]]:
        tasks = self.session.program.tasks
        by_name = [task for task in tasks if task.name == name]
        by_result = [task for task in tasks if any(item.name == name for item in task.outputs)]
        if found := self._aipp(name):
            return found
        for origin in (name, *self._producers(name)):
            by_origin = [task for task in tasks if origin in task.origins]
            if by_origin or origin in self.history.forms:
                return origin, by_origin or [task for task in tasks if task.name == origin]
        by_input = [task for task in tasks if any(item is not None and item.name == name for item in task.inputs)][:1]
        if named := by_name or by_result or by_input:
            return named[0].name, named
        known = [*self.history.forms, *(task.name for task in tasks)]
        raise UsageError(f"there is no node or task '{name}'", hint=suggest(name, dict.fromkeys(known)))

    def _producers(self, tensor: str) -> list[str]:
        """Source nodes behind a tensor of the final graph."""
        for node in self.made.graph.nodes:
            if any(item.name == tensor for item in node.outputs):
                return list(node.origins[-1:] or (node.name,))
        return []

    def _aipp(self, name: str) -> tuple[str, list[Task]] | None:
        """The AIPP of that name, or of the input of that name, and the task that carries it out, alone or fused."""
        for item in self.session.program.inputs:
            origin = self.history.aipp.get(item.name)
            if origin is not None and name in (item.name, origin):
                tasks = self.session.program.tasks
                return origin, [task for task in tasks if task.inputs and task.inputs[0] == item.operand]
        return None

    def _view(self, origin: str) -> str:
        nodes = [node for node in self.made.graph.nodes if origin in (*node.origins, node.name)]
        if nodes:
            return f"'{nodes[0].name}' ({nodes[0].op_type}) is a view: its result lies where its operand does, no task"
        return "nothing of it is left in the compiled network: see its history"
