"""Which tasks a compiler that optimises for L2 runs slice by slice of the batch: what one leaves, the next finds.

ATC's ``buffer_optimize`` is ``l2_optimize`` by default: nodes of its offline models carry whether they are part of a
split along N, and the first or the last of one. Published times bear it out: BERT at batch 64 takes per text what it
takes at batch 4, though its scores would pass memory four times, and ResNeXt-50 at batch 32 takes less than its tensors
take to pass memory once. A chain is a run of tasks that work on every sample by itself: either products of stacks with
the vector work between them, or convolutions with pooling, resizing and the shortcuts between them. The samples are
those of the network's inputs: where windows of pictures become samples (Swin) all passes memory. Chains of products go
on through moves that keep a sample together (heads are split and joined), and end where their weights fill L2, for each
slice would read them from memory. Chains of convolutions go on through concatenations of whole channel blocks, which
copy sample by sample; those of single lanes end them, and what weighs channels (gates). Each slice is a launch of its
own and reads the weights again, so a chain is sliced only as far as its last task that does not fit L2 whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from metadef.format import Format
from metadef.op import CostClass, find_op
from metadef.program import Operand, Region, Task


@dataclass(frozen=True)
class _Kind:
    """Tasks that a chain may hold, one of which it must hold, and the fewest that are sliced at all;
    ``ends_with_weights`` if its weights have to stay in L2 from slice to slice."""

    costs: frozenset[CostClass]
    types: frozenset[str]
    core: str
    fewest: int
    ends_with_weights: bool = False


_LEADING = 2
"""Axes that samples may be: the first, or the second under a stack of operands (query, key, value)."""
_MOVES = frozenset({"TransposeD", "GatherV2"})
_BY_WINDOW = frozenset({"MaxPoolV3", "AvgPoolV2", "ResizeBilinearV2D", "ResizeNearestNeighborV2D"})
_KINDS = (
    _Kind(
        frozenset({CostClass.MATMUL, CostClass.ELEMENTWISE, CostClass.SOFTMAX, CostClass.NORM}),
        frozenset({"TransData"}) | _MOVES,
        core="BatchMatMulV2",
        fewest=2,
        ends_with_weights=True,
    ),
    _Kind(frozenset({CostClass.CONV}), frozenset({"Add", "ConcatD"}) | _BY_WINDOW, core="Conv2D", fewest=5),
)
"""Chains of convolutions are whole stages: the pairs between two normalisations of DenseNet, the blocks between two
gates and those between two concatenations of lanes (GhostNet) take what passing memory takes, UNet++ and Inception with
their concatenations of blocks less (fit on networks)."""


@dataclass(frozen=True)
class Chain:
    """Tasks ``first`` to ``stop - 1`` of a trace, run in ``slices`` equal parts of their ``samples``."""

    first: int
    stop: int
    slices: int = 1
    samples: int = 0

    def part_of(self, item: Operand, index: int) -> tuple[int, int]:
        """(address, bytes) of an operand that slice ``index`` touches: all of it if it is no stack of the samples.

        Samples that are not the first axis (query, key and value above them) count as if they lay together.
        """
        if self.slices == 1 or _samples_axis(item, self.samples) is None:
            return item.address, item.payload_bytes
        size = item.payload_bytes // self.slices
        return item.address + index * size, size


def sliced_chains(tasks: Sequence[Task], l2_bytes: int, batches: Collection[int]) -> list[Chain]:
    """Chains that need slices to work within ``l2_bytes``, in order; ``batches`` are the samples of the network's
    inputs."""
    found = []
    first = 0
    barren = dict.fromkeys(_KINDS, 0)
    while first < len(tasks):
        stop, samples = _chain_at(tasks, first, l2_bytes, barren)
        if samples in batches:
            chain = _cut(tasks, _needed(tasks, Chain(first, stop, 1, samples), l2_bytes), l2_bytes)
            found += [chain] if chain.slices > 1 and chain.stop - chain.first > 1 else []
        first = max(stop, first + 1)
    return found


def _chain_at(tasks: Sequence[Task], first: int, l2_bytes: int, barren: dict[_Kind, int]) -> tuple[int, int]:
    """End of the chain that starts at a task, and the samples that all of it works on; the task itself if none does.

    A run that is no chain holds none further on either, but where its weights ended it: up to which task a kind is
    known to have none stands in ``barren``, so that every task is looked at once.
    """
    for kind in _KINDS:
        if first < barren[kind]:
            continue
        stop, samples, full = _run_of(kind, tasks, first, l2_bytes)
        if stop - first >= kind.fewest and any(task.kernel.op_type == kind.core for task in tasks[first:stop]):
            return stop, samples
        barren[kind] = first + 1 if full else stop
    return first, 0


def _run_of(kind: _Kind, tasks: Sequence[Task], first: int, l2_bytes: int) -> tuple[int, int, bool]:
    """End of the run of one kind's tasks, its samples, and whether weights ended it."""
    samples, stop, weights = 0, first, 0
    while stop < len(tasks) and _may_hold(kind, tasks[stop]):
        task = tasks[stop]
        weights += sum(item.payload_bytes for item in task.inputs if item is not None and _is_weight(item))
        own = _samples_of(task, samples)
        if not own or own != (samples or own):
            break
        if kind.ends_with_weights and samples and weights > l2_bytes:
            return stop, samples, True
        samples, stop = own, stop + 1
    return stop, samples, False


def _may_hold(kind: _Kind, task: Task) -> bool:
    """Whether a task may stand in a chain of that kind."""
    opdef = find_op(task.kernel.op_type) if task.on_device else None
    if opdef is None or not task.outputs[0].desc.shape or task.waits or task.records:
        return False
    if task.kernel.op_type == "TransData":
        formats = {desc.format for desc in (*task.kernel.inputs, *task.kernel.outputs) if desc is not None}
        if Format.FRACTAL_NZ not in formats:
            return False
    if task.kernel.op_type == "ConcatD" and task.kernel.moves_lanes:
        return False
    return opdef.cost in kind.costs or task.kernel.op_type in kind.types


def _samples_of(task: Task, samples: int) -> int:
    """How many samples a task works on one by one (0: it mixes them), where the tasks before it work on ``samples``."""
    shape = task.outputs[0].desc.shape
    if task.kernel.op_type not in _MOVES:
        return shape[0]
    x = task.inputs[0]
    axis = None if x is None else _samples_axis(x, samples)
    if axis is None:
        return 0
    if task.kernel.op_type == "TransposeD":
        return samples if task.kernel.attrs["perm"].index(axis) < _LEADING else 0
    picked, index = task.kernel.attrs["axis"], task.kernel.inputs[1]
    return samples if index is not None and not index.shape and picked != axis else 0


def _is_weight(item: Operand) -> bool:
    return item.region is Region.WEIGHTS


def _samples_axis(item: Operand, samples: int) -> int | None:
    """Which of the leading axes of an operand its samples are; None if it is no stack of them."""
    leading = item.desc.shape[:_LEADING]
    return leading.index(samples) if samples in leading and not _is_weight(item) else None


def _needed(tasks: Sequence[Task], chain: Chain, l2_bytes: int) -> Chain:
    """The chain up to its last task that does not fit L2 whole: what that one hands on, the next one finds there."""
    large = [index for index in range(chain.first, chain.stop) if _touched(tasks[index], chain) > l2_bytes]
    return replace(chain, stop=max(large, default=chain.first) + 1)


def _cut(tasks: Sequence[Task], chain: Chain, l2_bytes: int) -> Chain:
    """The chain in the fewest equal parts in which every task's operands fit L2 together; samples if none do."""
    for slices in (part for part in range(1, chain.samples + 1) if chain.samples % part == 0):
        cut = replace(chain, slices=slices)
        if all(_touched(task, cut) <= l2_bytes for task in tasks[chain.first : chain.stop]):
            return cut
    return replace(chain, slices=max(chain.samples, 1))


def _touched(task: Task, chain: Chain) -> int:
    operands = [item for item in (*task.inputs, *task.outputs) if item is not None]
    return sum(chain.part_of(item, 0)[1] for item in operands if not _is_weight(item))
