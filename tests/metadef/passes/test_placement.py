"""Engines and the reasons for them."""

from __future__ import annotations

import pytest

from metadef.error import UsageError
from metadef.kernel import Engine
from metadef.op import CostClass
from metadef.passes.placement import DEVICE_TYPES
from metadef.text import parse_graph

TEXT = """
graph("engines"):
  %x : float16[2,8] = Data()
  %i : int64[2,8] = Data()
  %w : float16[8,8] = Const(seed=1)
  %m = MatMulV2(x1=%x, x2=%w)
  %v = Reshape(x=%m) {shape=[16]}
  %e = Exp(x=%v)
  %j = Add(x1=%i, x2=%i)
  %k = Cast(x=%j) {dst_type=DT_INT32}
  %t = TransposeD(x=%j) {perm=[1, 0]}
  %f : float16[16] = com.acme::Odd(x0=%e)
  return (%f as "f", %k as "k", %t as "t")
"""


@pytest.mark.parametrize(("soc", "vector"), [("Ascend910B3", Engine.VECTOR), ("Ascend310P3", Engine.AICORE)])
def test_engines_by_family_and_type(run, soc, vector):
    graph, report = run(TEXT, "EnginePlacer", soc)
    engines = {node.name: node.engine for node in graph.nodes}
    assert engines == {
        "m": Engine.AICORE,
        "v": Engine.GE_LOCAL,
        "e": vector,
        "j": Engine.AICPU,
        "k": vector,
        "t": vector,
        "f": Engine.HOST_CPU,
    }
    assert report.about("j") == ["EnginePlacer: DNN_VM_AICPU_ASCEND: no kernel of the AI cores computes Add in int64"]
    assert report.about("f") == ["EnginePlacer: DNN_VM_HOST_CPU: com.acme Odd has no operator of the Ascend dialect"]
    assert report.about("m") == []


def test_a_reason_that_is_there_is_kept(run):
    text = TEXT.replace("Odd(x0=%e)", 'Odd(x0=%e) reason="nobody wrote a kernel"')
    graph, _ = run(text, "EnginePlacer")
    odd = graph.find("f")
    assert odd is not None and odd.engine_reason == "nobody wrote a kernel"


def test_unknown_marks_are_told(run):
    with pytest.raises(UsageError, match=r"device mark 'npuu'.*\n.*npu"):
        run(TEXT.replace("Exp(x=%v)", 'Exp(x=%v) mark="npuu"'), "EnginePlacer")


def test_every_family_but_host_has_a_row():
    assert set(DEVICE_TYPES) == set(CostClass) - {CostClass.HOST}
    assert parse_graph(TEXT).find("m") is not None
