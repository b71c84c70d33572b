"""Fitting a chip to measurements: ``npusim calibrate``."""

from __future__ import annotations

from pathlib import Path

import click

from npusim.commands.options import DEFAULT_SOC, json_option
from npusim.commands.output import console_of, print_json, progress, spare_sources


@click.command()
@click.argument("table", metavar="CSV", type=click.Path(dir_okay=False))
@click.option("--soc", default=DEFAULT_SOC, show_default=True, help="Chip to start from: a name or a target file.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for target and picture (default: beside CSV).")
@click.option("--constant", "constants", multiple=True, metavar="KEY", help="Fit these constants; may be repeated.")
@json_option
def calibrate(table: str, soc: str, out: str | None, constants: tuple[str, ...], as_json: bool) -> None:
    """Fit a handful of a chip's constants to CSV, an op_summary of the real profiler.

    Prints errors before and after, and writes a target file that --soc takes, with a picture beside it.
    """
    from metadef.target import load_target
    from npusim.calibrate import FITTED, calibrate, load_op_summary
    from npusim.report.calibration import calibration_figure, calibration_rows, print_calibration, write_target

    source, target = Path(table), load_target(soc)
    folder = Path(out) if out else source.parent
    places = [folder / f"{target.soc}_calibrated{ending}" for ending in (".yaml", ".png")]
    spare_sources(places, None, (table, soc))
    loaded = load_op_summary(source, target)
    with progress() as stage:
        result = calibrate(loaded, target, constants or FITTED, stage)
    base = soc if soc == target.soc else str(Path(soc).resolve().with_suffix(""))
    path = write_target(result, places[0], source.name, base)
    picture = calibration_figure(result, places[1])
    if as_json:
        figures = {name: vars(result.figures(values)) for name, values in _sides(result)}
        moved = {key: list(pair) for key, pair in result.moved.items()}
        files = [str(path), str(picture)]
        rows = calibration_rows(result)
        print_json(
            {"soc": soc, **figures, "constants": moved, "skipped": loaded.skipped, "tasks": rows, "files": files}
        )
        return
    console = console_of()
    print_calibration(result, loaded, console)
    for written in (path, picture):
        console.print(f"wrote {written}")


def _sides(result: object) -> tuple[tuple[str, tuple[float, ...]], ...]:
    return (("before", result.before), ("after", result.after))  # type: ignore[attr-defined]


COMMANDS = (calibrate,)
