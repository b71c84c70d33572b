"""Planner cases as Schedules without kernels: JSON instances (tensors with lifetimes) and MiniMalloc's CSV files.

In both forms a tensor lives over the half-open interval [lower, upper) of a time line. JSON times are steps; CSV
times are large and sparse, so that only the instants at which some buffer is born or dies become steps.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metadef.error import Problem, UsageError, suggest
from metadef.files import title_of
from metadef.schedule import Group, InPlace, Schedule, ScheduleTensor, Step

TENSOR_KEYS = (
    "id", "lower", "upper", "size", "align", "offset", "inplace_of", "branch", "no_reuse", "pool", "stream", "note",
    "residue",
)  # fmt: skip
CASE_KEYS = (
    "name", "why", "tensors", "contiguous", "capacity", "expect", "optimum", "one_optimal_assignment",
    "live_set_no_sharing", "verified_by", "size_greedy_first_fit_peak",
)  # fmt: skip
MOST_STEPS, MOST_BYTES = 5_000_000, 1 << 50
"""What a JSON time line, whose every instant is a step, and one size, alignment or offset may be at most."""

CSV_COLUMNS = ("id", "lower", "upper", "size", "alignment", "offset")


@dataclass(frozen=True)
class PlannerCase:
    """A schedule to plan, the capacity asked for (bytes; None: none), and the case's fields as they stand."""

    schedule: Schedule
    capacity: int | None
    fields: Mapping[str, Any]


def load_case(path: str | Path) -> PlannerCase:
    """Read a planner case by its suffix, ``.json`` or ``.csv``.

    Raises:
        UsageError: no such file, not JSON or CSV of the known forms, or lifetimes and references that make no sense.
    """
    path = Path(path)
    if path.suffix.lower() == ".csv":
        return PlannerCase(load_csv(path), None, {})
    text = _text_of(path)
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"planner case {path} is no JSON: {error}", code="E10032") from error
    return case_from_json(fields, title_of(path))


def load_csv(path: Path) -> Schedule:
    """The schedule of a CSV file, whatever its suffix. Raises UsageError as :func:`schedule_from_csv`."""
    return schedule_from_csv(_text_of(path), title_of(path))


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the planner case {path}: {error}", code="E13001") from error


def case_from_json(fields: Mapping[str, Any], name: str = "case") -> PlannerCase:
    """A case from its parsed JSON object: ``tensors``, and optionally ``contiguous`` groups and ``capacity``.

    Raises:
        UsageError: all faults of the object at once.
    """
    if not isinstance(fields, dict) or not isinstance(fields.get("tensors"), list):
        raise UsageError(
            "a planner case is an object with a list 'tensors'", expected='{"tensors": [{"id", "lower", …}]}'
        )
    problems = [Problem(f"unknown key '{key}'", hint=suggest(key, CASE_KEYS)) for key in fields if key not in CASE_KEYS]
    entries = fields["tensors"]
    ids = {str(entry.get("id")): number for number, entry in enumerate(entries) if isinstance(entry, dict)}
    if len(ids) != len(entries):
        problems.append(
            Problem("tensor ids are missing or repeated", expected=f"{len(entries)} different ids", got=str(len(ids)))
        )
    for entry in entries:
        problems += _tensor_faults(entry, ids)
    problems += _shape_faults(fields, ids)
    end = max((e["upper"] for e in entries if isinstance(e, dict) and _is_whole(e.get("upper"))), default=0)
    if end > MOST_STEPS:
        hint = "give times as step numbers, or the case as CSV, whose times may be sparse"
        problems.append(Problem("the time line is too long", expected=f"at most {MOST_STEPS}", got=str(end), hint=hint))
    if problems:
        raise UsageError(problems[:20])
    spans = [(int(entry["lower"]), int(entry["upper"])) for entry in entries]
    schedule = _timeline(str(fields.get("name", name)), [_tensor(i, entry) for i, entry in enumerate(entries)], spans)
    for number, entry in enumerate(entries):
        if entry.get("inplace_of") is not None:
            schedule.inplace.append(InPlace(int(entry["lower"]), ids[str(entry["inplace_of"])], number))
    schedule.groups += [_group(group, ids) for group in fields.get("contiguous", ())]
    capacity = fields.get("capacity")
    return PlannerCase(schedule, None if capacity is None else int(capacity), fields)


def schedule_from_csv(text: str, name: str = "case") -> Schedule:
    """A MiniMalloc instance: columns id, lower, upper, size; alignment (default 1) and offset (pinned) where present.

    Raises:
        UsageError: missing or unknown columns, or rows that are no buffers; up to twenty at once.
    """
    rows = csv.DictReader(io.StringIO(text))
    columns = [column.strip() for column in rows.fieldnames or ()]
    missing = [column for column in CSV_COLUMNS[:4] if column not in columns]
    if missing:
        raise UsageError(
            f"columns missing in the CSV case: {', '.join(missing)}",
            expected=",".join(CSV_COLUMNS[:4]),
            got=",".join(columns),
        )
    unknown = [column for column in columns if column not in CSV_COLUMNS]
    if unknown:
        raise UsageError(f"unknown column '{unknown[0]}' in the CSV case", hint=suggest(unknown[0], CSV_COLUMNS))
    entries: list[dict[str, Any]] = []
    problems = []
    seen: set[str] = set()
    for row in rows:
        entry: dict[str, Any] = {"id": (row["id"] or "").strip(), "align": 1}
        try:
            entry.update((key, int(row[key])) for key in ("lower", "upper", "size"))
            entry.update(
                (new, int(row[old])) for old, new in (("alignment", "align"), ("offset", "offset")) if row.get(old)
            )
        except (TypeError, ValueError):
            problems.append(
                Problem(f"line {rows.line_num} is no buffer", expected="whole numbers", got=str(list(row.values())))
            )
            continue
        problems += _tensor_faults(entry, {})
        if None in row or entry["id"] in seen:
            why = "has more fields than columns" if None in row else f"repeats the id '{entry['id']}'"
            problems.append(Problem(f"line {rows.line_num} {why}"))
        seen.add(entry["id"])
        entries.append(entry)
    if problems:
        raise UsageError(problems[:20])
    times = sorted({entry[border] for entry in entries for border in ("lower", "upper")})
    place = {time: step for step, time in enumerate(times)}
    spans = [(place[entry["lower"]], place[entry["upper"]]) for entry in entries]
    schedule = _timeline(name, [_tensor(i, entry) for i, entry in enumerate(entries)], spans)
    schedule.times = times
    return schedule


def _tensor_faults(entry: Any, ids: Mapping[str, int]) -> list[Problem]:
    if not isinstance(entry, dict) or not all(_is_whole(entry.get(key)) for key in ("lower", "upper", "size")):
        return [Problem("a tensor needs whole numbers lower, upper and size", got=str(entry)[:80])]
    if entry.get("id") in (None, ""):
        return [Problem("a tensor needs an id", got=str(entry)[:80])]
    name = str(entry["id"])
    faults = [
        Problem(f"unknown key '{key}'", node=name, hint=suggest(key, TENSOR_KEYS))
        for key in entry
        if key not in TENSOR_KEYS
    ]
    for key, least in (("size", 0), ("lower", 0), ("align", 1), ("offset", 0), ("residue", 0)):
        value = entry.get(key, least)
        if key == "offset" and value is None:
            continue
        if not _is_whole(value) or not least <= value <= MOST_BYTES:
            expected = f"a whole number from {least} to {MOST_BYTES}"
            faults.append(Problem(f"'{key}' cannot be", node=name, expected=expected, got=str(value)[:80]))
    branch = entry.get("branch")
    if branch and not (isinstance(branch, list) and len(branch) == 2):
        faults.append(Problem("a branch is a list of condition and side", node=name, got=str(branch)[:80]))
    if entry["upper"] < entry["lower"] + (entry["size"] > 0):
        faults.append(
            Problem(
                "the tensor never lives",
                node=name,
                expected="lower < upper",
                got=f"[{entry['lower']}, {entry['upper']})",
            )
        )
    source = entry.get("inplace_of")
    if source is not None and str(source) not in ids:
        faults.append(Problem(f"inplace_of names unknown tensor '{source}'", node=name, hint=suggest(str(source), ids)))
    return faults


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shape_faults(fields: Mapping[str, Any], ids: Mapping[str, int]) -> list[Problem]:
    """What is wrong with a case beside its tensors: groups and capacity."""
    problems = []
    groups = fields.get("contiguous", ())
    for group in groups if isinstance(groups, list | tuple) else [groups]:
        members = group.get("members") if isinstance(group, dict) else None
        if not isinstance(members, list) or not members or not _is_whole(group.get("pad_to", 1)):
            problems.append(
                Problem("a contiguous group needs a list 'members' and a whole 'pad_to'", got=str(group)[:80])
            )
            continue
        unknown = [str(t) for t in (*members, *filter(None, [group.get("parent")])) if str(t) not in ids]
        problems += [Problem(f"a contiguous group names unknown tensor '{t}'", hint=suggest(t, ids)) for t in unknown]
    capacity = fields.get("capacity")
    if capacity is not None and (not _is_whole(capacity) or capacity < 1):
        problems.append(
            Problem("'capacity' cannot be", expected="a whole number of bytes, at least 1", got=str(capacity))
        )
    return problems


def _tensor(number: int, entry: Mapping[str, Any]) -> ScheduleTensor:
    branch = entry.get("branch")
    return ScheduleTensor(
        number,
        str(entry["id"]),
        payload_bytes=entry["size"],
        alignment=int(entry.get("align", 1)),
        residue=int(entry.get("residue", 0)),
        slot_bytes=entry["size"],
        pool=str(entry.get("pool", "HBM")),
        pinned=entry.get("offset"),
        no_reuse="asked for by the case" if entry.get("no_reuse") else "",
        branch=":".join(map(str, branch)) if branch else "",
    )


def _group(entry: Mapping[str, Any], ids: Mapping[str, int]) -> Group:
    parent = entry.get("parent")
    pad_to = int(entry.get("pad_to", 1))
    members = tuple(ids[str(member)] for member in entry["members"])
    return Group(
        -1 if parent is None else ids[str(parent)], members, padded=pad_to > 1, pad_to=pad_to if pad_to > 1 else 0
    )


def _timeline(name: str, tensors: list[ScheduleTensor], spans: Sequence[tuple[int, int]]) -> Schedule:
    """One step per instant: it writes the tensors born then and reads those that die with it."""
    count = max((max(upper, lower + 1) for lower, upper in spans), default=0)
    reads: list[list[int]] = [[] for _ in range(count)]
    writes: list[list[int]] = [[] for _ in range(count)]
    for tensor, (lower, upper) in zip(tensors, spans):
        writes[lower].append(tensor.id)
        if upper - 1 > lower:
            reads[upper - 1].append(tensor.id)
    steps = [Step(i, f"t{i}", tuple(reads[i]), tuple(writes[i])) for i in range(count)]
    return Schedule(name, "", steps, tensors)
