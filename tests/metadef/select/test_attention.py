"""Attention as one mixed kernel: how it is dealt, and how its time follows the sizes."""

from dataclasses import replace

import pytest

from metadef.cost.run import run_kernel
from metadef.cost.stages import MIXED
from metadef.cost.streams import MemoryState
from metadef.dtype import DType
from metadef.kernel import TIMING_ONLY
from metadef.select.attention import Attention, attention_kernel
from metadef.target import load_target

B2 = load_target("Ascend910B2")
PREFILL = Attention(2, 8, 8, 1024, 1024, 128, 128, DType.FLOAT16)
DECODE = Attention(16, 32, 8, 1, 2048, 128, 128, DType.FLOAT16)


def us(size, cold=1.0):
    run = run_kernel(attention_kernel(size, B2), B2, MemoryState(cold=(cold,) * 3, write_back=1.0))
    assert sum(run.core.why.values()) == run.core.cycles
    return run.cycles / B2.clock_mhz


def test_tasks_are_blocks_of_rows_of_a_head():
    kernel = attention_kernel(PREFILL, B2)
    mixed = kernel.attrs[MIXED]
    assert kernel.algorithm == TIMING_ONLY and kernel.block_dim == B2.cube_cores
    assert [stage.on_cube for stage in mixed.stages] == [True, False, True, False]
    # 16 heads of 8 blocks over 24 cores, two blocks of 512 keys each.
    assert (mixed.chains, mixed.rounds) == (6, 12)


def test_few_rows_share_the_keys():
    few = Attention(1, 8, 8, 1, 8192, 128, 128, DType.FLOAT16)
    assert attention_kernel(few, B2).block_dim == B2.cube_cores


@pytest.mark.parametrize("field", ["batch", "queries", "keys"])
@pytest.mark.parametrize("size", [PREFILL, DECODE], ids=["prefill", "decode"])
def test_more_work_takes_longer(size, field):
    more = replace(size, **{field: 4 * getattr(size, field)})
    assert us(more) > us(size)


def test_heads_that_share_keys_read_them_once():
    own = replace(DECODE, kv_heads=32)
    assert us(DECODE) < 0.5 * us(own)


def test_skipped_keys_cost_nothing():
    masked = replace(PREFILL, keys=4096, keys_kept=2048)
    assert us(masked) == pytest.approx(us(replace(PREFILL, keys=2048)), rel=0.01)


@pytest.mark.parametrize(("length", "measured"), [(8192, 353.1), (32768, 3646.2)])
def test_one_head_of_the_board(length, measured):
    size = Attention(1, 1, 1, length, length, 128, 128, DType.FLOAT16)
    assert us(size) == pytest.approx(measured, rel=0.35)
