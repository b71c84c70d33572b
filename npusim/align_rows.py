"""What rows off 32 bytes cost: every operator of a program with its rows as they are, and padded or cut by an element.

Both forms are timed with the same tiles, cores and contents of L2, so that only the distance between rows differs. The
form with odd rows is run too, dense and row by row (:mod:`npusim.align_values`): rows of another length are another
network, so that the two forms cannot be compared with each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from metadef.format import TensorDesc, round_up
from metadef.kernel import Kernel
from metadef.op import CostClass, get_op
from metadef.program import Program
from metadef.target import Target
from npusim.timing.program import l2_accesses
from npusim.timing.tasks import memory_state, simulate

BLOCK_BYTES = 32


@dataclass(frozen=True)
class RowCost:
    """One operator with rows on and off 32 bytes.

    ``row_bytes`` is the longest row of its plain operands, ``other_bytes`` what it became in the other form; ``own``
    says which of the two forms the model has ("on" or "off" 32 bytes). ``values`` is "equal" where the odd form gave
    the same bits for rows that lie densely and for rows alone, "different", or why it was not run.
    """

    task: int
    name: str
    op_type: str
    origins: tuple[str, ...]
    own: str
    row_bytes: int
    other_bytes: int
    on_cycles: int
    off_cycles: int
    slowdown: float
    misalignment_cycles: int
    extra_requests: int
    values: str = ""


def row_costs(program: Program, target: Target) -> list[RowCost]:
    """Every device task with a plain operand of several rows, in order; timed only."""
    found = []
    for task, access in zip(program.tasks, l2_accesses(program, program.tasks, target), strict=True):
        row = _longest_row(task.kernel) if task.on_device and task.kernel.domain == "ascend" else 0
        if row:
            own = "off" if row % BLOCK_BYTES else "on"
            other = with_rows(task.kernel, own == "off")
            memory = memory_state(task, access)
            runs = [simulate(kernel, target, memory, "graph") for kernel in (task.kernel, other)]
            on, off = runs if own == "on" else runs[::-1]
            found.append(
                RowCost(
                    task=task.id,
                    name=task.name,
                    op_type=task.kernel.op_type,
                    origins=task.origins,
                    own=own,
                    row_bytes=row,
                    other_bytes=_longest_row(other),
                    on_cycles=on.cycles,
                    off_cycles=off.cycles,
                    slowdown=off.cycles / max(on.cycles, 1),
                    misalignment_cycles=off.core.why.get("MISALIGNED", 0) - on.core.why.get("MISALIGNED", 0),
                    extra_requests=off.requests - on.requests,
                )
            )
    return found


def with_rows(kernel: Kernel, padded: bool) -> Kernel:
    """The kernel with the rows of its plain operands padded to 32 bytes, or one element shorter than they are.

    Matrix products keep their operands consistent: an extent changes wherever it occurs in the last two axes.
    """
    extents: dict[int, int] = {}
    if get_op(kernel.op_type).cost is CostClass.MATMUL:
        plain = [desc for desc in (*kernel.inputs, *kernel.outputs) if desc is not None and _is_rows(desc)]
        extents = {desc.shape[-1]: _length(desc, padded) for desc in plain}

    def change(desc: TensorDesc) -> TensorDesc:
        if extents:
            return _with_extents(desc, extents)
        return _with_length(desc, _length(desc, padded)) if _is_rows(desc) else desc

    return replace(
        kernel,
        inputs=tuple(None if desc is None else change(desc) for desc in kernel.inputs),
        outputs=tuple(change(desc) for desc in kernel.outputs),
    )


def _is_rows(desc: TensorDesc) -> bool:
    return desc.is_plain and len(desc.shape) > 1 and prod(desc.shape[:-1]) > 1 and desc.shape[-1] > 1


def _longest_row(kernel: Kernel) -> int:
    """Bytes of the longest row among the plain operands; 0 if there is none, or AIPP reads it pixel by pixel."""
    if "input_format" in kernel.attrs:
        return 0
    operands = (desc for desc in (*kernel.inputs, *kernel.outputs) if desc is not None)
    return max((desc.shape[-1] * desc.dtype.bytes for desc in operands if _is_rows(desc)), default=0)


def _length(desc: TensorDesc, padded: bool) -> int:
    size = desc.dtype.bytes
    return round_up(desc.shape[-1] * size, BLOCK_BYTES) // size if padded else desc.shape[-1] - 1


def _with_length(desc: TensorDesc, length: int) -> TensorDesc:
    return replace(desc, origin_shape=(*desc.origin_shape[:-1], length))


def _with_extents(desc: TensorDesc, extents: dict[int, int]) -> TensorDesc:
    lead, last = desc.origin_shape[:-2], desc.origin_shape[-2:]
    return replace(desc, origin_shape=(*lead, *(extents.get(size, size) for size in last)))
