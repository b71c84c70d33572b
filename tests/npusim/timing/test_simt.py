"""Kernels of threads: turns of warps, lines, waves of blocks, and chips that have none."""

import pytest

from metadef.error import TargetError
from metadef.target import load_target
from npusim.timing.simt import Access, Block, access_cycles, block_us, line_wait_cycles

NEXT = load_target("Ascend950PR")


def cycles(block: Block, blocks: int = 1) -> float:
    return (block_us(NEXT, block, blocks) - block_us(NEXT, Block(), blocks)) * NEXT.clock_mhz


def test_nothing_is_its_launch():
    assert block_us(NEXT, Block(), 1) == pytest.approx(1.455, rel=0.01)
    assert block_us(NEXT, Block(), 64) == pytest.approx(2.160, rel=0.01)
    assert block_us(NEXT, Block(), 1024) == pytest.approx(16.6, rel=0.02)


def test_an_access_takes_a_turn_or_its_lines():
    turn, line = NEXT.value("simt.request_cycles"), NEXT.value("simt.line_cycles")
    assert access_cycles(NEXT, [Access(10)]) == pytest.approx(10 * turn)
    assert access_cycles(NEXT, [Access(10, 32)]) == pytest.approx(320 * line)
    assert access_cycles(NEXT, [Access(1, 32, in_ub=True)]) == 32
    assert access_cycles(NEXT, []) == 0


def test_accesses_and_bytes_overlap():
    busy, moving = Block((Access(4096),)), Block((Access(1),), 1 << 18, 1 << 18)
    both = Block((Access(4096),), 1 << 18, 1 << 18)
    assert max(cycles(busy), cycles(moving)) <= cycles(both) < cycles(busy) + cycles(moving)


def test_more_work_and_more_blocks_take_longer():
    times = [cycles(Block((Access(count),))) for count in (1, 64, 4096)]
    assert times == sorted(times) and times[0] >= NEXT.value("simt.first_access_cycles")
    us = [block_us(NEXT, Block((Access(64),), 4096, 4096), blocks) for blocks in (1, 64, 65, 1024)]
    assert us == sorted(us)


def test_atomics_on_a_line_follow_each_other():
    assert line_wait_cycles(NEXT, 1000, 1) == 1000 * NEXT.value("simt.atomic_cycles")
    assert line_wait_cycles(NEXT, 1000, 32) == 32 * NEXT.value("simt.atomic_cycles")


def test_older_chips_have_no_threads():
    with pytest.raises(TargetError, match="simt"):
        block_us(load_target("Ascend910B3"), Block((Access(1),)), 1)
