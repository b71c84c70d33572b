"""Host plans of operators over whole rows: softmax and the normalisations."""

from __future__ import annotations

from math import prod

import numpy as np

from metadef.ops.geometry import normal_axes, normal_axis
from npusim.kernels.desc import Call
from npusim.kernels.elementwise import View, elementwise
from npusim.kernels.plans.matrices import fractal_rows
from npusim.kernels.plans.site import NoFastKernel, Site
from npusim.kernels.rows import Rows, RowShape, layer_norm, softmax
from npusim.kernels.weights import aligned


def plan_softmax(site: Site) -> list[Call]:
    """SoftmaxV2 and LogSoftmaxV2 over one axis, or over neighbouring ones."""
    if not site.input(0).desc.is_plain:
        rows = fractal_rows(site)
        return [softmax(*rows, log=site.kernel.op_type == "LogSoftmaxV2", saturate=site.options.saturate)]
    x = site.plain_operand()
    shape = x.desc.origin_shape
    axes = normal_axes(site.kernel.attrs["axes"], len(shape))
    if not axes or axes != tuple(range(axes[0], axes[-1] + 1)):
        raise NoFastKernel("softmax over axes that do not lie together")
    view = (prod(shape[: axes[0]]), prod(shape[axes[0] : axes[-1] + 1]), prod(shape[axes[-1] + 1 :]))
    rows = RowShape.axis(view, 1, *_sides(site))
    return [softmax(*rows, log=site.kernel.op_type == "LogSoftmaxV2", saturate=site.options.saturate)]


def plan_layer_norm(site: Site) -> list[Call]:
    """LayerNorm over the trailing axes from ``begin_norm_axis`` on."""
    if not site.input(0).desc.is_plain:
        return _normed(site, fractal_rows(site), rms=False)
    x = site.plain_operand()
    shape = x.desc.origin_shape
    axis = normal_axis(site.kernel.attrs["begin_norm_axis"], len(shape))
    return _normed(site, RowShape.axis((prod(shape[:axis]), prod(shape[axis:])), 1, *_sides(site)), rms=False)


def plan_rms_norm(site: Site) -> list[Call]:
    """RmsNorm over as many trailing axes as gamma has."""
    x = site.plain_operand()
    shape = x.desc.origin_shape
    axis = len(shape) - len(site.input(1).desc.origin_shape)
    return _normed(site, RowShape.axis((prod(shape[:axis]), prod(shape[axis:])), 1, *_sides(site)), rms=True)


def plan_instance_norm(site: Site) -> list[Call]:
    """InstanceNorm: every plane normalised to fp32, then scaled by its channel and rounded once."""
    x, out = site.plain_operand(), site.output()
    n, c, *plane = x.desc.origin_shape
    middle = aligned(np.zeros(x.desc.elements, np.float32))
    rows = RowShape.axis((n * c, prod(plane)), 1, _sides(site)[0], (middle.ctypes.data, "f32"))
    first = layer_norm(*rows, 0, 0, "f32", site.kernel.attrs["epsilon"])
    shape = (n, c, prod(plane))
    views = [View.dense(middle.ctypes.data, "f32", shape)]
    for slot in (1, 2):
        operand = site.input(slot)
        views.append(View.dense(site.address(operand), site.element(operand), (c, 1), shape))
    target = View.dense(site.address(out), site.element(out), shape)
    second = elementwise("add(mul(x0,x1),x2)", views, target, shape, saturate=site.options.saturate)
    second.keep.append(middle)
    return [first, second]


def _normed(site: Site, rows: tuple[RowShape, Rows, Rows], rms: bool) -> list[Call]:
    slots = [slot for slot in (1, 2) if site.has(slot)]
    gamma = site.input(1)
    if any(site.input(slot).desc.dtype is not gamma.desc.dtype for slot in slots):
        raise NoFastKernel("gamma and beta of different types")
    element, places, wide = site.element(gamma), [site.address(site.input(slot)) for slot in slots], []
    if element != "f32" and all(site.is_constant(slot) for slot in slots):
        # Every row would convert them once more.
        wide = site.packed("norm parameters", slots, lambda: [aligned(site.wide_constant(slot)) for slot in slots])
        element, places = "f32", [array.ctypes.data for array in wide]
    beta = places[1] if len(places) > 1 else 0
    epsilon = site.kernel.attrs["epsilon"]
    call = layer_norm(*rows, places[0], beta, element, epsilon, rms=rms, saturate=site.options.saturate)
    call.keep.extend(wide)
    return [call]


def _sides(site: Site) -> tuple[tuple[int, str], tuple[int, str]]:
    x, out = site.input(0), site.output()
    return (site.address(x), site.element(x)), (site.address(out), site.element(out))
