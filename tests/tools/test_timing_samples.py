"""Sample kernels: pages that tell what a row does not state; and for every set, that no measured time is predicted from
itself."""

import csv
import re
import sys
from pathlib import Path

import pytest

import timing_data

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from timing_data import chip, rows_of
from timing_sample_sets import TOLD, others_of, sample_kernels, sample_us
from timing_sets import SETS
from timing_thread_sets import is_told, numbered
from validate_timing import data_root

MEASURED = re.compile(
    r"_us$|_us_|duration|(?<!vf_)cycles|ratio|gbps|tbps|tflops|miss|_hit|victim|pct|fops|rate|counter|per_cycle"
)
"""Columns of what a run gave."""
STATED = {"l2_hit_pct"}
"""The one of them that predictions read: how often repeated copies hit L2; nothing else says in which order they go."""
NOT_HERE = ("networks_310p3",)
"""Networks take minutes; of their rows only batch and network reach the model."""


def spoil(data: Path, out: Path) -> None:
    """A copy of the data with everything that was measured changed, each row by a factor of its own."""
    for file in (data / "measured").glob("*.csv"):
        with file.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            rows, names = list(reader), reader.fieldnames or []
        columns = [name for name in names if MEASURED.search(name) and name not in STATED]
        for at, row in enumerate(rows):
            for name in columns:
                if re.fullmatch(r"[0-9.]+", row[name]):
                    row[name] = str(float(row[name]) * (2 + at % 7))
        with (out / file.name).open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, names)
            writer.writeheader()
            writer.writerows(rows)


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory):
    if not (data_root() / "measured" / "kernel_pipes.csv").is_file():
        return None
    out = tmp_path_factory.mktemp("spoilt")
    spoil(data_root(), out)
    return out


@pytest.mark.parametrize("name", [name for name in SETS if name not in NOT_HERE])
def test_no_prediction_reads_a_measured_time(name, spoilt, need_data, monkeypatch):
    """Every set: with all measurements changed, what is predicted from rows that state their work is the same."""
    need_data("measured/kernel_pipes.csv")
    samples = "sample" in name or name.startswith("board")
    monkeypatch.setattr(timing_data, "sample_every", 1 if samples else 37)
    pairs, changed = (SETS[name](data).pairs for data in (data_root(), spoilt))
    before, after = (
        {pair.id: (float(pair.predicted), pair.left_out) for pair in found if TOLD not in pair.what}
        for found in (pairs, changed)
    )
    assert all(pair.measured != other.measured for pair, other in zip(pairs, changed))
    assert before and before == after


def test_rows_that_others_tell_do_not_read_their_own_time(need_data):
    need_data("measured/kernel_pipes.csv")
    rows = numbered(rows_of(data_root(), "kernel_pipes"))
    seen = 0
    for row in rows:
        if row["kernel"] == "nd2nz" or is_told(row):
            target = chip(row["soc"], row["source"])
            blank = {name: "nan" if MEASURED.search(name) else text for name, text in row.items()}
            told = sample_us(blank, target, others_of(row, rows))
            assert told == sample_us(row, target, others_of(row, rows)) and told > 0
            seen += 1
    assert seen > 10


def test_rows_that_others_tell_are_marked(need_data):
    need_data("measured/kernel_pipes.csv")
    for family, kernels in (("910B", {"nd2nz"}), ("950", {"nd2nz", "simt_hash_table", "simt_grid_dim"})):
        pairs = sample_kernels(data_root(), family).pairs
        assert kernels <= {pair.what.split()[0] for pair in pairs if pair.what.endswith(TOLD)}
        assert not any(pair.what.endswith(TOLD) for pair in pairs if pair.what.startswith(("matmul", "gelu", "topk")))


def test_a_board_alone_says_nothing_of_its_matrix():
    target = chip("950PR")
    row = {
        "id": "1", "soc": "950PR", "source": "", "kernel": "nd2nz", "case": "S2", "tile": "144x128", "block_dim": "64",
        "duration_us": "140",
    }  # fmt: skip
    assert sample_us(row, target, []) is None
    assert sample_us(row, target, [{**row, "soc": "unknown"}]) is None
    assert sample_us(row, target, [{**row, "case": "S1"}]) is None
    one, two = (sample_us(row, target, [{**row, "id": "2", "duration_us": us}]) for us in ("140", "280"))
    assert one is not None and two is not None and one < two
