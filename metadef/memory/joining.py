"""Bodies joined at fixed distances: what contiguous groups demand, and what in-place permissions allow."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from metadef.memory.body_table import BodyTable, Columns, Rects
from metadef.memory.columns import FREE, starts_of
from metadef.memory.joins import join
from metadef.memory.live import exclusive
from metadef.memory.loops import run


@dataclass(frozen=True)
class Requests:
    """Keys to be joined, in order: the second lies ``distance`` bytes above the first.

    With a step it is a permission to write the second over the first there; without (-1) a must.
    """

    anchor: np.ndarray
    added: np.ndarray
    distance: np.ndarray
    step: np.ndarray

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Joined:
    """The bodies that came of it, what became of each request, and the number of the must that failed (-1: none)."""

    table: BodyTable
    result: np.ndarray
    failed: int


def joined(table: BodyTable, requests: Requests) -> Joined:
    """Join bodies where requests can be met, in their order; each tensor is read, and written, in place once."""
    row, rects, count = table.columns, table.rects, len(table)
    latest, known = rects.latest.copy(), rects.known.copy()
    apart = np.array([[exclusive(one, other) for other in rects.labels] for one in rects.labels], np.bool_)
    home, shift, low, high = np.arange(count), np.zeros(count, np.int64), np.zeros(count, np.int64), row.extent.copy()
    modulus, residue, pin, region = (column.copy() for column in (row.modulus, row.residue, row.pin, row.region))
    bodies, lists = (home, shift, low, high, modulus, residue, pin, row.pool, region), _lists(table)
    place = table.rel[requests.anchor]
    distance = place + requests.distance - table.rel[requests.added]
    between = (table.home[requests.anchor], table.home[requests.added], distance, place)
    used = [np.zeros(len(table.home), np.bool_) for _ in range(2)]
    result, start, order = (np.zeros(size, np.int64) for size in (len(requests), count + 1, len(rects.rel)))
    failed = run(
        join, max(len(requests), count), (*between, requests.step, requests.anchor, requests.added), bodies, lists,
        (latest, known, apart), (*used, result), start, order,
    )  # fmt: skip
    kept = home == np.arange(count)
    _, _, _, rel, size, begun, ended, label = lists
    laid = Rects(rects.start, rel, size, begun, ended, label, rects.labels, latest, known)
    picked = laid.picked(starts_of(np.diff(start)[kept]), order[: start[-1]])
    pin, residue = np.where(pin == FREE, FREE, pin + low), (residue + low) % modulus
    row = replace(row, extent=high - low, modulus=modulus, residue=residue, pin=pin, region=region)[kept]
    _, first, last = picked.hulls()
    return Joined(_moved(table, replace(row, first=first, last=last), picked, (home, shift, low)), result, failed)


def _moved(
    table: BodyTable, columns: Columns, rects: Rects, bodies: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> BodyTable:
    """The table of what is left when each body has become part of its home."""
    home, shift, low = bodies
    number = np.cumsum(home == np.arange(len(home))) - 1
    there = table.home >= 0
    old = table.home[there]
    place, rel = np.full(len(table.home), -1, np.int64), table.rel.copy()
    place[there] = number[home[old]]
    rel[there] += shift[old] - low[home[old]]
    reasons: dict[int, str] = {}
    for body, text in sorted(table.reasons.items(), key=lambda entry: (home[entry[0]] != entry[0], entry[0])):
        reasons.setdefault(int(number[home[body]]), text)
    return BodyTable(columns, rects, table.keys, place, rel, table.pools, reasons)


def _lists(table: BodyTable) -> tuple[np.ndarray, ...]:
    """Rectangles as lists by body: the first, the last, the next of each, then their columns."""
    rects = table.rects
    filled = np.diff(rects.start) > 0
    head, tail = np.where(filled, rects.start[:-1], -1), np.where(filled, rects.start[1:] - 1, -1)
    after = np.arange(1, len(rects.rel) + 1)
    after[tail[filled]] = -1
    columns = (rects.rel, rects.size, rects.first, rects.last, rects.label)
    return head, tail, after, *(column.copy() for column in columns)
