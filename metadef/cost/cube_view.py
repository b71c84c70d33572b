"""A cube kernel as a batched matrix product: what its tiles move, whatever operator it came from.

This is the home of the GEMM view that :class:`metadef.kernel.CubeTile` speaks of. A convolution has one product per
image (and per block of groups): M = output pixels, N = output channels, K = taps times channels padded to C0 (to four
in NC1HWC0_C04, where several taps share a fractal). Groups narrower than a channel block share one product whose filter
is zero off the diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm
from typing import Any

import numpy as np

from metadef.cost.signatures import find_signature
from metadef.dtype import DType
from metadef.format import FRACTAL_ROWS, SMALL_CHANNELS, Format, TensorDesc, ceil_div, round_up
from metadef.kernel import CubeTile, Kernel
from metadef.op import CostClass, find_op, get_op
from metadef.ops.geometry import ConvGeometry, MatMulGeometry, PictureGeometry
from metadef.target import Target

B_SHARE = "b_share"
"""Attribute of a timing-only product: see ``CubeView.b_share``."""
HF32 = "hf32"
"""Attribute of a product or convolution of fp32 whose operands are rounded to HF32, at twice the rate."""
BY_PIXEL_RATE = 32.0
"""Bytes per cycle of a load3d that fetches pixel by pixel."""
FIXPIPE_OPS = frozenset({"Relu", "LeakyRelu", "PRelu"})
"""Epilogues that the fixpipe applies on the way out; any other needs the vector core, by way of a workspace."""
RESIDENTS = ("", "a", "b", "a_panel", "b_panel")
"""What may stay in L1, as in ``CubeTile.resident``; arrays of candidates use the index."""


@dataclass(frozen=True)
class Window:
    """The sliding window of a convolution (elements): how output pixels map to rows of the input image."""

    h: int
    w: int
    ow: int
    stride_h: int
    stride_w: int
    extent_h: int
    extent_w: int
    pad_top: int
    pad_left: int
    spread: int = 1
    """Pixels of the window's image for each one of x: zeros between them are made on the chip, not read."""

    @property
    def by_pixel(self) -> bool:
        """load3d fetches pixel by pixel unless the stride is 1, 2 or 4 (source: the vendor's load3d estimator)."""
        return self.stride_w not in (1, 2, 4)

    def input_pixels(self, start: Any, stop: Any) -> Any:
        """Input pixels under output pixels start..stop-1 of one image (integers or arrays).

        Padding is not read. A tile within one output row reads only the columns under it.
        """
        first_row, last_row = start // self.ow, (stop - 1) // self.ow
        top = np.maximum(first_row * self.stride_h - self.pad_top, 0)
        bottom = np.minimum(last_row * self.stride_h - self.pad_top + self.extent_h, self.h)
        left = np.maximum((start - first_row * self.ow) * self.stride_w - self.pad_left, 0)
        last_column = stop - 1 - last_row * self.ow
        right = np.minimum(last_column * self.stride_w - self.pad_left + self.extent_w, self.w)
        width = np.where(first_row == last_row, np.maximum(right - left, 0), self.w)
        return -(-np.maximum(bottom - top, 0) * width // self.spread)


@dataclass(frozen=True)
class CubeView:
    """Sizes of a cube kernel. M, N, K are elements of one product; K is padded to whole channel blocks.

    ``a_channels`` is how many elements of K one input pixel holds (``k`` for a matrix product); ``x_path`` are the DMA
    paths; ``shared_b`` says that all products of the batch read one B; ``extra_bytes`` are bytes an element of each
    epilogue operand that has the result's shape; ``out_bytes`` is the result's element. ``turned_*`` operands lie
    across the order that L0 wants and are transposed on the way from L1. ``b_share`` is how many bytes of B a load
    moves per byte that L0 gets: below one where B is an image whose taps are laid out on the way from L1, as in
    gradients by the filter. ``a_share`` is how many bytes of A a load reads per byte that it leaves in L1: below one
    where AIPP makes images of pictures on the way.
    """

    dtype: DType
    batch: int
    m: int
    n: int
    k: int
    fractal_k: int
    a_channels: int
    window: Window | None
    a_path: str
    b_path: str
    shared_a: bool
    shared_b: bool
    has_bias: bool
    out_bytes: int
    plain_out: bool
    extra_bytes: tuple[int, ...]
    epilogue: tuple[str, ...]
    macs: int
    turned_a: bool = False
    turned_b: bool = False
    b_share: float = 1.0
    a_share: float = 1.0
    hf32: bool = False

    @classmethod
    def of(cls, kernel: Kernel, target: Target) -> CubeView:
        """From a Conv2D, MatMulV2 or BatchMatMulV2 kernel.

        Raises:
            TargetError: the cube cannot multiply the element type. InferError: shapes do not fit.
        """
        opdef = get_op(kernel.op_type)
        if opdef.cost is CostClass.CONV:
            return _conv_view(kernel, target)
        return _matmul_view(kernel, target)

    @property
    def element_bytes(self) -> int:
        return self.dtype.bytes

    def fractal_cycles(self, target: Target) -> int:
        """Cycles of one product of fractals (source for HF32: Ascend C, half the fp16 rate)."""
        return max(target.fractal_cycles(self.dtype) // (2 if self.hf32 else 1), 1)

    @property
    def channel_block(self) -> int:
        """Elements of K that lie together in a pixel of A: a fractal's, or all of fewer channels (C04)."""
        return min(self.a_channels, self.fractal_k)

    @property
    def block_fractals(self) -> int:
        """K fractals made of one channel block of A: one a tap, or all taps of few channels together (C04)."""
        return ceil_div(self.k, self.fractal_k) // ceil_div(self.a_channels, self.fractal_k)

    def a_bytes(self, start: Any, stop: Any) -> Any:
        """Bytes of A that rows start..stop-1 of M need over the whole of K (integers or arrays)."""
        pixels = stop - start if self.window is None else self.window.input_pixels(start, stop)
        return pixels * self.a_channels * self.element_bytes

    def made_cycles(self, target: Target) -> float:
        """Cycles that a channel block of A adds to its load for what is made on the chip: zeros between pixels, or what
        AIPP makes of pictures. No rate of that unit is published: L1 is taken to fill at the path's."""
        if self.window is not None and self.window.spread > 1:
            return float(target.value("cube.insert_cycles"))
        block_bytes = target.c0(self.dtype) * self.element_bytes
        return block_bytes * (1 - self.a_share) / target.path(self.a_path).bytes_per_cycle

    def l0_rates(self, target: Target) -> tuple[float, float]:
        """Bytes per cycle of A and of B from L1 to L0: slower by pixel and for operands that are turned."""
        left, right = target.path("L1->L0A").bytes_per_cycle, target.path("L1->L0B").bytes_per_cycle
        factor = target.value("cube.turned_load_factor")
        if self.window is not None and self.window.by_pixel:
            left = BY_PIXEL_RATE
        return left / (factor if self.turned_a else 1), right / (factor if self.turned_b else 1)

    def panel_fits(self, target: Target, tile: CubeTile) -> bool:
        """Whether, with all of A or all of B of a core's piece in L1, a panel of the other operand fits beside it."""
        piece = piece_of(self, tile)
        size = self.element_bytes
        if tile.resident == "a":
            need = int(self.a_bytes(0, min(piece.m, self.m))) + piece.k * tile.n0 * size
        else:
            need = piece.k * piece.n * size + int(self.a_bytes(0, min(tile.m0, self.m)))
        return need <= target.buffer_bytes["L1"]


def is_cube_kernel(kernel: Kernel) -> bool:
    """Whether the cube computes it."""
    opdef = find_op(kernel.op_type)
    return opdef is not None and opdef.cost in (CostClass.CONV, CostClass.MATMUL)


@dataclass(frozen=True)
class Piece:
    """What the fullest core computes: products, and rows, columns and depth of each (whole fractals)."""

    batch: int
    m: int
    n: int
    k: int


def piece_of(view: CubeView, tile: CubeTile, *, smallest: bool = False) -> Piece:
    """The share of the fullest (or emptiest working) core: whole fractals are dealt, the first cores take one more."""
    rows, columns = ceil_div(view.m, FRACTAL_ROWS), ceil_div(view.n, FRACTAL_ROWS)
    depth = ceil_div(view.k, view.fractal_k)

    def share(count: int, split: int) -> int:
        full = ceil_div(count, split)
        if not smallest:
            return full
        return max(count - full * (ceil_div(count, full) - 1), 1)

    return Piece(
        share(view.batch, tile.split_batch),
        share(rows, tile.split_m) * FRACTAL_ROWS,
        share(columns, tile.split_n) * FRACTAL_ROWS,
        share(depth, tile.split_k) * view.fractal_k,
    )


def _common(kernel: Kernel, base: int) -> dict[str, Any]:
    """Bias, epilogue and result: ``base`` is the number of operands of the operator itself."""
    result = kernel.outputs[0]
    work: list[str] = []
    extra: list[int] = []
    for item in kernel.fused:
        work += _fused_work(item.op_type)
        desc = kernel.inputs[item.operand] if item.operand is not None else None
        over = (
            desc is not None and desc.format is Format.FRACTAL_NZ and result.origin_shape[-2:] == desc.origin_shape[-2:]
        )
        if desc is not None and (over or desc.elements == result.elements):
            extra.append(desc.dtype.bytes)
    return {
        "has_bias": base > 2 and len(kernel.inputs) > 2 and kernel.inputs[2] is not None,
        "out_bytes": result.dtype.bytes,
        "plain_out": result.is_plain,
        "extra_bytes": tuple(extra),
        "epilogue": tuple(work),
        "hf32": bool(kernel.attrs.get(HF32)),
    }


def _fused_work(op_type: str) -> tuple[str, ...]:
    """Instructions a repeat of a fused operator; timing-only ones (training) have a signature."""
    signature = find_signature(op_type)
    if signature is None:
        return get_op(op_type).work.per_repeat
    # A repeat of 16-bit elements covers two of the fp32 results.
    return signature.work if signature.fp32 else signature.work[::2]


def _load_path(desc: TensorDesc) -> str:
    return "GM->L1 ND2NZ" if desc.is_plain else "GM->L1"


def _merged_groups(g: ConvGeometry, c0_in: int, c0_out: int) -> int:
    """Groups that share one product: as many as fill whole channel blocks on both sides, which nothing else can read or
    write (all of them if they never do)."""
    return min(g.groups, lcm(c0_in // gcd(g.group_c, c0_in), c0_out // gcd(g.group_oc, c0_out)))


def _conv_view(kernel: Kernel, target: Target) -> CubeView:
    g = ConvGeometry.of(kernel)
    x = kernel.multiplied
    assert x is not None
    c0 = target.c0(x.dtype)
    merged = _merged_groups(g, c0, target.c0(kernel.outputs[0].dtype))
    small = x.format is Format.NC1HWC0_C04
    channels = SMALL_CHANNELS if small else round_up(merged * g.group_c, c0)
    window = Window(
        g.h,
        g.w,
        g.ow,
        g.stride_h,
        g.stride_w,
        (g.kh - 1) * g.dilation_h + 1,
        (g.kw - 1) * g.dilation_w + 1,
        g.pad_top,
        g.pad_left,
        g.spread_h * g.spread_w,
    )
    return CubeView(
        dtype=x.dtype,
        batch=g.n * ceil_div(g.groups, merged),
        m=g.oh * g.ow,
        n=merged * g.group_oc,
        k=round_up(channels * g.kh * g.kw, target.fractal_k(x.dtype)),
        fractal_k=target.fractal_k(x.dtype),
        a_channels=channels,
        window=window,
        a_path=_load_path(x),
        b_path="GM->L1",
        shared_a=False,
        shared_b=g.groups == 1,
        macs=g.macs,
        turned_b="input_size" in kernel.attrs,
        a_share=_picture_share(kernel, channels * x.dtype.bytes),
        **_common(kernel, 3),
    )


def _picture_share(kernel: Kernel, pixel_bytes: int) -> float:
    """Bytes of pictures read for every byte of the images that AIPP makes of them; 1 without AIPP."""
    if "input_format" not in kernel.attrs:
        return 1.0
    g = PictureGeometry.of(kernel)
    return g.cut_bytes / (g.oh * g.ow * pixel_bytes)


def _matmul_view(kernel: Kernel, target: Target) -> CubeView:
    a, b = kernel.inputs[0], kernel.inputs[1]
    assert a is not None and b is not None
    # Fractals of one product end at whole rows: batches of them do not join to one tall product.
    g = MatMulGeometry.of(kernel, fold=a.is_plain and kernel.outputs[0].is_plain)
    k = round_up(g.k, target.fractal_k(a.dtype))
    count = g.batch
    return CubeView(
        dtype=a.dtype,
        batch=count,
        m=g.m,
        n=g.n,
        k=k,
        fractal_k=target.fractal_k(a.dtype),
        a_channels=k,
        window=None,
        a_path=_load_path(a),
        b_path="GM->L1" if b.format in (Format.FRACTAL_NZ, Format.FRACTAL_Z) else "GM->L1 ND2NZ",
        shared_a=count > 1 and a.elements == g.m * g.k,
        shared_b=count == 1 or b.elements == g.k * g.n,
        macs=g.macs,
        b_share=float(kernel.attrs.get(B_SHARE, 1.0)),
        turned_a=bool(kernel.attrs.get("transpose_x1", kernel.attrs.get("adj_x1"))),
        # An image whose taps are laid out on the way from L1 comes as the cube wants it.
        turned_b=b.format is Format.FRACTAL_NZ
        and B_SHARE not in kernel.attrs
        and not kernel.attrs.get("transpose_x2", kernel.attrs.get("adj_x2")),
        **_common(kernel, 3),
    )
