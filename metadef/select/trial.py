"""What a node would take with operands or results in other formats, for passes that choose formats by cycles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from metadef.cost.run import kernel_cost
from metadef.cost.winograd_phases import is_eligible
from metadef.format import TensorDesc
from metadef.graph import Node
from metadef.select.kernels import KernelChooser
from metadef.select.steps import bare_kernel, trans_data_kernel
from metadef.target import Target


class Trial:
    """Kernels chosen on trial. ``conv`` is one of :data:`metadef.winograd.CONV_CHOICES`."""

    def __init__(self, target: Target, conv: str) -> None:
        self._target, self._conv = target, conv
        self._chooser = KernelChooser(target, conv=conv)

    def cycles(
        self, node: Node, inputs: Mapping[int, TensorDesc] | None = None, result: TensorDesc | None = None
    ) -> int:
        """Cycles of a node, launch included, with these operands (by slot) and result in place of its own.

        Raises:
            TargetError: no tile fits.
        """
        kernel = bare_kernel(node)
        operands = list(kernel.inputs)
        for slot, desc in (inputs or {}).items():
            operands[slot] = desc
        outputs = kernel.outputs if result is None else (result,)
        second = node.inputs[1] if len(node.inputs) > 1 else None
        constant = second is not None and second.is_const
        chosen, _ = self._chooser(replace(kernel, inputs=tuple(operands), outputs=outputs), node.path, constant)
        return kernel_cost(chosen, self._target)

    def change(self, source: TensorDesc, result: TensorDesc) -> int:
        """Cycles of a TransData."""
        return kernel_cost(self._chooser(trans_data_kernel(source, result), "TransData")[0], self._target)

    def must_be_winograd(self, node: Node) -> bool:
        """Whether Winograd's algorithm is asked for and can serve a convolution as it is."""
        return self._conv.startswith("winograd") and is_eligible(bare_kernel(node), self._target, constant=True)
