"""Thread kernels of the vendor's samples: every kind is expressed from its row, and the chip's board rows are met."""

import sys
from pathlib import Path

import numpy as np
import pytest

from metadef.target import load_target

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from timing_sample_sets import reads_together, sample_kernels
from timing_thread_sets import numbered, thread_us

NEXT = load_target("Ascend950PR")


def row(kernel: str, case: str = "1", **fields: str) -> dict[str, str]:
    names = ("shape", "tile", "block_dim", "dim", "grid", "n_addr", "mem", "vf_calls", "threads", "elems_per_core")
    return {**dict.fromkeys(names, ""), "kernel": kernel, "case": case, **fields}


def test_more_takes_longer():
    pairs = [
        (row("simt_grid_dim", block_dim="8"), row("simt_grid_dim", block_dim="8", elems_per_core="2048")),
        (row("simt_aligned_types", "Align8"), row("simt_aligned_types", "Misalign8")),
        (row("simt_transpose", "1", shape="512x512"), row("simt_transpose", "2", shape="512x512")),
        (row("simt_transpose", "7", shape="512x512"), row("simt_transpose", "5", shape="512x512")),
        (row("simd_simt_transpose", "4", shape="512x512"), row("simd_simt_transpose", "2", shape="512x512")),
        (row("simt_short_vector_add", "2"), row("simt_short_vector_add", "1")),
        (row("simt_hash_table", "1", block_dim="64", dim="64"), row("simt_hash_table", "0", block_dim="64", dim="64")),
        (
            row("simt_atomic_add", grid="8x256", n_addr="1", mem="UB"),
            row("simt_atomic_add", grid="8x256", n_addr="1", mem="GM"),
        ),
        (row("simt_int_div", shape="65536"), row("simt_int_div", shape="1048576")),
    ]
    for fast, slow in pairs:
        quick, long = thread_us(fast, NEXT), thread_us(slow, NEXT)
        assert quick is not None and long is not None and 0 < quick < long, fast["kernel"]


def test_what_says_nothing_of_its_work_is_left_out():
    assert thread_us(row("simt_warp_divergence"), NEXT) is None


def test_rows_without_a_case_are_counted():
    rows = [row("a", ""), row("b", ""), row("a", ""), row("a", "7")]
    assert [item["case"] for item in numbered(rows)] == ["1", "1", "2", "7"]
    assert reads_together(row("data_copy_gm_to_ub", "7")) and not reads_together(row("data_copy_gm_to_ub", "3"))


def test_board_rows_are_met(need_data):
    need_data("measured/kernel_pipes.csv")
    from validate_timing import data_root

    ratios = [pair.predicted / pair.measured for pair in sample_kernels(data_root(), "950").pairs if "sim" in pair.what]
    assert len(ratios) > 30 and np.median(np.abs(np.asarray(ratios) - 1)) == pytest.approx(0, abs=0.1)
