"""The light models that come with onnx: the plan is the live set, proved, and in-place saves what a study found."""

from __future__ import annotations

import pytest

from metadef.memory import check_plan, plan_memory
from tools.bench.light_schedules import light_schedule

PEAK_BYTES_AND_INPLACE = {
    "bvlc_alexnet": (2_239_488, 1.000),
    "densenet121": (8_429_568, 0.857),
    "inception_v1": (6_422_528, 0.723),
    "inception_v2": (6_422_528, 0.625),
    "resnet50": (9_633_792, 0.750),
    "shufflenet": (3_110_912, 1.000),
    "squeezenet": (6_308_352, 0.623),
    "vgg19": (25_690_112, 1.000),
    "zfnet512": (9_124_608, 1.000),
}
"""Proved optimum of file order, unfused in fp32, and its ratio with in-place (planner study, section 1)."""


@pytest.mark.parametrize("name", PEAK_BYTES_AND_INPLACE)
def test_light_model_is_planned_in_its_live_set(name: str):
    schedule = light_schedule(name)
    plain, inplace = plan_memory(schedule, inplace=False), plan_memory(schedule)
    for plan in (plain, inplace):
        check_plan(schedule, plan)
        assert plan.optimal and plan.total_size == plan.theory_min
    peak, ratio = PEAK_BYTES_AND_INPLACE[name]
    assert plain.total_size == peak
    assert round(inplace.total_size / plain.total_size, 3) <= ratio
