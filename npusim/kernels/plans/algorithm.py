"""Which algorithm this computer uses for a convolution that the device computes directly.

Winograd's F(2x2,3x3) with a transformed filter in fp32 sums as exactly as direct convolution: the share of results that
differ from the correctly rounded one stays below one per cent, none by more than its last place. F(4x4,3x3) is less
exact and waits for ``numerics="fast"``, as do Fourier transforms for large windows (``fft_16``: tiles of 16x16 pixels;
see npusim.kernels.plans.fourier). ``deterministic`` keeps every convolution direct. The choice depends on the shape and
on the register width alone, never on the number of threads. An infinity in the image would make every pixel of its tile
NaN: the kernels report such sums, and the task is computed again directly.
"""

from __future__ import annotations

from math import prod

import numpy as np

from metadef.winograd import ALGORITHMS, transform_filter
from npusim.kernels.conv import Conv2D
from npusim.kernels.conv_pack import NARROW_LIMIT
from npusim.kernels.cpu import host
from npusim.kernels.plans.fourier import best_edge
from npusim.kernels.plans.site import FFT, PlanOptions
from npusim.kernels.winograd_shape import PackedWinograd, bands_of, pack_winograd

# Measured on AVX2 and AVX-512 machines: share of the multiply-add peak in the direct loop.
_DIRECT_SHARE = 0.85
_DEPTHWISE_CYCLES, _ROW_PIXELS = 0.72, 9  # a multiply-add of a depthwise tile; pixels a row's tiles begin and end in
_LEAST_GAIN = 1.08
_SPECTRA_MARGIN = 1.15  # a filter's spectra take several times its memory
_LEAST_CHANNELS = 8


def host_algorithm(shape: Conv2D, options: PlanOptions) -> str:
    """``direct``, ``winograd_f2``, ``winograd_f4`` or ``fft_EDGE``: the fastest that the options allow by the
    machine's model."""
    if options.deterministic:
        return "direct"
    fast = options.numerics == "fast"
    cycles = {"direct": _direct_cycles(shape) / _LEAST_GAIN}
    if _possible(shape):
        cycles |= {name: bands_of(shape, m).cycles for name, m in ALGORITHMS.items() if m == 2 or fast}
    if fast:
        edge, of_edge = best_edge(shape)
        cycles[f"{FFT}{edge}"] = of_edge * _SPECTRA_MARGIN
    return min(cycles, key=lambda name: cycles[name])


def packed_filter(filters: np.ndarray, algorithm: str, bias: np.ndarray | None) -> PackedWinograd:
    """OIHW filter (float32) transformed in double precision, kept and packed in fp32."""
    m = ALGORITHMS[algorithm]
    return pack_winograd(transform_filter(filters, m), m, bias)


def _possible(shape: Conv2D) -> bool:
    window = (shape.kernel, shape.strides, shape.dilations, shape.groups)
    return window == ((3, 3), (1, 1), (1, 1), 1) and shape.c >= _LEAST_CHANNELS


def _vectors(channels: int) -> int:
    return -(-channels // 16) * (1 if host().wide else 2)


def _direct_cycles(shape: Conv2D) -> float:
    oh, ow = shape.out_hw
    taps = shape.n * oh * ow * prod(shape.kernel)
    if shape.groups > 1:
        return taps * (1 + _ROW_PIXELS / ow) * _vectors(shape.o) * _DEPTHWISE_CYCLES
    channels = shape.c if shape.c <= NARROW_LIMIT else -(-shape.c // 16) * 16
    return taps * channels * _vectors(shape.o) / 2 / _DIRECT_SHARE
