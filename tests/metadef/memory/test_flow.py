"""Lives along paths: exclusive branches, values that one side reads, what a loop carries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metadef.memory import check_plan, plan_memory
from metadef.memory.flow import live_runs
from metadef.schedule import Schedule, ScheduleTensor, Step

SIZE = 4064
"""A slot of 4096 bytes."""


def schedule(count: int, *steps: Step) -> Schedule:
    made = Schedule("paths", "")
    made.tensors = [ScheduleTensor(at, f"t{at}", SIZE) for at in range(count)]
    made.steps = list(steps)
    return made


def branches() -> Schedule:
    """0 decides; then: 1 -> 2 -> result 5; else: 3 -> 4 -> 5; the else side alone reads 6."""
    return schedule(
        8,
        Step(0, "a", (), (0,)),
        Step(1, "b", (), (6,)),
        Step(2, "switch", (0,), (), jumps=(7, 3)),
        Step(3, "t1", (0,), (1,), branch="if:then"),
        Step(4, "t2", (1,), (2,), branch="if:then"),
        Step(5, "t3", (2,), (5,), branch="if:then"),
        Step(6, "end", (), (), branch="if:then", jumps=(10,)),
        Step(7, "e1", (6,), (3,), branch="if:else"),
        Step(8, "e2", (3,), (4,), branch="if:else"),
        Step(9, "e3", (4,), (5,), branch="if:else"),
        Step(10, "c", (5,), (7,)),
    )


def test_sides_of_a_branch_never_meet() -> None:
    runs = live_runs(branches(), {at: at for at in range(8)})
    assert runs[5] == ((5, 6), (9, 10)), "made at the end of each side, not alive in between"
    assert runs[6] == ((1, 2), (7, 7)), "only the else side reads it: the then side may use its memory"
    assert runs[1] == ((3, 4),) and runs[3] == ((7, 8),)


def test_results_and_values_of_one_side_leave_room_in_the_other() -> None:
    made = branches()
    large = 10 * 4096 - 32
    made.tensors = [replace(item, payload_bytes=large) if item.id in (1, 3, 5) else item for item in made.tensors]
    plan = plan_memory(made)
    check_plan(made, plan)
    assert plan.total_size == 12 * 4096 and plan.optimal, "the three large ones share their memory"


def loop() -> Schedule:
    """1 is carried: read by the body's first step, renewed by its last; 2 and 3 are made in between."""
    return schedule(
        5,
        Step(0, "enter", (), (1,)),
        Step(1, "test", (), (0,), loop_depth=1),
        Step(2, "switch", (0,), (), loop_depth=1, jumps=(7, 3)),
        Step(3, "b1", (1,), (2,), loop_depth=1),
        Step(4, "b2", (2,), (3,), loop_depth=1),
        Step(5, "b3", (3,), (1,), loop_depth=1),
        Step(6, "next", (), (), loop_depth=1, jumps=(1,)),
        Step(7, "out", (1,), (4,)),
    )


def test_what_a_loop_carries_is_free_between_its_reading_and_its_renewal() -> None:
    made = loop()
    runs = live_runs(made, {at: at for at in range(5)})
    assert runs[1] == ((0, 3), (5, 7))
    made.tensors[3] = replace(made.tensors[3], payload_bytes=9 * 4096 - 32)
    made.tensors[1] = replace(made.tensors[1], payload_bytes=5 * 4096 - 32)
    plan = plan_memory(made)
    check_plan(made, plan)
    assert plan.of_tensor(1).offset != plan.of_tensor(3).offset, "3 is read when 1 is renewed"
    assert plan.total_size == 15 * 4096 and plan.optimal, "1, 2 and 3 meet two by two, 0 and 4 fit beside"


def test_a_value_from_before_a_loop_lives_until_its_last_iteration() -> None:
    made = loop()
    made.steps[0] = Step(0, "enter", (), (1, 4))
    made.steps[3] = Step(3, "b1", (1, 4), (2,), loop_depth=1)
    made.steps[7] = Step(7, "out", (1,), ())
    assert live_runs(made, {at: at for at in range(5)})[4] == ((0, 6),)


@pytest.mark.parametrize("reuse", [True, False])
def test_plans_of_paths_pass_the_checker(reuse: bool) -> None:
    for made in (branches(), loop()):
        check_plan(made, plan_memory(made, reuse=reuse))
