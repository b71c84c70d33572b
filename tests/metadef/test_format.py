"""Storage formats: packing is a bijection onto the real lanes, and sizes follow GE's rules."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadef.dtype import DType
from metadef.error import InferError
from metadef.format import SMALL_CHANNELS, Format, TensorDesc, pack, slot_bytes, storage_shape, tensor_bytes, unpack

BLOCKS = st.sampled_from([8, 16, 32])
SIZES = st.integers(1, 40)
SMALL = st.integers(1, 5)


def counted(shape: tuple[int, ...]) -> np.ndarray:
    """1, 2, 3, …: every element differs, and none is the padding's zero."""
    return np.arange(1, prod(shape) + 1, dtype=np.int32).reshape(shape)


@st.composite
def blocked(draw: st.DrawFn) -> TensorDesc:
    fmt = draw(st.sampled_from([Format.NC1HWC0, Format.FRACTAL_Z, Format.FRACTAL_NZ]))
    if fmt is Format.FRACTAL_NZ:
        shape = (*draw(st.lists(SMALL, max_size=2)), draw(SIZES), draw(SIZES))
        return TensorDesc(shape, DType.INT32, Format.ND, fmt, draw(BLOCKS))
    order = draw(st.sampled_from([Format.NCHW, Format.NHWC, Format.HWCN]))
    if draw(st.booleans()):
        small = draw(st.sampled_from([Format.NC1HWC0_C04, Format.FRACTAL_Z_C04]))
        sizes = {"N": draw(SIZES), "C": draw(st.integers(1, SMALL_CHANNELS)), "H": draw(SMALL), "W": draw(SMALL)}
        c0 = SMALL_CHANNELS if small is Format.NC1HWC0_C04 else draw(BLOCKS)
        return TensorDesc(tuple(sizes[letter] for letter in order.name), DType.INT32, order, small, c0)
    shape = (draw(SMALL), draw(SIZES), draw(SMALL), draw(SMALL))
    return TensorDesc(shape, DType.INT32, order, fmt, draw(BLOCKS))


@given(blocked())
def test_packing_is_undone_by_unpacking(desc: TensorDesc) -> None:
    array = counted(desc.origin_shape)
    packed = pack(array, desc)
    assert packed.shape == desc.shape == storage_shape(desc)
    assert packed.flags.c_contiguous and packed.dtype == array.dtype
    np.testing.assert_array_equal(unpack(packed, desc), array)
    kept = packed[packed != 0]
    assert sorted(kept.tolist()) == array.reshape(-1).tolist()


@given(SMALL, SIZES, SMALL, SMALL, BLOCKS)
def test_nc1hwc0_index_rule(n: int, c: int, h: int, w: int, c0: int) -> None:
    desc = TensorDesc((n, c, h, w), DType.INT32, Format.NCHW, Format.NC1HWC0, c0)
    array = counted(desc.origin_shape)
    packed = pack(array, desc)
    at = (n - 1, c - 1, h - 1, w - 1)
    assert packed[at[0], at[1] // c0, at[2], at[3], at[1] % c0] == array[at]


@given(SIZES, st.integers(1, SMALL_CHANNELS), SMALL, SMALL, BLOCKS)
def test_fractal_z_c04_index_rule(n: int, c: int, h: int, w: int, c0: int) -> None:
    desc = TensorDesc((n, c, h, w), DType.INT32, Format.NCHW, Format.FRACTAL_Z_C04, c0)
    array = counted(desc.origin_shape)
    packed = pack(array, desc)
    k = ((h - 1) * w + (w - 1)) * SMALL_CHANNELS + c - 1
    assert packed[k // c0, (n - 1) // 16, (n - 1) % 16, k % c0] == array[n - 1, c - 1, h - 1, w - 1]


def test_few_channels_only() -> None:
    with pytest.raises(InferError, match="few channels"):
        _ = TensorDesc((16, 5, 3, 3), DType.FLOAT16, Format.NCHW, Format.FRACTAL_Z_C04, 16).shape
    image = TensorDesc((1, 3, 224, 224), DType.FLOAT16, Format.NCHW, Format.NC1HWC0_C04, 4)
    filters = TensorDesc((64, 3, 7, 7), DType.FLOAT16, Format.NCHW, Format.FRACTAL_Z_C04, 16)
    assert image.shape == (1, 1, 224, 224, 4) and filters.shape == (13, 4, 16, 16)


@given(SIZES, SIZES, SMALL, SMALL, BLOCKS)
def test_fractal_z_index_rule(n: int, c: int, h: int, w: int, c0: int) -> None:
    desc = TensorDesc((n, c, h, w), DType.INT32, Format.NCHW, Format.FRACTAL_Z, c0)
    array = counted(desc.origin_shape)
    packed = pack(array, desc)
    for i, k, y, x in ((n - 1, c - 1, h - 1, w - 1), (0, c // 2, 0, w - 1)):
        assert packed[((k // c0) * h + y) * w + x, i // 16, i % 16, k % c0] == array[i, k, y, x]


@given(SIZES, SIZES, BLOCKS)
def test_fractal_nz_index_rule(rows: int, columns: int, c0: int) -> None:
    desc = TensorDesc((2, rows, columns), DType.INT32, Format.ND, Format.FRACTAL_NZ, c0)
    array = counted(desc.origin_shape)
    packed = pack(array, desc)
    row, column = rows - 1, columns // 2
    assert packed[1, column // c0, row // 16, row % 16, column % c0] == array[1, row, column]


def test_plain_formats_are_kept() -> None:
    desc = TensorDesc((2, 3), DType.FLOAT)
    array = np.ones((2, 3), np.float32)
    assert pack(array, desc).shape == desc.shape == (2, 3)
    assert desc.stored_as(Format.ND, 16).c0 == 0
    assert str(desc) == "float32[2,3]ND"


def test_known_sizes() -> None:
    desc = TensorDesc((8, 3, 224, 224), DType.FLOAT16, Format.NCHW, Format.NC1HWC0, 16)
    assert desc.shape == (8, 1, 224, 224, 16)
    assert desc.elements == 8 * 3 * 224 * 224
    assert desc.payload_bytes == 8 * 224 * 224 * 16 * 2
    weights = TensorDesc((64, 3, 7, 7), DType.FLOAT16, Format.NCHW, Format.FRACTAL_Z, 16)
    assert weights.shape == (49, 4, 16, 16)


@given(st.integers(0, 10_000))
def test_sizes_follow_the_rule(payload: int) -> None:
    assert tensor_bytes(payload) % 32 == 0 and payload + 32 <= tensor_bytes(payload) < payload + 64
    assert slot_bytes(payload) % 512 == 0 and 0 <= slot_bytes(payload) - tensor_bytes(payload) < 512


def test_faults_are_named() -> None:
    with pytest.raises(InferError, match="needs four dimensions"):
        storage_shape(TensorDesc((2, 3), DType.FLOAT, Format.ND, Format.NC1HWC0, 16))
    with pytest.raises(InferError, match="at least two dimensions"):
        storage_shape(TensorDesc((3,), DType.FLOAT, Format.ND, Format.FRACTAL_NZ, 16))
    with pytest.raises(InferError, match="channel block"):
        storage_shape(TensorDesc((1, 2, 3, 4), DType.FLOAT, Format.NCHW, Format.NC1HWC0, 0))
    with pytest.raises(InferError, match="does not fit its descriptor"):
        pack(np.zeros((3, 2)), TensorDesc((2, 3), DType.FLOAT))
    with pytest.raises(InferError, match="does not fit its descriptor"):
        unpack(np.zeros((3, 2)), TensorDesc((2, 3), DType.FLOAT))
