"""Reports of a real session: table, files, trace, pictures; what they show is what program and profile say."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from metadef.error import UsageError
from metadef.files import atomic_write, write_text
from metadef.kernel import Engine
from metadef.memory.report import memory_timeline
from metadef.program import Region
from npusim import InferenceSession, SessionOptions
from npusim.data import digits_model
from npusim.report.files import write_reports
from npusim.report.lifetimes import arena_story
from npusim.report.pictures import memory_figure, roofline_figure, timeline_figure, traffic_figure
from npusim.report.table import by_time, gm_bytes, print_table, task_rows
from npusim.report.trace import trace_events
from npusim.report.units import show_bytes, show_share, show_us

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(digits_model(), SessionOptions(shapes={"image": (1, 1, 28, 28)}, threads=1))


def test_units():
    assert (show_bytes(0), show_bytes(1023), show_bytes(1606144)) == ("0 B", "1023 B", "1.53 MiB")
    assert (show_us(1.234), show_us(12.34), show_us(123.4), show_us(12345.0)) == (
        "1.23 us",
        "12.3 us",
        "123 us",
        "12.3 ms",
    )
    assert (show_share(1, 3), show_share(1, 0)) == ("33.3 %", "-")


def test_rows_carry_every_task_and_add_up(session: InferenceSession):
    rows = task_rows(session.profile.data)
    assert [row["task"] for row in rows] == [task.id for task in session.program.tasks]
    assert all(sum(row["causes"].values()) == row["cycles"] for row in rows)
    assert sum(row["share"] for row in rows) == pytest.approx(1, abs=1e-4)
    json.dumps(rows, allow_nan=False)


def test_longest_first(session: InferenceSession):
    cycles = [task.cycles for task in by_time(session.profile.data, 5)]
    assert cycles == sorted(cycles, reverse=True) and len(cycles) == 5


@pytest.mark.parametrize("compact", [True, False])
def test_table_names_source_nodes_and_where_a_task_runs(session: InferenceSession, compact: bool):
    console = Console(width=240, file=io.StringIO())
    print_table(session.profile.data, console, compact=compact)
    text = console.file.getvalue()
    assert "stem/ conv + bn + relu" in text and "(trans_TransData)" in text
    assert " cube " in text and " vector " in text and "bound by" in text


def test_lives_end_with_the_last_reader(session: InferenceSession):
    story, program = arena_story(session.program), session.program
    for life in story.lives:
        assert 0 <= life.first <= life.last < len(program.tasks)
        assert life.offset + life.bytes <= program.arena_bytes
    assert story.live_bytes[story.peak_task] == story.peak_bytes == max(story.live_bytes)
    assert story.peak_bytes <= program.theory_min


def test_pictures_and_plan_name_one_peak(session: InferenceSession):
    story, timeline = arena_story(session.program), memory_timeline(session.compilation.schedule, session.plan)
    assert list(story.live_bytes) == timeline.live_bytes and story.peak_task == timeline.peak_step


def test_trace_is_ordered_and_complete(session: InferenceSession):
    events = trace_events(session.program, session.profile.data, session.target)
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        spans.sort()
        assert all(after[0] >= before[1] - 1e-3 for before, after in pairwise(spans))
    assert {event["name"] for event in events if event["pid"] == 1 and event["ph"] == "X"} == {
        task.name for task in session.program.tasks
    }
    end = max(stop for spans in tracks.values() for _, stop in spans)
    assert end == pytest.approx(session.profile.us, rel=1e-3)


def test_pipes_of_the_trace_end_with_their_task(session: InferenceSession):
    """Pipes find the same in L2 as the task that is timed: its last store ends where the task does; what fixpipe sends
    arrives later than it leaves."""
    events = [
        event
        for event in trace_events(session.program, session.profile.data, session.target, max_intervals=2000)
        if event["ph"] == "X"
    ]
    assert all(event["args"]["left out"] == 0 for event in events if event["pid"] == 2)
    ends = {event["name"]: event["ts"] + event["dur"] for event in events if event["pid"] == 1}
    vector = {task.name for task in session.program.tasks if task.kernel.engine is Engine.VECTOR}
    late = session.target.path("L0C->GM NZ2ND").latency_cycles / session.target.clock_mhz
    last: dict[str, float] = defaultdict(float)
    for event in events:
        if event["pid"] == 2:
            task = event["args"]["task"]
            last[task] = max(last[task], event["ts"] + event["dur"])
    assert set(last) == {task.name for task in session.program.tasks if task.on_device}
    assert vector and all(-2e-3 <= ends[name] - last[name] <= 2e-3 + late * (name not in vector) for name in last)


def test_trace_counts_what_it_leaves_out(session: InferenceSession):
    few, many = (
        trace_events(session.program, session.profile.data, session.target, max_intervals=count) for count in (3, 2000)
    )
    names = [event["args"]["task"] for event in many if event["ph"] == "X" and event["pid"] == 2]
    left_out = {
        event["args"]["task"]: event["args"]["left out"] for event in few if "left out" in event.get("args", ())
    }
    assert left_out == {name: max(names.count(name) - 3, 0) for name in set(names)}


def test_all_files_are_written(session: InferenceSession, tmp_path: Path):
    paths = write_reports(tmp_path / "new", session.program, session.profile.data, session.target)
    assert all(path.stat().st_size for path in paths)
    assert all(path.read_bytes().startswith(PNG) for path in paths if path.suffix == ".png")
    with open(tmp_path / "new" / "operators.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["cycles"]) for row in rows] == [task.cycles for task in session.profile.tasks]
    assert json.loads((tmp_path / "new" / "trace.json").read_text())["otherData"]["soc"] == "Ascend910B3"


def test_memory_picture_draws_every_life(session: InferenceSession):
    figure = memory_figure(session.program)
    upper, lower = figure.axes
    boxes = sum(len(artist.get_paths()) for artist in upper.collections)
    assert boxes == len(arena_story(session.program).lives)
    assert "without reuse" in upper.get_title(loc="left") and "KiB" in lower.get_ylabel()
    assert session.program.total_size < 1 << 20 and upper.get_ylim()[1] > session.program.total_size / 1024
    assert all(tick == round(tick) for tick in lower.get_xticks())


def test_pictures_say_units(session: InferenceSession):
    profile = session.profile.data
    timeline = timeline_figure(profile).axes[0]
    assert "us" in timeline.get_xlabel()
    launches = {round(bar.get_height(), 6) for bar in timeline.containers[0]}
    assert launches == {round(0.9 * row.causes["launch"] / row.cycles, 6) for row in profile.tasks if row.cycles}
    assert "GB/s" in traffic_figure(profile).axes[0].get_ylabel()
    axes = roofline_figure(profile, session.target).axes[0]
    assert "TFLOPS" in axes.get_ylabel() and "bytes" in axes.get_xlabel().replace("byte ", "bytes ")
    rates = np.concatenate([item.get_offsets()[:, 1] for item in axes.collections])
    assert (rates <= session.target.peak_tflops).all()


def test_gm_bytes_are_what_the_arena_and_weights_moved(session: InferenceSession):
    for task, row in zip(session.program.tasks, session.profile.tasks, strict=True):
        written = sum(operand.payload_bytes for operand in task.outputs)
        assert gm_bytes(row) >= written, task.name
        assert all(operand.region in (Region.ARENA, Region.IO) for operand in task.outputs)


def test_a_failed_write_leaves_the_earlier_file(tmp_path: Path):
    path = write_text(tmp_path / "kept.txt", "earlier")

    def broken(stream):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match="No space left"):
        atomic_write(path, broken)
    assert path.read_text() == "earlier" and list(tmp_path.iterdir()) == [path]
