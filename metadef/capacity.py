"""Whether a planned network fits the card: weights, arena, and inputs and outputs together against the chip's memory.

The compiler asks after planning and before it lays out constants, so that what no card holds is refused early.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from metadef.error import PlanError
from metadef.program import Program
from metadef.target import Target

if TYPE_CHECKING:
    from metadef.memory.plan import MemoryPlan

SHOWN = 4


def check_plan_memory(plan: MemoryPlan, target: Target) -> None:
    """Raises PlanError if the regions of a plan exceed the chip's memory, naming sizes and the largest tensors."""
    sizes = [(f"{row.name} ({row.region})", row.slot_bytes) for row in plan.rows if row.alias_of < 0]
    _require(plan.schedule, plan.weights_bytes, plan.total_size, plan.io_bytes, sizes, target)


def check_program_memory(program: Program, target: Target) -> None:
    """Raises PlanError if the regions of a program exceed the chip's memory, naming sizes and the largest tensors."""
    resident = program.weights_bytes - program.streamed_bytes
    _require(program.name, resident, program.arena_bytes, program.io_bytes, operand_sizes(program), target)


def operand_sizes(program: Program) -> list[tuple[str, int]]:
    """Name with region, and payload bytes, of every tensor of a program."""
    operands = [item for task in program.tasks for item in (*task.inputs, *task.outputs) if item is not None]
    operands += [binding.operand for binding in (*program.inputs, *program.outputs)]
    return list({item.name: (f"{item.name} ({item.region.value})", item.payload_bytes) for item in operands}.values())


def largest_text(sizes: Iterable[tuple[str, int]]) -> str:
    """The largest tensors in one line."""
    first = sorted(sizes, key=lambda item: (-item[1], item[0]))[:SHOWN]
    return "largest: " + ", ".join(f"{name} {size:,}" for name, size in first)


def _require(name: str, weights: int, arena: int, io: int, sizes: Iterable[tuple[str, int]], target: Target) -> None:
    need, room = weights + arena + io, target.device_bytes
    if need <= room:
        return
    parts = f"weights {weights:,} + arena {arena:,} + inputs and outputs {io:,}"
    raise PlanError(
        f"'{name}' does not fit the memory of {target.soc}",
        expected=f"at most {room:,} bytes",
        got=f"{need:,} bytes, {need - room:,} too many: {parts}; {largest_text(sizes)}",
        hint="a smaller batch or smaller inputs (--dim, --shape), --precision fp16, or a chip with more memory (--soc)",
    )
