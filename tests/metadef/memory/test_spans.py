"""Lives as columns are those that plain Python finds tensor by tensor, on every relation, branch, loop and stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from metadef.memory.live import live_table
from metadef.schedule import Schedule, Step
from tests.metadef.memory.plain_spans import PlainSpans
from tests.metadef.memory.test_optimum import mixed_schedule
from tools.bench.plan_shapes import mixed


def schedules() -> Iterator[Schedule]:
    yield Schedule("empty", "")
    yield from map(mixed_schedule, range(60))
    for count in (30, 77):
        for streams in (1, 3):
            for branches in (False, True):
                made = mixed(count, streams=streams, branches=branches)
                yield made
                made = replace(made, steps=[replace(step, loop_depth=step.id // 7 % 3) for step in made.steps])
                made.tensors = [
                    replace(t, no_reuse="asked for" if t.id % 17 == 5 else "", branch="a:0" if t.id % 19 == 3 else "")
                    for t in made.tensors
                ]
                made.steps[3] = replace(made.steps[3], reads=(None, *made.steps[3].reads, *made.steps[3].writes))
                yield made


def test_columns_are_what_plain_python_finds():
    for schedule in schedules():
        found, wanted = live_table(schedule).base_spans, PlainSpans(schedule).spans
        assert {root: found[root] for root in wanted} == wanted, schedule.name


@pytest.mark.parametrize("steps", [[], [Step(0, "alone", (), ())]])
def test_schedules_of_nothing(steps: list[Step]):
    live = live_table(Schedule("empty", "", steps=steps))
    assert dict(live.base_spans) == {} and live.end == 0
