"""Lives of tensors as columns, one row for each tensor: its own, or that of the base of its views with all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from metadef.memory.columns import NO_LABEL, ScheduleColumns
from metadef.schedule import Schedule, TensorKind

Labels = tuple[str, ...]
FAR = 1 << 62


@dataclass
class Lives:
    """First and last step, whether a loop carries the value, whether a step writes it; the branches it exists in, as a
    number (``known`` lists them, 0 = in all), and its reach, stream by stream (no columns: steps are in one order)."""

    first: np.ndarray
    last: np.ndarray
    carried: np.ndarray
    written: np.ndarray
    label: np.ndarray
    known: list[Labels]
    latest: np.ndarray
    before: np.ndarray


class Accesses:
    """First and last steps that read and write each tensor, or each base (-1: none)."""

    def __init__(self, given: ScheduleColumns, base: np.ndarray) -> None:
        (self.read_step, read), (self.write_step, write) = given.reads, given.writes
        self.read, self.write = base[read], base[write]
        self.first_read, self.last_read = _first_last(len(base), self.read_step, self.read)
        self.first_write, self.last_write = _first_last(len(base), self.write_step, self.write)

    @cached_property
    def merged(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step, tensor and whether it is read, of all accesses in order, reads of a step before its writes."""
        step = np.concatenate([self.read_step, self.write_step])
        order = np.argsort(step, kind="stable")
        return step[order], np.concatenate([self.read, self.write])[order], order < len(self.read)


def _first_last(count: int, step: np.ndarray, tensor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, last = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    first[tensor[::-1]] = step[::-1]
    last[tensor] = step
    return first, last


class Borders:
    """Which tensors exist before the run, which after it, and which are either; by position."""

    def __init__(self, schedule: Schedule, given: ScheduleColumns) -> None:
        inputs, outputs = (np.zeros(len(given.ids), np.bool_) for _ in range(2))
        inputs[given.places(schedule.inputs)] = True
        outputs[given.places(schedule.outputs)] = True
        self.weight = given.of_kind(TensorKind.WEIGHT)
        self.input = inputs | self.weight | given.of_kind(TensorKind.INPUT)
        self.output = outputs | given.of_kind(TensorKind.OUTPUT)
        self.held = self.input | self.output


def lives_of(given: ScheduleColumns, touched: Accesses, border: Borders, base: np.ndarray) -> Lives:
    """Lives by accesses and borders; neither loops nor reaches are in them yet.

    A value read before any step has written it must be there from the start.
    """
    end = max(len(given.steps) - 1, 0)
    written = touched.last_write >= 0
    early = written & ((touched.first_read < 0) | (touched.first_write < touched.first_read))
    first = np.where(early, touched.first_write, 0)
    last = np.maximum(np.maximum(touched.last_read, touched.last_write), 0)
    kept = given.kept
    first[base[border.input | kept]] = 0
    last[base[border.output | kept]] = end
    label, known = _labels(given, touched, base)
    label[base[kept]] = NO_LABEL
    none = np.zeros((len(base), 0), np.int64)
    return Lives(first, last, np.zeros(len(base), np.bool_), written, label, known, none, none)


def _labels(given: ScheduleColumns, touched: Accesses, base: np.ndarray) -> tuple[np.ndarray, list[Labels]]:
    """The branches that tensors exist in: a tensor's own label, else those of its writers."""
    label = np.zeros(len(base), np.int64)
    names = given.labels
    if len(names) == 1:
        return label, [()]
    known: dict[Labels, int] = {(): NO_LABEL}
    numbers = np.array([known.setdefault((name,) if name else (), len(known)) for name in names], np.int64)
    code = np.unique(touched.write * len(names) + given.step_label[touched.write_step])
    owner, writer = code // len(names), code % len(names)
    label[owner] = numbers[writer]
    several = np.flatnonzero(np.bincount(owner, minlength=len(base)) > 1)
    for tensor in several.tolist():
        low, high = np.searchsorted(owner, [tensor, tensor + 1])
        texts = {names[number] for number in writer[low:high].tolist()}
        joined = () if "" in texts else tuple(sorted(texts))
        label[tensor] = known.setdefault(joined, len(known))
    label[given.labelled] = numbers[given.label[given.labelled]]
    return label, list(known)


def extend_over_loops(lives: Lives, touched: Accesses, loops: Sequence[tuple[int, int]]) -> None:
    """What crosses a loop's border, or is read in it before it is written, lives through the whole loop."""
    if not loops:
        return
    step, tensor, is_read = touched.merged
    for start, stop in loops:
        low, high = np.searchsorted(step, [start, stop + 1])
        inside, at = np.unique(tensor[low:high], return_index=True)
        crosses = (lives.first[inside] < start) | (lives.last[inside] > stop)
        whole = inside[crosses | is_read[low + at]]
        lives.first[whole] = np.minimum(lives.first[whole], start)
        lives.last[whole] = np.maximum(lives.last[whole], stop)
        lives.carried[whole] = True


def set_reaches(
    lives: Lives,
    touched: Accesses,
    stream: np.ndarray,
    clocks: np.ndarray,
    always: np.ndarray,
    made_by_parts: np.ndarray,
) -> None:
    """Where on every stream each tensor is touched: by accesses, and by its first and last step.

    ``always`` are touched by all steps; ``made_by_parts`` do not reach back to the start.
    """
    width = clocks.shape[1]
    latest = np.full((width, len(lives.first)), -1, np.int64)
    known = np.full((width, len(lives.first)), FAR, np.int64)
    from_start = np.flatnonzero(~made_by_parts)
    everyone = np.arange(len(lives.first))
    for step, tensor in (
        (touched.read_step, touched.read),
        (touched.write_step, touched.write),
        (lives.first[from_start], from_start),
        (lives.last, everyone),
    ):
        for s in range(width if len(clocks) else 0):
            mine = stream[step] == s
            np.maximum.at(latest[s], tensor[mine], step[mine])
            np.minimum.at(known[s], tensor, clocks[step, s])
    latest[:, always], known[:, always] = len(clocks), -1
    lives.latest, lives.before = latest.T.copy(), known.T.copy()
