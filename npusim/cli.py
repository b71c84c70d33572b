"""The command line: ``npusim demo | run | profile | compile | plan | compare | socs``.

Standard output carries the answer (with ``--json`` one object and nothing else), standard error carries progress, on a
terminal only. Exit codes: 0 good, 1 a check failed or no plan fits, 2 the call, the model or the environment is at
fault. Heavy imports happen inside the commands, so that ``npusim --help`` is quick.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from metadef.error import LabError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from metadef.compiler import CompileOptions
    from metadef.schedule import Schedule
    from npusim.session import InferenceSession, SessionOptions

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_SOC = "Ascend910B3"


def main() -> None:
    """Entry point. Every fault that a user can mend leaves as a text and an exit code, never as a traceback."""
    try:
        commands(standalone_mode=False)
    except LabError as error:
        click.echo(f"npusim: {error}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Exit as leaving:
        sys.exit(leaving.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        click.echo("npusim: interrupted; files already written are complete", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except MemoryError:
        click.echo("npusim: [environment] not enough memory on this machine; try a smaller --dim or --shape", err=True)
        sys.exit(2)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="npusim", message="npusim %(version)s")
def commands() -> None:
    """An Ascend NPU laboratory without a card: a model goes in; numbers, cycles and a memory map come out."""


def _model_options(function: F) -> F:
    """Options of every command that compiles a model."""
    for option in reversed(
        (
            click.option(
                "--soc", default=DEFAULT_SOC, show_default=True, help="Chip to compile for; see `npusim socs`."
            ),
            click.option(
                "--precision",
                default="fp16",
                show_default=True,
                type=click.Choice(["fp16", "origin"]),
                help="fp16 is the real stack's default (force_fp16); origin keeps the model's types.",
            ),
            click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Bind a symbolic dimension."),
            click.option(
                "--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224", help="Bind an input's whole shape."
            ),
            click.option(
                "--disable", "disabled", multiple=True, metavar="PASS", help="Switch a compiler pass off by name."
            ),
            click.option("--threads", default=2, show_default=True, type=click.IntRange(1, 256), help="Host threads."),
        )
    ):
        function = option(function)
    return function


def _json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")(function)


def _input_options(function: F) -> F:
    for option in (
        click.option(
            "--seed", default=0, show_default=True, help="Seed of the generated inputs, where none are given."
        ),
        click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help="Feed an input from a file."),
    ):
        function = option(function)
    return function


@commands.command()
@click.option(
    "--out",
    default="npusim_demo",
    show_default=True,
    type=click.Path(file_okay=False),
    help="Folder for trace and pictures.",
)
@click.option("--soc", default=DEFAULT_SOC, show_default=True, help="Chip to simulate.")
@_json_option
def demo(out: str, soc: str, as_json: bool) -> None:
    """Compile and run the bundled digit classifier: predictions, cycles, memory map, trace and pictures."""
    from npusim.demo import run_demo, show_demo

    with _progress() as stage:
        result = run_demo(soc, Path(out), stage)
    if as_json:
        _print_json(result.as_json())
    else:
        show_demo(result, _console())
    if result.accuracy < result.reference_accuracy:
        sys.exit(1)


@commands.command()
@click.argument("model", type=click.Path(dir_okay=False))
@_model_options
@_input_options
@click.option("--out", type=click.Path(file_okay=False), help="Write every output as NAME.npy into this folder.")
@_json_option
def run(model: str, inputs: tuple[str, ...], seed: int, out: str | None, as_json: bool, **options: Any) -> None:
    """Run MODEL (.onnx or .om): outputs, cycles and peak memory."""
    session, feeds = _open(model, inputs, seed, options)
    names = [item.name for item in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, feeds), strict=True))
    saved = _save_outputs(Path(out), outputs) if out else []
    summary = _run_summary(session, outputs)
    if as_json:
        _print_json(summary)
        return
    console = _console()
    if not inputs:
        console.print(f"no --input given: fed with generated values, seed {seed}")
    for name, value in outputs.items():
        console.print(
            f"output [bold]{name}[/bold] {value.dtype}{list(value.shape)}: {_glimpse(value)}", highlight=False
        )
    for path in saved:
        console.print(f"wrote {path}")
    _print_totals(console, session)


@commands.command()
@click.argument("model", type=click.Path(dir_okay=False))
@_model_options
@_input_options
@click.option(
    "--out", default="npusim_profile", show_default=True, type=click.Path(file_okay=False), help="Folder for the files."
)
@click.option("--top", type=click.IntRange(1), help="Show only the N longest tasks.")
@_json_option
def profile(
    model: str, inputs: tuple[str, ...], seed: int, out: str, top: int | None, as_json: bool, **options: Any
) -> None:
    """Run MODEL and explain its time: per-operator table, trace.json (Perfetto), pictures."""
    from npusim.report.files import write_reports
    from npusim.report.table import print_table, task_rows

    session, feeds = _open(model, inputs, seed, options)
    outputs = dict(zip([item.name for item in session.get_outputs()], session.run(None, feeds), strict=True))
    with _progress() as stage:
        stage("reports")
        written = write_reports(Path(out), session.program, session.profile.data, session.target)
    if as_json:
        rows = task_rows(session.profile.data)
        _print_json({**_run_summary(session, outputs), "operators": rows, "files": [str(path) for path in written]})
        return
    console = _console()
    print_table(session.profile.data, console, top=top)
    _print_totals(console, session)
    for path in written:
        console.print(f"wrote {path}")


@commands.command("compile")
@click.argument("model", type=click.Path(dir_okay=False))
@_model_options
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False), help="The offline model to write (.om)."
)
@click.option(
    "--dump", type=click.Path(file_okay=False), help="Write the graph after every stage and fusion_result.json here."
)
@_json_option
def compile_command(model: str, output: str, dump: str | None, as_json: bool, threads: int, **options: Any) -> None:
    """Compile MODEL (.onnx) to an offline model that loads and runs without the compiler."""
    from metadef.compiler import compile_model
    from metadef.model import save_om

    dumper = _Dumper(Path(dump)) if dump else None
    with _progress() as stage:
        compilation = compile_model(
            model, _session_options(options, threads).compile_options(), on_stage=_stage_hook(stage, dumper)
        )
        stage("write")
        save_om(compilation.model, output)
    if dumper:
        dumper.finish(compilation.report)
    program = compilation.model.programs[""]
    summary = {
        "model": output,
        "soc": program.soc,
        "tasks": len(program.tasks),
        "host_tasks": sum(not task.on_device for task in program.tasks),
        "weights_bytes": program.weights_bytes,
        "peak_bytes": program.total_size,
        "stage_seconds": {name: round(value, 4) for name, value in compilation.stage_seconds.items()},
    }
    if as_json:
        _print_json(summary)
        return
    from npusim.report.units import show_bytes

    console = _console()
    console.print(
        f"wrote {output}: {summary['tasks']} tasks ({summary['host_tasks']} on the host) for {program.soc}, "
        f"weights {show_bytes(program.weights_bytes)}, arena {show_bytes(program.total_size)}"
    )
    console.print(
        "CPU seconds: " + ", ".join(f"{name} {value:.2f}" for name, value in compilation.stage_seconds.items()),
        highlight=False,
    )


@commands.command()
@click.argument("source", type=click.Path(dir_okay=False))
@_model_options
@click.option("--capacity", type=click.IntRange(1), metavar="BYTES", help="The arena may not be larger than this.")
@click.option("--minimise", is_flag=True, help="Search for the smallest arena and prove it.")
@click.option("--no-inplace", is_flag=True, help="Plan as if no operator could write over its input.")
@click.option("--no-reuse", is_flag=True, help="Plan as if no memory could be reused.")
@click.option("--budget", default=1.0, show_default=True, metavar="SECONDS", help="Time for the exact search.")
@_json_option
def plan(
    source: str,
    capacity: int | None,
    minimise: bool,
    no_inplace: bool,
    no_reuse: bool,
    budget: float,
    as_json: bool,
    threads: int,
    **options: Any,
) -> None:
    """Plan the memory of a MODEL (.onnx), or of a planner case (.json, .csv):

    the allocation table and its three numbers.
    """
    from metadef.memory import check_plan, plan_memory
    from metadef.memory.report import plan_to_json
    from npusim.report.memory import print_plan

    with _progress() as stage:
        schedule, given = _schedule_of(source, _session_options(options, threads).compile_options(), stage)
        stage("plan")
        result = plan_memory(
            schedule,
            capacity=capacity if capacity is not None else given,
            minimise=minimise,
            budget_s=budget,
            inplace=not no_inplace,
            reuse=not no_reuse,
        )
        check_plan(schedule, result)
    if as_json:
        _print_json(plan_to_json(schedule, result))
    else:
        print_plan(schedule, result, _console())


@commands.command()
@click.argument("model", type=click.Path(dir_okay=False))
@_model_options
@_input_options
@click.option(
    "--limit", default=1e-3, show_default=True, help="Largest relative L2 of one operator against its own reference."
)
@click.option(
    "--cosine",
    "cosine_limit",
    default=0.99,
    show_default=True,
    help="Smallest cosine of an output against onnxruntime.",
)
@_json_option
def compare(
    model: str,
    inputs: tuple[str, ...],
    seed: int,
    limit: float,
    cosine_limit: float,
    as_json: bool,
    threads: int,
    **options: Any,
) -> None:
    """Compare MODEL with onnxruntime end to end, and every operator with its own reference."""
    from npusim.compare import compare_model, print_comparison

    session_options = _session_options(options, threads)
    with _progress() as stage:
        stage("compare")
        report = compare_model(model, _feeds_for(model, inputs, seed, session_options), session_options)
    if as_json:
        _print_json(report.as_json())
    else:
        print_comparison(report, _console())
    if not report.within(limit, cosine_limit):
        sys.exit(1)


@commands.command()
@_json_option
def socs(as_json: bool) -> None:
    """List the chips that can be simulated."""
    from npusim.report.chips import chip_rows, print_chips

    rows = chip_rows()
    if as_json:
        _print_json({"socs": rows})
    else:
        print_chips(rows, _console())


# -- helpers ----------------------------------------------------------------------------------------------------------


def _session_options(options: dict[str, Any], threads: int) -> SessionOptions:
    from npusim.session import SessionOptions

    return SessionOptions(
        soc=options["soc"],
        precision=options["precision"],
        threads=threads,
        disabled_passes=frozenset(options["disabled"]),
        dims={name: _integer(name, value) for name, value in map(_pair, options["dims"])},
        shapes={
            name: tuple(_integer(name, item) for item in value.split(","))
            for name, value in map(_pair, options["shapes"])
        },
    )


def _open(
    model: str, inputs: tuple[str, ...], seed: int, options: dict[str, Any]
) -> tuple[InferenceSession, dict[str, np.ndarray]]:
    """A session and its feeds: from files where given, else generated from the seed."""
    from npusim.session import InferenceSession

    threads = options.pop("threads")
    with _progress() as stage:
        session = InferenceSession(model, _session_options(options, threads), on_stage=lambda name, value: stage(name))
    return session, _feeds(session, inputs, seed)


def _feeds(session: InferenceSession, inputs: tuple[str, ...], seed: int) -> dict[str, np.ndarray]:
    from npusim.feeds import generate_feeds, read_array

    feeds = {name: read_array(name, path) for name, path in map(_pair, inputs)}
    return feeds or generate_feeds(session.get_inputs(), seed)


def _feeds_for(model: str, inputs: tuple[str, ...], seed: int, options: SessionOptions) -> dict[str, np.ndarray]:
    from npusim.session import InferenceSession

    return _feeds(InferenceSession(model, options), inputs, seed)


def _schedule_of(source: str, options: CompileOptions, stage: Callable[[str], None]) -> tuple[Schedule, int | None]:
    """The schedule to plan and the capacity that a planner case names for itself."""
    if Path(source).suffix.lower() in (".json", ".csv"):
        from metadef.memory.cases import load_case

        case = load_case(source)
        return case.schedule, case.capacity
    from metadef.compiler import schedule_model

    return schedule_model(source, options, on_stage=lambda name, value: stage(name)).schedule, None


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.rpartition("=")
    if not sign or not name or not value:
        raise UsageError(f"cannot read '{text}'", expected="NAME=VALUE")
    return name, value


def _integer(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise UsageError(f"'{name}' wants whole numbers", got=text) from None
    if value < 0:
        raise UsageError(f"'{name}' cannot be negative", got=text)
    return value


def _save_outputs(folder: Path, outputs: dict[str, np.ndarray]) -> list[Path]:
    import numpy as np

    from metadef.files import atomic_write

    paths = []
    for name, value in outputs.items():
        safe = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
        paths.append(atomic_write(folder / f"{safe}.npy", lambda stream, array=value: np.save(stream, array)))
    return paths


def _run_summary(session: InferenceSession, outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """The stable keys of ``run`` and ``profile``."""
    program, data = session.program, session.profile.data
    return {
        "outputs": [
            {"name": name, "shape": list(value.shape), "dtype": str(value.dtype)} for name, value in outputs.items()
        ],
        "soc": program.soc,
        "cycles": data.cycles,
        "us": round(data.us, 3),
        "peak_bytes": program.total_size,
        "weights_bytes": program.weights_bytes,
        "tasks": len(program.tasks),
        "host_tasks": [
            {"name": task.name, "reason": task.kernel.reason} for task in program.tasks if not task.on_device
        ],
    }


def _print_totals(console: Any, session: InferenceSession) -> None:
    from npusim.report.units import show_bytes, show_us

    program, data = session.program, session.profile.data
    console.print(
        f"{program.soc}: {len(program.tasks)} tasks, {data.cycles:,} cycles = {show_us(data.us)}; "
        f"arena {show_bytes(program.total_size)} (without reuse {show_bytes(program.no_reuse)}), "
        f"weights {show_bytes(program.weights_bytes)}",
        highlight=False,
    )
    for task in program.tasks:
        if not task.on_device:
            console.print(f"  on the host: {task.name} ({task.kernel.op_type}): {task.kernel.reason}")


def _glimpse(value: np.ndarray) -> str:
    flat = value.reshape(-1)
    shown = ", ".join(f"{item:.5g}" for item in flat[:6].tolist())
    return shown + (", …" if flat.size > 6 else "")


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value, indent=1))


def _console() -> Any:
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(soft_wrap=not terminal, width=None if terminal else 200)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A stage display on standard error, on a terminal only; what it yields is called with a stage's name."""
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield lambda name: status.update(f"{name} …")


class _Dumper:
    """Writes each stage's graph into a folder (``compile --dump``)."""

    def __init__(self, folder: Path) -> None:
        from metadef.debug import SnapshotWriter

        self.folder = folder
        self.write = SnapshotWriter(folder)

    def __call__(self, name: str, value: Any) -> None:
        from metadef.graph import Graph

        if isinstance(value, Graph):
            self.write(name, value)

    def finish(self, report: Any) -> None:
        report.write_fusion_result(self.folder / "fusion_result.json")


def _stage_hook(stage: Callable[[str], None], dumper: _Dumper | None) -> Callable[[str, Any], None]:
    def hook(name: str, value: Any) -> None:
        stage(name)
        if dumper:
            dumper(name, value)

    return hook
