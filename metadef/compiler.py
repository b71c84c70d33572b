"""The front door of the compiler: the whole road from a model to a :class:`Compilation`, with a time for every stage.

Each stage is one call; what it returns is what the next one takes. Nothing else in the package calls across stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metadef.error import Problem, UsageError, suggest
from metadef.graph import Graph
from metadef.memory.plan import MemoryPlan
from metadef.model import SCHEDULE_ATTR, Model
from metadef.rewrite import PassReport
from metadef.schedule import Schedule
from metadef.target import Target, load_target
from metadef.winograd import CONV_CHOICES

if TYPE_CHECKING:
    import numpy as np

    from metadef.aipp import AippOp
    from metadef.gears import GearSpec

PRECISIONS = ("fp16", "origin")
DEFAULT_SOC = "Ascend910B3"

StageHook = Callable[[str, Any], None]


@dataclass(frozen=True)
class CompileOptions:
    """What a compilation may be told.

    ``precision``: ``fp16`` is GE's force_fp16, ``origin`` keeps the model's types. ``shapes`` and ``dims`` bind inputs
    and symbolic dimensions; ``values`` fixes inputs for good and replaces initializers that are inputs too.
    ``capacity_bytes`` bounds the arena. ``conv`` is the algorithm of convolutions: ``direct``
    (exact, least memory), ``auto`` (what the chip's model says is faster), ``winograd``, ``winograd_f2`` or
    ``winograd_f4`` (wherever it can). ``reorder`` looks for an order of the steps that needs less
    memory. ``gears`` compiles several sets of input shapes into one model (then -1 in
    ``shapes`` marks what varies). Weights of at least ``stream_weights`` bytes do not stay in device memory: they are
    loaded just before their use (None: all stay). ``no_reuse`` lists operators, by name or type, whose results keep
    their memory for themselves. ``aipp`` are the blocks of an AIPP configuration (``metadef.aipp``): inputs that take
    pictures of bytes. ``check`` verifies graph invariants after every pass.
    """

    soc: str = DEFAULT_SOC
    precision: str = "fp16"
    disabled_passes: frozenset[str] = frozenset()
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    inplace: bool = True
    reuse: bool = True
    capacity_bytes: int | None = None
    conv: str = "direct"
    reorder: bool = False
    gears: GearSpec | None = None
    stream_weights: int | None = None
    no_reuse: tuple[str, ...] = ()
    aipp: tuple[AippOp, ...] = ()
    check: bool = False

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UsageError(
                f"unknown precision '{self.precision}'",
                expected=" or ".join(PRECISIONS),
                hint="fp16 is the real stack's default for inference, origin keeps the model's own types",
            )
        if self.conv not in CONV_CHOICES:
            raise UsageError(
                f"unknown convolution algorithm '{self.conv}'",
                expected=", ".join(CONV_CHOICES),
                hint="direct is exact and takes the least memory, auto takes what the chip's model says is faster",
            )
        if self.aipp and self.gears is not None and self.gears.kind != "batch":
            hint = "static AIPP makes images of one size: leave one of the two out, or use dynamic_batch_size"
            raise UsageError(f"AIPP and {self.gears.option} exclude each other", code="E10047", hint=hint)


@dataclass
class Compilation:
    """Everything that was made on the way, so that every answer can be traced. ``stage_seconds`` is CPU time.

    With gears the values are those of the largest one, ``model`` holds the programs of all, and ``gears`` the
    compilation of each by its key.
    """

    model: Model
    graph: Graph
    schedule: Schedule
    plan: MemoryPlan
    report: PassReport
    target: Target
    options: CompileOptions
    stage_seconds: dict[str, float]
    gears: dict[str, Compilation] = field(default_factory=dict)


def load_graph(source: str | Path | bytes | Graph | Any, options: CompileOptions) -> Graph:
    """A framework graph from a file, its bytes, an ONNX ModelProto, or a graph that is already built.

    Raises:
        ModelError: the file is broken. OperatorError: operators nobody knows. InferError: shapes do not fit.
    """
    if isinstance(source, Graph):
        return source
    from metadef.frontend.onnx import load_onnx

    return load_onnx(source, shapes=options.shapes or None, dims=options.dims or None, values=options.values)


def legal_graph(source: str | Path | bytes | Graph | Any, options: CompileOptions) -> tuple[Graph, Target]:
    """The model in the Ascend dialect before any pass, and its chip; with AIPP where the options want it, which makes
    another model. Errors as in :func:`compile_model`."""
    from metadef.legalize import legalize
    from metadef.passes import PassOptions, find_pass
    from metadef.rewrite import run_passes

    target = load_target(options.soc)
    graph = legalize(load_graph(source, options), target)
    if options.aipp:
        run_passes((find_pass("InsertAipp"),), graph, target, PassOptions(aipp=options.aipp))
    return graph, target


@dataclass
class Scheduled:
    """The front half of the road: a graph after all passes and its schedule, not yet placed in memory."""

    graph: Graph
    schedule: Schedule
    report: PassReport
    target: Target
    stage_seconds: dict[str, float]


def schedule_model(
    source: str | Path | bytes | Graph | Any,
    options: CompileOptions | None = None,
    *,
    on_stage: StageHook | None = None,
) -> Scheduled:
    """Parse, legalise, run the passes and select kernels. Arguments and errors as in :func:`compile_model`."""
    from metadef.legalize import legalize
    from metadef.passes import PassOptions, run_pipeline
    from metadef.select import select

    options = options or CompileOptions()
    if options.gears is not None:
        raise UsageError(
            "one schedule has one set of shapes", hint="metadef.gear_build.gear_options gives one per gear"
        )
    _check_pass_names(options.disabled_passes)
    hook = on_stage or _ignore
    seconds: dict[str, float] = {}
    target = load_target(options.soc)
    with _timed(seconds, "parse"):
        graph = load_graph(source, options)
    hook("parse", graph)
    if graph.dialect != "ascend":
        with _timed(seconds, "legalize"):
            graph = legalize(graph, target)
        hook("legalize", graph)
    with _timed(seconds, "passes"):
        pass_options = PassOptions(
            options.precision,
            options.disabled_passes,
            options.check,
            options.conv,
            options.stream_weights,
            options.aipp,
        )
        report = run_pipeline(graph, target, pass_options, on_pass=hook)
    with _timed(seconds, "select"):
        schedule = select(graph, target, options.conv)
    if options.reorder:
        from metadef.reorder import reorder

        with _timed(seconds, "reorder"):
            schedule = reorder(schedule)
    hook("select", schedule)
    return Scheduled(graph, schedule, report, target, seconds)


def compile_model(
    source: str | Path | bytes | Graph | Any,
    options: CompileOptions | None = None,
    *,
    on_stage: StageHook | None = None,
) -> Compilation:
    """Compile a model for one chip.

    Args:
        source: path, bytes or ModelProto of an ONNX model, or a :class:`Graph` of either dialect (an Ascend graph is
        taken
            over and changed by the passes).
        options: chip, precision and switches; the defaults when None.
        on_stage: called as ``on_stage(name, value)`` when a stage (``parse``, ``legalize``, every pass by its name,
            ``select``, ``plan``, ``lower``) has finished; progress display and dumps hang on it.

    Raises:
        LabError: any of its families; see ``metadef.error``.
    """
    options = options or CompileOptions()
    if options.gears is not None:
        from metadef.capacity import check_program_memory
        from metadef.gear_build import compile_gears

        merged = compile_gears(source, options, on_stage)
        check_program_memory(merged.model.program, merged.target)
        return merged
    front = schedule_model(source, options, on_stage=on_stage)
    front.schedule = _edited(front.schedule, options)
    return _placed(front, options, on_stage or _ignore)


def _edited(schedule: Schedule, options: CompileOptions) -> Schedule:
    """The schedule as options and environment want it: results that are not shared, weights that are streamed."""
    from metadef.schedule_edit import forbid_reuse
    from metadef.weight_stream import stream_weights

    schedule = forbid_reuse(schedule, _kept_apart(options), strict=options.no_reuse)
    return schedule if options.stream_weights is None else stream_weights(schedule, options.stream_weights)[0]


def _kept_apart(options: CompileOptions) -> list[str]:
    from metadef.schedule_edit import no_reuse_from_environment

    return [*options.no_reuse, *no_reuse_from_environment()]


def _schedule_options(options: CompileOptions) -> dict[str, Any]:
    """What makes the same schedule again from the compiled graph; an offline model keeps it."""
    return {
        "conv": options.conv,
        "reorder": options.reorder,
        "no_reuse": tuple(_kept_apart(options)),
        "stream_weights": options.stream_weights,
    }


def replan(made: Compilation, schedule: Schedule) -> Compilation:
    """The same network with another schedule of the same graph, such as one whose tensors want other addresses.

    Raises:
        PlanError: no plan fits. ContractError: the schedule belongs to another revision of the graph.
    """
    front = Scheduled(made.graph, schedule, made.report, made.target, {})
    return _placed(front, made.options, _ignore)


def _placed(front: Scheduled, options: CompileOptions, hook: StageHook) -> Compilation:
    """The back half of the road: plan, check, lower."""
    from metadef.capacity import check_plan_memory
    from metadef.hazard import check_program
    from metadef.lower import lower
    from metadef.memory import check_plan, plan_memory

    graph, schedule, seconds = front.graph, front.schedule, front.stage_seconds
    with _timed(seconds, "plan"):
        plan = plan_memory(schedule, capacity=options.capacity_bytes, inplace=options.inplace, reuse=options.reuse)
        check_plan(schedule, plan)
        check_plan_memory(plan, front.target)
    hook("plan", plan)
    with _timed(seconds, "lower"):
        program, weights = lower(graph, schedule, plan, front.target, options.precision)
        check_program(program, front.target)
    hook("lower", program)
    attrs = {SCHEDULE_ATTR: _schedule_options(options)}
    model = Model(graph.name, front.target.soc, graph, weights, {"": program}, attrs)
    return Compilation(model, graph, schedule, plan, front.report, front.target, options, seconds)


def _ignore(name: str, value: Any) -> None:
    """The hook of callers that do not watch the stages."""


def _check_pass_names(names: frozenset[str]) -> None:
    """Raises UsageError for passes that do not exist, all of them at once."""
    if not names:
        return
    from metadef.passes import PIPELINE

    known = [item.name for item in PIPELINE]
    unknown = sorted(names.difference(known))
    if unknown:
        raise UsageError([Problem(f"there is no pass '{name}'", hint=suggest(name, known)) for name in unknown])


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.process_time()
    yield
    seconds[stage] = time.process_time() - start
