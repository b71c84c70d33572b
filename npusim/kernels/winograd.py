"""Convolution by Winograd's algorithm F(2x2,3x3) or F(4x4,3x3), NC1HWC0 -> NC1HWC0, stride 1, any padding and batch.

`winograd2d` describes one convolution as a Call. A part is (image, band of rows of output tiles, range of
output-channel units): it widens the band's pixels group by group, transforms them into V `[product][group][tile][16]`,
multiplies each of the 16 or 36 planes of V with the transformed filter of all its units through the register tiles of
direct convolution, so that a part reads the filter once, and transforms the sums back unit by unit. The code is in
npusim.kernels.winograd_code; the algorithm, its scaling and its NumPy twin are in metadef.winograd.

`rounding` says how V is kept: `none` (fp32), `guarded` (fp32; a sum that is not finite stops the run after the task
with status NOT_FINITE, since it spoils pixels that direct summation would keep), `half` (rounded to fp16, as a cube
with 16-bit operands must), `saturate` (rounded, overflow to +-65504). `scale` divides each of the two input passes.

    pack_winograd(planes [(m+2)^2, O, I], m, bias=None) -> PackedWinograd
    winograd2d(shape, x, packed, out, (in dtype, out dtype), epilogue=None, rounding="none", scale=1.0) -> Call
"""

from __future__ import annotations

import numpy as np

from npusim.kernels import panels
from npusim.kernels.conv import Conv2D, fill_fields, lane_strides
from npusim.kernels.conv_fill import FIELDS
from npusim.kernels.desc import Call, call
from npusim.kernels.epilogue import Epilogue
from npusim.kernels.ir import SIZE
from npusim.kernels.winograd_shape import PackedWinograd, bands_of, pack_winograd

__all__ = ["PackedWinograd", "pack_winograd", "winograd2d"]

_PIXEL = 64


def winograd2d(
    shape: Conv2D,
    x: int,
    packed: PackedWinograd,
    out: int,
    dtypes: tuple[str, str],
    epilogue: Epilogue | None = None,
    rounding: str = "none",
    scale: float = 1.0,
) -> Call:
    """Call of a convolution: addresses of NC1HWC0 input and output, their dtypes (`f16`, `bf16` or `f32`).

    `rounding` and `scale` are those the filter was transformed for.
    """
    shape.check()
    panels.check_weights(packed.dtype, dtypes[0])
    unit = (shape.kernel, shape.strides, shape.dilations, shape.groups)
    if unit != ((3, 3), (1, 1), (1, 1), 1):
        raise ValueError(
            f"Winograd's algorithm serves 3x3 windows of stride and dilation 1 without groups, not {shape}"
        )
    rule, bands = epilogue or Epilogue(), bands_of(shape, packed.m, packed.dtype)
    columns, rows = bands.columns, bands.band_rows
    strides = lane_strides(shape.c0_out, shape.out_hw[0] * shape.out_hw[1], SIZE[dtypes[1]])
    own, where = bands.own_fields(shape, strides[2])
    core = panels.Core(
        weights=packed.weights,
        weights_dtype=packed.dtype,
        bias=packed.bias,
        out=out,
        units=bands.units,
        tap_channels=16,
        pixel_bytes=_PIXEL,
        taps=np.arange(bands.groups, dtype=np.int64) * (rows * columns * _PIXEL),
        out_strides=strides,
        channels=shape.o,
        stored=-(-shape.o // shape.c0_out) * shape.c0_out,
        tiles=panels.run_tiles(rows * columns, _PIXEL),
        last_tiles=panels.run_tiles((bands.rows - (bands.bands - 1) * rows) * columns, _PIXEL),
        pitch=0,
        buffer_offset=where,
        vectors=packed.vectors,
        epilogue=rule,
        out_dtype=panels.SUMS,
        chunk=bands.chunk,
    )
    fields = fill_fields(bands.grown, bands.layout, dtypes[0])
    fields |= {
        "x": x,
        "bands": bands.bands,
        "splits": bands.splits,
        "units_per_split": -(-bands.units[1] // bands.splits),
        "on": core.stored * shape.out_hw[0] * shape.out_hw[1] * SIZE[dtypes[1]],
        "band_out": 0,
        "band_in": rows * packed.m,
    }
    values = [*core.fields(), *(fields[n] for n in FIELDS), *own]
    name = f"winograd:{dtypes[0]}:{rule.target(dtypes[1])}:{packed.m}:{rounding}:{scale}"
    return call(name, shape.n * bands.bands * bands.splits, core.scratch_bytes, values)
