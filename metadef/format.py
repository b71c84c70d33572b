"""Storage formats: shapes, index maps, packing and GE's size rules.

A tensor has an *origin* shape (what the framework sees, NCHW or ND) and a *storage* shape (what lies in memory). The
formats here are NC1HWC0, FRACTAL_Z and FRACTAL_NZ beside the plain ones; padding lanes are zero. The C04 pair holds
images of at most four channels and their filters without padding those to a whole block; FRACTAL_Z_WINO holds filters
that Winograd's algorithm has transformed. Sources: GE's format transfer code, Ascend C's data layout appendix
(orders of indices), GE's memory assigner (sizes).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from math import prod

import numpy as np

from metadef.dtype import DType
from metadef.error import InferError
from metadef.winograd import planes_of, restore_filter, transform_filter

Shape = tuple[int, ...]

BLOCK_BYTES = 32
SLOT_BYTES = 512
FRACTAL_ROWS = 16
SMALL_CHANNELS = 4
"""Channels of a pixel in the C04 formats."""


class Format(IntEnum):
    """GE's format numbers: the primary format in the low byte, a sub-format above it.

    FRACTAL_Z_WINO is 48; its sub-format here is the edge of Winograd's output tile.
    """

    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    NC1HWC0_C04 = 12
    FRACTAL_Z_C04 = 13
    HWCN = 16
    FRACTAL_NZ = 29
    FRACTAL_Z_WINO_F2 = 48 | 2 << 8
    FRACTAL_Z_WINO_F4 = 48 | 4 << 8


WINOGRAD_FORMATS = {Format.FRACTAL_Z_WINO_F2: 2, Format.FRACTAL_Z_WINO_F4: 4}
"""Formats of transformed 3x3 filters and the edge of their output tile."""
IMAGE_FORMATS = frozenset({Format.NC1HWC0, Format.NC1HWC0_C04})
"""Formats (N, C1, H, W, C0) of images."""
PLAIN_FORMATS = frozenset({Format.NCHW, Format.NHWC, Format.ND, Format.HWCN})


def ceil_div(value: int, by: int) -> int:
    return -(-value // by)


def round_up(value: int, to: int) -> int:
    return -(-value // to) * to


def tensor_bytes(payload_bytes: int) -> int:
    """The size GE records for a tensor: rounded up to 32 bytes plus one more 32-byte block."""
    return round_up(payload_bytes, BLOCK_BYTES) + BLOCK_BYTES


def slot_bytes(payload_bytes: int) -> int:
    """What a tensor takes in the memory plan: GE's tensor size rounded up to 512 bytes."""
    return round_up(tensor_bytes(payload_bytes), SLOT_BYTES)


@dataclass(frozen=True)
class TensorDesc:
    """Shape, element type and storage format of one tensor.

    ``origin_shape`` is the framework's shape in ``origin_format``; ``format`` says how it lies in memory; ``c0`` is the
    channel block of blocked formats (elements; 0 for plain formats).
    """

    origin_shape: Shape
    dtype: DType
    origin_format: Format = Format.ND
    format: Format = Format.ND
    c0: int = 0

    @property
    def shape(self) -> Shape:
        """Storage shape."""
        return storage_shape(self)

    @property
    def elements(self) -> int:
        """Elements of the origin shape (padding not counted)."""
        return prod(self.origin_shape)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the storage shape, padding lanes included, without GE's trailing block."""
        return prod(self.shape) * self.dtype.bytes

    @property
    def is_plain(self) -> bool:
        return self.format in PLAIN_FORMATS

    def stored_as(self, fmt: Format, c0: int = 0) -> TensorDesc:
        """The same tensor in another storage format."""
        return replace(self, format=fmt, c0=0 if fmt in PLAIN_FORMATS else c0)

    def with_dtype(self, dtype: DType, c0: int | None = None) -> TensorDesc:
        return replace(self, dtype=dtype, c0=self.c0 if c0 is None or self.is_plain else c0)

    def __str__(self) -> str:
        dims = ",".join(map(str, self.origin_shape))
        kind = self.format.name if self.is_plain else f"{self.format.name}:{self.c0}"
        origin = "" if self.format == self.origin_format else f"<{self.origin_format.name}"
        return f"{self.dtype.label}[{dims}]{kind}{origin}"


def _axes(desc: TensorDesc) -> tuple[int, int, int, int]:
    """Positions of N, C, H, W in the origin shape."""
    order = {Format.NHWC: "NHWC", Format.HWCN: "HWCN"}.get(desc.origin_format, "NCHW")
    n, c, h, w = (order.index(letter) for letter in "NCHW")
    return n, c, h, w


def _nchw(desc: TensorDesc) -> Shape:
    if len(desc.origin_shape) != 4:
        raise InferError(
            f"format {desc.format.name} needs four dimensions",
            expected="an origin shape of rank 4",
            got=str(desc.origin_shape),
            hint="keep the tensor in ND, or reshape it to N,C,H,W first",
        )
    n, c, h, w = (desc.origin_shape[axis] for axis in _axes(desc))
    return n, c, h, w


def storage_shape(desc: TensorDesc) -> Shape:
    """Storage shape of a tensor.

    NC1HWC0 is (N, ceil(C/C0), H, W, C0); FRACTAL_Z of a filter is (ceil(C/C0) H W, ceil(N/16), 16, C0); FRACTAL_NZ of
    (…, M, N) is (…, ceil(N/C0), ceil(M/16), 16, C0). FRACTAL_Z_WINO is a FRACTAL_Z of a 1x1 filter for each of the
    16 (F2) or 36 (F4) products: (products, ceil(C/C0), ceil(N/16), 16, C0). NC1HWC0_C04 is NC1HWC0 with C0 = 4;
    FRACTAL_Z_C04 is (ceil(4 H W / C0), ceil(N/16), 16, C0), four channels of one tap behind those of the last.

    Raises:
        InferError: the rank does not fit the format.
    """
    if desc.is_plain:
        return desc.origin_shape
    if desc.c0 <= 0:
        raise InferError(f"format {desc.format.name} needs a channel block", expected="c0 > 0", got=str(desc.c0))
    if desc.format in IMAGE_FORMATS:
        n, c, h, w = _nchw(desc)
        return n, ceil_div(c, desc.c0), h, w, desc.c0
    if desc.format == Format.FRACTAL_Z_C04:
        n, c, h, w = _nchw(desc)
        if c > SMALL_CHANNELS:
            raise InferError("format FRACTAL_Z_C04 is for few channels", expected="at most 4", got=str(c))
        return ceil_div(SMALL_CHANNELS * h * w, desc.c0), ceil_div(n, FRACTAL_ROWS), FRACTAL_ROWS, desc.c0
    if desc.format == Format.FRACTAL_Z:
        n, c, h, w = _nchw(desc)
        return ceil_div(c, desc.c0) * h * w, ceil_div(n, FRACTAL_ROWS), FRACTAL_ROWS, desc.c0
    if desc.format in WINOGRAD_FORMATS:
        n, c, _, _ = _nchw(desc)
        planes = planes_of(WINOGRAD_FORMATS[desc.format])
        return planes, ceil_div(c, desc.c0), ceil_div(n, FRACTAL_ROWS), FRACTAL_ROWS, desc.c0
    if len(desc.origin_shape) < 2:
        raise InferError(
            "format FRACTAL_NZ needs at least two dimensions", got=str(desc.origin_shape), hint="keep the tensor in ND"
        )
    *batch, rows, columns = desc.origin_shape
    return *batch, ceil_div(columns, desc.c0), ceil_div(rows, FRACTAL_ROWS), FRACTAL_ROWS, desc.c0


def pack(array: np.ndarray, desc: TensorDesc) -> np.ndarray:
    """Lay an array of the origin shape out as ``desc`` says; padding lanes become zero. The dtype is kept.

    Filters for Winograd's algorithm are transformed too.

    Raises:
        InferError: the array's shape is not the origin shape.
    """
    if array.shape != desc.origin_shape:
        raise InferError("array does not fit its descriptor", expected=str(desc.origin_shape), got=str(array.shape))
    if desc.is_plain:
        return np.asarray(array, order="C")
    if desc.format == Format.FRACTAL_NZ:
        *batch, rows, columns = array.shape
        row_blocks, column_blocks = ceil_div(rows, FRACTAL_ROWS), ceil_div(columns, desc.c0)
        padded = _zero_padded(array, (*batch, row_blocks * FRACTAL_ROWS, column_blocks * desc.c0))
        split = padded.reshape(*batch, row_blocks, FRACTAL_ROWS, column_blocks, desc.c0)
        lead = tuple(range(len(batch)))
        axes = (*lead, *(len(batch) + axis for axis in (2, 0, 1, 3)))
        return np.ascontiguousarray(split.transpose(axes))
    nchw = array.transpose(_axes(desc))
    n, c, h, w = nchw.shape
    c1 = ceil_div(c, desc.c0)
    if desc.format in IMAGE_FORMATS:
        padded = _zero_padded(nchw, (n, c1 * desc.c0, h, w))
        return np.ascontiguousarray(padded.reshape(n, c1, desc.c0, h, w).transpose(0, 1, 3, 4, 2))
    n1 = ceil_div(n, FRACTAL_ROWS)
    if desc.format in WINOGRAD_FORMATS:
        planes = transform_filter(nchw, WINOGRAD_FORMATS[desc.format])
        padded = _zero_padded(planes, (len(planes), n1 * FRACTAL_ROWS, c1 * desc.c0))
        blocks = padded.reshape(-1, n1, FRACTAL_ROWS, c1, desc.c0).transpose(0, 3, 1, 2, 4)
        return np.ascontiguousarray(blocks)
    if desc.format == Format.FRACTAL_Z_C04:
        return _pack_small(nchw, desc)
    padded = _zero_padded(nchw, (n1 * FRACTAL_ROWS, c1 * desc.c0, h, w))
    blocks = padded.reshape(n1, FRACTAL_ROWS, c1, desc.c0, h, w).transpose(2, 4, 5, 0, 1, 3)
    return np.ascontiguousarray(blocks).reshape(storage_shape(desc))


def _pack_small(nchw: np.ndarray, desc: TensorDesc) -> np.ndarray:
    """FRACTAL_Z_C04 of a filter (N, C, H, W) with C <= 4."""
    n, _, h, w = nchw.shape
    blocks, n1, _, c0 = storage_shape(desc)
    taps = _zero_padded(nchw, (n, SMALL_CHANNELS, h, w)).transpose(0, 2, 3, 1).reshape(n, -1)
    columns = _zero_padded(taps, (n1 * FRACTAL_ROWS, blocks * c0))
    return np.ascontiguousarray(columns.reshape(n1, FRACTAL_ROWS, blocks, c0).transpose(2, 0, 1, 3))


def _unpack_small(array: np.ndarray, desc: TensorDesc) -> np.ndarray:
    """The inverse of :func:`_pack_small`."""
    n, c, h, w = _nchw(desc)
    columns = array.transpose(1, 2, 0, 3).reshape(-1, array.shape[0] * desc.c0)[:n, : SMALL_CHANNELS * h * w]
    return columns.reshape(n, h, w, SMALL_CHANNELS).transpose(0, 3, 1, 2)[:, :c]


def unpack(array: np.ndarray, desc: TensorDesc) -> np.ndarray:
    """The inverse of :func:`pack`: padding lanes are dropped.

    Transformed filters come back as :func:`metadef.winograd.restore_filter` says, to the last places.

    Raises:
        InferError: the array's shape is not the storage shape.
    """
    if array.shape != storage_shape(desc):
        raise InferError("array does not fit its descriptor", expected=str(storage_shape(desc)), got=str(array.shape))
    if desc.is_plain:
        return array
    if desc.format == Format.FRACTAL_NZ:
        *batch, rows, columns = desc.origin_shape
        *_, column_blocks, row_blocks, row, c0 = array.shape
        lead = tuple(range(len(batch)))
        axes = (*lead, *(len(batch) + axis for axis in (1, 2, 0, 3)))
        plain = array.transpose(axes).reshape(*batch, row_blocks * row, column_blocks * c0)
        return np.ascontiguousarray(plain[..., :rows, :columns])
    n, c, h, w = _nchw(desc)
    if desc.format in IMAGE_FORMATS:
        nchw = array.transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w)[:, :c]
    elif desc.format == Format.FRACTAL_Z_C04:
        nchw = _unpack_small(array, desc)
    elif desc.format in WINOGRAD_FORMATS:
        nchw = restore_filter(winograd_planes(array, desc), WINOGRAD_FORMATS[desc.format])
    else:
        c1, n1 = ceil_div(c, desc.c0), ceil_div(n, FRACTAL_ROWS)
        blocks = array.reshape(c1, h, w, n1, FRACTAL_ROWS, desc.c0).transpose(3, 4, 0, 5, 1, 2)
        nchw = blocks.reshape(n1 * FRACTAL_ROWS, c1 * desc.c0, h, w)[:n, :c]
    return np.ascontiguousarray(nchw.transpose(np.argsort(_axes(desc))))


def winograd_planes(array: np.ndarray, desc: TensorDesc) -> np.ndarray:
    """U (products, N, C) of a transformed filter in storage layout, padding dropped."""
    n, c, _, _ = _nchw(desc)
    planes = array.transpose(0, 2, 3, 1, 4).reshape(array.shape[0], -1, array.shape[1] * array.shape[4])
    return np.ascontiguousarray(planes[:, :n, :c])


def _zero_padded(array: np.ndarray, shape: Shape) -> np.ndarray:
    if array.shape == shape:
        return array
    padded = np.zeros(shape, array.dtype)
    padded[tuple(slice(size) for size in array.shape)] = array
    return padded
