"""The kernel tests once more on a CPU without FMA, half conversion and rounding instructions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.skipif("NUMBA_CPU_NAME" in os.environ, reason="this run already names its CPU")
def test_kernels_on_a_generic_cpu() -> None:
    tests = ["tests/npusim/kernels", "tests/npusim/test_executor.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "NUMBA_CPU_NAME": "generic"}
    done = subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
