"""Wishes of the user on a finished schedule: operators whose results may not share their memory.

``OP_NO_REUSE_MEM`` is GE's environment variable for it: a comma list of operator names or types.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from metadef.error import UsageError, suggest
from metadef.schedule import Schedule, Step, TensorKind

VARIABLE = "OP_NO_REUSE_MEM"


def no_reuse_from_environment() -> list[str]:
    """Names and types in ``OP_NO_REUSE_MEM``."""
    return [item.strip() for item in os.environ.get(VARIABLE, "").split(",") if item.strip()]


def forbid_reuse(schedule: Schedule, names: Sequence[str], *, strict: Iterable[str] = ()) -> Schedule:
    """The schedule with the results of some steps, by name or operator type, marked as not to be shared.

    Names that occur nowhere are passed over, but for those in ``strict``.

    Raises:
        UsageError: a name in ``strict`` is neither a step nor a type.
    """
    if not names:
        return schedule
    wanted = set(names)
    known = {label for step in schedule.steps for label in _labels(step)}
    for name in strict:
        if name not in known:
            raise UsageError(f"there is no operator '{name}'", hint=suggest(name, known))
    marked: dict[int, str] = {}
    for step in schedule.steps:
        if wanted.intersection(_labels(step)):
            marked.update(dict.fromkeys(step.writes, f"asked for: {step.name}"))
    tensors = [
        replace(item, no_reuse=item.no_reuse or marked[item.id])
        if item.id in marked and item.kind is TensorKind.FEATURE
        else item
        for item in schedule.tensors
    ]
    return replace(schedule, tensors=tensors)


def _labels(step: Step) -> tuple[str, ...]:
    """What a step may be called: its name, its source nodes, its operator type."""
    kind = (step.kernel.op_type,) if step.kernel else ()
    return (step.name, *step.origins, *kind)
