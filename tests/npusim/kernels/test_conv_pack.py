"""Weights packed by calls from the device's own storage format are those packed from OIHW with NumPy, bit for bit."""

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.format import Format, TensorDesc, pack
from npusim.kernels.conv import Conv2D, pack_conv
from npusim.kernels.conv_pack import pack_stored_conv
from tests.npusim.kernels.inputs import run

TYPES = {"f16": DType.FLOAT16, "bf16": DType.BF16, "f32": DType.FLOAT}


def conv_shape(o: int, c: int, kernel: tuple[int, int], groups: int = 1) -> Conv2D:
    return Conv2D(1, c, 9, 9, o, kernel, (1, 1), (0, 0, 0, 0), (1, 1), groups, 16, 16)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("c0", [8, 16])
@pytest.mark.parametrize(
    ("o", "c", "kernel"), [(16, 16, (1, 1)), (100, 33, (3, 1)), (5, 70, (2, 3)), (512, 48, (1, 1))]
)
def test_calls_fill_what_numpy_packs(
    o: int, c: int, kernel: tuple[int, int], c0: int, dtype: str, rng: np.random.Generator
) -> None:
    shape, kind = conv_shape(o, c, kernel), TYPES[dtype]
    weights = rng.integers(0, 256, (o, c, *kernel, kind.bytes), np.uint8).view(kind.numpy)[..., 0]
    fractals = pack(weights, TensorDesc(weights.shape, kind, Format.NCHW, Format.FRACTAL_Z, c0))
    bias = rng.standard_normal(o).astype(np.float32)
    made = pack_stored_conv(shape, fractals.ctypes.data, c0, dtype, bias)
    if c0 == 8 and -(-c // 8) % 2:
        assert made is None
        return
    assert made is not None
    packed, calls = made
    packed.weights[:] = 1
    run(calls, threads=2)
    wanted = pack_conv(shape, weights, bias, dtype)
    assert np.array_equal(packed.weights.view(np.uint8), wanted.weights.view(np.uint8))
    assert np.array_equal(packed.bias, wanted.bias)
    assert (packed.dtype, packed.vectors, packed.kind) == (wanted.dtype, wanted.vectors, wanted.kind)


def test_other_forms_are_left_to_numpy() -> None:
    assert pack_stored_conv(conv_shape(16, 3, (7, 7)), 64, 16, "f16") is None
    assert pack_stored_conv(conv_shape(32, 32, (3, 3), groups=32), 64, 16, "f16") is None
