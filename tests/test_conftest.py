"""The shared fixtures, tried on small suites of their own: goldens, missing data, seeds."""

import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent

SUITE = """
import pytest

def test_needs_a_file(need_data):
    assert need_data("here.txt").read_text() == "data"

def test_needs_another(need_data):
    need_data("missing.txt")

def test_golden(golden):
    golden("first line\\nsecond line")

@pytest.mark.parametrize("size", [3])
def test_draw(rng, golden, size):
    golden(repr(rng.integers(0, 1000, size).tolist()), "draw")
"""


@pytest.fixture
def suite(tmp_path):
    """Run the suite above; returns the number of tests by outcome, and the text."""
    folder = tmp_path / "tests"
    folder.mkdir()
    shutil.copy(REPO / "tests" / "conftest.py", folder)
    (folder / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")

    def run(*options, data="absent", ci=""):
        env = {**os.environ, "NPUSIM_DATA": str(tmp_path / data), "CI": ci, "PYTHONPATH": str(REPO)}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *options, str(folder)]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        words = done.stdout.splitlines()[-1].replace(",", "").split()
        counts = {kind: int(count) for count, kind in pairwise(words) if count.isdigit() and kind != "deselected"}
        return counts, done.stdout

    return run


def test_data_and_goldens_from_absent_to_stale(suite, tmp_path):
    counts, text = suite(ci="true")
    assert counts == {"skipped": 2, "failed": 2}
    assert "NPUSIM_DATA: no directory" in text
    assert "no golden tests/goldens/test_suite/test_golden.txt: run pytest --update" in text

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "here.txt").write_text("data")
    assert suite("--update", data="data")[0] == {"passed": 3, "skipped": 1}

    stored = tmp_path / "tests" / "goldens" / "test_suite" / "test_golden.txt"
    assert stored.read_text() == "first line\nsecond line\n"
    stored.write_text("first line\nanother line\n")
    counts, text = suite(data="data", ci="true")
    assert counts == {"passed": 2, "failed": 2}
    assert "skipped for want of data" in text
    assert "-another line" in text
