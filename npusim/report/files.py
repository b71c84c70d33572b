"""All files of one profile: table as CSV, trace, pictures, report, the profiler's folder."""

from __future__ import annotations

from pathlib import Path

from metadef.program import Program
from metadef.target import Target
from npusim.profile import Profile
from npusim.report.html import save_pictures, write_html
from npusim.report.msprof import write_msprof
from npusim.report.table import write_table
from npusim.report.trace import write_trace


def write_reports(folder: Path, program: Program, profile: Profile, target: Target) -> list[Path]:
    """Write the table (operators.csv), the Perfetto trace (trace.json), the pictures (PNG), a report with all of it
    (report.html) and the profiler's folder (PROF_*); returns their paths.

    Raises:
        UsageError: the folder cannot be written.
    """
    pictures = save_pictures(folder, program, profile, target)
    return [
        write_table(folder / "operators.csv", profile),
        write_trace(folder / "trace.json", program, profile, target),
        *pictures.values(),
        write_html(folder / "report.html", program, profile, pictures),
        write_msprof(folder, program, profile, target),
    ]
