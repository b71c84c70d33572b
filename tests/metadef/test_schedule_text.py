"""Schedules print and parse: everything the planner sees survives, and broken lines are named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from metadef.error import UsageError
from metadef.memory import plan_memory
from metadef.schedule import Group, Schedule, ScheduleTensor, Step, TensorKind, Workspace
from metadef.schedule_text import parse_schedule, print_schedule
from tests.metadef.memory.schedules import random_schedules, residual_network


@settings(max_examples=40)
@given(random_schedules(control=True))
def test_random_schedules_survive(schedule: Schedule):
    assert parse_schedule(print_schedule(schedule)) == schedule


def test_awkward_names_and_every_field_survive():
    schedule = Schedule('a "quoted" \\ name', "Ascend310P3", graph_revision=7, times=[0, 40, 90])
    schedule.tensors = [
        ScheduleTensor(0, "x=1 # not a comment", 12, TensorKind.INPUT),
        ScheduleTensor(1, "块/y", 0, alignment=1, slot_bytes=3, pool="P2P", pinned=0, no_reuse='it "must" stay'),
        ScheduleTensor(5, "", 9, residue=32, branch="if0:then/if1:else"),
    ]
    schedule.steps = [
        Step(0, "first = step", (0, None, 1), (5,), workspaces=(Workspace(64), Workspace(8, 32)), records=(1, 2)),
        Step(1, "next", (), (1,), stream=1, waits=(1,), origins=("a b", "c"), layer="Block/1", loop_depth=2),
    ]
    schedule.groups = [Group(-1, (1, 5), padded=True, pad_to=64), Group(0, (5,))]
    schedule.inputs, schedule.outputs = [0], [5]
    assert parse_schedule(print_schedule(schedule)) == schedule


def test_a_compiled_schedule_keeps_its_plan(small_compilation):
    schedule = small_compilation().schedule
    text = print_schedule(schedule)
    assert "# Conv2D on AIcoreEngine" in text
    read = parse_schedule(text)
    assert print_schedule(read) == "\n".join(line.split("  # ")[0] for line in text.splitlines()) + "\n"
    assert plan_memory(read).rows == plan_memory(schedule).rows


def test_broken_lines_are_named_all_at_once():
    text = print_schedule(residual_network())
    text += "tensro 1\ntensor 999 late feature\nstep 1 x reads=a\ninplace step=1 read=2 wrote=3\nview 3 base\n"
    with pytest.raises(UsageError) as caught:
        parse_schedule(text)
    message = str(caught.value)
    assert len(caught.value.problems) == 5
    for part in ("did you mean 'tensor'", "'bytes' is missing", "'write' is missing", "'base' is no key=value"):
        assert part in message
    with pytest.raises(UsageError, match="did you mean 'align'"):
        parse_schedule("tensor 0 x feature bytes=4 algin=2")


def test_defaults_are_left_out():
    schedule = residual_network()
    line = print_schedule(schedule).splitlines()[1]
    assert line == 'tensor 0 "x" input bytes=602112'
    schedule.tensors[0] = replace(schedule.tensors[0], alignment=64)
    assert print_schedule(schedule).splitlines()[1] == line + " align=64"
