"""Advice where no plan fits: every idea is a real plan, and its figures are those of that plan."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from metadef.compiler import CompileOptions, schedule_model
from metadef.memory import plan_memory
from metadef.relief import Relief, relief, relief_text
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
    assert set(found) == {"spill", "recompute"}
    spill, again = found["spill"], found["recompute"]
    assert spill.names == ("early",) and spill.total_size == 2 * SLOT + 512 and spill.traffic_bytes == 200_000
    assert spill.saved_bytes == 3 * SLOT - spill.total_size
    assert again.extra_steps == 1 and again.total_size == spill.total_size


def test_a_producer_with_two_results_is_not_run_again() -> None:
    schedule = skip_network(cheap=False)
    schedule.tensors[5] = ScheduleTensor(5, "out", 100)
    assert [idea.kind for idea in relief(schedule, 2 * SLOT + 1024)] == ["spill"]


def test_a_smaller_batch_is_among_the_ideas() -> None:
    schedule = schedule_model(detector(), CompileOptions(dims={"n": 4, "h": 16, "w": 16})).schedule
    total = plan_memory(schedule).total_size
    idea = next(idea for idea in relief(schedule, total - 1) if idea.kind == "batch")
    assert idea.names == ("2",) and idea.total_size == total // 2
    again = schedule_model(detector(), CompileOptions(dims={"n": 2, "h": 16, "w": 16})).schedule
    assert plan_memory(again).total_size == pytest.approx(total / 2, rel=0.1)


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
    assert "a batch of 2 saves" in str(answer.exception) and "live set" in str(answer.exception)
