"""Direct convolution NC1HWC0 -> NC1HWC0 with any kernel, stride, padding, dilation, batch and groups.

`conv2d` describes one convolution as a Call. A part is (image, band of output rows, range of output-channel units): it
widens the input rows of its band to fp32 in scratch memory, zero padded and with columns sorted by stride phase so that
neighbouring outputs are always neighbours in memory, then runs the register tiles (npusim.kernels.panels).
With at most four input channels (a first layer) the scratch block and the taps hold only those. Depthwise
convolutions and groups that share a 16-channel block work lane by lane. The code is in npusim.kernels.conv_fill.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.kernels import panels
from npusim.kernels.conv_fill import FIELDS
from npusim.kernels.conv_pack import PackedConv, pack_conv, pack_stored_conv
from npusim.kernels.conv_pieces import dense_scratch, piece_tables, tap_run
from npusim.kernels.conv_scratch import Conv2D, Scratch, choose_split
from npusim.kernels.desc import SIZE, Call, call, int64_table
from npusim.kernels.epilogue import Epilogue

__all__ = ["Conv2D", "PackedConv", "conv2d", "fill_fields", "lane_strides", "pack_conv", "pack_stored_conv"]


def conv2d(
    shape: Conv2D,
    x: int,
    packed: PackedConv,
    out: int,
    dtypes: tuple[str, str],
    epilogue: Epilogue | None = None,
    image_bytes: int = 0,
) -> Call:
    """Call of a convolution: addresses of NC1HWC0 input and output, their dtypes (`f16`, `bf16`, `f32`; or `i8` to
    `i32`, exact while every partial sum stays within 2**24).

    `image_bytes` is the distance of images where `shape.c` are but some of the stored channels (0: all of them).
    """
    shape.check()
    panels.check_weights(packed.dtype, dtypes[0])
    rule, pieces = epilogue or Epilogue(), packed.kind == "pieces"
    out_dtype = rule.target(dtypes[1])
    layout = dense_scratch(shape) if pieces else Scratch(shape, packed.kind, out_dtype)
    units = panels.split_units(-(-shape.o // 16), packed.vectors)
    band_rows, splits = choose_split(layout, packed.weights.nbytes, units[1], packed.dtype)
    bands, stored = layout.bands(band_rows), -(-shape.o // shape.c0_out) * shape.c0_out
    tables = piece_tables(shape, layout) if pieces else None
    core = panels.Core(
        weights=packed.weights,
        weights_dtype=packed.dtype,
        bias=packed.bias,
        out=out,
        units=units,
        tap_channels=tap_run(shape) if pieces else layout.tap_channels,
        pixel_bytes=layout.pixel_bytes,
        taps=tables.taps if tables else layout.taps(),
        out_strides=lane_strides(shape.c0_out, layout.oh * layout.ow, SIZE[dtypes[1]]),
        channels=shape.o,
        stored=stored,
        tiles=layout.tiles(band_rows),
        last_tiles=layout.tiles(layout.oh - (bands - 1) * band_rows),
        pitch=layout.places(band_rows),
        buffer_offset=layout.bytes,
        vectors=packed.vectors,
        unit_shifts=tables.pieces if tables else _unit_shifts(shape, layout, units[1]),
        epilogue=rule,
        out_dtype=panels.SUMS if pieces and not panels.finishes(out_dtype) else out_dtype,
        block=layout.block(-(-units[1] // splits)),
        halves=pieces,
    )
    fields = fill_fields(shape, layout, dtypes[0])
    fields |= {
        "x": x,
        "xn": image_bytes or fields["xn"],
        "bands": bands,
        "splits": splits,
        "units_per_split": -(-units[1] // splits),
        "on": stored * layout.oh * layout.ow * SIZE[dtypes[1]],
        "band_out": band_rows * layout.ow * core.out_strides[2],
        "band_in": band_rows * shape.strides[0],
        **({"lane_table": tables.units} if tables else {}),
    }
    values, name = [*core.fields(), *(fields[n] for n in FIELDS)], f"conv:{dtypes[0]}:{out_dtype}:{packed.kind}"
    return call(name, shape.n * bands * splits, core.scratch_bytes, values)


def fill_fields(shape: Conv2D, layout: Scratch, dtype: str) -> dict[str, Any]:
    """Descriptor fields that say how a band of the input is read."""
    xc, xq, xh, xp = source_strides(shape.c0_in, shape.h * shape.w, SIZE[dtype])
    channels = -(-shape.c // shape.c0_in) * shape.c0_in
    lanes: int | np.ndarray = 0
    if layout.kind == "lanes":
        per, out_per = shape.c // shape.groups, shape.o // shape.groups
        outputs = np.minimum(np.arange(-(-shape.o // 16) * 16), shape.o - 1)
        channel = (outputs // out_per * per).reshape(-1, 1, 16) + np.arange(per).reshape(1, -1, 1)
        lanes = (
            (channel >> 5) * xc + ((channel >> 4) & 1) * xq + ((channel >> 3) & 1) * xh + (channel & 7) * SIZE[dtype]
        )
        lanes = np.ascontiguousarray(lanes, np.int64)
    return {
        "groups": layout.groups,
        "block_groups": layout.block_groups,
        "merged": int(layout.merged),
        "planes": channels // 8,
        "h": shape.h,
        "xn": channels * shape.h * shape.w * SIZE[dtype],
        "xc": xc,
        "xq": xq,
        "xh": xh,
        "xp": xp,
        "x_row": xp * shape.w,
        "rows": layout.rows.size,
        "row_table": layout.rows,
        "phases": len(layout.phases),
        "phase_table": int64_table(layout.phase_rows()),
        "stride_w": shape.strides[1],
        "pad_top": shape.pads[0],
        "row_bytes": layout.row_bytes,
        "narrow_bytes": layout.narrow * 4,
        "lane_table": lanes,
    }


def _unit_shifts(shape: Conv2D, layout: Scratch, units: int) -> np.ndarray | None:
    """Where in scratch the inputs of each output unit begin, for groups made of whole 16-channel blocks."""
    if shape.groups == 1 or layout.kind != "dense":
        return None
    out_per = shape.o // shape.groups
    per_group = shape.c // shape.groups // 16 * layout.group_bytes
    return int64_table([unit * 16 // out_per * per_group for unit in range(units)])


def source_strides(c0: int, plane: int, size: int) -> tuple[int, int, int, int]:
    """Byte distance of 32 channels, of the second 16 of them, of 8 channels and of pixels in NC1HWC0."""
    if c0 == 32:
        return plane * 32 * size, 16 * size, 8 * size, 32 * size
    sixteen, eight, pixel = lane_strides(c0, plane, size)
    return 2 * sixteen, sixteen, eight, pixel


def lane_strides(c0: int, plane: int, size: int) -> tuple[int, int, int]:
    """Byte distance of 16 channels, of 8 channels and of pixels in NC1HWC0 with `plane` pixels a plane.

    Four channels (C04) are alone and have no distance.
    """
    if c0 == 4:
        return 0, 0, 4 * size
    if c0 == 8:
        return 2 * plane * 8 * size, plane * 8 * size, 8 * size
    if c0 == 16:
        return plane * 16 * size, 8 * size, 16 * size
    raise ValueError(f"convolution knows C0 = 4, 8, 16 and, as input, 32, not {c0}; convert with transdata first")
