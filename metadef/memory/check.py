"""check_plan: an independent check of a MemoryPlan against its Schedule.

Nothing of the planner's tables is used. Addresses are checked row by row; then the steps are run in order over a map of
bytes -> the tensor whose value lies there, once per combination of branches and twice around loops. A read that finds
another tensor's bytes, an output that is gone at the end, a race between streams: each is a problem, all are reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from metadef.error import PlanError, Problem
from metadef.memory.occupancy import ByteMap
from metadef.memory.placement import placement_problems, required_bytes
from metadef.memory.plan import MemoryPlan
from metadef.schedule import Schedule, Step, TensorKind

INNER_ERROR = "E19999"
PROBLEMS_SHOWN = 20


def check_plan(schedule: Schedule, plan: MemoryPlan) -> None:
    """Prove that a plan is safe for a schedule.

    Raises:
        PlanError: overlaps, overwritten values, misplaced, missing or misaligned rows, groups with gaps, in-place
        without
            permission, wrong totals, or a plan made for another revision; up to twenty problems at once.
    """
    problems = list(placement_problems(schedule, plan))
    if not problems:
        runner = _Runner(schedule, plan)
        for world in _worlds(schedule):
            runner.run(world)
        problems = list(runner.problems.values())
    if problems:
        raise PlanError(problems[:PROBLEMS_SHOWN])


@dataclass
class _Touch:
    """Bytes a step reads or writes: a tensor's or a workspace's."""

    owner: int
    name: str
    space: str
    low: int
    high: int
    writes: bool


@dataclass
class _Runner:
    """Runs the steps of one world after another and collects problems by their text."""

    schedule: Schedule
    plan: MemoryPlan
    problems: dict[str, Problem] = field(default_factory=dict)
    world: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = {tensor.id: tensor for tensor in self.schedule.tensors}
        self.rows = {row.tensor: row for row in self.plan.rows if row.tensor >= 0}
        self.scratch = {(row.step, row.workspace): row for row in self.plan.rows if row.tensor < 0}
        self.sizes = {t: required_bytes(self.schedule, tensor) for t, tensor in self.tensors.items()}
        self.family = _families(self.schedule)
        self.allowed = {(pair.step, pair.read, pair.write) for pair in self.schedule.inplace}
        self.races = _unordered_pairs(self.schedule.steps)
        written = {t for step in self.schedule.steps for t in step.writes}
        written |= {view.base for view in self.schedule.views if view.tensor in written}
        groups = [group for group in self.schedule.groups if group.parent >= 0 and group.parent not in written]
        self.written_through = {group.parent: group.members for group in groups}
        self.outputs = {t for t, tensor in self.tensors.items() if tensor.kind == TensorKind.OUTPUT} | {
            *self.schedule.outputs
        }

    def run(self, world: Mapping[str, str]) -> None:
        """One execution in which the conditions of ``world`` take its sides; other branches do not run."""
        self.world = world
        spaces: dict[str, ByteMap] = {}
        last_touch: dict[str, list[tuple[int, _Touch]]] = {}
        for tensor in self._there_from_start(world):
            self._claim(spaces, tensor)
        for step in _unrolled(self.schedule.steps):
            if not _agrees(step.branch, world):
                continue
            touches = self._touches(step, world)
            for touch in touches:
                if not touch.writes:
                    self._check_value(spaces, touch, step.name)
            self._check_within(step, touches)
            if self.races:
                self._check_races(step, touches, last_touch)
            for touch in touches:
                if touch.writes:
                    spaces.setdefault(touch.space, ByteMap()).put(touch.low, touch.high, touch.owner)
        for tensor in sorted(self.outputs | {t for t, held in self.tensors.items() if held.no_reuse}):
            if self._exists(tensor, world) and self._written(tensor, world):
                self._check_value(spaces, self._touch(tensor, False), "the end of the run")

    def _there_from_start(self, world: Mapping[str, str]) -> Iterator[int]:
        """Inputs, and tensors whose first access is a read."""
        seen: set[int] = set()
        fixed = {t for t, held in self.tensors.items() if held.kind in (TensorKind.INPUT, TensorKind.WEIGHT)}
        for tensor in sorted(fixed | {*self.schedule.inputs}):
            seen |= self.family[tensor]
            yield tensor
        for step in self.schedule.steps:
            if _agrees(step.branch, world):
                reads = [t for t in step.reads if t is not None]
                yield from (t for t in reads if t not in seen and self._exists(t, world))
                for touched in (*reads, *step.writes):
                    seen |= self.family[touched]

    def _exists(self, tensor: int, world: Mapping[str, str]) -> bool:
        """Whether a tensor has a value in this world: its own label agrees, or a writer of its family runs."""
        label = self.tensors[tensor].branch
        if label:
            return _agrees(label, world)
        writers = [step for step in self.schedule.steps if self.family[tensor] & {*step.writes}]
        return not writers or any(_agrees(step.branch, world) for step in writers)

    def _written(self, tensor: int, world: Mapping[str, str]) -> bool:
        held = self.tensors[tensor]
        return held.kind in (TensorKind.INPUT, TensorKind.WEIGHT) or any(
            self.family[tensor] & {*step.writes} for step in self.schedule.steps if _agrees(step.branch, world)
        )

    def _touch(self, tensor: int, writes: bool) -> _Touch:
        row = self.rows[tensor]
        space = f"{row.region}:{row.pool}"
        return _Touch(tensor, self.tensors[tensor].name, space, row.offset, row.offset + self.sizes[tensor], writes)

    def _claim(self, spaces: dict[str, ByteMap], tensor: int) -> None:
        touch = self._touch(tensor, True)
        bytes_there = spaces.setdefault(touch.space, ByteMap())
        for owner in bytes_there.owners(touch.low, touch.high):
            if owner is not None and owner not in self.family[tensor]:
                self._report(
                    f"tensors '{touch.name}' and '{self._name(owner)}' both exist from the start and overlap",
                    touch.name,
                )
        bytes_there.put(touch.low, touch.high, tensor)

    def _touches(self, step: Step, world: Mapping[str, str]) -> list[_Touch]:
        reads = [t for t in dict.fromkeys(step.reads) if t is not None and self._exists(t, world)]
        writes = [t for t in dict.fromkeys(step.writes) if _agrees(self.tensors[t].branch, world)]
        touches = [self._touch(t, False) for t in reads] + [self._touch(t, True) for t in writes]
        for number, scratch in enumerate(step.workspaces):
            row = self.scratch[step.id, number]
            touches.append(
                _Touch(-1 - number, row.name, f"{row.region}:{row.pool}", row.offset, row.offset + scratch.bytes, True)
            )
        return [touch for touch in touches if touch.low < touch.high]

    def _check_value(self, spaces: dict[str, ByteMap], touch: _Touch, when: str) -> None:
        for part in self.written_through.get(touch.owner, ()):
            row = self.rows[part]
            low, high = row.offset, row.offset + self.sizes[part]
            if self._exists(part, self.world):
                self._check_value(spaces, _Touch(part, touch.name, touch.space, low, high, False), when)
        if touch.owner in self.written_through:
            return
        family = self.family[touch.owner]
        for owner in spaces.setdefault(touch.space, ByteMap()).owners(touch.low, touch.high):
            if owner in family:
                continue
            if owner is None:
                if not any(held in family for held in spaces[touch.space].owners(touch.low, touch.high)):
                    self._report(f"'{touch.name}' is read before anything was written there", when)
                continue
            self._report(f"'{touch.name}' was overwritten by '{self._name(owner)}' before its last use", when)

    def _check_within(self, step: Step, touches: list[_Touch]) -> None:
        """What one step writes may lie on nothing else of the step, unless a relation or permission says so."""
        for i, one in enumerate(touches):
            for other in touches[i + 1 :]:
                if not other.writes or one.space != other.space or one.high <= other.low or other.high <= one.low:
                    continue
                if one.owner >= 0 and other.owner in self.family[one.owner]:
                    continue
                granted = not one.writes and (step.id, one.owner, other.owner) in self.allowed
                fits = granted and self._payload(other.owner) <= self._payload(one.owner)
                if fits and one.low == other.low:
                    continue
                why = "without permission"
                if granted:
                    why = "at another offset than the permission grants" if fits else "although it is larger"
                self._report(f"'{other.name}' is written over '{one.name}' in the same step {why}", step.name)

    def _check_races(self, step: Step, touches: list[_Touch], history: dict[str, list[tuple[int, _Touch]]]) -> None:
        """Accesses of the same bytes by unordered steps of two streams, where one writes another tensor."""
        for touch in touches:
            past = history.setdefault(touch.space, [])
            for earlier, other in past:
                overlap = touch.low < other.high and other.low < touch.high
                if not overlap or not (touch.writes or other.writes) or (earlier, step.id) not in self.races:
                    continue
                if touch.owner >= 0 and other.owner in self.family[touch.owner]:
                    continue
                first = self.schedule.steps[earlier].name
                self._report(
                    f"'{touch.name}' and '{other.name}' of step '{first}' share bytes, and no event orders the steps",
                    step.name,
                )
            past.append((step.id, touch))

    def _payload(self, owner: int) -> int:
        return self.tensors[owner].payload_bytes

    def _name(self, owner: int) -> str:
        return self.tensors[owner].name if owner >= 0 else f"workspace {-1 - owner}"

    def _report(self, message: str, where: str) -> None:
        self.problems.setdefault(f"{where}: {message}", Problem(message, code=INNER_ERROR, node=where))


def _families(schedule: Schedule) -> dict[int, set[int]]:
    """For every tensor the tensors that may rightly own its bytes: itself, its view relatives, its group relatives."""
    family: dict[int, set[int]] = {tensor.id: {tensor.id} for tensor in schedule.tensors}

    def unite(one: int, other: int) -> None:
        if family[one] is not family[other]:
            merged = family[one] | family[other]
            for tensor in merged:
                family[tensor] = merged

    for view in schedule.views:
        unite(view.tensor, view.base)
    linked: dict[int, set[int]] = {t: set(relatives) for t, relatives in family.items()}
    for group in schedule.groups:
        for member in group.members if group.parent >= 0 else ():
            for one, other in ((member, group.parent), (group.parent, member)):
                for tensor in family[one]:
                    linked[tensor] |= family[other]
    return linked


def _agrees(label: str, world: Mapping[str, str]) -> bool:
    return not label or all(world.get(part.partition(":")[0]) == part.partition(":")[2] for part in label.split("/"))


def _worlds(schedule: Schedule) -> list[dict[str, str]]:
    """Every combination of two branch labels that can run together: enough, since an overlap takes two tensors."""
    labels = {step.branch for step in schedule.steps} | {tensor.branch for tensor in schedule.tensors}
    sides = [
        dict((part.partition(":")[0], part.partition(":")[2]) for part in label.split("/"))
        for label in sorted(labels - {""})
    ]
    found: list[dict[str, str]] = []
    for one in sides:
        for other in sides:
            world = {**one, **other}
            if all(world[c] == s for c, s in one.items()) and world not in found:
                found.append(world)
    return found or [{}]


def _unrolled(steps: list[Step], depth: int = 1) -> Iterator[Step]:
    """The steps with every loop body run twice."""
    index = 0
    while index < len(steps):
        stop = index
        while stop < len(steps) and steps[stop].loop_depth >= depth:
            stop += 1
        if stop == index:
            yield steps[index]
            index += 1
            continue
        for _ in range(2):
            yield from _unrolled(steps[index:stop], depth + 1)
        index = stop


def _unordered_pairs(steps: list[Step]) -> set[tuple[int, int]]:
    """Pairs (earlier, later) of steps on different streams that no chain of events orders."""
    if len({step.stream for step in steps}) <= 1:
        return set()
    done_before: list[set[int]] = []
    for step in steps:
        known: set[int] = set()
        for earlier in steps[: step.id]:
            if earlier.stream == step.stream or {*earlier.records} & {*step.waits}:
                known |= {earlier.id} | done_before[earlier.id]
        done_before.append(known)
    return {(a.id, b.id) for b in steps for a in steps[: b.id] if a.id not in done_before[b.id]}
