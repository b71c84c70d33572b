"""Weights of an offline model stay in the file: loading maps them, and only what is touched becomes resident."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np
import pytest

from metadef.graph import Graph
from metadef.model import Model, load_om, save_om
from metadef.program import Program

MIB = 1 << 20
SMAPS = Path("/proc/self/smaps_rollup")


def resident_bytes() -> int:
    if not SMAPS.exists():
        pytest.skip("resident memory is read from /proc, which this system does not have")
    return int(re.search(r"^Rss:\s+(\d+) kB", SMAPS.read_text(), re.MULTILINE)[1]) * 1024


def test_weights_are_mapped_and_not_copied(tmp_path: Path, rng: np.random.Generator) -> None:
    weights = rng.integers(0, 256, 48 * MIB, dtype=np.uint8)
    program = Program("big", "Ascend910B3", weights_bytes=weights.nbytes)
    save_om(Model("big", "Ascend910B3", Graph("big"), weights, {"": program}), tmp_path / "big.om")
    sample = weights[-5:].copy()
    del weights
    before = resident_bytes()
    model = load_om(tmp_path / "big.om")
    assert resident_bytes() - before < 8 * MIB, "the checksum is read through a small buffer"
    assert isinstance(model.weights, np.memmap) and not model.weights.flags.writeable
    assert isinstance(model.weights._mmap, mmap.mmap)
    assert np.array_equal(model.weights[-5:], sample)
    assert resident_bytes() - before < 8 * MIB, "one page was touched"
    assert int(model.weights[::4096].sum(dtype=np.int64)) > 0
    assert resident_bytes() - before > 40 * MIB, "the file's pages come in when they are read"
