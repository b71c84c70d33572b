from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from make_models import mlp
from npusim import InferenceSession, SessionOptions
from npusim.compare import compare_model
from npusim.feeds import generate_feeds, read_array
from npusim.onnx_bfloat import uses_bfloat, without_bfloat
from to_bfloat import to_bfloat

BODY = """
    <ir_version: 10, opset_import: ["" : 21]>
    main (bfloat16[3] x, bool c) => (bfloat16[3] y) {
        y = If (c) <
            then_branch = one () => (p) { k = Constant <value = float[1] {1.5}> ()  w = CastLike(k, x)  p = Add(x, w) },
            else_branch = two () => (q) { f = Cast <to = 1> (x)  g = Neg(f)  q = Cast <to = 16> (g) }>
    }
"""


def test_bodies_casts_and_weights_are_widened() -> None:
    model = parser.parse_model(BODY)
    weight = numpy_helper.from_array(np.array([1.5, -2], np.float32), "unused")
    model.graph.initializer.append(weight)
    assert uses_bfloat(model)
    wide = without_bfloat(model)
    assert uses_bfloat(model) and not uses_bfloat(wide)
    assert {item.type.tensor_type.elem_type for item in wide.graph.output} == {TensorProto.FLOAT}
    casts = [node.attribute[0].i for node in wide.graph.node[0].attribute[1].g.node if node.op_type == "Cast"]
    assert casts == [TensorProto.FLOAT, TensorProto.FLOAT]


def test_a_model_in_another_type_uses_none() -> None:
    model = mlp(batch=1)
    assert not uses_bfloat(model) and uses_bfloat(to_bfloat(model))
    value = helper.make_tensor("k", TensorProto.BFLOAT16, [1], [1.0])
    model.graph.node.append(helper.make_node("Constant", [], ["k"], value=value))
    assert uses_bfloat(model)


def test_generated_feeds_and_comparison_speak_of_values_not_of_bits() -> None:
    model: onnx.ModelProto = to_bfloat(mlp(batch=4))
    options = SessionOptions(precision="origin")
    (feed,) = generate_feeds(InferenceSession(model, options).get_inputs(), seed=0).values()
    assert feed.dtype.name == "bfloat16" and 0.5 < float(feed.astype(np.float32).std()) < 2
    report = compare_model(model, None, options)
    assert all(item.rel_l2 < 0.01 and item.cosine > 0.9999 for item in report.outputs)


def test_files_bring_bfloat16_back(tmp_path: Path) -> None:
    model: onnx.ModelProto = to_bfloat(mlp(batch=4))
    session = InferenceSession(model, SessionOptions(precision="origin"))
    ((name, feed),) = generate_feeds(session.get_inputs(), seed=0).items()
    np.save(tmp_path / "x.npy", feed)
    back = read_array(name, tmp_path / "x.npy")
    assert back.dtype == feed.dtype and back.tobytes() == feed.tobytes()
    assert session.run(None, {name: back})[0].tobytes() == session.run(None, {name: feed})[0].tobytes()
