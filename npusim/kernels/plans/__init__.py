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
from npusim.kernels.plans import cube, move, pool, rows, vector
from npusim.kernels.plans.site import NoFastKernel, PlanOptions, Site

__all__ = ["PLANNERS", "NoFastKernel", "PlanOptions", "Planner", "Site"]

PlanFunction = Callable[[Site], list[Call]]
PLANNERS: dict[str, PlanFunction] = {
    "AvgPoolV2": pool.plan_pool,
    "BNInfer": vector.plan_batch_norm,
    "BatchMatMulV2": cube.plan_matmul,
    "BroadcastToD": move.plan_broadcast,
    "ConcatD": move.plan_concat,
    "Conv2D": cube.plan_conv,
    "GatherV2": move.plan_gather,
    "GlobalAveragePool": pool.plan_pool,
    "Identity": move.plan_identity,
    "InstanceNorm": rows.plan_instance_norm,
    "LayerNorm": rows.plan_layer_norm,
    "LogSoftmaxV2": rows.plan_softmax,
    "MatMulV2": cube.plan_matmul,
    "MaxPoolV3": pool.plan_pool,
    "PadD": move.plan_pad,
    "RmsNorm": rows.plan_rms_norm,
    "SoftmaxV2": rows.plan_softmax,
    "SplitD": move.plan_split,
    "SplitVD": move.plan_split,
    "StridedSliceD": move.plan_slice,
    "TileD": move.plan_tile,
    "TransData": move.plan_trans_data,
    "TransposeD": move.plan_transpose,
    **dict.fromkeys(rows.REDUCTIONS, rows.plan_reduction),
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
