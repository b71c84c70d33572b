"""Host plans of int8 products: summed in float32, exactly, in stretches of K that stay within its whole numbers.

Every partial sum of a stretch is a whole number of at most 2**24, which float32 holds; between stretches sums are
int32. How long a stretch may be follows from the weights where they are constant.
"""

from __future__ import annotations

import numpy as np

from metadef.ops.geometry import MatMulGeometry
from npusim.kernels.conv import Conv2D, conv2d, pack_conv
from npusim.kernels.desc import SIZE, Call
from npusim.kernels.elementwise import View, elementwise
from npusim.kernels.epilogue import Epilogue
from npusim.kernels.matmul import Batch, Matrix, matmul, pack_b_at_run_time, pack_matmul
from npusim.kernels.plans.site import NoFastKernel, Site

_EXACT = 1 << 24
_OPERAND = 128  # largest magnitude of an int8
_STEP = 32  # stretches are whole channel blocks
_LONGEST = _EXACT // _OPERAND**2 // _STEP * _STEP


def stretches(magnitudes: np.ndarray) -> list[tuple[int, int]]:
    """Stretches of K that are exact: `magnitudes` (K, columns) are those of the weights.

    Raises:
        NoFastKernel: 32 channels already may exceed float32's whole numbers.
    """
    total = np.zeros((magnitudes.shape[0] + 1, magnitudes.shape[1]), np.int64)
    np.cumsum(magnitudes, axis=0, out=total[1:])
    found: list[tuple[int, int]] = []
    begin, depth = 0, magnitudes.shape[0]
    while begin < depth or not found:
        ends = [*range(begin + _STEP, depth, _STEP), depth]
        fits = [end for end in ends if int((total[end] - total[begin]).max(initial=0)) * _OPERAND <= _EXACT]
        if not fits:
            raise NoFastKernel("sums of 32 channels exceed the whole numbers of float32")
        found.append((begin, fits[-1]))
        begin = fits[-1]
    return found


def plan_whole_conv(site: Site, shape: Conv2D) -> list[Call]:
    """Conv2D of int8 with constant filter and bias, to int32."""
    if site.kernel.fused:
        raise NoFastKernel("an int8 convolution with a fused chain")
    filters, out, x = site.constant(1), site.address(site.output()), site.address(site.input(0))
    sums = np.abs(filters.astype(np.int32)).sum((2, 3)).T
    parts = stretches(sums)
    if len(parts) > 1 and shape.groups > 1:
        raise NoFastKernel("a grouped int8 convolution whose sums exceed the whole numbers of float32")
    blocks, pixels = -(-shape.c // shape.c0_in), shape.h * shape.w * shape.c0_in
    calls = []
    for begin, end in parts:
        piece = shape if len(parts) == 1 else _channels(shape, end - begin)
        weights = filters if len(parts) == 1 else np.ascontiguousarray(filters[:, begin:end])
        packed = pack_conv(piece, weights, None, "i8")
        rule = Epilogue(residual=out if begin else 0)
        source = x + begin // shape.c0_in * pixels
        calls.append(conv2d(piece, source, packed, out, ("i8", "i32"), rule, image_bytes=blocks * pixels))
    return calls + _bias(site)


def _channels(shape: Conv2D, count: int) -> Conv2D:
    from dataclasses import replace

    return replace(shape, c=count)


def plan_whole_matmul(site: Site) -> list[Call]:
    """MatMulV2 and BatchMatMulV2 of int8 on plain A and result, to int32."""
    a, out, g = site.input(0), site.output(), MatMulGeometry.of(site.kernel, fold=True)
    if site.kernel.fused or not (a.desc.is_plain and out.desc.is_plain) or g.k == 0:
        raise NoFastKernel("an int8 product with a fused chain, on fractal activations or over no elements")
    rows = Matrix.nd(site.address(a), "i8", g.m if g.transpose_a else g.k)
    left = rows.t if g.transpose_a else rows
    result = Matrix.nd(site.address(out), "i32", g.n)
    batch = Batch(
        [int(index) * g.m * g.k for index in g.batch_index("a")],
        [int(index) for index in g.batch_index("b")],
        [index * g.m * g.n * SIZE["i32"] for index in range(g.batch)],
    )
    values, parts = None, [(at, min(at + _LONGEST, g.k)) for at in range(0, g.k, _LONGEST)]
    if site.is_constant(1):
        values = site.constant(1)
        values = np.swapaxes(values, -1, -2) if g.transpose_b else values
        parts = stretches(np.abs(values.astype(np.int32)).reshape(-1, g.k, g.n).transpose(1, 0, 2).reshape(g.k, -1))
    elif not site.input(1).desc.is_plain:
        raise NoFastKernel("computed B in a fractal format")
    calls: list[Call] = []
    for begin, end in parts:
        if values is not None:
            packed = pack_matmul(values[..., begin:end, :], "i8")
        else:
            stored = Matrix.nd(site.address(site.input(1)), "i8", g.k if g.transpose_b else g.n)
            right = stored.t if g.transpose_b else stored
            count = site.input(1).desc.elements // (g.k * g.n)
            packed, call = pack_b_at_run_time(
                right.from_row(begin), end - begin, g.n, [index * g.k * g.n for index in range(count)]
            )
            calls.append(call)
        rule = Epilogue(residual=result.address if begin else 0)
        calls.append(matmul(g.m, end - begin, g.n, left.t.from_row(begin).t, packed, result, None, batch, rule))
    return calls + _bias(site)


def _bias(site: Site) -> list[Call]:
    """The int32 bias, one an output channel or column, added to finished sums."""
    if not site.has(2):
        return []
    out = site.output()
    bias, desc = site.constant(2), out.desc
    if desc.is_plain:
        view = (1,) * (len(desc.shape) - 1) + (-1,)
        bias = bias.reshape(view)
    else:
        padded = np.zeros(desc.shape[1] * desc.c0, np.int32)
        padded[: bias.size] = bias
        bias = padded.reshape(1, desc.shape[1], 1, 1, desc.c0)
    bias = np.ascontiguousarray(bias)
    sums = View.dense(site.address(out), "i32", desc.shape)
    added = View.dense(bias.ctypes.data, "i32", bias.shape, desc.shape)
    call = elementwise("add(x0,x1)", [sums, added], sums, desc.shape)
    call.keep.append(bias)
    return [call]
