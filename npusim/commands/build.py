"""Compiling without running: ``npusim compile``, and the list of chips, ``npusim socs``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from metadef.error import UsageError
from npusim.commands.options import (
    gear_options,
    json_option,
    memory_options,
    model_options,
    read_files,
    session_options,
)
from npusim.commands.output import console_of, print_json, progress, spare_sources, with_notes


@click.command("compile")
@click.argument("model", type=click.Path(dir_okay=False))
@model_options
@gear_options
@memory_options
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False), help="The offline model to write (.om)."
)
@click.option(
    "--dump",
    type=click.Path(file_okay=False),
    help="Write here: the graph after every stage, schedules, and fusion_result.json.",
)
@json_option
def compile_command(model: str, output: str, dump: str | None, as_json: bool, threads: int, **options: Any) -> None:
    """Compile MODEL (.onnx) to an offline model that loads and runs without the compiler."""
    from metadef.compiler import compile_model
    from metadef.model import save_om

    if model.endswith(".om"):
        raise UsageError(
            f"'{model}' is an offline model: it is compiled already",
            hint="give the .onnx file that it was made from; `npusim run` and `npusim plan` take the .om as it is",
        )
    if not Path(output).absolute().parent.is_dir():
        raise UsageError(f"cannot write '{output}': its folder does not exist", hint="make it first, or mend the path")
    spare_sources([output], model, read_files(options))
    dumper = _Dumper(Path(dump)) if dump else None
    with progress() as stage:
        compilation = compile_model(
            model, session_options(options, threads).compile_options(), on_stage=_stage_hook(stage, dumper)
        )
        stage("write")
        save_om(compilation.model, output)
    if dumper:
        dumper.finish(compilation.report)
    program = compilation.model.program
    summary = {
        "model": output,
        "soc": program.soc,
        "tasks": len(program.tasks),
        "host_tasks": sum(task.on_host for task in program.tasks),
        "weights_bytes": program.weights_bytes - program.streamed_bytes,
        "streamed_bytes": program.streamed_bytes,
        "peak_bytes": program.total_size,
        "gears": {name: each.total_size for name, each in compilation.model.programs.items() if name},
        "stage_seconds": {name: round(value, 4) for name, value in compilation.stage_seconds.items()},
    }
    if as_json:
        print_json(summary)
        return
    from npusim.report.units import show_bytes

    console = console_of()
    console.print(
        f"wrote {output}: {summary['tasks']} tasks ({summary['host_tasks']} on the host) for {program.soc}, "
        f"weights {show_bytes(program.weights_bytes - program.streamed_bytes)}, arena {show_bytes(program.total_size)}"
        + (f", streamed {show_bytes(program.streamed_bytes)}" if program.streamed_bytes else "")
    )
    for name, each in compilation.model.programs.items():
        if name:
            console.print(f"gear {name}: {show_bytes(each.total_size)} of the arena", highlight=False)
    console.print(
        "CPU seconds: " + ", ".join(f"{name} {value:.2f}" for name, value in compilation.stage_seconds.items()),
        highlight=False,
    )


@click.command()
@json_option
def socs(as_json: bool) -> None:
    """List the chips that can be simulated."""
    from npusim.report.chips import chip_rows, print_chips

    rows = chip_rows()
    if as_json:
        print_json({"socs": rows})
    else:
        print_chips(rows, console_of())


class _Dumper:
    """Writes each stage's graph, and the schedule (one a gear), into a folder (``compile --dump``)."""

    def __init__(self, folder: Path) -> None:
        from metadef.debug import SnapshotWriter

        self.folder = folder
        self.write = SnapshotWriter(folder)
        self.schedules = 0

    def __call__(self, name: str, value: Any) -> None:
        from metadef.files import write_text
        from metadef.graph import Graph
        from metadef.schedule import Schedule
        from metadef.schedule_text import print_schedule

        if isinstance(value, Graph):
            self.write(name, value)
        elif isinstance(value, Schedule):
            suffix = f"_{self.schedules}" if self.schedules else ""
            write_text(self.folder / f"schedule{suffix}.txt", print_schedule(value))
            self.schedules += 1

    def finish(self, report: Any) -> None:
        report.write_fusion_result(self.folder / "fusion_result.json")


def _stage_hook(stage: Callable[[str], None], dumper: _Dumper | None) -> Callable[[str, Any], None]:
    told = with_notes(stage)

    def hook(name: str, value: Any) -> None:
        told(name, value)
        if dumper:
            dumper(name, value)

    return hook


COMMANDS = (compile_command, socs)
