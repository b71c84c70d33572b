"""What lies in L2 from task to task: ranges of device memory, least recently used out first, writes kept until evicted.

Only bytes are tracked, not lines: a range is resident as a whole or to a part. A task that touches more than L2 holds
streams through it and leaves the same share of each operand behind. Of an operand larger than L2 only what an earlier
task wrote is hit: lines that were merely read are gone when the reader comes round (board: 302 MB read four times over
hit 0.005 %), written ones stay (training steps of the first generation move all but one L2 size at memory's rate).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class _Range:
    start: int
    stop: int
    resident: float
    dirty: float


@dataclass(frozen=True)
class Access:
    """Bytes of a task's operands that were in L2 (per input, in order) and dirty bytes that had to leave for it.

    ``slices`` is in how many launches it ran.
    """

    hits: tuple[int, ...]
    written_back: int
    slices: int = 1


class L2:
    """The cache's contents. ``capacity`` is bytes; ranges are kept from oldest to newest."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._ranges: list[_Range] = []

    @property
    def resident_bytes(self) -> int:
        return round(sum(item.resident for item in self._ranges))

    def touch(
        self, reads: Sequence[tuple[int, int]], writes: Sequence[tuple[int, int]], last: Sequence[bool] = ()
    ) -> Access:
        """One task: (address, bytes) of its inputs and outputs. Inputs marked ``last`` make room at once and are never
        written back."""
        hits = tuple(round(self._hit(address, size)) for address, size in reads)
        ended = {span for span, over in zip(reads, last) if over}
        for address, size in ended:
            self._take_out(address, size)
        reads = [span for span in reads if span not in ended]
        footprint = sum(size for _, size in {*reads, *writes})
        left = min(1.0, self.capacity / max(footprint, 1))
        through = 0.0
        for address, size in reads:
            dirty = self._take_out(address, size)
            kept = size * left
            through += max(dirty - kept, 0.0)
            self._ranges.append(_Range(address, address + size, kept, min(dirty, kept)))
        for address, size in writes:
            self._take_out(address, size)
            kept = size * left
            through += size - kept
            self._ranges.append(_Range(address, address + size, kept, kept))
        return Access(hits, round(through + self._evict()))

    def drop(self, address: int, size: int) -> None:
        """Another master (the host) wrote this range in memory: what L2 holds of it is stale."""
        self._take_out(address, size)

    def _hit(self, address: int, size: int) -> float:
        stop = address + size
        found = 0.0
        for item in self._ranges:
            common = min(stop, item.stop) - max(address, item.start)
            if common > 0:
                there = item.dirty if size > self.capacity else item.resident
                found += common * there / (item.stop - item.start)
        return min(found, float(size))

    def _take_out(self, address: int, size: int) -> float:
        """Remove a range; returns the dirty bytes it held. Ranges that reach beyond it keep their outer parts."""
        stop, dirty = address + size, 0.0
        kept: list[_Range] = []
        for item in self._ranges:
            common = min(stop, item.stop) - max(address, item.start)
            if common <= 0:
                kept.append(item)
                continue
            length = item.stop - item.start
            dirty += item.dirty * common / length
            for low, high in ((item.start, address), (stop, item.stop)):
                if high > low:
                    part = (high - low) / length
                    kept.append(_Range(low, high, item.resident * part, item.dirty * part))
        self._ranges = kept
        return dirty

    def _evict(self) -> float:
        """Drop the oldest bytes beyond the capacity; returns the dirty ones among them."""
        over = sum(item.resident for item in self._ranges) - self.capacity
        written = 0.0
        while over > 0 and self._ranges:
            oldest = self._ranges[0]
            whole = oldest.resident <= over
            part = 1.0 if whole else over / oldest.resident
            written += oldest.dirty * part
            if not whole:
                oldest.resident -= over
                oldest.dirty *= 1 - part
                break
            over -= oldest.resident
            self._ranges.pop(0)
        return written
