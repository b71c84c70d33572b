"""``npusim plan`` on models, dumps, cases and gears: text, JSON, files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from metadef.error import ModelError, UsageError
from npusim.commands.plan import plan
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
