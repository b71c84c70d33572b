"""Profile: what a run costs on the simulated chip, task by task. Reports read this value and nothing else.

All cycles are integer cycles of the chip's core clock. Every cycle of a task belongs to one cause, and the causes add
up to the task's cycles; bytes are those of the tiles moved, summed over all cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

CAUSES = ("compute", "pipe wait", "memory", "misalignment", "bank conflict", "launch", "imbalance")


@dataclass(frozen=True)
class TaskProfile:
    """One executed task.

    ``pipes`` maps a pipe (MTE2, MTE1, CUBE, FIXPIPE, VECTOR, MTE3, SCALAR) to its busy cycles on the slowest core;
    ``bytes`` maps a path (``GM->L1``, ``L1->L0A``, ``L0C->GM``, ``GM->UB``, ``UB->GM``…) to bytes over all cores;
    ``bound_by`` names the largest cause and its resource; ``energy_pj`` is picojoules; ``requests`` to global memory
    count over all cores; host tasks have no pipes. ``runs`` is how many executions a merged row stands for.
    """

    task: int
    name: str
    op_type: str
    engine: str
    block_dim: int
    start_cycles: int
    cycles: int
    pipes: dict[str, int] = field(default_factory=dict)
    causes: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    hbm_read_bytes: int = 0
    hbm_write_bytes: int = 0
    l2_hit_bytes: int = 0
    flops: int = 0
    energy_pj: float = 0.0
    bound_by: str = ""
    origins: tuple[str, ...] = ()
    layer: str = ""
    requests: int = 0
    algorithm: str = "direct"
    runs: int = 1


@dataclass(frozen=True)
class Profile:
    """All executed tasks in order. ``clock_mhz`` turns cycles into time."""

    name: str
    soc: str
    clock_mhz: float
    tasks: tuple[TaskProfile, ...]

    @property
    def cycles(self) -> int:
        """Cycles from the first launch to the last task's end."""
        return max((task.start_cycles + task.cycles for task in self.tasks), default=0)

    @property
    def us(self) -> float:
        return self.to_us(self.cycles)

    def to_us(self, cycles: int) -> float:
        """Microseconds of a number of cycles."""
        return cycles / self.clock_mhz

    def by_task(self) -> Profile:
        """One row a task, in the order of first execution: rows of a task that ran several times are added up."""
        rows: dict[int, list[TaskProfile]] = {}
        for row in self.tasks:
            rows.setdefault(row.task, []).append(row)
        return replace(self, tasks=tuple(merged(group) for group in rows.values()))


_SUMMED = ("cycles", "hbm_read_bytes", "hbm_write_bytes", "l2_hit_bytes", "flops", "energy_pj", "requests", "runs")


def merged(rows: list[TaskProfile]) -> TaskProfile:
    """Rows of one task as one, which starts with the first; ``bound_by`` is the longest one's."""
    if len(rows) == 1:
        return rows[0]
    longest = max(rows, key=lambda row: row.cycles)
    changed: dict[str, Any] = {name: sum(getattr(row, name) for row in rows) for name in _SUMMED}
    changed |= {name: _added(getattr(row, name) for row in rows) for name in ("pipes", "causes", "bytes")}
    return replace(rows[0], **changed, bound_by=longest.bound_by)


def _added(maps: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for counts in maps:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return total
