"""The kernels a common network needs, for `store.warm`: names only, each compiled in a fraction of a second."""

from __future__ import annotations

from collections.abc import Sequence

from npusim.kernels.cpu import host
from npusim.kernels.panels import widens_freely
from npusim.kernels.tiles import SUMS, WIDENING, tile_name

_UNARY = ("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "reciprocal", "neg", "abs", "erf", "gelu", "silu")
_MORE_UNARY = ("hardswish", "floor", "ceil", "round")
_USUAL = ("f16", "f32")
_BINARY = ("add", "sub", "mul", "div", "max", "min", "pow")


def tile_kernels(dtypes: Sequence[str] = _USUAL) -> list[str]:
    """Register tiles of ordinary convolutions and matrix products on this CPU, by element types.

    Weights come as they are stored or widened to fp32, by the first tile of many where that is not free; those of
    Winograd convolutions (`sums`) are fp32.
    """
    cpu = host()
    shapes = [(1, n) for n in range(1, cpu.tile_rows + 1) if n <= 4 or n % 2 == 0]
    shapes += [(2, 7), (3, 4)] if cpu.tile_rows >= 14 else [(4, 0), (6, 0)]
    pairs = [(weights, finish) for finish in dtypes for weights in dict.fromkeys((finish, "f32"))]
    tiles = [(*pair, *shape) for pair in (*pairs, ("f32", SUMS)) for shape in shapes]
    narrow = [dtype for dtype in dtypes if not widens_freely(dtype)]
    # The first of many tiles is more than half of the largest.
    large = [(segments, length) for segments, length in shapes if segments * max(1, length) * 2 > cpu.tile_rows]
    tiles += [(dtype + WIDENING, dtype, *shape) for dtype in narrow for shape in large]
    return [
        tile_name(weights, cpu.panel // 16, segments, length, 16, 64, finish)
        for weights, finish, segments, length in tiles
    ]


def common_kernels(dtypes: Sequence[str] = _USUAL) -> list[str]:
    """Every kernel `store.warm` compiles, or the same for other floating types (f16, bf16, f32)."""
    names = ["exec:main", "exec:worker", *tile_kernels(dtypes)]
    for dtype in dtypes:
        names += [f"conv:{dtype}:{dtype}:{kind}" for kind in ("dense", "narrow", "depthwise")]
        names += [f"matmul:{dtype}:{dtype}", f"packb:{dtype}:{host().panel // 16}"]
        names += [f"pool:{dtype}:{c0}:{kind}" for c0 in (8, 16) for kind in ("max", "avg")]
        names += [f"softmax:{dtype}:{dtype}:plain", f"softmax:{dtype}:{dtype}:log"]
        names += [f"layernorm:{dtype}:{dtype}:f32:layer"]
        names += [f"flat:{dtype}:{dtype}:{name}(x0)" for name in (*_UNARY, *_MORE_UNARY)]
        names += [f"{form}:{dtype},{dtype}:{dtype}:{name}(x0,x1)" for name in _BINARY for form in ("flat", "map")]
        names += [f"flat:{dtype},{dtype}:{dtype}:relu(add(x0,x1))", f"flat:{dtype}:{dtype}:clip(x0,p0,p1)"]
        names += [
            f"reduce:{dtype}:{dtype}:{op}:{mode}" for op in ("sum", "mean", "max") for mode in ("along", "across")
        ]
        other = "f16" if dtype == "f32" else "f32"
        names += [f"flat:{dtype}:{other}:x0"]
        for c0 in (8, 16):
            names += [f"transdata:{dtype}:{other}:{c0}:{way}" for way in ("to", "from")]
    names += [f"transdata:{raw}:{raw}:{c0}:{way}" for raw in ("i16", "i32") for c0 in (8, 16) for way in ("to", "from")]
    return [*names, *(f"copy:{size}" for size in (1, 2, 4, 8)), "gather:i64", "gather:i32", "scatter:i32"]
