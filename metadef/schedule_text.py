"""Schedules as text that prints and parses: one line per tensor, step and relation.

Everything the planner sees survives the round trip. Descriptors and kernels belong to the compiler: they are shown as
comments after "#" and are not read back. Fields at their defaults are left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import fields

from metadef.error import Problem, UsageError, suggest
from metadef.schedule import Group, InPlace, Schedule, ScheduleTensor, Step, TensorKind, View, Workspace

Words = dict[str, list[str]]

TENSOR_FIELDS = {"alignment": "align", "residue": "residue", "slot_bytes": "slot", "pool": "pool", "pinned": "pinned",
                 "no_reuse": "no_reuse", "branch": "branch"}  # fmt: skip
STEP_FIELDS = {"stream": "stream", "branch": "branch", "loop_depth": "loop", "layer": "layer"}
TEXT_FIELDS = {"pool", "no_reuse", "branch", "layer"}


def print_schedule(schedule: Schedule) -> str:
    """The text of a schedule. ``parse_schedule`` gives it back without kernels and descriptors."""
    lines = [f"schedule {_quoted(schedule.name)} soc={_quoted(schedule.soc)} revision={schedule.graph_revision}"]
    lines += [_tensor_line(tensor) for tensor in schedule.tensors]
    lines += [_step_line(step) for step in schedule.steps]
    for word, listed in (("inputs", schedule.inputs), ("outputs", schedule.outputs), ("times", schedule.times)):
        lines += [f"{word} {_numbers(listed)}"] if listed else []
    lines += [f"inplace step={pair.step} read={pair.read} write={pair.write}" for pair in schedule.inplace]
    lines += [f"view {view.tensor} base={view.base} offset={view.offset_bytes}" for view in schedule.views]
    for group in schedule.groups:
        padded = f" padded=1 pad_to={group.pad_to}" if group.padded else ""
        lines.append(f"group {group.parent} members={_numbers(group.members)}{padded}")
    return "\n".join(lines) + "\n"


def parse_schedule(text: str) -> Schedule:
    """The schedule of a text.

    Raises:
        UsageError: lines that are no part of a schedule; all of them at once, with their numbers.
    """
    schedule = Schedule("", "")
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
            if words:
                _read_line(schedule, words)
        except (ValueError, KeyError, IndexError) as error:
            reason = f"'{error.args[0]}' is missing" if isinstance(error, KeyError) else str(error)
            problems.append(Problem(f"line {number} of the schedule: {reason}", code="E10032", got=line.strip()[:100]))
    if problems:
        raise UsageError(problems)
    return schedule


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _numbers(values: Sequence[int | None]) -> str:
    return ",".join("_" if value is None else str(value) for value in values)


def _changed(value: object, names: dict[str, str]) -> str:
    """`` key=value`` for the fields that are not at their defaults."""
    defaults = {item.name: item.default for item in fields(value)}  # type: ignore[arg-type]
    parts = []
    for name, key in names.items():
        held = getattr(value, name)
        if held != defaults[name]:
            parts.append(f" {key}={_quoted(held) if name in TEXT_FIELDS else held}")
    return "".join(parts)


def _tensor_line(tensor: ScheduleTensor) -> str:
    head = f"tensor {tensor.id} {_quoted(tensor.name)} {tensor.kind.value} bytes={tensor.payload_bytes}"
    shown = f"  # {tensor.desc}" if tensor.desc else ""
    return head + _changed(tensor, TENSOR_FIELDS) + shown


def _step_line(step: Step) -> str:
    parts = [f"step {step.id} {_quoted(step.name)}"]
    ports = {key: getattr(step, key) for key in ("reads", "writes", "waits", "records", "jumps")}
    for key, listed in ports.items():
        parts += [f"{key}={_numbers(listed)}"] if listed else []
    parts += [f"workspace={scratch.bytes},{scratch.alignment}" for scratch in step.workspaces]
    parts += [f"origin={_quoted(origin)}" for origin in step.origins]
    shown = f"  # {step.kernel.op_type} on {step.kernel.engine.value}" if step.kernel else ""
    return " ".join(parts) + _changed(step, STEP_FIELDS) + shown


def _read_line(schedule: Schedule, words: list[str]) -> None:
    if words[0] not in READERS:
        raise ValueError(f"unknown line '{words[0]}': {suggest(words[0], READERS)}")
    count, reader = READERS[words[0]]
    named: Words = {}
    for word in words[count + 1 :]:
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"'{word}' is no key=value")
        named.setdefault(key, []).append(value)
    reader(schedule, words[: count + 1], named)


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _read_head(schedule: Schedule, words: list[str], named: Words) -> None:
    schedule.name, schedule.soc = words[1], named["soc"][0]
    schedule.graph_revision = int(named["revision"][0])


def _read_tensor(schedule: Schedule, words: list[str], named: Words) -> None:
    given = _given(named, TENSOR_FIELDS, {"bytes"})
    schedule.tensors.append(
        ScheduleTensor(int(words[1]), words[2], int(named["bytes"][0]), TensorKind(words[3]), **given)  # type: ignore[arg-type]
    )


def _read_step(schedule: Schedule, words: list[str], named: Words) -> None:
    lists = {"reads", "writes", "waits", "records", "jumps", "workspace", "origin"}
    given = _given(named, STEP_FIELDS, lists)
    reads = tuple(None if part == "_" else int(part) for text in named.get("reads", ()) for part in text.split(","))
    writes, waits, records, jumps = (
        tuple(value for text in named.get(key, ()) for value in _ints(text))
        for key in ("writes", "waits", "records", "jumps")
    )
    scratch = tuple(Workspace(*_ints(text)) for text in named.get("workspace", ()))
    origins = tuple(named.get("origin", ()))
    schedule.steps.append(
        Step(int(words[1]), words[2], reads, writes, workspaces=scratch, origins=origins, waits=waits, records=records,
             jumps=jumps, **given)  # type: ignore[arg-type]
    )  # fmt: skip


def _given(named: Words, names: dict[str, str], others: set[str]) -> dict[str, object]:
    """Field values of the known keys. Raises ValueError for an unknown one."""
    known = {key: name for name, key in names.items()}
    values: dict[str, object] = {}
    for key, texts in named.items():
        if key in known:
            values[known[key]] = texts[0] if known[key] in TEXT_FIELDS else int(texts[0])
        elif key not in others:
            raise ValueError(f"unknown field '{key}': {suggest(key, [*known, *others])}")
    return values


def _read_inplace(schedule: Schedule, words: list[str], named: Words) -> None:
    schedule.inplace.append(InPlace(*(int(named[key][0]) for key in ("step", "read", "write"))))


def _read_view(schedule: Schedule, words: list[str], named: Words) -> None:
    schedule.views.append(View(int(words[1]), int(named["base"][0]), int(named.get("offset", ["0"])[0])))


def _read_group(schedule: Schedule, words: list[str], named: Words) -> None:
    padded, pad_to = (int(named.get(key, ["0"])[0]) for key in ("padded", "pad_to"))
    schedule.groups.append(Group(int(words[1]), tuple(_ints(named["members"][0])), bool(padded), pad_to))


def _read_list(schedule: Schedule, words: list[str], named: Words) -> None:
    getattr(schedule, words[0]).extend(_ints(words[1]))


READERS: dict[str, tuple[int, Callable[[Schedule, list[str], Words], None]]] = {
    "schedule": (1, _read_head),
    "tensor": (3, _read_tensor),
    "step": (2, _read_step),
    "inplace": (0, _read_inplace),
    "view": (1, _read_view),
    "group": (1, _read_group),
    "inputs": (1, _read_list),
    "outputs": (1, _read_list),
    "times": (1, _read_list),
}
"""For each kind of line the number of words before its key=value fields, and its reader."""
