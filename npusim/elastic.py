"""Shapes that no gear holds: compiled when they come, run in the gears' memory if it is large enough, else in a pool.

The memory of the largest gear is the upper bound that was planned first; a plan for the true shape is the second
adjustment. The last few shapes are kept; memory of the others goes back to the pool.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from metadef.memory_pool import MemoryPool, PoolBlock
from metadef.program import Program
from npusim.device import page_buffer

KEPT_SHAPES = 4
_PAGE_BYTES = 4096

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class ElasticProgram:
    """A program compiled for one set of shapes, its weights, and the device memory it runs in.

    ``block`` is the pool's (None: it fits the memory of the gears).
    """

    key: str
    program: Program
    weights: np.ndarray
    memory: np.ndarray
    block: PoolBlock | None


class Elastic:
    """Programs for shapes beyond the gears.

    Args:
        compile_for: program and weights for concrete input shapes.
        upper: the memory of the gears.
        kept: how many shapes are kept ready.
    """

    def __init__(
        self, compile_for: Callable[[Shapes], tuple[Program, np.ndarray]], upper: np.ndarray, kept: int = KEPT_SHAPES
    ) -> None:
        self._compile_for = compile_for
        self._upper = upper
        self._kept = kept
        self._known: OrderedDict[str, ElasticProgram] = OrderedDict()
        self.pool = MemoryPool(page_buffer, granule=_PAGE_BYTES)
        self.compiled = 0

    def program(self, shapes: Shapes) -> tuple[ElasticProgram, list[str]]:
        """The program for these shapes, compiled if it is new, and the keys of those that had to go.

        Raises:
            LabError: whatever the compiler says of these shapes.
        """
        key = "; ".join(f"{name}={','.join(map(str, shape))}" for name, shape in sorted(shapes.items()))
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key], []
        program, weights = self._compile_for(shapes)
        self.compiled += 1
        gone = []
        while len(self._known) >= self._kept:
            old, dropped = self._known.popitem(last=False)
            gone.append(old)
            if dropped.block is not None:
                self.pool.give_back(dropped.block)
        needed = program.arena_bytes + program.io_bytes
        block = self.pool.take(needed) if needed > self._upper.nbytes else None
        memory = self._upper if block is None else block.data[block.offset : block.offset + block.size]
        self._known[key] = ElasticProgram(key, program, weights, memory, block)
        return self._known[key], gone
