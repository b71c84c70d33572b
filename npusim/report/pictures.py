"""Pictures: memory map over time, bytes over time, roofline. Drawn with matplotlib's object interface, no global state.

Colours are the Okabe-Ito set, safe for colour-blind readers, lightened so that black names stay readable and print in
grey; the largest tensors carry their names.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from metadef.files import atomic_write
from metadef.program import Program
from metadef.target import Target
from npusim.profile import Profile, TaskProfile
from npusim.report.lifetimes import ArenaStory, Life, arena_story
from npusim.report.table import PIPES, gm_bytes
from npusim.report.units import show_bytes, show_us

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#5AA2D8", "#9CCEEF", "#3FBF98", "#F2B84B", "#DFA3C5", "#F0E68C")
MARKERS = ("o", "s", "^", "D")
PEAK_COLOUR = "#D55E00"
LAUNCH_COLOUR = "#BDBDBD"
KIB, MIB = 1024, 1024 * 1024


def memory_figure(program: Program) -> Figure:
    """The arena of a program, see :func:`arena_figure`."""
    saved = program.no_reuse / program.total_size if program.total_size else 1
    title = (
        f"{program.name} on {program.soc}: arena {show_bytes(program.total_size)}, "
        f"lower bound {show_bytes(program.theory_min)}, without reuse {show_bytes(program.no_reuse)} ({saved:.1f}x)"
    )
    return arena_figure(arena_story(program), [task.name for task in program.tasks], program.total_size, title)


def arena_figure(story: ArenaStory, tasks: Sequence[str], total_bytes: int, title: str) -> Figure:
    """Arena address against task: a rectangle for every life; the peak task is marked; below it, live bytes."""
    from matplotlib.ticker import MaxNLocator

    unit, unit_name = (MIB, "MiB") if total_bytes >= MIB else (KIB, "KiB")
    figure = new_figure(11, 6.5)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    _draw_lives(upper, story.lives, len(tasks), unit)
    _label_lives(upper, story, len(tasks), total_bytes, unit)
    upper.axhline(total_bytes / unit, color="black", linewidth=1)
    upper.axvline(story.peak_task, color=PEAK_COLOUR, linewidth=1.5, linestyle="--")
    upper.set_ylabel(f"arena address ({unit_name})")
    upper.set_ylim(0, total_bytes / unit * 1.04 or 1)
    upper.set_title(title, fontsize=10, loc="left")
    steps = np.arange(len(story.live_bytes) + 1) - 0.5
    lower.stairs(np.asarray(story.live_bytes) / unit, steps, fill=True, color=COLOURS[1], alpha=0.7)
    lower.axvline(story.peak_task, color=PEAK_COLOUR, linewidth=1.5, linestyle="--")
    peak_name = tasks[story.peak_task] if tasks else ""
    note = f"peak {show_bytes(story.peak_bytes)} in slots at task {story.peak_task}: {peak_name}"
    right = story.peak_task > len(tasks) / 2
    lower.annotate(
        note,
        (story.peak_task, story.peak_bytes / unit),
        xytext=(-6 if right else 6, 3),
        textcoords="offset points",
        ha="right" if right else "left",
        va="bottom",
        fontsize=8,
        color=PEAK_COLOUR,
    )
    lower.set_ylim(0, max(story.peak_bytes / unit * 1.3, 1e-6))
    lower.set_ylabel(f"live slots ({unit_name})")
    lower.set_xlabel("task, in execution order")
    lower.set_xlim(-0.5, max(1, len(tasks)) - 0.5)
    lower.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure


def _draw_lives(axes: Axes, lives: Sequence[Life], tasks: int, unit: int) -> None:
    """All rectangles as two artists (workspaces are hatched); what is narrower than its border would be has none."""
    from matplotlib.collections import PolyCollection

    for workspace in (False, True):
        chosen = [(k, life) for k, life in enumerate(lives) if life.workspace == workspace]
        left = np.array([life.first - 0.5 for _, life in chosen])
        right = np.array([life.last + 0.5 for _, life in chosen])
        low = np.array([life.offset / unit for _, life in chosen])
        high = np.array([(life.offset + life.bytes) / unit for _, life in chosen])
        corners = np.stack([[left, right, right, left], [low, low, high, high]], axis=-1).transpose(1, 0, 2)
        boxes = PolyCollection(
            list(corners),
            facecolors=[COLOURS[k % len(COLOURS)] for k, _ in chosen],
            edgecolors="white",
            linewidths=np.where(right - left > NARROW_SHARE * max(tasks, 1), 0.6, 0.0),
            hatch="//" if workspace else None,
        )
        axes.add_collection(boxes, autolim=False)


NARROW_SHARE = 0.003
"""Of the width of the picture: a life of three pixels."""


def _label_lives(axes: Axes, story: ArenaStory, tasks: int, total_bytes: int, unit: int) -> None:
    """Name what is large enough to hold its name: wide boxes along, narrow ones upright."""
    for life in story.lives:
        share_of_height = life.bytes / max(total_bytes, 1)
        width = (life.last - life.first + 1) / max(tasks, 1)
        if share_of_height < 0.035:
            continue
        name = life.name if len(life.name) <= 22 else life.name[:21] + "…"
        upright = width * 150 < len(name)
        if upright and (share_of_height * 60 < len(name) or width < 0.008):
            continue
        axes.text(
            (life.first + life.last) / 2,
            (life.offset + life.bytes / 2) / unit,
            name,
            fontsize=6.5,
            rotation=90 if upright else 0,
            ha="center",
            va="center",
            clip_on=True,
            color="black",
        )


def traffic_figure(profile: Profile) -> Figure:
    """Bytes over time: what the tasks move through global memory, split into HBM reads, HBM writes and L2."""
    figure = new_figure(11, 4)
    axes = figure.subplots()
    edges: list[float] = []
    rates: dict[str, list[float]] = {"HBM read": [], "HBM write": [], "served by L2": []}
    for task in profile.tasks:
        start, length = profile.to_us(task.start_cycles), max(profile.to_us(task.cycles), 1e-9)
        if edges and start > edges[-1]:
            for values in rates.values():
                values.append(0.0)
            edges.append(start)
        elif not edges:
            edges.append(start)
        served = max(0, gm_bytes(task) - task.hbm_read_bytes - task.hbm_write_bytes)
        for name, count in (
            ("HBM read", task.hbm_read_bytes),
            ("HBM write", task.hbm_write_bytes),
            ("served by L2", served),
        ):
            rates[name].append(count / length / 1000)
        edges.append(start + length)
    base = np.zeros(max(len(edges) - 1, 0))
    for (name, values), colour in zip(rates.items(), (COLOURS[0], COLOURS[3], COLOURS[1]), strict=True):
        top = base + np.asarray(values)
        if len(edges) > 1:
            axes.stairs(top, edges, baseline=base, fill=True, color=colour, label=name)
        base = top
    axes.set_xlabel("time (us)")
    axes.set_ylabel("traffic (GB/s)")
    total = sum(gm_bytes(task) for task in profile.tasks)
    hbm = sum(task.hbm_read_bytes + task.hbm_write_bytes for task in profile.tasks)
    axes.set_title(
        f"{profile.name} on {profile.soc}: {show_bytes(total)} between cores and global memory, "
        f"{show_bytes(hbm)} of it from or to HBM, in {show_us(profile.us)}",
        fontsize=10,
        loc="left",
    )
    axes.legend(loc="upper right", fontsize=8)
    axes.set_xlim(0, max(profile.us, 1e-9))
    return figure


def timeline_figure(profile: Profile) -> Figure:
    """Launches and pipes against time: a bar per task, as high as the share of the task that they take up.

    Pipes are those of the slowest core.
    """
    tasks = [task for task in profile.tasks if task.cycles]
    lanes = {"launch": [task.causes.get("launch", 0) for task in tasks]}
    lanes |= {pipe: [task.pipes.get(pipe, 0) for task in tasks] for pipe in PIPES}
    lanes = {name: cycles for name, cycles in lanes.items() if any(cycles)}
    figure = new_figure(11, 1.2 + 0.62 * max(len(lanes), 1))
    axes = figure.subplots()
    starts = [profile.to_us(task.start_cycles) for task in tasks]
    widths = [profile.to_us(task.cycles) for task in tasks]
    # Outlines help the eye between neighbours and would cover the bars where tasks are thin.
    outline = 0.3 if len(tasks) <= 150 else 0.0
    for row, (name, cycles) in enumerate(lanes.items()):
        heights = [0.9 * part / task.cycles for part, task in zip(cycles, tasks, strict=True)]
        bottom = len(lanes) - 1 - row
        colour = LAUNCH_COLOUR if name == "launch" else COLOURS[PIPES.index(name) % len(COLOURS)]
        axes.bar(starts, heights, widths, bottom, align="edge", color=colour, edgecolor="#444444", linewidth=outline)
        axes.axhline(bottom, color="black", linewidth=0.5)
    share = {name: sum(cycles) / max(profile.cycles, 1) for name, cycles in lanes.items()}
    axes.set_yticks([len(lanes) - 1 - row + 0.45 for row in range(len(lanes))])
    labels = [f"{name}\n{share[name]:.0%} {'of time' if name == 'launch' else 'busy'}" for name in lanes]
    axes.set_yticklabels(labels, fontsize=8)
    axes.set_ylim(0, max(len(lanes), 1))
    axes.set_xlim(0, max(profile.us, 1e-9))
    axes.set_xlabel("time (us); bar height: share of the task that is launch, or that the pipe is busy")
    title = f"{profile.name} on {profile.soc}: launches, and pipes of the slowest core, over {show_us(profile.us)}"
    axes.set_title(title, fontsize=10, loc="left")
    return figure


def roofline_figure(profile: Profile, target: Target) -> Figure:
    """Achieved arithmetic rate against intensity (operations per byte of global memory), with the chip's roofs."""
    figure = new_figure(9, 6)
    axes = figure.subplots()
    tasks = [task for task in profile.tasks if task.flops and gm_bytes(task)]
    intensity = np.asarray([task.flops / gm_bytes(task) for task in tasks])
    rate = np.asarray([task.flops / profile.to_us(task.cycles) / 1e6 for task in tasks])
    kinds = sorted(
        {task.op_type for task in tasks}, key=lambda kind: -sum(task.cycles for task in tasks if task.op_type == kind)
    )
    share = np.asarray([task.cycles / max(profile.cycles, 1) for task in tasks])
    for index, kind in enumerate(kinds):
        chosen = np.asarray([task.op_type == kind for task in tasks])
        colour = COLOURS[index % len(COLOURS)]
        axes.scatter(
            intensity[chosen],
            rate[chosen],
            s=20 + 1500 * share[chosen],
            color=colour,
            marker=MARKERS[index // len(COLOURS) % len(MARKERS)],
            alpha=0.75,
            edgecolors="black",
            linewidths=0.4,
            label=kind,
        )
    low = min(intensity.min(initial=1) / 3, 0.1)
    high = max(intensity.max(initial=1) * 5, 2000)
    line = np.geomspace(low, high, 200)
    peak = target.peak_tflops
    for label, bandwidth, style in (("HBM", target.hbm_tb_per_s, "-"), ("L2", target.l2_tb_per_s, "--")):
        axes.plot(
            line,
            np.minimum(line * bandwidth, peak),
            style,
            color="black",
            linewidth=1.2,
            label=f"{label} {bandwidth:.2f} TB/s, cube fp16 {peak:.0f} TFLOPS",
        )
    _name_longest(axes, tasks, intensity, rate)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte of global memory")
    axes.set_ylabel("achieved TFLOPS")
    axes.set_title(
        f"{profile.name} on {profile.soc}: roofline; the area of a dot is the task's share of time",
        fontsize=10,
        loc="left",
    )
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(loc="lower right", fontsize=8, markerscale=0.8)
    return figure


def _name_longest(
    axes: Axes, tasks: list[TaskProfile], intensity: np.ndarray, rate: np.ndarray, count: int = 5
) -> None:
    """Name the longest tasks by their first source node; dots at nearly the same place get one name."""
    named: list[tuple[float, float]] = []
    for index in sorted(range(len(tasks)), key=lambda item: -tasks[item].cycles):
        place = (float(np.log10(intensity[index])), float(np.log10(rate[index])))
        if len(named) < count and all(abs(place[0] - x) + abs(place[1] - y) > 0.25 for x, y in named):
            named.append(place)
            label = (tasks[index].origins or (tasks[index].name,))[0][:32]
            point = (intensity[index], rate[index])
            axes.annotate(label, point, fontsize=7, xytext=(8, -10), textcoords="offset points")


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a PNG at 140 dots per inch. Raises UsageError if it cannot be written."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # names in any script; boxes stand for it
        return atomic_write(path, lambda stream: figure.savefig(stream, format="png", dpi=140))


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that many inches."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that notebooks show by itself, without pyplot's global state."""

        def _repr_png_(self) -> bytes:
            stream = io.BytesIO()
            self.savefig(stream, format="png", dpi=80)
            return stream.getvalue()

    return Picture(figsize=(width, height), layout="constrained")
