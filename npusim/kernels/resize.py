"""Bilinear interpolation of images, in NC1HWC0 or plain: four pixels mixed in fp32, one rounding.

Which pixels and how much of each stands in tables made by the builder. Kernel name: `bilinear:<dtype>:<lanes>`, where
`lanes` are the channels of a pixel that lie together (1 in plain images).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim.kernels.desc import Call, call, float_bits, int64_table, split_count
from npusim.kernels.epilogue import saturated
from npusim.kernels.ir import SIZE, Kernel

_X, _OUT, _ROWS, _CHUNK, _OH, _OW, _PLANE, _X_ROW, _H_TABLE, _W_TABLE, _SATURATE = range(1, 12)
_ENTRY = 32
Axis = Sequence[np.ndarray]
"""First and second neighbour, and their weights, of every result element along an axis."""


def bilinear(
    x: int, out: int, dtype: str, planes: int, shape: tuple[int, int], axes: tuple[Axis, Axis], lanes: int,
    saturate: bool = False,
) -> Call:  # fmt: skip
    """Call for `planes` images of `shape` (H, W) with `lanes` channels a pixel; `axes` are the taps along H and W."""
    pixel = lanes * SIZE[dtype]
    (oh, ow), row = (len(axis[0]) for axis in axes), shape[1] * pixel
    rows = planes * oh
    parts = split_count(rows * ow * (8e-3 if lanes > 1 else 4e-3), max(rows, 1))
    chunk = max(1, -(-rows // parts))
    tables = [
        int64_table(
            [
                (int(first) * step, int(second) * step, float_bits(float(a)), float_bits(float(b)))
                for first, second, a, b in zip(*axis, strict=True)
            ]
        )
        for axis, step in zip(axes, (row, pixel), strict=True)
    ]
    fields = [x, out, rows, chunk, oh, ow, shape[0] * row, row, *tables, int(saturate)]
    return call(f"bilinear:{dtype}:{lanes}", -(-rows // chunk), 0, fields)


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit `bilinear:<dtype>:<lanes>`."""
    dtype, text = parameters.split(":")
    channels = int(text)
    lanes = next(count for count in (16, 8, 1) if channels % count == 0)
    step, pixel = lanes * SIZE[dtype], channels * SIZE[dtype]
    with k.main() as (desc, part, _ctx):
        oh, ow = k.field(desc, _OH), k.field(desc, _OW)
        lo = part * k.field(desc, _CHUNK)
        hi = k.minimum(lo + k.field(desc, _CHUNK), k.field(desc, _ROWS))
        with k.loop(hi, start=lo) as row:
            entry = k.field(desc, _H_TABLE) + row % oh * _ENTRY
            plane = k.field(desc, _X) + row / oh * k.field(desc, _PLANE)
            lines = [plane + k.field(entry, side) for side in (0, 1)]
            down = [k.splat(k.float_field(entry, 2 + side), lanes) for side in (0, 1)]
            target = k.field(desc, _OUT) + row * ow * pixel
            with k.loop(ow) as column:
                cell = k.field(desc, _W_TABLE) + column * _ENTRY
                places = [k.field(cell, side) for side in (0, 1)]
                across = [k.splat(k.float_field(cell, 2 + side), lanes) for side in (0, 1)]
                with k.loop(pixel, step=step) as lane:
                    mixed = []
                    for line in lines:
                        left, right = (k.load_f32(line + place + lane, dtype, lanes) for place in places)
                        mixed.append(left * across[0] + right * across[1])
                    result = mixed[0] * down[0] + mixed[1] * down[1]
                    result = saturated(k, result, k.field(desc, _SATURATE), dtype)
                    k.store_f32(result, target + column * pixel + lane, dtype)
