"""Models of GE in all their written forms, re-planned; figures of the real dumps; control flow, references, groups."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metadef.error import LabError, ModelError
from metadef.frontend.ge import GeSchedule, load_ge, model_def_from_json, recorded_plan, schedule_of_model
from metadef.ge_proto import message_class
from metadef.ge_values import set_attr
from metadef.memory import check_plan, plan_memory
from metadef.om import CREATOR, OmHeader, PartitionType, write_om
from metadef.plan_source import load_schedule
from metadef.schedule import TensorKind

Need = Callable[[str], Path]
DUMPS = {
    "ge_proto_00046_afterUBMatch.txt": (125, 4818432),
    "nms_tail_om.json": (13, 1441280),
    "pair_ge_onnx_00000000_graph_1_Build.pbtxt": (3, 0),
    "pair_ge_proto_00000000_Build.txt": (3, 0),
    "resnet50_ge_proto_00000062_Build.txt": (61, 3614208),
    "resnet50_int8_ge_proto_00015_OptimizeQuantGraph.txt": (302, 9895424),
    "root_model.om": (2, 0),
}


class Model:
    """A ModelDef under construction; sizes are numbers of float16 elements."""

    def __init__(self) -> None:
        self.message: Any = message_class("ModelDef")(name="net")
        self.graph("root")

    def graph(self, name: str) -> None:
        self.current = self.message.graph.add(name=name)

    def op(self, name: str, kind: str, inputs: list[str], *sizes: int, attrs: dict[str, Any] | None = None) -> Any:
        op = self.current.op.add(name=name, type=kind, id=len(self.current.op))
        op.input.extend(inputs)
        for size in sizes:
            desc = op.output_desc.add(dtype=2, layout="ND")
            desc.shape.dim.append(size)
        for key, value in (attrs or {}).items():
            set_attr(op.attr[key], value)
        return op

    def sink(self, inputs: list[str]) -> None:
        op = self.op(f"out_{self.current.name}", "NetOutput", inputs)
        for index in range(len(inputs)):
            set_attr(op.input_desc.add().attr["_parent_node_index"], index)

    def data(self, name: str, size: int, index: int) -> None:
        self.op(
            name,
            "Data",
            [],
            size,
            attrs={"_parent_node_index": index} if len(self.message.graph) > 1 else {"index": index},
        )

    def schedule(self) -> GeSchedule:
        return schedule_of_model(self.message)


def planned(found: GeSchedule):
    plan = plan_memory(found.schedule)
    check_plan(found.schedule, plan)
    return plan


@pytest.mark.parametrize("name", DUMPS)
def test_real_dumps_are_planned(name: str, need_data: Need) -> None:
    found = load_schedule(need_data(f"ge_dumps/{name}"))
    steps, total = DUMPS[name]
    plan = plan_memory(found.schedule)
    check_plan(found.schedule, plan)
    assert (found.kind, len(found.schedule.steps)) == ("ge", steps)
    assert plan.theory_min == plan.total_size == total and plan.optimal


def test_resnet_dump_beats_ges_own_plan(need_data: Need) -> None:
    found = load_ge(need_data("ge_dumps/resnet50_ge_proto_00000062_Build.txt"))
    plan, ges = planned(found), recorded_plan(found)
    assert ges is not None
    check_plan(found.schedule, ges)
    assert plan.total_size == 3_614_208 and plan.optimal
    assert ges.total_size == 4_221_440 and not ges.optimal
    assert plan.no_reuse == ges.no_reuse == 20_590_080
    assert ges.total_size + ges.io_bytes == 4_523_008


def test_nms_tail_from_shapes_alone(need_data: Need) -> None:
    path = need_data("ge_dumps/nms_tail_om.json")
    found = load_ge(path)
    ges = recorded_plan(found)
    assert ges is not None and ges.total_size == 1_441_280 and found.attrs["zero_copy_memory_size"] == 1_604_608
    check_plan(found.schedule, ges)
    fields = json.loads(path.read_text())
    for op in fields["graph"][0]["op"]:
        for key in ("input_i", "output_i", "workspace"):
            op.pop(key, None)
    bare = schedule_of_model(model_def_from_json(fields))
    assert recorded_plan(bare) is None
    plan = planned(bare)
    assert (plan.total_size, plan.io_bytes, plan.no_reuse, plan.optimal) == (1_441_280, 1_604_608, 1_608_192, True)


def test_both_dump_forms_of_one_build_agree(need_data: Need) -> None:
    text = load_ge(need_data("ge_dumps/pair_ge_proto_00000000_Build.txt"))
    dressed = load_ge(need_data("ge_dumps/pair_ge_onnx_00000000_graph_1_Build.pbtxt"))
    assert text.schedule.steps == dressed.schedule.steps and text.schedule.views == dressed.schedule.views
    assert text.schedule.tensors == dressed.schedule.tensors and text.offsets == dressed.offsets


def test_vendor_om_and_air_hold_the_same_graph(tmp_path: Path) -> None:
    model = Model()
    model.data("x", 1000, 0)
    model.op("a", "Relu", ["x:0"], 1000)
    model.op("b", "Relu", ["a:0"], 500)
    model.sink(["b:0"])
    data = model.message.SerializeToString()
    (tmp_path / "m.air").write_bytes(data)
    write_om(tmp_path / "m.om", OmHeader(name="vendor"), {PartitionType.MODEL_DEF: data})
    schedules = [load_schedule(tmp_path / name).schedule for name in ("m.air", "m.om")]
    assert schedules[0] == schedules[1] == model.schedule().schedule
    assert CREATOR not in (schedules[0].soc, "vendor")


def choice_model(kind: str, passes_on: bool = False) -> Model:
    model = Model()
    model.op("cond", "Data", [], 1, attrs={"index": 0})
    model.op("x", "Data", [], 1000, attrs={"index": 1})
    model.op("pre", "Relu", ["x:0"], 1000)
    node = model.op("choose", kind, ["cond:0", "pre:0"], 1000)
    node.subgraph_name.extend(["left", "right"])
    model.op("post", "Relu", ["choose:0"], 1000)
    model.sink(["post:0"])
    for name, size in (("left", 9000), ("right", 8000)):
        model.graph(name)
        model.data(f"{name}_in", 1000, 1)
        if passes_on and name == "right":
            model.sink([f"{name}_in:0"])
            continue
        model.op(f"{name}_big", "Tile", [f"{name}_in:0"], size)
        model.op(f"{name}_small", "Reduce", [f"{name}_big:0"], 1000)
        model.sink([f"{name}_small:0"])
    return model


@pytest.mark.parametrize("kind", ["If", "StatelessIf", "Case"])
def test_exclusive_branches_share_memory(kind: str) -> None:
    found = choice_model(kind).schedule()
    plan = planned(found)
    rows = {row.name: row for row in plan.rows}
    left, right = rows["left_big"], rows["right_big"]
    assert left.offset < right.offset + right.slot_bytes and right.offset < left.offset + left.slot_bytes
    # pre, then the result in its place, beside the larger branch: the smaller one costs nothing.
    assert plan.total_size == 18432 + 2048 and plan.optimal
    steps = {step.name: step.branch for step in found.schedule.steps}
    assert steps["left_big"] != steps["right_big"] and steps["post"] == ""
    writers = [step.name for step in found.schedule.steps if rows["choose"].tensor in step.writes]
    assert writers == ["left_small", "right_small"], "branches write the result themselves"


def test_a_branch_that_passes_its_input_on_copies_it() -> None:
    found = choice_model("If", passes_on=True).schedule()
    copies = [step for step in found.schedule.steps if step.name == "right/out_right"]
    assert len(copies) == 1 and copies[0].branch == "if0:else" and len(copies[0].writes) == 1
    planned(found)


def test_an_outer_value_lives_to_its_latest_reader_over_all_paths() -> None:
    model = choice_model("If")
    late = model.message.graph[2].op[2]
    late.input.append("right_in:0")
    found = model.schedule()
    rows = {row.name: row for row in planned(found).rows}
    steps = [step.name for step in found.schedule.steps]
    assert rows["pre"].last == steps.index("right_small")


def loop_model() -> Model:
    model = Model()
    model.data("x", 2000, 0)
    model.op("start", "Relu", ["x:0"], 2000)
    model.op("kept", "Relu", ["x:0"], 3000)
    node = model.op("loop", "While", ["start:0", "kept:0"], 2000, 3000)
    node.subgraph_name.extend(["test", "body"])
    model.op("post", "Add", ["loop:0", "loop:1"], 2000)
    model.sink(["post:0"])
    model.graph("test")
    model.data("t0", 2000, 0)
    model.op("less", "Less", ["t0:0"], 1)
    model.sink(["less:0"])
    model.graph("body")
    model.data("b0", 2000, 0)
    model.data("b1", 3000, 1)
    model.op("grow", "Tile", ["b0:0"], 9000)
    model.op("shrink", "Reduce", ["grow:0", "b1:0"], 2000)
    model.sink(["shrink:0", "b1:0"])
    return model


def test_what_a_loop_carries_lives_through_it() -> None:
    found = loop_model().schedule()
    plan = planned(found)
    steps = {step.name: step for step in found.schedule.steps}
    depths = [steps[name].loop_depth for name in ("loop:enter", "less", "loop:test", "grow", "loop:next", "post")]
    assert depths == [0, 1, 1, 1, 1, 0]
    rows = {row.name: row for row in plan.rows}
    for name in ("loop:0", "loop:1"):
        assert rows[name].first == steps["loop:enter"].id and rows[name].last == steps["post"].id
    # The body hands only its first value on; the second stays where it is.
    assert len(steps["loop:next"].writes) == 1
    assert rows["shrink"].last == steps["loop:next"].id


def test_a_counted_loop_keeps_its_counter_beside_what_it_carries() -> None:
    model = Model()
    model.data("x", 2000, 0)
    for number, name in enumerate(("start", "limit", "delta"), 1):
        model.data(name, 4, number)
    model.op("first", "Relu", ["x:0"], 2000)
    model.op("loop", "For", ["start:0", "limit:0", "delta:0", "first:0"], 2000).subgraph_name.append("body")
    model.op("post", "Relu", ["loop:0"], 2000)
    model.sink(["post:0"])
    model.graph("body")
    model.data("number", 4, 0)
    model.data("value", 2000, 1)
    model.op("grow", "Tile", ["value:0", "number:0"], 9000)
    model.op("shrink", "Reduce", ["grow:0"], 2000)
    model.sink(["shrink:0"])
    found = model.schedule()
    planned(found)
    steps = {step.name: step for step in found.schedule.steps}
    counter = next(tensor.id for tensor in found.schedule.tensors if tensor.name == "loop:counter")
    assert counter in steps["grow"].reads and counter in steps["loop:next"].writes
    assert [steps[name].loop_depth for name in ("loop:enter", "loop:test", "grow", "loop:next", "post")] == [
        0,
        1,
        1,
        1,
        0,
    ]
    assert steps["loop:test"].jumps == (steps["post"].id, steps["grow"].id)
    assert steps["loop:next"].jumps == (steps["loop:test"].id,)


def test_calls_are_written_in_place() -> None:
    model = Model()
    model.data("x", 1000, 0)
    model.op("call", "PartitionedCall", ["x:0"], 2000).subgraph_name.append("inner")
    model.op("post", "Relu", ["call:0"], 2000)
    model.sink(["post:0"])
    model.graph("inner")
    model.data("in", 1000, 0)
    model.op("double", "Tile", ["in:0"], 2000)
    model.sink(["double:0"])
    found = model.schedule()
    assert [step.name for step in found.schedule.steps] == ["double", "post", "out_root"]
    assert planned(found).total_size == 4096


def test_references_views_and_inplace_permissions() -> None:
    model = Model()
    model.data("x", 1000, 0)
    model.op("a", "Mul", ["x:0"], 1000)
    model.op("flat", "Reshape", ["a:0"], 1000, attrs={"_ge_attr_op_kernel_lib_name": "DNN_VM_GE_LOCAL_OP_STORE"})
    model.op("b", "Exp", ["flat:0"], 1000, attrs={"_inplace_support_input_index": [0]})
    update = model.op("c", "Assign", ["b:0"], 1000)
    update.output_desc[0].reuse_input = True
    model.op("d", "Relu", ["c:0"], 1000)
    model.sink(["d:0"])
    found = model.schedule()
    assert "flat" not in [step.name for step in found.schedule.steps], "a reshape takes no task"
    plan = planned(found)
    rows = {row.name: row for row in plan.rows}
    assert {rows[name].offset for name in "abc"} == {rows["flat"].offset}
    assert plan.total_size == 2048 and rows["c"].alias_kind == "view" and rows["b"].alias_kind == "inplace"


def test_join_without_a_task_and_padded_groups() -> None:
    model = Model()
    model.data("x", 1024, 0)
    model.op("a", "Mul", ["x:0"], 1024)
    model.op("b", "Exp", ["x:0"], 1024)
    joined = {"_no_task": True, "_nopadding_continuous_input": True, "_output_reuse_input": True}
    model.op("join", "ConcatD", ["a:0", "b:0"], 2048, attrs=joined)
    model.op("c", "Mul", ["join:0"], 100)
    model.op("d", "Exp", ["join:0"], 100)
    model.op("reduce", "HcomAllReduce", ["c:0", "d:0"], 100, attrs={"continuous_input": True})
    model.sink(["reduce:0"])
    found = model.schedule()
    rows = {row.name: row for row in planned(found).rows}
    assert "join" not in [step.name for step in found.schedule.steps]
    assert (rows["a"].offset, rows["b"].offset) == (rows["join"].offset, rows["join"].offset + 2048)
    assert rows["d"].offset == rows["c"].offset + 512


def test_streams_are_ordered_by_their_edges_and_events() -> None:
    model = Model()
    model.data("x", 1000, 0)
    model.op("a", "Mul", ["x:0"], 1000)
    model.op("side", "Exp", ["a:0"], 1000).stream_id = 1
    sent = model.op("send", "Send", [], attrs={"event_id": 7})
    sent.stream_id = 1
    sent.input.append("side:-1")
    model.op("main", "Mul", ["a:0"], 1000)
    model.op("recv", "Recv", ["send:-1"], attrs={"event_id": 7})
    model.op("join", "Add", ["main:0", "side:0"], 1000)
    model.sink(["join:0"])
    steps = {step.name: step for step in model.schedule().schedule.steps}
    assert set(steps["a"].records) & set(steps["side"].waits)
    assert set(steps["send"].records) & set(steps["recv"].waits)
    assert steps["join"].waits and steps["main"].waits == ()
    planned(model.schedule())


def test_workspaces_and_open_shapes_with_a_bound() -> None:
    model = Model()
    model.data("x", 1000, 0)
    op = model.op("a", "Mul", ["x:0"], -1)
    op.workspace_bytes.extend([0, 4096])
    set_attr_range(op.output_desc[0], 1, 3000)
    model.sink(["a:0"])
    found = model.schedule()
    assert found.schedule.steps[0].workspaces[0].bytes == 4096
    plan = planned(found)
    assert plan.total_size == 4096 and plan.io_bytes == 2048 + 6144


def set_attr_range(desc: Any, low: int, high: int) -> None:
    desc.attr["shape_range"].list_list_int.list_list_i.add().list_i.extend([low, high])


def test_kinds_at_the_borders() -> None:
    model = Model()
    model.op("w", "Const", [], 100)
    model.data("x", 1000, 0)
    model.op("a", "Mul", ["x:0", "w:0", ""], 1000)
    model.sink(["a:0"])
    schedule = model.schedule().schedule
    kinds = {tensor.name: tensor.kind for tensor in schedule.tensors}
    assert kinds == {"w": TensorKind.WEIGHT, "x": TensorKind.INPUT, "a": TensorKind.OUTPUT}
    assert schedule.steps[0].reads == (1, 0) and schedule.steps[0].name == "a"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.op("late", "Relu", ["nobody:0"], 5), "nobody"),
        (lambda m: m.op("late", "Relu", ["a:3"], 5), "no such output"),
        (lambda m: m.op("a", "Relu", ["x:0"], 5), "one name"),
        (lambda m: m.current.op[1].input.append("b:0"), "cycle"),
        (lambda m: m.op("late", "Relu", ["a"], 5), "no port"),
        (lambda m: m.op("late", "Relu", ["a:0"], -1), "upper bound"),
        (lambda m: m.op("late", "If", ["a:0", "a:0"], 5).subgraph_name.append("gone"), "gone"),
        (lambda m: m.op("late", "PartitionedCall", ["a:0"], 5).subgraph_name.append("root"), "contains itself"),
        (lambda m: m.op("late", "Data", []), "no output 0"),
        (lambda m: m.op("late", "For", ["a:0"], 5), "For"),
    ],
)
def test_contradictions_are_named(change: Callable[[Model], Any], says: str) -> None:
    model = Model()
    model.data("x", 1000, 0)
    model.op("a", "Mul", ["x:0"], 1000)
    model.op("b", "Mul", ["a:0"], 1000)
    change(model)
    with pytest.raises(ModelError, match=says):
        model.schedule()


@pytest.mark.parametrize("name", list(DUMPS))
def test_damaged_dumps_are_refused(name: str, need_data: Need, tmp_path: Path) -> None:
    data = need_data(f"ge_dumps/{name}").read_bytes()[:60_000]
    path = tmp_path / name
    for cut in (len(data) // 3, len(data) - 40, 17):
        path.write_bytes(data[:cut])
        with pytest.raises(ModelError):
            load_schedule(path)
    path.write_bytes(data[:2000] + bytes(range(256)) + data[2256:])
    with pytest.raises(LabError):
        load_schedule(path)


def test_what_cannot_be_planned_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, says in (("{}", "nothing that can be planned"), ("{", "no JSON"), ('{"graph": []}', "no operators"),
                       ('{"graph": [{"op": [{"name": "a", "id": "x"}]}]}', "damaged")):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ModelError, match=says):
            load_schedule(path)
    path = tmp_path / "x.txt"
    path.write_text("hello")
    with pytest.raises(ModelError, match="no model of GE"):
        load_schedule(path)


def test_cases_are_told_from_dumps(need_data: Need) -> None:
    case = load_schedule(need_data("planner/cases/chain.json"))
    table = load_schedule(need_data("planner/minimalloc/input.12.csv"))
    assert case.kind == table.kind == "case" and case.recorded is None and case.schedule.steps and table.schedule.times


def test_our_own_offline_model_is_selected_anew(small_compilation: Callable[..., Any], tmp_path: Path) -> None:
    from metadef.model import save_om

    made = small_compilation()
    save_om(made.model, tmp_path / "own.om")
    found = load_schedule(tmp_path / "own.om")
    assert found.kind == "om" and plan_memory(found.schedule).total_size == made.plan.total_size
