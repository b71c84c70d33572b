"""Estimated cycles of vector tiles: the instruction list of ``metadef.cost`` shared out over tiles of given lengths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from metadef.cost.estimate import vector_tile_cycles
from metadef.cost.vector_view import REPEAT_BYTES, VectorView, Work
from metadef.kernel import Kernel
from metadef.select.vector_shape import VectorShape
from metadef.target import Target


def rank_vector_tiles(
    kernel: Kernel, shape: VectorShape, lengths: np.ndarray, double: np.ndarray, cores: int, target: Target
) -> np.ndarray:
    """Cycles of the task for tiles of ``lengths`` units (int array), double buffered or not (bool array)."""
    view = VectorView.of(replace(kernel, tile=shape.tile(1)), target)
    share = -(-shape.units // cores)
    loads = sum((lengths * item.unit_bytes + item.fixed_bytes for item in shape.inputs), np.zeros(len(lengths)))
    stores = sum((lengths * item.unit_bytes for item in shape.outputs), np.zeros(len(lengths)))
    part = lengths / view.units
    busy = part * sum(_busy_cycles(work, target) for work in view.work)
    busy += sum(work.start_cycles for work in view.work)
    calls = sum((work.tile_calls(part) for work in view.work), np.zeros(len(lengths)))
    return vector_tile_cycles(target, loads, stores, busy, calls, -(-share // lengths), cores, double)


def _busy_cycles(work: Work, target: Target) -> float:
    """Cycles of an instruction over all units."""
    repeats = work.repeats or work.bytes / REPEAT_BYTES
    slope = work.cycles_per_repeat or (target.vector_instruction(work.mnemonic, work.width)[1] if repeats else 0)
    return repeats * slope + work.scalar_cycles + work.odd_cycles
