"""Options that commands share, and what they turn into: session options, a session, its feeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from metadef.error import UsageError
from npusim.commands.output import progress, with_notes

if TYPE_CHECKING:
    import numpy as np

    from metadef.aipp import AippOp
    from npusim.session import InferenceSession, SessionOptions

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_SOC = "Ascend910B3"
GEAR_OPTIONS = ("dynamic_batch_size", "dynamic_image_size", "dynamic_dims", "padding", "elastic")


OFFLINE_FLAGS = {
    "disabled": "--disable", "switch_file": "--fusion-switch-file", "conv": "--conv", "dims": "--dim",
    "shapes": "--shape", "stream_weights": "--stream-weights", "no_reuse_op": "--no-reuse-op", "no_reuse": "--no-reuse",
    "elastic": "--elastic", "insert_op_conf": "--insert-op-conf",
    **{name: "--" + name.replace("_", "-") for name in GEAR_OPTIONS[:3]},
}  # fmt: skip
"""Flags that steer the compiler, by the name of their value."""
_PLAN_FLAGS = ("stream_weights", "no_reuse_op", "no_reuse", *GEAR_OPTIONS)
"""Those of them that concern the memory plan; of gears the planner says itself what it needs for them."""


class Figure(click.FloatRange):
    """A number within limits that is not NaN: every comparison with that one would hold."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number to compare with.", param, ctx)
        return found


def refuse_compiler_flags(model: str, options: dict[str, Any]) -> None:
    """Raises UsageError for flags that an offline model can no longer follow, all of them at once."""
    if model.endswith(".om"):
        _refuse_flags(model, "is compiled already", options)


def refuse_schedule_flags(source: str, options: dict[str, Any]) -> None:
    """Raises UsageError for flags that come too late for a case, a dump or an offline model that is to be planned: all
    that steer the compiler up to its schedule."""
    from metadef.plan_source import has_fixed_shapes

    if has_fixed_shapes(source):
        left = {name: value for name, value in options.items() if name not in _PLAN_FLAGS}
        _refuse_flags(source, "holds its graph or schedule already", left)


def _refuse_flags(model: str, why: str, options: dict[str, Any]) -> None:
    given = [flag for name, flag in OFFLINE_FLAGS.items() if options.get(name)]
    if given:
        raise UsageError(
            f"'{model}' {why}: {', '.join(given)} would have to be known to the compiler",
            hint="give the .onnx file with these options",
        )


def refuse_plan_sources(model: str) -> None:
    """Raises UsageError for what can only be planned: planner cases and dumps of GE, which hold no values."""
    if Path(model).suffix.lower() in (".onnx", ".om"):
        return
    from metadef.plan_source import has_fixed_shapes

    if has_fixed_shapes(model):
        raise UsageError(
            f"'{model}' can be planned, but not run: a planner case or a dump of GE holds no weights and no kernels",
            hint=f"`npusim plan {model}`; to run the model, give the .onnx file that it comes from",
        )


def model_options(function: F) -> F:
    """Options of every command that compiles a model."""
    for option in reversed(
        (
            click.option(
                "--soc",
                show_default=f"{DEFAULT_SOC}, or what an .om file was compiled for",
                help="Chip to compile for; see `npusim socs`.",
            ),
            click.option(
                "--precision",
                show_default="fp16, or what an .om file was compiled with",
                type=click.Choice(["fp16", "origin"]),
                help="fp16 is the real stack's default (force_fp16); origin keeps the model's types.",
            ),
            click.option(
                "--conv",
                show_default="direct",
                type=click.Choice(["direct", "auto", "winograd", "winograd_f2", "winograd_f4"]),
                help="Algorithm of 3x3 convolutions: auto takes what the chip's model says is faster, winograd forces "
                "Winograd's wherever it can serve (_f2, _f4: one tile size).",
            ),
            click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Bind a symbolic dimension."),
            click.option(
                "--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224", help="Bind an input's whole shape."
            ),
            click.option(
                "--disable", "disabled", multiple=True, metavar="PASS", help="Switch a compiler pass off by name."
            ),
            click.option(
                "--fusion-switch-file",
                "--fusion_switch_file",
                "switch_file",
                type=click.Path(dir_okay=False),
                help="Passes to switch off: lines PassName:off, or ATC's JSON form.",
            ),
            click.option(
                "--insert-op-conf",
                "--insert_op_conf",
                "insert_op_conf",
                type=click.Path(dir_okay=False),
                help="AIPP: a file of aipp_op blocks, whose inputs take pictures of bytes and are normalised on the "
                "chip.",
            ),
            click.option(
                "--numerics",
                default="exact",
                show_default=True,
                type=click.Choice(["exact", "fast"]),
                help="How this computer may compute direct convolutions: fast allows Winograd's larger tiles and, for "
                "large windows, Fourier transforms; a pixel's error then is that of its tile.",
            ),
            click.option("--threads", default=2, show_default=True, type=click.IntRange(1, 256), help="Host threads."),
        )
    ):
        function = option(function)
    return function


def memory_options(function: F) -> F:
    """Options on where tensors lie and for how long."""
    for option in (
        click.option(
            "--stream-weights",
            type=click.IntRange(1),
            metavar="BYTES",
            help="Load weights of at least this size into the arena just before their use, and count the traffic.",
        ),
        click.option(
            "--no-reuse-op",
            multiple=True,
            metavar="NAME",
            help="Results of this operator keep their memory for themselves (as OP_NO_REUSE_MEM, which is read too).",
        ),
        click.option(
            "--no-reuse", "--disable-reuse-memory", "--disable_reuse_memory", "no_reuse", is_flag=True,
            help="No memory is used twice (GE's disable_reuse_memory).",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def gear_options(function: F) -> F:
    """ATC's options for several sets of input shapes in one model, in both spellings."""
    for option in (
        click.option(
            "--dynamic-dims", "--dynamic_dims", "dynamic_dims", default="", metavar="D1,D2;D1,D2",
            help="Gears: sizes for every open dimension.",
        ),
        click.option(
            "--dynamic-image-size", "--dynamic_image_size", "dynamic_image_size", default="", metavar="H,W;H,W",
            help="Gears: heights and widths.",
        ),
        click.option(
            "--dynamic-batch-size", "--dynamic_batch_size", "dynamic_batch_size", default="", metavar="1,2,4",
            help="Gears: batch sizes; mark the open axis of a fixed model by --shape x=-1,3,224,224.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def _padding_option(function: F) -> F:
    """What a run may do with shapes that are no gear's."""
    elastic = click.option("--elastic", is_flag=True, help="Compile a shape that no gear holds when it comes.")
    return click.option(
        "--pad-to-gear",
        "padding",
        is_flag=True,
        flag_value="all",
        default="",
        help="Pad every axis with zeros up to the nearest gear (the batch always may be).",
    )(elastic(function))


def json_option(function: F) -> F:
    """The switch ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")(function)


def input_options(function: F) -> F:
    """Options of every command that runs a model."""
    for option in (
        click.option(
            "--seed",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Seed of the generated inputs, where none are given.",
        ),
        click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help="Feed an input from a file."),
    ):
        function = option(function)
    return function


def running_options(function: F) -> F:
    """MODEL, and the options of the commands that run one for its outputs or its time."""
    for option in (input_options, _padding_option, memory_options, gear_options, model_options):
        function = option(function)
    return click.argument("model", type=click.Path(dir_okay=False))(function)


def session_options(options: dict[str, Any], threads: int) -> SessionOptions:
    """From the options of :func:`model_options` and :func:`memory_options`.

    Raises UsageError for a value that cannot be read.
    """
    from npusim.session import SessionOptions

    return SessionOptions(
        soc=options["soc"],
        precision=options["precision"],
        threads=threads,
        numerics=options["numerics"],
        disabled_passes=frozenset(options["disabled"]) | _switched_off(options.get("switch_file")),
        conv=options["conv"],
        dims={name: _integer(name, value) for name, value in map(_pair, options["dims"])},
        shapes={
            name: tuple(_integer(name, item, least=-1) for item in value.split(","))
            for name, value in map(_pair, options["shapes"])
        },
        stream_weights=options.get("stream_weights"),
        no_reuse=tuple(options.get("no_reuse_op", ())),
        reuse=not options.get("no_reuse", False),
        aipp=_pictures(options.get("insert_op_conf")),
        **{name: options[name] for name in GEAR_OPTIONS if options.get(name)},
    )


def _pictures(path: str | None) -> tuple[AippOp, ...]:
    """The blocks of an AIPP configuration."""
    if path is None:
        return ()
    from metadef.aipp import read_insert_op_conf

    return read_insert_op_conf(path)


def _switched_off(path: str | None) -> frozenset[str]:
    """Passes that a switch file turns off; names that only the real stack has are told and left out."""
    if path is None:
        return frozenset()
    from metadef.fusion_switch import read_fusion_switch
    from metadef.passes import PIPELINE

    wanted = read_fusion_switch(path, PIPELINE)
    known = wanted & {item.name for item in PIPELINE}
    if unknown := sorted(wanted - known):
        click.echo(f"npusim: '{path}' switches off passes that are not here: {', '.join(unknown)}", err=True)
    return known


def open_model(
    model: str, inputs: tuple[str, ...], seed: int, options: dict[str, Any]
) -> tuple[InferenceSession, dict[str, np.ndarray]]:
    """A session and its feeds: from files where given, else generated from the seed."""
    from npusim.session import InferenceSession

    refuse_compiler_flags(model, options)
    refuse_plan_sources(model)
    threads = options.pop("threads")
    settings = bound_options(model, inputs, options, threads)
    with progress() as stage:
        session = InferenceSession(model, settings, on_stage=with_notes(stage))
    return session, feeds_of(session, inputs, seed)


def bound_options(model: str, inputs: tuple[str, ...], options: dict[str, Any], threads: int) -> SessionOptions:
    """:func:`session_options`, and open dimensions of an ONNX model bound to the shapes of the files that it is fed
    with, where neither --shape nor gears say more, and the files are no pictures for AIPP."""
    settings = session_options(options, threads)
    if not inputs or model.endswith(".om") or any(options.get(name) for name in GEAR_OPTIONS):
        return settings
    from metadef.frontend.onnx_bind import fed_shapes

    given = read_feeds(inputs).items()
    fed = {name: array.shape for name, array in given if not (settings.aipp and array.dtype == "uint8")}
    return replace(settings, shapes={**fed_shapes(Path(model), fed), **settings.shapes})


def feeds_of(session: InferenceSession, inputs: tuple[str, ...], seed: int) -> dict[str, np.ndarray]:
    """Feeds from NAME=FILE.npy texts; generated ones where no input is given (but, say, initializers are)."""
    from npusim.feeds import generate_feeds

    given = read_feeds(inputs)
    if given and not given.keys() <= {item.name for item in session.get_overridable_initializers()}:
        return given
    return {**generate_feeds(session.get_inputs(), seed), **given}


def read_files(options: dict[str, Any], inputs: tuple[str, ...] = ()) -> list[str]:
    """Paths that a command reads beside its model: configurations and NAME=FILE.npy feeds."""
    configurations = [options[name] for name in ("switch_file", "insert_op_conf") if options.get(name)]
    return configurations + [path for _, path in map(_pair, inputs)]


def read_feeds(inputs: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Arrays of NAME=FILE.npy texts."""
    from npusim.feeds import read_array

    return {name: read_array(name, path) for name, path in map(_pair, inputs)}


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.rpartition("=")
    if not sign or not name or not value:
        raise UsageError(f"cannot read '{text}'", expected="NAME=VALUE")
    return name, value


def _integer(name: str, text: str, least: int = 0) -> int:
    try:
        value = int(text)
    except ValueError:
        raise UsageError(f"'{name}' wants whole numbers", got=text) from None
    if value < least:
        raise UsageError(f"'{name}' cannot be negative", got=text)
    return value
