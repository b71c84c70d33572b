"""Host plan of convolutions: by the algorithm that the task names, or by another of this computer's choice.

A task that names the direct algorithm may be computed as ``npusim.kernels.plans.algorithm`` says. Transforms of whole
tiles may have it computed again by its twin, which is why it must not overwrite its own operands.
"""

from __future__ import annotations

from metadef.format import WINOGRAD_FORMATS, Format
from npusim.kernels.desc import Call
from npusim.kernels.plans.conv import plan_conv, shape_of
from npusim.kernels.plans.site import FFT, Site


def plan_convolution(site: Site) -> list[Call]:
    """Conv2D on NC1HWC0 activations with constant filter and bias."""
    fmt = site.input(1).desc.format
    if fmt in WINOGRAD_FORMATS:
        from npusim.kernels.plans.winograd import plan_named

        return plan_named(site, WINOGRAD_FORMATS[fmt])
    algorithm = site.algorithm(lambda: _chosen(site)) if _replaceable(site) else "direct"
    if algorithm == "direct":
        return plan_conv(site)
    if algorithm.startswith(FFT):
        from npusim.kernels.plans.fourier import plan_fourier

        return plan_fourier(site, int(algorithm.removeprefix(FFT)))
    from npusim.kernels.plans.winograd import plan_winograd

    return plan_winograd(site, algorithm)


def _chosen(site: Site) -> str:
    """By the machine's model, which a stored plan makes needless."""
    from npusim.kernels.plans.algorithm import host_algorithm

    return host_algorithm(shape_of(site), site.options)


def _replaceable(site: Site) -> bool:
    """Whether a direct task may be computed in another way: float operands that the result does not overwrite."""
    out = site.output().address
    apart = all(item is None or item.address != out for item in site.task.inputs)
    apart = apart and site.input(0).desc.format is Format.NC1HWC0
    floats = site.input(0).desc.dtype.is_float and site.input(1).desc.dtype.is_float
    return apart and floats and site.is_constant(1)
