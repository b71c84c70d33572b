"""Joins and cuts without a task: which ones qualify, what stands in the way of the others, and that values stay."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.kernel import Engine
from metadef.memory import check_plan, plan_memory
from metadef.passes import PIPELINE, PassOptions
from metadef.rewrite import run_passes
from metadef.select import select
from metadef.target import load_target
from metadef.text import parse_graph
from npusim import InferenceSession, SessionOptions

NAMES = "EnginePlacer, SplitNotaskPass, ConcatNotaskPass"

CHAIN = """
graph("chain"):
  %x : float16[1,32,6,6] = Data()
  %a = Exp(x=%x)
  %b = Relu(x=%a)
  %n = Neg(x=%b)
  %c = ConcatD(x0=%a, x1=%n) {concat_dim=1}
  %d = Abs(x=%c)
  %s1, %s2 = SplitD(x=%d) {split_dim=1, num_split=2}
  %e = Relu(x=%s2)
  %f = ConcatD(x0=%c, x1=%e) {concat_dim=1}
  %g = Exp(x=%f)
  %h = Sqrt(x=%s1)
  return (%g as "g", %h as "h")
"""


def notask(graph) -> set[str]:
    return {node.name for node in graph.nodes if node.engine is Engine.GE_LOCAL}


def test_chains_lie_in_one_block_and_the_plan_holds(run):
    graph, report = run(CHAIN, NAMES)
    split = next(node.name for node in graph.nodes if node.op_type == "SplitD")
    assert notask(graph) == {"c", "f", split}
    assert report.record("ConcatNotaskPass").effect_times == 2
    schedule = select(graph, load_target("Ascend910B3"))
    names = [tensor.name for tensor in schedule.tensors]
    (group,) = schedule.groups
    assert (names[group.parent], [names[item] for item in group.members]) == ("f", ["a", "n", "e"])
    views = {names[view.tensor]: (names[view.base], view.offset_bytes) for view in schedule.views}
    assert views == {"c": ("f", 0), "s1": ("d", 0), "s2": ("d", 32 * 36 * 2)}
    assert [step.kernel.op_type for step in schedule.steps] == ["Exp", "Relu", "Neg", "Abs", "Relu", "Exp", "Sqrt"]
    plan = plan_memory(schedule)
    check_plan(schedule, plan)
    assert plan.theory_min <= plan.total_size


@pytest.mark.parametrize("node", ["ConcatD(x0=%p, x1=%p2) {concat_dim=1}", "ConcatD(x0=%q, x1=%q2) {concat_dim=1}"])
def test_pieces_that_end_inside_blocks_are_copied(run, node):
    text = f"""
graph("blocks"):
  %x : float16[1,24,8,8] = Data()
  %y : float16[1,32,8,8] = Data()
  %p = MaxPoolV3(x=%x) {{ksize=[1, 1, 2, 2], strides=[1, 1, 2, 2]}}
  %p2 = MaxPoolV3(x=%x) {{ksize=[1, 1, 3, 3], strides=[1, 1, 2, 2], pads=[0, 1, 0, 1]}}
  %q = MaxPoolV3(x=%y) {{ksize=[1, 1, 2, 2], strides=[1, 1, 2, 2]}}
  %q2 = MaxPoolV3(x=%x) {{ksize=[1, 1, 3, 3], strides=[1, 1, 2, 2], pads=[0, 1, 0, 1]}}
  %c = {node}
  %d = MaxPoolV3(x=%c) {{ksize=[1, 1, 2, 2], strides=[1, 1, 2, 2]}}
  return (%d as "d")
"""
    graph, report = run(text)
    refused = [item.reason for item in report.record("ConcatNotaskPass").refusals]
    assert refused == ([] if "q" in node else ["its pieces end inside blocks of 16 channels"])
    assert ("c" in notask(graph)) == ("q" in node)


REFUSED = {
    "interleave": ("ConcatD(x0=%a, x1=%b) {concat_dim=2}", "rows lie before axis 2"),
    "itself": ("ConcatD(x0=%a, x1=%a) {concat_dim=1}", "joins a tensor with itself"),
    "input": ("ConcatD(x0=%a, x1=%x) {concat_dim=1}", "'x' is an input of the graph"),
    "constant": ("ConcatD(x0=%a, x1=%k) {concat_dim=1}", "'k' is a constant"),
    "odd": ("ConcatD(x0=%a, x1=%o) {concat_dim=1}", "no multiple of 32"),
    "output": ("ConcatD(x0=%a, x1=%r) {concat_dim=1}", "'r' is an output of the graph"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_to_be_copied_says_why(run, case):
    text, reason = REFUSED[case]
    graph, report = run(
        f"""
graph("refused"):
  %x : float16[1,3,6,6] = Data()
  %y : float16[1,16,6,6] = Data()
  %k : float16[1,16,6,6] = Const(seed=1)
  %a = Exp(x=%y)
  %b = Neg(x=%y)
  %r = Relu(x=%y)
  %o = Exp(x=%x)
  %c = {text}
  %d = Abs(x=%c)
  return (%d as "d", %r as "r")
""",
        NAMES,
    )
    assert not notask(graph)
    assert reason in " ".join(report.about("c"))


def test_results_that_leave_the_graph_have_their_own_memory(run):
    graph, report = run(CHAIN.replace('%g as "g"', '%f as "g", %s1 as "s"'), NAMES)
    assert "f" not in notask(graph) and "SplitD" not in {n.op_type for n in graph.nodes if n.name in notask(graph)}
    assert "output of the graph" in " ".join(text for _, item in report.refusals() for text in [item.reason])


@pytest.mark.parametrize("soc", ["Ascend910B3", "Ascend310P3"])
def test_values_are_those_of_the_copying_program(soc, rng):
    """Bit for bit: the same graph with and without the passes, on the device."""
    feeds = {"x": rng.standard_normal((1, 32, 6, 6)).astype(np.float16)}
    results = []
    for disabled in (frozenset(), frozenset({"ConcatNotaskPass", "SplitNotaskPass"})):
        session = InferenceSession(parse_graph(CHAIN), SessionOptions(soc=soc, disabled_passes=disabled, checked=True))
        kinds = [task.kernel.op_type for task in session.program.tasks]
        assert ("ConcatD" in kinds) == ("SplitD" in kinds) == bool(disabled)
        results.append(session.run(None, feeds))
        session.close()
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.ptp(one) > 0


def test_the_pipeline_ends_with_them():
    graph = parse_graph(CHAIN)
    run_passes(PIPELINE, graph, load_target("Ascend910B3"), PassOptions(check=True))
    assert any(node.op_type == "ConcatD" for node in graph.nodes if node.engine is Engine.GE_LOCAL)
