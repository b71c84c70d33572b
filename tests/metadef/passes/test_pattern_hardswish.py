"""HardSwish spelled out with a clip is put together, and values stay."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.ops.evaluate import evaluate_node

FORMS = {
    "quotient": "RealDiv(x1=%p, x2=%six)",
    "product": "Mul(x1=%p, x2=%sixth)",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bound", [6.0, 5.0])
def test_clip_of_three_more_by_six(run, form, bound, rng):
    graph, _ = run(
        f"""
graph("hard"):
  %x : float32[2,24] = Data()
  %three : float32[1] = Const(seed=1, low=3, high=3)
  %six : float32[1] = Const(seed=1, low=6, high=6)
  %sixth : float32[1] = Const(seed=1, low=0.16666667, high=0.16666667)
  %a = Add(x1=%x, x2=%three)
  %c = ClipByValue(x=%a) {{clip_value_min=0.0, clip_value_max={bound}}}
  %p = Mul(x1=%x, x2=%c)
  %y = {FORMS[form]}
  return (%y as "y")
""",
        "SwishFusion",
        precision="origin",
    )
    kinds = [node.op_type for node in graph.nodes]
    if bound != 6.0:
        assert "HardSwish" not in kinds
        return
    assert kinds == ["HardSwish"]
    x = rng.standard_normal((2, 24)).astype(np.float32) * 4
    (result,) = evaluate_node(graph.nodes[0], [x])
    np.testing.assert_allclose(result, x * np.clip(x + 3, 0, 6) / 6, rtol=1e-5, atol=1e-6)
