"""Live ranges: when every tensor of a schedule exists, in steps (inclusive), and which of them never exist together.

First step of planning: Schedule -> LiveTable. Inputs live from the start, outputs to the end, workspaces exactly
their step; a view's accesses count for its base; what crosses a loop's border lives through the whole loop; on
several streams two tensors may follow each other only where events order all their accesses; tensors of exclusive
branches never meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain
from operator import le

import numpy as np

from metadef.error import ContractError, Problem
from metadef.memory.columns import NO_LABEL, ScheduleColumns, numbered, starts_of
from metadef.memory.flow import Runs, live_runs
from metadef.memory.joins import extend_groups, order_steps
from metadef.memory.loops import run
from metadef.memory.spans import Accesses, Borders, Labels, Lives, extend_over_loops, lives_of, set_reaches
from metadef.schedule import Schedule, ScheduleTensor, Step

Reach = tuple[tuple[int, ...], tuple[int, ...]]
"""What matters of a set of steps on several streams: the last of them on each stream (-1: none), and the last step of
each stream that surely ends before all of them."""

NOWHERE: Reach = ((), ())


@dataclass(slots=True)
class Span:
    """Life of one tensor: ``first`` and ``last`` step, the steps that touch it, and whether a loop carries it.

    ``reach`` says where on every stream it is touched (several streams only). ``labels`` are the branches of its
    writers (empty: it always exists). ``written`` says whether a step writes it. ``runs`` are the stretches of that
    life that paths through branches and loops leave (empty: all of it).
    """

    first: int
    last: int
    labels: Labels = ()
    reach: Reach = NOWHERE
    carried: bool = False
    written: bool = True
    runs: Runs = ()


@dataclass
class StepOrder:
    """Which steps are ordered. With several streams ``clocks[i, s]`` is the last step of stream s that surely ends
    before step i (-1: none), and ``streams[i]`` the stream of step i, numbered by first appearance."""

    linear: bool
    clocks: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    streams: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def reach(self, steps: Iterable[int]) -> Reach:
        """The reach of some steps, at least one."""
        listed = sorted({*steps})
        latest = np.full(self.clocks.shape[1], -1, np.int64)
        np.maximum.at(latest, self.streams[listed], listed)
        return tuple(latest.tolist()), tuple(self.clocks[listed].min(axis=0).tolist())

    @property
    def always(self) -> Reach:
        """The reach of what is touched by all steps, before and after everything."""
        width = self.clocks.shape[1]
        return (len(self.clocks),) * width, (-1,) * width

    def before(self, earlier: Reach, later: Reach) -> bool:
        """Whether every step of ``earlier`` ends before every step of ``later``."""
        return all(map(le, earlier[0], later[1]))

    def done_by(self, reach: Reach, step: int) -> bool:
        """Whether all that is touched is touched by ``step`` or before it."""
        return all(last <= known or last == step for last, known in zip(reach[0], self.clocks[step].tolist()))


def joined_reach(one: Reach, other: Reach) -> Reach:
    """The reach of two sets of steps together."""
    if not one[0] or not other[0]:
        return one if one[0] else other
    return tuple(map(max, one[0], other[0])), tuple(map(min, one[1], other[1]))


@dataclass
class LiveTable:
    """Lives by position of the tensor. ``own`` are a tensor's own; ``whole`` those of view bases, their views included.

    ``bases[i]`` is the tensor at the bottom of i's view chain (i itself if it is no view) and ``shifts[i]`` its offset
    in bytes. ``runs`` are the stretches that paths leave of a base's life, where they are not all of it. Mappings are
    by tensor id.
    """

    given: ScheduleColumns
    end: int
    order: StepOrder
    border: Borders
    bases: np.ndarray
    shifts: np.ndarray
    own_touched: Accesses
    own: Lives
    whole: Lives
    runs: dict[int, Runs]

    @cached_property
    def tensors(self) -> Mapping[int, ScheduleTensor]:
        return dict(zip(self.given.ids.tolist(), self.given.tensors))

    @cached_property
    def base(self) -> Mapping[int, int]:
        return dict(zip(self.given.ids.tolist(), self.given.ids[self.bases].tolist()))

    @cached_property
    def shift(self) -> Mapping[int, int]:
        return dict(zip(self.given.ids.tolist(), self.shifts.tolist()))

    @property
    def base_spans(self) -> Mapping[int, Span]:
        """Spans of bases with their views."""
        return _Spans(self.given.place, self.whole, self.runs)


class _Spans(Mapping[int, Span]):
    """Spans by tensor id, made when somebody asks for them."""

    def __init__(self, place: Mapping[int, int], lives: Lives, runs: Mapping[int, Runs]) -> None:
        self._place, self._lives, self._runs = place, lives, runs

    def __getitem__(self, tensor: int) -> Span:
        at, lives = self._place[tensor], self._lives
        reach = (tuple(lives.latest[at].tolist()), tuple(lives.before[at].tolist()))
        return Span(
            int(lives.first[at]), int(lives.last[at]), lives.known[lives.label[at]], reach, bool(lives.carried[at]),
            bool(lives.written[at]), self._runs.get(at, ()),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._place)

    def __iter__(self) -> Iterator[int]:
        return iter(self._place)


def live_table(schedule: Schedule) -> LiveTable:
    """Live ranges of a schedule.

    Raises:
        ContractError: the schedule contradicts itself (unknown tensors, view cycles, events nobody records).
    """
    given = ScheduleColumns(schedule)
    _check_ids(schedule, given)
    bases, shifts = _view_bases(schedule, given)
    order = step_order(schedule.steps)
    loops = loop_bodies(schedule.steps)
    border = Borders(schedule, given)
    itself = np.arange(len(bases))
    touched = Accesses(given, itself)
    own = lives_of(given, touched, border, itself)
    extend_over_loops(own, touched, loops)
    together, whole = touched, own
    if schedule.views:
        together = Accesses(given, bases)
        whole = lives_of(given, together, border, bases)
        extend_over_loops(whole, together, loops)
    elif schedule.groups:
        whole = replace(own, first=own.first.copy(), last=own.last.copy(), label=own.label.copy())
    if not order.linear:
        parts = np.zeros(len(bases), np.bool_)
        parents = given.groups[0]
        parts[bases[parents[parents >= 0]]] = True
        always = bases[np.flatnonzero(given.kept)]
        set_reaches(whole, together, order.streams, order.clocks, always, parts & ~whole.written)
    _extend_groups(given, bases, whole)
    runs: dict[int, Runs] = {}
    end = max(len(schedule.steps) - 1, 0)
    live = LiveTable(given, end, order, border, bases, shifts, touched, own, whole, runs)
    if order.linear and any([step.jumps for step in schedule.steps]):
        _follow_paths(schedule, live)
    return live


def _extend_groups(given: ScheduleColumns, bases: np.ndarray, whole: Lives) -> None:
    parents, starts, members = given.groups
    mine = np.flatnonzero(parents >= 0)
    if not len(mine):
        return
    counts = np.diff(starts)
    kept = members[np.repeat(parents >= 0, counts)]
    work = len(kept) * (1 + 4 * whole.latest.shape[1])
    run(
        extend_groups, work, bases[parents[mine]], starts_of(counts[mine]), bases[kept], whole.written,
        whole.first, whole.last, whole.label, whole.latest, whole.before,
    )  # fmt: skip


def _follow_paths(schedule: Schedule, live: LiveTable) -> None:
    """Where no border, wish or group extends it, a tensor lives only where paths of the schedule want it."""
    given, whole, bases = live.given, live.whole, live.bases
    free = whole.written & ~live.border.held & ~given.kept & (given.label == NO_LABEL)
    parents, _, members = given.groups
    free[bases[parents[parents >= 0]]] = False
    free[bases[members]] = False
    for tensor, runs in live_runs(schedule, live.base).items():
        at = given.place[tensor]
        if free[at]:
            live.runs[at] = runs
            whole.label[at] = NO_LABEL


@lru_cache(maxsize=4096)
def branch_sides(label: str) -> dict[str, str]:
    """``"if0:then/if1:else"`` as condition -> side. Raises ContractError for a part without a side."""
    sides = {}
    for part in label.split("/") if label else ():
        condition, colon, side = part.partition(":")
        if not colon or not condition or not side:
            raise ContractError("branch label is not a path", expected="condition:side/condition:side", got=label)
        sides[condition] = side
    return sides


@lru_cache(maxsize=65536)
def exclusive(one: Labels, other: Labels) -> bool:
    """Whether tensors with these branch labels never exist in the same run."""
    if not one or not other:
        return False
    return all(
        any(sides.get(condition, side) != side for condition, side in branch_sides(b).items())
        for a in one
        for sides in (branch_sides(a),)
        for b in other
    )


def loop_bodies(steps: list[Step]) -> list[tuple[int, int]]:
    """First and last step of every loop body, outer loops first."""
    bodies = []
    depths = [step.loop_depth for step in steps]
    for depth in range(1, max(depths, default=0) + 1):
        start = -1
        for index in range(len(steps) + 1):
            inside = index < len(steps) and depths[index] >= depth
            if inside and start < 0:
                start = index
            elif not inside and start >= 0:
                bodies.append((start, index - 1))
                start = -1
    return bodies


def step_order(steps: list[Step]) -> StepOrder:
    """Happens-before of the steps: order within a stream, and from an event's record to its waits.

    Raises:
        ContractError: a step waits for an event that no earlier step records.
    """
    numbers: dict[int, int] = {}
    streams = numbered([step.stream for step in steps], numbers)
    if len(numbers) <= 1:
        return StepOrder(linear=True)
    events: dict[int, int] = {}
    tables = []
    for named in ([step.records for step in steps], [step.waits for step in steps]):
        counts = np.fromiter(map(len, named), np.int64, len(named))
        tables.append((starts_of(counts), numbered(chain.from_iterable(named), events)))
    (record_start, records), (wait_start, waits) = tables
    recorded, latest = np.full(len(events), -1, np.int64), np.full(len(numbers), -1, np.int64)
    clocks = np.full((len(steps), len(numbers)), -1, np.int64)
    missing = run(order_steps, len(steps), streams, wait_start, waits, record_start, records, recorded, latest, clocks)
    if missing >= 0:
        step = steps[int(np.searchsorted(wait_start, missing, side="right")) - 1]
        event = list(events)[int(waits[missing])]
        raise ContractError(f"waits for event {event}, which no earlier step records", node=step.name)
    return StepOrder(False, clocks, streams)


def _check_ids(schedule: Schedule, given: ScheduleColumns) -> None:
    """Raises ContractError for ids that lead nowhere, or to two things."""
    related = [t for view in schedule.views for t in (view.tensor, view.base)]
    related += [t for group in schedule.groups for t in (group.parent, *group.members) if t != -1]
    related += [*schedule.inputs, *schedule.outputs]
    in_order = [step.id for step in schedule.steps] == list(range(len(schedule.steps)))
    if given.complete and in_order and len(given.place) == len(given.ids) and given.place.keys() >= {*related}:
        return
    problems = []
    if len(given.place) != len(given.ids):
        problems.append(Problem("two tensors of the schedule have one id", node=schedule.name))
    for index, step in enumerate(schedule.steps):
        if step.id != index:
            problems.append(
                Problem("step id is not its position", node=step.name, expected=str(index), got=str(step.id))
            )
        unknown = [t for t in (*step.reads, *step.writes) if t is not None and t not in given.place]
        if unknown:
            problems.append(Problem(f"step touches unknown tensors {unknown}", node=step.name))
    problems += [
        Problem(f"a relation names unknown tensor {t}", node=schedule.name) for t in related if t not in given.place
    ]
    raise ContractError(problems)


def _view_bases(schedule: Schedule, given: ScheduleColumns) -> tuple[np.ndarray, np.ndarray]:
    """The tensor at the bottom of every tensor's views, by position, and the distance from it (bytes)."""
    base, shift = np.arange(len(given.ids)), np.zeros(len(given.ids), np.int64)
    if not schedule.views:
        return base, shift
    tensor, under, distance = given.views
    base[tensor], shift[tensor] = under, distance
    is_view = np.zeros(len(base), np.bool_)
    is_view[tensor] = True
    for _ in range(len(base).bit_length() + 1):
        if (base[base] == base).all():
            break
        shift += shift[base]
        base = base[base]
    circling = tensor[is_view[base[tensor]]]
    if len(circling):
        raise ContractError(f"views of tensor {given.ids[circling[0]]} run in a circle", node=schedule.name)
    return base, shift
