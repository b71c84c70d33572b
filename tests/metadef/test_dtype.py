"""Element types: the four numberings agree with their sources."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.dtype import DType


@pytest.mark.parametrize("dtype", list(DType))
def test_round_trips(dtype: DType) -> None:
    assert DType.from_onnx(dtype.onnx_enum) is dtype
    assert DType.from_api(dtype.api_enum) is dtype
    assert DType.from_proto(dtype.proto_enum) is dtype
    assert DType.parse(dtype.label) is DType.parse(dtype.name) is DType.parse(dtype.ge_name) is dtype
    assert dtype.bytes * 8 == dtype.bits and dtype.numpy.itemsize == dtype.bytes
    if dtype is not DType.BF16:
        assert DType.from_numpy(dtype.numpy) is dtype


@pytest.mark.parametrize("dtype", list(DType))
def test_onnx_knows_the_same_numbers(dtype: DType) -> None:
    onnx = pytest.importorskip("onnx")
    name = {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype.label, dtype.label.upper())
    assert onnx.TensorProto.DataType.Value(name) == dtype.onnx_enum


def test_the_two_numberings_of_ge_differ() -> None:
    assert (DType.FLOAT16.api_enum, DType.FLOAT16.proto_enum) == (1, 2)
    assert (DType.INT64.api_enum, DType.INT64.proto_enum) == (9, 8)
    assert DType.FLOAT16.ge_name == "DT_FLOAT16"


def test_kinds() -> None:
    assert DType.BF16.is_float and not DType.BF16.is_integer
    assert not DType.BOOL.is_float and not DType.BOOL.is_integer
    assert DType.from_numpy(np.uint16) is DType.UINT16


@pytest.mark.parametrize(
    "convert", [lambda: DType.parse("float7"), lambda: DType.from_onnx(8), lambda: DType.from_numpy(np.complex64)]
)
def test_unknown_types_raise_key_errors(convert: object) -> None:
    with pytest.raises(KeyError):
        convert()  # type: ignore[operator]
