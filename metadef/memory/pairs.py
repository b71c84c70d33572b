"""In-place pairs: which permissions lifetimes allow, and the bodies that taking them joins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np

from metadef.memory.bodies import slot_column
from metadef.memory.body_table import ARENA, REGIONS, BodySet, BodyTable
from metadef.memory.joining import Requests, joined
from metadef.memory.joins import TAKEN
from metadef.memory.live import LiveTable
from metadef.schedule import InPlace, Schedule


class LegalPair(NamedTuple):
    """An in-place permission that lifetimes allow: ``write`` over ``read`` saves ``saving`` bytes at ``step``."""

    step: int
    read: int
    write: int
    saving: int


@dataclass(frozen=True, eq=False)
class Pairs(Sequence[LegalPair]):
    """Pairs as columns; ``read_at`` and ``write_at`` are the tensors by position."""

    step: np.ndarray
    read: np.ndarray
    write: np.ndarray
    saving: np.ndarray
    read_at: np.ndarray
    write_at: np.ndarray

    @classmethod
    def none(cls) -> Pairs:
        return cls(*[np.zeros(0, np.int64)] * 6)

    def __len__(self) -> int:
        return len(self.step)

    @overload
    def __getitem__(self, place: int) -> LegalPair: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[LegalPair]: ...

    def __getitem__(self, place: int | slice) -> LegalPair | Sequence[LegalPair]:
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        return LegalPair(int(self.step[place]), int(self.read[place]), int(self.write[place]), int(self.saving[place]))

    def __iter__(self) -> Iterator[LegalPair]:
        return map(LegalPair, self.step.tolist(), self.read.tolist(), self.write.tolist(), self.saving.tolist())

    def picked(self, places: np.ndarray | Sequence[int]) -> Pairs:
        """Some of the pairs, in this order."""
        return Pairs(*(getattr(self, name)[places] for name in self.__dataclass_fields__))

    def same_as(self, other: Pairs) -> bool:
        """Whether these are the other's, in the same order."""
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in ("step", "read", "write"))


REASONS = (
    "",
    "there is no such step",
    "the step does not read the one and write the other",
    "one of the two is a weight, a graph input or a graph output",
    "no reuse",
    "the two lie in different memory pools",
    "the output is larger than the input",
    "the input is carried by a loop",
    "the input is read again later",
    "the output exists before this step",
    "another stream may still read the input",
    "the step reads other bytes of the same memory",
)
"""Why a permission may not be taken: the first that holds (0: it may)."""


def legal_pairs(schedule: Schedule, live: LiveTable, made: BodySet) -> tuple[Pairs, dict[InPlace, str]]:
    """The permissions that may be taken, in step order, and the reason for each that may not."""
    if not schedule.inplace:
        return Pairs.none(), {}
    given, slots = live.given, slot_column(live.given)
    step, read, write = _once(given.inplace).T
    known = np.isin(read, given.ids) & np.isin(write, given.ids)
    read_at, write_at = (given.places(np.where(known, ids, given.ids[:1])) for ids in (read, write))
    saving = np.zeros(len(step), np.int64)
    pairs = Pairs(step, read, write, saving, read_at, write_at)
    why = _refusals(live, made.bodies, pairs, slots, known)
    legal = np.flatnonzero(why == 0)
    saving[legal] = _savings(live, made.bodies, slots, pairs.picked(legal))
    refused = {
        InPlace(*pair[:3]): REASONS[reason]
        for pair, reason in zip(pairs.picked(np.flatnonzero(why)), why[why > 0].tolist())
    }
    order = np.lexsort((-saving[legal], step[legal]))
    return pairs.picked(legal[order]), refused


def _savings(live: LiveTable, table: BodyTable, slots: np.ndarray, pairs: Pairs) -> np.ndarray:
    """The most that pairs can save (bytes): in a body of several rectangles, those at the place count that begin, or
    end, at the step, since they may all be handed over."""
    rects = table.rects
    found = []
    several = np.diff(rects.start) > 1
    for tensor, edge in ((pairs.read_at, rects.last), (pairs.write_at, rects.first)):
        sizes, body, place = slots[live.bases[tensor]], table.home[tensor], table.rel[tensor]
        for k in np.flatnonzero(several[body]).tolist():
            mine = slice(int(rects.start[body[k]]), int(rects.start[body[k] + 1]))
            met = (rects.rel[mine] == place[k]) & (edge[mine] == pairs.step[k])
            sizes[k] = int(rects.size[mine][met].max(initial=sizes[k]))
        found.append(sizes)
    return np.minimum(*found)


def _once(table: np.ndarray) -> np.ndarray:
    """Rows without those that stood there before, in order."""
    order = np.lexsort(table.T[::-1])
    again = np.zeros(len(table), np.bool_)
    again[order[1:]] = (table[order[1:]] == table[order[:-1]]).all(axis=1)
    return table[~again]


def _refusals(live: LiveTable, table: BodyTable, pairs: Pairs, slots: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The number of the reason against each pair; ``slots`` are those of all tensors (bytes)."""
    given, row, own, whole = live.given, table.columns, live.own_touched, live.whole
    count, step, read, write = len(given.steps), pairs.step, pairs.read_at, pairs.write_at
    there = (step >= 0) & (step < count)
    at, arena, kept = np.where(there, step, 0), REGIONS.index(ARENA), np.zeros(len(table), np.bool_)
    kept[list(table.reasons)] = True
    old, new, source, target = live.bases[read], live.bases[write], table.home[read], table.home[write]
    reads = _accessed(given.reads, at, read, own.first_read, own.last_read)
    writes = _accessed(given.writes, at, write, own.first_write, own.last_write)
    existed = (whole.first[new] != step) | whole.carried[new]
    existed |= _accessed(given.reads, at, write, own.first_read, own.last_read)
    checks = (
        ~there,
        ~(known & reads & writes),
        (row.region[source] != arena) | (row.region[target] != arena),
        kept[source] | kept[target],
        row.pool[source] != row.pool[target],
        (given.payload[write] > given.payload[read]) | (slots[write] > slots[read]),
        whole.carried[old],
        whole.last[old] != step,
        existed,
        _unfinished(live, old, at),
    )
    why = np.zeros(len(step), np.int64)
    for number in range(len(checks), 0, -1):
        why[checks[number - 1]] = number
    views = np.bincount(live.bases, minlength=len(live.bases)) > 1
    for k in np.flatnonzero((why == 0) & views[old]).tolist():
        if _reads_other_bytes(live, int(step[k]), int(read[k])):
            why[k] = len(checks) + 1
    return why


def _accessed(
    accesses: tuple[np.ndarray, np.ndarray], step: np.ndarray, tensor: np.ndarray, first: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """Whether the steps make an access of the tensors; ``first`` and ``last`` are the steps of each tensor's own."""
    hit = (first[tensor] == step) | (last[tensor] == step)
    between = np.flatnonzero(~hit & (first[tensor] < step) & (step < last[tensor]))
    if len(between):
        width = len(first)
        made = accesses[0] * width + accesses[1]
        hit[between] = np.isin(step[between] * width + tensor[between], made)
    return hit


def _unfinished(live: LiveTable, tensor: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Whether steps of other streams that touch the tensors may still run beside the steps."""
    if live.order.linear:
        return np.zeros(len(tensor), np.bool_)
    latest = live.whole.latest[tensor]
    return np.asarray(((latest > live.order.clocks[step]) & (latest != step[:, None])).any(axis=1))


def _reads_other_bytes(live: LiveTable, step: int, tensor: int) -> bool:
    """Whether a step reads, besides a tensor, another place of the same base."""
    given, shifts = live.given, live.shifts
    for other in given.places([t for t in given.steps[step].reads if t is not None]).tolist():
        same_place = shifts[other] == shifts[tensor] and given.payload[other] == given.payload[tensor]
        if live.bases[other] == live.bases[tensor] and not same_place:
            return True
    return False


def take_pairs(made: BodySet, pairs: Pairs) -> tuple[BodyTable, Pairs]:
    """Join the pairs in the given order where possible: bodies, and the pairs that were taken.

    Each input and each output is used once; a pair is left out if the joined body would overlap itself.
    """
    if not len(pairs):
        return made.bodies, pairs
    requests = Requests(pairs.read_at, pairs.write_at, np.zeros(len(pairs), np.int64), pairs.step)
    found = joined(made.bodies, requests)
    return found.table, pairs.picked(np.flatnonzero(found.result == TAKEN))
