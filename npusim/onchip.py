"""On-chip addresses as the chip sees them: a buffer off its granule stops the core with the runtime's error code.

Addresses in global memory may lie anywhere down to the element (legal and slow); UB, L1 and L0 fault.
"""

from __future__ import annotations

from dataclasses import replace

from metadef.error import DeviceFault
from metadef.hazard import buffer_hazards
from metadef.kernel import Engine
from metadef.program import Program, Task
from metadef.target import Target

AICORE_EXCEPTION = "507015"
VECTOR_CORE_EXCEPTION = "507035"
"""Codes of the runtime: an AI core, or a vector core of its own, stopped with an exception."""


def check_on_chip(program: Program, target: Target) -> None:
    """Look at the buffers of every tile before anything runs.

    Raises:
        DeviceFault: with the runtime's code, task and buffer, for every buffer off its granule, outside its memory or
            over another one.
    """
    faults = [
        replace(problem, code=fault_code(task, target), message=f"the core would stop: {problem.message}")
        for task, problem in buffer_hazards(program, target)
    ]
    if faults:
        raise DeviceFault(faults)


def fault_code(task: Task, target: Target) -> str:
    """The code that the host sees when this task's core stops: vector cores are of their own only on split chips."""
    apart = task.kernel.engine is Engine.VECTOR and not target.coupled
    return VECTOR_CORE_EXCEPTION if apart else AICORE_EXCEPTION
