"""What would make a plan fit: spilling, recomputing, another order, a smaller batch, with the bytes that each saves.

Every idea is tried on the schedule and planned again, so that the figures are those of real plans; only where the model
cannot be compiled for it is a smaller batch estimated, and said to be. Spilling ends a
tensor's life after its last use before the busiest step and begins it anew before the next; recomputing runs its
producer a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from metadef.error import LabError
from metadef.memory import MemoryPlan, plan_memory
from metadef.memory.bodies import tensor_slot
from metadef.memory.report import memory_timeline
from metadef.reorder import reorder
from metadef.schedule import InPlace, Schedule, Step, TensorKind

ROUNDS = 8
_TRIED = 4
_BUDGET_S = 0.2


@dataclass(frozen=True)
class Relief:
    """One idea: tensors that it concerns, the arena it leads to, and bytes moved or steps run again per inference.

    ``estimated`` figures are in proportion to the batch, not those of a plan.
    """

    kind: str
    names: tuple[str, ...]
    total_size: int
    saved_bytes: int
    traffic_bytes: int = 0
    extra_steps: int = 0
    estimated: bool = False

    def text(self, capacity: int | None = None) -> str:
        """The idea in words; says whether it suffices for a capacity (bytes)."""
        shown = ", ".join(f"'{name}'" for name in self.names[:3]) + (" …" if len(self.names) > 3 else "")
        cost = f", {self.traffic_bytes} bytes moved" if self.traffic_bytes else ""
        cost += f", {self.extra_steps} steps run again" if self.extra_steps else ""
        fits = "" if capacity is None else ", which fits" if self.total_size <= capacity else ", still too large"
        about = "about " if self.estimated else ""
        saved = f"saves {about}{self.saved_bytes} bytes: {about}{self.total_size}{fits}{cost}"
        if self.kind == "batch":
            made = " if the model is made for it" if self.estimated else ""
            return f"a batch of {self.names[0]} {saved}{made}"
        if self.kind == "reorder":
            return f"another order of the steps (--reorder) {saved}"
        return f"{self.kind} {shown} {saved}"


def relief(schedule: Schedule, capacity: int, at_batch: AtBatch | None = None) -> list[Relief]:
    """Ideas that make the arena smaller, best first; those that save nothing are left out.

    ``at_batch`` makes the schedule of the same model for another batch; without it, or where the model cannot be
    compiled for another, that idea is estimated. Tensors that are touched in branches or loops stay where they are.
    """
    start = plan_memory(schedule, budget_s=_BUDGET_S)
    ideas = (_smaller_batch(schedule, start, capacity, at_batch), _reordered(schedule, start))
    found = [idea for idea in ideas if idea is not None]
    if _why_no_copies(schedule) == "":
        found += [
            idea
            for idea in (
                _greedy("spill", schedule, start, capacity, _spilled),
                _greedy("recompute", schedule, start, capacity, _recomputed),
            )
            if idea is not None
        ]
    return sorted(found, key=lambda idea: (idea.total_size > capacity, idea.total_size))


def _why_no_copies(schedule: Schedule) -> str:
    """Why no tensor of a schedule can be made a second time; "" if that is possible."""
    if not schedule.steps:
        return "there are no steps"
    if schedule.times:
        return "its lives are given by a time line, not by steps"
    if len({step.stream for step in schedule.steps}) > 1:
        return "its steps run on several streams, and which of them has time for it is not known"
    return ""


def why_not(schedule: Schedule, ideas: Sequence[Relief]) -> list[str]:
    """Of a smaller batch, spilling and recomputing: why those that are not among the ideas are no help."""
    kinds, reasons = {idea.kind for idea in ideas}, []
    if "batch" not in kinds:
        sizes = _batch_sizes(schedule)
        reason = "the first axis of the inputs is 1 already" if sizes == {1} else "no batch is known from the inputs"
        if len(sizes) == 1 and max(sizes) > 1:
            reason = "the arena would be no smaller"
        reasons.append(f"no smaller batch: {reason}")
    blocked = _why_no_copies(schedule)
    for kind, what in (("spill", "nothing to spill"), ("recompute", "nothing to recompute")):
        if kind in kinds:
            continue
        if not blocked:
            peak = memory_timeline(schedule, plan_memory(schedule, budget_s=_BUDGET_S)).peak_step
            name, idle = schedule.steps[peak].name, _idle_at(schedule, peak)
            reason = f"no tensor of its own lives through the busiest step '{name}' without being used there"
            if idle:
                reason = f"what waits through the busiest step '{name}' would make another step as busy"
            if idle and kind == "recompute" and not any(_recomputed(schedule, item, peak) for item in idle):
                reason = f"what waits through the busiest step '{name}' comes from operators that cannot run twice"
        reasons.append(f"{what}: {blocked or reason}")
    return reasons


AtBatch = Callable[[int], Schedule]
Change = Callable[[Schedule, int, int], "Schedule | None"]


def _greedy(kind: str, schedule: Schedule, start: MemoryPlan, capacity: int, change: Change) -> Relief | None:
    """Change the tensor that helps most at the busiest step, again and again, until the arena fits or nothing helps."""
    plan, names, traffic = start, [], 0
    steps = len(schedule.steps)
    for _ in range(ROUNDS):
        if plan.total_size <= capacity:
            break
        peak = memory_timeline(schedule, plan).peak_step
        options = []
        for tensor in _idle_at(schedule, peak)[:_TRIED]:
            made = change(schedule, tensor, peak)
            if made is not None:
                options.append((_load(made, plan_memory(made, budget_s=0.0)), tensor, made))
        best = min(options, key=lambda option: option[:2], default=None)
        if best is None or best[0] >= _load(schedule, plan):
            break
        names.append(schedule.tensors[best[1]].name)
        traffic += 2 * schedule.tensors[best[1]].payload_bytes
        schedule = best[2]
        plan = plan_memory(schedule, budget_s=_BUDGET_S)
    if plan.total_size >= start.total_size:
        return None
    moved = traffic if kind == "spill" else 0
    extra = len(schedule.steps) - steps if kind == "recompute" else 0
    return Relief(kind, tuple(names), plan.total_size, start.total_size - plan.total_size, moved, extra)


def _load(schedule: Schedule, plan: MemoryPlan) -> tuple[int, int]:
    """The lower bound, and how many steps reach it: fewer is progress even where the size stays."""
    series = memory_timeline(schedule, plan).live_bytes
    return plan.theory_min, series.count(max(series, default=0))


def _smaller_batch(schedule: Schedule, start: MemoryPlan, capacity: int, at_batch: AtBatch | None) -> Relief | None:
    """The largest batch found to fit (1 if none does); half of it, in proportion, where nothing can be compiled."""
    sizes = _batch_sizes(schedule)
    if len(sizes) != 1 or (size := sizes.pop()) <= 1:
        return None
    half = start.total_size * (size // 2) // size
    guess = Relief("batch", (str(size // 2),), half, start.total_size - half, estimated=True)
    if at_batch is None:
        return guess
    batch, total = size, start.total_size
    for _ in range(_TRIED):
        if total <= capacity or batch == 1:
            break
        batch = max(min(batch * capacity // total, batch - 1), 1)
        try:
            total = plan_memory(at_batch(batch), budget_s=_BUDGET_S).total_size
        except LabError:
            return guess
    return Relief("batch", (str(batch),), total, start.total_size - total) if total < start.total_size else None


def _batch_sizes(schedule: Schedule) -> set[int]:
    """Sizes of the first axis of all inputs."""
    shapes = [schedule.tensors[item].desc for item in schedule.inputs]
    return {desc.origin_shape[0] for desc in shapes if desc is not None and desc.origin_shape}


def _reordered(schedule: Schedule, start: MemoryPlan) -> Relief | None:
    total = plan_memory(reorder(schedule), budget_s=_BUDGET_S).total_size
    return Relief("reorder", (), total, start.total_size - total) if total < start.total_size else None


def _idle_at(schedule: Schedule, peak: int) -> list[int]:
    """Feature maps that live through a step without being touched there, largest first; free of relations.

    All that touches them runs once and always: what branches and loops use is left out.
    """
    tied = {t for view in schedule.views for t in (view.tensor, view.base)}
    tied |= {t for group in schedule.groups for t in (group.parent, *group.members)}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    writes: dict[int, int] = {}
    busy: set[int] = set()
    for step in schedule.steps:
        for tensor in {*step.reads, *step.writes} - {None}:
            assert tensor is not None
            first.setdefault(tensor, step.id)
            last[tensor] = step.id
            if step.id == peak or step.branch or step.loop_depth:
                busy.add(tensor)
        for tensor in step.writes:
            writes[tensor] = writes.get(tensor, 0) + 1
    found = [
        item
        for item in schedule.tensors
        if item.kind is TensorKind.FEATURE
        and item.id not in tied | busy
        and item.id in first
        and first[item.id] < peak < last[item.id]
        and writes.get(item.id) == 1
        and not item.no_reuse
        and item.pinned is None
    ]
    return [item.id for item in sorted(found, key=lambda item: -tensor_slot(item))]


def _next_use(schedule: Schedule, tensor: int, peak: int) -> int:
    return next(step.id for step in schedule.steps if step.id > peak and tensor in step.reads)


def _spilled(schedule: Schedule, tensor: int, peak: int) -> Schedule | None:
    """The schedule with a tensor brought back by a load step before its next use after ``peak``."""
    item = schedule.tensors[tensor]
    back = Step(0, f"reload:{item.name}", (), (len(schedule.tensors),), stream=schedule.steps[peak].stream)
    return _renewed(schedule, tensor, _next_use(schedule, tensor, peak), back)


def _recomputed(schedule: Schedule, tensor: int, peak: int) -> Schedule | None:
    """The schedule with a tensor's producer run again before its next use; None where its other results forbid it."""
    producer = next(step for step in schedule.steps if tensor in step.writes)
    if len(producer.writes) != 1 or producer.jumps or any(pair.step == producer.id for pair in schedule.inplace):
        return None
    again = replace(producer, name=f"again:{producer.name}", writes=(len(schedule.tensors),))
    return _renewed(schedule, tensor, _next_use(schedule, tensor, peak), again)


def _renewed(schedule: Schedule, tensor: int, use: int, maker: Step) -> Schedule:
    """``maker`` writes a second copy of a tensor before step ``use``; that and all later steps read the copy."""
    item = schedule.tensors[tensor]
    copy = replace(item, id=len(schedule.tensors), name=f"{item.name}'")
    steps: list[Step] = []
    places, entries = {}, {}
    for step in schedule.steps:
        entries[step.id] = len(steps)
        if step.id == use:
            steps.append(replace(maker, id=len(steps)))
        places[step.id] = len(steps)
        reads = step.reads if step.id < use else tuple(copy.id if t == tensor else t for t in step.reads)
        steps.append(replace(step, id=len(steps), reads=reads))
    steps = [
        replace(step, jumps=tuple(entries.get(target, len(steps)) for target in step.jumps)) if step.jumps else step
        for step in steps
    ]
    inplace = [
        InPlace(places[pair.step], copy.id if pair.read == tensor and pair.step >= use else pair.read, pair.write)
        for pair in schedule.inplace
    ]
    return replace(schedule, steps=steps, tensors=[*schedule.tensors, copy], inplace=inplace)


def relief_text(ideas: Sequence[Relief], capacity: int, reasons: Sequence[str] = ()) -> str:
    """The ideas in one line, then why others are no help; "" if there are neither."""
    parts = [*(idea.text(capacity) for idea in ideas), *reasons]
    return "; ".join(f"({number}) {part}" for number, part in enumerate(parts, 1))
