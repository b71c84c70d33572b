"""The offline model file: round trips, what viewers see in it, damage, vendor files, loading without the compiler."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.error import ModelError
from metadef.ge_proto import message_class
from metadef.graph import Graph
from metadef.hazard import check_program
from metadef.kernel import Engine, FusedOp
from metadef.model import Model, load_om, save_om
from metadef.om import CREATOR, OmHeader, PartitionType, open_om, write_om
from metadef.om_graph import graph_to_model_def, model_def_to_graph
from metadef.text import print_graph

REPO = Path(__file__).resolve().parents[2]
PARTS = (PartitionType.MODEL_DEF, PartitionType.WEIGHTS_DATA, PartitionType.TASK_INFO)


@pytest.fixture
def saved(small_compilation, tmp_path):
    return save_om(small_compilation().model, tmp_path / "small.om")


def rewritten(path, **changes: bytes | np.ndarray):
    """The same file with other partitions and right checksums."""
    file = open_om(path)
    parts = {kind: changes.get(kind.name, file.read(kind)) for kind in PARTS}
    return write_om(path, OmHeader("x", user_info=CREATOR, platform_version=CREATOR), parts)


@pytest.mark.parametrize("soc", ["Ascend910B3", "Ascend310P3"])
def test_round_trip(small_compilation, tmp_path, soc):
    compiled = small_compilation(soc)
    made = compiled.model
    attrs = {"note": "kept", "numbers": (1, 2.5)}
    noted = Model(made.name, made.soc, made.graph, made.weights, made.programs, attrs)
    model = load_om(save_om(noted, tmp_path / "m.om"))
    assert (model.name, model.soc) == ("small", soc)
    assert model.programs == compiled.model.programs
    assert model.attrs == attrs
    np.testing.assert_array_equal(model.weights, compiled.model.weights)
    assert print_graph(model.graph) == print_graph(compiled.graph)
    model.graph.verify()
    check_program(model.program, compiled.target)


def test_several_gears_share_the_weights(small_compilation, tmp_path):
    model = small_compilation().model
    geared = Model("g", model.soc, model.graph, model.weights, {"batch=2": model.program, "again": model.program})
    again = load_om(save_om(geared, tmp_path / "g.om"))
    assert list(again.programs) == ["batch=2", "again"]
    assert again.program == model.program


def test_weights_are_mapped_not_read(saved):
    weights = load_om(saved).weights
    assert isinstance(weights, np.memmap) and not weights.flags.writeable
    assert weights.ctypes.data % 64 == 0


def test_loads_without_the_compiler(saved):
    code = (
        "import sys; from metadef.model import load_om; m = load_om(sys.argv[1]); assert m.program.tasks;"
        "print(*sorted({'.'.join(name.split('.')[:2]) for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(saved)], capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert not loaded & {"onnx", "numba", "google", "matplotlib", "yaml"}
    rooms = {"cost", "frontend", "graph", "legalize", "memory", "op", "ops", "passes", "select"}
    assert not loaded & {f"metadef.{room}" for room in rooms}


def test_model_def_is_what_viewers_expect(saved, small_compilation):
    program = small_compilation().model.program
    message = message_class("ModelDef")()
    message.ParseFromString(open_om(saved).read(PartitionType.MODEL_DEF))
    graph = message.graph[0]
    made = set()
    for op in graph.op:
        assert all(port in made for port in op.input if port), f"{op.name} reads what comes later"
        made |= {f"{op.name}:{index}" for index in range(len(op.output_desc))}
        kinds = {value.WhichOneof("value") for value in op.attr.values()}
        assert kinds <= {"s", "i", "f", "b", "list", "t"}
    ops = {op.name: op for op in graph.op}
    assert graph.op[-1].type == "NetOutput" and ops["image"].type == "Data"
    attrs = message.attr
    assert attrs["soc_version"].s == b"Ascend910B3" and b"no kernels" in attrs["npusim_origin"].s
    assert attrs["memory_size"].i == program.arena_bytes + program.io_bytes
    assert attrs["weight_size"].i == program.weights_bytes
    assert [name.split(b":")[1:] for name in attrs["attr_model_out_nodes_name"].list.s] == [[b"0", b"scores"]]
    assert list(attrs["task_index_op_name"].list.s) == [task.name.encode() for task in program.tasks]


def test_operators_carry_storage_shapes_offsets_and_origins(saved, small_compilation):
    program = small_compilation().model.program
    message = message_class("ModelDef")()
    message.ParseFromString(open_om(saved).read(PartitionType.MODEL_DEF))
    tasks = {task.name: task for task in program.tasks}
    convs = [op for op in message.graph[0].op if op.type == "Conv2D"]
    assert len(convs) == 3
    for op in convs:
        task = tasks[op.name]
        assert list(op.output_i) == [item.address for item in task.outputs]
        assert op.attr["tvm_blockdim"].i == task.kernel.block_dim
        assert op.attr["_datadump_original_op_names"].list.s[0].startswith(b"onnx_")
        (result,) = op.output_desc
        assert (result.layout, list(result.shape.dim)) == ("NC1HWC0", [2, 2, 9, 9, 16])
        assert list(result.attr["origin_shape"].list.i) == [2, 20, 9, 9]
    weights = open_om(saved).map_weights()
    for op in message.graph[0].op:
        if op.type == "Const" and op.output_desc[0].layout == "FRACTAL_Z":
            value = op.attr["value"].t
            assert value.desc.weight_size == 2 * np.prod(value.desc.shape.dim)
            assert weights[value.desc.data_offset :][: value.desc.weight_size].any()


def test_graph_is_parsed_only_when_asked(saved):
    rewritten(saved, MODEL_DEF=b"\xff\xff no protobuf")
    model = load_om(saved)
    assert len(model.program.tasks) > 5
    with pytest.raises(ModelError, match="graph of the model file cannot be read"):
        _ = model.graph


def test_flipped_weight_is_found_unless_told_otherwise(saved):
    part = open_om(saved).find(PartitionType.WEIGHTS_DATA)
    data = bytearray(saved.read_bytes())
    data[part.offset + part.size // 2] ^= 1
    saved.write_bytes(data)
    with pytest.raises(ModelError, match="checksum of the weights differs"):
        load_om(saved)
    assert load_om(saved, verify_weights=False).program.tasks
    with pytest.raises(ModelError, match="checksum of the weights differs"):
        load_om(saved, beside=True).verified()


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        (b"{", "the task list is damaged"),
        (b"\xff\xfe", "the task list is damaged"),
        (b"[]", "the task list is damaged"),
        (b"{}", "the task list is damaged"),
        (b'{"programs": {}, "name": "x", "soc": "y", "attrs": {"map": []}}', "holds no program"),
        (b'{"programs": {"": {"format_version": 0}}, "name": "x", "soc": "y"}', "unknown version"),
    ],
)
def test_damaged_task_lists_are_refused(saved, tasks, text):
    rewritten(saved, TASK_INFO=tasks)
    with pytest.raises(ModelError, match=text):
        load_om(saved)


def test_weights_of_another_model_are_refused(saved):
    rewritten(saved, WEIGHTS_DATA=np.zeros(512, np.uint8))
    with pytest.raises(ModelError, match="weights do not fit the program"):
        load_om(saved)


def test_vendor_files_are_explained(need_data):
    with pytest.raises(ModelError, match="compiled by the vendor's ATC") as caught:
        load_om(need_data("ge_dumps/root_model.om"))
    assert "kernels cannot run here" in str(caught.value) and "npusim plan" in str(caught.value)


def test_encrypted_files_are_explained(tmp_path):
    path = write_om(tmp_path / "x.om", OmHeader("v", is_encrypted=True), {PartitionType.MODEL_DEF: b"?"})
    with pytest.raises(ModelError, match="is encrypted"):
        load_om(path)


def test_task_info_is_json_others_can_read(saved):
    data = json.loads(open_om(saved).read(PartitionType.TASK_INFO))
    assert data["creator"] == CREATOR and data["soc"] == "Ascend910B3"
    assert len(data["programs"][""]["kernels"]) <= len(data["programs"][""]["tasks"])


def test_graphs_of_all_kinds_come_back():
    graph = Graph("kinds")
    x = graph.add_input("x", (2, 8))
    gamma = graph.add_const("gamma", np.linspace(0.5, 2, 8, dtype=np.float32))
    norm = graph.add_node("LayerNorm", [x, gamma, None], name="norm", layer="head")
    cast = graph.add_node("Cast", [norm.output], {"dst_type": DType.FLOAT16}, "cast")
    attrs = {
        "words": ("a", "b"), "none": (), "mixed": (1, 2.5), "nested": ((1, 2), (3,)), "flag": True, "text": "json:x",
        "table": np.arange(6, dtype=np.int8).reshape(2, 3), "graph": b"\x00\xff", "number": -(2**40), "real": 0.25,
    }  # fmt: skip
    attrs = dict(sorted(attrs.items()))
    host = graph.add_foreign_node("com.example", "Odd", [cast.output, None], [x.desc, x.desc], attrs, "odd", opset=3)
    host.engine, host.engine_reason, host.control_inputs = Engine.HOST_CPU, "nobody else can", (norm,)
    last = graph.add_node("Add", [host.outputs[1], x], name="last")
    last.fused = (FusedOp("LeakyRelu", {"negative_slope": 0.125}), FusedOp("Add", operand=2))
    graph.set_input(last, 2, x)
    graph.set_outputs([last.output, host.outputs[0], last.output], ["one", "two", "three"])
    again = model_def_to_graph(graph_to_model_def(graph, None, {}), np.empty(0, np.uint8))
    again.verify()
    assert print_graph(again) == print_graph(graph)
    assert again.output_names == ["one", "two", "three"] and again.outputs[0] is again.outputs[2]
    odd, end = again.find("odd"), again.find("last")
    assert (odd.domain, odd.opset, odd.engine, odd.engine_reason) == (
        "com.example",
        3,
        Engine.HOST_CPU,
        "nobody else can",
    )
    assert odd.control_inputs == (again.find("norm"),) and end.fused == last.fused
    np.testing.assert_array_equal(odd.attrs.pop("table"), attrs.pop("table"))
    assert odd.attrs == attrs
    assert again.find("norm").attrs == norm.attrs and again.find("cast").attrs == cast.attrs
    np.testing.assert_array_equal(again.constants()[0].const, gamma.const)
