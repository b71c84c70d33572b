"""Concrete input shapes: what the model declares, what the caller says, and what may be assumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from metadef.error import ModelError, OperatorError, Problem, UsageError, suggest

OPEN = -1
"""What exporters write for a dimension without a size."""


@dataclass
class BoundInputs:
    """Concrete shapes by input name, values of symbolic dimensions, and remarks on what was assumed."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def bind_inputs(
    inputs: Iterable[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int]
) -> BoundInputs:
    """Give every input a concrete shape.

    A shape in ``shapes`` wins over the declared one. A symbolic dimension takes its value from ``dims``, or from
    another input that was given a shape; an open axis 0 is the batch and becomes 1.

    Raises:
        UsageError: a name in ``shapes`` or ``dims`` does not occur; ranks differ; a size is negative.
        OperatorError: an input is a sequence or an optional.
        ModelError: a dimension stays open (E10049 family), with the way to give it.
    """
    inputs = list(inputs)
    odd = [value for value in inputs if not value.type.tensor_type.elem_type]
    if odd:
        kinds = [(value.name, value.type.WhichOneof("value") or "untyped") for value in odd]
        raise OperatorError([Problem("the input is no tensor", "E13025", port=name, got=kind) for name, kind in kinds])
    bound = BoundInputs(dims=dict(dims))
    _check_names(inputs, shapes, dims)
    for value in inputs:
        if value.name in shapes:
            _take_given(value, tuple(int(size) for size in shapes[value.name]), bound)
    problems: list[Problem] = []
    for value in inputs:
        if value.name not in bound.shapes:
            _resolve(value, bound, problems)
    if problems:
        raise ModelError(problems)
    return bound


def declared_inputs(
    source: str | Path | bytes | onnx.ModelProto, shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int]
) -> dict[str, list[int | str]]:
    """Sizes of a model's inputs; an open axis is its symbol, "" or -1. ``shapes`` (with -1 for what stays open) win.

    Raises:
        ModelError: the model cannot be read, or an input declares no rank and is given none.
        UsageError: names that the model does not have.
    """
    from metadef.frontend.onnx_read import read_model

    graph = read_model(source).model.graph
    constants = {item.name for item in graph.initializer} | {item.values.name for item in graph.sparse_initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    _check_names(inputs, shapes, dims)
    found: dict[str, list[int | str]] = {}
    for value in inputs:
        sizes = list(shapes[value.name]) if value.name in shapes else _declared(value)
        if sizes is None:
            raise ModelError("the input declares no shape", code="E10049", port=value.name, hint="give it by --shape")
        found[value.name] = [dims.get(size, size) if isinstance(size, str) else size for size in sizes]
    return found


@dataclass(frozen=True)
class Initializers:
    """Constants of a model: ``replaceable`` ones are inputs too, and so defaults; ``fixed`` are the names of others."""

    replaceable: dict[str, tuple[np.dtype, tuple[int, ...]]]
    fixed: frozenset[str]


def initializers(source: str | Path | bytes | onnx.ModelProto) -> Initializers:
    """What a caller may replace by ``values`` of ``load_onnx``, with element type and shape of the default.

    Raises:
        ModelError: the model cannot be read.
    """
    from metadef.frontend.onnx_read import read_model

    graph = read_model(source).model.graph
    inputs = {value.name for value in graph.input}
    found = {
        item.name: (onnx.helper.tensor_dtype_to_np_dtype(item.data_type), tuple(item.dims))
        for item in graph.initializer
        if item.name in inputs
    }
    return Initializers(found, frozenset(item.name for item in graph.initializer if item.name not in inputs))


def fed_shapes(
    source: str | Path | bytes | onnx.ModelProto, shapes: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    """Those of the shapes (input name -> shape) that settle open dimensions and contradict no declared one.

    Raises:
        ModelError: the model cannot be read.
    """
    from metadef.frontend.onnx_read import read_model

    settled = {}
    for value in read_model(source).model.graph.input:
        declared, shape = _declared(value), shapes.get(value.name)
        if shape is None or declared is None or len(declared) != len(shape):
            continue
        is_open = any(isinstance(size, str) for size in declared)
        if is_open and all(isinstance(size, str) or size == own for size, own in zip(declared, shape)):
            settled[value.name] = tuple(shape)
    return settled


def _declared(value: onnx.ValueInfoProto) -> list[int | str] | None:
    """Sizes, symbol names, or "" for an anonymous open dimension; None when not even the rank is declared."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    result: list[int | str] = []
    for dim in value.type.tensor_type.shape.dim:
        open_name = dim.dim_param if dim.dim_param not in ("?", "-1") else ""
        result.append(dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else open_name)
    return result


def lying_outputs(outputs: Iterable[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Remarks on outputs whose declared shape is not the one that follows from the operators, which is taken.

    Open dimensions agree with every size, and so does 1 on axis 0: the exporter's batch.
    """
    notes = []
    for value in outputs:
        declared, made = _declared(value), tuple(shapes[value.name])
        if declared is None:
            continue
        pairs = list(zip(declared, made))
        fits = len(declared) == len(made) and all(
            isinstance(size, str) or size in (own, 0) or (axis == 0 and size == 1)
            for axis, (size, own) in enumerate(pairs)
        )
        if not fits:
            notes.append(f"output '{value.name}' is declared as {declared}, but its operators make {list(made)}")
    return notes


def _check_names(
    inputs: list[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int]
) -> None:
    problems = []
    names = [value.name for value in inputs]
    symbols = {size for value in inputs for size in _declared(value) or () if isinstance(size, str) and size}
    for name in shapes:
        if name not in names:
            problems.append(Problem(f"the model has no input '{name}'", "E10016", hint=suggest(name, names)))
    for name, size in dims.items():
        if name not in symbols:
            hint = suggest(name, symbols) if symbols else "the model has no symbolic dimensions"
            problems.append(Problem(f"the model has no symbolic dimension '{name}'", "E10016", hint=hint))
        if size < 0:
            problems.append(Problem(f"dimension '{name}' is negative", "E10011", got=str(size)))
    if problems:
        raise UsageError(problems)


def _take_given(value: onnx.ValueInfoProto, given: tuple[int, ...], bound: BoundInputs) -> None:
    declared = _declared(value)
    if any(size < 0 for size in given):
        hint = "-1 marks what gears vary: say which with --dynamic-batch-size, --dynamic-image-size or --dynamic-dims"
        raise UsageError(f"input '{value.name}' has a negative size", code="E10011", got=str(given), hint=hint)
    if declared is not None and len(declared) != len(given):
        raise UsageError(
            f"input '{value.name}' has another rank",
            code="E10049",
            expected=f"{len(declared)} axes {declared}",
            got=str(given),
        )
    for symbol, size in zip(declared or (), given):
        if isinstance(symbol, str) and symbol and bound.dims.setdefault(symbol, size) != size:
            raise UsageError(
                f"dimension '{symbol}' is given two sizes",
                code="E10001",
                port=value.name,
                expected=str(bound.dims[symbol]),
                got=str(size),
            )
    bound.shapes[value.name] = given


def _resolve(value: onnx.ValueInfoProto, bound: BoundInputs, problems: list[Problem]) -> None:
    declared = _declared(value)
    if declared is None:
        example = f"shapes={{'{value.name}': (1, …)}} or --shape {value.name}=1,…"
        problems.append(Problem("the input declares no shape", "E10049", port=value.name, hint=example))
        return
    stated = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    if min(stated, default=0) < OPEN:
        expected = f"sizes of 0 or more, or {OPEN} for an open dimension"
        text, hint = "the input declares a negative size", f"--shape {value.name}=… sets it right"
        problems.append(Problem(text, "E10011", port=value.name, expected=expected, got=str(stated), hint=hint))
        return
    sizes: list[int] = []
    for axis, size in enumerate(declared):
        if isinstance(size, str) and size in bound.dims:
            size = bound.dims[size]
        elif isinstance(size, str) and axis == 0:
            bound.notes.append(f"input '{value.name}': open batch dimension {size or 0!r} taken as 1")
            if size:
                bound.dims[size] = 1
            size = 1
        elif isinstance(size, str):
            problems.append(_open_dimension(value.name, declared, axis, size))
            continue
        sizes.append(size)
    bound.shapes[value.name] = tuple(sizes)


def _open_dimension(name: str, declared: list[int | str], axis: int, symbol: str) -> Problem:
    shown = [size if size != "" else "?" for size in declared]
    sample = ",".join(str(size) if isinstance(size, int) else "…" for size in declared)
    by_shape = f"shapes={{'{name}': ({sample})}} or --shape {name}={sample}"
    hint = f"dims={{'{symbol}': …}} or --dim {symbol}=…; or {by_shape}" if symbol else by_shape
    return Problem(
        f"axis {axis} has no size", "E10049", port=name, expected="a concrete shape", got=str(shown), hint=hint
    )
