"""Streamed weights: loaded into the arena just before their use, with the values of resident ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from metadef.compiler import CompileOptions, compile_model
from metadef.model import load_om, save_om
from metadef.passes import stream_split
from metadef.program import Region
from npusim import InferenceSession, SessionOptions
from npusim.feeds import generate_feeds
from npusim.timing.tasks import HOST_PATH

LEAST = 4096


def network(rng: np.random.Generator, wide: int = 96) -> onnx.ModelProto:
    """Convolutions, a product with a bias and an activation, a product whose weight is stored transposed."""
    weights = {
        "k1": rng.standard_normal((32, 3, 3, 3)),
        "k2": rng.standard_normal((48, 32, 3, 3)) * 0.1,
        "w": rng.standard_normal((48 * 64, wide)) * 0.05,
        "b": rng.standard_normal(wide),
        "v": rng.standard_normal((40, wide)) * 0.1,
    }
    nodes = [
        helper.make_node("Conv", ["x", "k1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["c"]),
        helper.make_node("Conv", ["c", "k2"], ["d"], pads=[1, 1, 1, 1]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("Gemm", ["e", "w", "b"], ["f"]),
        helper.make_node("Relu", ["f"], ["g"]),
        helper.make_node("Gemm", ["g", "v"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", 1, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", 1, [1, 40])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("precision", ["fp16", "origin"])
@pytest.mark.parametrize("checked", [False, True], ids=["", "checked"])
def test_values_are_bit_equal_to_resident_weights(precision: str, checked: bool, rng: np.random.Generator) -> None:
    model = network(rng)
    feeds = {"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)}
    results = []
    for least in (None, LEAST):
        session = InferenceSession(model, SessionOptions(precision=precision, stream_weights=least, checked=checked))
        results.append([session.run(None, feeds)[0] for _ in range(2)])
        loads = [task for task in session.program.tasks if task.is_load]
        assert bool(loads) == (least is not None) and not session.loaded.fallbacks
    assert len({value.tobytes() for values in results for value in values}) == 1


def test_huge_products_are_split_without_a_change_of_values(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(rng, wide=200)
    feeds = {"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)}
    whole = InferenceSession(model, SessionOptions(stream_weights=LEAST))
    monkeypatch.setattr(stream_split, "PIECE_BYTES", 256 << 10)
    split = InferenceSession(model, SessionOptions(stream_weights=LEAST))
    assert len(split.program.tasks) > len(whole.program.tasks)
    assert split.program.total_size < whole.program.total_size
    assert split.run(None, feeds)[0].tobytes() == whole.run(None, feeds)[0].tobytes()


def test_loads_are_planned_timed_and_counted(rng: np.random.Generator) -> None:
    model = network(rng)
    plain, streamed = (InferenceSession(model, SessionOptions(stream_weights=least)) for least in (None, LEAST))
    program = streamed.program
    loads = [task for task in program.tasks if task.is_load]
    sizes = [task.outputs[0].payload_bytes for task in loads]
    assert min(sizes) >= LEAST and program.streamed_bytes >= sum(sizes)
    assert program.weights_bytes - program.streamed_bytes < plain.program.weights_bytes / 4
    assert all(task.inputs[0].region is Region.WEIGHTS and task.outputs[0].region is Region.ARENA for task in loads)
    assert streamed.profile.traffic[HOST_PATH] == sum(sizes) and HOST_PATH not in plain.profile.traffic
    rows = {row.task: row for row in streamed.profile.tasks}
    rate = streamed.target.value("host.link_gb_s") * 1e3
    for task, size in zip(loads, sizes, strict=True):
        row = rows[task.id]
        assert row.bound_by == "memory: host link" and sum(row.causes.values()) == row.cycles
        assert row.causes["memory"] == streamed.target.cycles(size / rate)
        (reader,) = [
            other for other in program.tasks if task.outputs[0].tensor in {i.tensor for i in other.inputs if i}
        ]
        assert rows[reader.id].start_cycles >= row.start_cycles + row.cycles
        assert row.origins == reader.origins != () and row.layer == reader.layer


def test_a_model_file_streams_from_its_map(tmp_path: Path, rng: np.random.Generator) -> None:
    made = compile_model(network(rng), CompileOptions(stream_weights=LEAST)).model
    loaded = load_om(save_om(made, tmp_path / "net.om"))
    assert loaded.programs == made.programs and isinstance(loaded.weights, np.memmap)
    one, other = (InferenceSession(model) for model in (made, loaded))
    feeds = generate_feeds(one.get_inputs(), 0)
    assert one.run(None, feeds)[0].tobytes() == other.run(None, feeds)[0].tobytes()
    assert [node.name for node in loaded.graph.nodes] == [node.name for node in made.graph.nodes]


def test_gears_share_what_they_stream(rng: np.random.Generator) -> None:
    model = network(rng)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    options = {"dynamic_batch_size": "1,2", "stream_weights": LEAST}
    session = InferenceSession(model, SessionOptions(**options))
    single = InferenceSession(model, SessionOptions(stream_weights=LEAST))
    x = rng.standard_normal((1, 3, 8, 8)).astype(np.float32)
    assert session.run(None, {"x": x})[0].tobytes() == single.run(None, {"x": x})[0].tobytes()
    assert session.program.weights_bytes < 1.2 * single.program.weights_bytes


RESIDENT = """
import json, re, sys
from npusim import InferenceSession, SessionOptions
from npusim.feeds import generate_feeds

def resident():
    return int(re.search(r"^Rss:\\s+(\\d+) kB", open("/proc/self/smaps_rollup").read(), re.MULTILINE)[1]) * 1024

InferenceSession(sys.argv[2]).run(None, {"x": generate_feeds(InferenceSession(sys.argv[2]).get_inputs(), 0)["x"]})
start = resident()
session = InferenceSession(sys.argv[1], SessionOptions(threads=1))
session.run(None, generate_feeds(session.get_inputs(), 0))
print(json.dumps(resident() - start))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="resident memory is read from /proc")
def test_a_run_holds_less_memory(tmp_path: Path, rng: np.random.Generator) -> None:
    held = []
    tiny = save_om(compile_model(network(rng, wide=16), CompileOptions()).model, tmp_path / "tiny.om")
    for least in (None, 1 << 20):
        made = compile_model(network(rng, wide=16384), CompileOptions(stream_weights=least)).model
        path = save_om(made, tmp_path / "net.om")
        command = [sys.executable, "-c", RESIDENT, str(path), str(tiny)]
        held.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    assert held[0] > 90 << 20, "100 MB of weights are held in packed form"
    assert held[1] < held[0] * 0.75
