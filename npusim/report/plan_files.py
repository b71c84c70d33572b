"""The files of a memory plan: JSON, allocation table, time windows and a picture of every memory pool."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from metadef.files import write_text
from metadef.memory.plan import MemoryPlan
from metadef.memory.report import allocation_rows, memory_timeline, plan_to_json
from metadef.schedule import Schedule
from npusim.report.lifetimes import ArenaStory, Life
from npusim.report.pictures import arena_figure, save_figure
from npusim.report.plans import plan_title, window_rows

PLAN_JSON, ALLOCATION, WINDOWS = NAMES = ("plan.json", "allocation.csv", "windows.csv")
"""Files that every plan is written to."""


def write_plan_files(folder: Path, schedule: Schedule, plan: MemoryPlan) -> list[Path]:
    """plan.json, allocation.csv, windows.csv and a picture per memory pool; returns their paths.

    Raises:
        UsageError: the folder cannot be written.
    """
    names = [step.name for step in schedule.steps]
    written = [
        write_text(folder / PLAN_JSON, json.dumps(plan_to_json(schedule, plan), indent=1) + "\n"),
        write_text(folder / ALLOCATION, _table_text(allocation_rows(schedule, plan))),
        write_text(folder / WINDOWS, _table_text(window_rows(plan))),
    ]
    for pool, figures in plan.pools.items():
        title = plan_title(schedule.name, pool, figures)
        figure = arena_figure(plan_story(schedule, plan, pool), names, figures.total_size, title)
        suffix = "" if len(plan.pools) == 1 else f"_{pool}"
        written.append(save_figure(figure, folder / f"memory{suffix}.png"))
    return written


def plan_story(schedule: Schedule, plan: MemoryPlan, pool: str) -> ArenaStory:
    """Who lies where and when in one pool of the arena."""
    own = replace(plan, rows=[row for row in plan.rows if row.region == "arena" and row.pool == pool])
    timeline = memory_timeline(schedule, own)
    lives = tuple(
        Life(rect.name, rect.offset, rect.size, rect.first, rect.last, rect.kind == "workspace")
        for rect in timeline.rects
        if rect.kind != "view"
    )
    return ArenaStory(lives, tuple(timeline.live_bytes), timeline.peak_step)


def _table_text(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
