"""Weights that do not stay: large constants are loaded into the arena just before their use, and the traffic counted.

A transformation of the schedule before planning, in which a streamed weight takes no bytes: it stays on the host.
Every use of a streamed weight gets a load step on a stream of its own, which copies the weight from the host's map of
the model file to a place in the arena that lives from the load to the use. A load may start when the step before the
one before its use has ended: it runs beside one step, and its memory is free of what came earlier. Small weights stay
resident.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from metadef.control import LOAD
from metadef.format import SLOT_BYTES, round_up
from metadef.kernel import Engine, Kernel
from metadef.schedule import InPlace, Schedule, ScheduleTensor, Step, TensorKind

PREFIX = "load:"


@dataclass(frozen=True)
class WeightTraffic:
    """What streaming moves: ``loads`` steps, ``loaded_bytes`` per run (a weight used twice counts twice).

    ``resident_bytes`` stay in the weights region, ``largest_bytes`` is the largest streamed weight.
    """

    loads: int
    loaded_bytes: int
    resident_bytes: int
    streamed_bytes: int
    largest_bytes: int


def stream_weights(schedule: Schedule, least_bytes: int, ahead: int = 1) -> tuple[Schedule, WeightTraffic]:
    """The schedule with every weight of at least ``least_bytes`` loaded ``ahead`` steps before its use.

    Weights that relations (views, groups) tie to other tensors, that are graph outputs, or that a step writes stay
    resident; so do those used on other streams than the first step's, and all of a schedule with branches or loops.
    """
    tied = {t for view in schedule.views for t in (view.tensor, view.base)}
    tied |= {t for group in schedule.groups for t in (group.parent, *group.members)}
    tied |= {*schedule.outputs, *(t for step in schedule.steps for t in step.writes)}
    straight = not any(step.branch or step.loop_depth or step.jumps for step in schedule.steps)
    plain = {step.id for step in schedule.steps if straight and step.stream == schedule.steps[0].stream}
    users: dict[int, list[int]] = {}
    for step in schedule.steps:
        for tensor in dict.fromkeys(step.reads):
            if tensor is not None:
                users.setdefault(tensor, []).append(step.id)
    weights = [tensor for tensor in schedule.tensors if tensor.kind is TensorKind.WEIGHT]
    chosen = {
        tensor.id
        for tensor in weights
        if tensor.payload_bytes >= least_bytes
        and tensor.id not in tied
        and plain.issuperset(users.get(tensor.id, [-1]))
    }
    made = _Streamer(schedule, chosen, max(ahead, 0)).schedule() if chosen else schedule
    sizes = {tensor.id: tensor.payload_bytes for tensor in weights}
    moved = [sizes[t] for t in chosen]
    resident = sum(round_up(sizes[tensor.id], SLOT_BYTES) for tensor in weights if tensor.id not in chosen)
    loads = sum(len(users[t]) for t in chosen)
    traffic = sum(sizes[t] * len(users[t]) for t in chosen)
    return made, WeightTraffic(loads, traffic, resident, sum(moved), max(moved, default=0))


class _Streamer:
    """Writes the schedule with loads: their stream, the events that order it, and the copies they make."""

    def __init__(self, schedule: Schedule, chosen: set[int], ahead: int) -> None:
        self.old = schedule
        self.chosen = chosen
        self.ahead = ahead
        self.stream = 1 + max(step.stream for step in schedule.steps)
        self.events = 1 + max((event for step in schedule.steps for event in step.records), default=-1)
        self.tensors: list[ScheduleTensor] = [
            replace(tensor, kind=TensorKind.FEATURE, payload_bytes=0, slot_bytes=0) if tensor.id in chosen else tensor
            for tensor in schedule.tensors
        ]
        self.copies = {step.id: self._copies(step) for step in schedule.steps}

    def schedule(self) -> Schedule:
        """Load steps before their users; the weights themselves leave the schedule's weights region."""
        before: dict[int, list[Step]] = {}
        for step in self.old.steps:
            if self.copies[step.id]:
                before.setdefault(max(step.id - self.ahead, 0), []).append(step)
        freed = {at - 1: self._event() for at in before if at}
        loaded = {step: self._event() for step, copies in self.copies.items() if copies}
        steps: list[Step] = []
        places: dict[int, int] = {}
        for step in self.old.steps:
            waits = [freed[step.id - 1]] if step.id in before and step.id else []
            for user in before.get(step.id, ()):
                copies = list(self.copies[user.id].items())
                for weight, copy in copies:
                    records = (loaded[user.id],) if weight == copies[-1][0] else ()
                    load = self._load(len(steps), weight, copy, tuple(waits), records)
                    steps.append(replace(load, origins=user.origins, layer=user.layer))
                    waits = []
            places[step.id] = len(steps)
            steps.append(
                replace(
                    step,
                    id=len(steps),
                    reads=tuple(t if t is None else self.copies[step.id].get(t, t) for t in step.reads),
                    waits=(*step.waits, *([loaded[step.id]] if step.id in loaded else [])),
                    records=(*step.records, *([freed[step.id]] if step.id in freed else [])),
                )
            )
        inplace = [InPlace(places[pair.step], pair.read, pair.write) for pair in self.old.inplace]
        return replace(self.old, steps=steps, tensors=self.tensors, inplace=inplace)

    def _copies(self, step: Step) -> dict[int, int]:
        """The copy in the arena of every streamed weight that a step reads."""
        copies: dict[int, int] = {}
        for tensor in dict.fromkeys(step.reads):
            if tensor is not None and tensor in self.chosen:
                copies[tensor] = len(self.tensors)
                source = self.old.tensors[tensor]
                name = f"{source.name}@{step.name}"
                self.tensors.append(replace(source, id=len(self.tensors), name=name, kind=TensorKind.FEATURE))
        return copies

    def _load(self, step: int, weight: int, copy: int, waits: tuple[int, ...], records: tuple[int, ...]) -> Step:
        made = self.tensors[copy]
        kernel = None
        if made.desc is not None:
            reason = f"weights of {made.payload_bytes} bytes are loaded when they are used"
            kernel = Kernel(LOAD, Engine.RTS, (made.desc,), (made.desc,), reason=reason)
        return Step(step, f"{PREFIX}{made.name}", (weight,), (copy,), kernel, (), stream=self.stream, waits=waits,
                    records=records)  # fmt: skip

    def _event(self) -> int:
        self.events += 1
        return self.events - 1
