"""Tasks that a benchmark case or a profile row stands for, built from descriptors, and the time they take in a row.

A :class:`Chain` is a list of kernels over named tensors; L2 keeps between them what it holds. Every kernel can also be
had as if its operator type were unknown (``left_out``): then its cost class's default list is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from metadef.cost.cube_view import B_SHARE, HF32
from metadef.cost.run import run_kernel
from metadef.cost.signature import ELEMENTWISE, ROWS
from metadef.cost.signature_view import signature_kernel
from metadef.cost.signatures import SIGNATURES, default_signature, find_signature
from metadef.cost.stages import MIXED, Mixed, Stage, vector_stage
from metadef.cost.streams import MemoryState
from metadef.dtype import DType
from metadef.format import Format, TensorDesc, ceil_div, round_up
from metadef.kernel import TIMING_ONLY, CubeTile, Engine, FusedOp, Kernel
from metadef.op import CostClass, find_op
from metadef.select.cube import choose_cube_kernel
from metadef.target import Target
from npusim.timing.l2 import L2
from timing_data import Microseconds, main_cause
from timing_vector_sets import vector_kernel

_KINDS = {
    CostClass.REDUCE: ROWS, CostClass.SOFTMAX: ROWS, CostClass.NORM: ROWS, CostClass.POOL: "windows",
    CostClass.MOVE: "parts", CostClass.GATHER: "picked",
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A tensor of a chain."""

    name: int
    desc: TensorDesc

    @property
    def shape(self) -> tuple[int, ...]:
        return self.desc.origin_shape

    @property
    def dtype(self) -> DType:
        return self.desc.dtype


@dataclass
class Chain:
    """Kernels one after another; ``left_out`` takes every vector operator's type as unknown."""

    target: Target
    left_out: bool = False
    count: int = 0
    steps: list[tuple[Kernel, tuple[Value, ...], tuple[Value, ...]]] = field(default_factory=list)

    def value(self, shape: Sequence[int], dtype: DType) -> Value:
        return self.hold(TensorDesc(tuple(shape), dtype))

    def hold(self, desc: TensorDesc) -> Value:
        self.count += 1
        return Value(self.count, desc)

    def vector(
        self, op_type: str, inputs: Sequence[Value], shape: Sequence[int] | None = None, dtype: DType | None = None,
        *, outputs: Sequence[TensorDesc] = (), block_dim: int | None = None, **attrs: Any,
    ) -> Value:  # fmt: skip
        """Add a vector operator; its (first) result, by default like the first input."""
        first = inputs[0] if inputs else None
        if not outputs:
            kind = dtype or (first.dtype if first else DType.FLOAT)
            outputs = (TensorDesc(tuple(first.shape if shape is None and first else shape or ()), kind),)
        results = tuple(self.hold(desc) for desc in outputs)
        kernel = vector_task(
            op_type, [item.desc for item in inputs], outputs, self.target, block_dim, self.left_out, attrs
        )
        self.steps.append((kernel, tuple(inputs), results))
        return results[0]

    def cube(self, kernel: Kernel, inputs: Sequence[Value | None], *, chosen: bool = False, **how: Any) -> Value:
        """Add a product or convolution (tile chosen here unless it is), or a mixed kernel."""
        if not chosen:
            kernel = choose_cube_kernel(kernel, self.target, cold_b=True, **how)[0]
        results = tuple(self.hold(desc) for desc in kernel.outputs)
        present = tuple(item for item in inputs if item is not None)
        self.steps.append((kernel, present, results))
        return results[0]

    @property
    def has_lists(self) -> bool:
        """Whether any kernel executes an instruction list of its operator's (a vector kernel)."""
        return any(kernel.engine is Engine.VECTOR for kernel, _, _ in self.steps)

    def us(self, protocol: str, *, warm: Sequence[bool] = (), full: bool = False) -> Microseconds:
        """Microseconds of all kernels, each with its launch. Tensors that no kernel wrote are cold, except ``warm``
        inputs of the first; ``full`` says that L2 holds results of other tasks, which leave for what these write."""
        capacity = int(self.target.value("memory.l2_bytes"))
        cache = L2(capacity)
        places: dict[int, tuple[int, int]] = {}
        place, cycles = 0, 0
        parts: dict[str, int] = {}
        for _, inputs, outputs in self.steps:
            for item in (*inputs, *outputs):
                if item.name not in places:
                    places[item.name] = (place, item.desc.payload_bytes)
                    place += item.desc.payload_bytes + 512
        if full:
            cache.touch((), [(1 << 50, capacity)])
        near = [places[item.name] for item, flag in zip(self.steps[0][1], warm) if flag]
        if near:
            cache.touch((), near)
        for kernel, inputs, outputs in self.steps:
            access = cache.touch([places[item.name] for item in inputs], [places[item.name] for item in outputs])
            cold = iter(1 - hit / max(places[item.name][1], 1) for hit, item in zip(access.hits, inputs))
            stored = sum(places[item.name][1] for item in outputs)
            share = tuple(0.0 if desc is None else next(cold, 0.0) for desc in kernel.inputs)
            memory = MemoryState(share, min(access.written_back / max(stored, 1), 1.0))
            run = run_kernel(kernel, self.target, memory, protocol=protocol)
            cycles += run.cycles
            parts["launch"] = parts.get("launch", 0) + run.launch_cycles
            for name, count in run.core.why.items():
                parts[name] = parts.get(name, 0) + count * run.waves
        us = Microseconds(cycles / self.target.clock_mhz)
        us.cause = main_cause(parts, cycles)
        return us


def vector_task(
    op_type: str, inputs: Sequence[TensorDesc], outputs: Sequence[TensorDesc], target: Target,
    block_dim: int | None = None, left_out: bool = False, attrs: dict[str, Any] | None = None,
) -> Kernel:  # fmt: skip
    """A vector kernel: our own operator, a timing-only one, or the default of the class that the shapes suggest."""
    declared = find_signature(op_type)
    kernel = None
    if not left_out:
        kernel = vector_kernel(op_type, list(inputs), list(outputs), target, block_dim)
        if kernel is None and declared is not None:
            kernel = signature_kernel(op_type, inputs, outputs, target, block_dim=block_dim)
    if kernel is not None:
        return replace(kernel, attrs={**kernel.attrs, **(attrs or {})})
    opdef = find_op(op_type)
    if opdef is not None and declared is None:
        kind = _KINDS.get(opdef.cost, ELEMENTWISE)
    else:
        kind = declared.kind if declared is not None else class_of(inputs, outputs)
    return signature_kernel(
        op_type, inputs, outputs, target, block_dim=block_dim, signature=default_signature(kind, op_type)
    )


def class_of(inputs: Sequence[TensorDesc], outputs: Sequence[TensorDesc]) -> str:
    """The cost class that the shapes of an unknown operator suggest."""
    if not inputs:
        return "written"
    sizes = [prod(desc.shape) for desc in inputs]
    result = max((prod(desc.shape) for desc in outputs), default=max(sizes))
    if result * 2 <= max(sizes):
        return ROWS
    return ELEMENTWISE if result <= 2 * max(sizes) else "parts"


def product(
    chain: Chain, a: Value, b: Value, m: int, n: int, k: int, *, batch: int = 1,
    turned: tuple[bool, bool] = (False, False), out: DType | None = None, block_dim: int | None = None,
    finish: Sequence[str] = (), packed: bool = False, listed: bool = False,
) -> Value:  # fmt: skip
    """A (batched) matrix product of values that are seen as m x k and k x n (or turned around).

    ``finish`` names what is fused behind it; ``packed`` weights are stored in FRACTAL_NZ; ``listed`` products are a
    list that vector cores deal out.
    """
    lead = (batch,) if batch > 1 else ()
    kind, flags = ("BatchMatMulV2", ("adj_x1", "adj_x2")) if lead else ("MatMulV2", ("transpose_x1", "transpose_x2"))
    first = TensorDesc((*lead, k, m) if turned[0] else (*lead, m, k), a.dtype)
    second = TensorDesc((*lead, n, k) if turned[1] else (*lead, k, n), b.dtype)
    if packed:
        second = second.stored_as(Format.FRACTAL_NZ, chain.target.c0(b.dtype))
    result = TensorDesc((*lead, m, n), out or a.dtype)
    fused = tuple(FusedOp(name) for name in finish)
    kernel = Kernel(kind, Engine.AICORE, (first, second), (result,), dict(zip(flags, turned)), fused)
    if listed:
        chosen = choose_cube_kernel(kernel, chain.target, cold_b=True)[0]
        return _joined(chain, (Stage(chosen, (0, 1), final=True),), [a, b], result, 1)
    return chain.cube(kernel, (a, b), block_dim=block_dim)


def _joined(chain: Chain, stages: tuple[Stage, ...], inputs: list[Value], result: TensorDesc, rounds: int) -> Value:
    """A mixed kernel of these stages."""
    descs = tuple(item.desc for item in inputs)
    attrs = {MIXED: Mixed(stages, rounds)}
    cores = max(stage.kernel.block_dim for stage in stages if stage.on_cube)
    kernel = Kernel("Joined", Engine.AICORE, descs, (result,), attrs, algorithm=TIMING_ONLY, block_dim=cores)
    return chain.cube(kernel, inputs, chosen=True)


def joined_products(chain: Chain, parts: Sequence[tuple[int, int, int, int]], dtype: DType) -> Value:
    """Products (batch, m, n, k) in one kernel, each of a result of an earlier one by its own weights."""
    inputs, stages = [], []
    for port, (batch, m, n, k) in enumerate(parts):
        lead = (batch,) if batch > 1 else ()
        a, b, c = (TensorDesc((*lead, *shape), dtype) for shape in ((m, k), (k, n), (m, n)))
        kernel = choose_cube_kernel(_plain_product(a, b, c), chain.target, cold_b=True)[0]
        inputs.append(chain.hold(b))
        stages.append(Stage(kernel, (None, port), final=port == len(parts) - 1))
    return _joined(chain, tuple(stages), inputs, stages[-1].kernel.outputs[0], 1)


def _plain_product(a: TensorDesc, b: TensorDesc, c: TensorDesc) -> Kernel:
    kind, flags = (
        ("BatchMatMulV2", ("adj_x1", "adj_x2")) if len(a.shape) > 2 else ("MatMulV2", ("transpose_x1", "transpose_x2"))
    )
    return Kernel(kind, Engine.AICORE, (a, b), (c,), dict.fromkeys(flags, False))


def widened_product(chain: Chain, a: Value, b: Value, m: int, n: int, k: int) -> Value:
    """A product by 8-bit weights that the vector cores widen into a workspace first, tile by tile."""
    wide = TensorDesc((k, n), a.dtype)
    cube = choose_cube_kernel(_plain_product(a.desc, wide, TensorDesc((m, n), a.dtype)), chain.target)[0]
    widen = vector_stage("AntiQuant", (b.desc,), wide, SIGNATURES["AntiQuant"], chain.target.vector_cores, chain.target)
    assert isinstance(cube.tile, CubeTile)
    rounds = ceil_div(k, cube.tile.k1)
    return _joined(chain, (Stage(widen, (1,)), Stage(cube, (0, None), final=True)), [a, b], cube.outputs[0], rounds)


def pixel_product(
    chain: Chain, a: Value, b: Value, m: int, n: int, pixels: int, taps: int, *, hf32: bool = False
) -> Value:
    """A product over pixels (a gradient by a filter): cores share them and add their sums up in memory. ``taps`` says
    how often an image's byte is laid out on the way to L0."""
    c0, target = chain.target.c0(a.dtype), chain.target
    pieces = min(target.cube_cores, ceil_div(pixels, 256))

    def kernel(depth: int) -> Kernel:
        first = TensorDesc((depth, m), a.dtype, Format.ND, Format.FRACTAL_NZ, c0)
        second = TensorDesc((depth, n), a.dtype, Format.ND, Format.FRACTAL_NZ, c0)
        attrs = {"transpose_x1": True, "transpose_x2": False, B_SHARE: 1.0 / taps, HF32: hf32}
        result = TensorDesc((m, n), DType.FLOAT, Format.ND, Format.FRACTAL_NZ, 16)
        return Kernel("MatMulV2", Engine.AICORE, (first, second, None), (result,), attrs)

    tile = choose_cube_kernel(kernel(round_up(ceil_div(pixels, pieces), 16)), target, block_dim=1)[0].tile
    assert isinstance(tile, CubeTile)
    whole = replace(kernel(round_up(pixels, 16)), tile=replace(tile, split_k=pieces), block_dim=pieces)
    return chain.cube(whole, (a, b), chosen=True)
