"""Misalignment: addresses keep values and cost cycles; rows off 32 bytes; published effects; on-chip faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from metadef.error import DeviceFault, UsageError
from metadef.kernel import Buffer
from metadef.memory import check_plan, plan_memory
from metadef.model import Model, save_om
from metadef.program import Program, Region
from metadef.schedule import TensorKind
from metadef.target import load_target
from npusim.align import AlignStudy, align_model, align_session, checked_residues, chosen_tensors, with_residue
from npusim.align_micro import micro_effects
from npusim.align_rows import row_costs, with_rows
from npusim.align_study import row_study
from npusim.data import digits_model, digits_samples
from npusim.report.alignment import alignment_figure
from npusim.session import InferenceSession, SessionOptions
from tests.npusim.faulty import odd_rows_model

SOCS = ("Ascend910B3", "Ascend310P3")


@pytest.fixture(scope="module", params=SOCS)
def session(request: pytest.FixtureRequest) -> InferenceSession:
    return InferenceSession(digits_model(), SessionOptions(soc=request.param, dims={"batch": 4}, threads=1))


@pytest.fixture(scope="module")
def study(session: InferenceSession) -> AlignStudy:
    return align_session(session, {"image": digits_samples().as_input(20, 4)})


def test_values_do_not_depend_on_addresses(study: AlignStudy):
    assert study.equal
    assert [total.residue for total in study.totals] == ["0", "256", "64", "32", "16", "element"]


def test_cycles_grow_with_the_distance_from_the_line(study: AlignStudy):
    cycles = {total.residue: total.cycles for total in study.totals}
    assert cycles["0"] <= cycles["256"] and cycles["0"] <= cycles["32"] <= cycles["16"] == cycles["element"]
    assert cycles["16"] > 1.02 * cycles["0"]
    requests = {total.residue: total.extra_requests for total in study.totals}
    assert requests["0"] == 0 < requests["32"] < requests["16"]
    for operator in study.operators:
        for shifted in operator.shifted.values():
            assert shifted.extra_requests >= 0
            assert shifted.slowdown == pytest.approx(shifted.cycles / operator.aligned_cycles)
            assert (shifted.cause == "none") == (shifted.extra_requests == 0 and shifted.slowdown == 1)


def test_only_chosen_tensors_move(session: InferenceSession):
    schedule = session.compilation.schedule
    chosen = chosen_tensors(schedule)
    assert all(schedule.tensors[item].kind is TensorKind.FEATURE for item in chosen)
    moved = with_residue(schedule, chosen[:3], "64")
    plan = plan_memory(moved)
    check_plan(moved, plan)
    residues = {item: plan.of_tensor(item).offset % 512 for item in chosen}
    assert [residues[item] for item in chosen[:3]] == [64, 64, 64]
    assert all(residues[item] == 0 for item in chosen[3:])
    one = align_session(session, pattern=schedule.tensors[chosen[2]].name, residues=("16",))
    hurt = [item.task for item in one.operators if item.shifted["16"].extra_requests]
    task = next(t for t in session.program.tasks if any(o.name == one.tensors[0] for o in t.outputs))
    readers = [t.id for t in session.program.tasks if any(o and o.name == one.tensors[0] for o in t.inputs)]
    assert one.equal and set(hurt) <= {task.id, *readers} and task.id in hurt


def test_an_element_is_as_wide_as_the_tensor_says(session: InferenceSession):
    schedule = session.compilation.schedule
    chosen = chosen_tensors(schedule)
    moved = with_residue(schedule, chosen, "element")
    assert {moved.tensors[item].residue for item in chosen} == {
        schedule.tensors[item].desc.dtype.bytes for item in chosen
    }
    with pytest.raises(UsageError, match="a multiple of its element"):
        with_residue(schedule, chosen, "3")


def test_wrong_studies_are_refused(session: InferenceSession, tmp_path: Path):
    for wrong in ("512", "-16", "half"):
        with pytest.raises(UsageError, match="no residue"):
            checked_residues([wrong])
    with pytest.raises(UsageError, match="nothing to compare"):
        checked_residues(["0"])
    with pytest.raises(UsageError, match="no tensor with a place of its own"):
        chosen_tensors(session.compilation.schedule, "nosuch*")
    with pytest.raises(UsageError, match="compiled model"):
        align_model(save_om(session.model, tmp_path / "m.om"))


def test_picture_shows_every_operator_and_residue(study: AlignStudy):
    upper, lower, _ = alignment_figure(study).axes
    assert upper.images[0].get_array().shape == (5, len(study.operators))
    assert lower.get_yticklabels()[0].get_text() == "aligned"


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def odd_session(tmp_path_factory: pytest.TempPathFactory) -> InferenceSession:
    return InferenceSession(odd_rows_model(tmp_path_factory.mktemp("rows") / "rows.onnx"), SessionOptions(threads=1))


def test_rows_off_32_bytes_cost_requests(odd_session: InferenceSession):
    rows = {row.op_type: row for row in row_costs(odd_session.program, odd_session.target)}
    for name in ("LayerNorm", "SoftmaxV2"):
        assert (rows[name].own, rows[name].row_bytes, rows[name].other_bytes) == ("off", 154, 160)
        assert rows[name].extra_requests > 0 and rows[name].off_cycles > rows[name].on_cycles
    product = rows["MatMulV2"]
    assert product.own == "off" and product.extra_requests > 0


def test_odd_rows_give_the_bits_of_rows_alone(odd_session: InferenceSession, rng: np.random.Generator):
    feeds = {"x": rng.standard_normal((512, 64)).astype(np.float32)}
    rows = row_study(odd_session, feeds)
    assert {row.op_type for row in rows} >= {"MatMulV2", "LayerNorm", "SoftmaxV2", "Cast"}
    assert [row.values for row in rows] == ["equal"] * len(rows)


def test_rows_that_are_not_made_one_by_one_say_so(tmp_path):
    from metadef.text import parse_graph

    graph = parse_graph(
        """
graph("turned"):
  %x : float16[9,33] = Data()
  %a = TransposeD(x=%x) {perm=[1, 0]}
  %b = ConcatD(x0=%a, x1=%a) {concat_dim=0}
  return (%b as "b")
"""
    )
    session = InferenceSession(graph, SessionOptions(threads=1))
    rows = row_study(session, {"x": np.arange(9 * 33, dtype=np.float16).reshape(9, 33)})
    assert {row.values for row in rows} == {"not run: its rows are not made one by one"}


def test_padded_rows_start_on_32_bytes_and_cut_rows_do_not(odd_session: InferenceSession):
    for task in odd_session.program.tasks:
        padded, cut = with_rows(task.kernel, True), with_rows(task.kernel, False)
        for desc, there, less in zip(task.kernel.outputs, padded.outputs, cut.outputs, strict=True):
            assert there.shape[-1] * there.dtype.bytes % 32 == 0 and there.shape[-1] >= desc.shape[-1]
            assert less.shape[-1] == desc.shape[-1] - 1


def test_odd_rows_keep_values_at_odd_addresses(odd_session: InferenceSession, rng: np.random.Generator):
    feeds = {"x": rng.standard_normal((512, 64)).astype(np.float32)}
    study = align_session(odd_session, feeds, residues=("32", "16", "element"))
    assert study.equal and study.totals[-1].cycles >= study.totals[0].cycles


def test_single_effects_have_their_published_size():
    for effect in micro_effects(load_target("Ascend910B1")):
        assert effect.ratio == pytest.approx(effect.published, rel=0.15), effect.effect


# -- on-chip addresses -------------------------------------------------------------------------------------------------


def shifted(session: InferenceSession, task_id: int, by: int) -> tuple[Model, Buffer]:
    """The model with the first buffer of a task's tile moved."""
    program = session.program
    task = program.tasks[task_id]
    first, *rest = task.kernel.tile.buffers
    moved = replace(first, offset_bytes=first.offset_bytes + by)
    kernel = replace(task.kernel, tile=replace(task.kernel.tile, buffers=(moved, *rest)))
    tasks = [replace(task, kernel=kernel) if item is task else item for item in program.tasks]
    spoiled = Program(**{**vars(program), "tasks": tasks})
    model = session.model
    return Model(model.name, model.soc, model.graph, model.weights, {"": spoiled}, {}), moved


def test_a_tile_buffer_off_its_granule_is_a_fault_with_the_chips_code(session: InferenceSession):
    coupled = session.target.coupled
    for task in session.program.tasks:
        on_cube = "Conv2D" in task.kernel.op_type
        if not (on_cube or task.kernel.op_type == "Cast"):
            continue
        model, buffer = shifted(session, task.id, 16)
        code = "507015" if on_cube or coupled else "507035"
        with pytest.raises(DeviceFault) as caught:
            InferenceSession(model, SessionOptions(threads=1))
        problem = caught.value.problems[0]
        assert (problem.code, problem.node, problem.port) == (code, task.name, buffer.name)
        granule = session.target.granule_bytes[buffer.memory]
        assert f"{granule}-byte granules of {buffer.memory}" in str(caught.value)
        assert f"offset {buffer.offset_bytes}" in str(caught.value) and "off its granule" in str(caught.value)


def test_global_addresses_off_the_line_are_legal(session: InferenceSession):
    schedule = session.compilation.schedule
    moved = with_residue(schedule, chosen_tensors(schedule), "element")
    plan = plan_memory(moved)
    offsets = {row.offset % 512 for row in plan.rows if row.region == Region.ARENA.value and row.tensor >= 0}
    assert offsets == {2}
