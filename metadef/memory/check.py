"""check_plan: an independent check of a MemoryPlan against its Schedule.

Nothing of the planner's tables is used. Addresses are checked row by row; then the steps are run in order over a map of
bytes -> the tensor whose value lies there, once per combination of branches and twice around loops. A read that finds
another tensor's bytes, an output that is gone at the end, a race between streams: each is a problem, all are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np

from metadef.error import PlanError, Problem
from metadef.memory import replay
from metadef.memory.pause import collector_paused
from metadef.memory.placement import Facts, placement_problems
from metadef.memory.plan import MemoryPlan
from metadef.memory.touches import PART, READ, WRITE, Touches
from metadef.schedule import Schedule, Step, TensorKind

INNER_ERROR = "E19999"
PROBLEMS_SHOWN, MOST_FOUND = 20, 4_000

World = Mapping[str, str]


def check_plan(schedule: Schedule, plan: MemoryPlan) -> None:
    """Prove that a plan is safe for a schedule.

    Raises:
        PlanError: overlaps, overwritten values, misplaced, missing or misaligned rows, groups with gaps, in-place
        without
            permission, wrong totals, or a plan made for another revision; up to twenty problems at once.
    """
    with collector_paused():
        facts = Facts(schedule, plan)
        problems = list(placement_problems(schedule, plan, facts))
        if not problems:
            runner = _Runner(schedule, Touches(schedule, facts), facts)
            for world in _worlds(facts.columns.labels):
                runner.run(world)
            problems = list(runner.problems.values())
    if problems:
        raise PlanError(problems[:PROBLEMS_SHOWN])


class _Runner:
    """Runs the steps of one world after another and collects problems by their text."""

    def __init__(self, schedule: Schedule, touches: Touches, facts: Facts) -> None:
        self.schedule, self.touches, self.facts = schedule, touches, facts
        self.problems: dict[str, Problem] = {}
        self.given = facts.weight | facts.columns.of_kind(TensorKind.INPUT)
        self.fixed = self.given.copy()
        self.fixed[facts.columns.places(schedule.inputs)] = True
        self.order = _unrolled(schedule.steps)

    def run(self, world: World) -> None:
        """One execution in which the conditions of ``world`` take its sides; other branches do not run."""
        made = self.touches
        runs, exists, agrees = self._presence(world)
        scratch = np.ones(len(made.scratch_rows), np.bool_)
        there = np.where(
            made.kind == WRITE, np.append(agrees, scratch)[made.owner], np.append(exists, scratch)[made.owner]
        )
        there &= np.append(runs, True)[made.step] & (made.low[made.owner] < made.high[made.owner])
        there &= (made.kind != PART) | np.append(exists, scratch)[made.shown]
        there &= (made.step < made.end) | self._written(runs)[made.shown]
        touched = np.flatnonzero(there)
        self._follow(touched, self._from_start(runs, exists))
        self._within(touched)
        if int(made.streams.max(initial=0)) > 0:
            self._race(touched)

    def _presence(self, world: World) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which steps run; which tensors have a value: their own label agrees, or a writer of their family runs; and
        which tensors' own label agrees."""
        given = self.facts.columns
        holds = np.array([_agrees(label, world) for label in given.labels], np.bool_)
        runs, agrees = holds[given.step_label], holds[given.label]
        if holds.all():
            return runs, np.ones(len(agrees), np.bool_), agrees
        written = self._by_family(np.ones(len(runs), np.bool_))
        return runs, np.where(given.labelled, agrees, ~written | self._by_family(runs)), agrees

    def _by_family(self, runs: np.ndarray) -> np.ndarray:
        """Whether one of these steps writes a tensor, or a relative of its."""
        made, tensors = self.touches, len(self.schedule.tensors)
        hit = np.zeros(made.family_count + 1, np.bool_)
        write = (made.kind == WRITE) & (made.owner < tensors)
        write &= np.append(runs, False)[made.step]
        hit[made.families[made.owner[write]]] = True
        spread = hit.copy()
        np.logical_or.at(spread, made.linked // max(made.family_count, 1), hit[made.linked % max(made.family_count, 1)])
        return np.asarray(spread[made.families[:tensors]])

    def _written(self, runs: np.ndarray) -> np.ndarray:
        return np.append(self.given | self._by_family(runs), np.ones(len(self.touches.scratch_rows), np.bool_))

    def _from_start(self, runs: np.ndarray, exists: np.ndarray) -> np.ndarray:
        """Inputs, and tensors whose first access is a read."""
        made, tensors = self.touches, len(self.schedule.tensors)
        fixed = sorted(np.flatnonzero(self.fixed).tolist(), key=lambda place: self.schedule.tensors[place].id)
        mine = (made.owner < tensors) & (made.kind != PART) & np.append(runs, False)[made.step]
        step, owner = made.step[mine], made.owner[mine]
        since = np.full(made.family_count + 1, made.end + 1)
        np.minimum.at(since, made.families[owner], step)
        since[made.families[fixed]] = -1
        if len(made.linked):
            own = since.copy()
            np.minimum.at(since, made.linked // made.family_count, own[made.linked % made.family_count])
        early = (made.kind[mine] == READ) & (since[made.families[owner]] == step) & exists[owner]
        return np.array([*fixed, *owner[early]], np.int64)

    def _follow(self, touched: np.ndarray, claims: np.ndarray) -> None:
        """Values over time: claims at the start, then reads and writes of the steps as they run."""
        made = self.touches
        claims = claims[made.low[claims] < made.high[claims]]
        through = np.zeros(len(made.families), np.bool_)
        through[list(made.through)] = True
        valued = touched[(made.kind[touched] != READ) | ~through[made.owner[touched]]]
        ops = self._in_order(valued)
        owner = np.concatenate([claims, made.owner[ops]])
        reads = np.concatenate([np.ones(len(claims), np.bool_), made.kind[ops] != WRITE])
        writes = np.concatenate([np.ones(len(claims), np.bool_), made.kind[ops] == WRITE])
        marks = np.full(made.borders + 1, replay.NO_MARK, np.int64)
        marks[made.space_starts] = replay.NOBODY
        blocks = np.bincount(made.space_starts >> replay.BLOCK_BITS, minlength=(len(marks) >> replay.BLOCK_BITS) + 2)
        found, holders = np.zeros(MOST_FOUND, np.int64), np.zeros(MOST_FOUND, np.int64)
        count = replay.run(
            replay.follow_bytes, len(owner), owner, made.low[owner], made.high[owner], reads, writes, made.families,
            made.linked, made.family_count, marks, blocks.astype(np.int64), found, holders,
        )  # fmt: skip
        for k, holder in zip(found[:count].tolist(), holders[:count].tolist()):
            if k < len(claims):
                self._claim_problem(int(claims[k]), holder)
                continue
            op = int(ops[k - len(claims)])
            name, step = self._name(int(made.shown[op])), int(made.step[op])
            where = self.schedule.steps[step].name if step < made.end else "the end of the run"
            if holder == replay.NOBODY:
                self._report(f"'{name}' is read before anything was written there", where)
            else:
                self._report(f"'{name}' was overwritten by '{self._name(holder)}' before its last use", where)

    def _claim_problem(self, tensor: int, holder: int) -> None:
        name = self._name(tensor)
        if holder != replay.NOBODY:
            text = f"tensors '{name}' and '{self._name(holder)}' both exist from the start and overlap"
            self._report(text, name)

    def _in_order(self, valued: np.ndarray) -> np.ndarray:
        """Touches in the order in which their steps run, loop bodies twice."""
        if self.order is None:
            return valued
        steps = self.touches.step[valued]
        start = np.searchsorted(steps, np.arange(self.touches.end + 2))
        return np.concatenate([valued[start[k] : start[k + 1]] for k in (*self.order, self.touches.end)])

    @cached_property
    def _allowed(self) -> np.ndarray:
        """Permissions as step, source and target; steps and tensors by position."""
        given = self.facts.columns
        table = given.inplace[np.isin(given.inplace[:, 1:], given.ids).all(axis=1)]
        return np.stack([table[:, 0], given.places(table[:, 1]), given.places(table[:, 2])], axis=1)

    def _within(self, touched: np.ndarray) -> None:
        """What one step writes may lie on nothing else of the step, unless a relation or permission says so."""
        made = self.touches
        mine = touched[(made.kind[touched] != PART) & (made.step[touched] < made.end)]
        found, others = self._pairs(replay.meetings, mine, len(self.schedule.inplace) + MOST_FOUND)
        step, one, other = made.step[found], made.owner[found], made.owner[others]
        granted = _among(np.stack([step, one, other], axis=1), self._allowed) & (made.kind[found] == READ)
        fits = made.sizes[other] <= made.sizes[one]
        fits[granted] = self.facts.payload[other[granted]] <= self.facts.payload[one[granted]]
        for k in np.flatnonzero(~(granted & fits & (made.low[one] == made.low[other]))).tolist():
            why = "without permission"
            if granted[k]:
                why = "at another offset than the permission grants" if fits[k] else "although it is larger"
            text = f"'{self._name(int(other[k]))}' is written over '{self._name(int(one[k]))}' in the same step {why}"
            self._report(text, self.schedule.steps[int(step[k])].name)

    def _race(self, touched: np.ndarray) -> None:
        """Accesses of the same bytes by unordered steps of two streams, where one writes another tensor."""
        made = self.touches
        mine = touched[(made.kind[touched] != PART) & (made.step[touched] < made.end)]
        before, latest = np.full(len(mine), -1, np.int64), np.full(made.clocks.shape[1], -1, np.int64)
        order = (made.streams[made.step[mine]], made.clocks, before, latest)
        met = self._pairs(replay.races, mine, MOST_FOUND, *order)
        for one, other in zip(*(touches.tolist() for touches in met)):
            first, later = (self.schedule.steps[int(made.step[k])].name for k in (one, other))
            names = f"'{self._name(int(made.owner[other]))}' and '{self._name(int(made.owner[one]))}'"
            self._report(f"{names} of step '{first}' share bytes, and no event orders the steps", later)

    def _pairs(
        self, loop: Callable[..., int], mine: np.ndarray, most: int, *order: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        made = self.touches
        owner = made.owner[mine]
        found, others = np.zeros(most, np.int64), np.zeros(most, np.int64)
        count = replay.run(
            loop, len(mine), made.step[mine], *order, made.low[owner], made.high[owner], made.kind[mine] == WRITE,
            made.families[owner], made.linked, made.family_count, found, others,
        )  # fmt: skip
        return mine[found[:count]], mine[others[:count]]

    @cached_property
    def _names(self) -> list[str]:
        return [tensor.name for tensor in self.schedule.tensors] + self.touches.scratch_names

    def _name(self, owner: int) -> str:
        return self._names[owner]

    def _report(self, message: str, where: str) -> None:
        self.problems.setdefault(f"{where}: {message}", Problem(message, code=INNER_ERROR, node=where))


def _among(rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Which rows are among the known ones."""
    if not len(rows) or not len(known):
        return np.zeros(len(rows), np.bool_)
    numbers, *others = np.concatenate([known, rows]).T
    for column in others:
        numbers = np.unique(numbers * (int(column.max()) + 1) + column, return_inverse=True)[1]
    return np.isin(numbers[len(known) :], numbers[: len(known)])


def _agrees(label: str, world: World) -> bool:
    return not label or all(world.get(part.partition(":")[0]) == part.partition(":")[2] for part in label.split("/"))


def _worlds(labels: list[str]) -> list[dict[str, str]]:
    """Every combination of two branch labels that can run together: enough, since an overlap takes two tensors.

    Conditions that a combination leaves open take their first side: one of several sides runs always. Where a condition
    has one side only, it may also not run.
    """
    sides = [
        dict((part.partition(":")[0], part.partition(":")[2]) for part in label.split("/"))
        for label in sorted({*labels} - {""})
    ]
    choices: dict[str, set[str]] = {}
    for one in sides:
        for condition, side in one.items():
            choices.setdefault(condition, set()).add(side)
    usual = {condition: min(known) for condition, known in choices.items() if len(known) > 1}
    found: dict[frozenset[tuple[str, str]], dict[str, str]] = {}
    for one in sides:
        for other in sides:
            world = {**usual, **one, **other}
            if all(world[c] == s for c, s in one.items()):
                found.setdefault(frozenset(world.items()), world)
    return list(found.values()) or [{}]


def _unrolled(steps: list[Step]) -> list[int] | None:
    """Positions of the steps with every loop body run twice; None where there is no loop."""
    if not any([step.loop_depth for step in steps]):
        return None

    def rolled_out(start: int, stop: int, depth: int) -> list[int]:
        order: list[int] = []
        index = start
        while index < stop:
            end = index
            while end < stop and steps[end].loop_depth >= depth:
                end += 1
            if end == index:
                order.append(index)
                index += 1
                continue
            order += 2 * rolled_out(index, end, depth + 1)
            index = end
        return order

    return rolled_out(0, len(steps), 1)
