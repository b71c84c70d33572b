"""Convolutions of large windows, end to end: when this computer takes Fourier transforms, and what comes out."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from metadef.dtype import DType
from metadef.format import Format
from metadef.graph import Graph
from metadef.ops.numeric import narrow
from npusim import InferenceSession, SessionOptions
from npusim.cli import commands
from npusim.explain import Explainer
from npusim.kernels.conv import Conv2D
from npusim.kernels.plans.algorithm import host_algorithm
from npusim.kernels.plans.fourier import best_edge
from npusim.kernels.plans.site import PlanOptions

FAST = PlanOptions(numerics="fast")
CHANNELS, SIZE = 32, 30


def large_windows(depthwise: bool, dtype: DType = DType.FLOAT16, batch: int = 1) -> Graph:
    """Two convolutions, a bias and a ReLU."""
    rng = np.random.default_rng(2)
    graph = Graph("large")
    result = graph.add_input("x", (batch, CHANNELS, SIZE, SIZE), dtype, Format.NCHW)
    window, per = (21, 1) if depthwise else (7, CHANNELS)
    for number in range(2):
        weights = rng.standard_normal((CHANNELS, per, window, window)) / window / np.sqrt(per)
        filters = graph.add_const(f"w{number}", narrow(weights, dtype), Format.NCHW, dtype)
        bias = graph.add_const(f"b{number}", narrow(rng.standard_normal(CHANNELS), dtype), Format.ND, dtype)
        attrs = {"strides": (1, 1, 1, 1), "pads": (window // 2,) * 4, "groups": CHANNELS // per}
        result = graph.add_node("Conv2D", [result, filters, bias], attrs, f"conv{number}").output
        result = graph.add_node("Relu", [result], {}, f"relu{number}").output
    graph.set_outputs([result], ["y"])
    return graph


def picture(dtype: type = np.float16, special: float | None = None, batch: int = 1) -> dict[str, np.ndarray]:
    x = np.random.default_rng(3).standard_normal((batch, CHANNELS, SIZE, SIZE)).astype(dtype)
    if special is not None:
        x[0, 5, 9, 10] = special
    return {"x": x}


def algorithms(session: InferenceSession) -> list[str]:
    """First kernel families of the convolutions' host plans."""
    tasks = enumerate(session.program.tasks)
    places = [position for position, task in tasks if task.kernel.op_type == "Conv2D"]
    return [session.loaded.plan.kernels_of(position)[0].split(":")[0] for position in places]


@pytest.mark.parametrize("special", [None, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("depthwise", [False, True])
def test_results_are_those_of_direct_sums(depthwise, special):
    graph, feed = large_windows(depthwise), picture(special=special)
    fast, plain = (
        InferenceSession(graph, SessionOptions(threads=2, numerics=numerics)) for numerics in ("fast", "exact")
    )
    assert algorithms(fast) == ["fourier"] * 2 and algorithms(plain) == ["conv"] * 2
    ours, wanted = (session.run(None, feed)[0].astype(np.float64) for session in (fast, plain))
    assert np.array_equal(np.isnan(ours), np.isnan(wanted)) and np.array_equal(np.isinf(ours), np.isinf(wanted))
    finite = np.isfinite(wanted)
    assert np.linalg.norm(ours[finite] - wanted[finite]) <= 3e-4 * np.linalg.norm(wanted[finite])


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize(
    ("dtype", "kind", "limit"), [(DType.FLOAT, np.float32, 1e-6), (DType.BF16, ml_dtypes.bfloat16, 3e-3)]
)
def test_other_types_keep_their_precision(depthwise, dtype, kind, limit):
    graph, feed = large_windows(depthwise, dtype, 2), picture(kind, batch=2)
    sessions = [
        InferenceSession(graph, SessionOptions(threads=1, precision="origin", numerics=numerics))
        for numerics in ("fast", "exact")
    ]
    assert algorithms(sessions[0]) == ["fourier"] * 2
    ours, wanted = (np.asarray(session.run(None, feed)[0]).astype(np.float64) for session in sessions)
    assert not np.array_equal(ours, wanted)
    assert np.linalg.norm(ours - wanted) <= limit * np.linalg.norm(wanted)


@pytest.mark.parametrize("depthwise", [False, True])
def test_chips_that_saturate(depthwise):
    feed = {"x": np.clip(60000 * picture(np.float32)["x"], -65000, 65000).astype(np.float16)}
    ours, wanted = (
        InferenceSession(large_windows(depthwise), SessionOptions(soc="Ascend310P3", threads=1, numerics=numerics)).run(
            None, feed
        )[0]
        for numerics in ("fast", "exact")
    )
    assert np.isfinite(ours).all() and wanted.max() == 65504
    difference = ours.astype(np.float64) - wanted
    assert np.linalg.norm(difference) <= 3e-4 * np.linalg.norm(wanted.astype(np.float64))


def test_threads_change_no_bit():
    results = [
        InferenceSession(large_windows(False), SessionOptions(threads=threads, numerics="fast")).run(None, picture())[0]
        for threads in (1, 2)
    ]
    assert np.array_equal(*results)


def test_explanations_name_the_transforms_and_their_tiles():
    explainer = Explainer(large_windows(False), SessionOptions(threads=1, numerics="fast"))
    task = next(task for task in explainer.session.program.tasks if task.kernel.op_type == "Conv2D")
    facts = next(facts for facts in explainer.node(task.name).tasks if facts.task == task.id)
    edge = best_edge(Conv2D(1, CHANNELS, SIZE, SIZE, CHANNELS, (7, 7), pads=(3, 3, 3, 3)))[0]
    assert facts.algorithm == "direct" and facts.host.startswith(f"fft_{edge}")
    assert f"kernel fourier:input:f16:{edge}, spectra:products, fourier:output:f16:{edge}" in facts.host


def test_command_line_allows_and_names_them(tmp_path):
    weights = np.ones((CHANNELS, CHANNELS, 9, 9), np.float32)
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], "large", pads=[4] * 4)
    values = [onnx.helper.make_tensor_value_info(name, 1, [1, CHANNELS, SIZE, SIZE]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:], [onnx.numpy_helper.from_array(weights, "w")])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    for more, found in (((), "direct"), (("--numerics", "fast"), "fft_")):
        done = CliRunner().invoke(commands, ["explain", str(tmp_path / "m.onnx"), "large", *more])
        assert done.exit_code == 0 and f"  host       {found}" in done.output, done.output


def test_checked_memory_finds_nothing():
    options = {"threads": 1, "numerics": "fast"}
    checked, plain = (
        InferenceSession(large_windows(True), SessionOptions(**options, checked=on)).run(None, picture())[0]
        for on in (True, False)
    )
    assert np.array_equal(checked, plain)


def test_choice_waits_for_fast_numerics_and_large_windows():
    large = Conv2D(1, 64, 56, 56, 64, (7, 7), pads=(3, 3, 3, 3))
    assert host_algorithm(large, FAST).startswith("fft_")
    assert host_algorithm(large, PlanOptions()) == "direct"
    assert host_algorithm(large, PlanOptions(numerics="fast", deterministic=True)) == "direct"
    for other in (
        Conv2D(1, 64, 56, 56, 64, (7, 7), strides=(2, 2)),
        Conv2D(1, 64, 56, 56, 64, (7, 7), dilations=(2, 2)),
        Conv2D(1, 64, 56, 56, 64, (7, 7), groups=2),
        Conv2D(1, 64, 56, 56, 64, (4, 4)),
        Conv2D(1, 64, 56, 56, 64, (1, 7)),
    ):
        assert best_edge(other)[0] == 0 and host_algorithm(other, FAST) == "direct"


def test_choice_keeps_direct_sums_where_little_is_saved():
    picture_layer = Conv2D(1, 3, 112, 112, 64, (7, 7), pads=(3, 3, 3, 3))
    one_pixel = Conv2D(1, 64, 7, 7, 64, (7, 7))
    next_network = Conv2D(1, 96, 56, 56, 96, (7, 7), pads=(3, 3, 3, 3), groups=96)
    for shape in (picture_layer, one_pixel, next_network):
        assert host_algorithm(shape, FAST) == "direct"
    huge = Conv2D(1, 64, 200, 200, 64, (99, 99), groups=64)
    deep = Conv2D(1, 1024, 28, 28, 1024, (7, 7), pads=(3, 3, 3, 3))  # spectra of half a gigabyte
    assert best_edge(huge)[0] == best_edge(deep)[0] == 0
