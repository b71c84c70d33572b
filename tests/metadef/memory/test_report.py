"""Reports: stable JSON keys, bytes over steps, the peak, shares."""

from __future__ import annotations

import json

from metadef.memory import plan_memory
from metadef.memory.report import (
    allocation_rows,
    fragmentation,
    memory_timeline,
    plan_to_json,
    reuse_rate,
    source_nodes,
    top_consumers,
)
from metadef.schedule import Group, Step, TensorKind, View
from tests.metadef.memory.schedules import Maker, residual_network


def test_json_has_the_stable_keys():
    schedule = residual_network()
    plan = plan_memory(schedule)
    data = json.loads(json.dumps(plan_to_json(schedule, plan)))
    assert (data["theory_min"], data["total_size"], data["no_reuse"]) == (3_614_208, 3_614_208, plan.no_reuse)
    assert data["optimal"] is True
    assert all({"id", "offset", "size", "first", "last", "pool"} <= row.keys() for row in data["tensors"])
    rows = {row["id"]: row for row in data["tensors"]}
    assert rows["stage0/block1/add"]["alias_kind"] == "inplace" and rows["x"]["region"] == "io"
    assert "conv1.w" not in rows and rows["stage1/block1/conv2:workspace0"]["kind"] == "workspace"


def test_the_timeline_reaches_the_plan_at_the_peak():
    schedule = residual_network()
    timeline = memory_timeline(schedule, plan_memory(schedule))
    assert max(timeline.live_bytes) == timeline.live_bytes[timeline.peak_step] == 3_614_208
    assert len(timeline.live_bytes) == len(schedule.steps)
    assert schedule.steps[timeline.peak_step].name == "stage0/block0/down"
    assert timeline.peak_tensors[:2] == ["stage0/block0/conv3", "stage0/block0/down"]
    assert {rect.kind for rect in timeline.rects} == {"feature", "inplace", "workspace", "view"}


def test_shares_and_tables():
    schedule = residual_network()
    plan = plan_memory(schedule)
    assert reuse_rate(plan) == 1 - plan.total_size / plan.no_reuse and fragmentation(plan) == 0
    rows = allocation_rows(schedule, plan)
    assert len(rows) == len(plan.rows)
    assert rows[0]["region"] == "weights" and rows[-1]["region"] == "io"
    assert any(row["alias"].startswith("inplace of ") for row in rows)
    top = top_consumers(plan, 3)
    assert len(top) == 3 and top[0].slot_bytes >= 1_606_144


def test_views_begin_with_their_base():
    make = Maker()
    first = make.step("first", [make.tensor("x", 4096, TensorKind.INPUT)], 4096)
    base = make.step("base", [first], 4096)
    view = make.tensor("view", 4096)
    make.schedule.views.append(View(view, base))
    make.step("user", [make.step("other", [first], 64), view], 4096, kind=TensorKind.OUTPUT)
    spans = {row.name: (row.first, row.last) for row in plan_memory(make.schedule).rows}
    assert spans["view"] == spans["base"] == (1, 3)


def test_top_consumers_name_the_nodes_they_come_from():
    make = Maker()
    made = [make.step(name, [make.tensor("x" + name, 64, TensorKind.INPUT)], 4096) for name in ("left", "right")]
    parent, view = make.tensor("parent", 8192), make.tensor("view", 8192)
    make.schedule.groups.append(Group(parent, tuple(made)))
    make.schedule.views.append(View(view, parent))
    make.step("user", [view], 64, kind=TensorKind.OUTPUT)
    steps = make.schedule.steps
    steps[0] = Step(0, "left", steps[0].reads, steps[0].writes, origins=("conv1", "relu1"))
    plan = plan_memory(make.schedule)
    rows = {row.name: nodes for row, nodes in zip(plan.rows, source_nodes(make.schedule, plan.rows))}
    assert rows["parent"] == rows["view"] == ("conv1", "relu1", "right")
    assert rows["xleft"] == ()
    first = plan_to_json(make.schedule, plan)["top_consumers"][0]
    assert first["id"] == "parent" and first["sources"] == ["conv1", "relu1", "right"]
    assert first["byte_steps"] == first["size"] * (first["last"] - first["first"] + 1)
    assert [row["sources"] for row in allocation_rows(make.schedule, plan) if row["name"] == "parent"] == [
        "conv1; relu1; right"
    ]
