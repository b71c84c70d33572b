"""Sizes of convolution, pooling, pictures and matrix products: one home for prototypes, costs, tiling and host plans.

Each geometry is a frozen value, derived from operand descriptors and attributes (or straight from a kernel). Sizes are
in elements of the *origin* shape, order N, C, H, W. Nothing here depends on the chip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from metadef.error import InferError
from metadef.format import SMALL_CHANNELS, Format, Shape, TensorDesc
from metadef.kernel import Kernel

Descs = Sequence[TensorDesc | None]


@dataclass(frozen=True)
class ConvGeometry:
    """A 2-D convolution: x (n, c, h, w), filter (oc, c / groups, kh, kw), result (n, oc, oh, ow).

    A transposed convolution is the convolution it amounts to, of stride 1 over an image with zeros between the pixels:
    h and w count these, and pixels of x lie ``spread_h`` rows and ``spread_w`` columns apart (1: no zeros).
    """

    n: int
    c: int
    h: int
    w: int
    oc: int
    oh: int
    ow: int
    kh: int
    kw: int
    stride_h: int
    stride_w: int
    pad_top: int
    pad_bottom: int
    pad_left: int
    pad_right: int
    dilation_h: int
    dilation_w: int
    groups: int
    spread_h: int = 1
    spread_w: int = 1

    @classmethod
    def of(cls, source: Kernel | Descs, attrs: Mapping[str, Any] | None = None) -> ConvGeometry:
        """From the kernel of a convolution, or from (x, filter, …) descriptors and the attributes.

        Attributes with ``input_size`` are those of a transposed convolution, whose filter is (c, oc / groups, kh, kw);
        those with ``input_format`` have AIPP's among them, and x is what it makes of pictures.

        Raises:
            InferError: ranks, channels, groups or window do not fit.
        """
        descs, attrs = _operands(source, attrs)
        pictures = PictureGeometry.of(descs, attrs) if "input_format" in attrs else None
        x, weight = pictures.out_shape if pictures else _rank4(descs[0], "x"), _rank4(descs[1], "filter")
        if "input_size" in attrs:
            return cls._transposed(x, weight, attrs)
        groups = attrs.get("groups", 1)
        n, c, h, w = x
        oc, group_c, kh, kw = weight
        if group_c * groups != c:
            raise InferError(
                "channels of x and filter do not fit",
                code="E14001",
                port="filter",
                expected=f"C of the filter = C of x / groups = {c} / {groups}",
                got=f"{group_c}",
            )
        if groups < 1 or oc % groups:
            raise InferError(
                "output channels are no multiple of groups",
                code="E14001",
                expected=f"multiple of {groups}",
                got=str(oc),
            )
        (stride_h, stride_w), (dilation_h, dilation_w) = attrs["strides"][2:], attrs.get("dilations", (1, 1, 1, 1))[2:]
        top, bottom, left, right = attrs.get("pads", (0, 0, 0, 0))
        oh = window_count(h, kh, stride_h, top, bottom, dilation_h, axis="H")
        ow = window_count(w, kw, stride_w, left, right, dilation_w, axis="W")
        return cls(
            n, c, h, w, oc, oh, ow, kh, kw, stride_h, stride_w, top, bottom, left, right, dilation_h, dilation_w, groups
        )  # fmt: skip

    @classmethod
    def _transposed(cls, x: Shape, weight: Shape, attrs: Mapping[str, Any]) -> ConvGeometry:
        """Zeros between the pixels, and around them as many as the filter reaches, less what the pads cut off."""
        groups, (n, c, h, w), (filter_c, group_oc, kh, kw) = attrs["groups"], x, weight
        if filter_c != c or c % groups:
            expected = f"{c} in front, a multiple of {groups} groups"
            raise InferError(
                "channels of x and filter do not fit",
                code="E14001",
                port="filter",
                expected=expected,
                got=str(filter_c),
            )
        (stride_h, stride_w), (dilation_h, dilation_w) = attrs["strides"][2:], attrs["dilations"][2:]
        extra_h, extra_w = attrs["output_padding"][2:]
        room_h, room_w = (kh - 1) * dilation_h, (kw - 1) * dilation_w
        top, bottom, left, right = attrs["pads"]
        around = (room_h - top, room_h - bottom + extra_h, room_w - left, room_w - right + extra_w)
        if min(around) < 0:
            raise InferError(
                "the pads cut off more than the filter adds",
                code="E14001",
                expected=f"at most {room_h} along H, {room_w} along W",
                got=str(attrs["pads"]),
            )
        tall, wide = max(h - 1, 0) * stride_h + min(h, 1), max(w - 1, 0) * stride_w + min(w, 1)
        oh = window_count(tall, kh, 1, around[0], around[1], dilation_h, axis="H")
        ow = window_count(wide, kw, 1, around[2], around[3], dilation_w, axis="W")
        if (oh, ow) != tuple(attrs["input_size"][2:]):
            raise InferError(
                "the result has another size than stated",
                code="E14001",
                expected=str(tuple(attrs["input_size"][2:])),
                got=str((oh, ow)),
            )
        return cls(
            n, c, tall, wide, group_oc * groups, oh, ow, kh, kw, 1, 1, *around, dilation_h, dilation_w, groups,
            stride_h, stride_w,
        )  # fmt: skip

    @property
    def group_c(self) -> int:
        """Input channels of one group."""
        return self.c // self.groups

    @property
    def group_oc(self) -> int:
        """Output channels of one group."""
        return self.oc // self.groups

    @property
    def is_depthwise(self) -> bool:
        """One input channel a group."""
        return self.groups > 1 and self.groups == self.c

    @property
    def is_pointwise(self) -> bool:
        """A 1x1 window without padding: a matrix product over (strided) pixels."""
        return self.kh == self.kw == 1 and not any((self.pad_top, self.pad_bottom, self.pad_left, self.pad_right))

    @property
    def macs(self) -> int:
        """Multiply-accumulates, padding taps included."""
        return self.n * self.oh * self.ow * self.oc * self.group_c * self.kh * self.kw

    @property
    def out_shape(self) -> Shape:
        return self.n, self.oc, self.oh, self.ow

    @property
    def gemm(self) -> tuple[int, int, int]:
        """(M, N, K) of one group's product after image-to-column: pixels, output channels, taps."""
        return self.n * self.oh * self.ow, self.group_oc, self.group_c * self.kh * self.kw


PICTURE_BYTES = {"RGB888_U8": 3, "XRGB8888_U8": 4, "YUV420SP_U8": 1, "YUV400_U8": 1}
"""Layouts of pictures that AIPP reads, and bytes that lie together in one place of a row."""
_PICTURE_CHANNELS = {"RGB888_U8": (1, 3), "XRGB8888_U8": (1, 3, 4), "YUV420SP_U8": (1, 3), "YUV400_U8": (1,)}


@dataclass(frozen=True)
class PictureGeometry:
    """What AIPP cuts out of pictures of bytes (n, rows, columns, bytes), and the images (n, c, oh, ow) it makes of it.

    ``first_row`` and ``first_column`` are where the cut of h by w pixels begins; ``top`` to ``right`` are its border.
    YUV420SP has half as many rows again, of colours: one pair for every two by two pixels.
    """

    n: int
    c: int
    src_h: int
    src_w: int
    first_row: int
    first_column: int
    h: int
    w: int
    top: int
    bottom: int
    left: int
    right: int
    input_format: str

    @classmethod
    def of(cls, source: Kernel | Descs, attrs: Mapping[str, Any] | None = None) -> PictureGeometry:
        """From the kernel of an operator that reads pictures, or from (images, …) descriptors and the attributes.

        Raises:
            InferError: the pictures are none of that format, or the cut does not lie within them.
        """
        descs, attrs = _operands(source, attrs)
        n, rows, columns, together = _rank4(descs[0], "images")
        layout = attrs["input_format"]
        halved = layout == "YUV420SP_U8"
        if together != PICTURE_BYTES[layout] or (halved and (rows % 3 or columns % 2)):
            shape = "(n, 3 h / 2, w, 1) with even w" if halved else f"(n, h, w, {PICTURE_BYTES[layout]})"
            got = str((n, rows, columns, together))
            raise InferError(f"no pictures of {layout}", code="E14001", port="images", expected=shape, got=got)
        src_h = rows // 3 * 2 if halved else rows
        (first_row, first_column), (h, w) = attrs["load_start_pos"], attrs["crop_size"]
        if first_row + h > src_h or first_column + w > columns:
            got = f"rows {first_row} to {first_row + h}, columns {first_column} to {first_column + w}"
            expected = f"within {src_h} rows and {columns} columns"
            raise InferError("the cut leaves the picture", code="E14001", expected=expected, got=got)
        if halved and any(value % 2 for value in (first_row, first_column, h, w)):
            got = f"{h} x {w} from ({first_row}, {first_column})"
            raise InferError("pixels in pairs cannot be cut so", code="E14001", expected="even numbers", got=got)
        if attrs["csc_switch"] and max(_PICTURE_CHANNELS[layout]) == 1:
            raise InferError(f"{layout} has no colours to convert", code="E14001", hint="switch csc_switch off")
        c = attrs["channels"]
        if c not in _PICTURE_CHANNELS[layout] or (c == 1 < max(_PICTURE_CHANNELS[layout]) and not attrs["csc_switch"]):
            expected = " or ".join(map(str, _PICTURE_CHANNELS[layout])) + ", one of several by colour conversion only"
            raise InferError(f"{layout} has no {c} channels", code="E14001", expected=expected, got=str(c))
        top, bottom, left, right = attrs["padding"]
        return cls(n, c, src_h, columns, first_row, first_column, h, w, top, bottom, left, right, layout)

    @property
    def oh(self) -> int:
        return self.top + self.h + self.bottom

    @property
    def ow(self) -> int:
        return self.left + self.w + self.right

    @property
    def out_shape(self) -> Shape:
        return self.n, self.c, self.oh, self.ow

    @property
    def row_bytes(self) -> int:
        """Bytes between rows of the pictures."""
        return self.src_w * PICTURE_BYTES[self.input_format]

    @property
    def cut_rows(self) -> int:
        """Rows of bytes under the cut of one picture, those of colours too."""
        return self.h * 3 // 2 if self.input_format == "YUV420SP_U8" else self.h

    @property
    def cut_bytes(self) -> int:
        """Bytes under the cut of one picture."""
        return self.cut_rows * self.w * PICTURE_BYTES[self.input_format]


def multiplied(kernel: Kernel) -> TensorDesc | None:
    """The left operand of a product as the cube multiplies it: operand 0, or the images that AIPP makes of it on
    its way into L1, in the blocks that the filter is stored for."""
    x, weight = kernel.inputs[0], kernel.inputs[1] if len(kernel.inputs) > 1 else None
    if x is None or weight is None or "input_format" not in kernel.attrs:
        return x
    small = weight.format is Format.FRACTAL_Z_C04
    fmt, c0 = (Format.NC1HWC0_C04, SMALL_CHANNELS) if small else (Format.NC1HWC0, weight.c0)
    return TensorDesc(PictureGeometry.of(kernel).out_shape, weight.dtype, Format.NCHW, fmt, c0)


@dataclass(frozen=True)
class PoolGeometry:
    """A 2-D pooling window over x (n, c, h, w).

    ``pad_bottom``/``pad_right`` are the declared ones; with ``ceil_mode`` the last window may reach ``overhang_h`` or
    ``overhang_w`` elements past them: those never count, neither for a maximum nor for an average.
    """

    n: int
    c: int
    h: int
    w: int
    oh: int
    ow: int
    kh: int
    kw: int
    stride_h: int
    stride_w: int
    pad_top: int
    pad_bottom: int
    pad_left: int
    pad_right: int

    @classmethod
    def of(cls, source: Kernel | Descs, attrs: Mapping[str, Any] | None = None) -> PoolGeometry:
        """From a pooling kernel, or from (x,) descriptors and the attributes.

        Without ``ksize`` (GlobalAveragePool), or with ``global_pooling``, the window is the whole plane.

        Raises:
            InferError: rank or window do not fit.
        """
        descs, attrs = _operands(source, attrs)
        n, c, h, w = _rank4(descs[0], "x")
        if "ksize" not in attrs or attrs.get("global_pooling", False):
            return cls(n, c, h, w, 1, 1, h, w, 1, 1, 0, 0, 0, 0)
        (kh, kw), (stride_h, stride_w) = attrs["ksize"][2:], attrs["strides"][2:]
        top, bottom, left, right = attrs.get("pads", (0, 0, 0, 0))
        ceil_mode = attrs.get("ceil_mode", False)
        oh = window_count(h, kh, stride_h, top, bottom, ceil_mode=ceil_mode, axis="H")
        ow = window_count(w, kw, stride_w, left, right, ceil_mode=ceil_mode, axis="W")
        return cls(n, c, h, w, oh, ow, kh, kw, stride_h, stride_w, top, bottom, left, right)

    @property
    def overhang_h(self) -> int:
        """Rows that the last window reaches past the declared padding."""
        return max(0, (self.oh - 1) * self.stride_h + self.kh - (self.h + self.pad_top + self.pad_bottom))

    @property
    def overhang_w(self) -> int:
        return max(0, (self.ow - 1) * self.stride_w + self.kw - (self.w + self.pad_left + self.pad_right))

    @property
    def is_global(self) -> bool:
        """One window that covers the plane exactly."""
        return (self.oh, self.ow, self.kh, self.kw) == (1, 1, self.h, self.w)

    @property
    def out_shape(self) -> Shape:
        return self.n, self.c, self.oh, self.ow

    def window_elements(self, include_pad: bool) -> np.ndarray:
        """int64 (oh, ow): how many elements an average divides by; ``include_pad`` counts the declared padding too."""
        rows = _covered(self.oh, self.stride_h, self.kh, self.pad_top, self.h, self.pad_bottom if include_pad else None)
        columns = _covered(
            self.ow, self.stride_w, self.kw, self.pad_left, self.w, self.pad_right if include_pad else None
        )
        return np.outer(rows, columns)


@dataclass(frozen=True)
class MatMulGeometry:
    """A (batched) matrix product (…, m, k) x (…, k, n) -> (…, m, n); the leading axes broadcast.

    ``transpose_a`` says that x1 is stored (…, k, m), ``transpose_b`` that x2 is stored (…, n, k).
    """

    m: int
    n: int
    k: int
    batch_shape: Shape = ()
    a_batch_shape: Shape = ()
    b_batch_shape: Shape = ()
    transpose_a: bool = False
    transpose_b: bool = False

    @classmethod
    def of(
        cls, source: Kernel | Descs, attrs: Mapping[str, Any] | None = None, *, fold: bool = False
    ) -> MatMulGeometry:
        """From a MatMulV2/BatchMatMulV2 kernel, or from (x1, x2, …) descriptors and the attributes.

        ``fold`` turns a batch of x1 against one shared x2 into a single product with ``batch * m`` rows (plain layout).

        Raises:
            InferError: ranks, K or batch axes do not fit.
        """
        descs, attrs = _operands(source, attrs)
        shapes = [_at_least_2d(descs[0], "x1"), _at_least_2d(descs[1], "x2")]
        transpose_a = bool(attrs.get("transpose_x1", attrs.get("adj_x1", False)))
        transpose_b = bool(attrs.get("transpose_x2", attrs.get("adj_x2", False)))
        (*a_batch, a_rows, a_columns), (*b_batch, b_rows, b_columns) = shapes
        m, k = (a_columns, a_rows) if transpose_a else (a_rows, a_columns)
        k_b, n = (b_columns, b_rows) if transpose_b else (b_rows, b_columns)
        if k != k_b:
            raise InferError(
                "inner sizes of the product differ",
                code="E14001",
                expected=f"K of x2 = K of x1 = {k}",
                got=f"x1 {list(shapes[0])}, x2 {list(shapes[1])}",
                hint=f"transpose flags are {transpose_a} and {transpose_b}",
            )
        batch = broadcast_shapes(tuple(a_batch), tuple(b_batch))
        if fold and not transpose_a and prod(b_batch) == 1 and tuple(a_batch) == batch:
            return cls(prod(batch) * m, n, k, transpose_b=transpose_b)
        return cls(m, n, k, batch, tuple(a_batch), tuple(b_batch), transpose_a, transpose_b)

    @property
    def batch(self) -> int:
        """Products to compute."""
        return prod(self.batch_shape)

    @property
    def macs(self) -> int:
        return self.batch * self.m * self.n * self.k

    @property
    def out_shape(self) -> Shape:
        return *self.batch_shape, self.m, self.n

    def batch_index(self, operand: str) -> np.ndarray:
        """int64 (batch,): which matrix of operand "a" or "b" each product reads, broadcasting resolved."""
        shape = self.a_batch_shape if operand == "a" else self.b_batch_shape
        index = np.arange(prod(shape), dtype=np.int64).reshape(shape)
        return np.broadcast_to(index, self.batch_shape).ravel()


def window_count(
    size: int,
    kernel: int,
    stride: int,
    pad_begin: int,
    pad_end: int,
    dilation: int = 1,
    *,
    ceil_mode: bool = False,
    axis: str = "",
) -> int:
    """Windows along one axis. A last window that would start in the end padding is dropped (``ceil_mode``).

    An axis of zero elements gives no window, so that empty batches and images pass through.

    Raises:
        InferError: the window is larger than the padded axis.
    """
    extent = (kernel - 1) * dilation + 1
    room = size + pad_begin + pad_end - extent
    if size == 0:
        return 0
    count = (-(-room // stride) if ceil_mode else room // stride) + 1
    if count < 1:
        raise InferError(
            f"the window is larger than the padded {axis or 'axis'}",
            code="E14001",
            expected=f"window extent <= {size + pad_begin + pad_end}",
            got=f"{extent} (kernel {kernel}, dilation {dilation})",
        )
    if ceil_mode and (count - 1) * stride >= size + pad_begin:
        count -= 1
    return count


def same_padding(size: int, kernel: int, stride: int, dilation: int = 1, *, upper: bool = True) -> tuple[int, int]:
    """(begin, end) of ``auto_pad`` SAME: ceil(size / stride) windows; the odd element goes to the end if ``upper``."""
    count = -(-size // stride)
    total = max((count - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    small, large = total // 2, total - total // 2
    return (small, large) if upper else (large, small)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The common shape by NumPy's rule: aligned at the right, 1 stretches.

    Raises:
        InferError: two sizes differ and neither is 1.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result = []
    for axis in range(-rank, 0):
        sizes = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(sizes) > 1:
            shown = " and ".join(str(list(shape)) for shape in shapes)
            raise InferError(
                f"shapes {shown} do not broadcast",
                code="E14001",
                expected="equal sizes or 1",
                got=f"axis {axis}: {sorted(sizes)}",
            )
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def normal_axis(axis: int, rank: int, what: str = "axis") -> int:
    """A non-negative axis.

    Raises:
        InferError: the axis lies outside the rank.
    """
    if not -rank <= axis < max(rank, 1):
        raise InferError(
            f"{what} {axis} lies outside the tensor", code="E14001", expected=f"{-rank} to {rank - 1}", got=str(axis)
        )
    return axis + rank if axis < 0 else axis


def normal_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Sorted non-negative axes. Raises InferError for one outside the rank, or named twice."""
    result = sorted(normal_axis(axis, rank) for axis in axes)
    if len(set(result)) != len(result):
        raise InferError("an axis is named twice", code="E14001", got=str(list(axes)))
    return tuple(result)


def _operands(source: Kernel | Descs, attrs: Mapping[str, Any] | None) -> tuple[Descs, Mapping[str, Any]]:
    if isinstance(source, Kernel):
        return source.inputs, source.attrs if attrs is None else attrs
    return source, attrs or {}


def _rank4(desc: TensorDesc | None, port: str) -> Shape:
    if desc is None or len(desc.origin_shape) != 4:
        got = "nothing" if desc is None else str(list(desc.origin_shape))
        raise InferError(
            "operand is not a stack of images", code="E14001", port=port, expected="four axes N, C, H, W", got=got
        )
    return desc.origin_shape


def _at_least_2d(desc: TensorDesc | None, port: str) -> Shape:
    if desc is None or len(desc.origin_shape) < 2:
        got = "nothing" if desc is None else str(list(desc.origin_shape))
        raise InferError("operand is not a matrix", code="E14001", port=port, expected="at least two axes", got=got)
    return desc.origin_shape


def _covered(count: int, stride: int, kernel: int, pad_begin: int, size: int, pad_end: int | None) -> np.ndarray:
    """Elements under each window along one axis; ``pad_end`` None leaves padding out."""
    first = np.arange(count, dtype=np.int64) * stride - pad_begin
    if pad_end is None:
        return np.minimum(first + kernel, size) - np.maximum(first, 0)
    return np.minimum(first + kernel, size + pad_end) - first
