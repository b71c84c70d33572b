"""Planner cases: proved instances reach their optimum or are refused with the reason; bad files are explained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from metadef.error import PlanError, UsageError
from metadef.memory import check_plan, plan_memory
from metadef.memory.cases import case_from_json, load_case, schedule_from_csv

REASONS = {
    "capacity_below_bound": ("live set of step 2", "'a' 100", "50 bytes over"),
    "capacity_fragmented": ("the live set fits", "proved", "16 bytes over"),
    "fixed_two_conflict": ("'p1'", "'p2'", "pinned onto each other"),
}


def test_all_proved_cases(need_data: Callable[[str], Path]):
    files = sorted(need_data("planner/cases").glob("*.json"))
    assert len(files) >= 21
    for file in files:
        case = load_case(file)
        if case.fields["expect"] == "infeasible":
            with pytest.raises(PlanError) as caught:
                plan_memory(case.schedule, capacity=case.capacity)
            assert all(part in str(caught.value) for part in REASONS[file.stem]), file.stem
            continue
        plan = plan_memory(case.schedule, capacity=case.capacity)
        check_plan(case.schedule, plan)
        found = {name: pool.total_size for name, pool in plan.pools.items()}
        optimum = case.fields["optimum"]
        assert found == (optimum if isinstance(optimum, dict) else {"HBM": optimum}), file.stem
        assert plan.optimal, file.stem


def test_times_of_a_json_case_are_steps():
    entry = {"id": "a", "lower": 1, "upper": 4, "size": 10, "align": 4, "pool": "p2p", "branch": ["if", "then"]}
    case = case_from_json({"tensors": [entry], "capacity": 64})
    (tensor,) = case.schedule.tensors
    assert (tensor.alignment, tensor.pool, tensor.branch, tensor.slot_bytes) == (4, "p2p", "if:then", 10)
    row = plan_memory(case.schedule).of_tensor(0)
    assert (row.first, row.last, row.pool, case.capacity) == (1, 3, "p2p", 64)


def test_csv_keeps_its_time_line():
    schedule = schedule_from_csv("id,lower,upper,size\nb1,0,300,4\nb2,300,900,4\nb3,0,900,4\n")
    assert schedule.times == [0, 300, 900] and len(schedule.steps) == 2
    plan = plan_memory(schedule)
    check_plan(schedule, plan)
    assert plan.total_size == 8 and plan.no_reuse == 12


def test_csv_with_alignment_and_pins():
    text = "id,lower,upper,size,alignment,offset\na,0,2,10,,\nb,0,2,5,8,\nc,0,2,4,,32\n"
    schedule = schedule_from_csv(text)
    plan = plan_memory(schedule)
    check_plan(schedule, plan)
    assert plan.of_tensor(2).offset == 32 and plan.of_tensor(1).offset % 8 == 0 and plan.total_size == 36


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,lower,upper\na,0,1\n", "columns missing"),
        ("id,lower,upper,size,sise\na,0,1,2,3\n", "did you mean 'size'"),
        ("id,lower,upper,size\na,0,x,2\n", "line 2 is no buffer"),
        ("id,lower,upper,size\na,3,3,2\n", "never lives"),
    ],
)
def test_bad_csv_is_explained(text: str, message: str):
    with pytest.raises(UsageError, match=message):
        schedule_from_csv(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "an object with a list"),
        ({"tensors": [{"id": "a"}]}, "whole numbers"),
        ({"tensors": [{"id": "a", "lower": 0, "upper": 1, "size": 1, "inplace_of": "b"}]}, "unknown tensor 'b'"),
        ({"tensors": [{"id": "a", "lower": 0, "upper": 1, "size": 1, "algn": 4}]}, "did you mean 'align'"),
        ({"tensors": [], "contiguous": [{"members": ["q"]}]}, "unknown tensor 'q'"),
        ({"tensors": [{"id": "a", "lower": 0, "upper": 1, "size": 1}] * 2}, "missing or repeated"),
    ],
)
def test_bad_json_is_explained(fields: object, message: str):
    with pytest.raises(UsageError, match=message):
        case_from_json(fields)  # type: ignore[arg-type]


def test_unreadable_files(tmp_path: Path):
    with pytest.raises(UsageError, match="E13001"):
        load_case(tmp_path / "none.json")
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps({"tensors": []})[:-1])
    with pytest.raises(UsageError, match="E10032"):
        load_case(broken)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"align": 0}, "'align' cannot be"), ({"align": None}, "'align' cannot be"), ({"size": -5}, "'size' cannot be"),
        ({"size": 2**62}, "'size' cannot be"), ({"size": True}, "whole numbers"), ({"lower": -3}, "'lower' cannot be"),
        ({"offset": "x"}, "'offset' cannot be"), ({"residue": -3}, "'residue' cannot be"),
        ({"id": None}, "needs an id"),
        ({"branch": "x"}, "condition and side"), ({"upper": 10**12}, "time line is too long"),
    ],
)  # fmt: skip
def test_odd_fields_of_a_tensor_are_refused(fields: dict[str, object], message: str):
    with pytest.raises(UsageError, match=message):
        case_from_json({"tensors": [{"id": "a", "lower": 0, "upper": 2, "size": 100, **fields}]})


@pytest.mark.parametrize(
    "fields",
    [{"capacity": -1}, {"capacity": "big"}, {"contiguous": [{}]}, {"contiguous": [{"members": []}]}, {"contiguous": 5}],
)
def test_odd_fields_of_a_case_are_refused(fields: dict[str, object]):
    with pytest.raises(UsageError, match=r"cannot be|contiguous group"):
        case_from_json({"tensors": [{"id": "a", "lower": 0, "upper": 2, "size": 100}], **fields})


def test_odd_csv_files(tmp_path):
    path = tmp_path / "case.csv"
    path.write_text("\ufeffid,lower,upper,size\na,1,2,5\n", encoding="utf-8")
    assert plan_memory(load_case(path).schedule).total_size == 5
    path.write_text("id,lower,upper,size\n")
    empty = load_case(path).schedule
    check_plan(empty, plan_memory(empty))
    for row, message in (("a,1,2,5\na,1,2,5\n", "repeats the id"), ("a,1,2,5,9\n", "more fields than columns")):
        path.write_text("id,lower,upper,size\n" + row)
        with pytest.raises(UsageError, match=message):
            load_case(path)
    path.write_bytes(b"id,lower,upper,size\n\xff,1,2,3\n")
    with pytest.raises(UsageError, match="cannot read"):
        load_case(path)
