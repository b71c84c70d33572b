"""All files of one profile: table as CSV, trace, pictures."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from metadef.files import write_text
from metadef.program import Program
from metadef.target import Target
from npusim.profile import Profile
from npusim.report.pictures import memory_figure, roofline_figure, save_figure, timeline_figure, traffic_figure
from npusim.report.table import task_rows
from npusim.report.trace import write_trace


def write_reports(folder: Path, program: Program, profile: Profile, target: Target) -> list[Path]:
    """Write the table (operators.csv), the Perfetto trace (trace.json) and the pictures (PNG); returns their paths.

    Raises:
        UsageError: the folder cannot be written.
    """
    return [
        write_text(folder / "operators.csv", _csv(profile)),
        write_trace(folder / "trace.json", program, profile, target),
        save_figure(memory_figure(program), folder / "memory.png"),
        save_figure(timeline_figure(profile), folder / "timeline.png"),
        save_figure(traffic_figure(profile), folder / "traffic.png"),
        save_figure(roofline_figure(profile, target), folder / "roofline.png"),
    ]


def _csv(profile: Profile) -> str:
    """The per-operator table; nested columns become ``pipes.CUBE`` and so on, lists are joined with ``;``."""
    rows = []
    for row in task_rows(profile):
        flat: dict[str, object] = {}
        for key, value in row.items():
            if isinstance(value, dict):
                flat.update({f"{key}.{name}": item for name, item in value.items()})
            else:
                flat[key] = ";".join(value) if isinstance(value, list) else value
        rows.append(flat)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval=0, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
