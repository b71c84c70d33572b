"""The checker refuses every broken plan and accepts every sound one; a pairwise oracle decides which is which."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadef.error import PlanError
from metadef.memory import MemoryPlan, check_plan, plan_memory
from metadef.schedule import Group, InPlace, Schedule, Step, TensorKind, View
from tests.metadef.memory.schedules import Maker, random_schedules, residual_network


def sound(schedule: Schedule, plan: MemoryPlan) -> bool:
    """Pairwise check of a schedule without relations: lives from the steps, bytes from the rows."""
    lives: list[tuple[int, int, int, int, int]] = []
    for row in plan.rows:
        if row.region != "arena" or not row.slot_bytes:
            continue
        if row.tensor < 0:
            first = last = row.step
            grid = 512
        else:
            used = [s.id for s in schedule.steps if row.tensor in s.reads or row.tensor in s.writes]
            first, last = used[0], used[-1]
            grid = schedule.tensors[row.tensor].alignment
        bytes_used = row.payload_bytes if row.tensor < 0 else row.slot_bytes
        if row.offset < 0 or row.offset % grid or row.offset + bytes_used > plan.total_size:
            return False
        lives.append((first, last, row.offset, row.offset + bytes_used, row.tensor))
    return not any(
        a[0] <= b[1] and b[0] <= a[1] and a[2] < b[3] and b[2] < a[3] for i, a in enumerate(lives) for b in lives[:i]
    )


@settings(max_examples=70)
@given(random_schedules(relations=False), st.data())
def test_moved_rows_are_refused_exactly_when_they_break_a_rule(schedule: Schedule, data: st.DataObject):
    plan = plan_memory(schedule, budget_s=0.01)
    movable = [i for i, row in enumerate(plan.rows) if row.region == "arena" and row.slot_bytes]
    if not movable:
        return
    index = data.draw(st.sampled_from(movable))
    steps = st.integers(-2, 12).map(lambda k: k * 512)
    offset = data.draw(steps | st.integers(0, max(plan.total_size, 1)))
    mutant = replace(plan, rows=[*plan.rows])
    mutant.rows[index] = replace(plan.rows[index], offset=offset)
    if sound(schedule, mutant):
        check_plan(schedule, mutant)
    else:
        with pytest.raises(PlanError):
            check_plan(schedule, mutant)


@settings(max_examples=70)
@given(random_schedules(relations=False), st.data())
def test_a_later_reader_is_noticed(schedule: Schedule, data: st.DataObject):
    plan = plan_memory(schedule, budget_s=0.01)
    step = data.draw(st.sampled_from(schedule.steps))
    earlier = [t for s in schedule.steps[: step.id] for t in s.writes if t not in step.reads]
    if not earlier:
        return
    added = data.draw(st.sampled_from(earlier))
    schedule.steps[step.id] = replace(step, reads=(*step.reads, added))
    rows = [row if row.tensor != added else replace(row, last=max(row.last, step.id)) for row in plan.rows]
    mutant = replace(plan, rows=rows)
    if sound(schedule, mutant):
        check_plan(schedule, mutant)
    else:
        with pytest.raises(PlanError, match=r"overwritten|without permission"):
            check_plan(schedule, mutant)


def planned() -> tuple[Schedule, MemoryPlan]:
    schedule = residual_network()
    return schedule, plan_memory(schedule)


def moved(plan: MemoryPlan, name: str, **fields: object) -> MemoryPlan:
    assert any(row.name == name for row in plan.rows)
    return replace(plan, rows=[replace(row, **fields) if row.name == name else row for row in plan.rows])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("conv1", {"offset": 4}, "misaligned"),
        ("conv1", {"offset": -512}, "leaves its region"),
        ("conv1", {"offset": 10**9}, "leaves its region"),
        ("conv1", {"slot_bytes": 512}, "smaller than its tensor"),
        ("conv1", {"region": "io"}, "wrong region"),
        ("conv1", {"pool": "P2P"}, "another memory pool"),
        ("conv1", {"last": 2}, "does not cover"),
        ("flat", {"offset": 512 * 4000}, "not in its base"),
        ("stage0/block1/conv2:workspace0", {"offset": 64}, "misaligned"),
        ("stage0/block1/add", {"alias_of": 0}, "without permission"),
        ("conv1.w", {"region": "arena"}, "wrong region"),
    ],
)
def test_faults_of_single_rows(name: str, fields: dict[str, object], message: str):
    schedule, plan = planned()
    with pytest.raises(PlanError, match=message) as caught:
        check_plan(schedule, moved(plan, name, **fields))
    assert any(problem.code == "E19999" for problem in caught.value.problems)


def test_missing_and_double_rows():
    schedule, plan = planned()
    with pytest.raises(PlanError, match="has 0 rows"):
        check_plan(schedule, replace(plan, rows=plan.rows[1:]))
    with pytest.raises(PlanError, match="has 2 rows"):
        check_plan(schedule, replace(plan, rows=[*plan.rows, plan.rows[0]]))


def test_stale_revision_and_wrong_totals():
    schedule, plan = planned()
    schedule.graph_revision += 1
    with pytest.raises(PlanError, match="another revision"):
        check_plan(schedule, plan)
    schedule.graph_revision -= 1
    with pytest.raises(PlanError, match="out of order"):
        check_plan(schedule, replace(plan, theory_min=plan.total_size + 512))


def test_a_withdrawn_permission_is_noticed():
    schedule, plan = planned()
    schedule.inplace = schedule.inplace[4:]
    with pytest.raises(PlanError, match="without permission"):
        check_plan(schedule, plan)


def test_group_members_must_follow_each_other():
    make = Maker()
    x = make.tensor("x", 8, TensorKind.INPUT)
    members = tuple(make.step(f"m{i}", [x], 1000) for i in range(3))
    make.step("whole", list(members), 3000)
    make.schedule.groups.append(Group(make.schedule.steps[-1].writes[0], members))
    plan = plan_memory(make.schedule)
    check_plan(make.schedule, plan)
    assert [plan.of_tensor(m).offset for m in members] == [0, 1000, 2000]
    with pytest.raises(PlanError, match="out of line"):
        check_plan(make.schedule, moved(plan, "m1", offset=1024))


def test_an_output_overwritten_before_the_end_is_noticed():
    make = Maker()
    x = make.tensor("x", 8, TensorKind.INPUT)
    first = make.step("first", [x], 600, kind=TensorKind.OUTPUT)
    make.step("second", [first], 600, kind=TensorKind.OUTPUT)
    plan = plan_memory(make.schedule)
    check_plan(make.schedule, plan)
    make.schedule.inplace.append(InPlace(1, first, 2))
    with pytest.raises(PlanError, match="overwritten by 'second'"):
        check_plan(make.schedule, moved(plan, "second", offset=plan.of_tensor(first).offset))


def test_reuse_across_streams_needs_an_event():
    make = Maker()
    x = make.tensor("x", 8, TensorKind.INPUT)
    make.step("a", [x], 600, records=(1,))
    make.step("b", [x], 600, stream=1, waits=(1,))
    plan = plan_memory(make.schedule)
    check_plan(make.schedule, plan)
    assert plan.total_size == 1024
    make.schedule.steps[1] = Step(1, "b", (x,), (2,), stream=1)
    with pytest.raises(PlanError, match="no event orders"):
        check_plan(make.schedule, plan)
    assert plan_memory(make.schedule).total_size == 2048


def test_loops_are_run_twice():
    make = Maker()
    x = make.tensor("x", 8, TensorKind.INPUT)
    state = make.step("state", [x], 600)
    make.step("use", [state], 600, loop_depth=1)
    scratch = make.step("scratch", [x], 600, loop_depth=1)
    plan = plan_memory(make.schedule)
    check_plan(make.schedule, plan)
    with pytest.raises(PlanError, match="'state' was overwritten by 'scratch'"):
        check_plan(make.schedule, moved(plan, "scratch", offset=plan.of_tensor(state).offset))
    assert scratch == 3


def test_a_view_keeps_its_base_alive():
    make = Maker()
    a = make.step("a", [make.tensor("x", 8, TensorKind.INPUT)], 600)
    view = make.tensor("view", 600)
    make.schedule.views.append(View(view, a))
    b = make.step("b", [a], 600)
    make.step("c", [view, b], 600)
    plan = plan_memory(make.schedule)
    check_plan(make.schedule, plan)
    with pytest.raises(PlanError, match="overwritten"):
        check_plan(make.schedule, moved(plan, "b", offset=plan.of_tensor(a).offset, alias_kind="", alias_of=-1))
