"""How far off is it, and where does that come from: end to end against onnxruntime, and layer by layer.

End to end, the session's outputs stand against onnxruntime's float32 run of the same model. Layer by layer, every
device task is recomputed in float64 from the very operands it read on the device (weights included), so its figure
shows that task's own rounding and nothing inherited. Where a task's result carries the name of a value of the source
model, ``drift`` adds what has piled up since the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npusim.difference import Difference, difference
from npusim.feeds import generate_feeds
from npusim.finite import NotFinite, not_finite
from npusim.loaded import TaskRun
from npusim.reference import picture_attrs, run_onnxruntime
from npusim.session import InferenceSession, SessionOptions
from npusim.twin import exact_results, slack_of, wide_values


@dataclass(frozen=True)
class OutputError(Difference):
    """One output of the model against onnxruntime."""

    name: str = ""


@dataclass(frozen=True)
class TaskError:
    """One task against its operator recomputed in float64 on the operands it read.

    ``origins`` are the source nodes the task came from. ``value`` is the source model's value that the result stands
    for ("" if none), and ``drift`` the relative L2 distance from onnxruntime's (None without one). ``slack`` is how
    many times the distance of other tasks it may have.
    """

    task: int
    name: str
    op_type: str
    origins: tuple[str, ...]
    rel_l2: float
    max_abs: float
    value: str = ""
    drift: float | None = None
    algorithm: str = "direct"
    slack: float = 1.0


@dataclass(frozen=True)
class CompareReport:
    """``outputs`` in the model's order, ``tasks`` worst first.

    ``pictures`` are inputs that took pictures: onnxruntime was fed with what AIPP's arithmetic makes of them.
    ``not_finite`` is about outputs of ours that are no numbers (None: all are).
    """

    model: str
    soc: str
    precision: str
    outputs: tuple[OutputError, ...]
    tasks: tuple[TaskError, ...]
    pictures: tuple[str, ...] = ()
    not_finite: NotFinite | None = None

    def misses(self, limit: float, cosine_limit: float) -> list[str]:
        """A line for every output and task that is outside: ``limit`` (relative L2) times the task's slack, and cosine.

        The slack comes from the algorithm and the results' type (``npusim.twin.slack_of``).
        """
        outputs = [
            f"output {item.name}: cosine {item.cosine:.7f} is below {cosine_limit:g}"
            for item in self.outputs
            if not item.cosine >= cosine_limit
        ]
        return outputs + [
            f"task {item.task} {_title(item)}: relative L2 {item.rel_l2:.2e} is above {limit * item.slack:.2e}"
            for item in self.tasks
            if not item.rel_l2 <= limit * item.slack
        ]

    def within(self, limit: float, cosine_limit: float) -> bool:
        """Whether nothing misses ``limit`` and ``cosine_limit`` (see ``misses``)."""
        return not self.misses(limit, cosine_limit)

    def as_json(self) -> dict[str, Any]:
        """Plain values; ``outputs`` carries the stable keys name, rel_l2, max_abs, cosine, top1_equal."""
        return asdict(self)


def compare_model(
    source: str | Path | bytes | Any,
    feeds: Mapping[str, np.ndarray] | None = None,
    options: SessionOptions | None = None,
    *,
    layers: bool = True,
) -> CompareReport:
    """Run a model on the simulated chip and in onnxruntime, and compare.

    onnxruntime knows no AIPP: where it is compiled in, it gets the images that AIPP's documented arithmetic makes of
    the pictures (the operator's NumPy reference, not rounded to float16), so that all rounding of the chip counts.

    Args:
        source: path or bytes of an ONNX model, or a ModelProto. An ``.om`` file is compared layer by layer only.
        feeds: inputs by name; seeded random ones when None.
        options: as for the session.
        layers: recompute every device task too.

    Raises:
        UsageError: onnxruntime is not installed, or the feeds do not fit. LabError: the model does not compile or run.
    """
    session = InferenceSession(source, options)
    feeds = generate_feeds(session.get_inputs(), seed=0) if feeds is None else feeds
    compiled_only = isinstance(source, str | Path) and str(source).endswith(".om")
    return compare_session(session, feeds, None if compiled_only else source, layers=layers)


def compare_session(
    session: InferenceSession, feeds: Mapping[str, np.ndarray], source: Any, *, layers: bool = True
) -> CompareReport:
    """:func:`compare_model` for a session that was made from ``source`` (None: only layer by layer)."""
    names = [item.name for item in session.get_outputs()]
    ours = dict(zip(names, session.run(names, feeds), strict=True))
    pictures = picture_attrs(session.model.graph)
    reference = {} if source is None else run_onnxruntime(source, feeds, pictures)
    outputs = tuple(
        OutputError(**asdict(difference(array, reference[name])), name=name)
        for name, array in ours.items()
        if name in reference
    )
    broken = not_finite(session, feeds, ours)
    tasks = compare_layers(session, feeds, reference) if layers else ()
    model, precision = session.model, session.program.precision
    fed = () if source is None else tuple(pictures)
    return CompareReport(model.name, model.soc, precision, outputs, tasks, fed, broken)


def compare_layers(
    session: InferenceSession, feeds: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]
) -> tuple[TaskError, ...]:
    """Errors of all device tasks, worst first; ``reference`` holds values of the source model by name.

    Of a task that ran several times in a loop the worst run counts.
    """
    errors: dict[int, TaskError] = {}
    for item in session.run_layers(feeds):
        if item.task.on_device and item.task.kernel.domain == "ascend":
            found = task_error(item, reference)
            if found.task not in errors or found.rel_l2 > errors[found.task].rel_l2:
                errors[found.task] = found
    return tuple(sorted(errors.values(), key=lambda item: -item.rel_l2))


def task_error(item: TaskRun, reference: Mapping[str, np.ndarray]) -> TaskError:
    """One executed task against its operator in float64."""
    task, kernel = item.task, item.task.kernel
    wanted = exact_results(kernel, item.inputs, node=task.name)
    got = [wide_values(array, desc) for array, desc in zip(item.outputs, kernel.outputs, strict=True)]
    parts = [difference(ours, exact) for ours, exact in zip(got, wanted, strict=True)]
    value = next((operand.name for operand in task.outputs if operand.name in reference), "")
    drift = None
    if value:
        slot = [operand.name for operand in task.outputs].index(value)
        if got[slot].size == reference[value].size:
            drift = difference(got[slot].reshape(-1), reference[value].reshape(-1)).rel_l2
    return TaskError(
        task.id,
        task.name,
        kernel.op_type,
        task.origins,
        max(part.rel_l2 for part in parts),
        max(part.max_abs for part in parts),
        value if drift is not None else "",
        drift,
        kernel.algorithm,
        slack_of(kernel),
    )


def print_comparison(report: CompareReport, console: Any, *, top: int = 10) -> None:
    """Print the outputs and the ``top`` worst tasks to a rich console."""
    from rich.table import Table

    head = f"{report.model} on {report.soc}, precision {report.precision}"
    outputs = Table(title=f"{head}: outputs against onnxruntime", title_justify="left", header_style="bold")
    for column in ("output", "rel L2", "max abs", "cosine", "same top-1"):
        outputs.add_column(column, justify="left" if column == "output" else "right")
    for item in report.outputs:
        same = "yes" if item.top1_equal else "no"
        outputs.add_row(item.name, f"{item.rel_l2:.2e}", f"{item.max_abs:.2e}", f"{item.cosine:.7f}", same)
    if report.outputs:
        console.print(outputs)
        if report.pictures:
            named = ", ".join(f"'{name}'" for name in report.pictures)
            console.print(f"onnxruntime has no AIPP: {named} was fed to it as AIPP's arithmetic (NumPy, not rounded to "
                          "float16) makes it of the pictures", highlight=False)  # fmt: skip
    else:
        console.print(f"{head}: outputs not compared with onnxruntime, which needs the .onnx file", highlight=False)
    shown = report.tasks[:top]
    title = f"the {len(shown)} tasks of {len(report.tasks)} that are farthest from their operator in float64"
    tasks = Table(title=title, title_justify="left", header_style="bold")
    for column in ("#", "operator", "rel L2", "max abs", "drift", "from"):
        tasks.add_column(column, justify="left" if column in ("operator", "from") else "right")
    for error in shown:
        drift = "" if error.drift is None else f"{error.drift:.2e}"
        row = (str(error.task), _title(error), f"{error.rel_l2:.2e}", f"{error.max_abs:.2e}", drift)
        tasks.add_row(*row, ", ".join(error.origins))
    console.print(tasks)


def _title(error: TaskError) -> str:
    algorithm = "" if error.algorithm == "direct" else f" {error.algorithm}"
    return f"{error.op_type}{algorithm} {error.name}"
