"""Descriptor fields of convolution by Fourier transforms: those of a direct one, followed by OWN_FIELDS."""

from __future__ import annotations

from npusim.kernels import conv_fill, panels
from npusim.kernels.ir import Kernel, Val

OWN_FIELDS = (
    "columns",
    "tile_step",
    "tile_height",
    "image_rows",
    "first_row",
    "out_units",
    "spectra",
    "spectra_pitch",
    "spectra_group",
    "sums",
    "sums_pitch",
    "sums_group",
    "points",
    "part_points",
    "plane_weights",
    "group_weights",
    "total_bytes",
    "product_bytes",
    "tile_offset",
    "line_offset",
    "turns",
    "tiles_at_once",
    "finished_offset",
    "finished_columns",
    "oh",
    "ow",
    "out_row",
    "zeros",
)
_FIRST = panels.CORE_END + len(conv_fill.FIELDS)
_FIELD = {name: _FIRST + number for number, name in enumerate(OWN_FIELDS)}


def own(k: Kernel, desc: Val, name: str) -> Val:
    """One of OWN_FIELDS."""
    return k.field(desc, _FIELD[name])
