"""Kernels that the tests of costs and timing share."""

from __future__ import annotations

from metadef.dtype import DType
from metadef.format import Format, TensorDesc
from metadef.kernel import CubeTile, Engine, FusedOp, Kernel, VectorTile
from metadef.target import Target

FP16 = DType.FLOAT16


def matmul_kernel(m: int, n: int, k: int, tile: CubeTile, *, packed: bool = True, batch: int = 1) -> Kernel:
    """A matrix product; ``packed`` stores B in FRACTAL_NZ."""
    lead = (batch,) if batch > 1 else ()
    a, b, c = (TensorDesc((*lead, *shape), FP16) for shape in ((m, k), (k, n), (m, n)))
    kind, flags = ("BatchMatMulV2", ("adj_x1", "adj_x2")) if lead else ("MatMulV2", ("transpose_x1", "transpose_x2"))
    cores = tile.split_batch * tile.split_m * tile.split_n * tile.split_k
    stored = b.stored_as(Format.FRACTAL_NZ, 16) if packed else b
    return Kernel(kind, Engine.AICORE, (a, stored), (c,), dict.fromkeys(flags, False), tile=tile, block_dim=cores)


def conv_kernel(
    target: Target, tile: CubeTile, *, c: int = 64, oc: int = 64, size: int = 56, window: int = 3, stride: int = 1,
    residual: bool = False, bias: bool = True, n: int = 1, groups: int = 1,
) -> Kernel:  # fmt: skip
    """A convolution in NC1HWC0 with same padding; ``residual`` fuses an addition and a relu."""
    pad = window // 2
    out = (size + 2 * pad - window) // stride + 1
    c0 = target.c0(FP16)
    x = TensorDesc((n, c, size, size), FP16, Format.NCHW, Format.NC1HWC0, c0)
    w = TensorDesc((oc, c // groups, window, window), FP16, Format.NCHW, Format.FRACTAL_Z, c0)
    y = TensorDesc((n, oc, out, out), FP16, Format.NCHW, Format.NC1HWC0, c0)
    attrs = {
        "strides": (1, 1, stride, stride),
        "pads": (pad,) * 4,
        "dilations": (1, 1, 1, 1),
        "groups": groups,
        "data_format": "NCHW",
    }
    inputs = (x, w, TensorDesc((oc,), DType.FLOAT) if bias else None)
    fused = (FusedOp("Add", operand=3), FusedOp("Relu")) if residual else ()
    cores = tile.split_batch * tile.split_m * tile.split_n * tile.split_k
    inputs = (*inputs, y) if residual else inputs
    return Kernel("Conv2D", Engine.AICORE, inputs, (y,), attrs, fused, tile=tile, block_dim=cores)


def vector_kernel(
    op_type: str, elements: int, *, cores: int, units_per_tile: int, double: bool = True, dtype: DType = FP16
) -> Kernel:
    """A flat element-wise kernel of one or two operands, dealt in 32-byte blocks."""
    desc = TensorDesc((elements,), dtype)
    block = 32 // dtype.bytes
    operands = (desc, desc) if op_type in ("Add", "Mul", "RealDiv") else (desc,)
    attrs = {"dst_type": dtype} if op_type == "Cast" else {}
    tile = VectorTile(-(-elements // block), block, units_per_tile, double)
    return Kernel(op_type, Engine.VECTOR, operands, (desc,), attrs, tile=tile, block_dim=cores)
