"""Live ranges: inclusive steps, borders of the run, loops, streams, branches, views and groups."""

from __future__ import annotations

import pytest

from metadef.error import ContractError
from metadef.memory.live import exclusive, joined_reach, live_table, loop_bodies, step_order
from metadef.schedule import Group, Step, TensorKind, View
from tests.metadef.memory.schedules import Maker


def test_lives_are_inclusive_and_reach_the_borders_of_the_run():
    make = Maker()
    x = make.tensor("x", 8, TensorKind.INPUT)
    a = make.step("a", [x], 8)
    unused = make.step("unused", [x], 8)
    out = make.step("out", [a], 8, kind=TensorKind.OUTPUT)
    make.step("end", [out], 8)
    spans = live_table(make.schedule).base_spans
    assert [(spans[t].first, spans[t].last) for t in (x, a, unused, out)] == [(0, 1), (0, 2), (1, 1), (2, 3)]


def test_views_extend_their_base():
    make = Maker()
    a = make.step("a", [make.tensor("x", 8, TensorKind.INPUT)], 8)
    view, inner = make.tensor("view", 4), make.tensor("inner", 2)
    make.schedule.views += [View(view, a, 4), View(inner, view, 2)]
    make.step("b", [a], 8)
    make.step("c", [inner], 8)
    live = live_table(make.schedule)
    assert live.base[inner] == a and live.shift[inner] == 6
    assert (live.base_spans[a].first, live.base_spans[a].last) == (0, 2)


def test_what_crosses_a_loop_lives_through_it():
    make = Maker()
    x = make.tensor("x", 8, TensorKind.INPUT)
    before = make.step("before", [x], 8)
    inside = make.step("inside", [before], 8, loop_depth=1)
    make.step("use", [inside], 8, loop_depth=1)
    after = make.step("late", [inside], 8, loop_depth=1)
    make.step("end", [after], 8)
    spans = live_table(make.schedule).base_spans
    assert loop_bodies(make.schedule.steps) == [(1, 3)]
    assert (spans[before].first, spans[before].last, spans[before].carried) == (0, 3, True)
    assert (spans[inside].first, spans[inside].last, spans[inside].carried) == (1, 3, False)
    assert (spans[after].first, spans[after].last) == (1, 4)


def test_branch_labels_come_from_writers():
    make = Maker()
    x = make.tensor("x", 8, TensorKind.INPUT)
    then = make.step("then", [x], 8, branch="if:then")
    other = make.step("else", [x], 8, branch="if:else/in:then")
    make.schedule.steps.append(Step(2, "both", (x,), (then, other), branch="if:else"))
    spans = live_table(make.schedule).base_spans
    assert spans[then].labels == ("if:else", "if:then")
    assert exclusive(("if:then",), ("if:else/in:then",)) and not exclusive(("if:then",), ("in:then",))
    assert not exclusive(("if:then",), ()) and not exclusive(spans[then].labels, spans[other].labels)
    with pytest.raises(ContractError, match="not a path"):
        exclusive(("then",), ("else",))


def test_a_group_nobody_writes_lives_through_its_members():
    make = Maker()
    x = make.tensor("x", 8, TensorKind.INPUT)
    members = tuple(make.step(f"m{i}", [x], 8) for i in range(2))
    whole = make.tensor("whole", 16)
    make.schedule.groups.append(Group(whole, members))
    make.schedule.steps.append(Step(2, "read", (whole,), ()))
    spans = live_table(make.schedule).base_spans
    assert (spans[whole].first, spans[whole].last) == (0, 2)
    assert [(spans[m].first, spans[m].last) for m in members] == [(0, 2), (1, 2)]


def test_streams_are_ordered_by_events_only():
    steps = [
        Step(0, "a", (), (), records=(5,)),
        Step(1, "b", (), (), stream=1, waits=(5,), records=(6,)),
        Step(2, "c", (), ()),
        Step(3, "d", (), (), waits=(6,)),
    ]
    order = step_order(steps)
    a, b, c, d = (order.reach((step,)) for step in range(4))
    assert order.before(a, b) and not order.before(b, c) and not order.before(c, b)
    assert order.before(order.reach((0, 1, 2)), d) and order.before(joined_reach(joined_reach(a, b), c), d)
    assert not order.before(order.always, d) and not order.before(a, order.always)
    assert order.done_by(b, 3) and order.done_by(d, 3) and not order.done_by(b, 2)
