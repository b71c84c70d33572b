"""Mixed kernels of split-core chips as values: stages of cube cores and of their vector cores, with the data between in
L2, or on chips with a direct path in the buffers of the core. ``metadef.cost.mixed`` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from metadef.cost.cube_view import FIXPIPE_OPS, CubeView, piece_of
from metadef.cost.signature import SIGNATURE, Signature
from metadef.cost.streams import DIRECT, Direct, MemoryState
from metadef.dtype import DType
from metadef.format import TensorDesc, ceil_div
from metadef.kernel import TIMING_ONLY, CubeTile, Engine, Kernel
from metadef.target import Target

MIXED = "mixed"
"""Attribute of a timing-only kernel that holds its stages (a :class:`Mixed`)."""


@dataclass(frozen=True)
class Stage:
    """A kernel that computes one stage of all rounds.

    ``ports`` are the mixed kernel's inputs behind the stage's own (None: a workspace), ``unique`` which share of each
    is not a repetition of what another part of the stage reads; ``final`` says that it writes the result.
    """

    kernel: Kernel
    ports: tuple[int | None, ...]
    unique: tuple[float, ...] = ()
    final: bool = False

    @property
    def on_cube(self) -> bool:
        return isinstance(self.kernel.tile, CubeTile)

    @property
    def spaces(self) -> list[TensorDesc]:
        """Workspaces that the stage reads and writes."""
        read = [desc for desc, port in zip(self.kernel.inputs, self.ports) if port is None and desc is not None]
        return read if self.final else [*read, *self.kernel.outputs]

    @property
    def inside(self) -> Kernel:
        """The kernel with its workspaces in the buffers of the core."""
        read = frozenset(at for at, port in enumerate(self.ports) if port is None)
        return replace(self.kernel, attrs={**self.kernel.attrs, DIRECT: Direct(read, not self.final)})

    def surroundings(self, memory: MemoryState) -> MemoryState:
        """State of memory for the stage: workspaces are in L2, and stay there."""
        shares = (*self.unique, *[1.0] * (len(self.ports) - len(self.unique)))
        cold = tuple(0.0 if port is None else memory.cold_of(port) * part for port, part in zip(self.ports, shares))
        return MemoryState(cold, memory.write_back if self.final else 0.0)


@dataclass(frozen=True)
class Mixed:
    """Stages in order; ``rounds`` is how often the fullest core passes them, ``chains`` how many of these passes depend
    on nothing before them."""

    stages: tuple[Stage, ...]
    rounds: int
    chains: int = 1

    def placed(self, target: Target) -> list[Kernel]:
        """Kernels of the stages; workspaces stay in the core if it has a direct path and its UB holds a round's."""
        room = target.buffer_bytes["UB"] * target.vector_share
        dealt = self.rounds * max((stage.kernel.block_dim for stage in self.stages if stage.on_cube), default=1)
        small = all(desc.payload_bytes <= room * dealt for stage in self.stages for desc in stage.spaces)
        return [stage.inside if target.has_direct_path and small else stage.kernel for stage in self.stages]


def mixed_of(kernel: Kernel, target: Target) -> Mixed | None:
    """The stages of a mixed kernel; None for kernels of one side."""
    found = kernel.attrs.get(MIXED)
    if isinstance(found, Mixed):
        return found
    if target.coupled or not isinstance(kernel.tile, CubeTile):
        return None
    if all(item.op_type in FIXPIPE_OPS and item.operand is None for item in kernel.fused):
        return None
    return _epilogue(kernel, kernel.tile, target)


def _epilogue(kernel: Kernel, tile: CubeTile, target: Target) -> Mixed:
    """A product whose results the vector cores finish: fp32 tiles through a workspace."""
    view, result = CubeView.of(kernel, target), kernel.outputs[0]
    operands = [item.operand for item in kernel.fused if item.operand is not None]
    workspace = TensorDesc(result.origin_shape, DType.FLOAT, result.origin_format, result.format, result.c0)
    own = tuple(None if port in operands else desc for port, desc in enumerate(kernel.inputs))
    product = replace(kernel, fused=(), inputs=own, outputs=(workspace,))
    names = (*view.epilogue, *["cast"] * (result.dtype.bytes < 4))
    extra = tuple(desc for port in operands if (desc := kernel.inputs[port]) is not None)
    cores = target.vector_share * kernel.block_dim
    finish = vector_stage("CubeEpilogue", (workspace, *extra), result, Signature((), names), cores, target)
    piece = piece_of(view, tile)
    rounds = piece.batch * ceil_div(piece.m, tile.m0) * ceil_div(piece.n, tile.n0)
    stages = (Stage(product, tuple(range(len(own)))), Stage(finish, (None, *operands), final=True))
    return Mixed(stages, rounds)


def vector_stage(
    name: str, inputs: tuple[TensorDesc, ...], result: TensorDesc, signature: Signature, cores: int, target: Target
) -> Kernel:
    """A stage of the vector cores: a timing-only kernel with its own instruction list."""
    attrs = {SIGNATURE: signature}
    cores = min(cores, target.vector_cores)
    return Kernel(name, Engine.VECTOR, inputs, (result,), attrs, algorithm=TIMING_ONLY, block_dim=cores)
