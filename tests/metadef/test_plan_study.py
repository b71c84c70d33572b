"""What if, largest batch, time windows, and operators whose results share no memory."""

from __future__ import annotations

import pytest

from metadef.batch_study import largest_batch
from metadef.compiler import CompileOptions, schedule_model
from metadef.error import PlanError, UsageError
from metadef.memory import plan_memory
from metadef.plan_study import address_windows, unfused_schedule, what_if
from metadef.schedule import Schedule
from metadef.schedule_edit import forbid_reuse, no_reuse_from_environment
from tests.metadef.models import detector

OPTIONS = CompileOptions(dims={"n": 1, "h": 16, "w": 16})


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return schedule_model(detector(), OPTIONS).schedule


def test_what_if_plans_one_network_in_several_ways(schedule: Schedule) -> None:
    rows = {row.name: row for row in what_if(schedule, lambda: unfused_schedule(detector(), OPTIONS))}
    planned = plan_memory(schedule)
    assert rows["as planned"].total_size == planned.total_size
    assert rows["in-place off"].total_size >= planned.total_size
    assert rows["reuse off"].total_size == planned.no_reuse > planned.total_size
    assert rows["steps reordered"].total_size <= planned.total_size
    assert rows["fusion off"].steps > rows["as planned"].steps
    assert "fusion off" not in [row.name for row in what_if(schedule)]


@pytest.mark.parametrize("capacity", [40_000, 100_000, 333_333])
def test_largest_batch_fits_and_the_next_does_not(capacity: int) -> None:
    options = CompileOptions(dims={"h": 16, "w": 16})
    found = largest_batch(detector(), options, capacity)
    assert found.total_size <= capacity < found.next_size and len(found.tried) <= 8
    again = schedule_model(detector(), CompileOptions(dims={"n": found.batch, "h": 16, "w": 16})).schedule
    assert plan_memory(again).total_size <= capacity


def test_largest_batch_needs_room_and_an_open_batch() -> None:
    with pytest.raises(PlanError, match=r"batch of 1[\s\S]*too many"):
        largest_batch(detector(), CompileOptions(dims={"h": 16, "w": 16}), 1000)
    with pytest.raises(UsageError, match="E10031"):
        largest_batch(detector(batch=2, height=8, width=8), CompileOptions(), 1 << 20)


def test_windows_tell_who_holds_an_address_when(schedule: Schedule) -> None:
    plan = plan_memory(schedule)
    windows = address_windows(plan)
    end = 0
    for item in windows:
        assert item.offset >= end and item.size > 0
        end = item.offset + item.size
        for (_, last, _), (first, _, _) in zip(item.holders, item.holders[1:]):
            assert last <= first, "an address has one holder at a time; in place it is handed over within a step"
    assert end == plan.total_size
    named = {name for item in windows for *_, name in item.holders}
    rows = [row for row in plan.rows if row.region == "arena" and row.alias_kind in ("", "inplace")]
    assert named == {row.name for row in rows}


def test_named_operators_share_no_memory(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    step = next(step for step in schedule.steps if step.kernel is not None and step.kernel.op_type == "Conv2D")
    kept = forbid_reuse(schedule, [step.name], strict=[step.name])
    plan = plan_memory(kept)
    row = plan.of_tensor(step.writes[0])
    assert step.name in row.no_reuse and (row.first, row.last) == (0, len(schedule.steps) - 1)
    assert plan.total_size >= plan_memory(schedule).total_size
    monkeypatch.setenv("OP_NO_REUSE_MEM", "Conv2D, nobody")
    names = no_reuse_from_environment()
    assert names == ["Conv2D", "nobody"]
    marked = [tensor for tensor in forbid_reuse(schedule, names).tensors if tensor.no_reuse]
    assert len(marked) >= 2
    with pytest.raises(UsageError, match="Conv2D"):
        forbid_reuse(schedule, ["Conv2E"], strict=["Conv2E"])
