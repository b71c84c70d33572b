"""The regression gate: a model's outputs, predicted cycles, memory and tasks against a stored golden.

A golden keeps, of every output, a digest, statistics and evenly spaced values, so that a small change of the numbers
can be told from a broken one; of every task its cycles, so that a slower network names what became slower.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metadef.error import UsageError
from metadef.files import write_text
from npusim.compare import difference
from npusim.session import InferenceSession

VERSION = 1
SAMPLES = 1024
_MOVED_TASKS = 6
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("soc", "precision"), str),
    **dict.fromkeys(("cycles", "peak_bytes", "weights_bytes", "tasks", "host_tasks"), int),
    "inputs": (dict, str),
    "outputs": (list, dict),
    "task_cycles": (dict, int),
}
_OUTPUT_KINDS: dict[str, Any] = {
    **dict.fromkeys(("name", "dtype", "digest"), str),
    **dict.fromkeys(("mean", "std"), float),
    "shape": (list, int),
    "values": (list, float | str),
    "not_finite": int,
}
"""What is read of a golden, and of every output in it: a type, or that of a collection and of what it holds."""


@dataclass(frozen=True)
class Tolerance:
    """What may change: ``cosine`` is the least of stored and new values; the others are relative growth allowed."""

    cosine: float = 0.9999
    cycles: float = 0.02
    memory: float = 0.0
    tasks: float = 0.0


@dataclass(frozen=True)
class Finding:
    """One figure. ``state``: ok, better, changed (allowed) or regression."""

    what: str
    before: str
    after: str
    state: str
    note: str = ""


@dataclass(frozen=True)
class CheckReport:
    """All figures and, where cycles moved, the tasks that moved most."""

    model: str
    golden: str
    findings: tuple[Finding, ...]
    moved: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return all(item.state != "regression" for item in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Plain values for ``--json``."""
        return {**asdict(self), "passed": self.passed}


def make_golden(session: InferenceSession, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What a golden file holds, in plain values."""
    names = [item.name for item in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, feeds), strict=True))
    program, profile = session.program, session.profile.data
    return {
        "version": VERSION,
        "model": session.model.name,
        "soc": program.soc,
        "precision": program.precision,
        "inputs": {name: _digest(np.asarray(array)) for name, array in sorted(feeds.items())},
        "outputs": [_output_facts(name, value) for name, value in outputs.items()],
        "cycles": profile.cycles,
        "peak_bytes": program.total_size,
        "weights_bytes": program.weights_bytes,
        "tasks": len(program.tasks),
        "host_tasks": sum(task.on_host for task in program.tasks),
        "task_cycles": {row.name: row.cycles for row in profile.by_task().tasks},
    }


def write_golden(path: str | Path, golden: Mapping[str, Any]) -> Path:
    """Write a golden file. Raises UsageError if it cannot be written."""
    return write_text(path, json.dumps(golden, indent=1) + "\n")


def read_golden(path: str | Path) -> dict[str, Any]:
    """Read a golden file.

    Raises:
        UsageError: it is missing, no JSON, not a golden of this version, or damaged.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(
            f"there is no golden '{path}'", hint="make it with --update, review it, keep it with your model"
        )
    try:
        golden = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read golden '{path}'", got=str(error), hint="make it again with --update") from error
    if not isinstance(golden, dict) or golden.get("version") != VERSION:
        raise UsageError(f"'{path}' is no golden of version {VERSION}", hint="make it again with --update")
    wrong = [f"'{name}'" for name, kind in _KINDS.items() if not _is(golden.get(name), kind)]
    if not wrong:
        outputs = enumerate(golden["outputs"])
        wrong = [f"'{name}' of output {number}" for number, item in outputs
                 for name, kind in _OUTPUT_KINDS.items() if not _is(item.get(name), kind)]  # fmt: skip
    if wrong:
        text = f"golden '{path}' is damaged: {', '.join(wrong)} missing or wrong"
        raise UsageError(text, hint="make it again with --update")
    return golden


def check(golden: Mapping[str, Any], now: Mapping[str, Any], path: str, tolerance: Tolerance) -> CheckReport:
    """Compare what a model gives now with its golden.

    Raises:
        UsageError: the golden was made on another chip, in another precision or from other inputs.
    """
    for what in ("soc", "precision", "inputs"):
        if golden[what] != now[what]:
            show = (lambda value: value) if what != "inputs" else (lambda value: "digests " + ", ".join(value.values()))
            raise UsageError(
                f"the golden was made with another {what.rstrip('s')}",
                expected=show(golden[what]),
                got=show(now[what]),
                hint="give the same options and --seed or --input files, or --update",
            )
    findings = _output_findings(golden["outputs"], now["outputs"], tolerance)
    for what, allowed in (
        ("cycles", tolerance.cycles),
        ("peak_bytes", tolerance.memory),
        ("weights_bytes", tolerance.memory),
        ("tasks", tolerance.tasks),
        ("host_tasks", tolerance.tasks),
    ):
        findings.append(_figure(what, golden[what], now[what], allowed))
    moved = _moved(golden["task_cycles"], now["task_cycles"])
    return CheckReport(str(now["model"]), path, tuple(findings), tuple(moved))


def print_check(report: CheckReport, console: Any) -> None:
    """Print the figures and what moved; fits 110 columns."""
    verdict = "passed" if report.passed else "REGRESSION"
    console.print(f"[bold]{report.model}[/bold] against {report.golden}: {verdict}", highlight=False)
    for item in report.findings:
        change = item.after if item.before == item.after else f"{item.before} -> {item.after}"
        note = f"  ({item.note})" if item.note else ""
        console.print(f"  {item.state:10} {item.what:24} {change}{note}", highlight=False, markup=False)
    for line in report.moved:
        console.print(f"  moved      {line}", highlight=False, markup=False)


# -- parts -------------------------------------------------------------------------------------------------------------


def _is(value: Any, kind: Any) -> bool:
    """Whether a value read from a golden is of a kind in ``_KINDS``."""
    if not isinstance(kind, tuple):
        return isinstance(value, kind)
    outer, inner = kind
    held = value.values() if isinstance(value, dict) else value
    return isinstance(value, outer) and all(isinstance(item, inner) for item in held)


def _digest(array: np.ndarray) -> str:
    head = f"{array.dtype}{array.shape}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def _output_facts(name: str, value: np.ndarray) -> dict[str, Any]:
    flat = value.reshape(-1).astype(np.float64)
    finite = flat[np.isfinite(flat)]
    chosen = np.linspace(0, max(flat.size - 1, 0), min(flat.size, SAMPLES)).round().astype(int)
    return {
        "name": name,
        "shape": list(value.shape),
        "dtype": str(value.dtype),
        "digest": _digest(value),
        "not_finite": int(flat.size - finite.size),
        "mean": float(finite.mean()) if finite.size else 0.0,
        "std": float(finite.std()) if finite.size else 0.0,
        "min": float(finite.min()) if finite.size else 0.0,
        "max": float(finite.max()) if finite.size else 0.0,
        "values": [float(f"{item:.9g}") if np.isfinite(item) else str(item) for item in flat[chosen]],
    }


def _output_findings(before: list[dict[str, Any]], after: list[dict[str, Any]], tolerance: Tolerance) -> list[Finding]:
    there = {item["name"]: item for item in after}
    findings = []
    for old in before:
        what, new = f"output {old['name']}", there.pop(old["name"], None)
        if new is None:
            findings.append(Finding(what, "present", "absent", "regression"))
        elif (old["shape"], old["dtype"]) != (new["shape"], new["dtype"]):
            was, became = (f"{item['dtype']}{item['shape']}" for item in (old, new))
            findings.append(Finding(what, was, became, "regression"))
        elif old["digest"] == new["digest"]:
            findings.append(Finding(what, "same bits", "same bits", "ok"))
        else:
            findings.append(_value_finding(what, old, new, tolerance))
    return findings + [Finding(f"output {name}", "absent", "present", "regression") for name in there]


def _value_finding(what: str, old: dict[str, Any], new: dict[str, Any], tolerance: Tolerance) -> Finding:
    a, b = (np.array([float(item) for item in facts["values"]]) for facts in (new, old))
    found = difference(a, b)
    spread = " -> ".join(f"mean {facts['mean']:.4g}, std {facts['std']:.4g}" for facts in (old, new))
    broken = found.cosine < tolerance.cosine or new["not_finite"] > old["not_finite"]
    state = "regression" if broken else "changed"
    figures = f"cosine {found.cosine:.7f}, rel L2 {found.rel_l2:.2e}"
    return Finding(what, "golden", figures, state, spread)


def _figure(what: str, before: int, after: int, allowed: float) -> Finding:
    state = "ok" if after == before else "better" if after < before else "changed"
    if after > before * (1 + allowed):
        state = "regression"
    note = "" if after == before or not before else f"{(after - before) / before:+.2%}"
    return Finding(what, f"{before:,}", f"{after:,}", state, note)


def _moved(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """The tasks whose cycles changed most, and those that came or went."""
    changes = {name: after.get(name, 0) - before.get(name, 0) for name in {**before, **after}}
    largest = sorted((name for name in changes if changes[name]), key=lambda name: -abs(changes[name]))
    lines = []
    for name in largest[:_MOVED_TASKS]:
        old, new = before.get(name), after.get(name)
        text = "new task" if old is None else "gone" if new is None else f"{old:,} -> {new:,}"
        lines.append(f"{name}: {text} ({changes[name]:+,} cycles)")
    if len(largest) > _MOVED_TASKS:
        lines.append(f"… and {len(largest) - _MOVED_TASKS} more tasks")
    return lines
