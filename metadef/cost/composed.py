"""Kernels that are more than one stream a core: Winograd convolutions in phases, mixed kernels in stages."""

from __future__ import annotations

from metadef.cost.mixed import run_mixed
from metadef.cost.run import KernelRun
from metadef.cost.stages import mixed_of
from metadef.cost.streams import MemoryState
from metadef.cost.winograd import run_winograd
from metadef.kernel import Kernel, WinogradTile
from metadef.target import Target


def run_composed(kernel: Kernel, target: Target, memory: MemoryState, protocol: str, keep: int) -> KernelRun | None:
    """Simulate such a kernel, or say that it is none. Arguments and errors as for ``run_kernel``."""
    if isinstance(kernel.tile, WinogradTile):
        return run_winograd(kernel, target, memory, protocol=protocol, keep=keep)
    mixed = mixed_of(kernel, target)
    return None if mixed is None else run_mixed(kernel, mixed, target, memory, protocol=protocol, keep=keep)
