"""Weights of an offline model stay in the file: loading maps them, and only what is touched becomes resident."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from metadef.graph import Graph
from metadef.model import Model, save_om
from metadef.program import Program

MIB = 1 << 20
ROLLUP = Path("/proc/self/smaps_rollup")

LOAD = """
import json, mmap, re, sys
import numpy as np
from metadef.model import load_om

def resident():
    return int(re.search(r"^Rss:\\s+(\\d+) kB", open("/proc/self/smaps_rollup").read(), re.MULTILINE)[1]) * 1024

load_om(sys.argv[2])
start = resident()
weights = load_om(sys.argv[1]).weights
mapped = isinstance(weights, np.memmap) and isinstance(weights._mmap, mmap.mmap) and not weights.flags.writeable
loaded = resident() - start
last = int(weights[-1])
touched = resident() - start
total = int(weights[::4096].sum(dtype=np.int64))
print(json.dumps({"mapped": mapped, "loaded": loaded, "touched": touched, "read": resident() - start, "last": last}))
"""


@pytest.mark.skipif(not ROLLUP.exists(), reason="resident memory is read from /proc, which this system does not have")
def test_weights_are_mapped_and_not_copied(tmp_path: Path, rng: np.random.Generator) -> None:
    for name, size in (("small", MIB), ("big", 48 * MIB)):
        weights = rng.integers(0, 256, size, dtype=np.uint8)
        program = Program(name, "Ascend910B3", weights_bytes=weights.nbytes)
        save_om(Model(name, "Ascend910B3", Graph(name), weights, {"": program}), tmp_path / f"{name}.om")
    last = int(weights[-1])
    command = [sys.executable, "-c", LOAD, str(tmp_path / "big.om"), str(tmp_path / "small.om")]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["mapped"] and found["last"] == last
    assert found["loaded"] < 8 * MIB, "the checksum is read through a small buffer"
    assert found["touched"] < 8 * MIB, "one page was touched"
    assert found["read"] > 40 * MIB, "the file's pages come in when they are read"
