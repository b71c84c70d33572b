"""Text in, text out: every file in tests/text is a graph; its first comments say which passes run, for which chip.

The golden holds the graph after the passes, the refusals with their reasons and the notes. Beside the text, the values
are compared: what a pass makes must compute what it found.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.ops.evaluate import evaluate
from metadef.text import constants_of, parse_graph, print_graph

CASES = sorted((Path(__file__).resolve().parents[2] / "text").glob("*.txt"))
UNIT = {DType.FLOAT: 2.0**-24, DType.FLOAT16: 2.0**-11}
"""Largest relative error of one rounding."""


def header(text: str, key: str, default: str) -> str:
    found = re.search(rf"^# {key}: *(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else default


def settings(text: str) -> dict[str, str]:
    names = header(text, "passes", "all")
    return {
        "names": "" if names == "all" else names,
        "soc": header(text, "soc", "Ascend910B3"),
        "precision": header(text, "precision", "fp16"),
    }


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_graph_after_passes(path, run, golden):
    graph, report = run(path.read_text(), **settings(path.read_text()))
    lines = [print_graph(graph)]
    lines += [f"# {name} refused {refusal.node}: {refusal.reason}" for name, refusal in report.refusals()]
    lines += [f"# {node}: {line}" for node, notes in report.notes().items() for line in notes]
    golden("\n".join(lines), path.stem)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_result_prints_and_parses(path, run):
    graph, _ = run(path.read_text(), **settings(path.read_text()))
    text = print_graph(graph)
    assert print_graph(parse_graph(text, constants_of(graph))) == text


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_values_are_kept(path, run, feeds):
    """Against the graph before in double precision.

    Every node rounds once, to within half a unit of its type relative to its own result, and passes errors of its
    operands on with a gain that these well-scaled graphs keep near one in the L2 norm. Operands rounded to the type
    count as one more rounding a node, constants as another.
    """
    text = path.read_text()
    before = parse_graph(text)
    fed = feeds(before)
    expected = evaluate(before, fed, compute=np.float64)
    after, _ = run(text, **settings(text))
    got = evaluate(after, fed)
    low = any(tensor.desc.dtype is DType.FLOAT16 for node in after.nodes for tensor in node.outputs)
    bound = 3 * (len(before.nodes) + 1) * UNIT[DType.FLOAT16 if low else DType.FLOAT]
    for name, value in expected.items():
        want, have = value.astype(np.float64), got[name].astype(np.float64)
        finite = np.isfinite(want)
        assert np.array_equal(have[~finite], want[~finite], equal_nan=True)
        error = np.linalg.norm(have[finite] - want[finite]) / max(np.linalg.norm(want[finite]), 1e-30)
        assert error <= bound, (name, error, bound)
