"""Weights that do not stay: large constants are loaded into the arena just before their use, and the traffic counted.

A transformation of the schedule before planning: every use of a streamed weight gets a load step, one step ahead so
that it can overlap the step before, and a place in the arena from the load to the use. Small weights stay resident.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from metadef.format import SLOT_BYTES, round_up
from metadef.schedule import InPlace, Schedule, Step, TensorKind

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
    resident, and so do those used inside branches, loops and on other streams than the first step's.
    """
    tied = {t for view in schedule.views for t in (view.tensor, view.base)}
    tied |= {t for group in schedule.groups for t in (group.parent, *group.members)}
    tied |= {*schedule.outputs, *(t for step in schedule.steps for t in step.writes)}
    plain = {step.id for step in schedule.steps if _is_plain(step, schedule.steps[0])}
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
    made = _with_loads(schedule, chosen, max(ahead, 0))
    sizes = {tensor.id: tensor.payload_bytes for tensor in weights}
    moved = [sizes[t] for t in chosen]
    resident = sum(round_up(sizes[tensor.id], SLOT_BYTES) for tensor in weights if tensor.id not in chosen)
    loads = sum(len(users[t]) for t in chosen)
    traffic = sum(sizes[t] * len(users[t]) for t in chosen)
    return made, WeightTraffic(loads, traffic, resident, sum(moved), max(moved, default=0))


def _is_plain(step: Step, first: Step) -> bool:
    return not step.branch and not step.loop_depth and step.stream == first.stream


def _with_loads(schedule: Schedule, chosen: set[int], ahead: int) -> Schedule:
    """Load steps before their users; the weights themselves leave the schedule's weights region."""
    tensors = [
        replace(tensor, kind=TensorKind.FEATURE, payload_bytes=0, slot_bytes=0, desc=None)
        if tensor.id in chosen
        else tensor
        for tensor in schedule.tensors
    ]
    before: dict[int, list[tuple[int, int]]] = {}
    reads: dict[int, tuple[int | None, ...]] = {}
    for step in schedule.steps:
        copies: dict[int, int] = {}
        for tensor in dict.fromkeys(step.reads):
            if tensor is None or tensor not in chosen:
                continue
            source = schedule.tensors[tensor]
            copies[tensor] = len(tensors)
            name = f"{source.name}@{step.name}"
            tensors.append(replace(source, id=len(tensors), name=name, kind=TensorKind.FEATURE))
            before.setdefault(max(step.id - ahead, 0), []).append((tensor, copies[tensor]))
        reads[step.id] = tuple(copies.get(t, t) if t is not None else None for t in step.reads)
    steps: list[Step] = []
    places: dict[int, int] = {}
    for step in schedule.steps:
        for weight, copy in before.get(step.id, ()):
            name = f"{PREFIX}{tensors[copy].name}"
            steps.append(Step(len(steps), name, (weight,), (copy,), stream=step.stream))
        places[step.id] = len(steps)
        steps.append(replace(step, id=len(steps), reads=reads[step.id]))
    inplace = [InPlace(places[pair.step], pair.read, pair.write) for pair in schedule.inplace]
    return replace(schedule, steps=steps, tensors=tensors, inplace=inplace)
