"""Why no plan fits: errors that name the step, what is alive there, how many bytes are missing, and what to try."""

from __future__ import annotations

from metadef.error import PlanError
from metadef.error import Problem as Fault
from metadef.memory.body_table import Body, BodyTable
from metadef.memory.live import LiveTable
from metadef.memory.pairs import Pairs
from metadef.memory.pool import Pool, Solution
from metadef.memory.problem import Problem, exists_in, live_bytes, lower_bound, savings, worlds
from metadef.schedule import Schedule

SHOWN = 8


def pin_error(schedule: Schedule, pool: Pool, capacity: int | None) -> None:
    """Refuse pinned tensors that overlap each other, miss their own grid, or end above the capacity.

    Raises:
        PlanError: one problem per fault.
    """
    faults = []
    problem = Problem(pool.joined.bodies.pinned(), pool.order)
    for i, body in enumerate(problem.bodies):
        at, name = body.pinned or 0, _names(schedule, body)
        if at < 0 or at % body.modulus != body.residue:
            message, expected = (
                f"tensor {name} is pinned off its grid",
                f"an offset of {body.residue} modulo {body.modulus}",
            )
            faults.append(
                Fault(message, expected=expected, got=str(at), hint="pin it on the grid, or lower its alignment")
            )
        if capacity is not None and at + problem.extents[i] > capacity:
            over = at + problem.extents[i] - capacity
            message, expected = f"tensor {name} is pinned beyond the capacity", f"an end of at most {capacity} bytes"
            got, hint = f"{capacity + over} bytes, {over} too many", "pin it lower, unpin it, or raise the capacity"
            faults.append(Fault(message, expected=expected, got=got, hint=hint))
        for j, low, high in problem.near[i]:
            other = problem.bodies[j]
            if j < i and low < at - (other.pinned or 0) < high:
                step = max(problem.first[i], problem.first[j])
                both = f"{_names(schedule, other)} and {name}"
                message = f"tensors {both} are pinned onto each other, both alive at step {step}"
                got, hint = (
                    f"offsets {other.pinned} and {at}",
                    "move or unpin one of them, or end one life before the other",
                )
                faults.append(Fault(message, node=_step_name(schedule, step), got=got, hint=hint))
    if faults:
        raise PlanError(faults)


def capacity_error(
    schedule: Schedule,
    live: LiveTable,
    pool: Pool,
    found: Solution,
    capacity: int,
    name: str,
) -> PlanError:
    """The error for a pool whose best plan is larger than the capacity."""
    bodies = pool.joined.bodies
    step, size, alive = busiest_step(bodies, pool.pairs, pool.steps)
    listed = ", ".join(f"{_names(schedule, body)} {body.extent}" for body in alive[:SHOWN])
    more = f" and {len(alive) - SHOWN} more" if len(alive) > SHOWN else ""
    where = f"step {step}: {len(alive)} live, {size} bytes ({listed}{more})"
    if size > capacity:
        message = f"pool {name}: the live set of step {step} alone is {size - capacity} bytes over the capacity"
        got = where
    elif lower_bound(bodies, found.theory_min) > capacity:
        tallest = max(bodies, key=lambda body: (body.pinned or 0) + body.extent)
        message = (
            f"pool {name}: {_names(schedule, tallest)} alone ends {found.lower - capacity} bytes over the capacity"
        )
        got = f"{tallest.extent} bytes at offset {tallest.pinned or tallest.up(0)}"
    else:
        proved = found.lower > capacity
        proof = "no placement reaches it (proved)" if proved else "the search found none in its budget"
        message = (
            f"pool {name}: the live set fits, yet {proof}: fragmentation; the best plan ({found.method}) is "
            f"{found.total - capacity} bytes over the capacity"
        )
        got = f"{found.total} bytes; busiest {where}"
    hint = _advice(live, found, pool.pairs)
    expected = f"at most {capacity} bytes"
    return PlanError(Fault(message, node=_step_name(schedule, step), expected=expected, got=got, hint=hint))


def busiest_step(bodies: BodyTable, pairs: Pairs, steps: int) -> tuple[int, int, list[Body]]:
    """The step with the largest live set, after its in-place savings: step, bytes, and its bodies, largest first."""
    gain = savings(pairs, steps)
    best: tuple[int, int, dict[str, str]] = (-1, 0, {})
    for world in worlds(bodies):
        needed = live_bytes(bodies, world, steps) - gain
        step = int(needed.argmax())
        if needed[step] > best[0]:
            best = (int(needed[step]), step, world)
    size, step, world = best
    alive = [
        body
        for body in bodies
        if any(r.size and r.first <= step <= r.last and exists_in(r.labels, world) for r in body.rects)
    ]
    return step, max(size, 0), sorted(alive, key=lambda body: -body.extent)


def _advice(live: LiveTable, found: Solution, pairs: Pairs) -> str:
    needed = found.total
    about = f" ({needed / 2**20:.2f} MiB)" if needed >= 1 << 20 else ""
    ideas = [f"a capacity of {needed} bytes{about}, for which a plan is known"]
    if not found.optimal:
        ideas.append("a larger planning budget with minimise")
    if any(tensor.no_reuse for tensor in live.tensors.values()):
        ideas.append("reuse for the tensors marked no-reuse")
    if len(found.taken) < len(pairs) or not pairs:
        ideas.append("in-place operators where they are off or blocked by a later reader")
    ideas += ["a smaller batch or smaller input shapes", "a smaller model, or a lower precision such as fp16"]
    return "; ".join(f"({number}) {idea}" for number, idea in enumerate(ideas[:3], 1))


def _names(schedule: Schedule, body: Body) -> str:
    names = {tensor.id: tensor.name for tensor in schedule.tensors}
    parts = []
    for key in body.places:
        parts.append(f"'{names[key]}'" if isinstance(key, int) else f"workspace {key[1]} of step {key[0]}")
    return " + ".join(parts[:3]) + (" + …" if len(parts) > 3 else "")


def _step_name(schedule: Schedule, step: int) -> str:
    return schedule.steps[step].name if step < len(schedule.steps) else ""
