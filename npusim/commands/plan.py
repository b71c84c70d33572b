"""Memory plans: ``npusim plan``, of models, dumps, offline models and planner cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metadef.error import PlanError, Problem, UsageError
from npusim.commands.options import (
    DEFAULT_SOC,
    Figure,
    gear_options,
    json_option,
    memory_options,
    model_options,
    read_files,
    refuse_schedule_flags,
    session_options,
)
from npusim.commands.output import console_of, print_json, progress, spare_sources

if TYPE_CHECKING:
    from metadef.compiler import CompileOptions
    from metadef.memory.plan import MemoryPlan
    from metadef.plan_source import PlanSource
    from metadef.schedule import Schedule
    from metadef.weight_stream import WeightTraffic

LONGEST_BUDGET_S = 86_400.0


@click.command()
@click.argument("source", type=click.Path(dir_okay=False))
@model_options
@gear_options
@click.option("--capacity", type=click.IntRange(1), metavar="BYTES", help="The arena may not be larger than this.")
@click.option("--minimise", is_flag=True, help="Search for the smallest arena and prove it.")
@click.option("--no-inplace", is_flag=True, help="Plan as if no operator could write over its input.")
@memory_options
@click.option("--reorder", is_flag=True, help="Look for an order of the steps that needs less memory.")
@click.option(
    "--what-if", is_flag=True, help="Also plan with in-place, reuse and fusion off, and with steps reordered."
)
@click.option("--largest-batch", is_flag=True, help="How far the batch can go within --capacity.")
@click.option("--windows", is_flag=True, help="Also list which tensor holds an address when.")
@click.option("--out", type=click.Path(file_okay=False), help="Write plan.json, tables and the picture here.")
@click.option(
    "--budget",
    type=Figure(0, LONGEST_BUDGET_S),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for the search beyond quick planners.",
)
@json_option
def plan(source: str, as_json: bool, threads: int, **options: Any) -> None:
    """Plan the memory of SOURCE: a model (.onnx, .om), a dump of GE (ge_proto, ge_onnx, JSON), a case (.json, .csv).

    The allocation table and its three numbers; GE's own plan beside it where a dump has one.
    """
    refuse_schedule_flags(source, options)
    compile_options = session_options(options, threads).compile_options()
    if options["out"]:
        from npusim.report.plan_files import NAMES

        spare_sources([Path(options["out"]) / name for name in NAMES], source, read_files(options))
    if options["largest_batch"] or compile_options.gears is not None:
        _require_model(source)
    if options["largest_batch"]:
        _largest_batch(source, compile_options, options, as_json)
        return
    with progress() as stage:
        found, gears = _schedules(source, compile_options, options, stage)
        least_bytes = options["stream_weights"]
        gears, traffic = _streamed(gears, found.stream_weights if least_bytes is None else least_bytes)
        stage("plan")
        made = {}
        for key, schedule in gears.items():
            at_batch = _at_batch(source, schedule, compile_options, options) if found.kind == "onnx" else None
            made[key] = _planned(schedule, found.capacity, options, at_batch)
    _require_gears_within(found, options["capacity"])
    key, schedule = next(iter(gears.items()))
    answer = _Answer(source, found, schedule, made[key], compile_options, options)
    answer.traffic = traffic
    shown = made if key else found.gears
    rows = [{"gear": name, **_figures(each)} for name, each in shown.items()]
    if as_json:
        print_json(answer.as_json() | ({"gears": rows} if rows else {}))
    else:
        answer.show(rows)


def _require_model(source: str) -> None:
    """Raises UsageError for files whose shapes are fixed: they cannot be compiled for others."""
    from metadef.plan_source import has_fixed_shapes

    if has_fixed_shapes(source):
        raise UsageError(
            f"'{source}' has its shapes already: gears and other batches need a model to compile",
            hint="give the ONNX file; an .om file that was compiled for gears shows them without any option",
        )


def _require_gears_within(found: PlanSource, capacity: int | None) -> None:
    """Raises PlanError for smaller gears of an offline model that were compiled to take more than the capacity.

    The file holds the graph of its largest gear alone: that one is planned anew, the others stand as they are.
    """
    smaller = list(found.gears.items())[1:]
    over = [(gear, plan.total_size) for gear, plan in smaller if capacity is not None and plan.total_size > capacity]
    if over:
        raise PlanError([
            Problem(
                f"gear {gear}: its plan in this file is {size - (capacity or 0)} bytes over the capacity",
                expected=f"at most {capacity} bytes",
                got=f"{size} bytes",
                hint="plan the .onnx file with these gears: an offline model holds the graph of its largest gear only",
            )
            for gear, size in over
        ])  # fmt: skip


def _schedules(
    source: str, compile_options: CompileOptions, options: dict[str, Any], stage: Any
) -> tuple[PlanSource, dict[str, Schedule]]:
    """What was found, and its schedules by gear ("" where there is one), the largest first."""
    from metadef.plan_source import PlanSource, load_schedule
    from metadef.reorder import reorder

    def hook(name: str, value: Any) -> None:
        stage(name)

    if compile_options.gears is None:
        found = load_schedule(source, compile_options, on_stage=hook)
        schedules = {"": found.schedule}
    else:
        from metadef.compiler import schedule_model
        from metadef.gear_build import gear_options as options_by_gear

        bound = options_by_gear(source, compile_options)
        schedules = {key: schedule_model(source, each, on_stage=hook).schedule for key, each in bound.items()}
        found = PlanSource("onnx", next(iter(schedules.values())))
    for key, schedule in schedules.items():
        kept = _without_reuse(schedule, options["no_reuse_op"])
        schedules[key] = reorder(kept) if options["reorder"] else kept
    return found, schedules


def _streamed(
    schedules: dict[str, Schedule], least_bytes: int | None
) -> tuple[dict[str, Schedule], WeightTraffic | None]:
    """Schedules with large weights loaded on the way, and what that moves in a run of the first."""
    if least_bytes is None:
        return schedules, None
    from metadef.weight_stream import stream_weights

    made = {key: stream_weights(schedule, least_bytes) for key, schedule in schedules.items()}
    return {key: schedule for key, (schedule, _) in made.items()}, next(iter(made.values()))[1]


def _without_reuse(schedule: Schedule, names: tuple[str, ...]) -> Schedule:
    from metadef.schedule_edit import forbid_reuse, no_reuse_from_environment

    return forbid_reuse(schedule, [*names, *no_reuse_from_environment()], strict=names)


def _at_batch(
    source: str, schedule: Schedule, compile_options: CompileOptions, options: dict[str, Any]
) -> Callable[[int], Schedule]:
    """Makes the schedule of the same model with another size on the first axis of all inputs."""

    def make(batch: int) -> Schedule:
        shapes = {name: (batch, *shape[1:]) for name, shape in _model_shapes(schedule).items() if shape}
        bound = replace(compile_options, gears=None, dims={}, shapes=shapes)
        _, made = _schedules(source, bound, options, lambda name: None)
        (smaller,) = _streamed(made, options["stream_weights"])[0].values()
        return smaller

    return make


def _model_shapes(schedule: Schedule) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs as the model has them: where pictures are taken, that of the images AIPP makes of them."""
    from metadef.ops.geometry import PictureGeometry

    made = {
        step.reads[0]: PictureGeometry.of(step.kernel).out_shape
        for step in schedule.steps
        if step.kernel is not None and "input_format" in step.kernel.attrs
    }
    inputs = [schedule.tensors[item] for item in schedule.inputs]
    return {item.name: made.get(item.id, item.desc.origin_shape) for item in inputs if item.desc is not None}


def _planned(
    schedule: Schedule, given: int | None, options: dict[str, Any], at_batch: Callable[[int], Schedule] | None
) -> MemoryPlan:
    from metadef.capacity import check_plan_memory
    from metadef.memory import check_plan, plan_memory
    from metadef.target import known_targets, load_target

    capacity = options["capacity"] if options["capacity"] is not None else given
    try:
        made = plan_memory(
            schedule,
            capacity=capacity,
            minimise=options["minimise"],
            budget_s=options["budget"],
            inplace=not options["no_inplace"],
            reuse=not options["no_reuse"],
        )
    except PlanError as error:
        raise _with_advice(error, schedule, capacity, at_batch) from error
    check_plan(schedule, made)
    chip = load_target(options["soc"] or DEFAULT_SOC)
    if schedule.soc != chip.soc and schedule.soc in known_targets():
        chip = load_target(schedule.soc)
    if schedule.soc == chip.soc:
        check_plan_memory(made, chip)
    return made


def _with_advice(
    error: PlanError, schedule: Schedule, capacity: int | None, at_batch: Callable[[int], Schedule] | None
) -> PlanError:
    """The error, and what spilling, recomputing, another order or a smaller batch would save."""
    from metadef.relief import relief, relief_text, why_not

    if capacity is None or any(tensor.pinned is not None for tensor in schedule.tensors):
        return error
    ideas = relief(schedule, capacity, at_batch)
    text = relief_text(ideas, capacity, why_not(schedule, ideas))
    return PlanError([*error.problems, Problem("what would make it smaller", hint=text)]) if text else error


def _figures(made: MemoryPlan) -> dict[str, Any]:
    return {
        "theory_min": made.theory_min,
        "total_size": made.total_size,
        "no_reuse": made.no_reuse,
        "optimal": made.optimal,
    }


class _Answer:
    """A plan and the extras that were asked for."""

    def __init__(
        self,
        source: str,
        found: PlanSource,
        schedule: Schedule,
        made: MemoryPlan,
        compile_options: CompileOptions,
        options: dict[str, Any],
    ) -> None:
        from metadef.plan_study import address_windows, unfused_schedule, what_if
        from npusim.report.plan_files import write_plan_files

        self.schedule, self.plan, self.recorded, self.kind = schedule, made, found.recorded, found.kind
        self.what_if, self.windows, self.files = [], [], []
        self.traffic: WeightTraffic | None = None
        if options["what_if"]:
            single = replace(compile_options, gears=None)
            unfused = (
                (lambda: unfused_schedule(source, single))
                if found.kind == "onnx" and not compile_options.gears
                else None
            )
            self.what_if = what_if(schedule, unfused, options["budget"])
        if options["windows"]:
            self.windows = address_windows(made)
        if options["out"]:
            self.files = write_plan_files(Path(options["out"]), schedule, made)

    def as_json(self) -> dict[str, Any]:
        from metadef.memory.report import plan_to_json
        from npusim.report.plans import recorded_json, windows_json

        result = plan_to_json(self.schedule, self.plan)
        if self.recorded is not None:
            result["recorded"] = recorded_json(self.recorded)
        if self.traffic is not None:
            result["weight_traffic"] = asdict(self.traffic)
        if self.what_if:
            result["what_if"] = [asdict(row) for row in self.what_if]
        if self.windows:
            result["windows"] = windows_json(self.windows)
        if self.files:
            result["files"] = [str(path) for path in self.files]
        return result

    def show(self, gears: list[dict[str, Any]]) -> None:
        from npusim.report.memory import print_plan
        from npusim.report.plans import print_gears, print_recorded, print_traffic, print_what_if, print_windows

        console = console_of()
        if gears:
            print_gears(gears, console)
        print_plan(self.schedule, self.plan, console)
        if self.recorded is not None and self.recorded.total_size:
            print_recorded(self.plan, self.recorded, console, made_here=self.kind == "om")
        if self.traffic is not None:
            print_traffic(self.traffic, console)
        if self.what_if:
            print_what_if(self.what_if, console)
        if self.windows:
            print_windows(self.windows, console)
        for path in self.files:
            console.print(f"wrote {path}", highlight=False)


def _largest_batch(source: str, compile_options: CompileOptions, options: dict[str, Any], as_json: bool) -> None:
    from metadef.batch_study import largest_batch
    from npusim.report.units import show_bytes

    capacity = options["capacity"]
    if capacity is None:
        raise UsageError("--largest-batch needs a memory to fill", hint="--capacity BYTES")
    with progress() as stage:
        stage("largest batch")
        answer = largest_batch(source, compile_options, capacity)
    if as_json:
        tried = [{"batch": batch, "total_size": size} for batch, size in answer.tried]
        print_json({"batch": answer.batch, "capacity": capacity, "total_size": answer.total_size,
                    "next_size": answer.next_size, "tried": tried})  # fmt: skip
        return
    console_of().print(
        f"batch {answer.batch} fits: arena {show_bytes(answer.total_size)} ({answer.total_size:,} of "
        f"{capacity:,} bytes); batch {answer.batch + 1} would take {answer.next_size:,}",
        highlight=False,
    )


COMMANDS = (plan,)
