"""Results that are no numbers: NaN and infinities in outputs that no input held, and the task that made the first.

Only outputs are looked at after a run. Where one is not finite, the network runs once more, task by task, up to the
task that is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.format import TensorDesc, unpack
from metadef.ops.numeric import widen
from metadef.program import Task
from npusim.loaded import TaskRun
from npusim.session import InferenceSession

_HALVES = "float16 ends at 65,504: try --precision origin, or inputs scaled as the model was trained on"


@dataclass(frozen=True)
class Count:
    """How many values of an output are NaN, and how many infinite."""

    name: str
    nan: int
    inf: int


@dataclass(frozen=True)
class NotFinite:
    """``outputs`` are those that are not finite. ``task`` is the first whose results are not finite though its operands
    were; where there is none, the first that made NaN without having read one; then the first that is not finite, which
    ``inherited`` that from the model's constants.

    ``origins`` are its source nodes, ``made`` is "NaN" or "inf", ``dtype`` the type of its results.
    """

    outputs: tuple[Count, ...]
    task: int
    name: str
    op_type: str
    origins: tuple[str, ...]
    made: str
    dtype: str
    inherited: bool = False

    def as_json(self) -> dict[str, Any]:
        """Plain values for ``--json``."""
        return asdict(self)

    @property
    def text(self) -> str:
        """One line for people."""
        named = ", ".join(
            f"'{item.name}' ({', '.join(f'{count:,} {what}' for what, count in self._counts(item) if count)})"
            for item in self.outputs
        )
        source = f" from {', '.join(self.origins)}" if self.origins and self.origins != (self.name,) else ""
        hint = f"; {_HALVES}" if self.dtype == DType.FLOAT16.label else ""
        comes = "comes from a constant that is read by" if self.inherited else "is made by"
        first = f"the first {self.made} {comes} task {self.task} {self.op_type} '{self.name}'{source}"
        return f"not finite, though all inputs are: output {named}; {first}{hint}"

    @staticmethod
    def _counts(item: Count) -> tuple[tuple[str, int], ...]:
        return ("NaN", item.nan), ("inf", item.inf)


def not_finite(
    session: InferenceSession, feeds: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
) -> NotFinite | None:
    """What is not finite in the outputs of a run on these feeds, or None: all is well, or the feeds are not finite.

    Raises:
        LabError: whatever running the network once more raises.
    """
    counts = tuple(count for count in map(_count, outputs, outputs.values()) if count.nan or count.inf)
    if not counts or not all(_is_finite(np.asarray(array)) for array in feeds.values()):
        return None
    found = _culprit(session.run_layers(feeds))
    if found is None:
        return None
    task, made, inherited = found
    dtype = task.kernel.outputs[0].dtype.label
    return NotFinite(counts, task.id, task.name, task.kernel.op_type, task.origins, made, dtype, inherited)


def _count(name: str, array: np.ndarray) -> Count:
    if not _is_float(array) or np.isfinite(array).all():
        return Count(name, 0, 0)
    return Count(name, int(np.isnan(array).sum()), int(np.isinf(array).sum()))


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _is_finite(array: np.ndarray) -> bool:
    return not _is_float(array) or bool(np.isfinite(array).all())


def _culprit(runs: Iterable[TaskRun]) -> tuple[Task, str, bool] | None:
    """The task that made the first value that is no number, what it made, and whether it had read such a one."""
    nan: Task | None = None
    first: tuple[Task, str, bool] | None = None
    for item in runs:
        made = _worst(zip(item.outputs, item.task.kernel.outputs, strict=True))
        if not made:
            continue
        read = _worst((array, desc) for array, desc in zip(item.inputs, item.task.kernel.inputs) if array is not None)
        if not read:
            return item.task, made, False
        first = first or (item.task, made, True)
        if nan is None and made == "NaN" and read == "inf":
            nan = item.task
    return (nan, "NaN", False) if nan is not None else first


def _worst(stored: Iterable[tuple[np.ndarray, TensorDesc | None]]) -> str:
    """What stored arrays hold: NaN, inf (and no NaN), or nothing such (""). Padding of formats does not count."""
    found = ""
    for array, desc in stored:
        if desc is None or not desc.dtype.is_float:
            continue
        values = widen(unpack(array, desc), desc.dtype)
        if np.isnan(values).any():
            return "NaN"
        found = found or ("" if np.isfinite(values).all() else "inf")
    return found
