"""Where answers and progress go: text or one JSON object to standard output, stages of work to standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from metadef.error import UsageError

NARROW = 110
"""Columns that the tables of studies fit into."""


@dataclass
class Answer:
    """What a call of the program owes its caller: with ``--json`` one object, which an error is where nothing else
    has been printed."""

    as_json: bool
    printed: bool = False


def print_json(value: dict[str, Any]) -> None:
    """One strict JSON object; infinities and NaN, which JSON lacks, become null."""
    context = click.get_current_context(silent=True)
    answer = context.find_object(Answer) if context else None
    if answer:
        answer.printed = True
    click.echo(json.dumps(_strict(value), indent=1, allow_nan=False))


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):  # names of files may hold bytes that are no text
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, list | tuple) else value


def console_of(width: int = 200) -> Any:
    """A rich console on standard output: as wide as the terminal, or ``width`` columns elsewhere.

    Where nobody reads on, printing raises BrokenPipeError, which is no fault.
    """
    from rich.console import Console

    class Answers(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    terminal = sys.stdout.isatty()
    return Answers(soft_wrap=not terminal, width=None if terminal else width)


def spare_sources(outputs: Iterable[str | Path], model: str | None, others: Iterable[str] = ()) -> None:
    """Refuse to write over the model (None: there is none), or over ``others`` that are read: configurations and feeds.

    Raises:
        UsageError: one of ``outputs`` is the file of one of them, by whatever path.
    """
    sources = [(model, "the model itself"), *((other, "a file that is read") for other in others)]
    there = [(Path(path), role) for path, role in sources if path and Path(path).exists()]
    for output in outputs:
        place = Path(output).resolve()  # folders on its way may have to be made first
        for path, role in there if place.exists() else ():
            if place.samefile(path):
                raise UsageError(f"writing '{output}' would overwrite {role}", hint="give the result another place")


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A stage display on standard error, on a terminal only; what it yields is called with a stage's name."""
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    from rich.console import Console

    from npusim.kernels.store import set_progress

    with Console(stderr=True).status("starting") as status:
        former = set_progress(lambda name, index, count: status.update(f"compiling kernel {index + 1} of {count} …"))
        try:
            yield lambda name: status.update(f"{name} …")
        finally:
            set_progress(former)


def with_notes(stage: Callable[[str], None]) -> Callable[[str, Any], None]:
    """A hook on the compiler's stages: it tells ``stage`` their names, and prints what the front end assumed about the
    model, once each, to standard error (the gears of one model assume the same)."""
    printed: set[str] = set()

    def hook(name: str, value: Any) -> None:
        stage(name)
        for text in value.notes if name == "parse" else ():
            if text not in printed:
                printed.add(text)
                click.echo(f"note: {text}", err=True)

    return hook
