"""MemoryPlan: rows by tensor and by step, also after the rows have changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metadef.memory import MemoryPlan, PlanRow


def test_rows_are_found_and_follow_changes():
    plan = MemoryPlan("net", 0, [PlanRow(i, f"t{i}", "arena", 512 * i, 512, 400, 0, 1) for i in range(3)])
    plan.rows.append(PlanRow(-1, "w1", "arena", 0, 512, 64, 1, 1, step=1, workspace=1))
    plan.rows.append(PlanRow(-1, "w0", "arena", 0, 512, 64, 1, 1, step=1, workspace=0))
    assert plan.of_tensor(2).name == "t2"
    assert [row.name for row in plan.workspaces_of(1)] == ["w0", "w1"] and plan.workspaces_of(0) == []
    plan.rows[2] = replace(plan.rows[2], offset=4096)
    assert plan.of_tensor(2).offset == 4096
    plan.rows.reverse()
    assert plan.of_tensor(0).name == "t0"
    with pytest.raises(KeyError):
        plan.of_tensor(9)
