"""``npusim plan`` on models, dumps, cases and gears: text, JSON, files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from metadef.compiler import CompileOptions, compile_model
from metadef.error import ModelError, PlanError, UsageError
from metadef.gears import GearSpec
from metadef.model import save_om
from metadef.plan_source import PlanSource
from metadef.schedule import Schedule
from npusim.commands.plan import _require_gears_within, plan
from tests.metadef.models import detector

Need = Callable[[str], Path]


def call(*arguments: Any) -> str:
    answer = CliRunner().invoke(plan, [str(item) for item in arguments], catch_exceptions=False)
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    assert answer.exit_code == 0, answer.output
    return answer.stdout


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "detector.onnx"
    onnx.save(detector(), path)
    return path


def test_a_dump_is_replanned_beside_ges_plan(need_data: Need) -> None:
    path = need_data("ge_dumps/nms_tail_om.json")
    found = json.loads(call(path, "--json", "--what-if", "--windows"))
    assert found["total_size"] == found["recorded"]["total_size"] == 1_441_280 and found["optimal"]
    assert found["io_bytes"] == found["recorded"]["io_bytes"] == 1_604_608
    assert [row["name"] for row in found["what_if"]][:2] == ["as planned", "in-place off"]
    assert sum(item["size"] for item in found["windows"]) <= 1_441_280
    assert "GE's own plan in this file: 1,441,280 bytes" in call(path)


def test_gears_share_one_arena(model: Path) -> None:
    arguments = (model, "--dim", "n=1", "--dynamic_image_size", "16,16;32,32")
    found = json.loads(call(*arguments, "--json"))
    assert [row["gear"] for row in found["gears"]] == ["32,32", "16,16"]
    assert found["total_size"] == max(row["total_size"] for row in found["gears"])
    assert "2 gears over one arena" in call(*arguments)


def test_files_and_largest_batch(model: Path, tmp_path: Path) -> None:
    bound = (model, "--dim", "h=16", "--dim", "w=16")
    found = json.loads(call(*bound, "--out", tmp_path / "out", "--reorder", "--json"))
    names = sorted(Path(path).name for path in found["files"])
    assert names == ["allocation.csv", "memory.png", "plan.json", "windows.csv"]
    assert all((tmp_path / "out" / name).stat().st_size > 100 for name in names)
    answer = json.loads(call(*bound, "--largest-batch", "--capacity", 200_000, "--json"))
    assert answer["total_size"] <= 200_000 < answer["next_size"]
    assert f"batch {answer['batch']} fits" in call(*bound, "--largest-batch", "--capacity", 200_000)
    with pytest.raises(UsageError, match="--capacity"):
        call(*bound, "--largest-batch")


def test_operators_kept_apart_and_damaged_files(model: Path, tmp_path: Path) -> None:
    bound = (model, "--dim", "h=16", "--dim", "w=16", "--json")
    free = json.loads(call(*bound))
    kept = json.loads(call(*bound, "--no-reuse-op", "Conv2D"))
    assert kept["total_size"] >= free["total_size"] and any(row["no_reuse"] for row in kept["tensors"])
    broken = tmp_path / "broken.txt"
    broken.write_text("graph { name: ")
    with pytest.raises(ModelError, match="damaged"):
        call(broken)


def test_an_offline_model_is_planned_as_it_was_compiled(model: Path, tmp_path: Path) -> None:
    bound = {"dims": {"h": 16, "w": 16, "n": 1}}
    ways = {
        "apart": CompileOptions(**bound, no_reuse=("Conv2D",)),
        "streamed": CompileOptions(**bound, stream_weights=64),
        "winograd": CompileOptions(**bound, conv="winograd"),
        "reordered": CompileOptions(**bound, reorder=True),
    }
    for name, options in ways.items():
        made = compile_model(model, options)
        save_om(made.model, tmp_path / f"{name}.om")
        found = json.loads(call(tmp_path / f"{name}.om", "--json"))
        assert (found["total_size"], found["no_reuse"]) == (made.plan.total_size, made.plan.no_reuse), name
        assert found["recorded"]["total_size"] == made.plan.total_size
        assert found["weights_bytes"] == found["recorded"]["weights_bytes"] == made.plan.weights_bytes
        assert ("weight_traffic" in found) == (name == "streamed")


def test_an_offline_model_shows_all_its_gears(model: Path, tmp_path: Path) -> None:
    options = CompileOptions(dims={"n": 1}, gears=GearSpec("size", ((16, 16), (32, 32))))
    made = compile_model(model, options)
    path = save_om(made.model, tmp_path / "gears.om")
    found = json.loads(call(path, "--json"))
    fresh = json.loads(call(model, "--dim", "n=1", "--dynamic-image-size", "16,16;32,32", "--json"))
    assert [row["gear"] for row in found["gears"]] == ["32,32", "16,16"]
    assert found["gears"] == fresh["gears"] and found["total_size"] == fresh["total_size"]
    text = call(path)
    for options in (["--largest-batch", "--capacity", 1000], ["--dynamic-batch-size", "1,2"]):
        with pytest.raises(UsageError, match="has its shapes already"):
            call(path, *options)
    assert "2 gears over one arena" in text and "The plan in this file:" in text and "GE's" not in text


def test_the_text_names_consumers_and_reasons(model: Path) -> None:
    text = call(model, "--dim", "h=16", "--dim", "w=16", "--no-reuse-op", "Conv2D")
    assert "top consumers" in text and "source nodes" in text and "asked for: " in text.replace("\n", " ")
    assert "fragmentation 0.0 %" in text.replace("\n", " ") and "live slots: " in text


def test_smaller_gears_of_an_offline_model_keep_to_the_capacity_too(model: Path, tmp_path: Path) -> None:
    options = CompileOptions(dims={"n": 1}, gears=GearSpec("size", ((16, 16), (32, 32))))
    path = save_om(compile_model(model, options).model, tmp_path / "gears.om")
    rows = json.loads(call(path, "--json"))["gears"]
    assert call(path, "--capacity", rows[0]["total_size"])
    found = PlanSource("om", Schedule("", ""), gears={row["gear"]: SimpleNamespace(**row) for row in rows})
    with pytest.raises(PlanError, match=r"gear 16,16: its plan in this file is 1 bytes over"):
        _require_gears_within(found, rows[1]["total_size"] - 1)


@pytest.mark.parametrize("budget", ["-1", "nan", "inf"])
def test_a_budget_is_a_number_of_seconds(model: Path, budget: str) -> None:
    answer = CliRunner().invoke(plan, [str(model), "--budget", budget])
    assert answer.exit_code == 2 and "--budget" in answer.output


def test_a_refused_capacity_comes_with_three_ways_out(model: Path) -> None:
    with pytest.raises(PlanError) as refused:
        call(model, "--dim", "h=16", "--dim", "w=16", "--dim", "n=1", "--capacity", 1500)
    text = str(refused.value)
    assert all(part in text for part in ("batch", "spill", "recompute", "(3)"))


def test_flags_that_come_too_late_for_what_is_planned_are_refused(model: Path, tmp_path: Path) -> None:
    case, offline = tmp_path / "case.csv", tmp_path / "m.om"
    case.write_text("id,lower,upper,size\n0,0,2,5\n")
    shapes = {"x": (1, 3, 64, 64)}
    save_om(compile_model(model, CompileOptions(shapes=shapes)).model, offline)
    for path in (case, offline):
        with pytest.raises(UsageError, match="holds its graph or schedule already: --disable, --insert-op-conf would"):
            call(path, "--disable", "PrunePass", "--insert-op-conf", "aipp.cfg", "--no-reuse")
        call(path, "--no-reuse", "--capacity", "100000000")
