"""plan_memory: a residual network reaches its bound, the three numbers are in order, refusals explain themselves."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings

from metadef.error import ContractError, PlanError, UsageError
from metadef.format import slot_bytes
from metadef.memory import check_plan, plan_memory
from metadef.memory.heuristics import QUICK
from metadef.schedule import InPlace, Schedule, ScheduleTensor, Step, TensorKind, View
from tests.metadef.memory.schedules import Maker, random_schedules, residual_network


@pytest.mark.parametrize("method", ["best", "greedy-by-size"])
def test_residual_network_reaches_the_bound_with_additions_in_place(method: str):
    schedule = residual_network()
    plan = plan_memory(schedule, method=method)
    check_plan(schedule, plan)
    assert plan.total_size == plan.theory_min == 3_614_208  # the lower bound known for GE's ResNet-50 build
    assert plan.optimal
    inplace = [row for row in plan.rows if row.alias_kind == "inplace"]
    assert len(inplace) == 16
    assert all(row.offset == plan.of_tensor(row.alias_of).offset for row in inplace)


def test_without_inplace_the_residual_network_needs_more():
    schedule = residual_network()
    plan = plan_memory(schedule, inplace=False)
    check_plan(schedule, plan)
    assert plan.total_size == plan.theory_min == 3 * slot_bytes(256 * 56 * 56 * 2)
    assert not any(row.alias_kind == "inplace" for row in plan.rows)


def test_regions_are_packed_one_after_another():
    plan = plan_memory(residual_network())
    weights = [row for row in plan.rows if row.region == "weights"]
    assert [row.offset for row in weights] == [0, 100_352] and plan.weights_bytes == 100_352 + 4_096_000
    io = {row.name: row for row in plan.rows if row.region == "io"}
    assert io["x"].offset == 0 and io["trans_Cast_1"].offset == slot_bytes(602_112)
    assert plan.io_bytes == slot_bytes(602_112) + slot_bytes(4000)
    assert io["x"].no_reuse and weights[0].no_reuse


def test_a_plan_that_greedy_proves_imports_no_compiler():
    code = (
        "import sys; from tests.metadef.memory.schedules import residual_network\n"
        "from metadef.memory import plan_memory, check_plan\n"
        "s = residual_network(); p = plan_memory(s); check_plan(s, p); assert p.optimal\n"
        "assert not {'numba', 'llvmlite'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@settings(max_examples=40)
@given(random_schedules())
def test_random_schedules_give_safe_and_repeatable_plans(schedule: Schedule):
    plan = plan_memory(schedule, budget_s=0.02)
    check_plan(schedule, plan)
    assert plan.theory_min <= plan.total_size <= plan.no_reuse
    assert plan_memory(schedule, budget_s=0.02) == plan
    apart = plan_memory(schedule, reuse=False)
    check_plan(schedule, apart)
    assert apart.total_size == apart.no_reuse == plan.no_reuse


@settings(max_examples=40)
@given(random_schedules(control=True))
def test_branches_loops_and_streams_are_safe(schedule: Schedule):
    plan = plan_memory(schedule, budget_s=0.02)
    check_plan(schedule, plan)
    assert plan.theory_min <= plan.total_size <= plan.no_reuse


@pytest.mark.parametrize(
    "method",
    [
        "greedy-by-breadth",
        "greedy-by-area",
        "first-fit-by-size",
        "execution-order",
        "block-pool",
        "hill-climb",
        "exact",
    ],
)
def test_every_planner_is_safe(method: str):
    schedule = residual_network()
    plan = plan_memory(schedule, method=method, budget_s=0.05)
    check_plan(schedule, plan)
    assert plan.theory_min <= plan.total_size < plan.no_reuse


def test_capacity_below_the_live_set_names_step_tensors_shortfall_and_ways_out():
    schedule = residual_network()
    with pytest.raises(PlanError) as caught:
        plan_memory(schedule, capacity=3_614_208 - 512)
    assert caught.value.exit_code == 1
    (problem,) = caught.value.problems
    assert "512 bytes over" in problem.message
    assert problem.node in {step.name for step in schedule.steps}
    assert "3 live" in problem.got and "block0/conv3" in problem.got
    assert all(f"({number})" in problem.hint for number in (1, 2, 3))
    assert plan_memory(schedule, capacity=3_614_208).optimal


def test_inplace_is_not_taken_before_a_later_read():
    make = Maker()
    x = make.tensor("x", 1000, TensorKind.INPUT)
    a = make.step("a", [x], 1000)
    b = make.step("b", [a], 1000, inplace=(a,))
    make.step("c", [a, b], 1000, kind=TensorKind.OUTPUT)
    plan = plan_memory(make.schedule)
    check_plan(make.schedule, plan)
    assert plan.of_tensor(a).offset != plan.of_tensor(b).offset
    assert plan.total_size == 2 * slot_bytes(1000)


@pytest.mark.parametrize("source", ["input", "weight", "carried", "viewed"])
def test_inplace_is_not_taken_over(source: str):
    make = Maker()
    x = make.tensor("x", 1000, TensorKind.INPUT)
    w = make.tensor("w", 1000, TensorKind.WEIGHT)
    a = make.step("a", [x], 1000)
    victim = {"input": x, "weight": w, "carried": a, "viewed": a}[source]
    b = make.step("b", [victim], 1000, inplace=(victim,), loop_depth=1 if source == "carried" else 0)
    late = [b]
    if source == "viewed":
        view = make.tensor("view", 500)
        make.schedule.views.append(View(view, a, 500))
        late.append(view)
    make.step("c", late, 1000, kind=TensorKind.OUTPUT)
    plan = plan_memory(make.schedule)
    check_plan(make.schedule, plan)
    assert not any(row.alias_kind == "inplace" for row in plan.rows)


def test_a_view_of_a_dying_tensor_may_be_overwritten():
    make = Maker()
    a = make.step("a", [make.tensor("x", 8, TensorKind.INPUT)], 1000)
    view = make.tensor("reshaped", 1000)
    make.schedule.views.append(View(view, a))
    b = make.step("relu", [view], 1000, inplace=(view,))
    make.step("out", [b], 8, kind=TensorKind.OUTPUT)
    plan = plan_memory(make.schedule)
    check_plan(make.schedule, plan)
    assert plan.total_size == slot_bytes(1000)
    assert plan.of_tensor(b).alias_of == view and plan.of_tensor(view).alias_kind == "view"


def test_residue_is_planned():
    make = Maker()
    x = make.tensor("x", 64, TensorKind.INPUT)
    make.schedule.tensors.append(make.schedule.tensors[0].__class__(1, "odd", 100, residue=32))
    make.schedule.steps.append(Step(0, "write", (x,), (1,)))
    make.step("end", [1], 700)
    plan = plan_memory(make.schedule)
    check_plan(make.schedule, plan)
    assert plan.of_tensor(1).offset % 512 == 32
    assert plan.of_tensor(2).offset % 512 == 0


def test_unknown_method_and_broken_schedules_are_refused():
    with pytest.raises(UsageError, match="greedy-by-size"):
        plan_memory(residual_network(), method="greedy-by-sise")
    schedule = residual_network()
    schedule.views.append(View(0, 0))
    with pytest.raises(ContractError, match="circle"):
        plan_memory(schedule)
    schedule = residual_network()
    schedule.steps.append(Step(len(schedule.steps), "waiter", (), (), stream=1, waits=(7,)))
    with pytest.raises(ContractError, match="event 7"):
        plan_memory(schedule)


def test_permissions_that_fit_no_step_are_ignored():
    schedule = residual_network()
    schedule.inplace.append(InPlace(10_000, 0, 1))
    schedule.inplace.append(InPlace(2, 1, 2))
    assert plan_memory(schedule).total_size == 3_614_208


def test_a_refusal_names_the_smallest_capacity_that_would_do():
    # (slot bytes, first step, last step): the quick planners leave a gap that the search closes.
    lives = [(2, 4, 6), (5, 4, 7), (2, 2, 5), (2, 5, 7), (1, 1, 4), (2, 3, 6), (5, 1, 4), (4, 6, 7), (1, 1, 2)]
    steps, tensors = max(last for _, _, last in lives) + 1, []
    for k, (size, _, _) in enumerate(lives):
        tensors.append(ScheduleTensor(k, f"t{k}", size, alignment=1, slot_bytes=size))
    schedule = Schedule("gap", "", tensors=tensors)
    for at in range(steps):
        reads = tuple(k for k, (_, first, last) in enumerate(lives) if first < at == last)
        writes = tuple(k for k, (_, first, _) in enumerate(lives) if first == at)
        schedule.steps.append(Step(at, f"s{at}", reads, writes))
    best = plan_memory(schedule)
    assert best.total_size < min(plan_memory(schedule, method=method).total_size for method in QUICK)
    with pytest.raises(PlanError, match=rf"a capacity of {best.total_size} bytes"):
        plan_memory(schedule, capacity=best.theory_min // 2)
