"""Tiles of vector kernels: cores by the vendor's rule, units dealt whole, tile length by the cost estimator.

The rule for block_dim (95 % exact on published 910B launches): one core for every 4096 bytes of the largest operand,
counted in the widest type, up to all cores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from metadef.error import TargetError
from metadef.format import BLOCK_BYTES, SLOT_BYTES, ceil_div, round_up
from metadef.kernel import Kernel, VectorTile
from metadef.select.buffers import OnChip
from metadef.select.vector_rank import rank_vector_tiles
from metadef.select.vector_shape import Stream, VectorShape, vector_shape
from metadef.target import Target

BYTES_PER_CORE = 4096
_TILE_COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 4096, 1 << 30)


@dataclass(frozen=True)
class VectorChoice:
    """The tile taken, the cores in use, and what the estimator says (cycles of the task)."""

    tile: VectorTile
    block_dim: int
    cycles: int


def choose_vector_kernel(kernel: Kernel, target: Target, *, block_dim: int | None = None) -> Kernel:
    """The kernel with tile, cores and reason; ``block_dim`` imposes the cores in place of the rule.

    Raises:
        TargetError: no tile fits. InferError: shapes do not fit the operator.
    """
    choice = choose_vector_tile(kernel, target, block_dim=block_dim)
    share = ceil_div(choice.tile.units, choice.block_dim)
    reason = (
        f"{choice.block_dim} of {target.vector_cores} cores, at most one for every {BYTES_PER_CORE} bytes; "
        f"{share} of {choice.tile.units} units each; {choice.cycles} cycles estimated"
    )
    return replace(kernel, tile=choice.tile, block_dim=choice.block_dim, reason=reason)


def choose_vector_tile(kernel: Kernel, target: Target, *, block_dim: int | None = None) -> VectorChoice:
    """The tile with the fewest estimated cycles; units longer than UB are cut first.

    ``block_dim`` imposes the number of pieces, also beyond the cores (waves) or the units (cores left idle).

    Raises:
        TargetError: the operands that stay in UB leave no room.
    """
    shape = vector_shape(kernel, target)
    shape = _cut_to_fit(_cut_for_cores(shape, block_dim or _cores_by_rule(shape, target)), target)
    cores = block_dim or core_count(shape, target)
    share = ceil_div(shape.units, cores)
    cores = block_dim or ceil_div(shape.units, share)
    lengths = np.unique([ceil_div(share, min(count, share)) for count in _TILE_COUNTS])
    options = [(int(length), double) for length in lengths for double in (True, False)]
    options = [
        (length, double)
        for length, double in options
        if (length < share or not double) and place_vector_buffers(shape, length, double, target).fits
    ]
    table = np.array(options)
    cycles = rank_vector_tiles(kernel, shape, table[:, 0], table[:, 1].astype(bool), cores, target)
    length, double = options[int(np.argmin(cycles))]
    buffers = tuple(place_vector_buffers(shape, length, double, target).buffers)
    return VectorChoice(shape.tile(length, double, buffers), cores, int(cycles.min()))


def core_count(shape: VectorShape, target: Target) -> int:
    """Cores by the rule; never more than there are units to deal."""
    return max(min(_cores_by_rule(shape, target), shape.units, shape.max_cores), 1)


def _cores_by_rule(shape: VectorShape, target: Target) -> int:
    return min(target.vector_cores, ceil_div(max(shape.rule_bytes, 1), BYTES_PER_CORE))


def place_vector_buffers(shape: VectorShape, length: int, double: bool, target: Target) -> OnChip:
    """UB: resident operands first, then the streams (each twice if double buffered), then the fp32 copy."""
    chip = OnChip(target)
    for name, size in shape.resident:
        chip.take(name, "UB", size)
    for stream in (*shape.inputs, *shape.outputs):
        chip.stream(stream.name, tile_bytes(stream, length), 2 if double else 1)
    if shape.scratch_bytes:
        chip.take("scratch", "UB", round_up(int(np.ceil(shape.scratch_bytes * length)), BLOCK_BYTES))
    return chip


def tile_bytes(stream: Stream, length: int) -> int:
    """Bytes of ``length`` units of an operand in UB."""
    return round_up(int(np.ceil(stream.unit_bytes * length + stream.fixed_bytes)), BLOCK_BYTES)


def _cut_for_cores(shape: VectorShape, cores: int) -> VectorShape:
    """A few long units that may be divided are cut until every core has one, though not below 512 bytes."""
    wanted = ceil_div(cores, shape.units)
    unit_bytes = shape.rule_bytes / shape.units
    pieces = min(wanted, int(unit_bytes) // SLOT_BYTES)
    return shape.cut(pieces) if shape.divisible and pieces > 1 else shape


def _cut_to_fit(shape: VectorShape, target: Target) -> VectorShape:
    """Units cut until one fits, two of those that may be divided; operands that cannot stay resident are an error."""
    pieces, cut = 1, shape
    while not place_vector_buffers(cut, 1, shape.divisible, target).fits:
        pieces *= 2
        if pieces > 2 * shape.unit_elements:
            held = sum(size for _, size in shape.resident)
            expected = f"less than {target.buffer_bytes['UB']} bytes in UB"
            raise TargetError(
                "operands that stay on the chip leave no room for a tile", expected=expected, got=f"{held}"
            )
        cut = shape.cut(min(pieces, shape.unit_elements))
    return cut
