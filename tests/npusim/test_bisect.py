"""The pass that costs the accuracy is found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from make_models import residual_block
from metadef.compiler import CompileOptions
from metadef.error import UsageError
from metadef.graph import Graph
from metadef.passes import PIPELINE, Pass, PassContext
from npusim.bisect import bisect_model
from npusim.data import digits_model, digits_samples
from to_bfloat import to_bfloat

OPTIONS = CompileOptions(dims={"batch": 1})
UNSURE = int(digits_samples().outputs.max(1).argmin())
FEEDS = {"image": digits_samples().as_input(UNSURE, 1)}
"""A picture whose probabilities are spread, so that every change of a filter shows."""


@dataclass(frozen=True)
class Spoil(Pass):
    """Scales the filters, as a wrong folding would."""

    def run(self, graph: Graph, context: PassContext) -> bool:
        for tensor in graph.constants():
            if tensor.const is not None and len(tensor.desc.origin_shape) == 4:
                tensor.const = (tensor.const * 1.5).astype(tensor.const.dtype)
        return True


@pytest.mark.parametrize("place", [3, 20])
def test_a_broken_pass_is_named(place: int):
    passes = (*PIPELINE[:place], Spoil("SpoilPass", "for the test"), *PIPELINE[place:])
    found = bisect_model(digits_model(), FEEDS, OPTIONS, limit=0.05, passes=passes)
    assert (found.culprit, found.reason) == ("SpoilPass", "for the test")
    assert found.before <= 0.05 < found.after


def test_a_sound_pipeline_has_no_culprit():
    found = bisect_model(Path(digits_model()), None, OPTIONS, limit=0.05)
    assert found.culprit == "" and found.after <= 0.05


def test_half_precision_is_the_culprit_where_the_limit_is_tight():
    found = bisect_model(digits_model(), FEEDS, OPTIONS, limit=1e-5)
    assert found.culprit == "RefineRunningPrecision" and found.before < 1e-5 < found.after


def test_a_limit_that_single_precision_alone_misses_is_told():
    with pytest.raises(UsageError, match=r"(?s)before any pass.*raise --limit, which single precision"):
        bisect_model(digits_model(), FEEDS, OPTIONS, limit=0)


def test_models_in_bfloat16_are_judged_by_values_not_by_bits():
    model = to_bfloat(residual_block(channels=8, side=6))
    found = bisect_model(model, None, CompileOptions(precision="origin"), limit=0.02)
    assert found.culprit == "" and 0 < found.after <= 0.02
