"""How far the batch of a model can go in a given memory: a few sizes are compiled and planned, the border is met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from metadef.error import PlanError
from metadef.gears import GearSpec
from metadef.memory import plan_memory

if TYPE_CHECKING:
    from metadef.compiler import CompileOptions

_MAX_BATCH = 1 << 16


@dataclass(frozen=True)
class BatchAnswer:
    """The largest batch that fits, its arena (bytes), that of the next size, and every size that was tried."""

    batch: int
    capacity: int
    total_size: int
    next_size: int
    tried: tuple[tuple[int, int], ...]


def largest_batch(source: str | Path, options: CompileOptions, capacity: int, budget_s: float = 0.2) -> BatchAnswer:
    """How far the open batch axis can go before the arena exceeds ``capacity`` bytes.

    Sizes are compiled and planned; the arena is close to linear in the batch, so a few tries meet the border.

    Raises:
        UsageError: no input has an open batch. PlanError: not even batch 1 fits. LabError: from the compiler.
    """
    from metadef.compiler import schedule_model
    from metadef.gear_build import gear_options

    sizes: dict[int, int] = {}

    def size(batch: int) -> int:
        if batch not in sizes:
            spec = GearSpec("batch", ((batch,),))
            (bound,) = gear_options(source, replace(options, gears=spec)).values()
            sizes[batch] = plan_memory(schedule_model(source, bound).schedule, budget_s=budget_s).total_size
        return sizes[batch]

    if size(1) > capacity:
        raise PlanError(
            "not even a batch of 1 fits",
            expected=f"at most {capacity} bytes",
            got=f"{size(1)} bytes, {size(1) - capacity} too many",
            hint="smaller input shapes, --precision fp16, or more memory",
        )
    low, high = _bracket(size, capacity)
    while high - low > 1:
        slope = (size(high) - size(low)) / (high - low)
        guess = low + int((capacity - size(low)) / slope) if slope > 0 else (low + high) // 2
        middle = min(max(guess, low + 1), high - 1)
        if size(middle) > capacity:
            high = middle
        else:
            low = middle
            if high - low > 1 and size(low + 1) > capacity:
                high = low + 1
    return BatchAnswer(low, capacity, size(low), size(low + 1), tuple(sorted(sizes.items())))


def _bracket(size: Callable[[int], int], capacity: int) -> tuple[int, int]:
    """A batch that fits and a larger one that does not, the latter where a straight line meets the capacity."""
    low, high = 1, 2
    while size(high) <= capacity:
        slope = max((size(high) - size(low)) / (high - low), 1.0)
        low, high = high, high + int((capacity - size(high)) / slope) + 1
        if high > _MAX_BATCH:
            raise PlanError(
                f"a batch of {_MAX_BATCH} still fits",
                expected="a capacity that some batch exceeds",
                got=f"{capacity} bytes, batch {low} takes {size(low)}",
                hint="give the memory of the chip in bytes with --capacity",
            )
    return low, high
