"""Gears: options, binding of open axes, merged programs, and the choice of a gear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from metadef.compiler import CompileOptions, compile_model, schedule_model
from metadef.error import UsageError
from metadef.gears import GearSpec, choose_gear, gear_shapes, input_shapes, parse_gears, varying_axes
from metadef.hazard import check_program
from metadef.model import load_om, save_om
from metadef.program import Region
from tests.metadef.models import detector


def test_options_of_atc_become_gears() -> None:
    assert parse_gears() is None
    assert parse_gears("1,2,4") == GearSpec("batch", ((1,), (2,), (4,)))
    assert parse_gears(dynamic_image_size="32,64; 96,96") == GearSpec("size", ((32, 64), (96, 96)))
    assert parse_gears(dynamic_dims="1,128;1,256").option == "dynamic_dims"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (dict(dynamic_batch_size="1,2", dynamic_dims="1;2"), "E10009"),
        (dict(dynamic_batch_size="1,x"), "E10001"),
        (dict(dynamic_batch_size="4"), "E10035"),
        (dict(dynamic_batch_size=",".join(map(str, range(1, 102)))), "E10036"),
        (dict(dynamic_dims="1,2;3"), "E10037"),
        (dict(dynamic_image_size="3;4"), "E10020"),
        (dict(dynamic_batch_size="0,1"), "E10038"),
        (dict(dynamic_image_size="3,4;3,4"), "E10039"),
    ],
)
def test_wrong_options_have_ges_codes(options: dict[str, str], code: str) -> None:
    with pytest.raises(UsageError, match=code):
        parse_gears(**options)


def test_open_axes_are_bound_once_per_gear() -> None:
    image = gear_shapes(parse_gears(dynamic_image_size="32,64;96,96"), {"x": ["n", 3, "", -1], "k": [4]})
    assert image == {"96,96": {"x": (1, 3, 96, 96)}, "32,64": {"x": (1, 3, 32, 64)}}
    batch = gear_shapes(parse_gears("1,8"), {"x": ["n", 5], "y": ["n", 2], "z": [3]})
    assert batch == {"8": {"x": (8, 5), "y": (8, 2)}, "1": {"x": (1, 5), "y": (1, 2)}}
    dims = gear_shapes(parse_gears(dynamic_dims="1,7;2,9"), {"x": [-1, 5], "y": [3, "t"]})
    assert dims == {"2,9": {"x": (2, 5), "y": (3, 9)}, "1,7": {"x": (1, 5), "y": (3, 7)}}


@pytest.mark.parametrize(
    ("spec", "declared", "code"),
    [
        (parse_gears("1,2"), {"x": [1, 3]}, "E10031"),
        (parse_gears("1,2"), {"x": [1, "t"]}, "E10031"),
        (parse_gears("1,2"), {"x": ["n", "t"]}, "E10018"),
        (parse_gears(dynamic_image_size="3,4;5,6"), {"x": [1, 3, 8, 8]}, "E10040"),
        (parse_gears(dynamic_image_size="3,4;5,6"), {"x": [1, "c", "h", "w"]}, "E10019"),
        (parse_gears(dynamic_dims="1;2"), {"x": [-1, -1]}, "E10045"),
    ],
)
def test_gears_that_do_not_fit_the_model(spec: GearSpec, declared: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError, match=code):
        gear_shapes(spec, declared)


@pytest.fixture(scope="module")
def sized() -> Any:
    return compile_model(detector(), CompileOptions(gears=parse_gears(dynamic_image_size="16,16;32,48;24,24")))


def test_one_arena_as_large_as_the_largest_gear_and_weights_once(sized: Any) -> None:
    programs = sized.model.programs
    assert list(programs) == ["32,48", "24,24", "16,16"]
    largest = max(item.plan.total_size for item in sized.gears.values())
    for key, program in programs.items():
        assert program.arena_bytes == largest and program.weights_bytes == sized.model.weights.nbytes
        assert program.total_size == sized.gears[key].plan.total_size
        check_program(program, sized.target)
    own = [item.model.weights.nbytes for item in sized.gears.values()]
    assert sized.model.weights.nbytes == own[0] == own[1] == own[2]


def test_merged_weights_are_those_of_every_gear(sized: Any) -> None:
    for key, program in sized.model.programs.items():
        alone = sized.gears[key].model
        for old, new in zip(alone.program.tasks, program.tasks, strict=True):
            for before, after in zip(old.inputs, new.inputs, strict=True):
                if before is None or before.region is not Region.WEIGHTS:
                    continue
                size = before.payload_bytes
                want = alone.weights[before.address : before.address + size]
                assert np.array_equal(sized.model.weights[after.address : after.address + size], want)


def test_offline_model_keeps_all_gears(sized: Any, tmp_path: Any) -> None:
    save_om(sized.model, tmp_path / "g.om")
    loaded = load_om(tmp_path / "g.om")
    assert loaded.programs == sized.model.programs and loaded.attrs["gear_kind"] == "size"
    assert np.array_equal(loaded.weights, sized.model.weights)
    assert [node.name for node in loaded.graph.nodes] == [node.name for node in sized.graph.nodes]


def test_the_nearest_sufficient_gear_is_chosen(sized: Any) -> None:
    programs = sized.model.programs
    assert varying_axes(programs) == [("x", 2), ("x", 3)]
    exact = choose_gear(programs, {"x": (1, 3, 24, 24)})
    assert (exact.key, exact.exact, exact.waste) == ("24,24", True, 0.0)
    near = choose_gear(programs, {"x": (1, 3, 17, 16)})
    assert (near.key, near.exact) == ("24,24", False) and near.waste == pytest.approx(1 - 17 * 16 / 576)
    assert choose_gear(programs, {"x": (1, 3, 8, 40)}).key == "32,48"
    assert input_shapes(programs["16,16"]) == {"x": (1, 3, 16, 16)}


def test_a_refused_shape_says_both_values(sized: Any) -> None:
    programs = sized.model.programs
    with pytest.raises(UsageError, match=r"axis 2 is 33, the largest gear has 32[\s\S]*at most 32[\s\S]*got: 33"):
        choose_gear(programs, {"x": (1, 3, 33, 8)})
    with pytest.raises(UsageError, match=r"axis 0 has one size[\s\S]*expected: 1[\s\S]*got: 2"):
        choose_gear(programs, {"x": (2, 3, 16, 16)})
    with pytest.raises(UsageError, match="wrong rank"):
        choose_gear(programs, {"x": (3, 16, 16)})


def test_sizes_that_no_gear_holds_together() -> None:
    made = compile_model(detector(), CompileOptions(gears=parse_gears(dynamic_image_size="8,24;24,8")))
    with pytest.raises(UsageError, match="at once"):
        choose_gear(made.model.programs, {"x": (1, 3, 20, 20)})


def test_a_static_model_is_opened_by_minus_one() -> None:
    model = detector(batch=4, height=16, width=16)
    with pytest.raises(UsageError, match="E10031"):
        compile_model(model, CompileOptions(gears=parse_gears("1,2")))
    made = compile_model(model, CompileOptions(gears=parse_gears("1,2"), shapes={"x": (-1, 3, 16, 16)}))
    assert [input_shapes(program)["x"][0] for program in made.model.programs.values()] == [2, 1]


def test_gears_need_a_model_and_several_schedules() -> None:
    options = CompileOptions(gears=parse_gears("1,2"))
    with pytest.raises(UsageError, match="one set of shapes"):
        schedule_model(detector(), options)
    from metadef.graph import Graph

    with pytest.raises(UsageError, match="has its shapes already"):
        compile_model(Graph("g"), options)
