"""The relation search against brute force over all orders and all choices of in-place pairs."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from metadef.memory import plan_memory
from metadef.memory.bodies import make_bodies
from metadef.memory.cases import case_from_json
from metadef.memory.heuristics import place
from metadef.memory.live import live_table
from metadef.memory.pairs import legal_pairs, take_pairs
from metadef.memory.problem import Problem
from metadef.memory.relations import solve_relations
from metadef.schedule import Schedule


@st.composite
def cases(draw: st.DrawFn) -> Schedule:
    """Up to five tensors with grids, branches and in-place permissions where lifetimes allow them."""
    entries: list[dict[str, object]] = []
    for i in range(draw(st.integers(1, 5))):
        lower = draw(st.integers(0, 3))
        entry: dict[str, object] = {"id": str(i), "lower": lower, "upper": lower + draw(st.integers(1, 3))}
        entry |= {"size": draw(st.integers(1, 8)), "align": draw(st.sampled_from([1, 1, 2, 4]))}
        dying = [e for e in entries if e["upper"] == lower + 1 and e["size"] >= entry["size"]]  # type: ignore[operator]
        if dying and draw(st.booleans()):
            entry["inplace_of"] = draw(st.sampled_from(dying))["id"]
        side = draw(st.sampled_from(["", "", "then", "else"]))
        if side:
            entry["branch"] = ["if", side]
        entries.append(entry)
    return case_from_json({"tensors": entries}).schedule


def optimum(schedule: Schedule) -> int:
    """First fit in every order, for every subset of the in-place pairs.

    Joined bodies of several rectangles may need offsets first fit does not find, hence only an upper bound there.
    """
    live = live_table(schedule)
    joined = make_bodies(schedule, live)
    pairs, _ = legal_pairs(schedule, live, joined)
    best = 10**9
    for choice in product((False, True), repeat=len(pairs)):
        bodies, _ = take_pairs(joined, pairs.picked(np.flatnonzero(choice)))
        problem = Problem(bodies, live.order)
        for order in permutations(range(len(problem))):
            offsets = place(problem, order, best_fit=False)
            assert offsets is not None
            best = min(best, problem.peak(offsets))
    return best


@settings(max_examples=60)
@given(cases())
def test_relations_are_exact(schedule: Schedule):
    live = live_table(schedule)
    joined = make_bodies(schedule, live)
    pairs, _ = legal_pairs(schedule, live, joined)
    problem = Problem(joined.bodies, live.order)
    answer = solve_relations(problem, joined, pairs, 10**6, 0, 20_000)
    assert answer.exhausted and answer.offsets is not None
    peak = problem.peak(answer.offsets)
    known = optimum(schedule)
    assert peak <= known
    plan = plan_memory(schedule)
    assert plan.optimal and plan.total_size == peak
    if not pairs:
        assert peak == known
