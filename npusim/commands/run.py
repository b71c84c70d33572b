"""Running: ``npusim demo | run | profile``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npusim.commands.options import (
    DEFAULT_SOC,
    json_option,
    open_model,
    read_files,
    running_options,
)
from npusim.commands.output import console_of, print_json, progress, spare_sources

if TYPE_CHECKING:
    import numpy as np

    from npusim.session import InferenceSession


@click.command()
@click.option(
    "--out",
    default="npusim_demo",
    show_default=True,
    type=click.Path(file_okay=False),
    help="Folder for trace and pictures.",
)
@click.option("--soc", default=DEFAULT_SOC, show_default=True, help="Chip to simulate.")
@json_option
def demo(out: str, soc: str, as_json: bool) -> None:
    """Compile and run the bundled digit classifier: predictions, cycles, memory map, trace and pictures."""
    from npusim.demo import run_demo, show_demo

    with progress() as stage:
        result = run_demo(soc, Path(out), stage)
    if as_json:
        print_json(result.as_json())
    else:
        show_demo(result, console_of())
    if result.accuracy < result.reference_accuracy:
        sys.exit(1)


@click.command()
@running_options
@click.option("--out", type=click.Path(file_okay=False), help="Write every output as NAME.npy into this folder.")
@json_option
def run(model: str, inputs: tuple[str, ...], seed: int, out: str | None, as_json: bool, **options: Any) -> None:
    """Run MODEL (.onnx or .om): outputs, cycles and peak memory."""
    import numpy as np

    from metadef.files import atomic_write

    session, feeds = open_model(model, inputs, seed, options)
    names = [item.name for item in session.get_outputs()]
    places = _places(Path(out), names) if out else []
    spare_sources(places, model, read_files(options, inputs))
    outputs = dict(zip(names, session.run(None, feeds), strict=True))
    for path, value in zip(places, outputs.values()):
        atomic_write(path, partial(np.save, arr=value))
    summary = {**_run_summary(session, outputs), **_not_finite(session, feeds, outputs)}
    if as_json:
        print_json(summary)
        return
    console = console_of()
    _tell_feeds(console, inputs, seed)
    for name, value in outputs.items():
        console.print(
            f"output [bold]{name}[/bold] {value.dtype}{list(value.shape)}: {_glimpse(value)}", highlight=False
        )
    for path in places:
        console.print(f"wrote {path}")
    _print_totals(console, session)


@click.command()
@running_options
@click.option(
    "--out", default="npusim_profile", show_default=True, type=click.Path(file_okay=False), help="Folder for the files."
)
@click.option("--top", type=click.IntRange(1), help="Show only the N longest tasks.")
@json_option
def profile(
    model: str, inputs: tuple[str, ...], seed: int, out: str, top: int | None, as_json: bool, **options: Any
) -> None:
    """Run MODEL and explain its time: table, trace.json (Perfetto), pictures, report.html, PROF_* folder."""
    from npusim.report.files import write_reports
    from npusim.report.table import print_table, task_rows

    session, feeds = open_model(model, inputs, seed, options)
    outputs = dict(zip([item.name for item in session.get_outputs()], session.run(None, feeds), strict=True))
    with progress() as stage:
        stage("reports")
        written = write_reports(Path(out), session.program, session.profile.data, session.target)
    summary = {**_run_summary(session, outputs), **_not_finite(session, feeds, outputs)}
    if as_json:
        rows = task_rows(session.profile.data)
        print_json({**summary, "operators": rows, "files": [str(path) for path in written]})
        return
    console = console_of()
    _tell_feeds(console, inputs, seed)
    print_table(session.profile.data, console, top=top)
    _print_totals(console, session)
    for path in written:
        console.print(f"wrote {path}")


def _tell_feeds(console: Any, inputs: tuple[str, ...], seed: int) -> None:
    if not inputs:
        console.print(f"no --input given: fed with generated values, seed {seed}")


def _places(folder: Path, names: list[str]) -> list[Path]:
    """A file for every output, all different."""
    paths: list[Path] = []
    for name in names:
        safe = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
        while folder / f"{safe}.npy" in paths:
            safe += "_"
        paths.append(folder / f"{safe}.npy")
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
        "weights_bytes": program.weights_bytes - program.streamed_bytes,
        "streamed_bytes": program.streamed_bytes,
        "tasks": len(program.tasks),
        **_gear_summary(session),
        "host_tasks": [{"name": task.name, "reason": task.kernel.reason} for task in program.tasks if task.on_host],
    }


def _not_finite(
    session: InferenceSession, feeds: dict[str, np.ndarray], outputs: dict[str, np.ndarray]
) -> dict[str, Any]:
    """The key ``not_finite``, which is null where all is well; else it is told on standard error too."""
    from npusim.finite import not_finite

    found = not_finite(session, feeds, outputs)
    if found is None:
        return {"not_finite": None}
    click.echo(f"npusim: {found.text}", err=True)
    return {"not_finite": found.as_json()}


def _gear_summary(session: InferenceSession) -> dict[str, Any]:
    """The gear of the last run and what its padding wasted; nothing for a model without gears."""
    choice = session.gear_choice
    if choice is None:
        return {}
    arena = session.model.program.arena_bytes
    summary = {"gear": choice.key, "padding_waste": round(choice.waste, 6), "gears_arena_bytes": arena}
    pool = session.pool_stats
    if pool is not None:
        summary["pool"] = {
            "hit_rate": pool.hit_rate,
            "fragmentation": pool.fragmentation,
            "reserved": pool.reserved,
            "high_water": pool.high_water,
        }
    return summary


def _print_totals(console: Any, session: InferenceSession) -> None:
    from npusim.report.units import show_bytes, show_us
    from npusim.timing.tasks import HOST_PATH

    program, data = session.program, session.profile.data
    console.print(
        f"{program.soc}: {len(program.tasks)} tasks, {data.cycles:,} cycles = {show_us(data.us)}; "
        f"arena {show_bytes(program.total_size)} (without reuse {show_bytes(program.no_reuse)}), "
        f"weights {show_bytes(program.weights_bytes - program.streamed_bytes)}",
        highlight=False,
    )
    choice = session.gear_choice
    if choice is not None:
        fit = "exact" if choice.exact else f"{choice.waste:.1%} of its input is padding"
        console.print(
            f"gear {choice.key} ({fit}) of {', '.join(session.model.programs)}; one arena of "
            f"{show_bytes(session.model.program.arena_bytes)} for all",
            highlight=False,
        )
        pool = session.pool_stats
        if pool is not None:
            console.print(
                f"pool beyond the gears: {show_bytes(pool.reserved)} reserved, high water "
                f"{show_bytes(pool.high_water)}, hit rate {pool.hit_rate:.0%}, "
                f"fragmentation {pool.fragmentation:.0%}",
                highlight=False,
            )
    if program.streamed_bytes:
        loads = sum(task.is_load for task in program.tasks)
        console.print(
            f"streamed: {loads} loads of {show_bytes(session.profile.traffic[HOST_PATH])} a run over the host link, "
            f"weights of {show_bytes(program.streamed_bytes)} stay on the host",
            highlight=False,
        )
    for task in program.tasks:
        if task.on_host:
            console.print(f"  on the host: {task.name} ({task.kernel.op_type}): {task.kernel.reason}")


def _glimpse(value: np.ndarray) -> str:
    flat = value.reshape(-1)
    shown = ", ".join(f"{item:.5g}" for item in flat[:6].tolist())
    return shown + (", …" if flat.size > 6 else "")


COMMANDS = (demo, run, profile)
