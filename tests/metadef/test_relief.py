"""Advice where no plan fits: every idea is a real plan, and its figures are those of that plan."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from metadef.compiler import CompileOptions, schedule_model
from metadef.error import UsageError
from metadef.memory import plan_memory
from metadef.relief import Relief, relief, relief_text, why_not
from metadef.reorder import reorder
from metadef.schedule import Schedule, ScheduleTensor, Step, TensorKind
from tests.metadef.models import detector

SLOT = 100_352


def skip_network(cheap: bool = True) -> Schedule:
    """A value of 100 KB jumps over a chain whose middle needs 200 KB; its producer reads an input only."""
    schedule = Schedule("skip", "")
    names = ("early", "a", "b", "c", "out")
    schedule.tensors = [ScheduleTensor(0, "x", 1_000, TensorKind.INPUT)]
    schedule.tensors += [ScheduleTensor(i, name, 100_000) for i, name in enumerate(names, 1)]
    schedule.inputs = [0]
    steps = [("early", (0,), 1), ("a", (0,), 2), ("b", (2,), 3), ("c", (3,), 4), ("out", (4, 1), 5)]
    schedule.steps = [Step(i, name, reads, (write,)) for i, (name, reads, write) in enumerate(steps)]
    if not cheap:
        schedule.steps[0] = Step(0, "early", (0,), (1, 6))
        schedule.tensors.append(ScheduleTensor(6, "side", 100))
    return schedule


def test_spilling_and_recomputing_are_planned_for_real() -> None:
    schedule = skip_network()
    assert plan_memory(schedule).total_size == 3 * SLOT
    # The last step itself reads two values and writes one: nothing gets below that.
    found = {idea.kind: idea for idea in relief(schedule, SLOT)}
    assert found == {}
    schedule.steps[4] = Step(4, "out", (4, 1), (5,))
    schedule.tensors[5] = ScheduleTensor(5, "out", 100)
    found = {idea.kind: idea for idea in relief(schedule, 2 * SLOT + 1024)}
    assert set(found) == {"spill", "recompute", "reorder"}
    assert found["reorder"].total_size == plan_memory(reorder(schedule)).total_size
    spill, again = found["spill"], found["recompute"]
    assert spill.names == ("early",) and spill.total_size == 2 * SLOT + 512 and spill.traffic_bytes == 200_000
    assert spill.saved_bytes == 3 * SLOT - spill.total_size
    assert again.extra_steps == 1 and again.total_size == spill.total_size


def test_a_producer_with_two_results_is_not_run_again() -> None:
    schedule = skip_network(cheap=False)
    schedule.tensors[5] = ScheduleTensor(5, "out", 100)
    assert {idea.kind for idea in relief(schedule, 2 * SLOT + 1024)} == {"reorder", "spill"}


def test_a_smaller_batch_is_among_the_ideas() -> None:
    schedule = schedule_model(detector(), CompileOptions(dims={"n": 4, "h": 16, "w": 16})).schedule
    total = plan_memory(schedule).total_size
    guess = next(idea for idea in relief(schedule, total - 1) if idea.kind == "batch")
    assert guess.names == ("2",) and guess.total_size == total // 2 and guess.estimated
    assert f"a batch of 2 saves about {total - total // 2} bytes: about {total // 2}, which fits" in guess.text(total)

    def at_batch(batch: int) -> Schedule:
        return schedule_model(detector(), CompileOptions(dims={"n": batch, "h": 16, "w": 16})).schedule

    def smaller(capacity: int) -> Relief:
        return next(idea for idea in relief(schedule, capacity, at_batch) if idea.kind == "batch")

    sizes = {batch: plan_memory(at_batch(batch)).total_size for batch in (1, 2, 3)}
    assert guess.total_size == pytest.approx(sizes[2], rel=0.1)
    for batch, size in sizes.items():
        idea = smaller(size)
        assert (idea.names, idea.total_size, idea.saved_bytes) == ((str(batch),), size, total - size)
        assert not idea.estimated and "which fits" in idea.text(size)
    assert smaller(sizes[1] - 1).names == ("1",) and "still too large" in smaller(sizes[1] - 1).text(sizes[1] - 1)


def test_a_batch_that_cannot_be_compiled_is_estimated_for_another_export() -> None:
    def refuse(batch: int) -> Schedule:
        raise UsageError("the model has one batch only")

    schedule = schedule_model(detector(), CompileOptions(dims={"n": 4, "h": 16, "w": 16})).schedule
    (guess,) = (idea for idea in relief(schedule, 1, refuse) if idea.kind == "batch")
    assert guess.estimated and guess.saved_bytes > 0 and guess.text().endswith("if the model is made for it")


def test_another_order_is_an_idea_where_it_helps() -> None:
    schedule = Schedule("fans", "")
    schedule.tensors = [ScheduleTensor(0, "x", 1_000, TensorKind.INPUT)]
    schedule.inputs = [0]
    for k in range(3):
        big, small = len(schedule.tensors), len(schedule.tensors) + 1
        schedule.tensors += [ScheduleTensor(big, f"big{k}", 100_000), ScheduleTensor(small, f"small{k}", 100)]
    for k in range(3):
        schedule.steps.append(Step(k, f"grow{k}", (0,), (1 + 2 * k,)))
    for k in range(3):
        schedule.steps.append(Step(3 + k, f"shrink{k}", (1 + 2 * k,), (2 + 2 * k,)))
    schedule.tensors.append(ScheduleTensor(7, "out", 100))
    schedule.steps.append(Step(6, "out", (2, 4, 6), (7,)))
    idea = next(idea for idea in relief(schedule, SLOT + 4096) if idea.kind == "reorder")
    assert idea.total_size == plan_memory(reorder(schedule)).total_size <= SLOT + 4096
    assert "--reorder" in idea.text() and f"saves {idea.saved_bytes} bytes" in idea.text()


def test_the_text_says_what_fits() -> None:
    ideas = [Relief("spill", ("t", "u"), 500, 100, 64), Relief("batch", ("2",), 300, 300)]
    text = relief_text(ideas, 400)
    assert text == (
        "(1) spill 't', 'u' saves 100 bytes: 500, still too large, 64 bytes moved; "
        "(2) a batch of 2 saves 300 bytes: 300, which fits"
    )


def test_branches_get_no_advice_about_tensors() -> None:
    schedule = skip_network()
    schedule.steps[2] = Step(2, "b", (2,), (3,), branch="if0:then")
    assert relief(schedule, SLOT) == []


def test_the_refusal_of_the_command_line_carries_the_ideas(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from metadef.error import PlanError
    from npusim.commands.plan import plan

    onnx.save(detector(), tmp_path / "d.onnx")
    arguments = [str(tmp_path / "d.onnx"), "--dim", "n=4", "--dim", "h=16", "--dim", "w=16", "--capacity", "20000"]
    answer = CliRunner().invoke(plan, arguments)
    assert isinstance(answer.exception, PlanError)
    text = str(answer.exception)
    batch, total, end = re.search(r"a batch of (\d) saves \d+ bytes: (\d+)(.*)", text).groups()
    arguments[2] = f"n={batch}"
    told = json.loads(CliRunner().invoke(plan, [*arguments[:-2], "--json"]).stdout)["total_size"]
    assert told == int(total) and ("which fits" in end) == (told <= 20000) and "live set" in text


def test_what_is_no_help_says_why() -> None:
    schedule = skip_network()
    schedule.tensors[0] = replace(schedule.tensors[0], kind=TensorKind.INPUT)
    text = " | ".join(why_not(schedule, []))
    assert "no batch is known" in text and "nothing to spill: what waits" in text and "nothing to recompute" in text
    streams = replace(schedule, steps=[replace(step, stream=step.id % 2) for step in schedule.steps])
    assert [reason.count("several streams") for reason in why_not(streams, [])] == [0, 1, 1]
    kinds = [Relief(kind, ("1",), 1, 1) for kind in ("batch", "spill", "recompute")]
    assert why_not(schedule, kinds) == []
    text = relief_text(kinds[:1], 10, why_not(schedule, kinds[:1]))
    assert text.startswith("(1) ") and "; (2) nothing to spill" in text and "; (3) nothing to recompute" in text


def test_tensors_are_spilled_around_branches_but_not_within_them() -> None:
    schedule = skip_network()
    schedule.tensors[5] = ScheduleTensor(5, "out", 100)
    schedule.steps[2] = replace(schedule.steps[2], branch="if:then")
    schedule.steps[3] = replace(schedule.steps[3], branch="if:then")
    schedule.steps[1] = replace(schedule.steps[1], jumps=(2, 4))
    found = {idea.kind: idea for idea in relief(schedule, 2 * SLOT + 1024)}
    assert found["spill"].names == ("early",) and found["spill"].saved_bytes > 0
    schedule.steps[3] = replace(schedule.steps[3], reads=(3, 1))
    assert "spill" not in {idea.kind for idea in relief(schedule, 2 * SLOT + 1024)}
