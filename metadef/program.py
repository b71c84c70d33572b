"""Program: the task list over one flat device memory. It holds device facts only.

Addresses are byte offsets into one address space: weights, then one arena of feature maps and workspaces, then graph
inputs and outputs; every region starts on a 512-byte line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from metadef.format import TensorDesc
from metadef.kernel import Engine, Kernel


class Region(Enum):
    WEIGHTS = "weights"
    ARENA = "arena"
    IO = "io"


@dataclass(frozen=True)
class Operand:
    """A tensor at its place: absolute ``address`` in device memory, ``payload_bytes`` of storage, how it lies there.

    ``tensor`` is the schedule's id of the tensor that owns the bytes: views and members of a group carry their base's.
    """

    tensor: int
    name: str
    region: Region
    address: int
    payload_bytes: int
    desc: TensorDesc


@dataclass(frozen=True)
class Span:
    """A piece of device memory (a workspace)."""

    address: int
    bytes: int


@dataclass(frozen=True)
class Task:
    """One launch. ``inputs`` follow the kernel's inputs (None: absent); ``origins`` are the source model's nodes.

    ``successors`` are ids of the tasks to go on with (the number of tasks: the end): a single one always, of several
    the one at the index, or truth value, that input 0 holds; without any the next task follows.
    """

    id: int
    name: str
    kernel: Kernel
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    workspaces: tuple[Span, ...] = ()
    origins: tuple[str, ...] = ()
    layer: str = ""
    stream: int = 0
    waits: tuple[int, ...] = ()
    records: tuple[int, ...] = ()
    successors: tuple[int, ...] = ()

    @property
    def on_device(self) -> bool:
        return self.kernel.engine.on_device

    @property
    def on_host(self) -> bool:
        """Whether the host or the AI CPU computes the task."""
        return not self.on_device and self.kernel.engine is not Engine.RTS

    @property
    def is_jump(self) -> bool:
        """Whether the task only decides which task is next."""
        return self.kernel.engine is Engine.RTS and bool(self.successors)

    @property
    def is_load(self) -> bool:
        """Whether the task copies a streamed weight into the arena."""
        return self.kernel.engine is Engine.RTS and not self.successors


@dataclass(frozen=True)
class Binding:
    """A graph input or output by its public name; its operand lies in plain layout."""

    name: str
    operand: Operand


@dataclass
class Program:
    """A compiled network for one SoC and one set of shapes (one gear).

    ``streamed_bytes`` at the end of the weights region never lie in device memory as a whole: load tasks copy them from
    the host's map of the model file.
    """

    name: str
    soc: str
    tasks: list[Task] = field(default_factory=list)
    inputs: list[Binding] = field(default_factory=list)
    outputs: list[Binding] = field(default_factory=list)
    weights_bytes: int = 0
    arena_bytes: int = 0
    io_bytes: int = 0
    total_size: int = 0
    theory_min: int = 0
    no_reuse: int = 0
    precision: str = "origin"
    streamed_bytes: int = 0

    @property
    def is_straight(self) -> bool:
        """Whether every run executes all tasks in order."""
        return not any(task.successors for task in self.tasks)

    @property
    def arena_base(self) -> int:
        return self.weights_bytes

    @property
    def io_base(self) -> int:
        return self.weights_bytes + self.arena_bytes

    @property
    def memory_bytes(self) -> int:
        """Size of the whole address space."""
        return self.weights_bytes + self.arena_bytes + self.io_bytes
