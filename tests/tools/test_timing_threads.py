"""Thread kernels of the vendor's samples: every kind is expressed from its row, and the chip's board rows are met."""

import sys
from pathlib import Path

import numpy as np
import pytest

from metadef.target import load_target

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from timing_sample_sets import reads_together, sample_kernels
from timing_thread_sets import is_told, numbered, thread_us

NEXT = load_target("Ascend950PR")


def row(kernel: str, case: str = "1", **fields: str) -> dict[str, str]:
    names = ("shape", "tile", "block_dim", "dim", "grid", "n_addr", "mem", "vf_calls", "threads", "elems_per_core")
    return {**dict.fromkeys(names, ""), "kernel": kernel, "case": case, "duration_us": "nan", **fields}


def test_more_takes_longer():
    pairs = [
        (row("simt_aligned_types", "Align8"), row("simt_aligned_types", "Misalign8")),
        (row("simt_transpose", "1", shape="512x512"), row("simt_transpose", "2", shape="512x512")),
        (row("simt_transpose", "7", shape="512x512"), row("simt_transpose", "5", shape="512x512")),
        (row("simd_simt_transpose", "4", shape="512x512"), row("simd_simt_transpose", "2", shape="512x512")),
        (
            row("simt_atomic_add", grid="8x256", n_addr="1", mem="UB"),
            row("simt_atomic_add", grid="8x256", n_addr="1", mem="GM"),
        ),
        (row("simt_int_div", shape="65536"), row("simt_int_div", shape="1048576")),
    ]
    for fast, slow in pairs:
        quick, long = thread_us(fast, NEXT), thread_us(slow, NEXT)
        assert quick is not None and long is not None and 0 < quick < long, fast["kernel"]


def hash_row(case: str, dim: int, us: float) -> dict[str, str]:
    return row("simt_hash_table", case, block_dim="64", dim=str(dim), duration_us=str(us))


def test_others_of_a_page_tell_how_much_work_a_row_is():
    short, long = (row("simt_grid_dim", block_dim="8", elems_per_core=size) for size in ("1024", "2048"))
    empty = row("simt_grid_dim", block_dim="8")
    for us in (5.0, 50.0):
        other = row("simt_grid_dim", block_dim="8", elems_per_core="4096", duration_us=str(us))
        times = [thread_us(item, NEXT, [other, empty]) for item in (empty, short, long)]
        assert times[0] is not None and times[1] is not None and times[2] is not None
        assert times[0] < times[1] < times[2] < us
    first, second = row("simt_short_vector_add", "1"), row("simt_short_vector_add", "2", duration_us="45")
    slow = thread_us(first, NEXT, [second])
    assert slow is not None and 80 < slow < 90
    agreed = thread_us(row("simt_warp_divergence", "2"), NEXT, [row("simt_warp_divergence", "1", duration_us="80")])
    assert agreed is not None and 40 < agreed < 45


def test_rows_of_a_hash_table_are_in_line():
    """A look-up that takes as long as three lines, a second case twice as fast."""
    start = thread_us(row("simt_grid_dim", block_dim="64"), NEXT) or 0
    times = {(case, dim): start + (3 + dim // 32) * 20 / (1 + case) for case in (0, 1) for dim in (32, 64, 128, 256)}
    rows = {key: hash_row(str(key[0]), key[1], us) for key, us in times.items()}
    for key, us in times.items():
        told = thread_us(hash_row(str(key[0]), key[1], float("nan")), NEXT, [rows[at] for at in times if at != key])
        assert told == pytest.approx(us, rel=0.05)


def test_what_says_nothing_of_its_work_is_left_out():
    assert thread_us(row("simd_simt_hybrid", block_dim="64"), NEXT) is None
    for alone in (
        row("simt_warp_divergence"), row("simt_short_vector_add"), hash_row("0", 64, 100.0),
        row("simt_grid_dim", block_dim="8", elems_per_core="64"),
    ):  # fmt: skip
        assert is_told(alone) and thread_us(alone, NEXT) is None
    assert thread_us(hash_row("1", 64, 100.0), NEXT, [hash_row("0", 64, 200.0)]) is None
    assert not is_told(row("simt_grid_dim", block_dim="8")) and not is_told(row("simt_int_div", shape="64"))


def test_rows_without_a_case_are_counted():
    rows = [row("a", ""), row("b", ""), row("a", ""), row("a", "7")]
    assert [item["case"] for item in numbered(rows)] == ["1", "1", "2", "7"]
    assert reads_together(row("data_copy_gm_to_ub", "7")) and not reads_together(row("data_copy_gm_to_ub", "3"))


def test_board_rows_are_met(need_data):
    need_data("measured/kernel_pipes.csv")
    from validate_timing import data_root

    ratios = [pair.predicted / pair.measured for pair in sample_kernels(data_root(), "950").pairs if "sim" in pair.what]
    assert len(ratios) > 30 and np.median(np.abs(np.asarray(ratios) - 1)) == pytest.approx(0, abs=0.1)
