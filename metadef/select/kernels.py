"""A kernel for every node: tile, cores and workspace, each distinct problem searched once.

Host-run nodes keep a kernel without a tile. ``Kernel.reason`` says in a line why the tile was taken.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from metadef.error import LabError
from metadef.kernel import Kernel
from metadef.op import CostClass, get_op
from metadef.schedule import Workspace
from metadef.select.cube import choose_cube_kernel
from metadef.select.vector import choose_vector_kernel
from metadef.target import Target

_CUBE = (CostClass.CONV, CostClass.MATMUL)
_Chosen = tuple[Kernel, tuple[Workspace, ...]]


class KernelChooser:
    """Completes kernels for one chip and remembers them: networks repeat their layers."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[Any, _Chosen] = {}

    def __call__(self, kernel: Kernel, path: str) -> _Chosen:
        """The kernel with tile and cores, and its workspaces. ``path`` names the node in messages.

        Raises:
            TargetError: the chip cannot run the operator, or no tile fits.
        """
        if not kernel.engine.on_device:
            return kernel, ()
        key = (kernel.op_type, kernel.engine, kernel.inputs, kernel.outputs, repr(kernel.attrs), repr(kernel.fused))
        if key not in self._known:
            try:
                self._known[key] = self._choose(kernel)
            except LabError as error:
                located = [problem if problem.node else replace(problem, node=path) for problem in error.problems]
                raise type(error)(located) from None
        return self._known[key]

    def _choose(self, kernel: Kernel) -> _Chosen:
        if get_op(kernel.op_type).cost not in _CUBE:
            return choose_vector_kernel(kernel, self._target), ()
        chosen, workspace_bytes = choose_cube_kernel(kernel, self._target)
        return chosen, (Workspace(workspace_bytes),) if workspace_bytes else ()
