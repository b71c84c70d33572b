"""What can be planned, told by content: ONNX models, planner cases, dumps and models of GE, offline models.

First step of ``npusim plan``: a file becomes a Schedule, whichever way leads there.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from metadef.error import ModelError
from metadef.files import title_of
from metadef.schedule import Schedule

if TYPE_CHECKING:
    from metadef.compiler import CompileOptions, StageHook
    from metadef.memory.plan import MemoryPlan
    from metadef.program import Program

_PROBE_BYTES = 4096


@dataclass(frozen=True)
class PlanSource:
    """A schedule to plan, the capacity its file asks for (bytes; None: none), and the plan recorded in it (or None).

    ``kind`` is "onnx", "case", "ge" (dump or vendor's model) or "om" (a model compiled here). Of a model with gears the
    schedule is the largest gear's, ``gears`` has the figures recorded for each. ``stream_weights`` is the size from
    which on the file streams its weights (bytes; None: it does not).
    """

    kind: str
    schedule: Schedule
    capacity: int | None = None
    recorded: MemoryPlan | None = None
    gears: Mapping[str, MemoryPlan] = field(default_factory=dict)
    stream_weights: int | None = None


def load_schedule(
    source: str | Path, options: CompileOptions | None = None, *, on_stage: StageHook | None = None
) -> PlanSource:
    """The schedule of a file. ``options`` and ``on_stage`` concern models that still have to be compiled.

    Raises:
        ModelError: the file is damaged, or none of what can be planned. UsageError: a planner case with faults.
        LabError: whatever the compiler says of an ONNX model.
    """
    path = Path(source)
    form = _form(path)
    if form == "csv":
        from metadef.memory.cases import load_csv

        return PlanSource("case", load_csv(path))
    if form == "json":
        return _from_json(path)
    if form == "om":
        return _from_om(path, options)
    if form:
        return _from_ge(path)
    from metadef.compiler import schedule_model

    return PlanSource("onnx", schedule_model(source, options, on_stage=on_stage).schedule)


def has_fixed_shapes(source: str | Path) -> bool:
    """Whether a file is a case, a dump or an offline model: nothing that could be compiled for other shapes."""
    return bool(_form(Path(source)))


def _form(path: Path) -> str:
    """What a file is: "csv", "json", "om", a form of GE's dumps; "" is left to the front end of models."""
    head = _head(path)
    if head is None:
        return ""
    if _is_csv(head):
        return "csv"
    from metadef.frontend.ge import probe_form

    return probe_form(head) or ("dump" if path.suffix.lower() in (".air", ".txt", ".pbtxt", ".om") else "")


def _head(path: Path) -> bytes | None:
    """The first bytes; None for a file that cannot be read (the front end of models says why)."""
    try:
        with path.open("rb") as stream:
            return stream.read(_PROBE_BYTES)
    except OSError:
        return None


def _is_csv(head: bytes) -> bool:
    columns = [item.strip() for item in head.removeprefix(BOM_UTF8).partition(b"\n")[0].split(b",")]
    return b"lower" in columns and b"upper" in columns


def _from_json(path: Path) -> PlanSource:
    from metadef.frontend.ge_read import file_bytes, json_object
    from metadef.memory.cases import case_from_json

    fields = json_object(file_bytes(path), path)
    if "graph" in fields:
        return _from_ge(path)
    if "tensors" not in fields:
        raise ModelError(
            f"'{path}' is nothing that can be planned",
            expected="a planner case (a list 'tensors') or a model of GE (a list 'graph')",
            got="keys " + ", ".join(list(fields)[:8]),
        )
    case = case_from_json(fields, title_of(path))
    return PlanSource("case", case.schedule, case.capacity)


def _from_om(path: Path, options: CompileOptions | None) -> PlanSource:
    """Our own offline models are selected anew from their graph; of a vendor's the graph alone can be read.

    A file holds the graph of its largest gear and the programs of all: the plans of the others are those in the file.
    """
    from metadef.om import open_om

    if not open_om(path).header.is_ours:
        return _from_ge(path)
    from metadef.model import SCHEDULE_ATTR, load_om
    from metadef.reorder import reorder
    from metadef.schedule_edit import forbid_reuse
    from metadef.select import select
    from metadef.target import chip_of

    model = load_om(path, verify_weights=False)
    made_with = model.attrs.get(SCHEDULE_ATTR, {})
    target = chip_of(model.soc, options.soc if options else None)
    schedule = select(model.graph, target, made_with.get("conv", "direct"))
    if made_with.get("reorder"):
        schedule = reorder(schedule)
    schedule = forbid_reuse(schedule, made_with.get("no_reuse", ()))
    plans = {gear: _recorded(program) for gear, program in model.programs.items()}
    gears = plans if len(plans) > 1 else {}
    first = next(iter(plans.values()))
    return PlanSource("om", schedule, recorded=first, gears=gears, stream_weights=made_with.get("stream_weights"))


def _recorded(program: Program) -> MemoryPlan:
    """The figures of the plan that a program was lowered from; proved as far as the lower bound says so."""
    from metadef.memory.plan import MemoryPlan

    plan = MemoryPlan(program.name, 0, [], program.weights_bytes - program.streamed_bytes, program.io_bytes)
    plan.total_size, plan.theory_min, plan.no_reuse = program.total_size, program.theory_min, program.no_reuse
    plan.optimal = program.total_size <= program.theory_min
    return plan


def _from_ge(path: Path) -> PlanSource:
    from metadef.frontend.ge import load_ge, recorded_plan

    found = load_ge(path)
    return PlanSource("ge", found.schedule, recorded=recorded_plan(found))
