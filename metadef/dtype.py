"""Element types: one table that ties NumPy, GE's API enumeration, GE's protobuf enumeration and ONNX together.

GE numbers element types in two ways that must not be mixed: attribute values (Cast ``dst_type``) use the API number,
serialised tensors use the proto number.
"""

from __future__ import annotations

from enum import Enum

import numpy as np


class DType(Enum):
    """An element type. Value: (name, bits, NumPy name, API number, proto number, ONNX TensorProto number)."""

    FLOAT = ("float32", 32, "float32", 0, 1, 1)
    FLOAT16 = ("float16", 16, "float16", 1, 2, 10)
    BF16 = ("bfloat16", 16, "uint16", 27, 27, 16)
    DOUBLE = ("float64", 64, "float64", 11, 12, 11)
    INT8 = ("int8", 8, "int8", 2, 3, 3)
    UINT8 = ("uint8", 8, "uint8", 4, 4, 2)
    INT16 = ("int16", 16, "int16", 6, 5, 5)
    UINT16 = ("uint16", 16, "uint16", 7, 6, 4)
    INT32 = ("int32", 32, "int32", 3, 7, 6)
    UINT32 = ("uint32", 32, "uint32", 8, 9, 12)
    INT64 = ("int64", 64, "int64", 9, 8, 7)
    UINT64 = ("uint64", 64, "uint64", 10, 10, 13)
    BOOL = ("bool", 8, "bool", 12, 11, 9)

    def __init__(self, label: str, bits: int, numpy_name: str, api: int, proto: int, onnx: int) -> None:
        self.label = label
        self.bits = bits
        self.numpy = np.dtype(numpy_name)
        self.api_enum = api
        self.proto_enum = proto
        self.onnx_enum = onnx

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return self.bits // 8

    @property
    def ge_name(self) -> str:
        """The name in GE's text dumps, such as ``DT_FLOAT16``."""
        return f"DT_{self.name}"

    @property
    def is_float(self) -> bool:
        return self in (DType.FLOAT, DType.FLOAT16, DType.BF16, DType.DOUBLE)

    @property
    def is_integer(self) -> bool:
        return not self.is_float and self is not DType.BOOL

    def __repr__(self) -> str:
        return self.label

    @staticmethod
    def parse(text: str) -> DType:
        """From a label (``float16``), an enum name (``FLOAT16``) or GE's name (``DT_FLOAT16``).

        Raises:
            KeyError: the name is not known.
        """
        name = text.removeprefix("DT_")
        for item in DType:
            if name in (item.label, item.name):
                return item
        raise KeyError(text)

    @staticmethod
    def from_numpy(dtype: np.dtype | type) -> DType:
        """The element type of an array. ``uint16`` means UINT16, never BF16.

        Raises:
            KeyError: NumPy has the type, the device does not (strings, complex).
        """
        return _BY_NUMPY[np.dtype(dtype)]

    @staticmethod
    def from_onnx(number: int) -> DType:
        """Raises KeyError for ONNX types the device does not know (string, complex, fp8…)."""
        return _BY_ONNX[number]

    @staticmethod
    def from_api(number: int) -> DType:
        return _BY_API[number]

    @staticmethod
    def from_proto(number: int) -> DType:
        return _BY_PROTO[number]


_BY_NUMPY = {item.numpy: item for item in DType if item is not DType.BF16}
_BY_ONNX = {item.onnx_enum: item for item in DType}
_BY_API = {item.api_enum: item for item in DType}
_BY_PROTO = {item.proto_enum: item for item in DType}
