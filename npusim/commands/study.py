"""Looking closer: ``npusim align | explain | ops``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metadef.error import UsageError
from npusim.commands.options import (
    input_options,
    json_option,
    memory_options,
    model_options,
    open_model,
    session_options,
)
from npusim.commands.output import NARROW, console_of, print_json, progress

if TYPE_CHECKING:
    from npusim.align import AlignStudy

MEASURED_SOC = "Ascend910B1"
"""The chip that most published effects were measured on."""


@click.command()
@click.argument("model", type=click.Path(dir_okay=False), required=False)
@model_options
@input_options
@click.option(
    "--tensors", "pattern", metavar="PATTERN", help="Which tensors move; all feature maps of the arena if absent."
)
@click.option(
    "--residues",
    default="0,256,64,32,16,element",
    show_default=True,
    help="Addresses modulo 512 to try; 'element' is one element of the tensor.",
)
@click.option("--rows", is_flag=True, help="Also every operator with rows on and off 32 bytes.")
@click.option("--micro", is_flag=True, help="Single copies beside their published slowdown; needs no MODEL.")
@click.option(
    "--top", default=20, show_default=True, type=click.IntRange(1), help="Show the N operators that lose most."
)
@click.option("--out", type=click.Path(file_okay=False), help="Write alignment.png and alignment.json here.")
@json_option
def align(
    model: str | None,
    inputs: tuple[str, ...],
    seed: int,
    pattern: str | None,
    residues: str,
    rows: bool,
    micro: bool,
    top: int,
    out: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """What misaligned addresses cost MODEL: tensors are planned off the 512-byte line, run and timed again.

    Values must not change: every task's result is compared with the aligned run bit for bit.
    """
    if model is None and not micro:
        raise UsageError("there is no model to study", expected="MODEL, or --micro")
    from npusim.align import align_session
    from npusim.align_study import row_study
    from npusim.report.alignment import print_rows, print_study

    answer: dict[str, Any] = {}
    if micro:
        answer["micro"] = _micro(options["soc"] or MEASURED_SOC, as_json)
    if model is not None:
        session, feeds = open_model(model, inputs, seed, options)
        with progress() as stage:
            study = align_session(session, feeds, pattern=pattern, residues=residues.split(","), on_stage=stage)
        answer.update(study.as_json())
        if not as_json:
            print_study(study, console_of(NARROW), top=top)
        if rows:
            costs = row_study(session, feeds)
            answer["rows"] = [vars(row) for row in costs]
            answer["equal"] &= not any(row.values == "different" for row in costs)
            if not as_json:
                print_rows(costs, console_of(NARROW), top=top)
        if out is not None:
            answer["files"] = _write(study, answer, Path(out), as_json)
    if as_json:
        print_json(answer)
    if not answer.get("equal", True):
        sys.exit(1)


def _micro(soc: str, as_json: bool) -> list[dict[str, Any]]:
    from metadef.target import load_target
    from npusim.align_micro import micro_effects
    from npusim.report.alignment import print_micro

    target = load_target(soc)
    effects = micro_effects(target)
    if not as_json:
        print_micro(target.soc, effects, console_of(NARROW))
    return [{**vars(effect), "ratio": effect.ratio} for effect in effects]


def _write(study: AlignStudy, answer: dict[str, Any], folder: Path, as_json: bool) -> list[str]:
    from metadef.files import write_text
    from npusim.report.alignment import alignment_figure
    from npusim.report.pictures import save_figure

    files = [
        write_text(folder / "alignment.json", json.dumps(answer, indent=1) + "\n"),
        save_figure(alignment_figure(study), folder / "alignment.png"),
    ]
    if not as_json:
        for path in files:
            click.echo(f"wrote {path}")
    return [str(path) for path in files]


@click.command()
@click.argument("model", type=click.Path(dir_okay=False))
@click.argument("node", required=False)
@model_options
@memory_options
@json_option
def explain(model: str, node: str | None, as_json: bool, threads: int, **options: Any) -> None:
    """Explain a NODE of MODEL (a source node, task or tensor): what became of it and why, where it lies, what it costs.

    Without NODE: a summary of the network.
    """
    from npusim.explain import Explainer
    from npusim.report.explanation import print_explanation, print_network

    with progress() as stage:
        stage("compile")
        explainer = Explainer(model, session_options(options, threads))
    console = console_of(NARROW)
    if node is None:
        summary = explainer.network()
        if as_json:
            print_json(summary)
        else:
            print_network(summary, console)
        return
    explanation = explainer.node(node)
    if as_json:
        print_json(explanation.as_json())
    else:
        print_explanation(explanation, console)


@click.command()
@click.argument("op_type", metavar="[TYPE]", required=False)
@json_option
def ops(op_type: str | None, as_json: bool) -> None:
    """What can run: Ascend operators with their ports, types and formats, and the ONNX types that map to them.

    With TYPE: the declaration of one Ascend operator, or the rules of one ONNX type.
    """
    from npusim.coverage import coverage, one_type
    from npusim.report.coverage import print_coverage, print_type

    table = coverage() if op_type is None else one_type(op_type)
    if as_json:
        print_json(table)
    elif op_type is None:
        print_coverage(table, console_of(NARROW))
    else:
        print_type(table, console_of(NARROW))


COMMANDS = (align, explain, ops)
