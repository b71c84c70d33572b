"""What users may ask of memory: reuse off, wholly or for operators; streamed weights; both spellings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from metadef.compiler import CompileOptions, compile_model
from metadef.error import UsageError
from npusim import InferenceSession, SessionOptions
from npusim.commands.run import run
from npusim.feeds import generate_feeds
from tests.metadef.models import detector

DIMS = {"n": 1, "h": 16, "w": 16}


def options(**fields: object) -> CompileOptions:
    return CompileOptions(dims=DIMS, **fields)  # type: ignore[arg-type]


def outputs(**fields: object) -> list[bytes]:
    session = InferenceSession(compile_model(detector(), options(**fields)).model)
    return [value.tobytes() for value in session.run(None, generate_feeds(session.get_inputs(), 0))]


def test_reuse_can_be_off_for_all() -> None:
    plain, off = (compile_model(detector(), options(reuse=reuse, inplace=reuse)) for reuse in (True, False))
    assert plain.plan.total_size < off.plan.total_size == off.plan.no_reuse
    assert outputs() == outputs(reuse=False, inplace=False)


def test_operators_keep_their_memory_by_option_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compile_model(detector(), options(no_reuse=("Conv2D",)))
    kept = [row for row in made.plan.rows if row.no_reuse.startswith("asked for")]
    products = [step for step in made.schedule.steps if step.kernel and step.kernel.op_type == "Conv2D"]
    assert 0 < len(kept) <= len(products)
    assert made.plan.total_size > compile_model(detector(), options()).plan.total_size
    monkeypatch.setenv("OP_NO_REUSE_MEM", "Conv2D")
    assert compile_model(detector(), options()).plan.rows == made.plan.rows
    with pytest.raises(UsageError, match="no operator 'Conv2E'"):
        compile_model(detector(), options(no_reuse=("Conv2E",)))


@pytest.mark.parametrize("switch", ["--no-reuse", "--disable-reuse-memory", "--disable_reuse_memory"])
def test_the_command_line_takes_them(switch: str, tmp_path: Path) -> None:
    path = tmp_path / "detector.onnx"
    onnx.save(detector(), path)
    call = [str(path), *(part for name, size in DIMS.items() for part in ("--dim", f"{name}={size}")), "--json"]
    found = [
        json.loads(CliRunner().invoke(run, [*call, *more], catch_exceptions=False).stdout)
        for more in ([], [switch], ["--no-reuse-op", "Conv2D"], ["--stream-weights", "2048"])
    ]
    assert found[0]["peak_bytes"] < min(found[1]["peak_bytes"], found[2]["peak_bytes"])
    assert found[3]["streamed_bytes"] > 0 and found[3]["weights_bytes"] < found[0]["weights_bytes"]


def test_sessions_take_them() -> None:
    session = InferenceSession(detector(), SessionOptions(dims=DIMS, reuse=False))
    assert session.program.total_size == session.program.no_reuse
    feeds = generate_feeds(session.get_inputs(), 0)
    streamed = InferenceSession(detector(), SessionOptions(dims=DIMS, stream_weights=2048, no_reuse=("Conv2D",)))
    for one, other in zip(session.run(None, feeds), streamed.run(None, feeds), strict=True):
        assert np.array_equal(one, other)
