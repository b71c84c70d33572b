"""Fixtures and rules shared by all tests.

`data_dir` and `need_data` lead to the data beside the project (NPUSIM_DATA), `golden` compares a text with a stored one
(`--update` rewrites it), `rng` is seeded from the test's name. In CI a test that skips
although its data is there fails.
The kernel store keeps its default place, so that runs share compiled kernels.
"""

from __future__ import annotations

import difflib
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from metadef.files import write_text

REPO = Path(__file__).resolve().parent.parent
GOLDENS = REPO / "tests" / "goldens"
DATA_VARIABLE = "NPUSIM_DATA"

# Deadlines are clocks, and no test asserts on a clock.
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")


def data_root() -> Path:
    """Directory of the data beside the project, whether it exists or not."""
    return Path(os.environ.get(DATA_VARIABLE) or REPO.parent / "shared").resolve()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite the golden files with what the tests produce")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The data beside the project; skips where it is absent."""
    root = data_root()
    if not root.is_dir():
        pytest.skip(f"{DATA_VARIABLE}: no directory {root}")
    return root


@pytest.fixture
def need_data(data_dir: Path) -> Callable[[str], Path]:
    """`need_data("ge_dumps/x.txt")` gives the path of a data file, or skips naming it."""

    def need(relative: str) -> Path:
        path = data_dir / relative
        if not path.exists():
            pytest.skip(f"{DATA_VARIABLE}: {relative} is not in {data_dir}")
        return path

    return need


def skipped_for_data(reason: str) -> bool:
    """Whether a skip reason blames missing data; such reasons name the variable."""
    return DATA_VARIABLE in reason


def _fail_if_data_is_there(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or os.environ.get("CI") != "true" or not data_root().is_dir():
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if skipped_for_data(reason):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: skipped for want of data, yet {data_root()} is there: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    _fail_if_data_is_there(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    _fail_if_data_is_there(report)
    return report


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`golden(text)` or `golden(text, "name")` compares with tests/goldens/<test file>/<name>.txt.

    The name defaults to the test's own. `pytest --update` writes the file; without it a missing file fails.
    """
    folder = GOLDENS / request.path.relative_to(REPO / "tests").with_suffix("")
    update = request.config.getoption("--update")

    def compare(text: str, name: str | None = None) -> None:
        path = folder / (re.sub(r"[^\w.+-]+", "_", name or request.node.name).strip("_") + ".txt")
        text = text.rstrip("\n") + "\n"
        if update:
            write_text(path, text)
            return
        shown = path.relative_to(REPO)
        if not path.exists():
            pytest.fail(f"no golden {shown}: run pytest --update {request.node.nodeid} and review the file")
        stored = path.read_text(encoding="utf-8")
        if stored != text:
            lines = difflib.unified_diff(stored.splitlines(), text.splitlines(), str(shown), "this run", lineterm="")
            pytest.fail("golden differs (pytest --update rewrites it):\n" + "\n".join(lines), pytrace=False)

    return compare


def _seed(nodeid: str) -> int:
    return zlib.crc32(nodeid.encode())


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name alone."""
    return np.random.default_rng(_seed(request.node.nodeid))


@pytest.fixture(autouse=True)
def _seed_global_state(request: pytest.FixtureRequest) -> None:
    np.random.seed(_seed(request.node.nodeid))


@pytest.fixture(scope="session")
def resnet50_path() -> Path:
    """ResNet-50 with seeded, calibrated weights; made once and kept in the user's cache."""
    pytest.importorskip("onnxruntime", reason="calibrating the ResNet-50 weights needs onnxruntime")
    from make_models import cached_resnet50

    return cached_resnet50(seed=0)
