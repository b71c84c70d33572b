"""A profile as one HTML file that needs nothing beside it: figures of the run, table of tasks, pictures inside."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

from metadef.files import write_text
from metadef.program import Program
from metadef.target import Target
from npusim.profile import CAUSES, Profile, TaskProfile
from npusim.report.pictures import memory_figure, roofline_figure, save_figure, timeline_figure, traffic_figure
from npusim.report.table import gm_bytes
from npusim.report.units import show_bytes, show_share, show_us

CAUSE_COLOURS = {
    "compute": "#2b7a4b", "pipe wait": "#c2a33a", "memory": "#2f6db5", "misalignment": "#b5472f",
    "bank conflict": "#8a4fa3", "launch": "#8c8c8c", "imbalance": "#d9822b",
}  # fmt: skip

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1180px; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { cursor: pointer; text-align: left; border-bottom: 2px solid #666; padding: 4px 8px; position: sticky; top: 0;
     background: #fff; }
td { padding: 3px 8px; border-bottom: 1px solid #ddd; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.scroll { max-height: 34rem; overflow: auto; border: 1px solid #ccc; }
.bar { display: flex; height: 12px; min-width: 160px; background: #eee; } .bar span { display: block; height: 12px; }
.key span { display: inline-block; width: 12px; height: 12px; margin: 0 4px 0 14px; vertical-align: -1px; }
img { max-width: 100%; border: 1px solid #ddd; } p.sub { color: #555; margin-top: 0; }
"""

_SCRIPT = """
document.querySelectorAll('th').forEach((head, at) => head.addEventListener('click', () => {
  const body = head.closest('table').tBodies[0], down = head.dataset.down !== '1';
  head.dataset.down = down ? '1' : '0';
  const value = cell => cell.dataset.v === undefined ? cell.innerText : +cell.dataset.v;
  const key = row => value(row.cells[at]);
  [...body.rows].sort((a, b) => (key(a) < key(b) ? 1 : -1) * (down ? 1 : -1)).forEach(row => body.append(row));
}));
"""


def save_pictures(folder: Path, program: Program, profile: Profile, target: Target) -> dict[str, Path]:
    """All pictures of a profile as PNG files, by their headings. Raises UsageError if they cannot be written."""
    figures = {
        "Timeline": timeline_figure(profile),
        "Memory": memory_figure(program),
        "Traffic": traffic_figure(profile),
        "Roofline": roofline_figure(profile, target),
    }
    return {name: save_figure(figure, folder / f"{name.lower()}.png") for name, figure in figures.items()}


def write_html(path: Path, program: Program, profile: Profile, pictures: dict[str, Path]) -> Path:
    """Write the report; ``pictures`` (heading to PNG) are put inside the file.

    Raises:
        UsageError: the file cannot be written.
    """
    title = f"{profile.name} on {profile.soc}"
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1><p class='sub'>{_summary(program, profile)}</p>",
        "<h2>Where the cycles went</h2>", _causes(profile), "<h2>Tasks</h2>", _table(profile),
    ]  # fmt: skip
    for heading, picture in pictures.items():
        data = base64.b64encode(picture.read_bytes()).decode()
        parts.append(f"<h2>{escape(heading)}</h2><img alt='{escape(heading)}' src='data:image/png;base64,{data}'>")
    parts.append(f"<script>{_SCRIPT}</script></body></html>\n")
    return write_text(path, "\n".join(parts))


def _summary(program: Program, profile: Profile) -> str:
    return (
        f"{len(profile.tasks)} tasks, {profile.cycles:,} cycles = {show_us(profile.us)} at {profile.clock_mhz:g} MHz; "
        f"arena {show_bytes(program.total_size)} (lower bound {show_bytes(program.theory_min)}, without reuse "
        f"{show_bytes(program.no_reuse)}), weights {show_bytes(program.weights_bytes)}"
    )


def _causes(profile: Profile) -> str:
    """All causes of all tasks: a bar and a key with shares."""
    totals = {cause: sum(task.causes.get(cause, 0) for task in profile.tasks) for cause in CAUSES}
    whole = max(sum(totals.values()), 1)
    key = "".join(
        f"<span style='background:{CAUSE_COLOURS[cause]}'></span>{cause} {show_share(count, whole)}"
        for cause, count in totals.items()
        if count
    )
    return f"{_bar(totals)}<p class='key'>{key}</p>"


def _bar(causes: dict[str, int]) -> str:
    whole = max(sum(causes.values()), 1)
    pieces = "".join(
        f"<span title='{cause}: {causes[cause]:,}' style='width:{100 * causes[cause] / whole:.2f}%;"
        f"background:{CAUSE_COLOURS[cause]}'></span>"
        for cause in CAUSES
        if causes.get(cause)
    )
    return f"<div class='bar'>{pieces}</div>"


def _table(profile: Profile) -> str:
    heads = ("#", "operator", "from nodes", "cores", "time", "share", "cycles by cause", "GM bytes", "bound by")
    right = {"#", "cores", "time", "share", "GM bytes"}
    head = "".join(f"<th{' class=n' if name in right else ''}>{name}</th>" for name in heads)
    rows = "\n".join(_row(task, profile) for task in profile.tasks)
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>"


def _row(task: TaskProfile, profile: Profile) -> str:
    name = task.op_type if task.algorithm == "direct" else f"{task.op_type} {task.algorithm}"
    nodes = ", ".join(task.origins) or f"({task.name})"

    def number(value: float, text: str) -> str:
        return f"<td class='n' data-v='{value}'>{escape(text)}</td>"

    return (
        f"<tr>{number(task.task, str(task.task))}<td>{escape(name)}</td><td>{escape(nodes)}</td>"
        f"{number(task.block_dim, str(task.block_dim))}{number(task.cycles, show_us(profile.to_us(task.cycles)))}"
        f"{number(task.cycles, show_share(task.cycles, profile.cycles))}"
        f"<td data-v='{task.cycles}'>{_bar(task.causes)}</td>"
        f"{number(gm_bytes(task), show_bytes(gm_bytes(task)))}<td>{escape(task.bound_by)}</td></tr>"
    )
