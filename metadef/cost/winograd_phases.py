"""The phases of a Winograd convolution as kernels of the usual kinds, and which convolutions can have them.

Input transform and output transform are vector kernels on :class:`PhaseShape`; the products are one batched matrix
product over workspaces in FRACTAL_NZ. Eligible are 3x3 windows of stride and dilation 1 without groups, with a constant
filter, between NC1HWC0 tensors of a float type that the cube multiplies.
"""

from __future__ import annotations

from dataclasses import replace

from metadef.cost.winograd_view import INPUT_PHASE, OUTPUT_PHASE, PhaseShape
from metadef.dtype import DType
from metadef.format import FRACTAL_ROWS, Format, TensorDesc, ceil_div
from metadef.kernel import Engine, Kernel, Tile, WinogradTile
from metadef.ops.geometry import ConvGeometry
from metadef.target import Target
from metadef.winograd import ALGORITHMS, TAPS

_PRODUCT_ATTRS = {"adj_x1": False, "adj_x2": True}
_FORMATS = {"winograd_f2": Format.FRACTAL_Z_WINO_F2, "winograd_f4": Format.FRACTAL_Z_WINO_F4}


def is_eligible(kernel: Kernel, target: Target, constant: bool) -> bool:
    """Whether a kernel without a tile can be computed by Winograd's algorithm; ``constant`` speaks of its filter."""
    return not obstacle(kernel, target, constant)


def obstacle(kernel: Kernel, target: Target, constant: bool) -> str:
    """Why a kernel cannot be computed by Winograd's algorithm; "" if it can."""
    if kernel.op_type != "Conv2D" or kernel.inputs[0] is None:
        return "no convolution"
    if not constant:
        return "a filter computed at run time"
    x, result = kernel.inputs[0], kernel.outputs[0]
    if not (x.format is result.format is Format.NC1HWC0 and x.dtype is result.dtype):
        return f"{x.format.name} to {result.format.name}"
    if x.dtype not in (DType.FLOAT16, DType.FLOAT) or x.dtype not in target.cube_dtypes:
        return f"its products in {x.dtype.label}"
    g = ConvGeometry.of(kernel)
    if (g.stride_h, g.stride_w, g.dilation_h, g.dilation_w, g.groups) != (1, 1, 1, 1, 1):
        return "strides, dilations or groups"
    if not g.kh == g.kw == TAPS:
        return f"a window of {g.kh} x {g.kw}"
    return "" if min(g.n, g.oh, g.ow, g.c) > 0 else "nothing to compute"


def with_algorithm(kernel: Kernel, target: Target, algorithm: str) -> Kernel:
    """An eligible kernel with its filter stored transformed."""
    x, filters = kernel.inputs[0], kernel.inputs[1]
    assert filters is not None
    stored = filters.stored_as(_FORMATS[algorithm], target.c0(filters.dtype))
    return replace(kernel, inputs=(x, stored, *kernel.inputs[2:]), algorithm=algorithm)


def band_shape(kernel: Kernel, algorithm: str, rows: int = 0) -> PhaseShape:
    """A band of ``rows`` rows of output tiles (0: all) of a Conv2D kernel, not cut into strips."""
    g, m = ConvGeometry.of(kernel), ALGORITHMS[algorithm]
    x = kernel.inputs[0]
    assert x is not None
    shape = PhaseShape(g, m, 1, ceil_div(g.ow, m), x.c0, x.dtype.bytes)
    return replace(shape, rows=rows or shape.all_rows)


def workspace_descs(shape: PhaseShape, dtype: DType) -> tuple[TensorDesc, TensorDesc]:
    """The transformed input V (products, tiles, C) and the sums M (products, tiles, OC) of a band, both FRACTAL_NZ."""
    g, tiles = shape.conv, shape.rows * shape.columns
    v = TensorDesc((shape.planes * shape.copies, tiles, g.c), dtype, Format.ND, Format.FRACTAL_NZ, shape.c0_in)
    sums = TensorDesc((shape.planes, tiles, g.oc), DType.FLOAT, Format.ND, Format.FRACTAL_NZ, FRACTAL_ROWS)
    return v, sums


def input_kernel(kernel: Kernel, shape: PhaseShape, tile: Tile | None = None, cores: int = 1) -> Kernel:
    """The input transform: port 0 is the image."""
    x = kernel.inputs[0]
    assert x is not None
    v, _ = workspace_descs(shape, x.dtype)
    return Kernel(INPUT_PHASE, Engine.VECTOR, (x,), (v,), {"shape": shape}, tile=tile, block_dim=cores)


def product_kernel(kernel: Kernel, shape: PhaseShape, tile: Tile | None = None, cores: int = 1) -> Kernel:
    """The products V U^T, one for each of the 16 or 36 planes."""
    x = kernel.inputs[0]
    assert x is not None
    g = shape.conv
    v, sums = workspace_descs(replace(shape, copies=1), x.dtype)
    u = TensorDesc((shape.planes, g.oc, g.c), x.dtype, Format.ND, Format.FRACTAL_NZ, shape.c0_in)
    return Kernel("BatchMatMulV2", Engine.AICORE, (v, u), (sums,), _PRODUCT_ATTRS, tile=tile, block_dim=cores)


def output_kernel(kernel: Kernel, shape: PhaseShape, tile: Tile | None = None, cores: int = 1) -> Kernel:
    """The output transform with bias and epilogue: ports are the convolution's, the sums in place of the image."""
    x = kernel.inputs[0]
    assert x is not None
    _, sums = workspace_descs(shape, x.dtype)
    operands = (sums, *kernel.inputs[1:])
    attrs = {"shape": shape}
    return Kernel(
        OUTPUT_PHASE, Engine.VECTOR, operands, kernel.outputs, attrs, kernel.fused, tile=tile, block_dim=cores
    )


def phase_kernels(kernel: Kernel, target: Target, rows: int) -> tuple[Kernel, Kernel, Kernel]:
    """The three kernels of a band of ``rows`` rows of tiles, with the tiles that were chosen."""
    tile = kernel.tile
    assert isinstance(tile, WinogradTile)
    shape = band_shape(kernel, kernel.algorithm, rows)
    copies = tile.product.split_n if target.coupled else 1
    first = replace(shape, strips=tile.input_strips, copies=copies)
    last = replace(shape, strips=tile.output_strips)
    return (
        input_kernel(kernel, first, tile.input, min(tile.input_cores, first.input_units)),
        product_kernel(kernel, shape, tile.product, tile.product_cores),
        output_kernel(kernel, last, tile.output, min(tile.output_cores, last.output_units)),
    )


def bands(kernel: Kernel) -> list[tuple[int, int]]:
    """(rows of a band, how many such bands), the last one apart where it is smaller."""
    assert isinstance(kernel.tile, WinogradTile)
    rows = band_shape(kernel, kernel.algorithm).rows
    full, rest = divmod(rows, kernel.tile.band_rows)
    return [(size, count) for size, count in ((kernel.tile.band_rows, full), (rest, 1)) if size and count]


def product_macs(shape: PhaseShape) -> int:
    """Multiply-accumulates of the products, border tiles whole."""
    return shape.planes * shape.rows * shape.columns * shape.conv.c * shape.conv.oc


def working_cores(kernel: Kernel, target: Target) -> int:
    """Cores that start: on split chips a cube core brings its two vector cores along."""
    tile = kernel.tile
    assert isinstance(tile, WinogradTile)
    vector = max(tile.input_cores, tile.output_cores)
    share = 1 if target.coupled else target.vector_cores // target.cube_cores
    return max(tile.product_cores, ceil_div(vector, share))
