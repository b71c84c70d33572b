"""Compiling for gears: one compilation each, merged into one model over one arena and one set of weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from metadef.error import UsageError
from metadef.gear_merge import merge_programs
from metadef.gears import KIND_ATTR, GearSpec, gear_shapes
from metadef.graph import Graph
from metadef.model import Model

if TYPE_CHECKING:
    from metadef.compiler import Compilation, CompileOptions, StageHook


def gear_options(source: Any, options: CompileOptions) -> dict[str, CompileOptions]:
    """Options that compile ``source`` for every gear of ``options.gears``, by the gear's key, largest first.

    Raises:
        UsageError: the source has its shapes already, or the gears do not fit its open dimensions.
    """
    if isinstance(source, Graph):
        raise UsageError("a graph has its shapes already: gears need a model", hint="pass the ONNX file")
    assert options.gears is not None
    from metadef.frontend.onnx_bind import declared_inputs

    shapes = {name: tuple(shape) for name, shape in options.shapes.items()}
    declared = declared_inputs(source, shapes, options.dims)
    fixed = {name: shape for name, shape in shapes.items() if min(shape, default=0) >= 0}
    gears = gear_shapes(options.gears, declared)
    return {key: replace(options, gears=None, shapes={**fixed, **bound}) for key, bound in gears.items()}


def compile_gears(source: Any, options: CompileOptions, on_stage: StageHook | None = None) -> Compilation:
    """Compile every gear and merge them: the compilation of the largest gear, its model holding all programs.

    Raises:
        LabError: whatever the compiler says of one gear.
    """
    from metadef.compiler import compile_model

    spec: GearSpec | None = options.gears
    assert spec is not None
    made = {key: compile_model(source, each, on_stage=on_stage) for key, each in gear_options(source, options).items()}
    programs, weights = merge_programs([(key, item.model.program, item.model.weights) for key, item in made.items()])
    first = next(iter(made.values()))
    attrs = {**first.model.attrs, KIND_ATTR: spec.kind}
    model = Model(first.model.name, first.model.soc, first.graph, weights, programs, attrs)
    seconds = {
        stage: sum(item.stage_seconds.get(stage, 0.0) for item in made.values()) for stage in first.stage_seconds
    }
    return replace(first, model=model, options=options, stage_seconds=seconds, gears=made)
