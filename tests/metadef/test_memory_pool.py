"""The growing pool: best fit, joining, counts; replaying a schedule never beats the live set."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadef.compiler import CompileOptions, schedule_model
from metadef.error import ContractError
from metadef.memory import plan_memory
from metadef.memory_pool import MemoryPool, replay
from tests.metadef.models import detector


def test_blocks_are_reused_split_and_joined() -> None:
    pool = MemoryPool(granule=512, segment_bytes=4096)
    one, two, three = pool.take(1000), pool.take(512), pool.take(2048)
    assert [(block.offset, block.size) for block in (one, two, three)] == [(0, 1024), (1024, 512), (1536, 2048)]
    assert (pool.stats.requests, pool.stats.hits, pool.stats.reserved, pool.stats.used) == (3, 2, 4096, 3584)
    pool.give_back(one)
    assert pool.stats.fragmentation == pytest.approx(1 - 1024 / 1536)
    pool.give_back(two)
    assert pool.take(1536).offset == 0, "the freed neighbours are one block"
    assert pool.stats.fragmentation == 0.0 and pool.stats.high_water == 3584
    big = pool.take(10_000)
    assert big.segment == 1 and pool.stats.reserved == 4096 + 12288 and pool.stats.hit_rate == pytest.approx(3 / 5)


def test_the_smallest_block_that_holds_it_is_taken() -> None:
    pool = MemoryPool(granule=1, segment_bytes=100)
    blocks = [pool.take(size) for size in (30, 10, 20, 10, 30)]
    for position in (0, 2):
        pool.give_back(blocks[position])
    assert pool.take(15).offset == 40


def test_giving_back_twice_is_refused() -> None:
    pool = MemoryPool()
    block = pool.take(100)
    pool.give_back(block)
    with pytest.raises(ContractError, match="twice"):
        pool.give_back(block)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3000)), max_size=60))
@settings(max_examples=60)
def test_blocks_never_overlap_and_nothing_is_lost(actions: list[tuple[bool, int]]) -> None:
    pool = MemoryPool(granule=64, segment_bytes=4096)
    held = []
    for take, value in actions:
        if take or not held:
            held.append(pool.take(value))
        else:
            pool.give_back(held.pop(value % len(held)))
        spans = sorted((block.segment, block.offset, block.offset + block.size) for block in held)
        for (one, _, end), (other, start, _) in pairwise(spans):
            assert one != other or end <= start
        assert pool.stats.used == sum(block.size for block in held) <= pool.stats.high_water
    for block in held:
        pool.give_back(block)
    assert pool.stats.used == 0 and pool.stats.largest_free >= 4096 * bool(actions)


def test_a_replayed_schedule_needs_at_least_its_live_set() -> None:
    schedule = schedule_model(detector(), CompileOptions(dims={"n": 1, "h": 32, "w": 32})).schedule
    bare = plan_memory(schedule, inplace=False)
    stats = replay(schedule, MemoryPool(granule=512, segment_bytes=512))
    assert stats.high_water >= bare.theory_min and stats.reserved >= stats.high_water
    assert stats.used == 0 and 0 < stats.hit_rate < 1
