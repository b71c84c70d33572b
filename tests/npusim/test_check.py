"""The regression gate: what counts as the same, as better, as allowed, as a regression."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metadef.error import UsageError
from npusim.check import Tolerance, check, make_golden, read_golden, write_golden
from npusim.data import digits_model, digits_samples
from npusim.session import InferenceSession, SessionOptions

FEEDS = {"image": digits_samples().as_input(50, 1)}


def golden_of(**options: Any) -> dict[str, Any]:
    return make_golden(InferenceSession(digits_model(), SessionOptions(dims={"batch": 1}, threads=1, **options)), FEEDS)


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return golden_of()


def states(golden: dict[str, Any], now: dict[str, Any], **tolerance: float) -> dict[str, str]:
    report = check(golden, now, "g.json", Tolerance(**tolerance))
    assert report.passed == ("regression" not in {item.state for item in report.findings})
    return {item.what: item.state for item in report.findings}


def test_the_same_model_passes_through_a_file(golden: dict[str, Any], tmp_path: Path):
    stored = read_golden(write_golden(tmp_path / "g.json", golden))
    report = check(stored, golden_of(), "g.json", Tolerance())
    assert report.passed and report.moved == () and {item.state for item in report.findings} == {"ok"}


def test_slower_larger_and_longer_are_regressions_and_better_is_not(golden: dict[str, Any]):
    worse = golden_of(disabled_passes=frozenset({"TbeConvSingleInFusionPass", "TbeEltwiseFusionPass"}))
    found = states(golden, worse)
    assert found["cycles"] == found["tasks"] == "regression"
    assert check(golden, worse, "", Tolerance()).moved
    assert states(worse, golden)["cycles"] == states(worse, golden)["tasks"] == "better"
    assert states(golden, worse, cycles=10, tasks=10, memory=10)["cycles"] == "changed"


def test_small_changes_of_values_are_told_from_broken_ones(golden: dict[str, Any]):
    output = golden["outputs"][0]
    near, far, poisoned = (copy.deepcopy(golden) for _ in range(3))
    near["outputs"][0] |= {"digest": "other", "values": [value * 1.0005 for value in output["values"]]}
    far["outputs"][0] |= {"digest": "other", "values": output["values"][::-1]}
    poisoned["outputs"][0] |= {"digest": "other", "not_finite": 1}
    name = f"output {output['name']}"
    assert states(golden, near)[name] == "changed"
    assert states(golden, far)[name] == states(golden, poisoned)[name] == "regression"
    assert states(golden, near | {"outputs": []})[name] == "regression"


def test_a_golden_from_other_surroundings_is_refused(golden: dict[str, Any]):
    for change in ({"soc": "Ascend310P3"}, {"precision": "origin"}, {"inputs": {"image": "0"}}):
        with pytest.raises(UsageError, match="another"):
            check(golden, golden | change, "g.json", Tolerance())


def test_files_that_are_no_goldens_are_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="--update"):
        read_golden(tmp_path / "none.json")
    for text in ("{", "[]", '{"version": 99}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(UsageError, match="golden"):
            read_golden(tmp_path / "bad.json")


@pytest.mark.parametrize("key", ["soc", "precision", "inputs", "outputs", "cycles", "task_cycles", "host_tasks"])
@pytest.mark.parametrize("value", [None, [None], {"a": None}, 1.5])
def test_damaged_goldens_name_what_is_wrong(golden: dict[str, Any], tmp_path: Path, key: str, value: Any):
    with pytest.raises(UsageError, match=f"is damaged: '{key}' missing or wrong"):
        read_golden(write_golden(tmp_path / "g.json", golden | {key: value}))
    with pytest.raises(UsageError, match=f"is damaged: '{key}' missing or wrong"):
        read_golden(write_golden(tmp_path / "g.json", {name: item for name, item in golden.items() if name != key}))


@pytest.mark.parametrize("key", ["name", "shape", "dtype", "digest", "values", "not_finite", "mean", "std"])
def test_damaged_outputs_of_goldens_are_told(golden: dict[str, Any], tmp_path: Path, key: str):
    odd = golden | {"outputs": [golden["outputs"][0] | {key: None}]}
    with pytest.raises(UsageError, match=f"is damaged: '{key}' of output 0"):
        read_golden(write_golden(tmp_path / "g.json", odd))


def test_outputs_that_are_not_numbers_can_be_stored(golden: dict[str, Any], tmp_path: Path):
    from npusim.check import _output_facts

    facts = _output_facts("y", np.array([1.0, np.nan, -np.inf], np.float32))
    assert facts["not_finite"] == 2 and facts["mean"] == 1.0
    odd = golden | {"outputs": [facts]}
    stored = read_golden(write_golden(tmp_path / "g.json", odd))
    changed = odd | {"outputs": [facts | {"digest": "other"}]}
    assert states(stored, changed)["output y"] == "changed"
