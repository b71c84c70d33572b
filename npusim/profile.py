"""Profile: what a run costs on the simulated chip, task by task. Reports read this value and nothing else.

All cycles are integer cycles of the chip's core clock. Every cycle of a task belongs to one cause, and the causes add
up to the task's cycles; bytes are those of the tiles moved, summed over all cores.
"""

from __future__ import annotations

from dataclasses import dataclass, field

CAUSES = ("compute", "pipe wait", "memory", "misalignment", "bank conflict", "launch", "imbalance")


@dataclass(frozen=True)
class TaskProfile:
    """One executed task.

    ``pipes`` maps a pipe (MTE2, MTE1, CUBE, FIXPIPE, VECTOR, MTE3, SCALAR) to its busy cycles on the slowest core;
    ``bytes`` maps a path (``GM->L1``, ``L1->L0A``, ``L0C->GM``, ``GM->UB``, ``UB->GM``…) to bytes over all cores;
    ``bound_by`` names the largest cause and its resource; ``energy_pj`` is picojoules; ``requests`` to global memory
    count over all cores; host tasks have no pipes.
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
