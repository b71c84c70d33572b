"""Another order of the steps that needs less memory: list scheduling by live bytes, a beam of partial orders kept.

Optional step between selection and planning: Schedule -> Schedule. File order stays a candidate and wins every tie, so
that the planned size never grows. Values do not change: every step still follows what it reads, and what is written
twice is written in the old order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from metadef.memory import plan_memory
from metadef.memory.bodies import tensor_slot
from metadef.schedule import InPlace, Schedule, TensorKind

BEAM = 32
_EXPANSIONS = 400_000
"""Bound of partial orders that are tried (a second or two); the beam narrows for long schedules."""


def reorder(schedule: Schedule, *, beam: int = BEAM) -> Schedule:
    """The schedule in the order that plans smallest, or itself.

    Schedules with several streams, branches, loops or a time line of their own keep their order.
    """
    steps = schedule.steps
    fixed = schedule.times or any(step.branch or step.loop_depth or step.stream != steps[0].stream for step in steps)
    if fixed or len(steps) < 3:
        return schedule
    model = _Model(schedule)
    best, best_size = schedule, plan_memory(schedule, budget_s=0.0).total_size
    for width in dict.fromkeys((1, max(1, min(beam, _EXPANSIONS // (len(steps) * 8))))):
        order = _search(model, width)
        if order == list(range(len(steps))):
            continue
        candidate = permuted(schedule, order)
        size = plan_memory(candidate, budget_s=0.0).total_size
        if size < best_size:
            best, best_size = candidate, size
    return best


def permuted(schedule: Schedule, order: list[int]) -> Schedule:
    """The schedule with its steps in another order; ids are positions again."""
    place = {old: new for new, old in enumerate(order)}
    steps = [replace(schedule.steps[old], id=new) for new, old in enumerate(order)]
    inplace = [InPlace(place[pair.step], pair.read, pair.write) for pair in schedule.inplace if pair.step in place]
    return replace(schedule, steps=steps, inplace=inplace)


@dataclass
class _Model:
    """What the search looks at: who must come before whom, and what a step gives birth to and lets die.

    A family is what relations hold together; ``uses`` counts the steps that touch it, ``sizes`` its bytes.
    """

    schedule: Schedule
    sizes: list[int] = field(init=False)
    touched: list[tuple[int, ...]] = field(init=False)
    uses: list[int] = field(init=False)
    before: list[int] = field(init=False)
    savings: list[list[tuple[int, int, int]]] = field(init=False)

    def __post_init__(self) -> None:
        schedule = self.schedule
        base = _bases(schedule)
        family = _families(schedule, base)
        numbers = {root: number for number, root in enumerate(dict.fromkeys(family.values()))}
        of = {tensor: numbers[root] for tensor, root in family.items()}
        self.sizes = [0] * len(numbers)
        own = {tensor.id: tensor_slot(tensor) for tensor in schedule.tensors if base[tensor.id] == tensor.id}
        parents = {base[group.parent] for group in schedule.groups if group.parent >= 0}
        members = {base[t] for group in schedule.groups if group.parent >= 0 for t in group.members}
        outside = {
            of[tensor.id] for tensor in schedule.tensors if tensor.kind is not TensorKind.FEATURE or tensor.no_reuse
        }
        for tensor, size in own.items():
            if of[tensor] not in outside and (tensor in parents or tensor not in members):
                self.sizes[of[tensor]] += size
        self.touched = [
            tuple(dict.fromkeys(of[t] for t in (*step.reads, *step.writes) if t is not None)) for step in schedule.steps
        ]
        self.uses = [0] * len(numbers)
        for families in self.touched:
            for number in families:
                self.uses[number] += 1
        self.before = _dependencies(schedule, base)
        self.savings = [[] for _ in schedule.steps]
        for pair in schedule.inplace:
            read, write = of[pair.read], of[pair.write]
            if read != write and self.sizes[read] and self.sizes[write]:
                saved = min(self.sizes[read], self.sizes[write])
                self.savings[pair.step].append((read, write, saved))


def _bases(schedule: Schedule) -> dict[int, int]:
    parents = {view.tensor: view.base for view in schedule.views}
    base = {}
    for tensor in schedule.tensors:
        root = tensor.id
        while root in parents:
            root = parents[root]
        base[tensor.id] = root
    return base


def _families(schedule: Schedule, base: dict[int, int]) -> dict[int, int]:
    """Tensors that views and groups hold together, by one of them."""
    family = {root: root for root in base.values()}

    def find(tensor: int) -> int:
        while family[tensor] != tensor:
            tensor = family[tensor]
        return tensor

    for group in schedule.groups:
        everyone = [base[t] for t in (group.parent, *group.members) if t >= 0]
        for other in everyone[1:]:
            family[find(other)] = find(everyone[0])
    return {tensor: find(root) for tensor, root in base.items()}


def _dependencies(schedule: Schedule, base: dict[int, int]) -> list[int]:
    """Steps that must come before each step, as bits: whoever touches the same bytes earlier, if one of both writes."""
    meets: dict[int, set[int]] = {root: {root} for root in base.values()}
    for group in schedule.groups:
        if group.parent >= 0:
            for member in group.members:
                meets[base[group.parent]].add(base[member])
                meets[base[member]].add(base[group.parent])
    readers: dict[int, int] = {}
    writers: dict[int, int] = {}
    before = []
    for step in schedule.steps:
        mask = 0
        reads = {base[t] for t in step.reads if t is not None}
        writes = {base[t] for t in step.writes}
        for root in reads:
            mask |= _union(writers, meets[root])
        for root in writes:
            mask |= _union(writers, meets[root]) | _union(readers, meets[root])
        for table, roots in ((readers, reads), (writers, writes)):
            for root in roots:
                table[root] = table.get(root, 0) | 1 << step.id
        before.append(mask & ~(1 << step.id))
    return before


def _union(table: dict[int, int], roots: Iterable[int]) -> int:
    mask = 0
    for root in roots:
        mask |= table.get(root, 0)
    return mask


@dataclass(frozen=True)
class _State:
    """A partial order: steps done (bits), those that may come next, peak and live bytes, and how it came about."""

    done: int
    ready: tuple[int, ...]
    peak: int
    live: int
    step: int
    parent: _State | None


def _search(model: _Model, width: int) -> list[int]:
    """The order with the smallest peak that a beam of this width finds."""
    count = len(model.before)
    followers: list[list[int]] = [[] for _ in range(count)]
    for step, mask in enumerate(model.before):
        while mask:
            low = mask & -mask
            followers[low.bit_length() - 1].append(step)
            mask ^= low
    masks = _touching(model)
    start = tuple(step for step in range(count) if not model.before[step])
    states = [_State(0, start, 0, 0, -1, None)]
    for _ in range(count):
        found: dict[int, _State] = {}
        for state in states:
            for step in state.ready:
                peak, live = _after(model, masks, state, step)
                done = state.done | 1 << step
                known = found.get(done)
                if known is None or (peak, live) < (known.peak, known.live):
                    ready = [other for other in state.ready if other != step]
                    ready += [other for other in followers[step] if not model.before[other] & ~done]
                    found[done] = _State(done, tuple(ready), peak, live, step, state)
        states = sorted(found.values(), key=lambda state: (state.peak, state.live, state.step))[:width]
    order = []
    last = states[0]
    while last.parent is not None:
        order.append(last.step)
        last = last.parent
    return order[::-1]


def _touching(model: _Model) -> list[int]:
    """Steps that touch each family, as bits."""
    masks = [0] * len(model.sizes)
    for step, families in enumerate(model.touched):
        for number in families:
            masks[number] |= 1 << step
    return masks


def _after(model: _Model, masks: list[int], state: _State, step: int) -> tuple[int, int]:
    """Peak and live bytes once ``step`` has run too."""
    born = died = 0
    done = state.done | 1 << step
    for number in model.touched[step]:
        if not masks[number] & state.done:
            born += model.sizes[number]
        if not masks[number] & ~done:
            died += model.sizes[number]
    saved = 0
    used: set[int] = set()
    for read, write, size in model.savings[step]:
        dies = not masks[read] & ~done and masks[read] & state.done
        if dies and not masks[write] & state.done and not {read, write} & used:
            saved += size
            used |= {read, write}
    peak = max(state.peak, state.live + born - saved)
    return peak, state.live + born - died
