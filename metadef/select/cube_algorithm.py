"""The algorithm of a cube kernel: directly, or a convolution by Winograd's, as the options and the chip's model say."""

from __future__ import annotations

from dataclasses import replace

from metadef.cost.run import MemoryState, kernel_cost
from metadef.cost.winograd_phases import ALGORITHMS, obstacle
from metadef.kernel import Kernel
from metadef.schedule import Workspace
from metadef.select.cube import choose_cube_kernel
from metadef.select.winograd import choose_winograd_kernel
from metadef.target import Target, TargetError

Chosen = tuple[Kernel, tuple[Workspace, ...]]


def choose_by_algorithm(kernel: Kernel, target: Target, conv: str, *, constant: bool, cold_b: bool) -> Chosen:
    """The kernel and its workspaces, as ``conv`` (one of ``metadef.winograd.CONV_CHOICES``) wants it.

    ``constant`` says that the second operand is a weight, ``cold_b`` that it comes from memory. A convolution whose
    Winograd tiles do not fit the chip stays direct.

    Raises:
        TargetError: the cube cannot multiply the element type, or no tile fits.
    """
    if conv == "direct":
        return _direct(kernel, target, cold_b)
    if why := obstacle(kernel, target, constant):
        chosen, workspaces = _direct(kernel, target, cold_b)
        if kernel.op_type == "Conv2D":
            chosen = replace(chosen, reason=f"{chosen.reason}; Winograd does not serve {why}")
        return chosen, workspaces
    options: list[Chosen] = []
    for name in [conv] if conv in ALGORITHMS else list(ALGORITHMS):
        try:
            options.append(choose_winograd_kernel(kernel, target, name, cold_b=cold_b))
        except TargetError:
            continue
    if conv == "auto" or not options:
        options.append(_direct(kernel, target, cold_b))
    memory = MemoryState(cold=(0.0, float(cold_b)))
    cycles = [kernel_cost(chosen, target, memory) for chosen, _ in options]
    best, workspaces = options[cycles.index(min(cycles))]
    if len(options) > 1:
        ranked = sorted(zip(cycles, (chosen.algorithm for chosen, _ in options)))
        text = ", ".join(f"{name} {count}" for count, name in ranked)
        best = replace(best, reason=f"{best.reason}; cycles by algorithm: {text}")
    return best, workspaces


def _direct(kernel: Kernel, target: Target, cold_b: bool) -> Chosen:
    chosen, workspace_bytes = choose_cube_kernel(kernel, target, cold_b=cold_b)
    return chosen, (Workspace(workspace_bytes),) if workspace_bytes else ()
