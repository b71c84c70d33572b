"""Explanations: history, refusals, places, cycles by cause, advice; the summary; the coverage table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metadef.error import UsageError
from metadef.op import all_op_types
from npusim.coverage import coverage, one_type
from npusim.data import digits_model
from npusim.explain import Explainer
from npusim.session import SessionOptions
from tests.npusim.faulty import odd_rows_model


@pytest.fixture(scope="module", params=["Ascend910B3", "Ascend310P3"])
def explainer(request: pytest.FixtureRequest) -> Explainer:
    return Explainer(digits_model(), SessionOptions(soc=request.param, dims={"batch": 1}, threads=1))


def test_every_source_node_is_explained(explainer: Explainer):
    origins = explainer._origins()
    assert len(origins) > 10
    explained = set()
    for origin in origins:
        found = explainer.node(origin)
        assert found.history[0].startswith("parse: ") and (found.tasks or found.view)
        explained |= {task.task for task in found.tasks}
        json.dumps(found.as_json())
    added = {task.id for task in explainer.session.program.tasks if not task.origins}
    assert explained | added == {task.id for task in explainer.session.program.tasks}


def test_facts_are_those_of_program_plan_and_profile(explainer: Explainer):
    rows = explainer.session.profile.data.tasks
    for task, row in zip(explainer.session.program.tasks, rows, strict=True):
        (facts,) = (item for item in explainer.node(task.name).tasks if item.task == task.id)
        assert facts.cycles == row.cycles == sum(facts.causes.values())
        assert facts.bound_by == row.bound_by and facts.verdict
        assert facts.kernel_reason == task.kernel.reason != ""
        assert [item.address for item in facts.operands if item.port.startswith("output")] == [
            item.address for item in task.outputs
        ]
        for item in facts.operands:
            if item.life is not None and item.region == "arena":
                assert item.life[0] <= task.id <= item.life[1] and item.slot_bytes >= item.payload_bytes
        assert all(count >= 0 for count in facts.limits.values())
        assert max(facts.limits.values()) <= 1.1 * row.cycles


def test_fused_nodes_lead_to_one_task_and_say_which_pass_did_it(explainer: Explainer):
    task = next(
        task for task in explainer.session.program.tasks if task.kernel.fused and task.kernel.op_type == "Conv2D"
    )
    for origin in task.origins:
        found = explainer.node(origin)
        assert [item.task for item in found.tasks] == [task.id]
        assert any("FusionPass" in line and task.name in line for line in found.history)


def test_refusals_carry_their_reason():
    explainer = Explainer(digits_model(), SessionOptions(soc="Ascend910B3", dims={"batch": 1}, threads=1))
    adds = [task for task in explainer.session.program.tasks if task.kernel.op_type == "Add"]
    found = explainer.node(adds[0].origins[0])
    assert any("TbeConvDoubleInFusionPass" in line and "fixpipe" in line for line in found.refusals)
    assert any(item.shares.startswith("inplace of") for item in found.tasks[0].operands)


def test_compiler_tasks_tensors_and_typos(explainer: Explainer):
    added = next(task for task in explainer.session.program.tasks if task.kernel.op_type == "TransData")
    found = explainer.node(added.name)
    assert found.tasks[0].origins == () and any("NC1HWC0" in note for note in found.notes)
    task = explainer.session.program.tasks[2]
    assert task.id in [item.task for item in explainer.node(task.outputs[0].name).tasks]
    with pytest.raises(UsageError, match="did you mean"):
        explainer.node(task.name + "x")


def test_network_summary_adds_up(explainer: Explainer):
    facts = explainer.network()
    json.dumps(facts)
    program, profile = explainer.session.program, explainer.session.profile.data
    assert facts["tasks"] == len(program.tasks) and facts["host_tasks"] == []
    assert sum(facts["causes"].values()) == sum(row.cycles for row in profile.tasks)
    assert sum(item["count"] for item in facts["refusals"]) == len(explainer.made.report.refusals())
    assert all(item["reason"] not in ("", "in the model") for item in facts["format_changes"])
    assert [item["cycles"] for item in facts["longest"]] == sorted((row.cycles for row in profile.tasks), reverse=True)[
        : len(facts["longest"])
    ]


def test_odd_rows_get_the_advice_to_pad(tmp_path: Path):
    explainer = Explainer(odd_rows_model(tmp_path / "rows.onnx"), SessionOptions(threads=1))
    facts = explainer.node("norm").tasks[0]
    assert any("pad 77 to 80 elements" in line for line in facts.advice)
    scalar = Explainer(odd_rows_model(tmp_path / "rows.onnx"), SessionOptions(soc="Ascend310P3", threads=1))
    facts = scalar.node("norm").tasks[0]
    assert facts.verdict.startswith("low: addresses, rows or banks") and "pad 77" in facts.advice[0]


# -- coverage ----------------------------------------------------------------------------------------------------------


def test_coverage_lists_every_declared_operator_and_rule():
    table = coverage()
    assert [entry["type"] for entry in table["ascend"]] == all_op_types()
    conv = next(entry for entry in table["ascend"] if entry["type"] == "Conv2D")
    assert conv["engine"] == "AIcoreEngine" and conv["fast_kernel"]
    assert [port["kind"] for port in conv["inputs"]] == ["required", "required", "optional"]
    mapped = {entry["type"]: entry["opsets"] for entry in table["onnx"]}
    assert mapped["Softmax"][-1][1] is None and "Conv" in mapped
    assert not set(mapped) & set(table["host"]) and "Det" in table["host"]
    json.dumps(table)


def test_one_type_by_either_name():
    assert one_type("Conv")["onnx"] and not one_type("Conv")["ascend"]
    assert one_type("SoftmaxV2")["ascend"][0]["doc"]
    with pytest.raises(UsageError, match="Conv2D"):
        one_type("Convv2D")
