"""Kernels of a chip on a variation of it: whether they fit there, and which of several is short wherever operands lie.

The searches for tiles and the vendor's rule for cores look at one chip alone. A chip with more cores would start cores
that a short task has no use for, and with a faster memory a search may end in another, worse tile: so what the chip
took that is varied is a candidate as well, and what the variation would take with some of its further cores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metadef.cost.run import kernel_cost
from metadef.cost.streams import MemoryState
from metadef.kernel import CubeTile, Kernel, WinogradTile, phases_of
from metadef.target import Target, replaced

_HARDLY_LONGER = 1.02
_STEPS = 4
"""Numbers of cores that are tried from those of the varied chip on."""
_WEIGHTS = (1, 2)
"""Inputs of a product that are weights and bias; after them come operands of its epilogue."""


def with_fewer_cores(target: Target) -> list[Target]:
    """The variation itself, and with fewer of the cores that it has beyond those of its base."""
    if target.base is None or (
        target.cube_cores <= target.base.cube_cores and target.vector_cores <= target.base.vector_cores
    ):
        return [target]
    counts = [
        np.linspace(*pair, _STEPS).astype(int).tolist()
        for pair in (
            (min(target.base.cube_cores, target.cube_cores), target.cube_cores),
            (min(target.base.vector_cores, target.vector_cores), target.vector_cores),
        )
    ]
    return [replaced(target, {"cores.cube": cube, "cores.vector": vector}) for cube, vector in zip(*counts)]


def fits(kernel: Kernel, target: Target) -> bool:
    """Whether the on-chip buffers and the cores of a kernel that was chosen for another chip are there.

    Buffers lie on the granules of their memory.
    """
    buffers = [buffer for phase in phases_of(kernel.tile) for buffer in phase.buffers]
    ends = [(item.memory, item.offset_bytes + item.size_bytes * item.copies) for item in buffers]
    if any(end > target.buffer_bytes.get(memory, 0) for memory, end in ends):
        return False
    starts = [(item.memory, start) for item in buffers for start in (item.offset_bytes, item.size_bytes)]
    if any(start % target.granule_bytes.get(memory, 1) for memory, start in starts):
        return False
    if isinstance(kernel.tile, WinogradTile):
        vector = max(kernel.tile.input_cores, kernel.tile.output_cores)
        return vector <= target.vector_cores and kernel.tile.product_cores <= target.cube_cores
    return kernel.block_dim <= target.cores(isinstance(kernel.tile, CubeTile))


def shortest(kernels: Sequence[Kernel], target: Target, cold_b: bool) -> int:
    """Which kernel takes the fewest cycles, of those that are hardly longer than the first wherever operands lie.

    The searches assume them in L2, but for weights if ``cold_b``; that state decides.
    """
    cycles = np.array([[kernel_cost(item, target, state) for state in _states(item, cold_b)] for item in kernels])
    expected = np.where((cycles <= _HARDLY_LONGER * cycles[0]).all(1), cycles[:, 0], np.inf)
    return int(np.argmin(expected))


def _states(kernel: Kernel, cold_b: bool) -> list[MemoryState]:
    """What a task may find in L2 of what it reads, and what it drives out: the assumed state first."""
    ports = range(len(kernel.inputs))
    weights = tuple(float(cold_b and port in _WEIGHTS) for port in ports)
    half, none = ((share,) * len(ports) for share in (0.5, 1.0))
    return [
        MemoryState(weights),
        MemoryState(),
        MemoryState(weights, write_back=2.0),
        MemoryState(half, write_back=0.5),
        MemoryState(none),
        MemoryState(none, write_back=1.0),
    ]
