"""Streamed weights: loads before every use, memory that follows, traffic that is counted."""

from __future__ import annotations

from metadef.compiler import CompileOptions, schedule_model
from metadef.format import round_up
from metadef.memory import check_plan, plan_memory
from metadef.schedule import Schedule, ScheduleTensor, Step, TensorKind, View
from metadef.weight_stream import PREFIX, stream_weights
from tests.metadef.models import detector


def test_every_use_of_a_large_weight_is_loaded_just_before() -> None:
    schedule = schedule_model(detector(), CompileOptions(dims={"n": 1, "h": 16, "w": 16})).schedule
    plain = plan_memory(schedule)
    made, traffic = stream_weights(schedule, 2048)
    plan = plan_memory(made)
    check_plan(made, plan)
    loads = [step for step in made.steps if step.name.startswith(PREFIX)]
    assert traffic.loads == len(loads) > 0 and len(made.steps) == len(schedule.steps) + len(loads)
    for load in loads:
        row = plan.of_tensor(load.writes[0])
        readers = [step.id for step in made.steps if load.writes[0] in step.reads]
        assert (row.region, row.first, row.last) == ("arena", load.id, readers[0]) and len(readers) == 1
    assert plan.weights_bytes == traffic.resident_bytes < plain.weights_bytes
    weights = [tensor for tensor in schedule.tensors if tensor.kind is TensorKind.WEIGHT]
    large = [tensor.payload_bytes for tensor in weights if tensor.payload_bytes >= 2048]
    assert traffic.streamed_bytes == sum(large) and traffic.largest_bytes == max(large)
    small = sum(round_up(tensor.payload_bytes, 512) for tensor in weights if tensor.payload_bytes < 2048)
    assert traffic.resident_bytes == small


def shared_weight() -> Schedule:
    schedule = Schedule("shared", "")
    schedule.tensors = [
        ScheduleTensor(0, "w", 10_000, TensorKind.WEIGHT),
        *(ScheduleTensor(i, f"t{i}", 1000) for i in (1, 2, 3)),
    ]
    schedule.steps = [Step(0, "a", (0,), (1,)), Step(1, "b", (1,), (2,)), Step(2, "c", (2, 0), (3,))]
    return schedule


def test_a_weight_used_twice_is_loaded_twice() -> None:
    made, traffic = stream_weights(shared_weight(), 1)
    assert (traffic.loads, traffic.loaded_bytes, traffic.streamed_bytes) == (2, 20_000, 10_000)
    assert [step.name for step in made.steps] == ["load:w@a", "a", "load:w@c", "b", "c"]
    assert [(step.stream, step.waits, step.records) for step in made.steps] == [
        (1, (), (1,)),
        (0, (1,), (0,)),
        (1, (0,), (2,)),
        (0, (), ()),
        (0, (2,), ()),
    ]
    assert plan_memory(made).weights_bytes == 0


def test_tied_weights_and_small_ones_stay() -> None:
    schedule = shared_weight()
    made, traffic = stream_weights(schedule, 10_001)
    assert traffic.loads == 0 and made.steps == schedule.steps and traffic.resident_bytes == 10_240
    schedule.tensors.append(ScheduleTensor(4, "part", 100))
    schedule.views.append(View(4, 0))
    assert stream_weights(schedule, 1)[1].loads == 0
