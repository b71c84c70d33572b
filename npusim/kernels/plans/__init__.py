"""Host plans: how this computer carries out a device task with its own kernels.

A planner function takes a :class:`Site` (a task with host addresses) and returns the executor's calls. ``PLANNERS``
maps operator types to planner functions; each states what it cannot do by raising :class:`NoFastKernel`, and the task
then runs on its derived twin. Constant weights are packed once, here, into the kernels' own layout, after which the
mapped pages of the model file are let go.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from metadef.program import Task
from npusim.device import Device
from npusim.kernels.desc import Call
from npusim.kernels.plans import cube, pool, vector
from npusim.kernels.plans.site import NoFastKernel, PlanOptions, Site

__all__ = ["PLANNERS", "NoFastKernel", "PlanOptions", "Planner", "Site"]

PlanFunction = Callable[[Site], list[Call]]
PLANNERS: dict[str, PlanFunction] = {
    "BNInfer": vector.plan_batch_norm,
    "BatchMatMulV2": cube.plan_matmul,
    "Conv2D": cube.plan_conv,
    "MatMulV2": cube.plan_matmul,
    **dict.fromkeys(("AvgPoolV2", "GlobalAveragePool", "MaxPoolV3"), pool.plan_pool),
    **dict.fromkeys(vector.ELEMENTWISE_TYPES, vector.plan_elementwise),
}


class Planner:
    """Plans the tasks of one program on one device."""

    def __init__(self, device: Device, options: PlanOptions) -> None:
        self.device = device
        self.options = options

    def plan(self, task: Task) -> tuple[list[Call] | None, str]:
        """The calls of a device task and "", or None and the reason why only its twin can run it."""
        if all(prod(operand.desc.shape) == 0 for operand in task.outputs):
            return [], ""
        function = PLANNERS.get(task.kernel.op_type)
        if function is None:
            return None, f"no fast kernel for operator {task.kernel.op_type}"
        try:
            return function(Site(task, self.device, self.options)), ""
        except NoFastKernel as refusal:
            return None, str(refusal)
