from __future__ import annotations

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.error import InferError
from metadef.format import Format, TensorDesc
from metadef.graph import infer_outputs
from metadef.op import get_op
from metadef.ops.quantise import packed_scale, unpacked_scale


def test_scales_survive_packing() -> None:
    scale = np.array([1e-30, 0.02, -3.5, np.inf], np.float32)
    assert packed_scale(scale).dtype == np.uint64
    np.testing.assert_array_equal(unpacked_scale(packed_scale(scale)), scale)


def test_requantising_rounds_halves_to_even_and_saturates() -> None:
    opdef = get_op("AscendRequant")
    x = np.array([-1000, -5, -3, -1, 0, 1, 3, 5, 1000], np.int32)
    for dtype, offset, wanted in (
        (DType.INT8, 0, [-128, -2, -2, 0, 0, 0, 2, 2, 127]),
        (DType.UINT8, 100, [0, 98, 98, 100, 100, 100, 102, 102, 255]),
    ):
        attrs = opdef.complete_attrs({"offset": offset, "dtype": dtype})
        (got,) = opdef.reference([x, packed_scale(np.float32([0.5]))], attrs)
        assert got.dtype == dtype.numpy and got.tolist() == wanted


def test_dequantising_has_one_scale_a_channel() -> None:
    opdef = get_op("AscendDequant")
    scale = packed_scale(np.float32([0.5, 2]).reshape(2, 1, 1))
    x = TensorDesc((1, 2, 1, 2), DType.INT32, Format.NCHW, Format.NCHW)
    attrs = opdef.complete_attrs({"dtype": DType.BF16})
    (desc,) = infer_outputs(opdef, [x, TensorDesc((2, 1, 1), DType.UINT64)], attrs, "n")
    assert (desc.origin_shape, desc.dtype, desc.origin_format) == ((1, 2, 1, 2), DType.BF16, Format.NCHW)
    (got,) = opdef.reference([np.array([[[[1, 2]], [[3, 4]]]], np.int32), scale], attrs)
    assert got.ravel().tolist() == [0.5, 1, 6, 8]


@pytest.mark.parametrize("op_type", ["MatMulV2", "BatchMatMulV2"])
def test_products_of_int8_are_exact_int32_sums(op_type: str, rng: np.random.Generator) -> None:
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((5, 3000), (3000, 7)))
    bias = rng.integers(-(2**30), 2**30, 7).astype(np.int32)
    opdef = get_op(op_type)
    attrs = opdef.complete_attrs({})
    descs = [TensorDesc(item.shape, DType.from_numpy(item.dtype)) for item in (a, b, bias)]
    (desc,) = infer_outputs(opdef, descs, attrs, "n")
    (got,) = opdef.reference([a, b, bias], attrs)
    assert desc.dtype is DType.INT32 and got.dtype == np.int32
    np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64) + bias)


def test_a_float_bias_does_not_go_with_int8() -> None:
    opdef = get_op("MatMulV2")
    descs = [TensorDesc((4, 4), DType.INT8), TensorDesc((4, 4), DType.INT8), TensorDesc((4,), DType.FLOAT)]
    with pytest.raises(InferError, match="bias is not of the type"):
        infer_outputs(opdef, descs, opdef.complete_attrs({}), "n")
