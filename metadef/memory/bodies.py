"""From live ranges to bodies: one per tensor, view family, contiguous group and workspace.

Views and contiguous groups are joined always (a must), in-place pairs when the planner takes the permission
(``pairs``). Flow: LiveTable -> bodies -> Problem -> plan.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from metadef.error import ContractError
from metadef.format import SLOT_BYTES, round_up, slot_bytes
from metadef.memory.body_table import ARENA, IO, REGIONS, WEIGHTS, BodySet, BodyTable, Columns, Key, Rects
from metadef.memory.columns import FREE, ScheduleColumns, starts_of
from metadef.memory.grouping import group_layout, with_groups
from metadef.memory.live import Labels, LiveTable
from metadef.schedule import Schedule, ScheduleTensor, TensorKind


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


def make_bodies(schedule: Schedule, live: LiveTable) -> BodySet:
    """One body per tensor, view family or group, and one per workspace.

    Raises:
        ContractError: relations contradict each other, or mix memory pools.
    """
    given, bases = live.given, live.bases
    slots = slot_column(given)
    layout = group_layout(given, slots)
    _check_views(live)
    roots = np.flatnonzero(bases == np.arange(len(bases)))
    body = np.full(len(bases), -1, np.int64)
    body[roots] = np.arange(len(roots))
    scratch_step, scratch_number, scratch_bytes, scratch_alignment = given.workspaces
    scratch = -(-scratch_bytes // SLOT_BYTES) * SLOT_BYTES
    modulus, residue = _grids(given)
    modulus[bases[layout.off_grid]], residue[bases[layout.off_grid]] = 1, 0
    slots[bases[given.groups[2]]] = layout.taken
    pools = dict(zip(given.pools, range(len(given.pools))))
    arena = pools.setdefault(ScheduleTensor.pool, len(pools))
    none, free = np.zeros(len(scratch), np.int64), np.full(len(scratch), FREE)
    rects = _rects(live, roots, slots, scratch)
    columns = Columns(
        *rects.hulls(),
        np.concatenate([modulus[roots], np.maximum(scratch_alignment, 1)]),
        np.concatenate([residue[roots], none]),
        np.concatenate([given.pinned[roots], free]),
        np.concatenate([given.pool[roots], none + arena]),
        np.concatenate([_regions(live)[roots], none + REGIONS.index(ARENA)]),
    )
    keys: list[Key] = [*given.ids.tolist(), *zip(scratch_step.tolist(), scratch_number.tolist())]
    home = np.concatenate([body[bases], len(roots) + np.arange(len(scratch))])
    distances = np.concatenate([live.shifts, none])
    table = BodyTable(columns, rects, keys, home, distances, list(pools), _reasons(live, body))
    slots = np.where(bases == np.arange(len(bases)), slots, given.payload)
    return BodySet(with_groups(schedule, given, table, layout), np.concatenate([slots, scratch]))


def slot_column(given: ScheduleColumns) -> np.ndarray:
    """:func:`tensor_slot` of all tensors."""
    rounded = -(-given.payload // SLOT_BYTES) * SLOT_BYTES
    by_rule = np.where(given.of_kind(TensorKind.WEIGHT), rounded, slot_bytes(given.payload))  # type: ignore[arg-type]
    return np.where(given.slot != 0, given.slot, np.where(given.payload == 0, 0, by_rule))


def _grids(given: ScheduleColumns) -> tuple[np.ndarray, np.ndarray]:
    """Modulus and residue of every tensor's offset. A residue counts modulo 512, whatever the alignment."""
    modulus = np.maximum(np.maximum(given.alignment, 1), np.where(given.residue, SLOT_BYTES, 1))
    return modulus, given.residue % modulus


def _regions(live: LiveTable) -> np.ndarray:
    """The region of every base: weights, graph inputs and outputs (one of its views suffices), or the arena."""
    border = live.border
    region = np.full(len(live.bases), REGIONS.index(ARENA), np.int64)
    region[live.bases[border.held & (border.output | ~border.weight)]] = REGIONS.index(IO)
    region[border.weight] = REGIONS.index(WEIGHTS)
    return region


def _reasons(live: LiveTable, body: np.ndarray) -> dict[int, str]:
    """Why bodies may not be reused: a base's own reason, or that of the first of its views that has one."""
    kept = np.flatnonzero(live.given.kept)
    found: dict[int, str] = {}
    for place in [*kept[live.bases[kept] == kept].tolist(), *kept.tolist()]:
        found.setdefault(int(body[live.bases[place]]), live.given.reasons[place])
    return found


def _rects(live: LiveTable, roots: np.ndarray, slots: np.ndarray, scratch: np.ndarray) -> Rects:
    """The rectangles of all bodies: one, or one for every stretch that paths leave of a life; workspaces last."""
    whole, given = live.whole, live.given
    owner, first, last = roots, whole.first[roots], whole.last[roots]
    counts = np.ones(len(roots) + len(scratch), np.int64)
    if live.runs:
        lists = [live.runs.get(tensor) or ((a, b),) for tensor, a, b in zip(owner.tolist(), first, last)]
        counts[: len(roots)] = [len(runs) for runs in lists]
        owner = np.repeat(roots, counts[: len(roots)])
        first, last = np.array([run for runs in lists for run in runs], np.int64).reshape(-1, 2).T
    step = given.workspaces[0]
    labels: dict[Labels, int] = dict(zip(whole.known, range(len(whole.known))))
    named = given.labels
    number = np.array([labels.setdefault((text,) if text else (), len(labels)) for text in named], np.int64)
    latest, known = whole.latest[owner], whole.before[owner]
    if not live.order.linear:
        alone = np.full((len(step), latest.shape[1]), -1, np.int64)
        alone[np.arange(len(step)), live.order.streams[step]] = step
        latest, known = np.concatenate([latest, alone]), np.concatenate([known, live.order.clocks[step]])
    else:
        latest = known = np.zeros((len(owner) + len(step), 0), np.int64)
    sizes = np.concatenate([slots[owner], scratch])
    first, last = np.concatenate([first, step]), np.concatenate([last, step])
    label = np.concatenate([whole.label[owner], number[given.step_label[step]]])
    return Rects(starts_of(counts), np.zeros_like(sizes), sizes, first, last, label, list(labels), latest, known)


def _check_views(live: LiveTable) -> None:
    """Raises ContractError for a view that reaches beyond its base, unless a group has settled the base's bytes."""
    given, bases = live.given, live.bases
    ends = np.zeros(len(bases), np.int64)
    np.maximum.at(ends, bases, live.shifts + given.payload)
    wrong = ends > np.maximum(given.payload, given.slot)
    wrong[bases[given.groups[2]]] = False
    for base in np.flatnonzero(wrong).tolist():
        raise ContractError(
            "a view reaches beyond its base",
            node=given.tensors[base].name,
            expected=f"at most {given.payload[base]} bytes",
            got=f"{ends[base]}",
        )
