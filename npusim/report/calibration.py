"""A calibration for people: figures before and after, constants moved, predicted against measured as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from metadef.files import write_text
from metadef.target import load_target
from npusim.report.pictures import new_figure, save_figure

if TYPE_CHECKING:
    from npusim.calibrate import Calibration, Loaded


def calibration_rows(result: Calibration) -> list[dict[str, Any]]:
    """One dictionary a task with plain values."""
    return [
        {
            "name": task.name, "op_type": task.kernel.op_type, "measured_us": task.measured_us,
            "before_us": round(before, 4), "after_us": round(after, 4),
        }
        for task, before, after in zip(result.tasks, result.before, result.after)
    ]  # fmt: skip


def print_calibration(result: Calibration, loaded: Loaded, console: Any, *, top: int = 10) -> None:
    """Tables of constants, of errors, and of the tasks that are still furthest off; rows left out by reason."""
    from rich.table import Table

    table = Table(title=f"{result.target.soc}: {len(result.tasks)} tasks", title_justify="left", header_style="bold")
    for name in ("", "median error", "90th percentile", "predicted / measured"):
        table.add_column(name, justify="left" if not name else "right")
    for name, values in (("before", result.before), ("after", result.after)):
        figures = result.figures(values)
        table.add_row(name, f"{figures.median:.1%}", f"{figures.p90:.1%}", f"{figures.bias:.3f}")
    console.print(table)
    constants = Table(header_style="bold")
    constants.add_column("constant")
    for name in ("before", "after"):
        constants.add_column(name, justify="right")
    for key, (old, new) in result.moved.items():
        constants.add_row(key, f"{old:g}", f"{new:g}")
    console.print(constants)
    worst = sorted(calibration_rows(result), key=lambda row: -abs(row["after_us"] / row["measured_us"] - 1))[:top]
    tasks = Table(title="furthest off", title_justify="left", header_style="bold")
    for name in ("operator", "name", "measured us", "before us", "after us"):
        tasks.add_column(name, justify="right" if name.endswith("us") else "left", max_width=44)
    for row in worst:
        numbers = (f"{row[key]:.2f}" for key in ("measured_us", "before_us", "after_us"))
        tasks.add_row(row["op_type"], row["name"], *numbers)
    console.print(tasks)
    for reason, count in sorted(loaded.skipped.items(), key=lambda item: -item[1]):
        console.print(f"left out: {count} {reason}")


def calibration_figure(result: Calibration, path: Path) -> Path:
    """Predicted against measured before and after, both axes logarithmic."""
    figure = new_figure(7.5, 7)
    axes = figure.add_subplot()
    measured = [task.measured_us for task in result.tasks]
    for values, colour, label in ((result.before, "0.65", "before"), (result.after, "#2f6db5", "after")):
        axes.loglog(measured, values, ".", color=colour, markersize=6, label=label)
    ends = [min(measured), max(measured)]
    for factor, style in ((1.0, "-"), (1.3, ":"), (1 / 1.3, ":")):
        axes.plot(ends, [end * factor for end in ends], style, color="0.3", linewidth=0.8)
    axes.set(xlabel="measured (us)", ylabel="predicted (us)", title=f"{result.target.soc}: predicted against measured")
    axes.legend()
    return save_figure(figure, path)


def write_target(result: Calibration, path: Path, source: str, base: str) -> Path:
    """A target file with the fitted constants that inherits all others from ``base`` (a name, or a target file's path);
    :func:`load_target` takes its path.

    Raises:
        UsageError: the file cannot be written.
    """
    groups: dict[str, dict[str, object]] = {}
    for key, (old, new) in result.moved.items():
        if new != old:
            group, _, name = key.partition(".")
            leaf = {"value": round(new, 5), "source": f"fit: {len(result.tasks)} tasks of {source}", "sure": "measured"}
            groups.setdefault(group, {})[name] = leaf
    document = {"inherits": base, "soc": path.stem, **groups}
    written = write_text(path, yaml.safe_dump(document, sort_keys=False))
    load_target(str(written))
    return written
