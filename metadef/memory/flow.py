"""Lives along the paths of a schedule with jumps: the steps at which a value may still be read on some path.

Backward over the steps' successors, branches and loops alike: a value is alive after a step if a path from there reads
it before writing it anew, and if a path to there has written it. The result is exact in steps, so that values of
exclusive branches never meet, and what a loop carries is free between its last reading and its renewal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metadef.schedule import Schedule, Step

Runs = tuple[tuple[int, int], ...]
"""First and last steps of the stretches a value is alive in, ascending."""


def live_runs(schedule: Schedule, base: Mapping[int, int]) -> dict[int, Runs]:
    """The stretches of every tensor at the bottom of its views (``base``) that some step touches."""
    steps = schedule.steps
    bits = {root: 1 << number for number, root in enumerate(dict.fromkeys(base.values()))}
    reads = [_mask(bits, (base[t] for t in step.reads if t is not None)) for step in steps]
    writes = [_mask(bits, (base[t] for t in step.writes)) for step in steps]
    # A write through a view leaves the rest of the tensor as it was.
    renews = [_mask(bits, (t for t in step.writes if base[t] == t)) for step in steps]
    following = [_following(step, len(steps)) for step in steps]
    wanted = _wanted_after(steps, reads, renews, following)
    made = _made_after(steps, writes, following)
    alive = [reads[at] | writes[at] | (wanted[at] & made[at]) for at in range(len(steps))]
    return {root: _runs(alive, bit) for root, bit in bits.items() if any(mask & bit for mask in alive)}


def _mask(bits: Mapping[int, int], tensors: Iterable[int]) -> int:
    mask = 0
    for tensor in tensors:
        mask |= bits[tensor]
    return mask


def _following(step: Step, end: int) -> tuple[int, ...]:
    targets = step.jumps or (step.id + 1,)
    return tuple(at for at in targets if at < end)


def _wanted_after(
    steps: list[Step], reads: list[int], renews: list[int], following: list[tuple[int, ...]]
) -> list[int]:
    """By step, the tensors that a path from its end reads before it writes them."""
    before, after = [0] * len(steps), [0] * len(steps)
    changed = True
    while changed:
        changed = False
        for at in reversed(range(len(steps))):
            after[at] = 0
            for other in following[at]:
                after[at] |= before[other]
            found = (after[at] & ~renews[at]) | reads[at]
            changed |= found != before[at]
            before[at] = found
    return after


def _made_after(steps: list[Step], writes: list[int], following: list[tuple[int, ...]]) -> list[int]:
    """By step, the tensors that a path to its end has written."""
    before, after = [0] * len(steps), list(writes)
    changed = True
    while changed:
        changed = False
        for at in range(len(steps)):
            after[at] = before[at] | writes[at]
            for other in following[at]:
                if after[at] & ~before[other]:
                    before[other] |= after[at]
                    changed = True
    return after


def _runs(alive: list[int], bit: int) -> Runs:
    runs: list[tuple[int, int]] = []
    start = -1
    for at in range(len(alive) + 1):
        inside = at < len(alive) and bool(alive[at] & bit)
        if inside and start < 0:
            start = at
        elif not inside and start >= 0:
            runs.append((start, at - 1))
            start = -1
    return tuple(runs)
