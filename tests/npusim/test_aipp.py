"""AIPP from end to end: configuration to values, offline models, gears, and feeds that are no pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from metadef.aipp import AippOp
from metadef.cost.run import run_kernel
from metadef.error import UsageError
from metadef.model import load_om, save_om
from metadef.target import load_target
from npusim import InferenceSession, SessionOptions
from npusim.align_rows import row_costs
from npusim.bisect import bisect_model
from npusim.cli import commands
from npusim.compare import compare_model
from npusim.explain import Explainer
from npusim.reference import picture_attrs, run_onnxruntime

CUT = {
    "crop": True, "src_image_size_h": 40, "src_image_size_w": 44, "load_start_pos_h": 5, "load_start_pos_w": 7,
    "crop_size_h": 30, "crop_size_w": 32,
}  # fmt: skip
STATISTICS = {"min_chn_0": 123.675, "min_chn_1": 116.28, "mean_chn_2": 103, "var_reci_chn_0": 0.0171}


JOINED = "TbeAippConvReluMaxpoolingFusion"


def network(batch: int | str = 2) -> onnx.ModelProto:
    """Convolution, activation and pooling over pictures of 32 by 32."""
    rng = np.random.default_rng(3)
    filters = numpy_helper.from_array((rng.standard_normal((20, 3, 3, 3)) / 5).astype(np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("GlobalAveragePool", ["b"], ["y"], "pool"),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [batch, 3, 32, 32]), ("y", None))
    )
    graph = helper.make_graph(nodes, "net", [x], [y], [filters])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def block(**given: Any) -> AippOp:
    padding = {"padding": True, "top_padding_size": 2, "padding_value": 0.5}
    return AippOp.of(**{"aipp_mode": "static", "input_format": "RGB888_U8", **CUT, **STATISTICS, **padding, **given})


def pictures(rng: np.random.Generator, batch: int = 2) -> np.ndarray:
    return rng.integers(0, 256, (batch, 40, 44, 3)).astype(np.uint8)


def normalised(images: np.ndarray) -> np.ndarray:
    """What a caller without AIPP would feed, rounded as the chip rounds."""
    cut = np.moveaxis(images[:, 5:35, 7:39].astype(np.float64), 3, 1)
    least = np.float16([123.675, 116.28, 103]).astype(float).reshape(3, 1, 1)
    factor = np.float16([0.0171, 1, 1]).astype(float).reshape(3, 1, 1)
    bordered = np.full((len(images), 3, 32, 32), 0.5)
    bordered[:, :, 2:] = (cut - least) * factor
    return bordered.astype(np.float16).astype(np.float32)


def session(*blocks: AippOp, batch: int | str = 2, **options: Any) -> InferenceSession:
    return InferenceSession(network(batch), SessionOptions(threads=1, aipp=blocks, **options))


@pytest.mark.parametrize("soc", ["Ascend310P3", "Ascend910A", "Ascend910B3"])
def test_values_are_those_of_normalised_feeds(rng, soc):
    images = pictures(rng)
    (with_aipp,) = session(block(), soc=soc).run(None, {"x": images})
    (without,) = session(soc=soc).run(None, {"x": normalised(images)})
    np.testing.assert_array_equal(with_aipp, without)


@pytest.mark.parametrize("soc", ["Ascend310P3", "Ascend910B3"])
@pytest.mark.parametrize("small", [False, True])
def test_aipp_in_the_convolution_gives_the_same_values_in_less_time(rng, soc, small):
    off = frozenset() if small else frozenset({"SmallChannelPass"})
    joined = session(block(), soc=soc, disabled_passes=off)
    apart = session(block(), soc=soc, disabled_passes=off | {JOINED})
    assert joined.program.tasks[0].kernel.op_type == "AippConv2D"
    assert [task.kernel.op_type for task in apart.program.tasks][:2] == ["Aipp", "Conv2D"]
    images = pictures(rng)
    np.testing.assert_array_equal(joined.run(None, {"x": images})[0], apart.run(None, {"x": images})[0])
    assert joined.profile.cycles < apart.profile.cycles


def test_its_load_reads_the_bytes_under_the_cut():
    cut, made = 2 * 30 * 32 * 3, 2 * 32 * 32 * 32
    apart, joined = (
        session(block(), soc="Ascend310P3", disabled_passes=frozenset(["SmallChannelPass", *off]))
        for off in ((JOINED,), ())
    )
    assert apart.profile.tasks[0].bytes["GM->UB"] == cut
    own, plain = joined.program.tasks[0].kernel, apart.program.tasks[1].kernel
    plain = replace(plain, tile=own.tile, block_dim=own.block_dim)
    loads = [run_kernel(kernel, load_target("Ascend310P3")).moved["GM->L1"] for kernel in (plain, own)]
    # Rows under two tiles are read twice; blocks of 16 channels of two bytes are more than ten times three bytes.
    assert made - cut <= loads[0] - loads[1] < 1.5 * (made - cut)


@pytest.mark.parametrize("off", [(), (JOINED,)])
def test_memory_gives_the_bytes_under_the_cut_only(off):
    first = session(block(), disabled_passes=frozenset(off)).profile.tasks[0]
    assert first.hbm_read_bytes == 2 * 30 * 32 * 3


def test_the_input_is_described_as_pictures():
    (x,) = session(block()).get_inputs()
    assert (x.shape, x.type) == ([2, 40, 44, 3], "tensor(uint8)")


def test_checked_runs_layers_and_explanations(rng):
    made = session(block(), checked=True)
    assert not made.loaded.fallbacks
    made.run(None, {"x": pictures(rng)})
    assert made.profile.cycles > 0
    assert made.compile_report.record("InsertAipp").effect_times == 1


@pytest.mark.parametrize(("precision", "limit"), [("fp16", 1e-3), ("origin", 1e-6)])
def test_onnxruntime_is_fed_with_what_aipp_makes(rng, precision, limit):
    pytest.importorskip("onnxruntime")
    options = SessionOptions(threads=1, aipp=(block(),), precision=precision)
    report = compare_model(network(), {"x": pictures(rng)}, options)
    assert report.within(limit, 0.99999) and report.outputs[0].rel_l2 < limit and report.pictures == ("x",)
    # The chip rounds what AIPP makes to its type, the reference does not: so the whole error shows.
    assert (report.outputs[0].rel_l2 > 1e-5) == (precision == "fp16")


@pytest.mark.parametrize("off", [frozenset(), frozenset({JOINED})])
def test_onnxruntime_gets_what_a_caller_without_aipp_feeds(rng, off):
    pytest.importorskip("onnxruntime")
    images, graph = pictures(rng), session(block(), disabled_passes=off).model.graph
    by_reference = run_onnxruntime(network(), {"x": images}, picture_attrs(graph))["y"]
    by_hand = run_onnxruntime(network(), {"x": normalised(images)})["y"]
    np.testing.assert_allclose(by_reference, by_hand, rtol=2e-3)
    assert not np.array_equal(by_reference, by_hand)  # by_hand is rounded as the chip rounds


def test_passes_are_bisected_over_pictures(rng):
    options = SessionOptions(aipp=(block(),)).compile_options()
    found = bisect_model(network(), {"x": pictures(rng)}, options, limit=1e-2)
    assert not found.culprit and found.after < 1e-3
    assert bisect_model(network(), {"x": pictures(rng)}, options, limit=1e-6).culprit == "RefineRunningPrecision"


@pytest.mark.parametrize("off", [frozenset(), frozenset({JOINED})])
def test_an_input_of_pictures_stands_for_its_aipp(off):
    explainer = Explainer(network(), SessionOptions(threads=1, aipp=(block(),), disabled_passes=off))
    by_input, by_name = explainer.node("x"), explainer.node("aipp_x")
    assert by_input == by_name and by_input.node == "aipp_x"
    assert [facts.op_type for facts in by_input.tasks] == ["Aipp" if off else "AippConv2D"]
    assert "takes pictures RGB888_U8" in by_input.notes[0]


def test_rows_of_pictures_are_not_lengthened():
    made = session(block(), disabled_passes=frozenset({JOINED}))
    assert "Aipp" not in {cost.op_type for cost in row_costs(made.program, made.target)}


def test_round_trip_through_an_offline_model(rng, tmp_path):
    made, images = session(block()), pictures(rng)
    path = save_om(made.model, tmp_path / "x.om")
    again = InferenceSession(path)
    np.testing.assert_array_equal(again.run(None, {"x": images})[0], made.run(None, {"x": images})[0])
    assert again.get_inputs() == made.get_inputs() and again.profile.cycles == made.profile.cycles
    before, after = (item.nodes[0] for item in (made.model.graph, load_om(path).graph))
    assert {**before.attrs} == {**after.attrs}
    with pytest.raises(UsageError, match="this input takes pictures: AIPP was compiled in"):
        again.run(None, {"x": normalised(images)})
    with pytest.raises(UsageError, match="'aipp' has no meaning for a compiled model"):
        InferenceSession(path, SessionOptions(aipp=(block(),)))


@pytest.mark.parametrize("wrong", [np.zeros((2, 3, 32, 32), np.float32), np.zeros((2, 3, 40, 44), np.uint8)])
def test_feeds_that_are_no_pictures(wrong):
    with pytest.raises(UsageError) as caught:
        session(block()).run(None, {"x": wrong})
    (problem,) = caught.value.problems
    assert problem.expected == "uint8[2, 40, 44, 3]" and "AIPP" in problem.message and "not normalised" in problem.hint


def test_batches_by_gear(rng):
    made = session(block(), batch="n", dynamic_batch_size="1,4")
    images = pictures(rng, 3)
    (got,) = made.run(None, {"x": images})
    assert made.gear_choice is not None and made.gear_choice.key == "4"
    (without,) = session(batch=3).run(None, {"x": normalised(images)})
    np.testing.assert_array_equal(got, without)
    with pytest.raises(UsageError, match="this input takes pictures"):
        made.run(None, {"x": normalised(images)})


def test_gears_of_sizes_and_static_aipp_exclude_each_other():
    with pytest.raises(UsageError, match=r"E10047.*AIPP and dynamic_image_size exclude each other"):
        session(block(), dynamic_image_size="32,32;64,64")


def test_elastic_shapes_do_not_go_with_it():
    with pytest.raises(UsageError, match="elastic does not go with AIPP"):
        session(block(), batch="n", dynamic_batch_size="1,4", elastic=True)


CONFIG = """aipp_op {
  aipp_mode: static
  input_format: RGB888_U8
  csc_switch: false
}
"""


def run_cli(*arguments: str) -> Any:
    return CliRunner().invoke(commands, list(arguments))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    model, config = tmp_path / "net.onnx", tmp_path / "aipp.cfg"
    onnx.save(network(), str(model))
    config.write_text(CONFIG)
    return str(model), str(config)


@pytest.mark.parametrize("flag", ["--insert-op-conf", "--insert_op_conf"])
def test_commands_take_the_file(files, tmp_path, flag):
    model, config = files
    np.save(tmp_path / "x.npy", np.zeros((2, 32, 32, 3), np.uint8))
    ran = run_cli("run", model, flag, config, "--input", f"x={tmp_path / 'x.npy'}", "--json")
    assert ran.exit_code == 0 and json.loads(ran.stdout)["outputs"][0]["shape"] == [2, 20, 1, 1]
    om = tmp_path / "x.om"
    assert run_cli("compile", model, flag, config, "-o", str(om)).exit_code == 0
    assert run_cli("run", str(om), "--input", f"x={tmp_path / 'x.npy'}").exit_code == 0
    told = run_cli("explain", model, "aipp_x", flag, config)
    assert told.exit_code == 0 and "RGB888_U8" in told.stdout
    golden = str(tmp_path / "golden.json")
    for words in (
        ("plan", model), ("bisect", model), ("align", model, "--rows"), ("diff", model, model), ("compare", model),
        ("check", model, "--golden", golden, "--update"), ("check", model, "--golden", golden),
    ):  # fmt: skip
        assert run_cli(*words, flag, config, "--json").exit_code == 0, words


def test_a_plan_that_does_not_fit_knows_smaller_batches_of_pictures(files):
    model, config = files
    error = run_cli("plan", model, "--insert-op-conf", config, "--capacity", "20000").exception
    assert "a batch of 1 saves" in str(error)


def test_what_aipp_changes_is_a_difference(files):
    model, config = files
    found = json.loads(run_cli("diff", model, "--b-insert-op-conf", config, "--json").stdout)
    assert "AippConv2D+Relu" in {pair["op_b"] for pair in found["tasks"]} and not found["same"]


def test_compare_says_what_onnxruntime_was_fed_with(files):
    pytest.importorskip("onnxruntime")
    model, config = files
    told = run_cli("compare", model, "--insert-op-conf", config)
    assert "'x' was fed to it as AIPP's arithmetic" in told.stdout
    assert json.loads(run_cli("compare", model, "--insert-op-conf", config, "--json").stdout)["pictures"] == ["x"]


def test_commands_tell_what_is_wrong_with_it(files, tmp_path):
    model, config = files
    Path(config).write_text(CONFIG.replace("csc_switch", "csc_swich"))
    with pytest.raises(UsageError, match=r"aipp.cfg:4.*AIPP has no key 'csc_swich'\n.*\n.*did you mean 'csc_switch'"):
        raise run_cli("run", model, "--insert-op-conf", config).exception
    with pytest.raises(UsageError, match="E10410"):
        raise run_cli("explain", model, "--insert-op-conf", str(tmp_path / "none")).exception
    with pytest.raises(UsageError, match="--insert-op-conf would have to be known to the compiler"):
        raise run_cli("run", "m.om", "--insert-op-conf", config).exception
