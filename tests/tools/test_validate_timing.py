"""The comparison with published measurements: its statistics, and its quick sets where the data is there."""

import json

import pytest

from timing_data import Pair
from timing_figures import figures, rank_correlation
from timing_statement import BEGIN, END, MEASUREMENTS, README, TYPES_LEFT_OUT, table, write
from validate_timing import main


def _pairs(*ratios):
    return [Pair(str(index), "", 10.0 * (index + 1), 10.0 * (index + 1) * ratio) for index, ratio in enumerate(ratios)]


def test_figures_of_a_set():
    row = figures(_pairs(1.0, 1.1, 0.8, 1.2), 8)
    assert row["rows"] == 4 and row["coverage"] == 0.5
    assert row["median"] == pytest.approx(0.15) and row["bias"] == pytest.approx(1.05)
    assert row["rank_correlation"] == 1.0


def test_a_set_without_rows_has_no_figures():
    assert figures([], 3) == {
        "rows": 0,
        "coverage": 0.0,
        "median": None,
        "p90": None,
        "bias": None,
        "rank_correlation": None,
    }


def test_rank_correlation_with_ties():
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == -1.0
    assert rank_correlation([1, 1, 2, 3], [5, 5, 6, 7]) == 1.0
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None


def test_missing_data_is_a_usage_error(tmp_path, capsys):
    assert main(["--data", str(tmp_path)]) == 2
    assert "NPUSIM_DATA" in capsys.readouterr().err


def test_board_runs_are_met(need_data, capsys):
    need_data("measured/kernel_pipes.csv")
    assert main(["--json", "--sets", "board_copies", "board_additions", "instruction_mmad"]) == 0
    sets = json.loads(capsys.readouterr().out)["sets"]
    assert sets["board_copies"]["median"] < 0.1 and sets["board_copies"]["p90"] < 0.25
    assert sets["board_additions"]["median"] < 0.1 and sets["board_additions"]["p90"] < 0.25
    assert sets["instruction_mmad"]["median"] < 0.01


def _result():
    row = {"rows": 1234, "median": 0.0512, "p90": 0.31}
    return {
        "sets": {name: row for _, name in MEASUREMENTS},
        "left_out": {name: {"left_out": row} for _, name in TYPES_LEFT_OUT},
    }


def test_the_readme_table_is_put_between_its_marks(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(_result(), page)
    assert page.read_text() == f"before\n{BEGIN}\n{table(_result())}\n{END}\nafter\n"
    assert "| 910B: cube instructions | 1,234 | 5.1 % | 31 % |" in page.read_text()
    page.write_text("no marks")
    with pytest.raises(ValueError, match="no place for the table"):
        write(_result(), page)


def test_the_readme_has_every_line_of_its_table():
    lines = README.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].splitlines()
    assert [line.split(" | ")[0].lstrip("| ") for line in lines if line.startswith("| ")][2:] == [
        label for label, _ in (*MEASUREMENTS, *TYPES_LEFT_OUT)
    ]
