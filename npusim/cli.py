"""The command line: ``npusim demo | run | profile | compile | plan | align | explain | check`` and more.

Standard output carries the answer (with ``--json`` one object and nothing else: where there is no answer, its ``error``
is what standard error says too), standard error carries progress, on a terminal only. Exit codes: 0 good, 1 a check
failed or no plan fits, 2 the call, the model or the environment is at fault. The commands themselves are in
``npusim.commands``.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, NoReturn

import click

from metadef.error import LabError, Problem
from npusim.commands import build, calibrate, judge, plan, run, study
from npusim.commands.output import Answer, print_json

TRACEBACK_VARIABLE = "NPUSIM_TRACEBACK"


def main() -> None:
    """Entry point. Every fault that a user can mend leaves as a text and an exit code, never as a traceback."""
    _settle_streams()
    if not sys.warnoptions:
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's; outputs that are no numbers are told by the commands
    answer = Answer("--json" in itertools.takewhile(lambda word: word != "--", sys.argv[1:]))
    try:
        commands(standalone_mode=False, obj=answer)
    except LabError as error:
        _leave(answer, str(error), error.exit_code, error.problems)
    except click.exceptions.Exit as leaving:
        sys.exit(leaving.exit_code)
    except click.ClickException as error:
        _leave(answer, error.format_message(), 2, say=error.show)
    except (KeyboardInterrupt, click.Abort):
        _leave_interrupted(answer)
    except NobodyReads:
        sys.stderr.close()
        sys.exit(0)
    except MemoryError:
        _leave(answer, "[environment] not enough memory on this machine; try a smaller --dim or --shape", 2)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        _leave(answer, f"[environment] {error.strerror or error}{place}", 2)
    except Exception as error:
        if _was_interrupted(error):
            _leave_interrupted(answer)
        _leave_unexpected(answer, error)


class NobodyReads(Exception):
    """The reader of standard output has gone, which is no fault of anyone."""


class Commands(click.Group):
    """A group that tells a reader's leave from a failed check: click would exit with 1 for both."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise NobodyReads from None


def _settle_streams() -> None:
    """Streams that the caller closed swallow what is said; names that a terminal's encoding lacks are spelled out."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = open(os.devnull, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 (for good)
            setattr(sys, name, nowhere)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _leave(
    answer: Answer, text: str, code: int, problems: Iterable[Problem] = (), say: Callable[[], object] | None = None
) -> NoReturn:
    """Say it on standard error, and with ``--json`` as the object where none has been printed."""
    with contextlib.suppress(OSError):  # the code counts, even where nothing can be said
        say() if say else click.echo(f"npusim: {text}", err=True)
    if answer.as_json and not answer.printed:
        rows = [asdict(problem) for problem in problems]
        with contextlib.suppress(OSError):
            print_json({"error": {"message": text, "exit_code": code, "problems": rows}})
    sys.exit(code)


def _leave_interrupted(answer: Answer) -> NoReturn:
    _leave(answer, "interrupted; files already written are complete", 130)


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: libraries may turn it into one of theirs."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _leave_unexpected(answer: Answer, error: Exception) -> NoReturn:
    """A fault of ours: say where, keep the traceback for those who ask for it."""
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    _leave(
        answer,
        f"[internal] {type(error).__name__}: {error}\n  at {place.filename}:{place.lineno} in {place.name}\n"
        f"  try: {TRACEBACK_VARIABLE}=1 for the whole traceback; this is a fault of npusim, please report it",
        2,
    )


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    """``npusim VERSION``, then the CPU and the instruction set that kernels are generated for."""
    if not wanted or context.resilient_parsing:
        return
    from importlib.metadata import version

    from npusim.kernels.cpu import host

    click.echo(f"npusim {version('npusim')}\nkernels for {host().name}: {host().path}")
    context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Show the version and what kernels are compiled for, and exit.",
)  # fmt: skip
def commands() -> None:
    """An Ascend NPU laboratory without a card: a model goes in; numbers, cycles and a memory map come out."""


for _module in (run, build, plan, study, judge, calibrate):
    for _command in _module.COMMANDS:
        commands.add_command(_command)
