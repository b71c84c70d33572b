"""What was assumed about a model is said once, on standard error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, parser

from npusim.cli import commands


@pytest.mark.parametrize("command", [("run",), ("compile", "-o", "m.om"), ("profile", "--out", "p")])
def test_notes_go_to_standard_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.chdir(tmp_path)
    graph = parser.parse_graph("net (float[N,3] x) => (float[1,3] y) { a = Relu(x) y = Neg(a) }")
    for node in graph.node:
        node.name = "same"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m.onnx")
    answer = CliRunner().invoke(commands, [*command, "m.onnx"], catch_exceptions=False)
    assert answer.exit_code == 0
    notes = [line for line in answer.stderr.splitlines() if line.startswith("note: ")]
    assert len(notes) == 2 and "'same' (2 nodes)" in notes[0] and "open batch dimension 'N' taken as 1" in notes[1]
    assert "note: " not in answer.stdout


@pytest.mark.parametrize(
    ("shape", "options", "code"), [((4, 3), (), 0), ((4, 3), ("--dim", "N=2"), 2), ((4, 5), (), 2)]
)
def test_files_settle_open_dimensions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], options: tuple[str, ...], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = parser.parse_graph("net (float[N,3] x) => (float[N,3] y) { y = Neg(x) }")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m.onnx")
    np.save("x.npy", np.ones(shape, np.float32))
    answer = CliRunner().invoke(commands, ["run", "m.onnx", "--input", "x=x.npy", *options])
    assert (answer.exit_code == 0) == (code == 0)
    assert ("y float32[4, 3]" in answer.stdout) == (code == 0)
