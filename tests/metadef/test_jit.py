"""Compiled functions on disk: kept, found again, and lost without harm."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = """
from metadef.jit import compiled

@compiled()
def double(x):
    return 2 * x
"""

Fresh = Callable[[], tuple[int, int]]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    monkeypatch.setattr("metadef.jit._folder", lambda: folder)
    return folder


@pytest.fixture
def fresh(tmp_path: Path, store: Path) -> Fresh:
    """Calls the function as a new process would: its result, and how often machine code was found in the store."""
    path = tmp_path / "module_of_test.py"
    path.write_text(SOURCE)

    def call() -> tuple[int, int]:
        spec = importlib.util.spec_from_file_location("module_of_test", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.double(21), sum(module.double.stats.cache_hits.values())

    return call


def test_machine_code_is_found_again(fresh: Fresh):
    assert [fresh() for _ in range(3)] == [(42, 0), (42, 1), (42, 1)]


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[: len(data) // 2], lambda data: b"\x9e" * 99])
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_damaged_files_are_made_again(store: Path, fresh: Fresh, kind: str, damage: Callable[[bytes], bytes]):
    fresh()
    (file,) = store.rglob(f"*.{kind}")
    file.write_bytes(damage(file.read_bytes()))
    assert [fresh() for _ in range(2)] == [(42, 0), (42, 1)]


def test_a_file_that_cannot_be_written_costs_nothing_but_a_compilation(store: Path, fresh: Fresh):
    fresh()
    (index,) = store.rglob("*.nbi")
    index.unlink()
    index.mkdir()  # nothing can be renamed to it, whoever tries
    assert [fresh() for _ in range(2)] == [(42, 0)] * 2
