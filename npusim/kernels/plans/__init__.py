"""Host plans: how this computer carries out a device task with its own kernels.

A planner function takes a :class:`Site` (a task with host addresses) and returns the executor's calls. ``planner_of``
finds it by operator type; each states what it cannot do by raising :class:`NoFastKernel`, and the task
then runs on its derived twin. Constant weights are packed once, here, into the kernels' own layout, after which the
mapped pages of the model file are let go.
"""

from __future__ import annotations

import importlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from metadef.program import Program, Task
from npusim.device import Device
from npusim.kernels.desc import Call, task_table
from npusim.kernels.dispatch import ROW_HOST, ROW_JUMP, ROW_JUMP_IF_ZERO
from npusim.kernels.plans.merge import merged_calls
from npusim.kernels.plans.site import NoFastKernel, PlanOptions, Site
from npusim.kernels.plans.stored import StoredPlan
from npusim.kernels.store import asked_kernels, prepare

__all__ = [
    "HostPlan",
    "NoFastKernel",
    "PlanOptions",
    "Site",
    "StoredPlan",
    "plan_program",
    "plan_task",
    "planned_types",
    "planner_of",
    "task_table",
]

PlanFunction = Callable[[Site], list[Call]]
Jump = tuple[int, int, int]
"""Kind of the row, position of the task to go on with, host address of the condition."""
Row = Call | int | Jump
_PLACES: dict[str, str] = {
    "Aipp": "aipp.plan_aipp",
    "AippConv2D": "aipp_conv.plan_aipp_conv",
    "AvgPoolV2": "pool.plan_pool",
    "BNInfer": "vector.plan_batch_norm",
    "BatchMatMulV2": "matmul.plan_matmul",
    "BroadcastToD": "move.plan_broadcast",
    "ConcatD": "slicing.plan_concat",
    "Conv2D": "convolution.plan_convolution",
    "Conv2DTransposeD": "transposed.plan_transposed",
    "GatherV2": "slicing.plan_gather",
    "GlobalAveragePool": "pool.plan_pool",
    "Identity": "move.plan_identity",
    "InstanceNorm": "rows.plan_instance_norm",
    "LayerNorm": "rows.plan_layer_norm",
    "LogSoftmaxV2": "rows.plan_softmax",
    "MatMulV2": "matmul.plan_matmul",
    "MaxPoolV3": "pool.plan_pool",
    "PadD": "move.plan_pad",
    "ResizeBilinearV2D": "resize.plan_bilinear",
    "ResizeNearestNeighborV2D": "move.plan_resize",
    "RmsNorm": "rows.plan_rms_norm",
    "ShuffleChannel": "lanes.plan_shuffle",
    "ScatterUpdate": "slicing.plan_scatter",
    "SoftmaxV2": "rows.plan_softmax",
    "SplitD": "slicing.plan_split",
    "SplitVD": "slicing.plan_split",
    "StridedSliceD": "slicing.plan_slice",
    "TileD": "move.plan_tile",
    "TransData": "storage.plan_trans_data",
    "TransposeD": "move.plan_transpose",
}
_FAMILIES = {"reduce.plan_reduction": "REDUCTIONS", "vector.plan_elementwise": "ELEMENTWISE_TYPES"}
"""Functions that plan all the types that their module lists under this name."""


def _named(place: str) -> Any:
    """What a module of this package calls so. A module is imported when the first task of its kind is planned: a
    process that runs a compiled model wants its first result soon."""
    module, _, name = place.partition(".")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


@cache
def planner_of(op_type: str) -> PlanFunction | None:
    """The function that plans tasks of an operator type; None where only the twin can run them."""
    place = _PLACES.get(op_type)
    if place is None:
        for function, types in _FAMILIES.items():
            if op_type in _named(f"{function.partition('.')[0]}.{types}"):
                place = function
    return _named(place) if place else None


def planned_types() -> frozenset[str]:
    """Operator types that have a planner."""
    listed = [_named(f"{function.partition('.')[0]}.{types}") for function, types in _FAMILIES.items()]
    return frozenset(_PLACES).union(*listed)


@dataclass(frozen=True)
class HostPlan:
    """Rows for the executor. Task i by itself has those of ``rows_of(i)``; a run of all begins it at ``entries[i]``.

    A task that Python runs has one row, which hands its position back. ``fallbacks`` says by name why tasks of the
    device have no fast kernel; ``calls``, in the rows ``call_rows``, keep descriptors and packed weights alive. Tasks
    in ``late`` (loads of streamed weights, and what reads them) are planned when their turn comes. ``packing`` fills
    packed weights and runs once, before any row.
    """

    table: np.ndarray
    first_row: tuple[int, ...]
    python_tasks: tuple[int, ...]
    fallbacks: dict[str, str]
    calls: tuple[Call, ...]
    call_rows: tuple[int, ...]
    late: frozenset[int]
    entries: tuple[int, ...]
    packing: np.ndarray

    def rows_of(self, position: int) -> tuple[int, int]:
        """First and last row of a task by itself."""
        return self.first_row[position], self.entries[position + 1]

    def tasks_of(self, row: int) -> tuple[int, ...]:
        """Positions of the task that a row belongs to, or of both that it does."""
        position = bisect_right(self.entries, row) - 1
        return (position, position + 1) if row < self.first_row[position] else (position,)

    def kernels_of(self, position: int) -> tuple[str, ...]:
        """Names of the kernels that carry out the task at a position; none for a task that Python runs."""
        if position in self.python_tasks:
            return ()
        first, last = (bisect_left(self.call_rows, row) for row in self.rows_of(position))
        return tuple(call.kernel for call in self.calls[first:last])


def plan_program(
    device: Device, options: PlanOptions, packed: dict[object, Any] | None = None, stored: StoredPlan | None = None
) -> HostPlan:
    """Plan all tasks of the device's program; kernels that are not in the store yet are compiled.

    ``packed`` holds packed weights that programs over the same weights share. What ``stored`` knows is not chosen
    again, and all the kernels it names are linked in one go.
    """
    with asked_kernels() as asked:
        if stored is not None:
            prepare(stored.kernels)
        plan = _planned(device, options, packed, stored)
    if stored is not None:
        stored.save(asked)
    return plan


def _planned(
    device: Device, options: PlanOptions, packed: dict[object, Any] | None, stored: StoredPlan | None
) -> HostPlan:
    chosen = None if stored is None else stored.algorithm
    planned: list[Sequence[Row]] = []
    python_tasks, fallbacks, late = [], {}, []
    packing: list[Call] = []
    loaded = loaded_tensors(device.program)
    for position, task in enumerate(device.program.tasks):
        if task.is_jump:
            planned.append(_jumps(task, device))
            continue
        if task.is_load or reads_loaded(task, loaded):
            late.append(position)
            planned.append([position])
            continue
        plan = partial(plan_task, task, device, options, packed=packed, packing=packing, chosen=chosen)
        calls, reason = plan() if task.on_device else (None, "")
        planned.append([position] if calls is None else calls)
        if calls is None:
            python_tasks.append(position)
            if reason:
                fallbacks[task.name] = reason
    rows, first_row, entries = _laid_out(planned, merged_calls(device.program, planned))
    places = tuple(number for number, row in enumerate(rows) if isinstance(row, Call))
    made = [row for row in rows if isinstance(row, Call)]
    table = np.zeros((len(rows), 3), np.int64)
    both = task_table([*packing, *made])
    table[list(places)] = both[len(packing) :]
    for number, row in enumerate(rows):
        if isinstance(row, int):
            table[number] = ROW_HOST, 0, row
        elif isinstance(row, tuple):
            table[number] = row[0], entries[row[1]], row[2]
    return HostPlan(
        table=table,
        first_row=first_row,
        python_tasks=tuple(python_tasks),
        fallbacks=fallbacks,
        calls=(*made, *packing),
        call_rows=places,
        late=frozenset(late),
        entries=entries,
        packing=both[: len(packing)],
    )


def _laid_out(
    planned: Sequence[Sequence[Row]], merged: Mapping[int, Call]
) -> tuple[list[Row], tuple[int, ...], tuple[int, ...]]:
    """All rows, where each task's own begin, and where a run of all comes to it.

    A run of all comes to the row that does two tasks and to a jump past them; runs of one task leave those out.
    """
    rows: list[Row] = []
    first_row, entries = [], []
    for position, own in enumerate(planned):
        entries.append(len(rows))
        if position in merged:
            rows += [merged[position], (ROW_JUMP, position + 2, 0)]
        first_row.append(len(rows))
        rows += own
    return rows, (*first_row, len(rows)), (*entries, len(rows))


def _jumps(task: Task, device: Device) -> list[Jump]:
    """Rows of a task that jumps; the condition of a switch is one byte, 0 or not."""
    if len(task.successors) == 1:
        return [(ROW_JUMP, task.successors[0], 0)]
    otherwise, then = task.successors
    operand = task.inputs[0]
    assert operand is not None, "a switch reads its condition"
    rows = [(ROW_JUMP_IF_ZERO, otherwise, device.host_address(operand.address))]
    return rows if then == task.id + 1 else [*rows, (ROW_JUMP, then, 0)]


def loaded_tensors(program: Program) -> frozenset[int]:
    """Tensors that load tasks write: streamed weights."""
    return frozenset(item.tensor for task in program.tasks if task.is_load for item in task.outputs)


def reads_loaded(task: Task, loaded: frozenset[int]) -> bool:
    """Whether a task reads a streamed weight."""
    return any(item is not None and item.tensor in loaded for item in task.inputs)


def plan_task(
    task: Task,
    device: Device,
    options: PlanOptions,
    loaded: frozenset[int] = frozenset(),
    packed: dict[object, Any] | None = None,
    packing: list[Call] | None = None,
    chosen: Callable[[int, Callable[[], str]], str] | None = None,
) -> tuple[list[Call] | None, str]:
    """The calls of a device task and "", or None and the reason why only its twin can run it.

    ``loaded`` are tensors in the arena that hold a streamed weight at this moment; ``packed`` holds packed weights that
    programs over the same weights share. Calls that fill packed weights go to ``packing``, if it is given, and before
    the task's own otherwise; ``chosen`` as in :class:`Site`.
    """
    if all(prod(operand.desc.shape) == 0 for operand in task.outputs):
        return [], ""
    function = _named("lanes.plan_lanes") if task.kernel.moves_lanes else planner_of(task.kernel.op_type)
    if function is None:
        return None, f"no fast kernel for operator {task.kernel.op_type}"
    site = Site(task, device, options, loaded, packed, chosen)
    calls: list[Call] | None
    try:
        calls, refusal = function(site), ""
    except NoFastKernel as reason:
        calls, refusal = None, str(reason)
    if packing is not None:
        # Also of a task that is refused: others may share what it packed.
        packing += site.packing
    elif calls is not None:
        calls = [*site.packing, *calls]
    return calls, refusal
