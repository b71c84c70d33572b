"""Tasks that the chip's cores do not run: AI_CPU and HOST_CPU, executed with NumPy between stretches of device tasks.

An Ascend operator (AI_CPU, or a device operator without a fast host kernel) is computed by its derived twin, straight
on device memory. The operands of a framework node on HOST_CPU are copied out of device memory, its results copied back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metadef.control import IMPOSSIBLE, OWN_DOMAIN
from metadef.error import DeviceFault
from metadef.program import Task
from npusim.device import Device
from npusim.framework import run_framework_node
from npusim.twin import run_twin


def run_host_task(task: Task, device: Device, overflow: str = "inf") -> None:
    """Execute one task in device memory with NumPy.

    Raises:
        OperatorError: nobody knows the operator. DeviceFault: its reference refused the values it was given, or a run
        took a branch that cannot run under the compiled shapes.
    """
    if (task.kernel.domain, task.kernel.op_type) == (OWN_DOMAIN, IMPOSSIBLE):
        hint = "compile the model for input shapes that this branch is meant for"
        text = f"this branch cannot run with the compiled shapes: {task.kernel.attrs['reason']}"
        raise DeviceFault(text, node=task.name, hint=hint)
    inputs = [None if operand is None else device.read_tensor(operand) for operand in task.inputs]
    if task.kernel.domain == "ascend":
        results: Sequence[np.ndarray | None] = run_twin(task.kernel, inputs, node=task.name, overflow=overflow)
    else:
        results = run_framework_node(task.kernel, inputs, task.name)
    for operand, result in zip(task.outputs, results, strict=True):
        if result is not None:
            device.write_tensor(operand, result)
