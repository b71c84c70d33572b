"""Bodies: what the planner moves. A body is one tensor, or several that relations hold together at fixed distances.

Views and contiguous groups are joined always (a must), in-place pairs when the planner takes the permission. A body
is a set of rectangles (bytes x steps); the holes between them are free for others. Flow: LiveTable -> bodies ->
Problem -> plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd, lcm

from metadef.error import ContractError
from metadef.format import SLOT_BYTES, round_up, slot_bytes
from metadef.memory.live import NOWHERE, Borders, Labels, LiveTable, Reach, Span, StepOrder, exclusive, joined_reach
from metadef.schedule import Group, InPlace, Schedule, ScheduleTensor, TensorKind

WEIGHTS, ARENA, IO = "weights", "arena", "io"


@dataclass(slots=True)
class Rect:
    """Bytes [rel, rel + size) of a body, alive from step ``first`` to ``last``; ``reach`` as in :class:`Span`."""

    rel: int
    size: int
    first: int
    last: int
    labels: Labels = ()
    reach: Reach = NOWHERE


@dataclass(slots=True)
class Body:
    """Tensors (by id) and workspaces (by (step, number)) with their distance from the body's start.

    Its offset is ``residue`` modulo ``modulus``; ``pinned`` is its only possible offset (None: free).
    """

    places: dict[int | tuple[int, int], int]
    rects: list[Rect]
    modulus: int = 1
    residue: int = 0
    pinned: int | None = None
    pool: str = "HBM"
    region: str = ARENA
    no_reuse: str = ""

    @property
    def extent(self) -> int:
        """Bytes from the body's start to its end."""
        if len(self.rects) == 1:
            return self.rects[0].rel + self.rects[0].size
        return max((rect.rel + rect.size for rect in self.rects), default=0)

    def up(self, offset: int) -> int:
        """The least legal offset that is not below ``offset``."""
        return offset + (self.residue - offset) % self.modulus


@dataclass
class BodySet:
    """All bodies of a schedule before any in-place pair is joined; ``of`` maps a tensor to its body's position.

    ``slots`` is what each tensor that is no view, and each workspace, takes (bytes).
    """

    bodies: list[Body]
    of: dict[int, int]
    slots: dict[int | tuple[int, int], int] = field(default_factory=dict)


def tensor_slot(tensor: ScheduleTensor) -> int:
    """Bytes a tensor takes by itself: its own slot size, or GE's rule; an empty tensor takes none."""
    if tensor.slot_bytes:
        return tensor.slot_bytes
    if tensor.payload_bytes == 0:
        return 0
    if tensor.kind is TensorKind.WEIGHT:
        return round_up(tensor.payload_bytes, SLOT_BYTES)
    return _slot_bytes(tensor.payload_bytes)


_slot_bytes = lru_cache(maxsize=65536)(slot_bytes)


def tensor_grid(tensor: ScheduleTensor) -> tuple[int, int]:
    """Modulus and residue of a tensor's offset. A residue counts modulo 512, whatever the alignment."""
    modulus = tensor.alignment if tensor.alignment > 1 else 1
    if not tensor.residue:
        return modulus, 0
    modulus = max(modulus, SLOT_BYTES)
    return modulus, tensor.residue % modulus


def member_layout(group: Group, tensors: dict[int, ScheduleTensor]) -> list[tuple[int, int]]:
    """Distance from the first member and bytes taken (padding included), for each member of a contiguous group."""
    starts, sizes, cursor = [], [], 0
    for member in group.members:
        tensor = tensors[member]
        if group.padded:
            cursor = round_up(cursor, max(group.pad_to or tensor.alignment, 1))
        size = tensor_slot(tensor) if group.padded or tensor.slot_bytes else tensor.payload_bytes
        starts.append(cursor)
        sizes.append(size)
        cursor += size
    if group.parent < 0 and sizes:
        sizes[-1] = tensor_slot(tensors[group.members[-1]])
    ends = [*starts[1:], starts[-1] + sizes[-1]] if starts else []
    return [(start, end - start) for start, end in zip(starts, ends)]


def make_bodies(schedule: Schedule, live: LiveTable) -> BodySet:
    """One body per tensor, view family or group, and one per workspace.

    Raises:
        ContractError: relations contradict each other, or mix memory pools.
    """
    grouped: dict[int, int] = {}
    layouts = [member_layout(group, live.tensors) for group in schedule.groups]
    for group, layout in zip(schedule.groups, layouts):
        grouped.update((live.base[member], size) for member, (_, size) in zip(group.members, layout))
    unaligned = {live.base[m] for g in schedule.groups if not g.padded for m in g.members[1 if g.parent < 0 else 0 :]}
    bodies: list[Body] = []
    of: dict[int, int] = {}
    slots: dict[int | tuple[int, int], int] = {}
    border = Borders(schedule)
    related = {*live.views_of, *grouped, *unaligned}
    for root, tensor in live.tensors.items():
        if live.base[root] != root:
            continue
        of[root] = len(bodies)
        if root in related or border.holds(tensor):
            bodies.append(_body_of(border, live, root, grouped.get(root), root in unaligned))
            slots[root] = bodies[-1].rects[0].size
        else:
            span, size = live.base_spans[root], tensor_slot(tensor)
            rects, grid = span_rects(span, size), tensor_grid(tensor)
            bodies.append(Body({root: 0}, rects, *grid, tensor.pinned, tensor.pool, ARENA, tensor.no_reuse))
            slots[root] = size
        if root in live.views_of:
            of.update(dict.fromkeys(live.views_of[root], of[root]))
    joined = BodySet(bodies, of, slots)
    for group, layout in zip(schedule.groups, layouts):
        anchor = group.parent if group.parent >= 0 else group.members[0]
        for member, (start, _) in zip(group.members, layout):
            _join_must(joined, anchor, member, start, group)
    for step in schedule.steps:
        for number, scratch in enumerate(step.workspaces):
            reach = NOWHERE if live.order.linear else live.order.reach((step.id,))
            labels = (step.branch,) if step.branch else ()
            rect = Rect(0, round_up(scratch.bytes, SLOT_BYTES), step.id, step.id, labels, reach)
            slots[step.id, number] = rect.size
            joined.bodies.append(Body({(step.id, number): 0}, [rect], max(scratch.alignment, 1)))
    return _without_holes(joined)


def span_rects(span: Span, size: int) -> list[Rect]:
    """The rectangles of a life: one, or one for every stretch that paths leave of it."""
    if not span.runs:
        return [Rect(0, size, span.first, span.last, span.labels, span.reach)]
    return [Rect(0, size, first, last, span.labels, span.reach) for first, last in span.runs]


def _body_of(border: Borders, live: LiveTable, root: int, size: int | None, unaligned: bool) -> Body:
    tensor, span = live.tensors[root], live.base_spans[root]
    members = [tensor]
    if root in live.views_of:
        members += [live.tensors[t] for t in live.views_of[root]]
    if size is None:
        size = tensor_slot(tensor)
        reach = max([live.shift[t.id] + t.payload_bytes for t in members]) if len(members) > 1 else 0
        if reach > max(tensor.payload_bytes, tensor.slot_bytes):
            raise ContractError(
                "a view reaches beyond its base",
                node=tensor.name,
                expected=f"at most {tensor.payload_bytes} bytes",
                got=f"{reach}",
            )
    region, reason = ARENA, ""
    for t in members:
        reason = reason or t.no_reuse
        if border.holds(t):
            region = IO if border.is_output(t) or t.kind is not TensorKind.WEIGHT else region
    if tensor.kind is TensorKind.WEIGHT:
        region = WEIGHTS
    modulus, residue = (1, 0) if unaligned else tensor_grid(tensor)
    places: dict[int | tuple[int, int], int] = {t.id: live.shift[t.id] for t in members}
    rects = span_rects(span, size)
    return Body(places, rects, modulus, residue, tensor.pinned, tensor.pool, region, reason)


def _join_must(joined: BodySet, anchor: int, member: int, start: int, group: Group) -> None:
    one, other = joined.of[anchor], joined.of[member]
    body, added = joined.bodies[one], joined.bodies[other]
    distance = body.places[anchor] + start - added.places[member]
    if one == other:
        if distance:
            raise ContractError(
                f"tensor {member} is wanted at two places by contiguous groups", hint="copy it with an Identity"
            )
        return
    if (body.region == WEIGHTS) != (added.region == WEIGHTS):
        raise ContractError(
            f"the group {group.members} mixes weights and other tensors", hint="copy the weight with an Identity"
        )
    fused = join_bodies(body, added, distance)
    if fused is None:
        raise ContractError(
            f"members of the group {group.members} cannot keep their distances, alignments, pools and pins at once"
        )
    joined.bodies[one] = fused
    joined.bodies[other] = Body({}, [])
    for tensor in added.places:
        if isinstance(tensor, int):
            joined.of[tensor] = one


def _without_holes(joined: BodySet) -> BodySet:
    """Without the bodies that joins have emptied."""
    kept = [body for body in joined.bodies if body.places]
    if len(kept) == len(joined.bodies):
        return joined
    of: dict[int, int] = {}
    for position, body in enumerate(kept):
        of.update((tensor, position) for tensor in body.places if isinstance(tensor, int))
    return BodySet(kept, of, joined.slots)


def join_bodies(one: Body, other: Body, distance: int) -> Body | None:
    """``other`` fixed ``distance`` bytes above the start of ``one``; None where grids, pins or pools forbid it."""
    if one.pool != other.pool:
        return None
    grid = _common_grid((one.modulus, one.residue), (other.modulus, (other.residue - distance) % other.modulus))
    pins = {pin for pin in (one.pinned, None if other.pinned is None else other.pinned - distance) if pin is not None}
    if grid is None or len(pins) > 1 or any((pin - grid[1]) % grid[0] for pin in pins):
        return None
    low = min(0, distance)
    places = {key: rel - low for key, rel in one.places.items()}
    places.update((key, rel + distance - low) for key, rel in other.places.items())
    rects = [_moved(rect, -low) for rect in one.rects] + [_moved(rect, distance - low) for rect in other.rects]
    modulus, residue = grid
    pinned = pins.pop() + low if pins else None
    regions = {one.region, other.region}
    region = next(name for name in (WEIGHTS, IO, ARENA) if name in regions)
    reason = one.no_reuse or other.no_reuse
    return Body(places, _coalesced(rects), modulus, (residue + low) % modulus, pinned, one.pool, region, reason)


def _fits_into(body: Body, added: Body, distance: int) -> bool:
    """Whether joining changes nothing of a body but its parts: no new start, grid, pin, pool or region."""
    same = (body.modulus, body.residue, body.region, body.pool) == (
        added.modulus, (added.residue - distance) % added.modulus, added.region, added.pool,
    )  # fmt: skip
    return same and distance >= 0 and added.pinned is None and not added.no_reuse


def _absorb(body: Body, added: Body, distance: int) -> None:
    """:func:`join_bodies` within ``body`` itself, so that a long chain costs no copy for each of its links."""
    for key, rel in added.places.items():
        body.places[key] = rel + distance
    for rect in added.rects:
        lives = rect if not distance else _moved(rect, distance)
        for k, held in enumerate(body.rects):
            same = held.rel == lives.rel and held.size == lives.size and held.labels == lives.labels
            if same and lives.first <= held.last and held.first <= lives.last:
                first, last = min(held.first, lives.first), max(held.last, lives.last)
                reach = joined_reach(held.reach, lives.reach)
                body.rects[k] = Rect(held.rel, held.size, first, last, held.labels, reach)
                break
        else:
            body.rects.append(lives)


def _moved(rect: Rect, by: int) -> Rect:
    return Rect(rect.rel + by, rect.size, rect.first, rect.last, rect.labels, rect.reach) if by else rect


def _common_grid(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int] | None:
    """Offsets that are on both grids, as one grid; None if there are none."""
    if one == other:
        return one
    (m1, r1), (m2, r2) = one, other
    shared, whole = gcd(m1, m2), lcm(m1, m2)
    if (r2 - r1) % shared:
        return None
    turns = (r2 - r1) // shared * pow(m1 // shared, -1, m2 // shared) if m2 > shared else 0
    return whole, (r1 + turns * m1) % whole


def _coalesced(rects: list[Rect]) -> list[Rect]:
    """Rectangles over the same bytes whose lives overlap become one."""
    merged: list[Rect] = []
    for rect in sorted(rects, key=lambda r: (r.rel, r.size, r.labels, r.first, r.last)):
        top = merged[-1] if merged else None
        if top and (top.rel, top.size, top.labels) == (rect.rel, rect.size, rect.labels) and rect.first <= top.last:
            reach = joined_reach(top.reach, rect.reach)
            merged[-1] = Rect(top.rel, top.size, top.first, max(top.last, rect.last), top.labels, reach)
        else:
            merged.append(rect)
    return merged


def rects_meet(one: Rect, other: Rect, order: StepOrder) -> bool:
    """Whether two rectangles of different bodies may exist at once (so that their bytes must differ)."""
    if not one.size or not other.size or exclusive(one.labels, other.labels):
        return False
    if order.linear:
        return one.first <= other.last and other.first <= one.last
    return not order.before(one.reach, other.reach) and not order.before(other.reach, one.reach)


@dataclass(frozen=True, slots=True)
class LegalPair:
    """An in-place permission that lifetimes allow: ``write`` over ``read`` saves ``saving`` bytes at ``step``."""

    step: int
    read: int
    write: int
    saving: int


def legal_pairs(schedule: Schedule, live: LiveTable, joined: BodySet) -> tuple[list[LegalPair], dict[InPlace, str]]:
    """The permissions that may be taken, in step order, and the reason for each that may not."""
    pairs: list[LegalPair] = []
    refused: dict[InPlace, str] = {}
    for permission in dict.fromkeys(schedule.inplace):
        reason = _refusal(schedule, live, joined, permission)
        if reason:
            refused[permission] = reason
            continue
        saving = min(tensor_slot(live.tensors[live.base[t]]) for t in (permission.read, permission.write))
        pairs.append(LegalPair(permission.step, permission.read, permission.write, saving))
    return sorted(pairs, key=lambda pair: (pair.step, -pair.saving)), refused


def _refusal(schedule: Schedule, live: LiveTable, joined: BodySet, pair: InPlace) -> str:
    """Why an in-place permission may not be taken ("" = it may)."""
    if not 0 <= pair.step < len(schedule.steps):
        return "there is no such step"
    step = schedule.steps[pair.step]
    if pair.read not in step.reads or pair.write not in step.writes:
        return "the step does not read the one and write the other"
    read, write = live.tensors[pair.read], live.tensors[pair.write]
    source, target = joined.bodies[joined.of[pair.read]], joined.bodies[joined.of[pair.write]]
    if source.region != ARENA or target.region != ARENA:
        return "one of the two is a weight, a graph input or a graph output"
    if source.no_reuse or target.no_reuse:
        return f"no reuse: {source.no_reuse or target.no_reuse}"
    if source.pool != target.pool:
        return "the two lie in different memory pools"
    if write.payload_bytes > read.payload_bytes or tensor_slot(write) > tensor_slot(read):
        return "the output is larger than the input"
    old, new = live.base_spans[live.base[pair.read]], live.base_spans[live.base[pair.write]]
    if old.last != pair.step or old.carried:
        return "the input is read again later" if not old.carried else "the input is carried by a loop"
    if new.first != pair.step or new.carried or pair.write in step.reads:
        return "the output exists before this step"
    if not live.order.linear and not live.order.done_by(old.reach, pair.step):
        return "another stream may still read the input"
    base, place = live.base[pair.read], (live.shift[pair.read], read.payload_bytes)
    for other in step.reads:
        if other is None or other == pair.read or live.base[other] != base:
            continue
        if (live.shift[other], live.tensors[other].payload_bytes) != place:
            return "the step reads other bytes of the same memory"
    return ""


def take_pairs(joined: BodySet, pairs: Sequence[LegalPair], order: StepOrder) -> tuple[list[Body], list[LegalPair]]:
    """Join the pairs in the given order where possible: bodies, and the pairs that were taken.

    Each input and each output is used once; a pair is left out if the joined body would overlap itself.
    """
    bodies: list[Body | None] = list(joined.bodies)
    where = dict(joined.of)
    taken: list[LegalPair] = []
    used_reads: set[int] = set()
    used_writes: set[int] = set()
    owned: set[int] = set()
    for pair in pairs:
        if pair.read in used_reads or pair.write in used_writes or where[pair.read] == where[pair.write]:
            continue
        body, added = bodies[where[pair.read]], bodies[where[pair.write]]
        assert body is not None and added is not None
        distance = body.places[pair.read] - added.places[pair.write]
        if _collides(body, added, distance, pair, order):
            continue
        home, gone = where[pair.read], where[pair.write]
        if home in owned and _fits_into(body, added, distance):
            _absorb(body, added, distance)
        else:
            fused = join_bodies(body, added, distance)
            if fused is None:
                continue
            bodies[home] = fused
            owned.add(home)
        bodies[gone] = None
        where.update((key, home) for key in added.places if isinstance(key, int))
        used_reads.add(pair.read)
        used_writes.add(pair.write)
        taken.append(pair)
    return [body for body in bodies if body is not None], taken


def _collides(one: Body, other: Body, distance: int, pair: LegalPair, order: StepOrder) -> bool:
    """Whether two bodies at this distance would overlap, apart from handing bytes over at the in-place step."""
    place = one.places[pair.read]
    for a in one.rects:
        for b in other.rects:
            apart = a.rel + a.size <= b.rel + distance or b.rel + distance + b.size <= a.rel
            handed_over = a.rel == b.rel + distance == place and a.last == pair.step == b.first
            if not apart and not handed_over and rects_meet(a, b, order):
                return True
    return False
