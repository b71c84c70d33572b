"""Schedule: the ordered steps of a network with what they read, write and need beside. The planner sees nothing else.

Steps are in execution order and their ids are their positions. Relations between tensors are explicit: an in-place
pair is a permission, a view is a must, a group lies contiguously. The planner's JSON and CSV cases are schedules
without kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from metadef.format import SLOT_BYTES, TensorDesc
from metadef.kernel import Engine, Kernel


class TensorKind(Enum):
    WEIGHT = "weight"
    INPUT = "input"
    OUTPUT = "output"
    FEATURE = "feature"


@dataclass(frozen=True)
class ScheduleTensor:
    """A tensor to be placed. ``payload_bytes`` is the storage size; ``residue`` is the wanted address modulo 512.

    ``slot_bytes`` overrides GE's slot rule (0 = the rule of :func:`metadef.format.slot_bytes`); ``pinned`` fixes the
    offset in the pool; ``no_reuse`` is a reason why its memory may not be shared ("" = it may). ``branch`` labels the
    tensor itself ("" = the labels of the steps that write it).
    """

    id: int
    name: str
    payload_bytes: int
    kind: TensorKind = TensorKind.FEATURE
    desc: TensorDesc | None = None
    alignment: int = SLOT_BYTES
    residue: int = 0
    slot_bytes: int = 0
    pool: str = "HBM"
    pinned: int | None = None
    no_reuse: str = ""
    branch: str = ""


@dataclass(frozen=True)
class Workspace:
    """Scratch memory in the arena, alive exactly during its step."""

    bytes: int
    alignment: int = SLOT_BYTES


@dataclass(frozen=True)
class Step:
    """One unit of execution. ``reads`` and ``writes`` are tensor ids in the kernel's operand order (None: absent).

    ``branch`` is a path of ``condition:side`` parts joined by "/" ("if0:then/if1:else"); steps whose paths give one
    condition different sides never run together. A run of steps with ``loop_depth`` >= d is the body of a loop of
    depth d. ``records`` and ``waits`` are event ids that order steps of different streams. ``jumps`` are ids of the
    steps to go on with (the number of steps: the end): a single one always, of several the one that the value read
    chooses (``metadef.control``); without any the next step follows.
    """

    id: int
    name: str
    reads: tuple[int | None, ...]
    writes: tuple[int, ...]
    kernel: Kernel | None = None
    workspaces: tuple[Workspace, ...] = ()
    origins: tuple[str, ...] = ()
    layer: str = ""
    stream: int = 0
    waits: tuple[int, ...] = ()
    records: tuple[int, ...] = ()
    branch: str = ""
    loop_depth: int = 0
    jumps: tuple[int, ...] = ()

    @property
    def is_load(self) -> bool:
        """Whether the step copies a streamed weight into the arena."""
        return self.kernel is not None and self.kernel.engine is Engine.RTS and not self.jumps


@dataclass(frozen=True)
class InPlace:
    """A permission: ``write`` may take the memory of ``read`` if ``step`` is the last reader of it."""

    step: int
    read: int
    write: int


@dataclass(frozen=True)
class View:
    """A must: ``tensor`` lies inside ``base`` at ``offset_bytes``, without a copy."""

    tensor: int
    base: int
    offset_bytes: int = 0


@dataclass(frozen=True)
class Group:
    """A must: ``members`` lie one after another inside ``parent`` (-1: there is none).

    ``padded`` says whether each keeps its own slot; then a member starts at a multiple of ``pad_to`` bytes from the
    first (0: of its own alignment). Without padding members follow byte by byte, whatever their alignment.
    """

    parent: int
    members: tuple[int, ...]
    padded: bool = False
    pad_to: int = 0


@dataclass
class Schedule:
    """Steps, tensors and relations. ``graph_revision`` ties it to the graph it was made from.

    ``times`` holds the instant of every step, and of the end, where the source has a time line of its own (else empty).
    """

    name: str
    soc: str
    steps: list[Step] = field(default_factory=list)
    tensors: list[ScheduleTensor] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    inplace: list[InPlace] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    graph_revision: int = 0
    times: list[int] = field(default_factory=list)
