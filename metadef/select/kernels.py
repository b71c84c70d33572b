"""A kernel for every node: tile, cores and workspace, each distinct problem searched once.

Host-run nodes keep a kernel without a tile. ``Kernel.reason`` says in a line why the tile was taken.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from metadef.error import LabError
from metadef.kernel import Kernel
from metadef.op import CostClass, get_op
from metadef.select.cube_algorithm import Chosen, choose_by_algorithm
from metadef.select.variation import fits, shortest, with_fewer_cores
from metadef.select.vector import choose_vector_kernel
from metadef.target import Target

_CUBE = (CostClass.CONV, CostClass.MATMUL)


class KernelChooser:
    """Completes kernels for one chip and remembers them: networks repeat their layers.

    ``weights_bytes`` is what all constants of the network take: more than half of L2 means that they come from memory.
    ``conv`` is one of :data:`metadef.winograd.CONV_CHOICES`. A variation of another chip (:attr:`Target.base`) takes
    that chip's kernels where its own search finds none that are as short: a better chip is never slower.
    """

    def __init__(self, target: Target, weights_bytes: int = 0, conv: str = "direct") -> None:
        self._target = target
        self._conv = conv
        self._cold_weights = 2 * weights_bytes > target.value("memory.l2_bytes")
        self._base = None if target.base is None else KernelChooser(target.base, weights_bytes, conv)
        self._known: dict[Any, Chosen] = {}

    def __call__(self, kernel: Kernel, path: str, constant: bool = False) -> Chosen:
        """The kernel with tile and cores, and its workspaces.

        ``path`` names the node in messages; ``constant`` says that the second operand is a weight.

        Raises:
            TargetError: the chip cannot run the operator, or no tile fits.
        """
        if not kernel.engine.on_device:
            return kernel, ()
        cold = constant and self._cold_weights
        operands = (kernel.engine, kernel.inputs, kernel.outputs, cold, constant)
        key = (kernel.op_type, operands, repr(kernel.attrs), repr(kernel.fused))
        if key not in self._known:
            try:
                self._known[key] = self._choose(kernel, path, cold, constant)
            except LabError as error:
                located = [problem if problem.node else replace(problem, node=path) for problem in error.problems]
                raise type(error)(located) from None
        return self._known[key]

    def _choose(self, kernel: Kernel, path: str, cold: bool, constant: bool) -> Chosen:
        chips = with_fewer_cores(self._target)
        ours = [self._choose_for(chip, kernel, cold, constant) for chip in chips]
        if self._base is None:
            return ours[0]
        try:
            theirs = self._base(kernel, path, constant)
        except LabError:
            return ours[-1]
        if not fits(theirs[0], self._target):
            return ours[-1]
        theirs = replace(theirs[0], reason=f"as on {self._base._target.soc}: {theirs[0].reason}"), theirs[1]
        options = [theirs, *ours]
        return options[shortest([item for item, _ in options], self._target, cold)]

    def _choose_for(self, target: Target, kernel: Kernel, cold: bool, constant: bool) -> Chosen:
        if get_op(kernel.op_type).cost not in _CUBE:
            return choose_vector_kernel(kernel, target), ()
        return choose_by_algorithm(kernel, target, self._conv, constant=constant, cold_b=cold)
