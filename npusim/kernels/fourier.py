"""Convolution by Fourier transforms of overlapping tiles, NC1HWC0 -> NC1HWC0, any padding and batch, stride 1.

`fourier2d` describes one convolution as Calls; `groups` is 1 or the number of channels. Between dense channels a band
of tile rows takes three: the image's spectra into a workspace, the products over channels at every point of a spectrum,
and the sums back into pixels. Their parts are independent and write what no other writes, so that no transform and no
product is made twice, whatever the number of threads. Depthwise, one call does all of it. Geometry, the order of the
spectra and the error bound are in npusim.kernels.fourier_shape, the code is in npusim.kernels.fourier_code and
npusim.kernels.fourier_products. Sums that are not finite stop the run after the task with status NOT_FINITE: a NaN or
an infinity spoils all pixels of the tiles it lies in.

    pack_spectrum(filters [O, I, KH, KW], edge, bias=None) -> PackedSpectrum
    pack_depthwise_spectrum(filters [C, 1, KH, KW], edge, bias=None) -> PackedSpectrum
    fourier2d(shape, x, packed, out, (in dtype, out dtype), workspace, epilogue=None) -> [Call, …]
    workspace_bytes(shape, edge) -> bytes of the memory that the calls share
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.kernels import panels
from npusim.kernels.conv import Conv2D, fill_fields, lane_strides
from npusim.kernels.conv_fill import FIELDS
from npusim.kernels.desc import SIZE, Call, call
from npusim.kernels.epilogue import Epilogue
from npusim.kernels.fourier_fields import OWN_FIELDS
from npusim.kernels.fourier_shape import (
    SLACK_PIXELS,
    PackedSpectrum,
    Tiles,
    complex_points,
    pack_depthwise_spectrum,
    pack_spectrum,
    workspace_of,
)

__all__ = ["PackedSpectrum", "fourier2d", "pack_depthwise_spectrum", "pack_spectrum", "workspace_bytes", "workspace_of"]

_PIXEL = 64
_PRODUCT_PARTS = 16


def workspace_bytes(shape: Conv2D, edge: int) -> int:
    """Bytes that the calls of a convolution between dense channels share; 0 for a depthwise one."""
    if shape.groups > 1:
        return 0
    tiles = Tiles(shape, edge)
    return sum(_shared_bytes(tiles, tiles.band_rows))


def fourier2d(
    shape: Conv2D,
    x: int,
    packed: PackedSpectrum,
    out: int,
    dtypes: tuple[str, str],
    workspace: np.ndarray | None = None,
    epilogue: Epilogue | None = None,
) -> list[Call]:
    """Calls of a convolution: addresses of NC1HWC0 input and output, their dtypes (`f16`, `bf16` or `f32`).

    `workspace` has `workspace_bytes` bytes; nothing else may use it while the calls run.
    """
    shape.check()
    depthwise = shape.groups > 1
    unit = (shape.kernel, shape.strides, shape.dilations)
    if unit != (packed.window, (1, 1), (1, 1)) or depthwise != (packed.vectors == 0):
        raise ValueError(f"spectra of windows {packed.window} do not serve {shape}")
    if depthwise and not shape.groups == shape.c == shape.o:
        raise ValueError(f"Fourier transforms serve one group or a group per channel, not {shape.groups}")
    rule, tiles = epilogue or Epilogue(), Tiles(shape, packed.edge)
    task, target = _Task(shape, x, packed, out, dtypes, rule, tiles), rule.target(dtypes[1])
    if depthwise:
        values, scratch = task.fields((0, tiles.all_rows), (0, 0))
        name = f"fourier:depthwise:{dtypes[0]}:{target}:{packed.edge}"
        return [call(name, tiles.all_rows * tiles.groups, scratch, values)]
    if workspace is None or workspace.nbytes < sum(_shared_bytes(tiles, tiles.band_rows)):
        raise ValueError("the workspace is smaller than workspace_bytes says")
    start = workspace.ctypes.data
    calls = []
    for first in range(0, tiles.all_rows, tiles.band_rows):
        rows = min(tiles.band_rows, tiles.all_rows - first)
        places = (start, start + _shared_bytes(tiles, rows)[0])
        values, scratch = task.fields((first, rows), places)
        units = panels.split_units(tiles.out_groups, packed.vectors)[1]
        steps = {
            f"fourier:input:{dtypes[0]}:{packed.edge}": rows * tiles.groups,
            "spectra:products": _PRODUCT_PARTS,
            f"fourier:output:{target}:{packed.edge}": rows * units,
        }
        calls += [call(name, parts, scratch, values) for name, parts in steps.items()]
        calls[-1].keep.append(workspace)
    return calls


def _shared_bytes(tiles: Tiles, rows: int) -> tuple[int, int]:
    """Bytes of the image's spectra and of the sums for some rows of tiles."""
    planes = tiles.edge**2
    spectra, sums = (planes * tiles.plane_bytes(rows, groups) for groups in (tiles.groups, tiles.out_groups))
    return -(-spectra // 64) * 64, -(-sums // 64) * 64


@dataclass(frozen=True)
class _Task:
    """What the descriptors of all calls of a convolution have in common."""

    shape: Conv2D
    x: int
    packed: PackedSpectrum
    out: int
    dtypes: tuple[str, str]
    rule: Epilogue
    tiles: Tiles

    def fields(self, rows: tuple[int, int], places: tuple[int, int]) -> tuple[list[Any], int]:
        """Descriptor fields of the calls for some rows of tiles (first, count), and scratch bytes of a part.

        `places` are the addresses of the image's spectra and of the sums.
        """
        shape, tiles = self.shape, self.tiles
        core = self._core(rows[1] * tiles.columns)
        fields = fill_fields(tiles.grown, tiles.layout, self.dtypes[0])
        fields |= {
            "x": self.x,
            "groups": tiles.groups,
            "bands": tiles.rows,
            "splits": 1,
            "units_per_split": core.units[1],
            "on": core.stored * shape.out_hw[0] * shape.out_hw[1] * SIZE[self.dtypes[1]],
            "band_out": 0,
            "band_in": tiles.m[0],
        }
        own = self._of_points(rows, places) | self._of_tiles(core)
        products = own["total_bytes"] + 2 * core.vectors * own["group_weights"] + 3 * own["product_bytes"]
        scratch = max(own["finished_offset"] + tiles.finished_bytes(core.vectors), products)
        return [*core.fields(), *(fields[n] for n in FIELDS), *(own[n] for n in OWN_FIELDS)], scratch

    def _core(self, count: int) -> panels.Core:
        """Leading fields for a number of tiles."""
        shape, tiles, packed = self.shape, self.tiles, self.packed
        vectors = max(1, packed.vectors)
        return panels.Core(
            weights=packed.weights,
            weights_dtype="f32",
            bias=packed.bias,
            out=self.out,
            units=panels.split_units(tiles.out_groups, vectors),
            tap_channels=16,
            pixel_bytes=_PIXEL,
            taps=np.arange(tiles.groups, dtype=np.int64) * (count * _PIXEL),
            out_strides=lane_strides(shape.c0_out, shape.out_hw[0] * shape.out_hw[1], SIZE[self.dtypes[1]]),
            channels=shape.o,
            stored=-(-shape.o // shape.c0_out) * shape.c0_out,
            tiles=panels.run_tiles(count, _PIXEL) if packed.vectors else [],
            last_tiles=[],
            pitch=0,
            buffer_offset=0,
            vectors=vectors,
            epilogue=self.rule,
        )

    def _of_points(self, rows: tuple[int, int], places: tuple[int, int]) -> dict[str, Any]:
        """Fields of the spectra and of their products."""
        tiles, vectors = self.tiles, max(1, self.packed.vectors)
        count, points = rows[1] * tiles.columns, complex_points(tiles.edge)
        group_weights = tiles.groups * 16 * _PIXEL
        return {
            "first_row": rows[0],
            "spectra": places[0],
            "spectra_pitch": tiles.plane_bytes(rows[1], tiles.groups),
            "spectra_group": count * _PIXEL,
            "sums": places[1],
            "sums_pitch": tiles.plane_bytes(rows[1], tiles.out_groups),
            "sums_group": count * _PIXEL,
            "points": points,
            "part_points": -(-points // _PRODUCT_PARTS),
            "plane_weights": group_weights * tiles.out_groups,
            "group_weights": group_weights,
            "total_bytes": count * tiles.groups * _PIXEL,
            "product_bytes": (count + SLACK_PIXELS) * _PIXEL * vectors,
            "zeros": np.zeros(16 * vectors, np.float32),
        }

    def _of_tiles(self, core: panels.Core) -> dict[str, Any]:
        """Fields of the transforms and of their scratch memory."""
        tiles, (oh, ow) = self.tiles, self.shape.out_hw
        spectra = tiles.at_once * 16 // tiles.lanes if self.packed.vectors else 1
        line = tiles.pixel_bytes + tiles.tile_bytes * spectra
        return {
            "columns": tiles.columns,
            "tile_step": tiles.m[1] * _PIXEL,
            "tile_height": tiles.m[0],
            "image_rows": tiles.rows,
            "out_units": core.units[1],
            "tile_offset": tiles.pixel_bytes,
            "line_offset": line,
            "turns": tiles.turns,
            "tiles_at_once": tiles.at_once,
            "finished_offset": line + tiles.line_bytes,
            "finished_columns": tiles.finished_columns,
            "oh": oh,
            "ow": ow,
            "out_row": ow * core.out_strides[2],
        }
