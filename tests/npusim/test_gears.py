"""Sessions with gears: values beside onnxruntime in every gear, padding and cutting back, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from metadef.error import UsageError
from metadef.model import save_om
from npusim import InferenceSession, SessionOptions
from tests.metadef.models import detector


@pytest.fixture(scope="module")
def reference() -> Any:
    ort = pytest.importorskip("onnxruntime", reason="values are compared with onnxruntime")
    return ort.InferenceSession(detector().SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def sized() -> Any:
    options = SessionOptions(precision="origin", threads=1, dynamic_image_size="32,32;48,48;64,64", padding="all")
    session = InferenceSession(detector(), options)
    yield session
    session.close()


def image(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("size", [32, 48, 64])
def test_values_in_every_gear(size: int, sized: Any, reference: Any, rng: np.random.Generator) -> None:
    x = image(rng, 1, 3, size, size)
    got = sized.run(None, {"x": x})
    assert sized.gear_choice.exact and sized.gear_choice.key == f"{size},{size}"
    for have, want in zip(got, reference.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


def test_any_size_runs_padded_and_is_cut_back(sized: Any, reference: Any, rng: np.random.Generator) -> None:
    x = image(rng, 1, 3, 41, 30)
    got = sized.run(["map"], {"x": x})[0]
    padded = np.zeros((1, 3, 48, 48), np.float32)
    padded[:, :, :41, :30] = x
    want = reference.run(["map"], {"x": padded})[0][:, :, :21, :15]
    assert got.shape == (1, 8, 21, 15)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert sized.gear_choice.waste == pytest.approx(1 - 41 * 30 / 48**2)


def test_one_memory_serves_all_gears(sized: Any, rng: np.random.Generator) -> None:
    places, cycles = set(), []
    for size in (32, 64):
        sized.run(None, {"x": image(rng, 1, 3, size, size)})
        places.add(sized.loaded.device.memory.ctypes.data)
        cycles.append(sized.profile.cycles)
    assert len(places) == 1 and cycles[0] < cycles[1]
    sized.run(None, {"x": image(rng, 1, 3, 32, 32)})
    assert sized.get_inputs()[0].shape == [1, 3, 64, 64] and sized.get_outputs()[0].shape == [1, 8, 32, 32]
    sized.run(None, {"x": image(rng, 1, 3, 64, 64)})
    totals = {key: program.total_size for key, program in sized.model.programs.items()}
    assert sized.program.arena_bytes == max(totals.values()) == totals["64,64"] > totals["48,48"]


def test_a_batch_is_padded_and_cut_back(reference: Any, rng: np.random.Generator, tmp_path: Path) -> None:
    options = SessionOptions(precision="origin", threads=1, dynamic_batch_size="1,2,4", shapes={"x": (-1, 3, 16, 16)})
    made = InferenceSession(detector(), options)
    save_om(made.model, tmp_path / "batch.om")
    loaded = InferenceSession(tmp_path / "batch.om", SessionOptions(threads=1))
    for session in (made, loaded):
        for count, key in ((1, "1"), (3, "4"), (2, "2")):
            x = image(rng, count, 3, 16, 16)
            got = session.run(None, {"x": x})
            assert session.gear_choice.key == key
            for have, want in zip(got, reference.run(None, {"x": x}), strict=True):
                np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)
        with pytest.raises(UsageError, match=r"axis 0 is 5, the largest gear has 4"):
            session.run(None, {"x": image(rng, 5, 3, 16, 16)})
        session.close()


def test_layers_of_a_gear(sized: Any, rng: np.random.Generator) -> None:
    layers = list(sized.run_layers({"x": image(rng, 1, 3, 40, 40)}))
    assert len(layers) == len(sized.model.programs["48,48"].tasks)


def test_padding_of_pictures_must_be_allowed(rng: np.random.Generator) -> None:
    session = InferenceSession(detector(), SessionOptions(threads=1, dynamic_image_size="16,16;32,32"))
    with pytest.raises(UsageError, match=r"the nearest is 32,32[\s\S]*padding=\"all\""):
        session.run(None, {"x": image(rng, 1, 3, 20, 20)})
    assert session.run(None, {"x": image(rng, 1, 3, 16, 16)})[0].shape == (1, 8, 8, 8)
    session.close()
    strict = InferenceSession(
        detector(),
        SessionOptions(threads=1, dynamic_batch_size="1,2", padding="none", shapes={"x": (-1, 3, 8, 8)}),
    )
    strict.run(None, {"x": image(rng, 2, 3, 8, 8)})
    with pytest.raises(UsageError, match="padding"):
        InferenceSession(detector(), SessionOptions(padding="maybe", dims={"h": 8, "w": 8}))
    strict.close()


def test_elastic_sessions_take_what_no_gear_holds(reference: Any, rng: np.random.Generator) -> None:
    options = SessionOptions(precision="origin", threads=1, dynamic_image_size="16,16;32,32", elastic=True)
    session = InferenceSession(detector(), options)
    upper = session.loaded.device.memory.ctypes.data
    for size, compiled, requests in ((32, 0, 0), (20, 1, 0), (40, 2, 1), (20, 2, 1), (40, 2, 1), (44, 3, 2)):
        x = image(rng, 1, 3, size, size)
        got = session.run(None, {"x": x})
        for have, want in zip(got, reference.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)
        # What is smaller than the largest gear lies in its memory, planned again for the true shape.
        assert (session.loaded.device.memory.ctypes.data == upper) == (size <= 32)
        assert session._gears.elastic.compiled == compiled and session.pool_stats.requests == requests
    for size in (48, 52, 56, 60, 64):
        session.run(None, {"x": image(rng, 1, 3, size, size)})
    stats = session.pool_stats
    assert stats.used < stats.high_water or stats.hits > 0
    assert session.profile.cycles > 0 and session.gear_choice.exact
    session.close()


def test_an_output_that_mixes_the_batch_refuses_padding(rng: np.random.Generator) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=0)
    model = helper.make_model(
        helper.make_graph([node], "mean", [x], [y]), opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    session = InferenceSession(model, SessionOptions(precision="origin", threads=1, dynamic_batch_size="2,4"))
    value = image(rng, 4, 4)
    np.testing.assert_allclose(session.run(None, {"x": value})[0], value.mean(0), rtol=1e-5, atol=1e-6)
    with pytest.raises(UsageError, match="cannot be cut back"):
        session.run(None, {"x": value[:3]})
    session.close()


def test_gears_pack_a_common_weight_once(sized: Any, rng: np.random.Generator) -> None:
    packed = []
    for size in (64, 48, 32):
        sized.run(None, {"x": image(rng, 1, 3, size, size)})
        packed.append({key: id(value) for key, value in sized.loaded._packed.items()})
    assert packed[0] and packed[0] == packed[1] == packed[2]
