"""The error families of compiler and device: each message names the place, what was expected and found, what to try.

A :class:`LabError` carries one or more :class:`Problem` rows, so that a step can report all that is wrong at once. The
command line prints ``str(error)`` and leaves with ``error.exit_code``; no traceback reaches a user.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One fault. ``code`` is CANN's E-code where one fits; ``node`` is a layer path; ``port`` an operand's name."""

    message: str
    code: str = ""
    node: str = ""
    port: str = ""
    expected: str = ""
    got: str = ""
    hint: str = ""

    def __str__(self) -> str:
        place = " ".join(
            part for part in (self.node and f"node '{self.node}'", self.port and f"port '{self.port}'") if part
        )
        head = f"{self.code}: " if self.code else ""
        lines = [f"{head}{place + ': ' if place else ''}{self.message}"]
        lines += [
            f"  {label}: {text}"
            for label, text in (("expected", self.expected), ("got", self.got), ("try", self.hint))
            if text
        ]
        return "\n".join(lines)


class LabError(Exception):
    """Base of all errors that a user may cause and mend. Build it from one message or from several :class:`Problem`."""

    family = "error"
    exit_code = 2

    def __init__(self, problem: str | Problem | Iterable[Problem], **fields: str) -> None:
        if isinstance(problem, str):
            problem = Problem(problem, **fields)
        self.problems: list[Problem] = [problem] if isinstance(problem, Problem) else list(problem)
        super().__init__(str(self))

    def __str__(self) -> str:
        body = "\n".join(str(problem) for problem in self.problems)
        count = len(self.problems)
        return f"[{self.family}] {body}" if count == 1 else f"[{self.family}] {count} problems\n{body}"


class UsageError(LabError):
    """The call itself is wrong: an unknown option, a feed of the wrong name, shape or dtype."""

    family = "usage"


class ModelError(LabError):
    """The model file is broken or inconsistent: truncated, not ONNX, cyclic, duplicate names, missing external data."""

    family = "model"


class OperatorError(LabError):
    """An operator, or a form of it, that has no place to run. All such nodes of a model are listed at once."""

    family = "operator"


class InferError(LabError):
    """Shapes, dtypes, formats or attributes of a node do not fit its prototype."""

    family = "infer"


class TargetError(LabError):
    """The chip is unknown, its file is wrong, or it cannot do what was asked."""

    family = "target"


class PlanError(LabError):
    """No memory plan fits, or a plan failed its checker."""

    family = "plan"
    exit_code = 1


class ContractError(LabError):
    """A step handed on a value that breaks its contract (graph invariant, stale revision, hazard): a fault of ours."""

    family = "contract"


class HostMemoryError(LabError):
    """This computer lacks the memory for the simulated device's."""

    family = "environment"


class DeviceFault(LabError):
    """The simulated device stopped: misaligned on-chip address, index out of range, read of poisoned memory."""

    family = "device"


def near_misses(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Known names that look like ``name``, best first (case is ignored)."""
    import difflib

    by_lower = {item.lower(): item for item in known}
    return [by_lower[item] for item in difflib.get_close_matches(name.lower(), by_lower, count, 0.6)]


def suggest(name: str, known: Sequence[str] | Iterable[str]) -> str:
    """A hint that names the nearest known spellings, or lists a few of what exists."""
    known = list(known)
    close = near_misses(name, known)
    if close:
        return "did you mean " + " or ".join(f"'{item}'" for item in close) + "?"
    return "known: " + ", ".join(sorted(known)[:12]) + (", …" if len(known) > 12 else "")
