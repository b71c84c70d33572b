"""Host plans against the derived twin: every operator family, element type, layout and epilogue, on odd shapes.

A result may miss the float64 twin by half a unit of its own type and by what fp32 sums and functions may lose: terms
times 2**-24 of the sum of magnitudes, or a few fp32 units of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.error import DeviceFault
from metadef.format import Format, unpack
from metadef.kernel import Engine, FusedOp
from metadef.ops.numeric import narrow, widen
from metadef.ops.quantise import packed_scale
from npusim.kernels.plans import planned_types
from npusim.twin import run_twin, run_wide
from tests.npusim.mini_program import MiniTask, Value, mini_task

HALF, BRAIN, SINGLE = DType.FLOAT16, DType.BF16, DType.FLOAT
HALVES = pytest.mark.parametrize("half", [HALF, BRAIN], ids=["fp16", "bf16"])
DTYPES = pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE], ids=["fp16", "bf16", "fp32"])
NC1 = Format.NC1HWC0
Draw = Callable[..., Value]


def blocks(dtype: DType) -> int:
    return 32 // dtype.bytes


@pytest.fixture
def draw(rng: np.random.Generator) -> Draw:
    """`draw(dtype, *shape, …)`: standard normal values (small integers for integer types)."""

    def make(dtype: DType, *shape: int, low: float | None = None, **fields: Any) -> Value:
        if dtype.is_float:
            values = rng.standard_normal(shape)
            if low is not None:
                values = np.abs(values) + low
        elif dtype is DType.BOOL:
            values = rng.integers(0, 2, shape).astype(bool)
        else:
            values = rng.integers(0 if dtype.label.startswith("u") else -50, 100, shape)
        return Value(values, dtype, **fields)

    return make


def check(task: MiniTask, *, terms: int = 0, ulps: float = 4.0, scale: float = 0.0) -> None:
    """Run a task and hold it to the accuracy rule; nothing falls back, nothing outside the results is written.

    ``terms`` counts the roundings of a sum; ``scale`` is their magnitude (0: found from absolute operands).
    """
    assert not task.loaded.fallbacks
    got = task.run()
    assert task.untouched()
    kernel = task.task.kernel
    operands = [
        None if array is None or desc is None else unpack(array, desc)
        for array, desc in zip(task.inputs, kernel.inputs, strict=True)
    ]
    exact = run_wide(kernel, operands, wide=np.float64)
    twins = run_twin(kernel, task.inputs)
    for array, desc, wanted, twin in zip(got, kernel.outputs, exact, twins, strict=True):
        ours = unpack(array, desc)
        if not desc.dtype.is_float:
            assert np.array_equal(array, twin)
            continue
        bound = ulps * 2.0**-23 * np.abs(wanted) + 1e-37
        if terms:
            bound = bound + terms * 2.0**-24 * (scale or magnitudes(task, operands))
        rounded = widen(narrow(wanted, desc.dtype), desc.dtype, np.float64)
        ours = widen(ours, desc.dtype, np.float64)
        error = np.abs(ours - wanted)
        near = error <= spacing(rounded, desc.dtype) / 2 + bound
        bad = ~near & ~(np.isnan(ours) & np.isnan(wanted)) & (ours != rounded)
        assert not bad.any(), f"{bad.sum()} of {bad.size} wrong, worst {np.nanmax(error[bad])}"
        outside = np.ones(desc.shape, bool) if desc.shape == desc.origin_shape else lanes_outside(desc)
        if desc.shape != desc.origin_shape:
            assert not widen(array[outside], desc.dtype).any(), "padding lanes are not zero"


def spacing(values: np.ndarray, dtype: DType) -> np.ndarray:
    """A unit in the last place of values of a type, widened to float64."""
    with np.errstate(invalid="ignore"):
        if dtype is BRAIN:
            return np.ldexp(1.0, np.maximum(np.frexp(np.abs(values))[1] - 8, -133))
        return np.spacing(np.abs(values).astype(dtype.numpy)).astype(np.float64)


def lanes_outside(desc: Any) -> np.ndarray:
    from metadef.format import pack

    return pack(np.ones(desc.origin_shape, np.uint8), desc) == 0


def magnitudes(task: MiniTask, operands: list[np.ndarray | None]) -> np.ndarray:
    """The base operator on absolute values: the scale its fp32 sums lose accuracy at."""
    from dataclasses import replace

    kernel = replace(task.task.kernel, fused=(), inputs=task.task.kernel.inputs)
    extra = sum(item.operand is not None for item in task.task.kernel.fused)
    kernel = replace(kernel, inputs=kernel.inputs[: len(kernel.inputs) - extra])
    sizes = [
        None if array is None or desc is None else narrow(np.abs(widen(array, desc.dtype)), desc.dtype)
        for array, desc in zip(operands[: len(kernel.inputs)], kernel.inputs, strict=True)
    ]
    (result,) = run_wide(kernel, sizes, wide=np.float64)
    return np.abs(result)


# -- convolution ------------------------------------------------------------------------------------------------------

CONVOLUTIONS = {
    "3x3": ((2, 20, 9, 11), (33, 20, 3, 3), {"pads": (1, 1, 1, 1)}),
    "1x1": ((1, 70, 7, 7), (40, 70, 1, 1), {}),
    "stride, one-sided pads": ((1, 17, 10, 13), (16, 17, 3, 3), {"strides": (1, 1, 2, 2), "pads": (0, 1, 0, 1)}),
    "first layer": ((1, 3, 31, 30), (24, 3, 7, 7), {"strides": (1, 1, 2, 2), "pads": (3, 3, 3, 3)}),
    "dilated": ((1, 18, 12, 12), (8, 18, 3, 2), {"dilations": (1, 1, 2, 3)}),
    "grouped": ((1, 24, 6, 7), (36, 6, 3, 3), {"groups": 4, "pads": (1, 1, 1, 1)}),
    "depthwise": ((2, 35, 8, 9), (35, 1, 3, 3), {"groups": 35, "pads": (1, 1, 1, 1)}),
    "depthwise multiplier": ((1, 20, 8, 9), (40, 1, 3, 3), {"groups": 20, "strides": (1, 1, 2, 2)}),
    "1xN": ((1, 16, 5, 40), (16, 16, 1, 9), {"pads": (0, 0, 4, 4)}),
}
ACTIVATIONS: dict[str, tuple[FusedOp, ...]] = {
    "none": (),
    "relu": (FusedOp("Relu"),),
    "relu6": (FusedOp("Relu6"),),
    "clip": (FusedOp("ClipByValue", {"clip_value_min": -0.25, "clip_value_max": 0.5}),),
    "leaky": (FusedOp("LeakyRelu", {"negative_slope": 0.1}),),
    "sigmoid": (FusedOp("Sigmoid"),),
    "silu": (FusedOp("Swish", {"scale": 1.0}),),
    "tanh": (FusedOp("Tanh"),),
    "gelu": (FusedOp("Gelu", {"approximate": "none"}),),
}


def convolution(draw: Draw, dtype: DType, name: str, chain: tuple[FusedOp, ...] = (), **options: Any) -> MiniTask:
    x_shape, w_shape, attrs = CONVOLUTIONS[name]
    c0 = blocks(dtype)
    x = draw(dtype, *x_shape, format=NC1, c0=c0)
    weight = draw(dtype, *w_shape, format=Format.FRACTAL_Z, c0=c0, const=True)
    bias = draw(SINGLE, w_shape[0], const=True)
    attrs = {"strides": (1, 1, 1, 1), **attrs}
    return mini_task("Conv2D", [x, weight, bias], attrs, fused=chain, engine=Engine.AICORE, **options)


@DTYPES
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(draw: Draw, name: str, dtype: DType):
    _, weight, _ = CONVOLUTIONS[name]
    check(convolution(draw, dtype, name), terms=int(np.prod(weight[1:])) + 1)


@HALVES
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_convolution_with_activation(draw: Draw, half: DType, name: str):
    check(convolution(draw, half, "3x3", ACTIVATIONS[name]), terms=200)


@HALVES
@pytest.mark.parametrize("inplace", [None, 2], ids=["apart", "in place"])
def test_convolution_adds_a_residual_before_its_activation(draw: Draw, half: DType, inplace: int | None):
    x = draw(half, 1, 20, 6, 7, format=NC1, c0=16)
    weight = draw(half, 30, 20, 3, 3, format=Format.FRACTAL_Z, c0=16, const=True)
    residual = draw(half, 1, 30, 6, 7, format=NC1, c0=16)
    attrs = {"strides": (1, 1, 1, 1), "pads": (1, 1, 1, 1)}
    fused = (FusedOp("Add", operand=3), FusedOp("Relu"))
    task = mini_task(
        "Conv2D", [x, weight, None, residual], attrs, fused=fused, inplace=inplace and 3, engine=Engine.AICORE
    )
    check(task, terms=200)


def test_convolution_saturates_where_the_chip_does(draw: Draw):
    x = draw(HALF, 1, 16, 4, 4, low=200.0, format=NC1, c0=16)
    weight = draw(HALF, 16, 16, 3, 3, low=50.0, format=Format.FRACTAL_Z, c0=16, const=True)
    task = mini_task("Conv2D", [x, weight], {"strides": (1, 1, 1, 1)}, overflow="saturate")
    (result,) = task.run()
    assert np.all(result == 65504)


@pytest.mark.parametrize("name", ["3x3", "depthwise", "first layer"])
def test_results_do_not_depend_on_threads(draw: Draw, name: str):
    one = convolution(draw, HALF, name)
    many = MiniTask(_again(one, threads=3), one.task, one.inputs)
    assert np.array_equal(one.run()[0], many.run()[0])


def _again(task: MiniTask, **options: Any) -> Any:
    from npusim.loaded import LoadedProgram

    return LoadedProgram(task.loaded.program, np.array(task.loaded.device.weights), **options)


# -- matrix products --------------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("constant", [True, False], ids=["constant B", "computed B"])
def test_matmul(draw: Draw, constant: bool, transposed: tuple[bool, bool], dtype: DType):
    m, k, n = 13, 37, 29
    a = draw(dtype, *((k, m) if transposed[0] else (m, k)))
    form = {"format": Format.FRACTAL_NZ, "c0": blocks(dtype), "const": True} if constant else {}
    b = draw(dtype, *((n, k) if transposed[1] else (k, n)), **form)
    bias = draw(SINGLE, n, const=True)
    attrs = {"transpose_x1": transposed[0], "transpose_x2": transposed[1]}
    check(mini_task("MatMulV2", [a, b, bias], attrs, fused=(FusedOp("Relu"),), engine=Engine.AICORE), terms=k + 1)


BATCHES = {
    "same": ((2, 3), (2, 3)),
    "shared B": ((2, 3), ()),
    "stretched B": ((2, 3), (2, 1)),
    "stretched A": ((1, 3), (2, 1)),
    "one vector": ((), (4,)),
}


@HALVES
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("constant", [True, False], ids=["constant B", "computed B"])
@pytest.mark.parametrize("adjoint", [False, True], ids=["plain", "adjoint"])
def test_batch_matmul(draw: Draw, half: DType, adjoint: bool, constant: bool, name: str):
    front, back = BATCHES[name]
    a = draw(half, *front, *((21, 10) if adjoint else (10, 21)))
    b = draw(half, *back, *((18, 21) if adjoint else (21, 18)), const=constant)
    task = mini_task("BatchMatMulV2", [a, b], {"adj_x1": adjoint, "adj_x2": adjoint}, engine=Engine.AICORE)
    check(task, terms=21)


@HALVES
def test_matmul_takes_a_fused_row_as_bias_and_a_residual(draw: Draw, half: DType):
    a, b = draw(half, 9, 40), draw(half, 40, 24, const=True)
    row, residual = draw(half, 24, const=True), draw(half, 9, 24)
    fused = (FusedOp("Add", operand=3), FusedOp("Add", operand=4), FusedOp("Gelu", {"approximate": "none"}))
    check(mini_task("MatMulV2", [a, b, None, row, residual], fused=fused, engine=Engine.AICORE), terms=50)


# -- int8 ------------------------------------------------------------------------------------------------------------


def extremes(rng: np.random.Generator, *shape: int, heavy: bool = False, **fields: Any) -> Value:
    """int8 values; ``heavy`` ones all near an end of the range, so that sums leave float32's whole numbers."""
    values = rng.integers(120, 128, shape) if heavy else rng.integers(-128, 128, shape)
    return Value(values, DType.INT8, **fields)


@pytest.mark.parametrize("out", [8, 16], ids=["C0 of 8", "C0 of 16"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_int8_convolution_is_exact(rng: np.random.Generator, draw: Draw, name: str, out: int):
    x_shape, w_shape, attrs = CONVOLUTIONS[name]
    x = extremes(rng, *x_shape, format=NC1, c0=32)
    weight = extremes(rng, *w_shape, format=Format.FRACTAL_Z, c0=32, const=True)
    bias = Value(rng.integers(-(2**30), 2**30, w_shape[0]), DType.INT32, const=True)
    attrs = {"strides": (1, 1, 1, 1), **attrs}
    for operands in ([x, weight], [x, weight, bias]):
        check(mini_task("Conv2D", operands, attrs, engine=Engine.AICORE, out=(NC1, out), threads=2))


@pytest.mark.parametrize("name", ["images", "one"])
def test_long_int8_sums_are_cut_where_float32_would_round(rng: np.random.Generator, name: str):
    x = extremes(rng, 2 if name == "images" else 1, 300, 5, 4, heavy=True, format=NC1, c0=32)
    weight = extremes(rng, 18, 300, 3, 3, heavy=True, format=Format.FRACTAL_Z, c0=32, const=True)
    task = mini_task("Conv2D", [x, weight], {"strides": (1, 1, 1, 1)}, engine=Engine.AICORE, out=(NC1, 8))
    assert len(task.loaded.plan.calls) > 1
    check(task)
    assert int(task.run()[0].max()) > 2**24


def test_int8_groups_too_long_for_float32_run_on_the_twin(rng: np.random.Generator):
    x = extremes(rng, 1, 512, 3, 3, heavy=True, format=NC1, c0=32)
    weight = extremes(rng, 8, 256, 3, 3, heavy=True, format=Format.FRACTAL_Z, c0=32, const=True)
    attrs = {"strides": (1, 1, 1, 1), "groups": 2}
    task = mini_task("Conv2D", [x, weight], attrs, engine=Engine.AICORE, out=(NC1, 8))
    assert "grouped int8" in str(task.loaded.fallbacks)
    assert np.array_equal(task.run()[0], run_twin(task.task.kernel, task.inputs)[0])


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("constant", [True, False], ids=["constant B", "computed B"])
@pytest.mark.parametrize("k", [37, 2500])
def test_int8_matmul_is_exact(rng: np.random.Generator, k: int, constant: bool, transposed: tuple[bool, bool]):
    m, n = 13, 29
    a = extremes(rng, *((k, m) if transposed[0] else (m, k)), heavy=k > 1000)
    form = {"format": Format.FRACTAL_NZ, "c0": 32, "const": True} if constant else {}
    b = extremes(rng, *((n, k) if transposed[1] else (k, n)), heavy=k > 1000, **form)
    bias = Value(rng.integers(-(2**30), 2**30, n), DType.INT32, const=True)
    attrs = {"transpose_x1": transposed[0], "transpose_x2": transposed[1]}
    for operands in ([a, b], [a, b, bias]):
        check(mini_task("MatMulV2", operands, attrs, engine=Engine.AICORE))


@pytest.mark.parametrize("constant", [True, False], ids=["constant B", "computed B"])
def test_int8_batches(rng: np.random.Generator, constant: bool):
    a, b = extremes(rng, 2, 3, 10, 1100, heavy=True), extremes(rng, 3, 1100, 18, heavy=True, const=constant)
    check(mini_task("BatchMatMulV2", [a, b], engine=Engine.AICORE))


@pytest.mark.parametrize("shape", [(20, 1, 1), (1,)], ids=["a channel", "one"])
@pytest.mark.parametrize("blocked", [False, True], ids=["plain", "blocked"])
def test_sums_are_scaled(rng: np.random.Generator, blocked: bool, shape: tuple[int, ...]):
    scale = Value(packed_scale(rng.uniform(1e-4, 1e-2, shape)), DType.UINT64, const=True)
    form = {"format": NC1, "c0": 16} if blocked else {}
    x = Value(rng.integers(-30000, 30000, (2, 20, 3, 5)), DType.INT32, **form)
    for dtype in (HALF, BRAIN, SINGLE):
        check(mini_task("AscendDequant", [x, scale], {"dtype": dtype}))
    for dtype, offset in ((DType.INT8, -3), (DType.UINT8, 120)):
        check(mini_task("AscendRequant", [x, scale], {"dtype": dtype, "offset": offset}))


# -- pooling ----------------------------------------------------------------------------------------------------------

POOLS: dict[str, dict[str, Any]] = {
    "3x3 s2 pad 1": {"ksize": (1, 1, 3, 3), "strides": (1, 1, 2, 2), "pads": (1, 1, 1, 1)},
    "ceil": {"ksize": (1, 1, 3, 2), "strides": (1, 1, 2, 3), "pads": (1, 0, 1, 1), "ceil_mode": True},
    "global": {"ksize": (1, 1, 1, 1), "strides": (1, 1, 1, 1), "global_pooling": True},
}


@DTYPES
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("op_type", ["MaxPoolV3", "AvgPoolV2"])
def test_pooling(draw: Draw, op_type: str, name: str, dtype: DType):
    x = draw(dtype, 2, 20, 9, 11, format=NC1, c0=blocks(dtype))
    check(mini_task(op_type, [x], POOLS[name]), terms=100 if op_type == "AvgPoolV2" else 0)
    if op_type == "AvgPoolV2":
        check(mini_task(op_type, [x], {**POOLS[name], "exclusive": False}), terms=100)


@HALVES
def test_global_average(draw: Draw, half: DType):
    check(mini_task("GlobalAveragePool", [draw(half, 2, 20, 9, 11, format=NC1, c0=16)]), terms=100)


# -- element-wise -----------------------------------------------------------------------------------------------------

UNARY: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("Abs", "Ceil", "Erf", "Exp", "Floor", "HardSwish", "Mish", "Neg", "Relu", "Relu6")},
    **{name: {} for name in ("Round", "Sigmoid", "Sign", "Softplus", "Softsign", "Tanh")},
    "ClipByValue": {"clip_value_min": -0.5, "clip_value_max": 0.25},
    "Elu": {"alpha": 0.7},
    "Gelu": {"approximate": "none"},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "LeakyRelu": {"negative_slope": 0.2},
    "Swish": {"scale": 1.5},
}
POSITIVE = ("Log", "Reciprocal", "Rsqrt", "Sqrt")


@DTYPES
@pytest.mark.parametrize("op_type", [*UNARY, *POSITIVE])
def test_unary(draw: Draw, op_type: str, dtype: DType):
    low = 0.1 if op_type in POSITIVE else None
    attrs = UNARY.get(op_type, {})
    # Near its zero a line's rounded slope and intercept show.
    rule = {"terms": 2, "scale": 1.0} if op_type == "HardSigmoid" else {}
    if dtype is SINGLE:
        check(mini_task(op_type, [draw(SINGLE, 3, 77, low=low)], attrs), ulps=16, **rule)
        return
    x = draw(dtype, 2, 20, 3, 5, low=low, format=NC1, c0=16)
    check(mini_task(op_type, [x], attrs, inplace=0), ulps=16, **rule)


@HALVES
def test_gelu_by_tanh(draw: Draw, half: DType):
    check(mini_task("Gelu", [draw(half, 300)], {"approximate": "tanh"}), ulps=64)


@HALVES
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "PRelu"])
def test_binary_broadcasts(draw: Draw, half: DType, op_type: str):
    for one, other in [((2, 3, 17), (3, 1)), ((5, 7), (5, 7)), ((4, 9), ())]:
        check(mini_task(op_type, [draw(half, *one), draw(half, *other)]))
    check(mini_task(op_type, [draw(SINGLE, 2, 3, 17), draw(SINGLE, 17)]))


@HALVES
@pytest.mark.parametrize("shape", [(2, 20, 3, 5), (1, 20, 1, 1), (2, 1, 3, 5), (1, 1, 1, 1), (1, 20, 1, 5)])
@pytest.mark.parametrize("op_type", ["Mul", "RealDiv"])
def test_binary_broadcasts_over_blocks(draw: Draw, half: DType, op_type: str, shape: tuple[int, ...]):
    x = draw(half, 2, 20, 3, 5, format=NC1, c0=16)
    check(mini_task(op_type, [x, draw(half, *shape, low=0.1, format=NC1, c0=16)]))


@HALVES
@pytest.mark.parametrize("shape", [(20, 1, 1), (1,), (), (20, 3, 5), (3, 1)])
def test_plain_operands_stretch_over_blocks(draw: Draw, half: DType, shape: tuple[int, ...]):
    x = draw(half, 2, 20, 3, 5, format=NC1, c0=16)
    check(mini_task("Add", [x, draw(half, *shape, const=True)]))


@HALVES
@pytest.mark.parametrize("slot", [None, 0, 1])
def test_residual_sum_with_relu(draw: Draw, half: DType, slot: int | None):
    operands = [draw(half, 1, 35, 7, 7, format=NC1, c0=16) for _ in range(2)]
    check(mini_task("Add", operands, fused=(FusedOp("Relu"),), inplace=slot))


@HALVES
def test_long_fused_chain_rounds_once(draw: Draw, half: DType):
    fused = (
        FusedOp("Mul", operand=2),
        FusedOp("Sigmoid"),
        FusedOp("Sub", operand=3),
        FusedOp("LeakyRelu", {"negative_slope": 0.3}),
    )
    check(mini_task("Add", [draw(half, 5, 40) for _ in range(4)], fused=fused), terms=8)


@HALVES
def test_accumulate(draw: Draw, half: DType):
    check(mini_task("AccumulateNV2", [draw(half, 6, 33) for _ in range(4)]), terms=4)


def test_pow(draw: Draw):
    check(mini_task("Pow", [draw(SINGLE, 40, low=0.1), draw(SINGLE, 40)]), ulps=16)


INTEGERS = [DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_arithmetic(draw: Draw, dtype: DType):
    with np.errstate(over="ignore"):
        for op_type in ("Add", "Mul", "RealDiv", "FloorMod", "Maximum"):
            check(mini_task(op_type, [draw(dtype, 3, 40), draw(dtype, 40)]))


@HALVES
@pytest.mark.parametrize("op_type", ["Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"])
def test_comparisons(draw: Draw, half: DType, op_type: str):
    check(mini_task(op_type, [draw(half, 3, 40), draw(half, 40)]))
    check(mini_task(op_type, [draw(DType.INT64, 3, 40), draw(DType.INT64, 40)]))


@HALVES
def test_logic_and_selection(draw: Draw, half: DType):
    bools = [draw(DType.BOOL, 5, 30) for _ in range(2)]
    for op_type in ("LogicalAnd", "LogicalOr", "LogicalXor"):
        check(mini_task(op_type, bools))
    check(mini_task("LogicalNot", bools[:1]))
    check(mini_task("SelectV2", [bools[0], draw(half, 30), draw(half, 5, 1)]))
    check(mini_task("SelectV2", [bools[0], draw(DType.INT64, 5, 30), draw(DType.INT64, 1)]))


CASTS = [HALF, BRAIN, SINGLE, DType.INT8, DType.UINT8, DType.INT32, DType.INT64, DType.BOOL]


@pytest.mark.parametrize("source", CASTS, ids=str)
def test_casts(draw: Draw, source: DType):
    for target in CASTS:
        value = draw(source, 3, 37)
        values = value.values * 100 if source.is_float else value.values
        check(mini_task("Cast", [Value(values, source)], {"dst_type": target}))


@HALVES
@DTYPES
def test_batch_norm(draw: Draw, half: DType, dtype: DType):
    parameters = [draw(dtype, 20, low=0.2, const=True) for _ in range(4)]
    for x in (draw(half, 2, 20, 3, 5, format=NC1, c0=16), draw(SINGLE, 2, 20, 7)):
        gain = np.abs(parameters[0].values).max() / np.sqrt(parameters[3].values.min())
        scale = (np.abs(x.values).max() + parameters[2].values.max()) * gain + parameters[1].values.max()
        check(mini_task("BNInfer", [x, *parameters]), terms=4, scale=scale)


# -- rows -------------------------------------------------------------------------------------------------------------


@HALVES
@pytest.mark.parametrize("op_type", ["SoftmaxV2", "LogSoftmaxV2"])
@pytest.mark.parametrize("axes", [(-1,), (0,), (1,), (1, 2)])
def test_softmax(draw: Draw, half: DType, axes: tuple[int, ...], op_type: str):
    check(mini_task(op_type, [draw(half, 3, 5, 37)], {"axes": axes}), terms=40, scale=4.0)
    check(mini_task(op_type, [draw(SINGLE, 3, 5, 37)], {"axes": axes}), ulps=32, terms=40, scale=4.0)


@pytest.mark.parametrize(
    "kinds", [(HALF, HALF), (HALF, SINGLE), (BRAIN, BRAIN), (BRAIN, SINGLE), (SINGLE, SINGLE)], ids=str
)
def test_norms(draw: Draw, kinds: tuple[DType, DType]):
    data, parameters = kinds
    gamma, beta = draw(parameters, 5, 37, low=0.5), draw(parameters, 5, 37)
    rule = {"terms": 16, "scale": 8.0}
    check(mini_task("LayerNorm", [draw(data, 3, 5, 37), gamma, beta], {"begin_norm_axis": 1}), **rule)
    check(mini_task("LayerNorm", [draw(data, 3, 5, 37), gamma, None][:2], {"begin_norm_axis": 1}), **rule)
    check(mini_task("RmsNorm", [draw(data, 3, 5, 37), draw(parameters, 37)]), **rule)
    channels = [draw(parameters, 5), draw(parameters, 5)]
    check(mini_task("InstanceNorm", [draw(data, 3, 5, 7, 9), *channels]), **rule)


REDUCED = [(), (0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)]


@HALVES
@pytest.mark.parametrize("op_type", ["ReduceSumD", "ReduceMeanD", "ReduceMaxD", "ReduceMinD", "ReduceProdD"])
@pytest.mark.parametrize("axes", REDUCED, ids=str)
def test_reductions(draw: Draw, half: DType, axes: tuple[int, ...], op_type: str):
    low = 0.9 if op_type == "ReduceProdD" else None
    shape = (3, 5, 6) if op_type == "ReduceProdD" else (3, 9, 37)
    for keep in (False, True):
        check(mini_task(op_type, [draw(half, *shape, low=low)], {"axes": axes, "keep_dims": keep}), terms=40, ulps=100)
    check(mini_task(op_type, [draw(SINGLE, *shape, low=low)], {"axes": axes}), terms=80, ulps=100)


@HALVES
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_extreme_indices(draw: Draw, half: DType, axis: int):
    for op_type in ("ArgMaxD", "ArgMinD"):
        for dtype in (DType.INT32, DType.INT64):
            check(mini_task(op_type, [draw(half, 4, 9, 23)], {"dimension": axis, "dtype": dtype}))


def test_integer_reductions(draw: Draw):
    for op_type in ("ReduceSumD", "ReduceMaxD"):
        check(mini_task(op_type, [draw(DType.INT32, 4, 9, 23)], {"axes": (1,)}))


# -- movement ---------------------------------------------------------------------------------------------------------

WIDTHS = [DType.INT8, HALF, BRAIN, SINGLE, DType.INT64, DType.BOOL]


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
def test_moves(draw: Draw, dtype: DType):
    x = draw(dtype, 3, 5, 7, 2)
    check(mini_task("TransposeD", [x], {"perm": (2, 0, 3, 1)}))
    check(mini_task("TransposeD", [draw(dtype, 33, 50)], {"perm": (1, 0)}))
    check(mini_task("TileD", [x], {"multiples": (2, 1, 3, 2)}))
    check(mini_task("BroadcastToD", [draw(dtype, 5, 1, 2)], {"shape": (3, 5, 7, 2)}))
    check(mini_task("Identity", [x]))
    cut = {"begin": (2, -4, 0), "end": (0, 100, 5), "strides": (-1, 2, 1), "begin_mask": 4}
    check(mini_task("StridedSliceD", [x], cut))
    check(mini_task("ConcatD", [draw(dtype, 3, n, 7) for n in (1, 5, 0, 2)], {"concat_dim": 1}))
    check(mini_task("SplitD", [draw(dtype, 6, 9)], {"split_dim": 1, "num_split": 3}))
    check(mini_task("SplitVD", [draw(dtype, 6, 9)], {"size_splits": (1, 5, 0), "split_dim": 0, "num_split": 3}))


@DTYPES
def test_whole_channel_blocks_are_joined_and_split(draw: Draw, dtype: DType):
    c0 = blocks(dtype)
    parts = [draw(dtype, 2, channels, 3, 5, format=NC1, c0=c0) for channels in (2 * c0, c0, 5)]
    check(mini_task("ConcatD", parts, {"concat_dim": 1}))
    check(mini_task("ConcatD", [parts[2], parts[2]], {"concat_dim": -1}))
    x = draw(dtype, 2, 4 * c0, 3, 5, format=NC1, c0=c0)
    check(mini_task("SplitD", [x], {"split_dim": 1, "num_split": 2}))
    sizes = {"size_splits": (c0, 3 * c0 - 3, 3), "split_dim": 1, "num_split": 3}
    check(mini_task("SplitVD", [x], sizes))
    check(mini_task("ConcatD", [parts[2], parts[1], parts[2]], {"concat_dim": 1}))
    sizes = {"size_splits": (c0, 2 * c0, c0), "split_dim": 1, "num_split": 3}
    check(mini_task("SplitVD", [x], sizes))


@pytest.mark.parametrize("dtype", [DType.UINT8, HALF, SINGLE, DType.BF16], ids=str)
def test_padding(draw: Draw, dtype: DType):
    attrs = {"paddings": (1, 0, 2, 3, 0, 1), "constant_values": 1.5}
    check(mini_task("PadD", [draw(dtype, 3, 4, 5)], attrs))
    check(mini_task("PadD", [draw(dtype, 0, 4, 5)], attrs))
    for mode in ("reflect", "edge"):
        check(mini_task("PadD", [draw(dtype, 3, 4, 5)], {"paddings": (1, 2, 0, 3, 4, 0), "mode": mode}))


@HALVES
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(draw: Draw, half: DType, axis: int):
    for dtype in (DType.INT32, DType.INT64):
        indices = Value(np.array([[0, -1, 2], [1, 1, -3]]), dtype)
        check(mini_task("GatherV2", [draw(half, 4, 5, 3), indices], {"axis": axis}))


@HALVES
def test_an_index_out_of_range_stops_the_device_and_is_named(draw: Draw, half: DType):
    indices = Value(np.array([0, 9, 1]), DType.INT64)
    with pytest.raises(DeviceFault, match="out of range") as caught:
        mini_task("GatherV2", [draw(half, 4, 5), indices]).run()
    assert "GatherV2" in str(caught.value) and "index 9" in str(caught.value)


@pytest.mark.parametrize("shape", [(2, 35, 7, 9), (1, 3, 30, 30), (1, 16, 1, 1)])
@pytest.mark.parametrize("dtype", [DType.INT8, HALF, BRAIN, SINGLE], ids=str)
def test_storage_formats_change_both_ways(draw: Draw, dtype: DType, shape: tuple[int, ...]):
    c0 = 32 // dtype.bytes
    for plain in (Format.NCHW, Format.NHWC):
        flat = draw(dtype, *shape, format=plain)
        blocked = Value(flat.values, dtype, NC1, c0)
        there = mini_task("TransData", [flat], {"src_format": plain.name, "dst_format": "NC1HWC0"}, out=(NC1, c0))
        check(there)
        if plain is Format.NCHW:
            check(mini_task("TransData", [blocked], {"src_format": "NC1HWC0", "dst_format": "NCHW"}, out=(plain, 0)))


@HALVES
@pytest.mark.parametrize("shape", [(35, 50), (3, 16, 16), (2, 2, 5, 70)])
def test_fractal_matrices_change_both_ways(draw: Draw, half: DType, shape: tuple[int, ...]):
    flat = draw(half, *shape)
    fractal = Value(flat.values, half, Format.FRACTAL_NZ, 16)
    names = {"src_format": "ND", "dst_format": "FRACTAL_NZ"}
    check(mini_task("TransData", [flat], names, out=(Format.FRACTAL_NZ, 16)))
    back = {"src_format": "FRACTAL_NZ", "dst_format": "ND"}
    check(mini_task("TransData", [fractal], back, out=(Format.ND, 0)))


# -- the edges --------------------------------------------------------------------------------------------------------


def test_empty_results_take_no_rows(draw: Draw):
    task = mini_task("Add", [draw(HALF, 0, 4), draw(HALF, 4)])
    assert not task.loaded.fallbacks and task.run()[0].shape == (0, 4)


def test_what_has_no_fast_kernel_runs_on_its_twin_and_says_why(draw: Draw):
    x = draw(HALF, 3, 40)
    task = mini_task("Sin", [x])
    assert task.loaded.fallbacks == {"Sin": "no fast kernel for operator Sin"}
    (result,) = task.run()
    assert np.array_equal(result, run_twin(task.task.kernel, [x.storage])[0])


def test_every_planned_type_is_declared():
    from metadef.op import all_op_types

    assert planned_types() <= set(all_op_types())
