"""Judging a model: ``npusim compare | check | diff | bisect``. They leave with 1 when the judgement is bad."""

from __future__ import annotations

import sys
from typing import Any

import click

from metadef.error import UsageError
from npusim.commands.options import (
    Figure,
    bound_options,
    input_options,
    json_option,
    model_options,
    open_model,
    read_feeds,
    read_files,
    refuse_compiler_flags,
    refuse_plan_sources,
    session_options,
)
from npusim.commands.output import NARROW, console_of, print_json, progress, spare_sources

MISSES_SHOWN = 10
"""Lines that ``compare`` prints about what is outside its limits."""


@click.command()
@click.argument("model", type=click.Path(dir_okay=False))
@model_options
@input_options
@click.option(
    "--limit",
    type=Figure(0),
    default=1e-3,
    show_default=True,
    help="Largest relative L2 of one operator against its own reference; eight times it for bfloat16.",
)
@click.option(
    "--cosine",
    "cosine_limit",
    type=Figure(-1, 1),
    default=0.99,
    show_default=True,
    help="Smallest cosine of an output against onnxruntime.",
)
@json_option
def compare(
    model: str,
    inputs: tuple[str, ...],
    seed: int,
    limit: float,
    cosine_limit: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare MODEL with onnxruntime end to end, and every operator with its own reference."""
    from npusim.compare import compare_session, print_comparison

    session, feeds = open_model(model, inputs, seed, options)
    with progress() as stage:
        stage("compare")
        report = compare_session(session, feeds, None if model.endswith(".om") else model)
    if report.not_finite is not None:
        click.echo(f"npusim: {report.not_finite.text}", err=True)
    if as_json:
        print_json(report.as_json())
    else:
        print_comparison(report, console_of())
    misses = report.misses(limit, cosine_limit)
    for line in misses[:MISSES_SHOWN]:
        click.echo(line, err=True)
    if len(misses) > MISSES_SHOWN:
        click.echo(f"… and {len(misses) - MISSES_SHOWN} more", err=True)
    if misses:
        sys.exit(1)


@click.command()
@click.argument("model", type=click.Path(dir_okay=False))
@model_options
@input_options
@click.option("--golden", required=True, type=click.Path(dir_okay=False), help="The stored golden (JSON).")
@click.option("--update", is_flag=True, help="Write the golden in place of checking.")
@click.option(
    "--cosine",
    type=Figure(-1, 1),
    default=0.9999,
    show_default=True,
    help="Least cosine of an output with the golden's.",
)
@click.option("--cycles", type=Figure(), default=0.02, show_default=True, help="Relative growth of cycles allowed.")
@click.option(
    "--memory", type=Figure(), default=0.0, show_default=True, help="Relative growth of arena and weights allowed."
)
@click.option(
    "--tasks", type=Figure(), default=0.0, show_default=True, help="Relative growth of the number of tasks allowed."
)
@json_option
def check(
    model: str,
    inputs: tuple[str, ...],
    seed: int,
    golden: str,
    update: bool,
    cosine: float,
    cycles: float,
    memory: float,
    tasks: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Regression gate: MODEL's outputs, cycles, memory and tasks against a stored golden."""
    from npusim.check import Tolerance, make_golden, print_check, read_golden, write_golden
    from npusim.check import check as compare_with

    if update:
        spare_sources([golden], model, read_files(options, inputs))
    stored = None if update else read_golden(golden)
    session, feeds = open_model(model, inputs, seed, options)
    now = make_golden(session, feeds)
    if stored is None:
        path = write_golden(golden, now)
        if as_json:
            print_json({"golden": str(path), "updated": True})
        else:
            click.echo(f"wrote {path}: {len(now['outputs'])} outputs, {now['cycles']:,} cycles, {now['tasks']} tasks")
        return
    report = compare_with(stored, now, golden, Tolerance(cosine, cycles, memory, tasks))
    if as_json:
        print_json(report.as_json())
    else:
        print_check(report, console_of(NARROW))
    if not report.passed:
        sys.exit(1)


@click.command()
@click.argument("a", type=click.Path(dir_okay=False))
@click.argument("b", type=click.Path(dir_okay=False), required=False)
@model_options
@click.option("--b-soc", help="Chip of B, where it is another than A's.")
@click.option("--b-precision", type=click.Choice(["fp16", "origin"]), help="Precision of B.")
@click.option("--b-disable", "b_disabled", multiple=True, metavar="PASS", help="Pass to switch off for B alone.")
@click.option("--b-insert-op-conf", type=click.Path(dir_okay=False), help="AIPP of B, where it is another than A's.")
@json_option
def diff(
    a: str,
    b: str | None,
    b_soc: str | None,
    b_precision: str | None,
    b_disabled: tuple[str, ...],
    b_insert_op_conf: str | None,
    as_json: bool,
    threads: int,
    **options: Any,
) -> None:
    """Two models (.onnx or .om) side by side, or A under two sets of options: tasks, cycles, bytes, memory, graph."""
    from npusim.contrast import contrast, print_contrast
    from npusim.session import InferenceSession

    for path in (a, b or a):
        refuse_compiler_flags(path, options)
    if b is None and not (b_soc or b_precision or b_disabled or b_insert_op_conf):
        expected = "B, or one of --b-soc, --b-precision, --b-disable, --b-insert-op-conf"
        raise UsageError("there is nothing to compare with", expected=expected)
    other = {
        **options,
        "soc": b_soc or options["soc"],
        "precision": b_precision or options["precision"],
        "disabled": (*options["disabled"], *b_disabled),
        "insert_op_conf": b_insert_op_conf or options["insert_op_conf"],
    }
    with progress() as stage:
        stage("A")
        left = InferenceSession(a, session_options(options, threads))
        stage("B")
        right = InferenceSession(b or a, session_options(other, threads))
    found = contrast(left, right)
    if as_json:
        print_json(found.as_json())
    else:
        print_contrast(found, console_of(NARROW))


@click.command()
@click.argument("model", type=click.Path(dir_okay=False))
@model_options
@input_options
@click.option("--limit", type=Figure(0), default=1e-2, show_default=True, help="Relative L2 that an output may be off.")
@json_option
def bisect(
    model: str, inputs: tuple[str, ...], seed: int, limit: float, as_json: bool, threads: int, **options: Any
) -> None:
    """Find the compiler pass that costs MODEL its accuracy, by the operators' references (no device involved)."""
    from npusim.bisect import bisect_model, print_bisection

    if model.endswith(".om"):
        hint = "give the .onnx file that it was made from; `npusim compare` takes the .om layer by layer"
        raise UsageError(f"'{model}' is compiled already: its passes have run", hint=hint)
    refuse_plan_sources(model)
    compile_options = bound_options(model, inputs, options, threads).compile_options()
    with progress() as stage:
        stage("bisect")
        found = bisect_model(model, read_feeds(inputs) or None, compile_options, limit=limit, seed=seed)
    if as_json:
        print_json(found.as_json())
    else:
        print_bisection(found, console_of(NARROW))
    if found.culprit:
        sys.exit(1)


COMMANDS = (compare, check, diff, bisect)
