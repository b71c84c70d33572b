"""The compiler's front door refuses what it was told wrongly."""

from __future__ import annotations

import pytest

from metadef.compiler import CompileOptions, compile_model
from metadef.error import UsageError
from npusim.data import digits_model


def test_unknown_passes_are_refused_with_near_names():
    options = CompileOptions(disabled_passes=frozenset({"ConvBatchnormFusionPas", "nopass"}))
    with pytest.raises(UsageError, match="2 problems") as caught:
        compile_model(digits_model(), options)
    assert "did you mean 'ConvBatchnormFusionPass'" in str(caught.value)


def test_unknown_precision_is_refused():
    with pytest.raises(UsageError, match="fp16 or origin"):
        CompileOptions(precision="int4")


def test_stages_are_timed_and_reported():
    seen: list[str] = []
    compilation = compile_model(
        digits_model(), CompileOptions(shapes={"image": (1, 1, 28, 28)}), on_stage=lambda name, value: seen.append(name)
    )
    assert seen[:2] == ["parse", "legalize"] and seen[-3:] == ["select", "plan", "lower"]
    assert set(compilation.stage_seconds) >= {"parse", "legalize", "passes", "select", "plan", "lower"}
