"""The planner's loops plan the same as plain Python and compiled; live bytes are those of a count step by step."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from metadef.memory import loops, plan_memory
from metadef.memory.bodies import make_bodies
from metadef.memory.body_table import BodyTable
from metadef.memory.joins import _common_grid
from metadef.memory.live import live_table
from metadef.memory.problem import exists_in, live_bytes, worlds
from tests.metadef.memory.test_large import random_bodies
from tools.bench.plan_shapes import mixed


@pytest.mark.parametrize("seed", range(4))
def test_compiled_loops_plan_what_plain_ones_plan(seed: int, monkeypatch: pytest.MonkeyPatch):
    schedule = mixed(60 + seed, streams=1 + seed % 3, branches=seed > 1)
    schedule.tensors = [replace(t, residue=32 if t.id % 23 == 7 else 0) for t in schedule.tensors]
    plain = plan_memory(schedule, method="greedy-by-size")
    monkeypatch.setattr(loops, "PLAIN_ITEMS", -1)
    assert plan_memory(schedule, method="greedy-by-size") == plain


def covered(table: BodyTable, step: int, world: dict[str, str]) -> int:
    """Bytes of all bodies that some rectangle covers at a step."""
    total = 0
    for body in table:
        alive = [r for r in body.rects if r.first <= step <= r.last and exists_in(r.labels, world)]
        total += len({byte for r in alive for byte in range(r.rel, r.rel + r.size)})
    return total


@pytest.mark.parametrize("seed", range(3))
def test_live_bytes_count_every_covered_byte_once(seed: int):
    table = BodyTable.of(random_bodies(seed))
    assert live_bytes(table, {}, 100).tolist() == [covered(table, step, {}) for step in range(100)]


def test_live_bytes_in_the_worlds_of_branches():
    schedule = mixed(40, branches=True)
    schedule.tensors = [replace(t, payload_bytes=t.payload_bytes // 512) for t in schedule.tensors]
    schedule.views = [replace(view, offset_bytes=view.offset_bytes // 512) for view in schedule.views]
    table = make_bodies(schedule, live_table(schedule)).bodies
    assert len(worlds(table)) > 1
    for world in worlds(table):
        found = live_bytes(table, world, len(schedule.steps))
        assert found.tolist() == [covered(table, step, world) for step in range(len(schedule.steps))]


def test_common_grids_hold_the_offsets_that_are_on_both():
    draw = random.Random(3)
    for _ in range(300):
        (m1, m2) = (draw.choice((1, 2, 3, 4, 6, 16, 32, 35, 64, 512)) for _ in range(2))
        r1, r2 = draw.randrange(m1), draw.randrange(m2)
        offsets = np.arange(m1 * m2)
        both = offsets[(offsets % m1 == r1) & (offsets % m2 == r2)]
        modulus, residue = _common_grid(m1, r1, m2, r2)
        mine = offsets[offsets % modulus == residue] if modulus else offsets[:0]
        assert mine.tolist() == both.tolist()
