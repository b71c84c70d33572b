"""The driver of passes and rules: statistics, refusals, switches, order, invariants."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from metadef.error import ContractError, UsageError
from metadef.graph import Graph, Node
from metadef.passes import PIPELINE, PassOptions, find_pass, run_pipeline
from metadef.rewrite import GRAPH_FUSION, Nodes, Pass, PassContext, Rule, RulePass, absorb, bypass, run_passes
from metadef.target import load_target
from metadef.text import parse_graph, print_graph

TARGET = load_target("Ascend910B3")
TEXT = """
graph("chain"):
  %x : float16[2,4] = Data()
  %a = Relu(x=%x) origins=["a"]
  %b = Neg(x=%a) origins=["b"]
  %c = Relu(x=%b) origins=["c"]
  %d = Exp(x=%c) origins=["d"]
  %e = Relu(x=%x) origins=["e"]
  return (%d as "d", %e as "e")
"""


class DropRelu(Rule):
    """Takes out Relu nodes, except where they make an output of the graph."""

    roots = ("Relu",)

    def match(self, graph: Graph, node: Node) -> Nodes | None:
        return (node,)

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        return "it makes an output" if nodes[0].output in graph.outputs else ""

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        source = nodes[0].inputs[0]
        assert source is not None
        bypass(graph, nodes[0], source)


class Endless(DropRelu):
    """Says it fired and changes nothing."""

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        return ""

    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        return None


@dataclass(frozen=True)
class Breaks(Pass):
    """Leaves a node that reads what nobody makes."""

    def run(self, graph: Graph, context: PassContext) -> bool:
        graph.nodes.reverse()
        return True


DROP = RulePass("Drop", "for the test", GRAPH_FUSION, rules=(DropRelu(),))


def test_matches_effects_and_refusals_are_counted():
    graph = parse_graph(TEXT)
    report = run_passes([DROP], graph, TARGET, PassOptions(check=True))
    record = report.record("Drop")
    assert (record.match_times, record.effect_times, record.changed) == (3, 2, True)
    assert (record.nodes_before, record.nodes_after) == (5, 3)
    assert [(item.node, item.reason) for item in record.refusals] == [("e", "it makes an output")]
    assert report.about("e") == ["Drop refused: it makes an output"]


def test_fusion_result_has_the_shape_of_ge(tmp_path):
    report = run_passes([DROP], parse_graph(TEXT), TARGET, PassOptions())
    path = report.write_fusion_result(tmp_path / "out" / "fusion_result.json")
    stored = json.loads(path.read_text())
    assert stored == {
        "session_and_graph_id": "0_0",
        "graph_fusion": {"Drop": {"effect_times": "2", "match_times": "3"}},
        "ub_fusion": {},
        "refusals": {"Drop": [{"node": "e", "reason": "it makes an output"}]},
    }


def test_a_switched_off_pass_does_nothing_and_is_reported():
    graph = parse_graph(TEXT)
    before = print_graph(graph)
    seen = []
    options = PassOptions(disabled=frozenset({"Drop", "NobodyHasThis"}))
    report = run_passes([DROP], graph, TARGET, options, lambda name, _: seen.append(name))
    assert print_graph(graph) == before
    assert seen == [] and report.record("Drop").skipped and report.unknown_disabled == ("NobodyHasThis",)
    assert "off" in str(report)


def test_required_passes_stay_on():
    with pytest.raises(UsageError, match="EnginePlacer cannot be switched off"):
        run_pipeline(parse_graph(TEXT), TARGET, PassOptions(disabled=frozenset({"EnginePlacer"})))


def test_a_rule_that_never_rests_is_a_fault():
    endless = RulePass("Endless", "for the test", rules=(Endless(),))
    with pytest.raises(ContractError, match="'Endless' does not come to rest"):
        run_passes([endless], parse_graph(TEXT), TARGET, PassOptions())


def test_check_names_the_pass_that_broke_the_graph():
    breaks = Breaks("Breaks", "for the test")
    with pytest.raises(ContractError, match=r"pass 'Breaks' broke the graph: .* before it is made"):
        run_passes([breaks], parse_graph(TEXT), TARGET, PassOptions(check=True))
    run_passes([breaks], parse_graph(TEXT), TARGET, PassOptions())


def test_on_pass_follows_the_pipeline_and_a_second_run_changes_nothing():
    graph = parse_graph(TEXT)
    seen: list[str] = []
    run_pipeline(graph, TARGET, PassOptions(check=True), lambda name, _: seen.append(name))
    assert seen == [item.name for item in PIPELINE]
    text, revision = print_graph(graph), graph.revision
    report = run_pipeline(graph, TARGET, PassOptions(check=True))
    assert print_graph(graph) == text and graph.revision == revision
    assert not any(item.changed for item in report.passes)


def test_pipeline_names_are_unique_and_say_why():
    names = [item.name for item in PIPELINE]
    assert len(set(names)) == len(names)
    assert all(item.reason for item in PIPELINE)
    with pytest.raises(UsageError, match="PrunePass"):
        find_pass("PrunPass")


def test_absorb_keeps_the_operands_of_an_epilogue_in_order():
    graph = parse_graph("""
graph("join"):
  %x : float16[2,4] = Data()
  %y : float16[2,4] = Data()
  %a = Neg(x=%x) origins=["a"]
  %z = Exp(x=%y) origins=["z"]
  %b = Add(x1=%a, x2=%z) origins=["b"]
  %c = Mul(x1=%b, x2=%y) origins=["c"]
  return (%c as "c")
""")
    add, mul, neg = graph.find("b"), graph.find("c"), graph.find("a")
    assert add is not None and mul is not None and neg is not None
    absorb(graph, add, mul)
    absorb(graph, neg, add)
    graph.verify()
    assert [node.name for node in graph.nodes] == ["z", "abc"]
    assert [(item.op_type, item.operand) for item in neg.fused] == [("Add", 1), ("Mul", 2)]
    assert [tensor.name for tensor in neg.inputs if tensor] == ["x", "z", "y"]
    assert neg.origins == ("a", "b", "c") and neg.output.name == "c"
    with pytest.raises(KeyError):
        run_passes([], graph, TARGET, PassOptions()).record("Drop")
