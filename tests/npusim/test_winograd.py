"""Winograd convolutions end to end: values by the named algorithm, reports, files, and what the host may do instead."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from metadef.dtype import DType
from metadef.error import UsageError
from metadef.format import Format
from metadef.graph import Graph
from metadef.model import save_om
from metadef.winograd import RELATIVE_ERROR
from npusim import InferenceSession, SessionOptions
from npusim.advice import _fewer_products
from npusim.cli import commands
from npusim.compare import CompareReport, compare_layers
from npusim.data import digits_model
from npusim.explain import Explainer
from npusim.kernels.plans.algorithm import host_algorithm
from npusim.kernels.plans.conv import shape_of
from npusim.kernels.plans.site import PlanOptions, Site
from npusim.report.table import task_rows
from npusim.timing import task_timeline
from tests.metadef.conftest import residual_network

LIMIT = {"direct": 1e-3, **RELATIVE_ERROR}


def feeds() -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(1).standard_normal((2, 3, 9, 9)).astype(np.float32)}


def opened(**options) -> InferenceSession:
    return InferenceSession(residual_network(), SessionOptions(threads=2, **options))


@pytest.mark.parametrize("soc", ["Ascend910B3", "Ascend310P3"])
@pytest.mark.parametrize("conv", ["winograd_f2", "winograd_f4"])
def test_every_task_stays_within_its_bound(soc, conv):
    session, exact = opened(soc=soc, conv=conv), opened(soc=soc)
    assert not session.loaded.fallbacks
    errors = compare_layers(session, feeds(), {})
    named = [item for item in errors if item.algorithm == conv]
    assert len(named) == 3 and all(item.rel_l2 <= LIMIT[item.algorithm] for item in errors)
    ours, wanted = session.run(None, feeds())[0], exact.run(None, feeds())[0]
    assert not np.array_equal(ours, wanted)
    assert np.linalg.norm(ours - wanted) <= 10 * LIMIT[conv] * np.linalg.norm(wanted)


def test_origin_precision_is_fp32_throughout():
    ours, wanted = (opened(precision="origin", conv=conv).run(None, feeds())[0] for conv in ("winograd_f4", "direct"))
    assert np.linalg.norm(ours - wanted) <= 1e-5 * np.linalg.norm(wanted)


def test_threads_and_model_file_give_the_same_bits(tmp_path):
    session = opened(conv="winograd_f2")
    wanted = session.run(None, feeds())[0]
    again = InferenceSession(str(save_om(session.model, tmp_path / "small.om")), SessionOptions(threads=1))
    assert np.array_equal(again.run(None, feeds())[0], wanted)
    with pytest.raises(UsageError, match="conv"):
        InferenceSession(str(tmp_path / "small.om"), SessionOptions(conv="auto"))


def test_checked_memory_finds_nothing():
    session = opened(conv="winograd_f4", checked=True)
    assert np.array_equal(session.run(None, feeds())[0], opened(conv="winograd_f4").run(None, feeds())[0])


def test_profile_names_the_algorithm_and_accounts_for_it():
    session, direct = opened(conv="winograd_f2"), opened()
    rows = [row for row in task_rows(session.profile.data) if row["op_type"] == "Conv2D"]
    assert {row["algorithm"] for row in rows} == {"winograd_f2"}
    assert all(sum(row["causes"].values()) == row["cycles"] and row["pipes"]["VECTOR"] for row in rows)
    assert session.profile.cycles != direct.profile.cycles
    task = next(task for task in session.program.tasks if task.kernel.algorithm == "winograd_f2")
    timeline = task_timeline(task, session.target)
    assert timeline.left_out == 0 and {item.pipe for item in timeline.intervals} >= {"CUBE", "VECTOR", "FIXPIPE"}
    assert max(item.end for item in timeline.intervals) <= timeline.cycles


def test_larger_tiles_have_five_times_the_limit():
    errors = compare_layers(opened(conv="winograd_f4"), feeds(), {})
    report = CompareReport("small", "Ascend910B3", "fp16", (), errors)
    worst = max(item.rel_l2 for item in errors)
    assert worst > 1e-3 and report.within(1e-3, 0.0) and not report.within(worst / 6, 0.0)


def test_command_line(tmp_path):
    path = tmp_path / "digits.onnx"
    path.write_bytes(digits_model().read_bytes())
    command = ["compile", str(path), "--dim", "batch=1", "--conv", "winograd", "-o", str(tmp_path / "d.om"), "--json"]
    done = CliRunner().invoke(commands, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["tasks"] > 0
    refused = CliRunner().invoke(commands, ["plan", str(path), "--dim", "batch=1", "--conv", "fft"])
    assert refused.exit_code == 2


# -- direct tasks that this computer carries out by Winograd's algorithm


def single_convolution(channels: int = 64, size: int = 56) -> Graph:
    rng = np.random.default_rng(2)
    graph = Graph("single")
    x = graph.add_input("x", (1, channels, size, size), DType.FLOAT16, Format.NCHW)
    weights = (rng.standard_normal((channels, channels, 3, 3)) / 24).astype(np.float16)
    filters = graph.add_const("w", weights, Format.NCHW)
    attrs = {"strides": (1, 1, 1, 1), "pads": (1, 1, 1, 1)}
    graph.set_outputs([graph.add_node("Conv2D", [x, filters], attrs, "conv").output], ["y"])
    return graph


def picture(special: float | None) -> dict[str, np.ndarray]:
    x = np.random.default_rng(3).standard_normal((1, 64, 56, 56)).astype(np.float16)
    if special is not None:
        x[0, 5, 9, 10] = special
    return {"x": x}


def test_host_choice_is_in_force_for_the_sample():
    session = InferenceSession(single_convolution(), SessionOptions(threads=1))
    task = next(task for task in session.program.tasks if task.kernel.op_type == "Conv2D")
    shape = shape_of(Site(task, session.loaded.device, PlanOptions()))
    assert host_algorithm(shape, PlanOptions()) == "winograd_f2"
    assert host_algorithm(shape, PlanOptions(deterministic=True)) == "direct"
    assert task.kernel.algorithm == "direct"


@pytest.mark.parametrize("special", [None, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_direct_tasks_keep_direct_results(special, numerics):
    fast = InferenceSession(single_convolution(), SessionOptions(threads=2, numerics=numerics))
    plain = InferenceSession(single_convolution(), SessionOptions(threads=2, deterministic=True))
    ours, wanted = (session.run(None, picture(special))[0].astype(np.float64) for session in (fast, plain))
    assert np.array_equal(np.isnan(ours), np.isnan(wanted)) and np.array_equal(np.isinf(ours), np.isinf(wanted))
    finite = np.isfinite(wanted)
    assert np.linalg.norm(ours[finite] - wanted[finite]) <= 1e-4 * np.linalg.norm(wanted[finite])


def test_deterministic_refuses_other_algorithms():
    with pytest.raises(UsageError, match="deterministic"):
        opened(conv="winograd", deterministic=True)


@pytest.mark.parametrize(("conv", "host"), [("winograd_f4", "winograd_f4"), ("direct", "direct")])
def test_explanations_name_the_algorithm_of_chip_and_host(conv, host):
    explainer = Explainer(residual_network(), SessionOptions(threads=1, conv=conv, deterministic=conv == "direct"))
    named = [
        facts
        for task in explainer.session.program.tasks
        for facts in explainer.node(task.name).tasks
        if facts.task == task.id and facts.algorithm == conv and facts.op_type == "Conv2D"
    ]
    assert named and all(facts.host.startswith(f"{host} (") and "kernel" in facts.host for facts in named)


def test_winograd_is_advised_only_where_it_is_open():
    for conv, expected in (("winograd_f2", False), ("direct", True)):
        session = opened(conv=conv)
        tasks = [task for task in session.program.tasks if task.kernel.op_type == "Conv2D"]
        texts = [_fewer_products(task, session.target) for task in tasks]
        assert any("Winograd" in text for text in texts) is expected
