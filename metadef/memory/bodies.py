"""From live ranges to bodies: one per tensor, view family, contiguous group and workspace.

Views and contiguous groups are joined always (a must), in-place pairs when the planner takes the permission
(``pairs``). Flow: LiveTable -> bodies -> Problem -> plan.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import compress
from math import gcd, lcm

import numpy as np

from metadef.error import ContractError
from metadef.format import SLOT_BYTES, round_up, slot_bytes
from metadef.memory.body_table import ARENA, IO, WEIGHTS, Body, BodySet, BodyTable, Columns, Key, Rect
from metadef.memory.columns import FREE, ScheduleColumns
from metadef.memory.live import NOWHERE, Borders, LiveTable, Span, StepOrder, exclusive, joined_reach
from metadef.schedule import Group, Schedule, ScheduleTensor, TensorKind


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
    given = live.given
    roots = np.ones(len(given.ids), np.bool_)
    roots[given.places([t for t, root in live.base.items() if t != root])] = False
    ids = given.ids[roots].tolist()
    border = Borders(schedule)
    plain = (live.plain & given.of_kind(TensorKind.FEATURE) & ~given.kept)[roots]
    size = _slot_column(given)
    of: dict[int, int] = dict(zip(ids, range(len(ids))))
    slots: dict[Key, int] = dict(zip(ids, size[roots].tolist()))
    plain[[of[t] for t in border.inputs | border.outputs if t in of]] = False
    made: dict[int, Body] = {}
    fixed = _Fixed(schedule, live)
    related = {*live.views_of, *fixed.bytes, *fixed.unaligned}
    for i in np.flatnonzero(~plain).tolist():
        tensor = live.tensors[ids[i]]
        if tensor.id in related or border.holds(tensor):
            made[i] = _body_of(border, live, tensor.id, fixed)
            slots[tensor.id] = made[i].rects[0].size
            of.update(dict.fromkeys(live.views_of.get(tensor.id, ()), i))
        else:
            rects, grid = span_rects(live.base_spans[tensor.id], slots[tensor.id]), tensor_grid(tensor)
            made[i] = Body({tensor.id: 0}, rects, *grid, tensor.pinned, tensor.pool, ARENA, tensor.no_reuse)
    for group, layout in zip(schedule.groups, fixed.layouts):
        anchor = group.parent if group.parent >= 0 else group.members[0]
        for member, (start, _) in zip(group.members, layout):
            _join_must(made, of, anchor, member, start, group)
    modulus, residue = _grid_columns(given)
    lives = Columns(size, live.first, live.last, modulus, residue, given.pinned)[roots]
    pools = [tensor.pool for tensor in compress(schedule.tensors, roots.tolist())]
    table = _with_workspaces(schedule, live, BodyTable(lives, list(ids), pools, made), slots)
    kept = plain
    kept[list(made)] = True
    kept = np.concatenate([kept, np.ones(len(table) - len(kept), np.bool_)])
    if kept.all():
        return BodySet(table, of, slots)
    table = table.chosen(kept)
    return BodySet(table, table.of_tensors(), slots)


def _with_workspaces(schedule: Schedule, live: LiveTable, bodies: BodyTable, slots: dict[Key, int]) -> BodyTable:
    """The bodies of tensors, then those of workspaces."""
    made, added = dict(bodies.made), []
    keys: list[Key] = []
    for step in schedule.steps:
        for number, scratch in enumerate(step.workspaces):
            size, modulus = round_up(scratch.bytes, SLOT_BYTES), max(scratch.alignment, 1)
            if step.branch or not live.order.linear:
                reach = NOWHERE if live.order.linear else live.order.reach((step.id,))
                rect = Rect(0, size, step.id, step.id, (step.branch,) if step.branch else (), reach)
                made[len(bodies) + len(keys)] = Body({(step.id, number): 0}, [rect], modulus)
            keys.append((step.id, number))
            added.append((size, step.id, step.id, modulus, 0, FREE))
    slots.update((key, entry[0]) for key, entry in zip(keys, added))
    columns = bodies.columns.extended(made, np.array(added, np.int64).reshape(-1, 6).T)
    return BodyTable(columns, [*bodies.keys, *keys], [*bodies.pools, *[ScheduleTensor.pool] * len(keys)], made)


def _slot_column(given: ScheduleColumns) -> np.ndarray:
    """:func:`tensor_slot` of all tensors."""
    rounded = -(-given.payload // SLOT_BYTES) * SLOT_BYTES
    by_rule = np.where(given.of_kind(TensorKind.WEIGHT), rounded, slot_bytes(given.payload))  # type: ignore[arg-type]
    return np.where(given.slot != 0, given.slot, np.where(given.payload == 0, 0, by_rule))


def _grid_columns(given: ScheduleColumns) -> tuple[np.ndarray, np.ndarray]:
    """:func:`tensor_grid` of all tensors."""
    modulus = np.maximum(given.alignment, np.where(given.residue, SLOT_BYTES, 1))
    return modulus, given.residue % modulus


class _Fixed:
    """What contiguous groups settle: member layouts, the bytes of members, and who may lie off its own grid."""

    def __init__(self, schedule: Schedule, live: LiveTable) -> None:
        self.layouts = [member_layout(group, live.tensors) for group in schedule.groups]
        self.bytes: dict[int, int] = {}
        for group, layout in zip(schedule.groups, self.layouts):
            self.bytes.update((live.base[member], size) for member, (_, size) in zip(group.members, layout))
        self.unaligned = {
            live.base[m] for g in schedule.groups if not g.padded for m in g.members[1 if g.parent < 0 else 0 :]
        }


def span_rects(span: Span, size: int) -> list[Rect]:
    """The rectangles of a life: one, or one for every stretch that paths leave of it."""
    if not span.runs:
        return [Rect(0, size, span.first, span.last, span.labels, span.reach)]
    return [Rect(0, size, first, last, span.labels, span.reach) for first, last in span.runs]


def _body_of(border: Borders, live: LiveTable, root: int, fixed: _Fixed) -> Body:
    tensor, span, size = live.tensors[root], live.base_spans[root], fixed.bytes.get(root)
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
    modulus, residue = (1, 0) if root in fixed.unaligned else tensor_grid(tensor)
    places: dict[Key, int] = {t.id: live.shift[t.id] for t in members}
    rects = span_rects(span, size)
    return Body(places, rects, modulus, residue, tensor.pinned, tensor.pool, region, reason)


def _join_must(made: dict[int, Body], of: dict[int, int], anchor: int, member: int, start: int, group: Group) -> None:
    one, other = of[anchor], of[member]
    body, added = made[one], made[other]
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
    made[one] = fused
    del made[other]
    for tensor in added.places:
        if isinstance(tensor, int):
            of[tensor] = one


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


def fits_into(body: Body, added: Body, distance: int) -> bool:
    """Whether joining changes nothing of a body but its parts: no new start, grid, pin, pool or region."""
    same = (body.modulus, body.residue, body.region, body.pool) == (
        added.modulus, (added.residue - distance) % added.modulus, added.region, added.pool,
    )  # fmt: skip
    return same and distance >= 0 and added.pinned is None and not added.no_reuse


def absorb(body: Body, added: Body, distance: int) -> None:
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
