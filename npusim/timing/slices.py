"""Which tasks a compiler that optimises for L2 runs slice by slice of the batch: what one leaves, the next finds.

ATC's ``buffer_optimize`` is ``l2_optimize`` by default: nodes of its offline models carry whether they are part of a
split along N, and the first or the last of one. Published times bear it out: BERT at batch 64 takes per text what it
takes at batch 4, though its scores would pass memory four times, and ResNeXt-50 at batch 32 takes less than its tensors
take to pass memory once. A chain is a run of tasks that work on every sample by itself: either products of stacks with
the vector work between them, or convolutions with pooling, resizing and the shortcuts between them. Moves that mix axes
end both, and what joins or weighs channels (concatenations, gates) ends the latter. Each slice is a launch of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metadef.op import CostClass, find_op
from metadef.program import Operand, Region, Task


@dataclass(frozen=True)
class _Kind:
    """Tasks that a chain may hold, one of which it must hold, and the fewest that are sliced at all."""

    costs: frozenset[CostClass]
    types: frozenset[str]
    core: str
    fewest: int


_BY_WINDOW = frozenset({"MaxPoolV3", "AvgPoolV2", "ResizeBilinearV2D", "ResizeNearestNeighborV2D"})
_KINDS = (
    _Kind(
        frozenset({CostClass.MATMUL, CostClass.ELEMENTWISE, CostClass.SOFTMAX, CostClass.NORM}),
        frozenset({"TransData"}),
        core="BatchMatMulV2",
        fewest=2,
    ),
    _Kind(frozenset({CostClass.CONV}), frozenset({"Add"}) | _BY_WINDOW, core="Conv2D", fewest=5),
)
"""Chains of convolutions are whole stages: the pairs between two concatenations of DenseNet and GhostNet and the blocks
between two gates take what passing memory takes (fit on networks)."""


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
    """End of the chain that starts at a task, and the samples that all of it works on; the task itself if none does."""
    for kind in _KINDS:
        stop, batch = _run_of(kind, tasks, first)
        if stop - first >= kind.fewest and any(task.kernel.op_type == kind.core for task in tasks[first:stop]):
            return stop, batch
    return first, 0


def _run_of(kind: _Kind, tasks: Sequence[Task], first: int) -> tuple[int, int]:
    """End of the run of one kind's tasks, and its samples.

    A view of windows of a picture as samples, or back, ends it.
    """
    batch, stop = 0, first
    while stop < len(tasks) and _is_by_sample(kind, tasks[stop]):
        samples = tasks[stop].outputs[0].desc.shape[0]
        if samples != (batch or samples):
            break
        batch, stop = samples, stop + 1
    return stop, batch


def _is_by_sample(kind: _Kind, task: Task) -> bool:
    """Whether a task may stand in a chain of that kind: every sample of the first axis is worked on by itself."""
    opdef = find_op(task.kernel.op_type) if task.on_device else None
    if opdef is None or not task.outputs[0].desc.shape or task.waits or task.records:
        return False
    if task.kernel.op_type == "TransData" and len(task.outputs[0].desc.shape) == 4:
        return False
    return opdef.cost in kind.costs or task.kernel.op_type in kind.types


def _is_stack(item: Operand, slices: int) -> bool:
    return item.region is not Region.WEIGHTS and bool(item.desc.shape) and item.desc.shape[0] % slices == 0


def _slices(chain: Sequence[Task], batch: int, l2_bytes: int) -> int:
    """Fewest equal parts in which every task's operands fit L2 together; one sample each if none do."""
    for slices in (part for part in range(1, batch + 1) if batch % part == 0):
        if all(_touched(task, slices) <= l2_bytes for task in chain):
            return slices
    return max(batch, 1)


def _touched(task: Task, slices: int) -> int:
    operands = [item for item in (*task.inputs, *task.outputs) if item is not None]
    return sum(part_of(item, slices, 0)[1] for item in operands if item.region is not Region.WEIGHTS)
