"""Memory planning: Schedule -> MemoryPlan, its independent checker and its reports."""

from __future__ import annotations

from metadef.memory.check import check_plan
from metadef.memory.plan import MemoryPlan, PlanRow, PoolFigures
from metadef.memory.planner import plan_memory

__all__ = ["MemoryPlan", "PlanRow", "PoolFigures", "check_plan", "plan_memory"]
