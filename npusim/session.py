"""The front door: compile or load a model, feed it, read its results, cycles and memory plan.

An ``.onnx`` model goes through the compiler first; an ``.om`` file is mapped and run as it is, without importing any
part of the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metadef.dtype import DType
from metadef.error import UsageError
from metadef.flow import task_path
from metadef.gears import GearChoice, parse_gears
from metadef.model import Model, load_om
from metadef.program import Binding, Program
from metadef.target import Target, chip_of, load_target
from npusim.device import check_output_names, named_arrays, public_type
from npusim.gears import GearBox
from npusim.loaded import LoadedProgram, TaskRun
from npusim.onchip import check_on_chip
from npusim.variants import Variants

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from metadef.aipp import AippOp
    from metadef.compiler import Compilation, CompileOptions, StageHook
    from metadef.memory.plan import MemoryPlan
    from metadef.memory_pool import PoolStats
    from metadef.rewrite import PassReport
    from npusim.elastic import ElasticProgram, Shapes
    from npusim.profile import Profile, TaskProfile

_ONNX_TYPE_NAMES = {DType.FLOAT: "float", DType.DOUBLE: "double"}


@dataclass(frozen=True)
class SessionOptions:
    """How to compile and run.

    ``soc`` and ``precision`` (``fp16`` or ``origin``) default to Ascend910B3 and fp16, and for an ``.om`` file to what
    it was compiled for. ``threads`` 0 uses every CPU of the process. ``numerics`` ``exact`` keeps the error of direct
    summation, ``fast`` allows Winograd F(4x4) and, for large windows, Fourier transforms. ``deterministic`` uses direct
    algorithms only, so that results are bit-equal on every chip. ``conv`` is the algorithm of convolutions on the chip
    (``metadef.winograd.CONV_CHOICES``, None: direct); ``numerics`` says how this computer may carry tasks out that name
    the direct one. ``profile`` computes cycles when the session is made (else at the first look at ``.profile``).
    ``checked`` finds reads of unwritten memory. ``shapes`` and ``dims`` bind inputs and symbolic dimensions; ``values``
    fixes inputs for good, and replaces initializers that are inputs too. ``dynamic_batch_size`` ("1,2,4"),
    ``dynamic_image_size`` ("320,320;480,480") and ``dynamic_dims`` ("1,128;1,256") are ATC's gears; ``padding`` says
    which axes a run may pad up to the nearest gear: ``batch``, ``all`` or ``none``. ``elastic`` compiles shapes that no
    gear holds when they come. Weights of at least ``stream_weights`` bytes are loaded just before their use (None: all
    stay in device memory). ``no_reuse`` names operators whose results keep their memory; ``reuse=False`` is GE's
    disable_reuse_memory. ``aipp`` are the blocks of an AIPP configuration (``metadef.aipp.read_insert_op_conf``): their
    inputs take pictures, uint8 of the source's size.
    """

    soc: str | None = None
    precision: str | None = None
    threads: int = 0
    numerics: str = "exact"
    deterministic: bool = False
    disabled_passes: frozenset[str] = frozenset()
    conv: str | None = None
    profile: bool = False
    checked: bool = False
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    dynamic_batch_size: str = ""
    dynamic_image_size: str = ""
    dynamic_dims: str = ""
    padding: str = "batch"
    elastic: bool = False
    stream_weights: int | None = None
    no_reuse: tuple[str, ...] = ()
    reuse: bool = True
    aipp: tuple[AippOp, ...] = ()

    def compile_options(self) -> CompileOptions:
        """What of this concerns the compiler. Raises UsageError for an unknown precision and options at odds."""
        from metadef.compiler import CompileOptions

        if self.deterministic and self.conv not in (None, "direct"):
            hint = "leave one of the two out: deterministic allows direct algorithms only"
            raise UsageError(
                "Winograd's algorithm is not deterministic across chips", got=f"conv={self.conv}", hint=hint
            )
        if self.elastic and self.aipp:
            hint = "leave one of the two out, or give dynamic_batch_size the batches that come"
            text = "elastic does not go with AIPP: pictures are of one size, which says no other shape of the model"
            raise UsageError(text, hint=hint)
        return CompileOptions(
            soc=self.soc or CompileOptions.soc,
            precision=self.precision or CompileOptions.precision,
            disabled_passes=frozenset(self.disabled_passes),
            conv=self.conv or CompileOptions.conv,
            stream_weights=self.stream_weights,
            no_reuse=tuple(self.no_reuse),
            reuse=self.reuse,
            inplace=self.reuse,
            aipp=tuple(self.aipp),
            shapes=self.shapes,
            dims=self.dims,
            values=self.values,
            gears=parse_gears(self.dynamic_batch_size, self.dynamic_image_size, self.dynamic_dims),
        )


@dataclass(frozen=True)
class NodeArg:
    """An input or output as onnxruntime describes it: ``type`` reads ``tensor(float16)``."""

    name: str
    shape: list[int]
    type: str

    @property
    def dtype(self) -> np.dtype:
        """The NumPy type of the array. bfloat16 is that of ml_dtypes; its bits in uint16 are taken as feeds too."""
        label = self.type.removeprefix("tensor(").removesuffix(")")
        return public_type(DType.parse({"float": "float32", "double": "float64"}.get(label, label)))


class InferenceSession:
    """A model on a simulated chip.

    Args:
        source: path of an ``.onnx`` or ``.om`` file, bytes or ModelProto of an ONNX model, a metadef Graph, or a Model.
        options: see :class:`SessionOptions`.
        on_stage: called as ``on_stage(name, value)`` after every stage of the compiler, as in ``compile_model``.

    Raises:
        LabError: any of its families, from a missing file to a shape that does not fit.
    """

    def __init__(
        self,
        source: str | Path | bytes | Model | Any,
        options: SessionOptions | None = None,
        *,
        on_stage: StageHook | None = None,
    ) -> None:
        self.options = options or SessionOptions()
        self._compilation: Compilation | None = None
        self.model = self._make_model(source, on_stage)
        self.target = self._compilation.target if self._compilation else chip_of(self.model.soc, self.options.soc)
        for program in self.model.programs.values():
            check_on_chip(program, self.target)
        # Neither of the two callables holds the session: it goes, threads and all, when its last user lets go.
        load = partial(_load, self.model, self.target, self.options)
        self._gears = GearBox(self.model.programs, load, self.options.padding)
        self._gear, self.program = next(iter(self.model.programs.items()))
        loaded = self._gears.loaded(self._gear)
        self.model.verified()
        if self.options.elastic and self._gears.geared and self._compilation is not None:
            from npusim.elastic import Elastic

            self._gears.elastic = Elastic(
                partial(_compile_shapes, source, self.target, self.options), loaded.device.memory
            )
        self._variant: InferenceSession | None = None
        self._variants: Variants[InferenceSession] | None = None
        if self._compilation is not None:
            self._variants = _variants(source, self.options)
        self.gear_choice: GearChoice | None = None
        self._profiles: dict[tuple[str, tuple[int, ...] | None], SessionProfile] = {}
        if self.options.profile:
            _ = self.profile

    # -- running --------------------------------------------------------------------------------------------------

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, np.ndarray], run_options: Any = None
    ) -> list[np.ndarray]:
        """Results by name (all when None or empty), as new arrays. Threads may call it; runs follow one another.

        Feeds may be anything that NumPy makes an array of. A feed for an initializer that is an input too replaces it
        in this run: the model is compiled for that value, once; ``program``, ``profile`` and ``loaded`` follow.
        ``run_options`` is taken so that onnxruntime callers fit; nothing reads it.

        Raises:
            UsageError: names, shapes or element types do not fit. DeviceFault: a task stopped the device.
            HostMemoryError: this computer has not enough free memory for the first run.
        """
        feeds = self._choose_variant(named_arrays(self.model.program.inputs, feeds))
        if self._variant is not None:
            return self._variant.run(output_names, feeds)
        output_names = output_names or None
        names = [binding.name for binding in self.program.outputs]
        check_output_names(output_names or (), names)
        if not self._gears.geared:
            return self.loaded.run(feeds, output_names)
        choice = self.use_gear(feeds)
        outputs = self._gears.loaded(choice.key).run(self._gears.pad(feeds, choice), output_names)
        wanted = names if output_names is None else output_names
        return [self._gears.cut(name, array, feeds, choice) for name, array in zip(wanted, outputs)]

    def use_gear(self, feeds: Mapping[str, np.ndarray]) -> GearChoice:
        """Take the nearest gear that holds these feeds, as a run does: ``program``, ``profile`` and ``loaded`` follow.

        Raises:
            UsageError: too large for every gear, or padding is needed and not allowed.
        """
        choice = self._gears.choose(feeds)
        self.gear_choice, self._gear = choice, choice.key
        self.program = self.loaded.program
        return choice

    def run_layers(self, feeds: Mapping[str, np.ndarray]) -> Iterator[TaskRun]:
        """Execute one task after another and yield each with copies of its operands before and results after it."""
        feeds = self._choose_variant(named_arrays(self.model.program.inputs, feeds))
        if self._variant is not None:
            return self._variant.run_layers(feeds)
        if self._gears.geared:
            feeds = self._gears.pad(feeds, self.use_gear(feeds))
        return self.loaded.run_layers(feeds)

    def get_inputs(self) -> list[NodeArg]:
        """Inputs in the model's order; with gears those of the largest one."""
        return [_node_arg(binding) for binding in self.model.program.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(binding) for binding in self.model.program.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that a run may be fed other values for; none for a compiled model."""
        found = self._variants.replaceable.items() if self._variants is not None else ()
        return [NodeArg(name, list(shape), _type_name(DType.from_numpy(dtype))) for name, (dtype, shape) in found]

    def _choose_variant(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Take the session whose initializers have the values fed for them, and give the feeds of true inputs."""
        inputs = {binding.name for binding in self.model.program.inputs}
        values = {name: array for name, array in feeds.items() if name not in inputs}
        if values and self._variants is not None:
            values = self._variants.known(values)
        before, self._variant = self._variant, None
        if values and self._variants is not None:
            self._variant = self._variants.take(values)
        if self._variant is not before:
            self.program = self.loaded.program
            self._profiles.clear()
        return {name: array for name, array in feeds.items() if self._variant is None or name not in values}

    def close(self) -> None:
        """Stop the worker threads; the session cannot run afterwards."""
        self._gears.close()

    # -- what was made --------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> LoadedProgram:
        """The program on its device: memory, host plans, executor."""
        if self._variant is not None:
            return self._variant.loaded
        return self._gears.loaded(self._gear)

    @property
    def pool_stats(self) -> PoolStats | None:
        """Counts of the pool that shapes beyond the gears live in; None without ``elastic``."""
        return self._gears.elastic.pool.stats if self._gears.elastic else None

    @property
    def trace(self) -> tuple[int, ...]:
        """Ids of the tasks of the last run, in order; before any run those of a path that takes every first side."""
        if self.program.is_straight:
            return tuple(task.id for task in self.program.tasks)
        ran = self.loaded.trace
        return tuple(task_path(self.program.tasks, {}, turns=1)) if ran is None else ran

    @property
    def profile(self) -> SessionProfile:
        """Cycles and bytes of a run on the chip, computed at the first look; where a program jumps, of the last run."""
        key = (self._gear, None if self.program.is_straight else self.trace)
        if key not in self._profiles:
            self._profiles = {old: made for old, made in self._profiles.items() if old[0] != self._gear}
            self._profiles[key] = self._time()
        return self._profiles[key]

    def task_rows(self) -> dict[int, TaskProfile]:
        """A row of the profile for every task by id, its runs added up; off the path that was timed, one run's."""
        from npusim.timing import time_program

        rows = {row.task: row for row in self.profile.data.by_task().tasks}
        rest = [task.id for task in self.program.tasks if task.id not in rows]
        return rows | {row.task: row for row in time_program(self.program, self.target, rest).tasks}

    @property
    def compilation(self) -> Compilation:
        """Everything the compiler made. Raises UsageError for a session on an ``.om`` file or a ready Model."""
        if self._compilation is None:
            hint = "make the session from the .onnx file to see graph, schedule, plan and pass report"
            raise UsageError("this session was made from a compiled model and knows no compilation", hint=hint)
        return self._compilation

    @property
    def plan(self) -> MemoryPlan:
        """The memory plan. Raises UsageError for a session on a compiled model."""
        return self.compilation.plan

    @property
    def compile_report(self) -> PassReport:
        """What the passes did and refused. Raises UsageError for a session on a compiled model."""
        return self.compilation.report

    def _time(self) -> SessionProfile:
        from npusim.timing import time_program

        return SessionProfile(time_program(self.program, self.target, self.trace), self.program, self.target)

    def _make_model(self, source: Any, on_stage: StageHook | None) -> Model:
        if isinstance(source, Model):
            return self._checked_model(source)
        if isinstance(source, str | Path) and str(source).endswith(".om"):
            return self._checked_model(load_om(Path(source), beside=True))
        from metadef.compiler import compile_model
        from npusim.spill import spill

        self._compilation = compile_model(source, self.options.compile_options(), on_stage=on_stage)
        spill(self._compilation)
        return self._compilation.model

    def _checked_model(self, model: Model) -> Model:
        """Refuse options that a compiled model can no longer follow."""
        program = model.program
        hint = "compile the .onnx file again with these options"
        soc = self.options.soc and load_target(self.options.soc).soc
        for name, wanted, has in (("soc", soc, model.soc), ("precision", self.options.precision, program.precision)):
            if wanted is not None and wanted != has:
                text = f"the model was compiled for another {name}"
                raise UsageError(text, expected=wanted, got=has, hint=hint)
        for name in (
            "disabled_passes",
            "conv",
            "shapes",
            "dims",
            "values",
            "dynamic_batch_size",
            "dynamic_image_size",
            "dynamic_dims",
            "stream_weights",
            "no_reuse",
            "elastic",
            "aipp",
        ):
            if getattr(self.options, name):
                raise UsageError(f"option '{name}' has no meaning for a compiled model", hint=hint)
        return model


class SessionProfile:
    """Cycles, bytes and pictures of a session's program. ``data`` is the profile, task by task."""

    def __init__(self, data: Profile, program: Program, target: Target) -> None:
        self.data = data
        self.program = program
        self.target = target

    @property
    def tasks(self) -> tuple[TaskProfile, ...]:
        """One row a task, in order."""
        return self.data.tasks

    @property
    def cycles(self) -> int:
        """Cycles from the first launch to the last task's end."""
        return self.data.cycles

    @property
    def us(self) -> float:
        """The same in microseconds."""
        return self.data.us

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes per path (``GM->L1``, ``L0C->GM``…) over all tasks and cores, and what met HBM and L2."""
        totals: dict[str, int] = {}
        for task in self.tasks:
            for path, count in task.bytes.items():
                totals[path] = totals.get(path, 0) + count
        totals["HBM read"] = sum(task.hbm_read_bytes for task in self.tasks)
        totals["HBM write"] = sum(task.hbm_write_bytes for task in self.tasks)
        totals["L2 hit"] = sum(task.l2_hit_bytes for task in self.tasks)
        return totals

    def plot_timeline(self) -> Figure:
        """Pipes of the slowest core over time."""
        from npusim.report.pictures import timeline_figure

        return timeline_figure(self.data)

    def plot_memory(self) -> Figure:
        """Who lies where and when in the arena."""
        from npusim.report.pictures import memory_figure

        return memory_figure(self.program)

    def plot_traffic(self) -> Figure:
        """Bytes through global memory over time."""
        from npusim.report.pictures import traffic_figure

        return traffic_figure(self.data)

    def plot_roofline(self) -> Figure:
        """Achieved rate against arithmetic intensity, under the chip's roofs."""
        from npusim.report.pictures import roofline_figure

        return roofline_figure(self.data, self.target)


def _compile_shapes(source: Any, target: Target, options: SessionOptions, shapes: Shapes) -> tuple[Program, np.ndarray]:
    """Program and weights for input shapes that no gear holds."""
    from metadef.compiler import compile_model

    model = compile_model(source, replace(options.compile_options(), gears=None, shapes=shapes)).model
    check_on_chip(model.program, target)
    return model.program, model.weights


def _load(
    model: Model,
    target: Target,
    options: SessionOptions,
    program: Program,
    beside: LoadedProgram | None,
    elastic: ElasticProgram | None = None,
) -> LoadedProgram:
    return LoadedProgram(
        program,
        elastic.weights if elastic else model.weights,
        overflow=target.overflow,
        threads=options.threads,
        numerics=options.numerics,
        deterministic=options.deterministic,
        checked=options.checked,
        beside=beside,
        memory=elastic.memory if elastic else None,
    )


def _node_arg(binding: Binding) -> NodeArg:
    desc = binding.operand.desc
    return NodeArg(binding.name, list(desc.origin_shape), _type_name(desc.dtype))


def _type_name(dtype: DType) -> str:
    return f"tensor({_ONNX_TYPE_NAMES.get(dtype, dtype.label)})"


def _variants(source: Any, options: SessionOptions) -> Variants[InferenceSession] | None:
    """Sessions with other values of initializers; None for a graph, which has none."""
    from metadef.graph import Graph

    return None if isinstance(source, Graph) else Variants(source, partial(_with_values, source, options))


def _with_values(source: Any, options: SessionOptions, values: Mapping[str, np.ndarray]) -> InferenceSession:
    return InferenceSession(source, replace(options, values={**options.values, **values}))
