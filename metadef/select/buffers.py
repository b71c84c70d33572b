"""Places for a tile's buffers in on-chip memory: aligned to the memory's granule, one after another, checked to fit."""

from __future__ import annotations

from metadef.format import round_up
from metadef.kernel import Buffer
from metadef.target import Target

BANK_PERIOD_BYTES = 512
"""UB's 16 bank groups of 32 bytes repeat after this many: operands half a period apart never meet in a group."""


class OnChip:
    """Hands out buffers; ``fits`` turns false as soon as one does not."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._used: dict[str, int] = {}
        self._streams = 0
        self.buffers: list[Buffer] = []
        self.fits = True

    def take(self, name: str, memory: str, size_bytes: int, copies: int = 1) -> None:
        """The next free place of ``memory``; sizes are rounded up to its granule, so that every copy is aligned."""
        if size_bytes > 0:
            self._place(name, memory, size_bytes, copies, self._target.granule_bytes.get(memory, 1), 0)

    def stream(self, name: str, size_bytes: int, copies: int) -> None:
        """A UB buffer of a streamed operand: neighbours start half a bank period apart, so their reads do not clash."""
        if size_bytes > 0:
            phase = BANK_PERIOD_BYTES // 2 * (self._streams % 2)
            self._place(name, "UB", size_bytes, copies, BANK_PERIOD_BYTES, phase)
            self._streams += 1

    def _place(self, name: str, memory: str, size_bytes: int, copies: int, granule: int, phase: int) -> None:
        offset = round_up(max(self._used.get(memory, 0) - phase, 0), granule) + phase
        size = round_up(size_bytes, granule)
        self._used[memory] = offset + size * copies
        self.fits &= self._used[memory] <= self._target.buffer_bytes.get(memory, 0)
        self.buffers.append(Buffer(name, memory, offset, size, copies))
