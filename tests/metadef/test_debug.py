"""Snapshots, graph differences and bisection over passes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from metadef.debug import SnapshotWriter, bisect_passes, diff_graphs
from metadef.error import UsageError
from metadef.graph import Graph
from metadef.ops.evaluate import evaluate
from metadef.passes import PIPELINE, PassContext, PassOptions, run_pipeline
from metadef.rewrite import Pass
from metadef.target import load_target
from metadef.text import constants_of, parse_graph, print_graph

TARGET = load_target("Ascend910B3")
TEXT = """
graph("net/1"):
  %x : float32[1,16,4,4] = Data()
  %w : float32[16,16,1,1] = Const(seed=1)
  %c = Conv2D(x=%x, filter=%w) {strides=[1, 1, 1, 1]} origins=["c"]
  %k : float32[16,1,1] = Const(seed=2)
  %m = Mul(x1=%c, x2=%k) origins=["m"]
  %r = Relu(x=%m) origins=["r"]
  return (%r as "r")
"""


def test_snapshots_are_numbered_readable_and_only_where_something_changed(tmp_path):
    graph = parse_graph(TEXT)
    writer = SnapshotWriter(tmp_path / "dump")
    writer("parse", graph)
    report = run_pipeline(graph, TARGET, PassOptions(), writer)
    files = sorted((tmp_path / "dump").iterdir())
    assert files == writer.files
    assert files[0].name == "ge_readable_00000000_graph_net_1_parse.txt"
    assert [path.stem.rsplit("_", 1)[-1] for path in files[1:]] == [item.name for item in report.passes if item.changed]
    assert print_graph(parse_graph(files[-1].read_text(), constants_of(graph))) == print_graph(graph)
    every = SnapshotWriter(tmp_path / "all", every=True)
    run_pipeline(parse_graph(TEXT), TARGET, PassOptions(), every)
    assert len(every.files) == len(PIPELINE)


def test_diff_tells_kinds_of_edits(golden):
    before, after = parse_graph(TEXT), parse_graph(TEXT)
    assert diff_graphs(before, parse_graph(TEXT)) == []
    run_pipeline(after, TARGET, PassOptions())
    golden("\n".join(map(str, diff_graphs(before, after))))
    kinds = {(edit.kind, edit.node) for edit in diff_graphs(before, after)}
    assert {("fused", "c"), ("fused", "m"), ("fused", "r"), ("added", "cr"), ("added", "trans_Cast")} <= kinds


def test_diff_names_changed_fields():
    before = parse_graph(TEXT)
    text = print_graph(before).replace("strides=[1, 1, 1, 1]", "strides=[1, 1, 2, 2]").replace("4,4]NCHW", "2,2]NCHW")
    after = parse_graph(text, constants_of(before))
    fields = [(edit.node, edit.field) for edit in diff_graphs(before, after)]
    assert ("c", "attribute strides") in fields and ("c", "results") in fields and ("r", "graph output") in fields
    assert ("k", "type") not in fields


@dataclass(frozen=True)
class Spoil(Pass):
    """Makes every constant wrong."""

    def run(self, graph: Graph, context: PassContext) -> bool:
        for tensor in graph.constants():
            assert tensor.const is not None
            tensor.const = tensor.const + 1
        return True


def agrees(graph: Graph) -> bool:
    rng = np.random.default_rng(5)
    feeds = {"x": rng.standard_normal((1, 16, 4, 4)).astype(np.float32)}
    want = evaluate(parse_graph(TEXT), feeds)["r"]
    return bool(np.allclose(evaluate(graph, feeds)["r"], want, rtol=0.02, atol=0.02))


@pytest.mark.parametrize("place", [0, 7, len(PIPELINE)])
def test_bisection_finds_the_pass_that_breaks(place):
    passes = (*PIPELINE[:place], Spoil("SpoilPass", "for the test"), *PIPELINE[place:])
    assert bisect_passes(lambda: parse_graph(TEXT), agrees, TARGET, passes=passes) == "SpoilPass"


def test_bisection_with_nothing_wrong_or_everything():
    assert bisect_passes(lambda: parse_graph(TEXT), agrees, TARGET) is None
    with pytest.raises(UsageError, match="before any pass"):
        bisect_passes(lambda: parse_graph(TEXT), lambda graph: False, TARGET)
    spoiled = (replace(Spoil("SpoilPass", "for the test")), *PIPELINE)
    off = PassOptions(disabled=frozenset({"SpoilPass"}))
    assert bisect_passes(lambda: parse_graph(TEXT), agrees, TARGET, off, spoiled) is None
