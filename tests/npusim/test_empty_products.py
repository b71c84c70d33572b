"""Products over, of or into nothing: zeros or an empty result, as everywhere else, and no warning on the way."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

from npusim import InferenceSession, SessionOptions

SIZES = [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 4)]
BODIES = {
    "constant": "x) => (y) { y = MatMul(x, w) }",
    "bias": "x) => (y) { a = Gemm(x, w, b) y = Relu(a) }",
    "running": "x, float[K,N] z) => (y) { y = MatMul(x, z) }",
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("soc", ["Ascend910B3", "Ascend310P3"])
@pytest.mark.parametrize("body", list(BODIES))
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_a_product_with_an_empty_side(m: int, k: int, n: int, body: str, soc: str, rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
    b = rng.standard_normal(n).astype(np.float32)
    graph = parser.parse_graph(f"net (float[{m},{k}] " + BODIES[body].replace("[K,N]", f"[{k},{n}]"))
    graph.initializer.extend([numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = InferenceSession(model.SerializeToString(), SessionOptions(soc=soc))
    (result,) = session.run(None, {"x": x, "z": w} if body == "running" else {"x": x})
    expected = np.maximum(x @ w + b, 0) if body == "bias" else x @ w
    assert result.shape == (m, n) and np.allclose(result, expected, atol=1e-3)


@pytest.mark.filterwarnings("error")
def test_an_empty_batch_through_a_convolution_says_why_the_cube_is_idle(rng: np.random.Generator) -> None:
    graph = parser.parse_graph("net (float[N,3,8,8] x) => (y) { a = Conv(x, w) y = Relu(a) }")
    graph.initializer.append(numpy_helper.from_array(rng.standard_normal((5, 3, 3, 3)).astype(np.float32), "w"))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = InferenceSession(model.SerializeToString(), SessionOptions(dims={"N": 0}))
    (result,) = session.run(None, {"x": np.zeros((0, 3, 8, 8), np.float32)})
    assert result.shape == (0, 5, 6, 6)
    assert any("product of nothing" in task.kernel.reason for task in session.program.tasks)
