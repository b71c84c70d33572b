"""Cube tasks of the first generation's training steps: convolutions, their gradients and matrix products.

A gradient by the input is the transposed convolution it amounts to; one by the filter is a product over all pixels.
What is fused behind a product (batch statistics, activations and their gradients) is an epilogue of the vector unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import gcd, prod
from pathlib import Path

import numpy as np

from metadef.cost.cube_view import B_SHARE
from metadef.dtype import DType
from metadef.format import Format, TensorDesc
from metadef.kernel import CubeTile, Engine, FusedOp, Kernel
from metadef.select.cube import choose_cube_kernel
from metadef.select.cube_candidates import Table
from metadef.target import Target
from timing_data import Pair, Sample, collect, kernel_us, make_desc, parse_shapes, rows_of
from timing_split import Adjust, published

FILE = "op_trace_910_gen1"
_FRACTAL_SUM_BYTES = 1024
_PRODUCTS = ("MatMulV2", "BatchMatMulV2")
_TUNED = {"resnet50_32_224_224", "resnet50_64_224_224"}
"""Graphs whose block_dims are those of a tuning tool: the cheapest split."""
_EPILOGUES = {
    "BNTrainingReduce": ("FusedBNTrainingReduce",), "ReluGradV2": ("ReluGradV2",), "AddN": ("Add",), "GeLU": ("Gelu",),
    "GeLUGrad": ("GeLUGrad",), "Tanh": ("Tanh",), "ReLU": ("Relu",), "Mul": ("Mul",), "FusedMulAdd": ("FusedMulAddN",),
}  # fmt: skip


def _fused(op_type: str, first_extra: int, extras: int) -> tuple[FusedOp, ...]:
    """The epilogue that a fused type's name tells; operands beyond the product's own are read by it in order."""
    if not op_type.startswith("FusionOp"):
        return ()
    parts = op_type.removesuffix("_AddN_ReluGradV2").split("_")[2:]
    names = [name for part in parts for name in _EPILOGUES[part]]
    if op_type.endswith("_AddN_ReluGradV2"):
        names.append("FusedAddNReluGradV2")
    operands = [*range(first_extra, first_extra + extras), *[None] * len(names)]
    return tuple(FusedOp(name, operand=operand) for name, operand in zip(names, operands))


def batch_first(kernel_batch: int, block_dim: int) -> Callable[[Table], np.ndarray]:
    """The vendor's habit for convolutions: as many samples as divide block_dim, the rest by rows and columns."""
    samples = max(part for part in range(1, block_dim + 1) if block_dim % part == 0 and part <= kernel_batch)

    def marked(table: Table) -> np.ndarray:
        split = table["split_batch"]
        return split == (samples if np.any(split == samples) else split.max())

    return marked


def emptied_accumulators(only: Callable[[Table], np.ndarray] | None) -> Callable[[Table], np.ndarray]:
    """Kernels with a fused epilogue use L0C whole: the vector unit empties it before the next tile begins."""
    return lambda table: ~table["double_l0c"] & (True if only is None else only(table))


def whole_accumulators(only: Callable[[Table], np.ndarray], target: Target) -> Callable[[Table], np.ndarray]:
    """Tiles of more than half of L0C, or else the largest there are."""
    sums = target.buffer_bytes["L0C"] // _FRACTAL_SUM_BYTES

    def marked(table: Table) -> np.ndarray:
        among = only(table)
        fractals = table["m0"] * table["n0"]
        return among & ((2 * fractals > sums) | (fractals == fractals[among].max(initial=0)))

    return marked


def _placed(kernel: Kernel, batch: int, row: dict[str, str], target: Target) -> float:
    """Microseconds with the published block_dim. That release's matrix products hardly overlap: one set of buffers."""
    block_dim = int(float(row["block_dim"]))
    only = batch_first(batch, block_dim) if batch > 1 and not set(row["models"].split(";")) & _TUNED else None
    if kernel.fused:
        only = emptied_accumulators(only)
    if kernel.fused and kernel.op_type not in _PRODUCTS:
        only = whole_accumulators(only, target)
    chosen = choose_cube_kernel(kernel, target, cold_b=True, block_dim=block_dim, only=only)[0]
    if kernel.op_type in _PRODUCTS and isinstance(chosen.tile, CubeTile):
        chosen = replace(chosen, tile=replace(chosen.tile, double_l1=False, double_l0=False, double_l0c=False))
    return kernel_us(chosen, target, "trace", cold=False)


def _conv_sides(row: dict[str, str]) -> tuple[int, int] | None:
    """(window edge, stride) where the window is square."""
    taps, stride = int(float(row["conv_khkw"] or 0)), int(float(row["conv_stride"] or 0))
    side = round(taps**0.5)
    return (side, stride) if taps and stride and side * side == taps else None


def _blocked(shape: tuple[int, ...]) -> TensorDesc:
    n, c1, h, w, c0 = shape
    return make_desc((n, c1 * c0, h, w), DType.FLOAT16, Format.NC1HWC0, c0)


def _filter(oc: int, c: int, height: int, width: int, c0: int) -> TensorDesc:
    return TensorDesc((oc, c, height, width), DType.FLOAT16, Format.NCHW, Format.FRACTAL_Z, c0)


def _pads(big: int, small: int, side: int, stride: int) -> tuple[int, int]:
    spare = max((small - 1) * stride + side - big, 0)
    return spare // 2, spare - spare // 2


def _window(row: dict[str, str]) -> tuple[int, int, int] | None:
    """(height, width, stride): square, or one row or column of taps."""
    taps, stride = int(float(row["conv_khkw"] or 0)), int(float(row["conv_stride"] or 0))
    if not taps or not stride:
        return None
    side = round(taps**0.5)
    return (side, side, stride) if side * side == taps else (1, taps, stride)


def convolutions(data: Path, adjust: Adjust = published) -> Sample:
    """Forward convolutions, with the statistics of the batch where they are fused."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        window = _window(row)
        if window is None:
            return None
        kh, kw, stride = window
        x, (y, *_) = parse_shapes(row["input_shapes"])[0], parse_shapes(row["output_shapes"])
        pads = (*_pads(x[2], y[2], kh, stride), *_pads(x[3], y[3], kw, stride))
        attrs = {
            "strides": (1, 1, stride, stride),
            "pads": pads,
            "dilations": (1,) * 4,
            "groups": 1,
            "data_format": "NCHW",
        }
        inputs = (_blocked(x), _filter(y[1] * y[4], x[1] * x[4], kh, kw, x[4]), None)
        fused = _fused(row["op_type"], 3, 0)
        kernel = Kernel("Conv2D", Engine.AICORE, inputs, (_blocked(y),), attrs, fused)
        what = f"{row['op_type']} {x} {y[1] * y[4]} {kh}x{kw}/{stride}"
        return Pair(row["id"], what, float(row["duration_us"]), _placed(kernel, x[0], row, target))

    return collect(_rows(data, adjust, "Conv2D", "FusionOp_Conv2D_BNTrainingReduce"), predict)


def input_gradients(data: Path, adjust: Adjust = published) -> Sample:
    """Gradients by the input of a convolution."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        window = _window(row)
        if window is None:
            return None
        kh, kw, stride = window
        dy, _, *extra = parse_shapes(row["input_shapes"])
        (dx,) = parse_shapes(row["output_shapes"])[:1]
        pads = (*_pads(dx[2], dy[2], kh, stride), *_pads(dx[3], dy[3], kw, stride))
        spare = tuple(
            size - ((small - 1) * stride + side - sum(pad))
            for size, small, side, pad in zip(dx[2:4], dy[2:4], (kh, kw), (pads[:2], pads[2:]))
        )
        if stride > 1 and kh == 1:
            stride, spare, dx = 1, (0, 0), (*dx[:2], *dy[2:])
        attrs = {
            "strides": (1, 1, stride, stride), "pads": pads, "dilations": (1,) * 4, "groups": 1, "data_format": "NCHW",
            "output_padding": (0, 0, *spare), "input_size": (dx[0], dx[1] * dx[4], *dx[2:4]),
        }  # fmt: skip
        adds = [_blocked(shape) for shape in extra if len(shape) == 5 and shape == dx]
        inputs = (_blocked(dy), _filter(dy[1] * dy[4], dx[1] * dx[4], kh, kw, dy[4]), None, *adds)
        fused = _fused(row["op_type"], 3, len(adds))
        kernel = Kernel("Conv2DTransposeD", Engine.AICORE, inputs, (_blocked(dx),), attrs, fused)
        what = f"{row['op_type']} {dy} {dx[1] * dx[4]} {kh}x{kw}/{stride}"
        return Pair(row["id"], what, float(row["duration_us"]), _placed(kernel, dy[0], row, target))

    return collect(_rows(data, adjust, "Conv2DBackpropInput", "FusionOp_Conv2DBackpropInput"), predict)


def _small_tiles(table: Table) -> np.ndarray:
    """Gradients of 1 x 1 filters are made in tiles of no more than 64 x 128: residuals show operands read so often."""
    small = (table["m0"] <= 4) & (table["n0"] <= 8)
    return small if small.any() else _all_tiles(table)


def _all_tiles(table: Table) -> np.ndarray:
    return np.ones(len(table["m0"]), bool)


def filter_gradients(data: Path, adjust: Adjust = published) -> Sample:
    """Gradients by the filter: channels of dY by taps and channels of x, summed over all pixels.

    Samples go to cores as far as block_dim and batch divide, which add their sums up in memory; the rest cuts columns.
    """

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        window = _window(row)
        if window is None:
            return None
        kh, kw, stride = window
        dy, x = parse_shapes(row["input_shapes"])[:2]
        m, n, pixels = dy[1] * dy[4], kh * kw * x[1] * x[4], -(-dy[2] * dy[3] // 16) * 16
        block_dim, batch = int(float(row["block_dim"])), dy[0]
        parts = [part for part in range(1, block_dim + 1) if block_dim % part == 0 and part <= batch]
        tuned = set(row["models"].split(";")) & _TUNED
        share = min(1.0, stride * stride / (kh * kw))

        def kernel(depth: int) -> Kernel:
            first = TensorDesc((depth, m), DType.FLOAT16, Format.ND, Format.FRACTAL_NZ, 16)
            second = TensorDesc((depth, n), DType.FLOAT16, Format.ND, Format.FRACTAL_NZ, 16)
            result = TensorDesc((m, n), DType.FLOAT, Format.ND, Format.FRACTAL_NZ, 16)
            attrs = {"transpose_x1": True, "transpose_x2": False, B_SHARE: share}
            return Kernel("MatMulV2", Engine.AICORE, (first, second, None), (result,), attrs)

        def placed(samples: int) -> float:
            part = kernel(-(-batch // samples) * pixels)
            only = _small_tiles if kh * kw == 1 else whole_accumulators(_all_tiles, target)
            tile = choose_cube_kernel(part, target, block_dim=block_dim // samples, only=only)[0].tile
            assert isinstance(tile, CubeTile)
            whole = replace(kernel(batch * pixels), tile=replace(tile, split_k=samples))
            pieces = tile.split_m * tile.split_n * samples
            return kernel_us(replace(whole, block_dim=pieces), target, "trace", cold=False)

        us = min((placed(samples) for samples in (parts if tuned else parts[-1:])), key=float)
        return Pair(row["id"], f"dw {x} {m} {kh}x{kw}/{stride}", float(row["duration_us"]), us)

    return collect(_rows(data, adjust, "Conv2DBackpropFilter"), predict)


def products(data: Path, adjust: Adjust = published) -> Sample:
    """Matrix products in FRACTAL_NZ, with what is fused behind them; the sizes tell which side is transposed."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        shapes = parse_shapes(row["input_shapes"])
        (out,) = parse_shapes(row["output_shapes"])[:1]
        a, b = shapes[:2]
        m, n = out[-3] * 16, out[-4] * 16
        straight = a[-3] * 16 == m and (b[-4] * 16 == n or b[-3] * 16 == n)
        k = (a[-4] if straight else a[-3]) * 16
        turned_a = a[-3] * 16 != m or (a[-4] * 16 == m and b[-3] == a[-3] and b[-4] * 16 == n and a[-3] * 16 != m)
        turned_b = not (b[-3] * 16 == k and b[-4] * 16 == n)
        lead = tuple(out[:-4])
        flags = ("adj_x1", "adj_x2") if lead else ("transpose_x1", "transpose_x2")

        def stored(rows: int, columns: int) -> TensorDesc:
            return TensorDesc((*lead, rows, columns), DType.FLOAT16, Format.ND, Format.FRACTAL_NZ, 16)

        first = stored(k, m) if turned_a else stored(m, k)
        second = stored(n, k) if turned_b else stored(k, n)
        full = [shape for shape in shapes[2:] if len(shape) >= 4 and prod(shape) == prod(out)]
        inputs = (first, second) if lead else (first, second, None)
        extra = tuple(stored(m, n) for _ in full)
        fused = _fused(row["op_type"], len(inputs), len(full))
        kind = "BatchMatMulV2" if lead else "MatMulV2"
        attrs = {flags[0]: turned_a, flags[1]: turned_b}
        kernel = Kernel(kind, Engine.AICORE, (*inputs, *extra), (stored(m, n),), attrs, fused)
        us = _placed(kernel, gcd(prod(lead), 1 << 30) if lead else 1, row, target)
        return Pair(row["id"], f"{row['op_type']} {lead}{m}x{n}x{k}", float(row["duration_us"]), us)

    types = ("MatMul", "BatchMatMul", "FusionOp_MatMul", "FusionOp_BatchMatMul")
    return collect(_rows(data, adjust, *types), predict)


def _rows(data: Path, adjust: Adjust, *types: str) -> list[dict[str, str]]:
    """Rows of these types, and of fused ones that begin so; doubtful ones are out."""
    return [
        adjust(row)
        for row in rows_of(data, FILE)
        if row["trust"] != "C"
        and (
            row["op_type"] in types or any(row["op_type"].startswith(name + "_") for name in types if "Fusion" in name)
        )
    ]
