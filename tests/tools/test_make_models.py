"""The made models are valid, seeded, free of trivial weights, and answer differently to different inputs."""

import sys

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import fill_light
import make_models as mm

ort = pytest.importorskip("onnxruntime")


def run(model, feeds):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(None, feeds)


def weights(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize("name", mm.SMALL)
def test_small_models_run_and_follow_their_seed(name):
    make = mm.SMALL[name]
    assert make(3).SerializeToString(deterministic=True) == make(3).SerializeToString(deterministic=True)
    model = make(3)
    feeds = mm.random_inputs(model, 1, batch=2, seq=9)
    first, again, other = run(model, feeds), run(make(4), feeds), run(model, mm.random_inputs(model, 2, batch=2, seq=9))
    for a, b, c in zip(first, again, other):
        assert np.isfinite(a).all()
        assert a.std() > 0.01
        assert np.abs(a - b).max() > 0.01
        assert np.abs(a - c).max() > 0.01


def test_conv_zoo_covers_what_it_names():
    outputs = {value.name for value in mm.conv_zoo().graph.output}
    assert outputs == {name for name, _, _ in mm.CONV_ZOO}
    assert all(len(node.input) == 2 for node in mm.conv_zoo(bias=False).graph.node)


def test_pictures_are_structured_and_apart():
    first, second = mm.picture(1), mm.picture(2)
    assert first.shape == (1, 3, 224, 224)
    assert first.dtype == np.float32
    assert abs(float(first.mean())) < 1e-3
    assert abs(float(first.std()) - 1) < 1e-3
    assert abs(float((first * second).mean())) < 0.5
    # Neighbours agree: the picture is no white noise.
    assert float((first[..., 1:] * first[..., :-1]).mean()) > 0.5
    assert np.array_equal(first, mm.picture(1))


def test_filled_model_has_statistics_of_what_flows_through(rng):
    model = fill_light.fill("shufflenet", [mm.picture(0), mm.picture(1)], seed=5)
    stored = weights(model)
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            assert all(stored[name].std() > 0 for name in node.input[1:])
        if node.op_type in ("Conv", "Gemm"):
            assert stored[node.input[1]].std() > 0
    name = model.graph.input[0].name
    (first,), (second,), (blank,) = (run(model, {name: x}) for x in (mm.picture(8), mm.picture(9), 0 * mm.picture(8)))
    assert cosine(first, second) < 0.9
    assert cosine(first, blank) < 0.9


def test_one_node_by_reference_agrees_with_onnxruntime(monkeypatch, rng):
    x, channel = rng.standard_normal((2, 4, 5, 5)).astype(np.float32), [rng.random(4, np.float32) for _ in range(4)]
    feeds = {"x": x, **dict(zip("sbmv", channel))}
    node = onnx.helper.make_node("BatchNormalization", list("xsbmv"), ["y"], epsilon=1e-3)
    fast = fill_light.run_node(node, [feeds], 9)[0]["y"]
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    np.testing.assert_allclose(fill_light.run_node(node, [feeds], 9)[0]["y"], fast, rtol=1e-5, atol=1e-6)


def test_unknown_light_model_names_the_known_ones():
    with pytest.raises(ValueError, match=r"no light model 'resnet'; it has .*resnet50"):
        fill_light.fill("resnet", [], 0)


def cosine(a, b):
    a, b = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_resnet50_tells_pictures_apart(resnet50_path):
    (name,) = (value.name for value in onnx.load(resnet50_path).graph.input)
    session = ort.InferenceSession(str(resnet50_path), providers=["CPUExecutionProvider"])
    outputs = [session.run(None, {name: x})[0] for x in (mm.picture(1), mm.picture(2), 0 * mm.picture(1))]
    assert outputs[0].shape == (1, 1000)
    assert len({int(out.argmax()) for out in outputs}) == 3
    assert cosine(outputs[0], outputs[1]) < 0.5
    assert cosine(outputs[0], outputs[2]) < 0.5


def test_shared_pictures_are_told_apart_too(resnet50_path, need_data):
    theirs = mm.import_script(need_data("conformance/make_derived.py")).picture
    session = ort.InferenceSession(str(resnet50_path), providers=["CPUExecutionProvider"])
    (name,) = (value.name for value in session.get_inputs())
    first, second = (session.run(None, {name: theirs(seed)})[0] for seed in (1, 2))
    assert cosine(first, second) < 0.9


def test_cache_is_keyed_by_the_sources(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(mm, "fill", lambda name, pictures, seed: mm.mlp(seed))
    stale = tmp_path / "npusim" / "models" / "squeezenet-seed1-0123456789abcdef.onnx"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"old")
    path = mm.cached_light("squeezenet", 1)
    assert path.parent == stale.parent
    assert not stale.exists()
    stamp = path.stat().st_mtime_ns
    assert mm.cached_light("squeezenet", 1) == path
    assert path.stat().st_mtime_ns == stamp
