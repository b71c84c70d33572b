"""Live ranges: when every tensor of a schedule exists, in steps (inclusive), and which of them never exist together.

First step of planning: Schedule -> LiveTable. Inputs live from the start, outputs to the end, workspaces exactly
their step; a view's accesses count for its base; what crosses a loop's border lives through the whole loop; on
several streams two tensors may follow each other only where events order all their accesses; tensors of exclusive
branches never meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from operator import le

import numpy as np

from metadef.error import ContractError, Problem
from metadef.memory.columns import ScheduleColumns, column, filled
from metadef.memory.flow import Runs, live_runs
from metadef.schedule import Group, Schedule, ScheduleTensor, Step, TensorKind

Labels = tuple[str, ...]
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
    """Which steps are ordered. With several streams ``clocks[i][s]`` is the last step of stream s that surely ends
    before step i (-1: none), and ``streams[i]`` the stream of step i, numbered by first appearance."""

    linear: bool
    clocks: list[tuple[int, ...]] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)

    def reach(self, steps: Iterable[int]) -> Reach:
        """The reach of some steps, at least one."""
        latest = [-1] * len(self.clocks[0])
        known: tuple[int, ...] = ()
        for step in steps:
            latest[self.streams[step]] = max(latest[self.streams[step]], step)
            clock = self.clocks[step]
            known = tuple(map(min, known, clock)) if known else clock
        return tuple(latest), known

    @property
    def always(self) -> Reach:
        """The reach of what is touched by all steps, before and after everything."""
        width = len(self.clocks[0]) if self.clocks else 0
        return (len(self.clocks),) * width, (-1,) * width

    def before(self, earlier: Reach, later: Reach) -> bool:
        """Whether every step of ``earlier`` ends before every step of ``later``."""
        return all(map(le, earlier[0], later[1]))

    def done_by(self, reach: Reach, step: int) -> bool:
        """Whether all that is touched is touched by ``step`` or before it."""
        return all(last <= known or last == step for last, known in zip(reach[0], self.clocks[step]))


def joined_reach(one: Reach, other: Reach) -> Reach:
    """The reach of two sets of steps together."""
    if not one[0] or not other[0]:
        return one if one[0] else other
    return tuple(map(max, one[0], other[0])), tuple(map(min, one[1], other[1]))


@dataclass
class LiveTable:
    """Spans by tensor id. ``spans`` are a tensor's own; ``base_spans`` those of view bases, their views included.

    ``base[t]`` is the tensor at the bottom of t's view chain (t itself if it is no view) and ``shift[t]`` its offset
    in bytes. The life of a ``plain`` tensor is what ``first`` and ``last`` say of it (columns by position).
    """

    given: ScheduleColumns
    tensors: dict[int, ScheduleTensor]
    end: int
    order: StepOrder
    base: dict[int, int]
    shift: dict[int, int]
    spans: Mapping[int, Span]
    base_spans: Mapping[int, Span]
    views_of: dict[int, list[int]]
    plain: np.ndarray
    first: np.ndarray
    last: np.ndarray
    reads: AccessLists
    writes: AccessLists


class _Spans(dict[int, Span]):
    """Spans that are made when somebody asks for them."""

    def __init__(self, make: Callable[[int], Span]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, tensor: int) -> Span:
        self[tensor] = span = self._make(tensor)
        return span


def live_table(schedule: Schedule) -> LiveTable:
    """Live ranges of a schedule.

    Raises:
        ContractError: the schedule contradicts itself (unknown tensors, view cycles, events nobody records).
    """
    given = ScheduleColumns(schedule)
    _check_ids(schedule, given)
    tensors = dict(zip(given.ids.tolist(), schedule.tensors))
    base, shift = _view_bases(schedule, tensors)
    reads, writes = AccessLists(given, given.reads), AccessLists(given, given.writes)
    order = step_order(schedule.steps)
    end = max(len(schedule.steps) - 1, 0)
    loops = loop_bodies(schedule.steps)
    border = Borders(schedule)
    labelled = any(step.branch for step in schedule.steps)
    steps = schedule.steps if labelled else []
    own = _Spans(lambda t: _span(steps, border, tensors[t], reads[t], writes[t], end, loops, order))
    views_of: dict[int, list[int]] = {}
    for tensor in sorted({view.tensor for view in schedule.views}, key=given.place.__getitem__):
        views_of.setdefault(base[tensor], []).append(tensor)
    parents = {base[group.parent] for group in schedule.groups if group.parent >= 0}
    base_spans = _Spans(own.__getitem__)
    for root in {**views_of, **dict.fromkeys(parents)}:
        whole = own[root]
        family = [root, *views_of.get(root, ())]
        if len(family) > 1:
            read, written = (sorted(s for t in family for s in table[t]) for table in (reads, writes))
            whole = _span(steps, border, tensors[root], read, written, end, loops, order)
            for view in family[1:]:
                _fix_borders(border, tensors[view], whole, end)
                if tensors[view].no_reuse and not order.linear:
                    whole.reach = order.always
        if root in parents and not whole.written and not order.linear:
            # Its members make it: it does not reach back to the start.
            whole.reach = order.reach((*(s for t in family for s in reads[t]), whole.last))
        base_spans[root] = whole
    for group in schedule.groups:
        _extend_group(group, base, base_spans, own)
    jumps = any(step.jumps for step in schedule.steps)
    if order.linear and jumps:
        grouped = {base[t] for group in schedule.groups for t in (group.parent, *group.members) if t >= 0}
        for root, runs in live_runs(schedule, base).items():
            if root not in grouped and _follows_paths(border, tensors[root], base_spans[root]):
                base_spans[root].runs, base_spans[root].labels = runs, ()
    straight = order.linear and not (loops or labelled or jumps)
    plain = _plain(schedule, given) if straight else np.zeros(len(tensors), np.bool_)
    first, last = _extremes(reads, writes, border, end)
    return LiveTable(
        given, tensors, end, order, base, shift, own, base_spans, views_of, plain, first, last, reads, writes
    )


def _plain(schedule: Schedule, given: ScheduleColumns) -> np.ndarray:
    """Tensors of a straight schedule that no relation and no branch concerns."""
    related = [t for view in schedule.views for t in (view.tensor, view.base)]
    related += [t for group in schedule.groups for t in (group.parent, *group.members) if t >= 0]
    plain = ~filled(schedule.tensors, "branch")
    plain[given.places(related)] = False
    return plain


def _extremes(reads: AccessLists, writes: AccessLists, border: Borders, end: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last step of all lives, as :func:`_span` has them where order, loops and branches do not matter."""
    given = reads.given
    written = writes.first >= 0
    first = np.where(written & ((reads.first < 0) | (writes.first < reads.first)), writes.first, 0)
    last = np.maximum(np.maximum(reads.last, writes.last), 0)
    inputs, outputs = (given.places(sorted(ids)) for ids in (border.inputs, border.outputs))
    first[inputs], last[outputs] = 0, end
    first[given.of_kind(TensorKind.INPUT) | given.of_kind(TensorKind.WEIGHT) | given.kept] = 0
    last[given.of_kind(TensorKind.OUTPUT) | given.kept] = end
    return first, last


class AccessLists:
    """The steps that read, or write, a tensor, by its id; ``first`` and ``last`` of them by position (-1: none)."""

    def __init__(self, given: ScheduleColumns, accesses: tuple[np.ndarray, np.ndarray]) -> None:
        step, tensor = accesses
        self.given, self._accesses = given, accesses
        self.first, self.last = (np.full(len(given.ids), -1, np.int64) for _ in range(2))
        self.first[tensor[::-1]] = step[::-1]
        self.last[tensor] = step

    @cached_property
    def _sorted(self) -> tuple[list[int], list[int]]:
        step, tensor = self._accesses
        starts = np.concatenate([[0], np.cumsum(np.bincount(tensor, minlength=len(self.given.ids)))])
        return starts.tolist(), step[np.argsort(tensor, kind="stable")].tolist()

    def __getitem__(self, tensor: int) -> list[int]:
        place = self.given.place[tensor]
        starts, steps = self._sorted
        return steps[starts[place] : starts[place + 1]]


def _follows_paths(border: Borders, tensor: ScheduleTensor, span: Span) -> bool:
    """Whether a tensor lives only where paths of the schedule want it, which border and wishes do not extend."""
    return span.written and not (border.holds(tensor) or tensor.no_reuse or tensor.branch)


class Borders:
    """Which tensors exist before the run, and which after it."""

    def __init__(self, schedule: Schedule) -> None:
        self.inputs, self.outputs = frozenset(schedule.inputs), frozenset(schedule.outputs)

    def holds(self, tensor: ScheduleTensor) -> bool:
        """Whether a tensor is one of either."""
        return tensor.kind is not TensorKind.FEATURE or tensor.id in self.inputs or tensor.id in self.outputs

    def is_input(self, tensor: ScheduleTensor) -> bool:
        return tensor.kind is TensorKind.INPUT or tensor.kind is TensorKind.WEIGHT or tensor.id in self.inputs

    def is_output(self, tensor: ScheduleTensor) -> bool:
        return tensor.kind is TensorKind.OUTPUT or tensor.id in self.outputs


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
    for depth in range(1, max((step.loop_depth for step in steps), default=0) + 1):
        start = -1
        for index in range(len(steps) + 1):
            inside = index < len(steps) and steps[index].loop_depth >= depth
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
    if len({step.stream for step in steps}) <= 1:
        return StepOrder(linear=True)
    numbers: dict[int, int] = {}
    streams = [numbers.setdefault(step.stream, len(numbers)) for step in steps]
    clocks: list[tuple[int, ...]] = []
    done: list[tuple[int, ...]] = []
    latest: dict[int, int] = {}
    recorded: dict[int, int] = {}
    for index, step in enumerate(steps):
        missing = [event for event in step.waits if event not in recorded]
        if missing:
            raise ContractError(f"waits for event {missing[0]}, which no earlier step records", node=step.name)
        clock: tuple[int, ...] = (-1,) * len(numbers)
        for source in (latest.get(step.stream), *(recorded[event] for event in step.waits)):
            if source is not None:
                clock = tuple(map(max, clock, done[source]))
        clocks.append(clock)
        done.append((*clock[: streams[index]], index, *clock[streams[index] + 1 :]))
        latest[step.stream] = index
        recorded.update(dict.fromkeys(step.records, index))
    return StepOrder(False, clocks, streams)


def _check_ids(schedule: Schedule, given: ScheduleColumns) -> None:
    """Raises ContractError for ids that lead nowhere, or to two things."""
    related = [t for view in schedule.views for t in (view.tensor, view.base)]
    related += [t for group in schedule.groups for t in (group.parent, *group.members) if t != -1]
    related += [*schedule.inputs, *schedule.outputs]
    in_order = np.array_equal(column(schedule.steps, "id"), np.arange(len(schedule.steps)))
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


def _view_bases(schedule: Schedule, tensors: Iterable[int]) -> tuple[dict[int, int], dict[int, int]]:
    parents = {view.tensor: view for view in schedule.views}
    base = {tensor: tensor for tensor in tensors}
    shift = dict.fromkeys(tensors, 0)
    for tensor in parents:
        root, offset, seen = tensor, 0, {tensor}
        while root in parents:
            offset += parents[root].offset_bytes
            root = parents[root].base
            if root in seen:
                raise ContractError(f"views of tensor {tensor} run in a circle", node=schedule.name)
            seen.add(root)
        base[tensor], shift[tensor] = root, offset
    return base, shift


def _span(
    labelled_steps: list[Step],
    border: Borders,
    tensor: ScheduleTensor,
    reads: list[int],
    writes: list[int],
    end: int,
    loops: list[tuple[int, int]],
    order: StepOrder,
) -> Span:
    # A value read before any step has written it must be there from the start.
    first = writes[0] if writes and (not reads or writes[0] < reads[0]) else 0
    last = reads[-1] if reads and (not writes or reads[-1] > writes[-1]) else writes[-1] if writes else 0
    span = Span(first, last, written=bool(writes))
    if tensor.branch:
        span.labels = (tensor.branch,)
    elif labelled_steps:
        labels = {labelled_steps[step].branch for step in writes}
        span.labels = () if "" in labels else tuple(sorted(labels))
    if tensor.no_reuse or border.holds(tensor):
        _fix_borders(border, tensor, span, end)
    if order.linear and not loops:
        return span
    touched = sorted({*reads, *writes})
    for start, stop in loops:
        inside = [step for step in touched if start <= step <= stop]
        if not inside:
            continue
        crosses = span.first < start or span.last > stop
        if crosses or inside[0] in reads:
            span.first, span.last, span.carried = min(span.first, start), max(span.last, stop), True
    if not order.linear:
        span.reach = order.always if tensor.no_reuse else order.reach((*touched, span.first, span.last))
    return span


def _fix_borders(border: Borders, tensor: ScheduleTensor, span: Span, end: int) -> None:
    """Inputs live from the start, outputs to the end, and what may not be reused over the whole run."""
    if border.is_input(tensor) or tensor.no_reuse:
        span.first = 0
    if border.is_output(tensor) or tensor.no_reuse:
        span.last = end
    if tensor.no_reuse:
        span.labels = ()


def _extend_group(group: Group, base: Mapping[int, int], spans: _Spans, own: _Spans) -> None:
    """A parent nobody writes is written through its members; a member nobody writes is written through its parent."""
    if group.parent < 0:
        return
    parent = spans[base[group.parent]]
    members = [spans[base[member]] for member in group.members]
    if not parent.written:
        for member in members:
            member.last = max(member.last, parent.last)
            member.reach = joined_reach(member.reach, parent.reach)
        parent.first = min((member.first for member in members), default=0)
        for member in members:
            parent.reach = joined_reach(parent.reach, member.reach)
        parent.labels = ()
    for member in members:
        if not member.written:
            member.first, member.last = parent.first, max(member.last, parent.last)
            member.reach = joined_reach(member.reach, parent.reach)
            parent.last = max(parent.last, member.last)
            parent.reach = joined_reach(parent.reach, member.reach)
    for tensor in (group.parent, *group.members):
        whole = spans[base[tensor]]
        if base[tensor] == tensor:
            own[tensor] = whole
