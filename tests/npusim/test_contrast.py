"""Two compilations side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metadef.model import save_om
from npusim.contrast import contrast
from npusim.data import digits_model
from npusim.session import InferenceSession, SessionOptions


def session(**options: Any) -> InferenceSession:
    return InferenceSession(digits_model(), SessionOptions(dims={"batch": 1}, threads=1, **options))


def test_a_model_and_its_offline_model_do_not_differ(tmp_path: Path):
    one = session()
    other = InferenceSession(save_om(one.model, tmp_path / "digits.om"), SessionOptions(threads=1))
    found = contrast(one, other)
    assert not found.tasks and all(a == b for a, b in found.totals.values())


def test_a_pass_less_shows_in_tasks_cycles_and_graph():
    plain, unfused = session(), session(disabled_passes=frozenset({"TbeConvSingleInFusionPass"}))
    found = contrast(plain, unfused)
    tasks, cycles = found.totals["tasks"], found.totals["cycles"]
    assert not found.same and tasks == (len(plain.program.tasks), len(unfused.program.tasks)) and cycles[0] < cycles[1]
    only = [pair for pair in found.tasks if pair.state == "only B"]
    assert len(only) == tasks[1] - tasks[0] and all("Relu" in pair.op_b for pair in only)
    assert any(pair.state == "other kernel" and pair.op_a == "Conv2D+Relu" for pair in found.tasks)
    assert any("Relu" in edit for edit in found.edits)
