"""Advice that fits the task: its pipes, its types, and how much of its time the cause takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npusim.advice import advise
from npusim.data import digits_model
from npusim.explain import Explainer
from npusim.session import SessionOptions


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    return Explainer(digits_model(), SessionOptions(dims={"batch": 1}, threads=1))


def told(explainer: Explainer, op_type: str, **causes: int) -> str:
    """Advice to the first task of a type, had its cycles these causes."""
    session = explainer.session
    task = next(task for task in session.program.tasks if task.kernel.op_type == op_type)
    row = replace(session.profile.data.tasks[task.id], causes=causes, cycles=sum(causes.values()))
    return " | ".join(advise(task, row, session.target))


@pytest.mark.parametrize(
    ("launch", "start"), [(20, ""), (40, "start-up takes 40%: larger batches"), (80, "mostly start-up: larger batches")]
)
def test_start_up_is_most_only_where_it_is(explainer: Explainer, launch: int, start: str) -> None:
    found = told(explainer, "Conv2D", launch=launch, imbalance=100 - launch)
    assert start in found and ("start-up" in found) == bool(start)


def test_tiles_are_spoken_of_to_those_that_have_them(explainer: Explainer) -> None:
    assert "larger tiles read" in told(explainer, "Conv2D", memory=100)
    assert told(explainer, "MaxPoolV3", memory=100).startswith("L2 serves it")
    assert "tiles" not in told(explainer, "MaxPoolV3", memory=100)


def test_fp16_is_proposed_to_what_is_not(explainer: Explainer) -> None:
    assert "fp16 in place of fp32" in told(explainer, "Cast", compute=100)
    pool = told(explainer, "MaxPoolV3", compute=100)
    assert "vector unit is at work" in pool and "fp16" not in pool
