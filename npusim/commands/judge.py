"""Judging a model: ``npusim compare | check | diff | bisect``. They leave with 1 when the judgement is bad."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from npusim.commands.options import feeds_of, input_options, json_option, model_options, session_options
from npusim.commands.output import console_of, print_json, progress

if TYPE_CHECKING:
    import numpy as np

    from npusim.session import SessionOptions


@click.command()
@click.argument("model", type=click.Path(dir_okay=False))
@model_options
@input_options
@click.option(
    "--limit", default=1e-3, show_default=True, help="Largest relative L2 of one operator against its own reference."
)
@click.option(
    "--cosine",
    "cosine_limit",
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
    threads: int,
    **options: Any,
) -> None:
    """Compare MODEL with onnxruntime end to end, and every operator with its own reference."""
    from npusim.compare import compare_model, print_comparison

    chosen = session_options(options, threads)
    with progress() as stage:
        stage("compare")
        report = compare_model(model, _feeds_for(model, inputs, seed, chosen), chosen)
    if as_json:
        print_json(report.as_json())
    else:
        print_comparison(report, console_of())
    if not report.within(limit, cosine_limit):
        sys.exit(1)


def _feeds_for(model: str, inputs: tuple[str, ...], seed: int, options: SessionOptions) -> dict[str, np.ndarray]:
    from npusim.session import InferenceSession

    return feeds_of(InferenceSession(model, options), inputs, seed)


COMMANDS = (compare,)
