"""Host plan of convolutions by Fourier transforms: what one costs on this computer, and its calls.

For stride-1 windows of 25 taps and more (smaller ones are Winograd's), between dense channels or depthwise. A result's
error before rounding is bounded by the norms of a tile's pixels and of the filter (`fourier_shape.error_factor`), not
by the terms of its own sum: where neighbouring pixels are much larger than a result's own, direct summation keeps more
of it. That is why these plans wait for ``numerics="fast"``, as Winograd's F(4x4) does. Sums that are not finite have
the task computed again by its twin.
"""

from __future__ import annotations

from math import log2, prod

from npusim.kernels.conv import Conv2D
from npusim.kernels.fourier import (
    PackedSpectrum,
    fourier2d,
    pack_depthwise_spectrum,
    pack_spectrum,
    workspace_bytes,
    workspace_of,
)
from npusim.kernels.fourier_shape import DENSE_EDGES, DEPTHWISE_EDGES, STRAIGHT, Tiles, products_of
from npusim.kernels.panels import run_extent
from npusim.kernels.plans.conv import shape_of
from npusim.kernels.plans.fusion import Call, Epilogue, epilogue_of, extensible
from npusim.kernels.plans.site import Site

_LEAST_TAPS = 25
_MOST_FILTER_BYTES = 128 << 20  # of spectra: what one convolution may take of this computer's memory
# Measured on an AVX2 machine: share of the multiply-add peak in products, cycles of a transform per pixel and level of
# butterflies, bytes of filters and of spectra that come from or go to memory in a cycle, cycles of a call of a tile.
_PRODUCT_SHARE = 0.8
_LEVEL_CYCLES = 1.4
_DEPTHWISE_LEVEL_CYCLES, _DEPTHWISE_LONG_CYCLES = 1.8, 2.6  # with the product; lines of two passes
_FILTER_BYTES_PER_CYCLE, _SPECTRA_BYTES_PER_CYCLE = 3.0, 6.0
_TILE_CYCLES = 60.0


def best_edge(shape: Conv2D) -> tuple[int, float]:
    """Tile edge of least estimated time and its cycles; 0 and infinity where Fourier transforms do not serve."""
    if not _possible(shape):
        return 0, float("inf")
    edges = DENSE_EDGES if shape.groups == 1 else DEPTHWISE_EDGES
    cuts = [Tiles(shape, edge) for edge in edges if edge > max(shape.kernel)]
    costs = [(cut.edge, _cycles(cut)) for cut in cuts if cut.filter_bytes <= _MOST_FILTER_BYTES]
    return min(costs, key=lambda pair: pair[1], default=(0, float("inf")))


def plan_fourier(site: Site, edge: int) -> list[Call]:
    """The calls of a convolution with constant filter and bias."""
    shape, x = shape_of(site), site.input(0)
    pack = pack_depthwise_spectrum if shape.groups > 1 else pack_spectrum

    def spectra() -> PackedSpectrum:
        return pack(site.wide_constant(1), edge, site.wide_constant(2) if site.has(2) else None)

    packed = site.packed(("fft", edge), (1, 2), spectra)
    dtypes = (site.element(x), site.element(site.output()))
    rule = epilogue_of(site, site.kernel.fused)
    if shape.groups > 1:

        def make(address: int, rule: Epilogue) -> Call:
            return fourier2d(shape, site.address(x), packed, address, dtypes, None, rule)[0]

        return [extensible(site, make, rule)]
    # Sizes are powers of two, so that the convolutions of a model share few workspaces.
    size = 1 << (workspace_bytes(shape, edge) - 1).bit_length()
    workspace = site.packed(("fft workspace", size), (), lambda: workspace_of(size))
    return fourier2d(shape, site.address(x), packed, site.address(site.output()), dtypes, workspace, rule)


def _possible(shape: Conv2D) -> bool:
    served = shape.groups == 1 or shape.groups == shape.c == shape.o
    return served and shape.strides == shape.dilations == (1, 1) and prod(shape.kernel) >= _LEAST_TAPS


def _levels(edge: int) -> float:
    """Pixels times levels of butterflies: one tile of a vector of channels, one way."""
    return edge * edge * 2 * log2(edge)


def _cycles(tiles: Tiles) -> float:
    width = 16 // tiles.lanes
    if not tiles.dense:
        each = _DEPTHWISE_LONG_CYCLES if tiles.edge > STRAIGHT else _DEPTHWISE_LEVEL_CYCLES
        return tiles.count * tiles.groups * width * 2 * each * _levels(tiles.edge)
    bands = -(-tiles.all_rows // tiles.band_rows)
    runs, pixels = run_extent(tiles.band_rows * tiles.columns)
    products = products_of(tiles.edge) * tiles.out_groups * width * bands
    cycles = products * (pixels * tiles.groups * 16 / 2 / _PRODUCT_SHARE + runs * _TILE_CYCLES / 2)
    cycles += tiles.count * (tiles.groups + tiles.out_groups) * width * _LEVEL_CYCLES * _levels(tiles.edge)
    spectra = tiles.edge**2 * 4 * tiles.count * (tiles.groups + tiles.out_groups) * 16 * 2
    return cycles + spectra / _SPECTRA_BYTES_PER_CYCLE + bands * tiles.filter_bytes / _FILTER_BYTES_PER_CYCLE
