"""Device memory that this computer cannot hold is refused with sizes and names before anything is touched."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.compiler import CompileOptions, compile_model
from metadef.error import HostMemoryError
from npusim import device as device_module
from npusim.data import digits_model
from npusim.device import Device
from npusim.session import InferenceSession, SessionOptions


def refuse(size_bytes: int) -> np.ndarray:
    raise OSError(12, "Cannot allocate memory")


def test_refusals_name_sizes_and_tensors(monkeypatch: pytest.MonkeyPatch):
    model = compile_model(digits_model(), CompileOptions(dims={"batch": 4})).model
    program = model.program
    for name, stand_in in (("page_buffer", refuse), ("physical_bytes", lambda: 4096)):
        with monkeypatch.context() as patch:
            patch.setattr(device_module, name, stand_in)
            with pytest.raises(HostMemoryError) as caught:
                Device(program, model.weights)
        text = str(caught.value)
        assert (
            text.startswith("[environment]") and f"{program.arena_bytes:,}" in text and f"{program.io_bytes:,}" in text
        )
        assert "(arena)" in text and "(weights)" not in text


def test_a_run_looks_at_free_memory_before_it_takes_any(monkeypatch: pytest.MonkeyPatch):
    session = InferenceSession(digits_model(), SessionOptions(dims={"batch": 1}, threads=1))
    feeds = {"image": np.ones((1, 1, 28, 28), np.float32)}
    with monkeypatch.context() as patch:
        patch.setattr(device_module, "available_bytes", lambda: 100)
        with pytest.raises(HostMemoryError, match="at most 100 bytes"):
            session.run(None, feeds)
    assert session.run(None, feeds)[0].shape == (1, 10)
