"""The published effects of misalignment, replayed as single copies on the simulated chip."""

from __future__ import annotations

from dataclasses import dataclass

from metadef.target import Target
from npusim.timing import micro

_TOTAL_BYTES = 12288 * 12288 * 2
"""Bytes that the published copies read."""


@dataclass(frozen=True)
class MicroEffect:
    """One effect on the simulated chip, beside what a board or the vendor says (``published``, ratio of times)."""

    effect: str
    aligned_us: float
    misaligned_us: float
    published: float
    source: str

    @property
    def ratio(self) -> float:
        """Misaligned time over aligned time."""
        return self.misaligned_us / self.aligned_us


def micro_effects(target: Target) -> list[MicroEffect]:
    """The published effects of addresses and rows off the line, replayed as pure copies of 302 MB.

    Raises:
        TargetError: the chip lacks the paths of the copies.
    """

    def copy(path: str, **where: float) -> float:
        fields = {"rows": 64, "row_bytes": 2048, "pitch": 24576, **where}
        return micro.read_copies(target, _TOTAL_BYTES, path=path, **fields).us  # type: ignore[arg-type]

    ub, l1, nz = "GM->UB", "GM->L1", "GM->L1 ND2NZ"
    line, board = 512, "board, 910B1"
    pairs = (
        ("rows of 24574 B for 24576 B, GM->UB", copy(ub), copy(ub, pitch=24574), 1.28, board),
        (
            "rows of 24574 B for 24576 B, GM->L1 (ND to NZ)",
            copy(nz, row_bytes=line),
            copy(nz, row_bytes=line, pitch=24574),
            1.91,
            board,
        ),
        (
            "address 32 B off the line, rows of 512 B",
            copy(ub, row_bytes=line),
            copy(ub, row_bytes=line, residue=32),
            1 / 0.7,
            "vendor, worst case",
        ),
        (
            "all cores read the same lines, GM->UB",
            copy(ub, cold=0),
            copy(ub, cold=0, readers=target.cores(False)),
            1.64,
            board,
        ),
        (
            "all cores read the same lines, GM->L1",
            copy(l1, cold=0),
            copy(l1, cold=0, readers=target.cores(True)),
            1.26,
            board,
        ),
    )
    return [MicroEffect(*fields) for fields in pairs]
