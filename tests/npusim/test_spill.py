"""Large constants of a session's compilation lie in a file: same values, nothing lost where no file can be written."""

import tempfile

import numpy as np
import pytest

from metadef.compiler import CompileOptions, compile_model
from npusim import InferenceSession, SessionOptions, spill
from npusim.data import digits_model


@pytest.fixture
def everything_is_large(monkeypatch):
    monkeypatch.setattr(spill, "LEAST_BYTES", 1)
    monkeypatch.setattr(spill, "WORTHWHILE_BYTES", 1)


def on_file(array: np.ndarray) -> bool:
    holder: object = array
    while isinstance(holder, np.ndarray):
        if isinstance(holder, np.memmap):
            return True
        holder = holder.base
    return False


def test_constants_and_weights_are_mapped_and_hold_the_same(everything_is_large):
    made = compile_model(digits_model(), CompileOptions())
    weights = made.model.weights.copy()
    constants = {tensor.name: tensor.const.copy() for tensor in made.graph.constants()}
    spill.spill(made)
    assert on_file(made.model.weights) and np.array_equal(made.model.weights, weights)
    for tensor in made.graph.constants():
        assert on_file(tensor.const) and not tensor.const.flags.writeable
        assert tensor.const.dtype == constants[tensor.name].dtype
        np.testing.assert_array_equal(tensor.const, constants[tensor.name])


@pytest.mark.parametrize("options", [SessionOptions(), SessionOptions(dynamic_batch_size="1,4")])
def test_a_session_computes_the_same(options, monkeypatch):
    def results():
        session = InferenceSession(digits_model(), options)
        feeds = {item.name: np.random.default_rng(3).random(item.shape, np.float32) for item in session.get_inputs()}
        return session, session.run(None, feeds)

    _, wanted = results()
    monkeypatch.setattr(spill, "LEAST_BYTES", 1)
    monkeypatch.setattr(spill, "WORTHWHILE_BYTES", 1)
    session, got = results()
    assert on_file(session.model.weights)
    for one, other in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_a_place_for_the_file_memory_serves(everything_is_large, monkeypatch):
    def refuse(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    made = compile_model(digits_model(), CompileOptions())
    spill.spill(made)
    assert not on_file(made.model.weights)


def test_a_small_model_stays_in_memory():
    assert not on_file(InferenceSession(digits_model()).model.weights)
