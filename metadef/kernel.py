"""What a step computes and how the device runs it: the value that Schedule and Program share.

A :class:`Kernel` holds no addresses. It is enough to derive the instruction streams of every core (``metadef.cost``),
to recompute the result with the operator's reference, and to choose a host plan (``npusim.kernels``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from metadef.format import TensorDesc


class Engine(Enum):
    """GE's engine names. AICORE and VECTOR run on the device; GE_LOCAL takes no task (views).

    RTS is the runtime's task scheduler: it takes jumps between tasks.
    """

    AICORE = "AIcoreEngine"
    VECTOR = "VectorEngine"
    AICPU = "DNN_VM_AICPU_ASCEND"
    HOST_CPU = "DNN_VM_HOST_CPU"
    GE_LOCAL = "DNN_VM_GE_LOCAL"
    RTS = "DNN_VM_RTS"

    @property
    def on_device(self) -> bool:
        return self in (Engine.AICORE, Engine.VECTOR)


@dataclass(frozen=True)
class FusedOp:
    """One operator of an epilogue, applied in order to the fp32 result before its single rounding.

    ``operand`` is the position, in the node's inputs, of the second operand (None for one-operand types).
    """

    op_type: str
    attrs: Mapping[str, Any] = field(default_factory=dict)
    operand: int | None = None


@dataclass(frozen=True)
class Buffer:
    """A piece of on-chip memory: ``memory`` is L1, L0A, L0B, L0C, UB, BT; ``copies`` is 2 when double buffered."""

    name: str
    memory: str
    offset_bytes: int
    size_bytes: int
    copies: int = 1


@dataclass(frozen=True)
class CubeTile:
    """Tiling of a cube kernel, in elements of the GEMM view (batch, M, N, K).

    The work is split into ``split_batch * split_m * split_n * split_k`` pieces dealt to ``block_dim`` cores. ``m0, n0,
    k0`` is the L0 tile; ``k1`` is how much of K one L1 load covers; ``resident`` names what stays in L1 ("", "a", "b",
    "a_panel", "b_panel").
    """

    m0: int
    n0: int
    k0: int
    k1: int
    split_batch: int = 1
    split_m: int = 1
    split_n: int = 1
    split_k: int = 1
    resident: str = ""
    double_l1: bool = True
    double_l0: bool = True
    double_l0c: bool = False
    buffers: tuple[Buffer, ...] = ()


@dataclass(frozen=True)
class VectorTile:
    """Tiling of a vector kernel: ``units`` (rows, planes, 32-byte blocks…) are dealt whole to the cores in use.

    A tile is ``units_per_tile`` units of ``unit_elements`` elements each. Where a unit adds up columns, or is cut from
    one that does, ``strip_columns`` is how many lie side by side (0: it does not, or nothing says).
    """

    units: int
    unit_elements: int
    units_per_tile: int
    double_buffer: bool = True
    buffers: tuple[Buffer, ...] = ()
    strip_columns: int = 0


@dataclass(frozen=True)
class WinogradTile:
    """Tiling of a convolution by Winograd's algorithm, as three phases over a band of the image.

    ``input`` transforms the image (vector cores), ``product`` multiplies (16 or 36 products, cube cores), ``output``
    transforms back with bias and epilogue (vector cores). A band is ``band_rows`` rows of output tiles, counted through
    all images; bands run one after another in the same workspaces. Rows are cut into ``strips`` for the vector phases.
    The ``*_cores`` are how many cores each phase uses; ``macs`` are all products, those of border tiles whole.
    """

    input: VectorTile
    product: CubeTile
    output: VectorTile
    band_rows: int
    input_strips: int = 1
    output_strips: int = 1
    input_cores: int = 1
    product_cores: int = 1
    output_cores: int = 1
    macs: int = 0

    @property
    def phases(self) -> tuple[VectorTile, CubeTile, VectorTile]:
        return self.input, self.product, self.output


TIMING_ONLY = "timing only"
"""``Kernel.algorithm`` of operators that have a cost and no implementation (``metadef.cost.signatures``)."""

Tile = CubeTile | VectorTile | WinogradTile


def phases_of(tile: Tile | None) -> tuple[CubeTile | VectorTile, ...]:
    """The tiles of a kernel's phases: buffers of one phase are free for the next."""
    if tile is None:
        return ()
    return tile.phases if isinstance(tile, WinogradTile) else (tile,)


@dataclass(frozen=True)
class Kernel:
    """An operator bound to formats, algorithm, tile and cores. ``inputs`` follow the node's inputs, extra epilogue
    operands last.

    ``opset`` is the version a framework node (``domain`` not "ascend") means; 0 for Ascend operators.
    """

    op_type: str
    engine: Engine
    inputs: tuple[TensorDesc | None, ...]
    outputs: tuple[TensorDesc, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    fused: tuple[FusedOp, ...] = ()
    algorithm: str = "direct"
    tile: Tile | None = None
    block_dim: int = 1
    domain: str = "ascend"
    reason: str = ""
    opset: int = 0

    @cached_property
    def moves_lanes(self) -> bool:
        """Whether single lanes of channel blocks change places (see ``metadef.ops.channels``)."""
        from metadef.ops.channels import lane_maps

        return lane_maps(self) is not None

    @cached_property
    def multiplied(self) -> TensorDesc | None:
        """The left operand of a product as the cube multiplies it (see ``metadef.ops.geometry``)."""
        from metadef.ops.geometry import multiplied

        return multiplied(self)

    @cached_property
    def picks_elements(self) -> bool:
        """Whether a slice takes single elements of plain rows: every second, say."""
        from metadef.ops.slicing import slice_ranges

        x = self.inputs[0] if self.op_type == "StridedSliceD" else None
        return x is not None and x.is_plain and x.shape != () and slice_ranges(x.origin_shape, self.attrs)[-1][1] != 1
