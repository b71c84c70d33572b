"""Contiguous groups: where members lie, the bytes they take, and the bodies that groups join."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metadef.error import ContractError
from metadef.memory.body_table import BodyTable
from metadef.memory.columns import ScheduleColumns
from metadef.memory.joining import Requests, joined
from metadef.memory.joins import APART, MIXED, NO_STEP
from metadef.schedule import Schedule


@dataclass(frozen=True)
class GroupLayout:
    """Of every member of every group, in order: distance from the first and bytes taken (padding included).

    ``anchor`` is the tensor that it is counted from; ``off_grid`` are members that may lie off their own grid.
    """

    anchor: np.ndarray
    start: np.ndarray
    taken: np.ndarray
    off_grid: np.ndarray


def group_layout(given: ScheduleColumns, slots: np.ndarray) -> GroupLayout:
    """Where members lie, from the slots of all tensors (bytes).

    Without padding members follow byte by byte; the last one of a group without a parent keeps its slot.
    """
    parents, starts, members = given.groups
    groups = given.schedule.groups
    counts = np.diff(starts)
    padded = np.repeat(np.array([group.padded for group in groups], np.bool_), counts)
    sizes = np.where(padded | (given.slot[members] != 0), slots[members], given.payload[members])
    filled = np.flatnonzero(counts)
    ends = starts[1:][filled] - 1
    alone = ends[parents[filled] < 0]
    stops = sizes.copy()
    stops[alone] = slots[members[alone]]
    start = np.cumsum(sizes) - sizes
    start -= np.repeat(start[starts[:-1][filled]], counts[filled])
    taken = stops.copy()
    for k, group in enumerate(groups):
        if group.padded:
            cursor = 0
            for at in range(int(starts[k]), int(starts[k + 1])):
                multiple = max(group.pad_to or int(given.alignment[members[at]]), 1)
                start[at] = -(-cursor // multiple) * multiple
                cursor = int(start[at] + sizes[at])
            mine = slice(int(starts[k]), int(starts[k + 1]) - 1)
            taken[mine] = np.diff(start[starts[k] : starts[k + 1]])
    first = np.zeros(len(members), np.bool_)
    first[starts[:-1][filled]] = True
    by_group = np.repeat(parents, counts)
    anchor = np.where(by_group >= 0, by_group, np.repeat(members[starts[:-1][filled]], counts[filled]))
    return GroupLayout(anchor, start, taken, members[~padded & ((by_group >= 0) | ~first)])


def with_groups(schedule: Schedule, given: ScheduleColumns, table: BodyTable, layout: GroupLayout) -> BodyTable:
    """Bodies with those of every group joined.

    Raises:
        ContractError: members are wanted at two places, or cannot lie together.
    """
    _, starts, members = given.groups
    if not len(members):
        return table
    requests = Requests(layout.anchor, members, layout.start, np.full(len(members), NO_STEP, np.int64))
    made = joined(table, requests)
    if made.failed < 0:
        return made.table
    group = schedule.groups[int(np.searchsorted(starts, made.failed, side="right")) - 1].members
    fault = made.result[made.failed]
    if fault == APART:
        member = given.ids[members[made.failed]]
        raise ContractError(
            f"tensor {member} is wanted at two places by contiguous groups", hint="copy it with an Identity"
        )
    if fault == MIXED:
        raise ContractError(
            f"the group {group} mixes weights and other tensors", hint="copy the weight with an Identity"
        )
    raise ContractError(f"members of the group {group} cannot keep their distances, alignments, pools and pins at once")
