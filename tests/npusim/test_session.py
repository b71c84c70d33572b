"""The front door: options, runs, threads, layers, offline models, errors."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from metadef.error import DeviceFault, TargetError, UsageError
from metadef.model import save_om
from npusim import InferenceSession, SessionOptions
from npusim.data import digits_model, digits_samples
from npusim.session import NodeArg

REPO = Path(__file__).resolve().parents[2]
ONE = {"batch": 1}


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(digits_model(), SessionOptions(dims=ONE, threads=1))


@pytest.fixture(scope="module")
def om_path(session: InferenceSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_om(session.model, tmp_path_factory.mktemp("om") / "digits.om")


def picture(index: int = 0) -> dict[str, np.ndarray]:
    return {"image": digits_samples().as_input(index, 1)}


def test_digits_are_read_as_onnxruntime_reads_them(session: InferenceSession):
    samples = digits_samples()
    assert not session.loaded.fallbacks and not session.loaded.host_tasks
    for index in range(0, 100, 7):
        (scores,) = session.run(None, picture(index))
        assert scores.dtype == np.float32 and scores.shape == (1, 10)
        assert np.abs(scores[0] - samples.outputs[index]).max() < 4e-3
        assert scores.argmax() == samples.outputs[index].argmax()


def test_ports_are_described_like_onnxruntime(session: InferenceSession):
    assert session.get_inputs() == [NodeArg("image", [1, 1, 28, 28], "tensor(float)")]
    assert session.get_outputs() == [NodeArg("probabilities", [1, 10], "tensor(float)")]


@pytest.mark.parametrize(
    ("soc", "precision"),
    [
        ("Ascend910B3", "origin"),
        ("Ascend310P3", "fp16"),
        ("Ascend910B1", "fp16"),
        ("Ascend950PR", "origin"),
        ("Ascend910_95", "fp16"),
    ],
)
def test_other_chips_and_precisions(soc: str, precision: str):
    options = SessionOptions(soc=soc, precision=precision, dims={"batch": 3}, threads=1)
    other = InferenceSession(digits_model(), options)
    (scores,) = other.run(["probabilities"], {"image": digits_samples().as_input(0, 3)})
    limit = 1e-5 if precision == "origin" else 4e-3
    assert np.abs(scores - digits_samples().outputs[:3]).max() < limit
    assert not other.loaded.fallbacks


def test_fp32_products_are_refused_where_the_chip_has_none():
    with pytest.raises(TargetError, match="precision fp16"):
        InferenceSession(digits_model(), SessionOptions(soc="Ascend310P3", precision="origin", dims=ONE))


def test_results_are_the_same_at_any_thread_count(session: InferenceSession):
    wanted = session.run(None, picture())[0]
    for threads in (2, 3):
        other = InferenceSession(session.model, SessionOptions(threads=threads))
        for _ in range(3):
            assert np.array_equal(other.run(None, picture())[0], wanted)
        other.close()


def test_callers_may_come_from_many_threads(session: InferenceSession):
    wanted = [session.run(None, picture(index))[0] for index in range(4)]
    got: dict[int, np.ndarray] = {}

    def work(index: int) -> None:
        for _ in range(10):
            got[index] = session.run(None, picture(index))[0]
            if not np.array_equal(got[index], wanted[index]):
                return

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(np.array_equal(got[index], wanted[index]) for index in range(4))


def test_results_are_the_callers_own(session: InferenceSession):
    first = session.run(None, picture())[0]
    kept = first.copy()
    first[...] = 7
    assert np.array_equal(session.run(None, picture())[0], kept)


def test_layers_come_one_by_one_and_end_in_the_result(session: InferenceSession):
    (wanted,) = session.run(None, picture())
    layers = list(session.run_layers(picture()))
    assert [item.task.id for item in layers] == [task.id for task in session.program.tasks]
    assert np.array_equal(layers[-1].outputs[0].reshape(1, 10), wanted)
    for item in layers:
        for operand, array in zip(item.task.inputs, item.inputs, strict=True):
            assert (operand is None) == (array is None)


def test_layers_notice_another_run_in_between(session: InferenceSession):
    layers = session.run_layers(picture())
    next(layers)
    session.run(None, picture())
    with pytest.raises(UsageError, match="another run"):
        next(layers)


def test_checked_mode_gives_the_same_numbers(session: InferenceSession):
    checked = InferenceSession(session.model, SessionOptions(checked=True, threads=1))
    assert np.array_equal(checked.run(None, picture())[0], session.run(None, picture())[0])


def test_wrong_calls_teach(session: InferenceSession):
    with pytest.raises(UsageError, match="did you mean 'probabilities'"):
        session.run(["probabilitys"], picture())
    with pytest.raises(UsageError, match="did you mean 'image'"):
        session.run(None, {"images": picture()["image"]})
    with pytest.raises(UsageError, match="astype"):
        session.run(None, {"image": picture()["image"].astype(np.float64)})
    with pytest.raises(UsageError, match="exact or fast"):
        InferenceSession(session.model, SessionOptions(numerics="sloppy"))
    with pytest.raises(UsageError, match="negative"):
        InferenceSession(session.model, SessionOptions(threads=-1))


def test_compilation_is_at_hand_and_its_absence_explained(session: InferenceSession, om_path: Path):
    assert session.plan.theory_min <= session.plan.total_size <= session.plan.no_reuse
    assert session.compile_report is session.compilation.report
    offline = InferenceSession(om_path)
    with pytest.raises(UsageError, match=r"\.onnx"):
        _ = offline.plan


def test_offline_models_run_bit_equal(session: InferenceSession, om_path: Path):
    offline = InferenceSession(om_path, SessionOptions(threads=1, soc="Ascend910B3", precision="fp16"))
    assert np.array_equal(offline.run(None, picture())[0], session.run(None, picture())[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SessionOptions(soc="Ascend310P3"), "another soc"),
        (SessionOptions(precision="origin"), "another precision"),
        (SessionOptions(dims=ONE), "'dims' has no meaning"),
    ],
)
def test_offline_models_refuse_what_is_decided(om_path: Path, options: SessionOptions, message: str):
    with pytest.raises(UsageError, match=message):
        InferenceSession(om_path, options)


def test_a_chip_of_ones_own_serves_from_the_file_to_the_offline_model(tmp_path: Path):
    """Even where it is called as one of the package's: its file says what it is."""
    usual = InferenceSession(digits_model(), SessionOptions(dims=ONE))
    for name in ("Mine", "Ascend910B3"):
        chip = tmp_path / f"{name}.yaml"
        clock = "clock_mhz: {value: 900, source: test, sure: unknown}"
        chip.write_text(f"inherits: Ascend910B3\nsoc: {name}\ncores:\n  {clock}\n")
        session = InferenceSession(digits_model(), SessionOptions(dims=ONE, soc=str(chip)))
        assert session.target.clock_mhz == 900 and session.profile.cycles != usual.profile.cycles
        path = save_om(session.model, tmp_path / f"{name}.om")
        again = InferenceSession(path, SessionOptions(soc=str(chip)))
        np.testing.assert_array_equal(again.run(None, picture())[0], session.run(None, picture())[0])
        assert again.profile.cycles == session.profile.cycles
    with pytest.raises(TargetError, match=r"(?s)'Mine' is no chip of the package.*--soc PATH.yaml"):
        InferenceSession(tmp_path / "Mine.om")
    with pytest.raises(UsageError, match="compiled for another soc"):
        InferenceSession(tmp_path / "Mine.om", SessionOptions(soc="Ascend910B3"))


def test_offline_models_need_no_compiler(om_path: Path):
    code = f"""
        import sys
        import numpy as np
        from npusim import InferenceSession
        session = InferenceSession({str(om_path)!r})
        session.run(None, {{"image": np.zeros((1, 1, 28, 28), np.float32)}})
        heavy = {{"numba", "onnx", "onnxruntime", "matplotlib", "google"}}
        heavy |= {{"metadef.compiler", "metadef.passes", "metadef.frontend"}}
        print(sorted(heavy & set(sys.modules)))
    """
    run = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(run, cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_profile_is_made_when_asked_for(session: InferenceSession):
    profile = session.profile
    assert profile is session.profile
    assert len(profile.tasks) == len(session.program.tasks)
    assert profile.cycles > 0 and profile.us > 0
    assert profile.traffic["HBM read"] > 0 and sum(profile.traffic.values()) > 0


@pytest.mark.parametrize("kind", ["timeline", "memory", "traffic", "roofline"])
def test_profiles_draw_themselves(session: InferenceSession, kind: str):
    assert getattr(session.profile, f"plot_{kind}")().axes


def host_model() -> onnx.ModelProto:
    """Device operators around one that only the host knows, and an index that may be out of range."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"], "square"),
        helper.make_node("Det", ["square"], ["volumes"], "volumes"),
        helper.make_node("Abs", ["volumes"], ["y"], "size"),
        helper.make_node("Gather", ["y", "pick"], ["z"], "gather", axis=0),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3, 3]),
        helper.make_tensor_value_info("pick", TensorProto.INT64, [2]),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "z")]
    graph = helper.make_graph(nodes, "host", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_host_tasks_split_the_list(rng: np.random.Generator):
    x = rng.standard_normal((4, 3, 3)).astype(np.float32)
    session = InferenceSession(host_model(), SessionOptions(precision="origin"))
    assert [task.kernel.op_type for task in session.loaded.host_tasks] == ["Det"]
    y, z = session.run(None, {"x": x, "pick": np.array([3, -4])})
    assert np.allclose(y, np.abs(np.linalg.det(x * x)), rtol=1e-5)
    assert np.array_equal(z, y[[3, -4]])
    with pytest.raises(DeviceFault, match="index 9"):
        session.run(None, {"x": x, "pick": np.array([9, 0])})
    assert np.array_equal(session.run(None, {"x": x, "pick": np.array([3, 0])})[1], y[[3, 0]])


@pytest.mark.slow
def test_resnet50_keeps_the_budget(resnet50_path: Path, rng: np.random.Generator):
    feeds_shape = (1, 3, 224, 224)
    for soc, tasks, arena in (("Ascend910B3", 78, 3_614_208), ("Ascend310P3", 62, 3_212_288)):
        session = InferenceSession(resnet50_path, SessionOptions(soc=soc))
        assert len(session.program.tasks) <= tasks and session.program.arena_bytes <= arena
        assert not session.loaded.fallbacks and not session.loaded.host_tasks
        feeds = {session.get_inputs()[0].name: rng.standard_normal(feeds_shape).astype(np.float32)}
        one = InferenceSession(session.model, SessionOptions(threads=1))
        assert np.array_equal(session.run(None, feeds)[0], one.run(None, feeds)[0])


def test_a_forgotten_session_lets_its_threads_go_without_the_collector(om_path: Path):
    gc.disable()
    try:
        session = InferenceSession(om_path, SessionOptions(threads=3))
        session.run(None, picture())
        workers = list(session.loaded.executor._workers)
        del session
        for worker in workers:
            worker.join(timeout=30)
    finally:
        gc.enable()
    assert len(workers) == 2 and not any(worker.is_alive() for worker in workers)


def test_feeds_and_names_are_taken_as_onnxruntime_takes_them(session: InferenceSession):
    (expected,) = session.run(None, picture())
    assert np.array_equal(session.run([], picture())[0], expected)
    assert np.array_equal(session.run(["probabilities"], {"image": picture()["image"].tolist()})[0], expected)
    with pytest.raises(UsageError, match="astype"):
        session.run(None, {"image": picture()["image"].astype(np.float64)})
    with pytest.raises(UsageError, match="mapping"):
        session.run(None, [picture()["image"]])
    with pytest.raises(UsageError, match="no array"):
        session.run(None, {"image": [[1.0], [2.0, 3.0]]})
