"""Reordered steps: never larger, every step behind what it reads, the same values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadef.compiler import CompileOptions, compile_model, schedule_model
from metadef.memory import check_plan, plan_memory
from metadef.passes import PIPELINE
from metadef.reorder import permuted, reorder
from metadef.schedule import Group, InPlace, Schedule, ScheduleTensor, Step, View
from npusim import InferenceSession, SessionOptions
from tests.metadef.models import detector


def wide_schedule(branches: int = 3) -> Schedule:
    """Every branch makes something large and boils it down; file order makes all large ones first."""
    schedule = Schedule("wide", "")
    for number in range(branches):
        schedule.tensors.append(ScheduleTensor(number, f"big{number}", 100_000))
        schedule.tensors.append(ScheduleTensor(branches + number, f"small{number}", 1_000))
    schedule.tensors.sort(key=lambda tensor: tensor.id)
    for number in range(branches):
        schedule.steps.append(Step(number, f"make{number}", (), (number,)))
    for number in range(branches):
        schedule.steps.append(Step(branches + number, f"boil{number}", (number,), (branches + number,)))
    schedule.tensors.append(ScheduleTensor(2 * branches, "sum", 1_000))
    smalls = tuple(range(branches, 2 * branches))
    schedule.steps.append(Step(2 * branches, "sum", smalls, (2 * branches,)))
    return schedule


def test_branches_are_finished_one_by_one() -> None:
    schedule = wide_schedule()
    better = reorder(schedule)
    before, after = plan_memory(schedule).total_size, plan_memory(better).total_size
    assert before == 3 * 100_352 + 1_536 and after == 100_352 + 3 * 1_536
    check_plan(better, plan_memory(better))
    assert sorted(step.name for step in better.steps) == sorted(step.name for step in schedule.steps)


def test_nothing_to_win_leaves_the_order() -> None:
    schedule = wide_schedule(1)
    assert reorder(schedule) is schedule
    forked = replace(wide_schedule(), steps=[replace(s, branch="if0:then") for s in wide_schedule().steps])
    assert reorder(forked) is forked


@st.composite
def networks(draw: st.DrawFn) -> Schedule:
    """Random networks whose tensors may be views, members of groups, or written in place."""
    schedule = Schedule("random", "")
    for number in range(draw(st.integers(4, 14))):
        reads = draw(st.lists(st.integers(0, number - 1), max_size=3, unique=True)) if number else []
        size = draw(st.sampled_from([400, 3_000, 9_000, 40_000]))
        schedule.tensors.append(ScheduleTensor(number, f"t{number}", size))
        schedule.steps.append(Step(number, f"s{number}", tuple(reads), (number,)))
        if reads and draw(st.booleans()):
            schedule.inplace.append(InPlace(number, reads[0], number))
    count = len(schedule.tensors)
    if draw(st.booleans()):
        schedule.tensors.append(ScheduleTensor(count, "view", 300))
        schedule.views.append(View(count, 0))
        schedule.tensors.append(ScheduleTensor(count + 1, "late", 500))
        schedule.steps.append(Step(len(schedule.steps), "late", (count,), (count + 1,)))
    if draw(st.booleans()) and count >= 2:
        sizes = sum(schedule.tensors[t].payload_bytes for t in (0, 1))
        whole = len(schedule.tensors)
        schedule.tensors += [ScheduleTensor(whole, "whole", sizes), ScheduleTensor(whole + 1, "out", 500)]
        schedule.groups.append(Group(whole, (0, 1)))
        schedule.steps.append(Step(len(schedule.steps), "join", (whole,), (whole + 1,)))
    return schedule


@given(networks())
@settings(max_examples=50)
def test_never_larger_and_always_sound(schedule: Schedule) -> None:
    better = reorder(schedule)
    before, after = plan_memory(schedule, budget_s=0.0), plan_memory(better, budget_s=0.0)
    check_plan(better, after)
    assert after.total_size <= before.total_size
    place = {step.name: step.id for step in better.steps}
    for step in schedule.steps:
        for tensor in step.reads:
            if tensor is not None and tensor < len(schedule.steps) and schedule.steps[tensor].writes == (tensor,):
                assert place[schedule.steps[tensor].name] < place[step.name]


def test_permutation_keeps_the_permissions_at_their_steps() -> None:
    schedule = wide_schedule(2)
    schedule.inplace.append(InPlace(4, 2, 4))
    moved = permuted(schedule, [0, 2, 1, 3, 4])
    assert [step.id for step in moved.steps] == list(range(5)) and moved.inplace == [InPlace(4, 2, 4)]
    assert [step.name for step in moved.steps][:3] == ["make0", "boil0", "make1"]


def light(name: str) -> Path:
    import onnx.backend.test

    path = Path(onnx.backend.test.__file__).parent / "data" / "light" / f"light_{name}.onnx"
    if not path.exists():
        pytest.skip(f"the onnx package has no {path.name}")
    return path


@pytest.mark.slow
def test_shufflenet_falls_below_093_of_file_order() -> None:
    plain = frozenset(step.name for step in PIPELINE if not step.required)
    options = CompileOptions(precision="origin", disabled_passes=plain)
    schedule = schedule_model(light("shufflenet"), options).schedule
    assert plan_memory(reorder(schedule)).total_size <= 0.93 * plan_memory(schedule).total_size


def test_a_reordered_program_computes_the_same(rng: np.random.Generator) -> None:
    feeds = {"x": rng.normal(size=(1, 3, 16, 16)).astype(np.float32)}
    dims = {"n": 1, "h": 16, "w": 16}
    plain = compile_model(detector(), CompileOptions(dims=dims))
    made = compile_model(detector(), CompileOptions(dims=dims, reorder=True))
    assert made.plan.total_size <= plain.plan.total_size and "reorder" in made.stage_seconds
    run: Callable[..., Any] = lambda model: InferenceSession(model, SessionOptions(threads=1)).run(None, feeds)  # noqa: E731
    for one, other in zip(run(plain.model), run(made.model), strict=True):
        assert np.array_equal(one, other)
