"""A growing pool of device memory for what no plan foresaw: shapes beyond all gears, allocation at run time.

Requests take the smallest free block that holds them; blocks are split and, when given back, joined again with their
free neighbours. The pool grows by whole segments and counts what users ask about: hit rate, fragmentation, high water.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from metadef.error import ContractError
from metadef.format import round_up
from metadef.schedule import Schedule, TensorKind

GRANULE_BYTES = 512
SEGMENT_BYTES = 2 << 20


@dataclass
class PoolBlock:
    """Bytes [offset, offset + size) of a segment; ``data`` is what the segment was made of."""

    segment: int
    offset: int
    size: int
    data: Any = field(default=None, repr=False)


@dataclass(frozen=True)
class PoolStats:
    """Counts of a pool (bytes). A hit is a request that needed no new segment.

    ``largest_free`` is the largest free block, ``high_water`` the most that was in use at once.
    """

    requests: int
    hits: int
    reserved: int
    used: int
    high_water: int
    largest_free: int

    @property
    def hit_rate(self) -> float:
        """Share of requests served without growing, 0 to 1."""
        return self.hits / self.requests if self.requests else 0.0

    @property
    def fragmentation(self) -> float:
        """Share of the free bytes that the largest free block does not hold, 0 to 1."""
        free = self.reserved - self.used
        return 1.0 - self.largest_free / free if free else 0.0


class MemoryPool:
    """Best-fit blocks in growing segments.

    Args:
        allocate: makes the memory of a segment of so many bytes (nothing, for a simulation).
        granule: sizes are rounded up to it; segment_bytes: the pool grows by at least so many.
    """

    def __init__(
        self,
        allocate: Callable[[int], Any] = lambda size: None,
        *,
        granule: int = GRANULE_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._allocate = allocate
        self._granule = granule
        self._segment_bytes = segment_bytes
        self._segments: list[tuple[int, Any]] = []
        self._free: list[PoolBlock] = []
        self._requests = self._hits = self._used = self._high_water = 0

    def take(self, size: int) -> PoolBlock:
        """A block of at least ``size`` bytes; the pool grows if no free block holds it."""
        size = round_up(max(size, 1), self._granule)
        self._requests += 1
        fitting = [block for block in self._free if block.size >= size]
        if fitting:
            self._hits += 1
            block = min(fitting, key=lambda item: (item.size, item.segment, item.offset))
        else:
            block = self._grow(size)
        self._free.remove(block)
        if block.size > size:
            self._free.append(PoolBlock(block.segment, block.offset + size, block.size - size, block.data))
        self._used += size
        self._high_water = max(self._high_water, self._used)
        return PoolBlock(block.segment, block.offset, size, block.data)

    def give_back(self, block: PoolBlock) -> None:
        """Return a block; it joins its free neighbours. Raises ContractError for bytes that are free already."""
        low, high = block.offset, block.offset + block.size
        near = [item for item in self._free if item.segment == block.segment]
        if any(item.offset < high and low < item.offset + item.size for item in near):
            raise ContractError("a block of the memory pool was given back twice", got=str(block))
        for item in near:
            if item.offset + item.size == low:
                low = item.offset
                self._free.remove(item)
            elif item.offset == high:
                high = item.offset + item.size
                self._free.remove(item)
        self._free.append(PoolBlock(block.segment, low, high - low, block.data))
        self._used -= block.size

    @property
    def stats(self) -> PoolStats:
        """The counts so far."""
        return PoolStats(
            self._requests,
            self._hits,
            sum(size for size, _ in self._segments),
            self._used,
            self._high_water,
            max((block.size for block in self._free), default=0),
        )

    def _grow(self, size: int) -> PoolBlock:
        whole = round_up(size, self._segment_bytes)
        block = PoolBlock(len(self._segments), 0, whole, self._allocate(whole))
        self._segments.append((whole, block.data))
        self._free.append(block)
        return block


def replay(schedule: Schedule, pool: MemoryPool | None = None) -> PoolStats:
    """What the feature maps and workspaces of a schedule would do to a pool if they were allocated at run time.

    Views live in their base and members of a group in their parent; nothing is written in place.
    """
    # The planner is much to import for sessions, which only need a pool.
    from metadef.memory.bodies import tensor_slot
    from metadef.memory.live import live_table

    pool = pool or MemoryPool()
    live = live_table(schedule)
    inside = {live.base[t] for group in schedule.groups if group.parent >= 0 for t in group.members}
    born: dict[int, list[tuple[int, int]]] = {}
    for tensor in schedule.tensors:
        size = tensor_slot(tensor)
        if (
            live.base[tensor.id] != tensor.id
            or tensor.id in inside
            or tensor.kind is not TensorKind.FEATURE
            or not size
        ):
            continue
        if tensor.id in schedule.inputs or tensor.id in schedule.outputs:
            continue
        span = live.base_spans[tensor.id]
        born.setdefault(span.first, []).append((span.last, size))
    for step in schedule.steps:
        born.setdefault(step.id, []).extend((step.id, scratch.bytes) for scratch in step.workspaces)
    held: list[tuple[int, PoolBlock]] = []
    for now in range(len(schedule.steps)):
        held += [(last, pool.take(size)) for last, size in born.get(now, ())]
        for last, block in held:
            if last <= now:
                pool.give_back(block)
        held = [(last, block) for last, block in held if last > now]
    return pool.stats
