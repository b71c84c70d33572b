"""Which tasks a compiler that optimises for L2 runs slice by slice of the batch: what one leaves, the next finds.

ATC's ``buffer_optimize`` is ``l2_optimize`` by default: nodes of its offline models carry whether they are part of a
split along N, and the first or the last of one. Published times of transformers bear it out: BERT at batch 64 takes per
text what it takes at batch 4, though its scores would pass memory four times. A chain is a run of tasks that work on
every sample by itself, with a product of stacks among them; moves that mix axes end it. Each slice is a launch of its
own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metadef.op import CostClass, find_op
from metadef.program import Operand, Region, Task

_BY_SAMPLE = frozenset({CostClass.MATMUL, CostClass.ELEMENTWISE, CostClass.SOFTMAX, CostClass.NORM})
_STACKS = "BatchMatMulV2"


@dataclass(frozen=True)
class Chain:
    """Tasks ``first`` to ``stop - 1`` of a trace, run in ``slices`` equal parts of the first axis."""

    first: int
    stop: int
    slices: int


def sliced_chains(tasks: Sequence[Task], l2_bytes: int) -> list[Chain]:
    """Chains that need slices to work within ``l2_bytes``, in order."""
    found = []
    first = 0
    while first < len(tasks):
        stop, batch = _chain_at(tasks, first)
        slices = _slices(tasks[first:stop], batch, l2_bytes)
        if slices > 1:
            found.append(Chain(first, stop, slices))
        first = max(stop, first + 1)
    return found


def part_of(item: Operand, slices: int, index: int) -> tuple[int, int]:
    """(address, bytes) of an operand that slice ``index`` touches: all of it if it is no stack of that many samples."""
    if not _is_stack(item, slices):
        return item.address, item.payload_bytes
    size = item.payload_bytes // slices
    return item.address + index * size, size


def _chain_at(tasks: Sequence[Task], first: int) -> tuple[int, int]:
    """End of the chain that starts at a task, and the samples that all of it works on.

    A view of windows of a picture as samples, or back, ends it.
    """
    batch, stop = 0, first
    while stop < len(tasks) and _is_by_sample(tasks[stop]):
        samples = tasks[stop].outputs[0].desc.shape[0]
        if samples != (batch or samples):
            break
        batch, stop = samples, stop + 1
    return stop, batch


def _is_by_sample(task: Task) -> bool:
    """Whether every sample of the first axis is worked on by itself."""
    opdef = find_op(task.kernel.op_type) if task.on_device else None
    if opdef is None or not task.outputs[0].desc.shape or task.waits or task.records:
        return False
    return opdef.cost in _BY_SAMPLE or (task.kernel.op_type == "TransData" and len(task.outputs[0].desc.shape) != 4)


def _is_stack(item: Operand, slices: int) -> bool:
    return item.region is not Region.WEIGHTS and bool(item.desc.shape) and item.desc.shape[0] % slices == 0


def _slices(chain: Sequence[Task], batch: int, l2_bytes: int) -> int:
    """Fewest equal parts in which every task's operands fit L2 together; one sample each if none do."""
    if len(chain) < 2 or not any(task.kernel.op_type == _STACKS for task in chain):
        return 1
    for slices in (part for part in range(1, batch + 1) if batch % part == 0):
        if all(_touched(task, slices) <= l2_bytes for task in chain):
            return slices
    return batch


def _touched(task: Task, slices: int) -> int:
    operands = [item for item in (*task.inputs, *task.outputs) if item is not None]
    return sum(part_of(item, slices, 0)[1] for item in operands if item.region is not Region.WEIGHTS)
