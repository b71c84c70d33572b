"""Generated schedules of any size for the planner's bench and tests, one function per shape of problem.

Each takes how many steps it has (every step writes one tensor) and draws from a fixed seed, so that a shape of a size
is always the same schedule.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from metadef.schedule import Group, InPlace, Schedule, ScheduleTensor, Step, TensorKind, View, Workspace

SIZES, UNIT_BYTES = (1, 2, 4, 8, 16), 4096


def skips(count: int, reach: int) -> Schedule:
    """A chain; one step in ten also reads a tensor from up to ``reach`` steps before (0: none does)."""
    draw, made = random.Random(count), Schedule(f"skips{reach}", "")
    for i in range(count):
        reads = [i - 1] if i else []
        _add(made, draw.choice(SIZES) * draw.randint(1, 4) * UNIT_BYTES, [])
        if i > 1 and reach and draw.random() < 0.1:
            reads.append(draw.randint(max(0, i - reach), i - 2))
        made.steps[-1] = replace(made.steps[-1], reads=tuple(reads))
    return made


def residual(count: int) -> Schedule:
    """Bottlenecks of three steps and an addition that may run over either operand; widths halve and double."""
    draw, made = random.Random(count), Schedule("residual", "")
    trunk, size = _add(made, 64 * UNIT_BYTES, []), 64 * UNIT_BYTES
    while len(made.steps) < count:
        if draw.random() < 0.1:
            size = max(UNIT_BYTES, min(size * draw.choice((1, 2)) // draw.choice((1, 2)), 256 * UNIT_BYTES))
            trunk = _add(made, size, [trunk])
        inner = _add(made, size // 4, [trunk], workspace=draw.choice((0, 0, 3 * UNIT_BYTES)))
        inner = _add(made, size // 4, [inner], over=[inner])
        inner = _add(made, size, [inner])
        trunk = _add(made, size, [inner, trunk], over=[inner, trunk])
    return made


def lives(count: int) -> Schedule:
    """Random live ranges: most last a few steps, some hundreds."""
    draw, made = random.Random(count), Schedule("lives", "")
    dying: dict[int, list[int]] = {}
    for i in range(count):
        _add(made, draw.randint(1, 4096) * 64, dying.pop(i, []))
        length = draw.choice((1, 1, 2, 3, 5, 10, 30, 300)) if draw.random() < 0.97 else draw.randint(1, 2000)
        dying.setdefault(min(i + length, count - 1), []).append(i)
    return made


def giants(count: int) -> Schedule:
    """Thousands of tiny tensors of odd sizes, and one in a hundred a million times as large."""
    draw, made = random.Random(count), Schedule("giants", "")
    recent: list[int] = []
    for _ in range(count):
        size = draw.randint(1 << 28, 1 << 30) if draw.random() < 0.01 else draw.randint(1, 2000)
        recent = [*recent[-40:], _add(made, size, draw.sample(recent, min(len(recent), draw.randint(1, 3))))]
        made.tensors[-1] = replace(made.tensors[-1], alignment=draw.choice((32, 64, 512)))
    return made


def mixed(count: int, *, streams: int = 1, branches: bool = False) -> Schedule:
    """Skips, in-place, views, contiguous groups, workspaces, weights, pins and no-reuse; streams joined by events."""
    draw, made = random.Random(count), Schedule(f"mixed{streams}{'b' if branches else ''}", "")
    alive: list[int] = []
    made.tensors.append(ScheduleTensor(0, "x", 40 * UNIT_BYTES, TensorKind.INPUT))
    made.inputs.append(0)
    last = 0
    while len(made.steps) < count:
        size = draw.choice(SIZES) * UNIT_BYTES
        alive = alive[-60:]
        old = draw.sample(alive, 1) if alive and draw.random() < 0.1 else []
        turn = draw.random()
        if turn < 0.3:
            size = made.tensors[last].payload_bytes
            last = _add(made, size, [last, *old], over=[last, *old])
        elif turn < 0.4:
            view = _tensor(made, size // 2)
            base = _add(made, size, [last, *old])
            made.views.append(View(view, base, size // 4))
            last = view
        elif turn < 0.5:
            parts = [_add(made, size, [last]) for _ in range(3)]
            parent = _tensor(made, 3 * size)
            made.groups.append(Group(parent, tuple(parts)))
            last = _add(made, size, [parent, *old])
        else:
            last = _add(made, size, [last, *old], workspace=draw.choice((0, 0, UNIT_BYTES, 100)))
            if turn > 0.99:
                made.tensors[-1] = replace(made.tensors[-1], alignment=4096)
        alive.append(last)
    if branches:
        _branch(made, draw)
    if streams > 1:
        _stream(made, draw, streams)
    return made


SHAPES: dict[str, Callable[[int], Schedule]] = {
    "chain": lambda count: skips(count, 0),
    "skips of 10": lambda count: skips(count, 10),
    "skips of 100": lambda count: skips(count, 100),
    "skips of 1000": lambda count: skips(count, 1000),
    "residual": residual,
    "random lives": lives,
    "tiny and giants": giants,
    "mixed": mixed,
    "mixed, branches": lambda count: mixed(count, branches=True),
    "mixed, 3 streams": lambda count: mixed(count, streams=3),
}


def _tensor(made: Schedule, size: int) -> int:
    made.tensors.append(ScheduleTensor(len(made.tensors), f"t{len(made.tensors)}", size))
    return made.tensors[-1].id


def _add(made: Schedule, size: int, reads: Sequence[int], *, over: Sequence[int] = (), workspace: int = 0) -> int:
    """A step that writes a new tensor, which may take the memory of those in ``over``."""
    written, step = _tensor(made, size), len(made.steps)
    scratch = (Workspace(workspace),) if workspace else ()
    made.steps.append(Step(step, f"s{step}", tuple(reads), (written,), workspaces=scratch))
    made.inplace += [InPlace(step, read, written) for read in over]
    return written


def _branch(made: Schedule, draw: random.Random) -> None:
    """Stretches of steps get a side of one of a few conditions."""
    start = 0
    while start < len(made.steps):
        stop = start + draw.randint(1, 12)
        label = draw.choice(("", "", "", "", "a:0", "a:1", "b:0", "b:1", "a:0/c:1"))
        for i in range(start, min(stop, len(made.steps))):
            made.steps[i] = replace(made.steps[i], branch=label)
        start = stop


def _stream(made: Schedule, draw: random.Random, streams: int) -> None:
    """Stretches of steps go to streams; a step waits for the writers of what it reads, wherever they run."""
    base = {view.tensor: view.base for view in made.views}
    parts = {group.parent: group.members for group in made.groups}
    writer: dict[int, int] = {}
    stream, stay = 0, 0
    for i, step in enumerate(made.steps):
        if not stay:
            stream, stay = draw.randrange(streams), draw.randint(1, 8)
        stay -= 1
        sources = [base.get(t, t) for r in step.reads if r is not None for t in parts.get(r, (r,))]
        waits = sorted({writer[t] for t in sources if t in writer and made.steps[writer[t]].stream != stream})
        for source in waits:
            made.steps[source] = replace(made.steps[source], records=(source,))
        made.steps[i] = replace(step, stream=stream, waits=tuple(waits))
        writer.update(dict.fromkeys(step.writes, i))
