"""Window arithmetic against counting by hand, and the geometries against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from metadef.dtype import DType
from metadef.error import InferError
from metadef.format import TensorDesc
from metadef.kernel import Engine, Kernel
from metadef.op import get_op
from metadef.ops.geometry import (
    ConvGeometry,
    MatMulGeometry,
    PoolGeometry,
    broadcast_shapes,
    normal_axes,
    same_padding,
    window_count,
)


def desc(*shape: int) -> TensorDesc:
    return TensorDesc(shape, DType.FLOAT)


@given(
    st.integers(1, 20), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3), st.integers(0, 3), st.integers(1, 3)
)
def test_window_count_is_the_number_of_places(
    size: int, kernel: int, stride: int, begin: int, end: int, dilation: int
) -> None:
    extent = (kernel - 1) * dilation + 1
    places = [at for at in range(0, size + begin + end, stride) if at + extent <= size + begin + end]
    if not places:
        with pytest.raises(InferError, match="larger than the padded"):
            window_count(size, kernel, stride, begin, end, dilation)
        return
    assert window_count(size, kernel, stride, begin, end, dilation) == len(places)
    ceil = window_count(size, kernel, stride, begin, end, dilation, ceil_mode=True)
    assert len(places) - 1 <= ceil <= len(places) + 1
    if end < extent:
        assert (ceil - 1) * stride < size + begin


def test_window_count_drops_a_window_that_starts_in_the_end_padding() -> None:
    assert window_count(5, 3, 3, 1, 1, ceil_mode=True) == 2
    assert window_count(0, 3, 1, 1, 1) == 0


@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_same_padding_gives_the_promised_count(size: int, kernel: int, stride: int, dilation: int, upper: bool) -> None:
    begin, end = same_padding(size, kernel, stride, dilation, upper=upper)
    assert window_count(size, kernel, stride, begin, end, dilation) == -(-size // stride)
    assert 0 <= (end - begin if upper else begin - end) <= 1


@given(
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
)
def test_pool_elements_are_counted_right(
    size: int, kernel: int, stride: int, begin: int, end: int, ceil: bool, include: bool
) -> None:
    attrs = {
        "ksize": (1, 1, 1, kernel),
        "strides": (1, 1, 1, stride),
        "pads": (0, 0, begin, end),
        "ceil_mode": ceil,
    }
    assume(kernel <= size + begin + end and max(begin, end) < kernel)
    geometry = PoolGeometry.of([desc(1, 1, 1, size)], attrs)
    counted = []
    for window in range(geometry.ow):
        places = range(window * stride - begin, window * stride - begin + kernel)
        counted.append(sum((-begin <= at < size + end) if include else (0 <= at < size) for at in places))
    assert geometry.window_elements(include)[0].tolist() == counted
    last = (geometry.ow - 1) * stride + kernel
    assert geometry.overhang_w == max(0, last - (size + begin + end))


def test_conv_geometry_of_a_kernel_and_its_views() -> None:
    opdef = get_op("Conv2D")
    attrs = opdef.complete_attrs({"strides": (1, 1, 2, 2), "pads": (3, 3, 3, 3)})
    inputs = (desc(1, 3, 224, 224), desc(64, 3, 7, 7))
    kernel = Kernel("Conv2D", Engine.AICORE, inputs, (desc(1, 64, 112, 112),), attrs)
    geometry = ConvGeometry.of(kernel)
    assert geometry == ConvGeometry.of(inputs, attrs)
    assert geometry.out_shape == (1, 64, 112, 112)
    assert geometry.gemm == (12544, 64, 147)
    assert geometry.macs == 12544 * 64 * 147
    assert not geometry.is_pointwise and not geometry.is_depthwise


def test_conv_geometry_refuses_what_does_not_fit() -> None:
    attrs = {"strides": (1, 1, 1, 1)}
    with pytest.raises(InferError, match="channels of x and filter"):
        ConvGeometry.of([desc(1, 3, 8, 8), desc(4, 2, 3, 3)], attrs)
    with pytest.raises(InferError, match="multiple of groups"):
        ConvGeometry.of([desc(1, 4, 8, 8), desc(3, 2, 3, 3)], {**attrs, "groups": 2})
    with pytest.raises(InferError, match="stack of images"):
        ConvGeometry.of([desc(4, 8, 8), desc(3, 2, 3, 3)], attrs)


def test_matmul_geometry_folds_a_shared_right_operand() -> None:
    whole = MatMulGeometry.of([desc(2, 5, 3, 4), desc(4, 7)], {})
    assert (whole.batch, whole.m, whole.n, whole.k, whole.out_shape) == (10, 3, 7, 4, (2, 5, 3, 7))
    folded = MatMulGeometry.of([desc(2, 5, 3, 4), desc(4, 7)], {}, fold=True)
    assert (folded.batch, folded.m, folded.n, folded.k) == (1, 30, 7, 4)
    assert folded.macs == whole.macs
    kept = MatMulGeometry.of([desc(5, 4, 3), desc(4, 7)], {"adj_x1": True}, fold=True)
    assert (kept.batch, kept.m) == (5, 3)


def test_matmul_batch_index_follows_broadcasting() -> None:
    geometry = MatMulGeometry.of([desc(2, 1, 3, 4), desc(5, 4, 7)], {})
    assert geometry.batch_shape == (2, 5)
    assert geometry.batch_index("a").tolist() == [0] * 5 + [1] * 5
    assert geometry.batch_index("b").tolist() == [0, 1, 2, 3, 4] * 2
    with pytest.raises(InferError, match="inner sizes"):
        MatMulGeometry.of([desc(3, 4), desc(5, 7)], {})


shapes = st.lists(st.integers(1, 3), max_size=4).map(tuple)


@given(st.lists(shapes, min_size=1, max_size=3))
def test_broadcast_is_numpys(given_shapes: list[tuple[int, ...]]) -> None:
    try:
        expected = np.broadcast_shapes(*given_shapes)
    except ValueError:
        with pytest.raises(InferError, match="do not broadcast"):
            broadcast_shapes(*given_shapes)
        return
    assert broadcast_shapes(*given_shapes) == expected


def test_axes_are_counted_from_the_back_and_checked() -> None:
    assert normal_axes((-1, 0), 3) == (0, 2)
    with pytest.raises(InferError, match="outside"):
        normal_axes((3,), 3)
    with pytest.raises(InferError, match="twice"):
        normal_axes((1, -2), 3)
