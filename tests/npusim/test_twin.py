"""The derived twin: formats, one rounding, fused operators, overflow."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.format import Format, TensorDesc, pack, unpack
from metadef.kernel import Engine, FusedOp, Kernel
from npusim.twin import run_twin, run_wide

BLOCKED = TensorDesc((2, 5, 3, 4), DType.FLOAT16, Format.NCHW, Format.NC1HWC0, 16)
HALVES = TensorDesc((64,), DType.FLOAT16)
BRAINS = TensorDesc((64,), DType.BF16)


def kernel(op_type: str, inputs, outputs, attrs=None, fused=()) -> Kernel:
    return Kernel(op_type, Engine.VECTOR, tuple(inputs), tuple(outputs), attrs or {}, tuple(fused))


def test_a_fused_chain_rounds_once(rng: np.random.Generator):
    a, b, c = (rng.standard_normal(64).astype(np.float16) for _ in range(3))
    fused = (FusedOp("Mul", operand=2), FusedOp("Relu"))
    (result,) = run_twin(kernel("Add", [HALVES] * 3, [HALVES], fused=fused), [a, b, c])
    exact = np.maximum((a.astype(np.float64) + b.astype(np.float64)) * c.astype(np.float64), 0)
    assert np.array_equal(result, exact.astype(np.float32).astype(np.float16))
    twice = np.maximum((a + b) * c, 0)
    assert not np.array_equal(result, twice)


def test_storage_formats_are_unpacked_and_padding_comes_back_zero(rng: np.random.Generator):
    x = rng.standard_normal(BLOCKED.origin_shape).astype(np.float16)
    storage = pack(x, BLOCKED)
    storage[..., 5:] = 3
    (result,) = run_twin(kernel("Exp", [BLOCKED], [BLOCKED]), [storage])
    assert np.array_equal(unpack(result, BLOCKED), np.exp(x.astype(np.float32)).astype(np.float16))
    assert np.all(result[..., 5:] == 0)


@pytest.mark.parametrize(("overflow", "wanted"), [("inf", [np.inf, -np.inf]), ("saturate", [65504.0, -65504.0])])
def test_overflow_follows_the_chip(overflow: str, wanted: list[float]):
    x = np.array([60000.0, -60000.0] + [1.0] * 62, np.float16)
    (result,) = run_twin(kernel("Add", [HALVES, HALVES], [HALVES]), [x, x], overflow=overflow)
    assert result[:2].tolist() == wanted


def test_saturating_chips_turn_nan_into_zero():
    x = np.full(64, -1.0, np.float16)
    (result,) = run_twin(kernel("Sqrt", [HALVES], [HALVES]), [x], overflow="saturate")
    assert np.all(result == 0)


def test_bfloat16_is_computed_wide_and_rounded_to_even(rng: np.random.Generator):
    bits = (rng.standard_normal(64).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    (result,) = run_twin(kernel("Add", [BRAINS, BRAINS], [BRAINS]), [bits, bits[::-1].copy()])
    exact = values.astype(np.float64) + values[::-1]
    back = (result.astype(np.uint32) << 16).view(np.float32)
    assert np.all(np.abs(back - exact) <= np.abs(exact) * 2.0**-8)


def test_float64_twin_keeps_what_float32_loses():
    desc = TensorDesc((3,), DType.FLOAT)
    x = np.array([1e8, 1.0, -1e8], np.float32)
    attrs = {"axes": (0,), "keep_dims": False}
    (exact,) = run_wide(kernel("ReduceSumD", [desc], [TensorDesc((), DType.FLOAT)], attrs), [x], wide=np.float64)
    assert exact == 1.0 and exact.dtype == np.float64


def test_integers_are_left_alone():
    desc = TensorDesc((2,), DType.INT32)
    x = np.array([2**31 - 1, 16777217], np.int32)
    with np.errstate(over="ignore"):
        (result,) = run_twin(kernel("Add", [desc, desc], [desc]), [x, np.ones(2, np.int32)])
    assert result.tolist() == [-(2**31), 16777218]
