"""Reuse of memory changes no bit: planned runs against runs without reuse, unwritten memory poisoned in both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from make_models import cached_light, picture
from metadef.compiler import CompileOptions, compile_model
from npusim import InferenceSession, SessionOptions
from npusim.data import digits_model, digits_samples


def same_bits(source: Path | str, feed: np.ndarray, options: CompileOptions) -> tuple[int, int]:
    """Asserts equal outputs with reuse and without; the arenas of both, in bytes."""
    outputs, arenas = [], []
    for reuse in (True, False):
        model = compile_model(source, replace(options, reuse=reuse)).model
        session = InferenceSession(model, SessionOptions(checked=True, threads=1))
        results = session.run(None, {session.get_inputs()[0].name: feed})
        assert all(np.isfinite(result).all() and np.ptp(result) > 0 for result in results)
        outputs.append([result.tobytes() for result in results])
        arenas.append(session.program.total_size)
        session.close()
    assert outputs[0] == outputs[1]
    return arenas[0], arenas[1]


@pytest.mark.parametrize("precision", ["fp16", "origin"])
def test_digits_run_the_same_with_and_without_reuse(precision: str):
    planned, apart = same_bits(
        digits_model(), digits_samples().as_input(3, 4), CompileOptions(precision=precision, dims={"batch": 4})
    )
    assert planned < apart


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "squeezenet"])
def test_light_models_run_the_same_with_and_without_reuse(name: str):
    planned, apart = same_bits(cached_light(name), picture(1), CompileOptions())
    assert 2 * planned < apart
