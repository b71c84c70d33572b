"""What misalignment costs: chosen tensors planned off the 512-byte line, the network run and timed again.

Every variant takes the whole road from the schedule on: residues are set on the schedule's tensors, memory is planned
and checked, the program is lowered, run on the same inputs and timed. Addresses must not change values: the results of
every task are compared with the aligned run bit for bit.
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from metadef.compiler import Compilation, replan
from metadef.error import UsageError, suggest
from metadef.schedule import Schedule, ScheduleTensor, TensorKind
from npusim.feeds import generate_feeds
from npusim.profile import Profile, TaskProfile
from npusim.session import InferenceSession, SessionOptions

LINE_BYTES = 512
BLOCK_BYTES = 32
ELEMENT = "element"
RESIDUES: tuple[str, ...] = ("0", "256", "64", "32", "16", ELEMENT)
"""Addresses modulo 512 that are tried; ``element`` is the size of one element of the tensor."""


@dataclass(frozen=True)
class ShiftedOperator:
    """One operator with the chosen tensors at one residue. ``cause`` says what the difference is made of."""

    cycles: int
    slowdown: float
    misalignment_cycles: int
    extra_requests: int
    cause: str


@dataclass(frozen=True)
class OperatorStudy:
    """One operator: aligned, and at every residue."""

    task: int
    name: str
    op_type: str
    origins: tuple[str, ...]
    aligned_cycles: int
    bound_by: str
    shifted: dict[str, ShiftedOperator] = field(default_factory=dict)

    @property
    def worst(self) -> ShiftedOperator:
        """The residue with most cycles."""
        return max(self.shifted.values(), key=lambda item: (item.cycles, item.extra_requests))


@dataclass(frozen=True)
class Total:
    """The whole network at one residue. ``differing`` lists tasks whose results are not the aligned run's bits."""

    residue: str
    cycles: int
    us: float
    slowdown: float
    extra_requests: int
    arena_bytes: int
    differing: tuple[str, ...]


@dataclass(frozen=True)
class AlignStudy:
    """Operators in execution order, totals by residue (the aligned run first)."""

    model: str
    soc: str
    tensors: tuple[str, ...]
    operators: tuple[OperatorStudy, ...]
    totals: tuple[Total, ...]

    @property
    def equal(self) -> bool:
        """Whether every task gave the same bits at every residue."""
        return not any(total.differing for total in self.totals)

    def as_json(self) -> dict[str, Any]:
        """Plain values for ``--json``."""
        return {**asdict(self), "equal": self.equal}


def align_model(source: str | Path | bytes | Any, options: SessionOptions | None = None, **study: Any) -> AlignStudy:
    """:func:`align_session` of a session made for this model."""
    session = InferenceSession(source, options)
    try:
        return align_session(session, **study)
    finally:
        session.close()


def align_session(
    session: InferenceSession,
    feeds: Mapping[str, np.ndarray] | None = None,
    *,
    pattern: str | None = None,
    residues: Sequence[str] = RESIDUES,
    on_stage: Callable[[str], None] = lambda name: None,
) -> AlignStudy:
    """Plan, run and time the session's model with tensors at several residues modulo 512.

    Args:
        feeds: inputs by name; seeded ones when None.
        pattern: which tensors move (``*`` and ``?`` as in file names); all feature maps of the arena when None.
        residues: byte counts below 512, or ``element``; the aligned run is always made.

    Raises:
        UsageError: no tensor matches, a residue is out of range, or the session is one of a compiled model.
    """
    wanted = checked_residues(residues)
    made = session.compilation
    feeds = generate_feeds(session.get_inputs(), seed=0) if feeds is None else feeds
    chosen = chosen_tensors(made.schedule, pattern)
    on_stage("aligned run")
    base, digests = session.profile.data, _digests(session, feeds)
    operators = [
        OperatorStudy(row.task, row.name, row.op_type, row.origins, row.cycles, row.bound_by) for row in base.tasks
    ]
    totals = [Total("0", base.cycles, base.us, 1.0, 0, made.plan.total_size, ())]
    for residue in wanted:
        on_stage(f"residue {residue}")
        variant, profile, found = _variant(made, chosen, residue, session.options, feeds)
        differing = tuple(name for name, digest in digests.items() if found.get(name) != digest)
        for operator, before, after in zip(operators, base.tasks, profile.tasks, strict=True):
            operator.shifted[residue] = compared(before, after, residue)
        extra = sum(item.requests for item in profile.tasks) - sum(item.requests for item in base.tasks)
        slowdown = profile.cycles / max(base.cycles, 1)
        size = variant.plan.total_size
        totals.append(Total(residue, profile.cycles, profile.us, slowdown, extra, size, differing))
    names = tuple(made.schedule.tensors[item].name for item in chosen)
    return AlignStudy(session.model.name, session.model.soc, names, tuple(operators), tuple(totals))


def checked_residues(residues: Sequence[str]) -> list[str]:
    """Residues in order without repetition and without 0, which is always tried. Raises UsageError for others."""
    wanted = []
    for residue in dict.fromkeys(str(item) for item in residues):
        if residue != ELEMENT and (not residue.isdigit() or int(residue) >= LINE_BYTES):
            raise UsageError(
                f"'{residue}' is no residue", expected=f"bytes below {LINE_BYTES}, or '{ELEMENT}'", got=residue
            )
        if residue != "0":
            wanted.append(residue)
    if not wanted:
        raise UsageError("there is nothing to compare the aligned run with", expected="a residue other than 0")
    return wanted


def chosen_tensors(schedule: Schedule, pattern: str | None = None) -> list[int]:
    """Ids of the tensors that move: those that have a place of their own, and whose names match.

    Without a pattern, all feature maps of the arena. A pattern may also name weights, inputs and outputs.

    Raises:
        UsageError: nothing matches, with near misses.
    """
    inside = {view.tensor for view in schedule.views}
    for group in schedule.groups:
        inside.update(group.members[0 if group.parent >= 0 else 1 :])
    free = [tensor for tensor in schedule.tensors if tensor.id not in inside and tensor.payload_bytes]
    if pattern is None:
        found = [tensor.id for tensor in free if tensor.kind is TensorKind.FEATURE]
        if not found:
            raise UsageError("the model has no feature map in the arena", hint="name tensors with --tensors")
        return found
    found = [tensor.id for tensor in free if fnmatch.fnmatchcase(tensor.name, pattern)]
    if not found:
        raise UsageError(
            f"no tensor with a place of its own is called '{pattern}'",
            hint=suggest(pattern, [tensor.name for tensor in free]),
        )
    return found


def with_residue(schedule: Schedule, tensors: Sequence[int], residue: str) -> Schedule:
    """The schedule with the given tensors at an address residue modulo 512 (``element``: one element of each).

    Raises:
        UsageError: an element does not divide the residue, so that the address would be impossible.
    """
    chosen = set(tensors)
    moved = [_moved(tensor, residue) if tensor.id in chosen else tensor for tensor in schedule.tensors]
    return replace(schedule, tensors=moved)


def _moved(tensor: ScheduleTensor, residue: str) -> ScheduleTensor:
    element = tensor.desc.dtype.bytes if tensor.desc is not None else 1
    offset = element if residue == ELEMENT else int(residue)
    if offset % max(element, 1):
        raise UsageError(
            f"tensor '{tensor.name}' cannot lie {offset} bytes off a line",
            expected=f"a multiple of its element's {element} bytes",
            got=residue,
        )
    return replace(tensor, residue=offset)


def compared(before: TaskProfile, after: TaskProfile, residue: str) -> ShiftedOperator:
    """One operator aligned and with its tensors at ``residue``."""
    extra = after.requests - before.requests
    return ShiftedOperator(
        after.cycles,
        after.cycles / max(before.cycles, 1),
        after.causes.get("misalignment", 0) - before.causes.get("misalignment", 0),
        extra,
        _cause(before, after, residue),
    )


def _cause(before: TaskProfile, after: TaskProfile, residue: str) -> str:
    """What the additional cycles are made of, in a few words."""
    if after.cycles <= before.cycles:
        return f"hidden: {before.bound_by.partition(': ')[2]}" if after.requests > before.requests else "none"
    grown = {
        cause: after.causes.get(cause, 0) - before.causes.get(cause, 0) for cause in {**before.causes, **after.causes}
    }
    cause = max(grown, key=lambda name: grown[name])
    odd = residue == ELEMENT or int(residue) % BLOCK_BYTES != 0
    return {
        "misalignment": "128 B requests" if odd else "a line more a row",
        "memory": "more lines moved",
        "pipe wait": "pipes wait for loads",
        "imbalance": "fullest core slower",
    }.get(cause, cause)


def _variant(
    made: Compilation,
    chosen: Sequence[int],
    residue: str,
    options: SessionOptions,
    feeds: Mapping[str, np.ndarray],
) -> tuple[Compilation, Profile, dict[str, bytes]]:
    """The network planned, run and timed with the chosen tensors at a residue."""
    variant = replan(made, with_residue(made.schedule, chosen, residue))
    running = SessionOptions(
        soc=options.soc,
        threads=options.threads,
        numerics=options.numerics,
        deterministic=options.deterministic,
        checked=options.checked,
    )
    session = InferenceSession(variant.model, running)
    digests = _digests(session, feeds)
    profile = session.profile.data
    session.close()
    return variant, profile, digests


def _digests(session: InferenceSession, feeds: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    """A digest of every task's results, by task name."""
    found = {}
    for item in session.run_layers(feeds):
        digest = hashlib.blake2b(digest_size=16)
        for array in item.outputs:
            digest.update(np.ascontiguousarray(array).data)
        found[item.task.name] = digest.digest()
    return found
