"""Rules that compose an operator from several: transposed convolution, interpolation, normalisation.

Windows over channels are a product with a constant matrix, at home on the cube. Interpolation and running sums are
not, since there a zero of the matrix would turn infinities into NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor

import numpy as np

from metadef.dtype import DType
from metadef.graph import Tensor
from metadef.legalize.movement import resize_coordinates, resize_nearest
from metadef.legalize.table import Step, Unmapped, rule
from metadef.ops.cube import turned_filter
from metadef.ops.resize import bilinear_places

Kernel = Callable[[float, int], list[tuple[int, float]]]
"""(place, size of the axis) -> neighbours and their weights."""


# -- transposed convolution -------------------------------------------------------------------------------------------


@rule("ConvTranspose")
def conv_transpose(step: Step) -> Sequence[Tensor]:
    """One operator; a convolution where there is no stride, or where more is cut off than the filter adds."""
    x, weight = step[0], step[1]
    if step.rank() != 4:
        raise Unmapped(f"a transposed convolution over {step.rank() - 2} spatial axes")
    groups = step.attr("group", 1)
    step.check_kernel(weight.desc.origin_shape[2:])
    strides = step.attr("strides") or (1, 1)
    dilations = step.attr("dilations") or (1, 1)
    room = [(kernel - 1) * dilation for kernel, dilation in zip(weight.desc.origin_shape[2:], dilations)]
    cuts = _transposed_pads(step, room, strides)
    filters = step.value(1, "the filter")
    if set(strides) != {1} and all(begin >= 0 and max(begin, end) <= reach for (begin, end), reach in zip(cuts, room)):
        attrs = {
            "input_size": step.result().origin_shape,
            "strides": (1, 1, *strides),
            "pads": tuple(max(cut, 0) for axis in cuts for cut in axis),
            "dilations": (1, 1, *dilations),
            "groups": groups,
            "output_padding": (0, 0, *(max(-end, 0) for _, end in cuts)),
        }
        return step.out("Conv2DTransposeD", [step.images(x), step.images(weight), step.optional(2)], attrs)
    turned = step.images(step.constant(turned_filter(filters, groups), "filter", weight.desc.dtype))
    pads = []
    for axis, (begin, end) in enumerate(cuts):
        pads += [room[axis] - begin, room[axis] - end - (strides[axis] - 1)]
    image = _with_zeros_between(step, x, strides)
    if min(pads) < 0:
        image = _cropped(step, image, [max(-pad, 0) for pad in pads])
    attrs = {
        "strides": (1, 1, 1, 1),
        "dilations": (1, 1, *dilations),
        "pads": tuple(max(pad, 0) for pad in pads),
        "groups": groups,
    }
    return step.out("Conv2D", [step.images(image), turned, step.optional(2)], attrs)


def _transposed_pads(step: Step, room: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """What is cut from the begin and the end of each axis; an output padding is a negative cut at the end."""
    extra = step.attr("output_padding") or (0, 0)
    mode = step.auto_pad()
    if mode in ("NOTSET", "VALID") and not step.attr("output_shape"):
        given = step.attr("pads") or (0, 0, 0, 0)
        return [(given[axis], given[2 + axis] - extra[axis]) for axis in range(2)]
    cuts = []
    for axis, (size, wanted) in enumerate(zip(step.shape()[2:], step.result().origin_shape[2:])):
        total = strides[axis] * (size - 1) + extra[axis] + room[axis] + 1 - wanted
        small = total // 2
        begin = small if mode == "SAME_UPPER" else total - small
        cuts.append((begin, total - begin - extra[axis]))
    return cuts


def _with_zeros_between(step: Step, x: Tensor, strides: Sequence[int]) -> Tensor:
    """Every pixel followed by stride - 1 zeros, along H and W."""
    if set(strides) == {1}:
        return x
    n, c, h, w = x.desc.origin_shape
    thin = step.reshape(x, (n, c, h, 1, w, 1))
    paddings = (0, 0, 0, 0, 0, 0, 0, strides[0] - 1, 0, 0, 0, strides[1] - 1)
    return step.reshape(step.op("PadD", [thin], {"paddings": paddings}), (n, c, h * strides[0], w * strides[1]))


def _cropped(step: Step, image: Tensor, cuts: Sequence[int]) -> Tensor:
    n, c, h, w = image.desc.origin_shape
    top, bottom, left, right = cuts
    attrs = {"begin": (0, 0, top, left), "end": (n, c, h - bottom, w - right), "strides": (1, 1, 1, 1)}
    return step.op("StridedSliceD", [image], attrs)


# -- interpolation ----------------------------------------------------------------------------------------------------


@rule("Upsample", "Resize")
def resize(step: Step) -> Sequence[Tensor]:
    """Nearest neighbour moves elements; linear and cubic interpolation weigh a few neighbours along W, then H.

    Linear interpolation of images is one operator, if sizes alone say where its pixels lie. Nowhere a product with a
    matrix: there elements that are not mixed would meet a factor of zero, which infinities and NaN survive.
    """
    mode = step.attr("mode", "nearest")
    if step.attr("antialias", 0) or step.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Unmapped("resizing with antialias or a kept aspect ratio")
    if mode == "nearest":
        return resize_nearest(step)
    shape, wanted, rank = step.shape(), step.result().origin_shape, step.rank()
    if rank < 2 or shape[:-2] != wanted[:-2]:
        raise Unmapped("interpolation along other axes than the last two")
    if not step.dtype().is_float:
        raise Unmapped(f"interpolation of {step.dtype().label}")
    if mode == "linear" and (attrs := _bilinear(step)) is not None:
        return step.out("ResizeBilinearV2D", [step.images(step[0])], attrs)
    kernel = _cubic(step) if mode == "cubic" else _linear
    taps = {axis: _taps(step, axis, kernel) for axis in (rank - 1, rank - 2)}
    mixed = [axis for axis, found in taps.items() if not _keeps(found, shape[axis])]
    if not mixed:
        return [step[0]]
    x = step[0]
    for axis in mixed:
        x = _mix(step, x, axis, taps[axis], final=axis == mixed[-1])
    return [x]


def _bilinear(step: Step) -> dict[str, object] | None:
    """Attributes of ResizeBilinearV2D; None where its pixels would lie elsewhere, or nothing changes."""
    shape, wanted = step.shape(), step.result().origin_shape
    if step.rank() != 4 or shape == wanted or 0 in (*shape, *wanted):
        return None
    places = {axis: resize_coordinates(step, axis) for axis in (2, 3)}
    for corners, half in ((False, True), (True, False), (False, False)):
        attrs = {"size": wanted[2:], "align_corners": corners, "half_pixel_centers": half}
        theirs = [bilinear_places(shape[axis], wanted[axis], attrs) for axis in places]
        if all(np.allclose(ours, own, 1e-6, 1e-6) for ours, own in zip(theirs, places.values(), strict=True)):
            return attrs
    return None


def _taps(step: Step, axis: int, kernel: Kernel) -> list[tuple[np.ndarray, np.ndarray]]:
    """(sources int64, weights float64) of every neighbour that result elements along an axis are mixed from.

    Borders repeat; a place has its neighbours in order, and one without weight anywhere is left out.
    """
    size = step.shape()[axis]
    places = [kernel(place, size) for place in resize_coordinates(step, axis)]
    if not places:
        return [(np.zeros(0, np.int64), np.zeros(0))]
    count = max(map(len, places))
    padded = np.array([found + [(found[-1][0], 0.0)] * (count - len(found)) for found in places])
    sources = np.clip(padded[:, :, 0], 0, size - 1).astype(np.int64)
    return [(sources[:, tap], padded[:, tap, 1]) for tap in range(count) if padded[:, tap, 1].any()]


def _keeps(taps: list[tuple[np.ndarray, np.ndarray]], size: int) -> bool:
    """Whether every element stays what and where it is."""
    return len(taps) == 1 and np.array_equal(taps[0][0], np.arange(size)) and bool(np.all(taps[0][1] == 1))


def _mix(step: Step, x: Tensor, axis: int, taps: list[tuple[np.ndarray, np.ndarray]], final: bool) -> Tensor:
    """Weighted neighbours gathered along an axis, added up; ``final`` says that this is the node's result."""
    terms = []
    for number, (sources, weights) in enumerate(taps):
        rows = step.op("GatherV2", [x, step.constant(sources, f"rows{axis}_{number}")], {"axis": axis})
        spread = weights.reshape((-1,) + (1,) * (step.rank() - 1 - axis))
        factor = step.constant(spread, f"weights{axis}_{number}", x.desc.dtype)
        last = final and len(taps) == 1
        terms.append(step.out("Mul", [rows, factor])[0] if last else step.op("Mul", [rows, factor]))
    total = terms[0]
    for number, term in enumerate(terms[1:], 2):
        last = final and number == len(terms)
        total = step.out("Add", [total, term])[0] if last else step.op("Add", [total, term])
    return total


def _linear(place: float, size: int) -> list[tuple[int, float]]:
    """Two neighbours of a place inside the axis, half of each where they are one (as onnxruntime has it)."""
    place = min(max(place, 0.0), size - 1.0)
    left = floor(place)
    if left + 1 > size - 1:
        return [(left, 0.5), (left, 0.5)]
    return [(left, 1 - (place - left)), (left + 1, place - left)]


def _cubic(step: Step) -> Kernel:
    a, exclude = step.attr("cubic_coeff_a", -0.75), step.attr("exclude_outside", 0)

    def kernel(place: float, size: int) -> list[tuple[int, float]]:
        left = floor(place)
        taps = [(left + shift, _cubic_weight(abs(place - left - shift), a)) for shift in (-1, 0, 1, 2)]
        if exclude:
            taps = [(source, weight) for source, weight in taps if 0 <= source < size]
            total = sum(weight for _, weight in taps)
            taps = [(source, weight / total) for source, weight in taps]
        return taps

    return kernel


def _cubic_weight(distance: float, a: float) -> float:
    if distance <= 1:
        return ((a + 2) * distance - (a + 3)) * distance * distance + 1
    return ((distance - 5) * distance + 8) * distance * a - 4 * a if distance < 2 else 0.0


# -- normalisation ----------------------------------------------------------------------------------------------------


@rule("LRN")
def local_response(step: Step) -> Sequence[Tensor]:
    """Squares are summed over a window of channels by a 1x1 convolution with a band matrix.

    The factor alpha / size is applied before squaring, so that large activations do not overflow in half precision.
    """
    if step.rank() != 4:
        raise Unmapped(f"local response normalisation of rank {step.rank()}")
    size, x = step.attr("size"), step.images(step[0])
    c = step.shape()[1]
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    offset = np.arange(c)[None, :] - np.arange(c)[:, None]
    band = ((offset >= -before) & (offset <= after)).astype(np.float64).reshape(c, c, 1, 1)
    scaled = step.op("Mul", [x, step.scalar((step.attr("alpha", 1e-4) / size) ** 0.5, "root", x)])
    squares = step.op("Mul", [scaled, scaled])
    filters = step.images(step.constant(band, "band", x.desc.dtype))
    bias = step.constant(np.full(c, step.attr("bias", 1.0)), "bias", x.desc.dtype)
    summed = step.op("Conv2D", [squares, filters, bias], {"strides": (1, 1, 1, 1)})
    power = step.op("Pow", [summed, step.scalar(-step.attr("beta", 0.75), "exponent", x)])
    return step.out("Mul", [x, power])


@rule("MeanVarianceNormalization")
def mean_variance(step: Step) -> Sequence[Tensor]:
    attrs = {"axes": tuple(axis % step.rank() for axis in step.attr("axes", (0, 2, 3))), "keep_dims": True}
    centred = step.op("Sub", [step[0], step.op("ReduceMeanD", [step[0]], attrs)])
    variance = step.op("ReduceMeanD", [step.op("Mul", [centred, centred])], attrs)
    deviation = step.op("Add", [step.op("Sqrt", [variance]), step.scalar(1e-9, "epsilon", step[0])])
    return step.out("RealDiv", [centred, deviation])


@rule("Celu")
def celu(step: Step) -> Sequence[Tensor]:
    alpha = step.attr("alpha", 1.0)
    inner = step.op("Elu", [step.op("Mul", [step[0], step.scalar(1 / alpha, "inverse", step[0])])])
    return step.out("Mul", [inner, step.scalar(alpha, "alpha", step[0])])


# -- masks and sums ---------------------------------------------------------------------------------------------------


@rule("Trilu")
def triangle(step: Step) -> Sequence[Tensor]:
    shift = 0 if step.optional(1) is None else int(step.value(1, "the diagonal").reshape(-1)[0])
    rows, columns = step.shape()[-2:]
    above = np.arange(columns)[None, :] - np.arange(rows)[:, None] - shift
    mask = step.constant(above >= 0 if step.attr("upper", 1) else above <= 0, "mask")
    return step.out("SelectV2", [mask, step[0], step.scalar(0, "zero", step[0])])


@rule("CumSum")
def running_sum(step: Step) -> Sequence[Tensor]:
    axis = step.checked_axis(int(step.value(1, "the axis").reshape(-1)[0]))
    attrs = {"axis": axis, "exclusive": bool(step.attr("exclusive", 0)), "reverse": bool(step.attr("reverse", 0))}
    return step.out("Cumsum", [step[0]], attrs)


@rule("OneHot")
def one_hot(step: Step) -> Sequence[Tensor]:
    """Indices are compared with a ruler along a new axis; a negative index meets the ruler minus its length."""
    depth = int(step.value(1, "the depth").reshape(-1)[0])
    if step.dtype() not in (DType.INT32, DType.INT64):
        raise Unmapped(f"indices of type {step.dtype().label}")
    rank = step.rank()
    axis = step.attr("axis", -1) % (rank + 1)
    ruler_shape = tuple(depth if i == axis else 1 for i in range(rank + 1))
    indices = step.op("Unsqueeze", [step[0]], {"axes": (axis,)})
    hits = []
    for name, start in (("ruler", 0), ("ruler_below", -depth)):
        ruler = step.constant(np.arange(start, start + depth).reshape(ruler_shape), name, step.dtype())
        hits.append(step.op("Equal", [indices, ruler]))
    levels = step[2]
    off, on = (
        step.op("StridedSliceD", [levels], {"begin": (i,), "end": (i + 1,), "strides": (1,)})
        if levels.const is None
        else step.stored(levels.const[i : i + 1], name, levels.desc.dtype)
        for i, name in enumerate(("off", "on"))
    )
    return step.out("SelectV2", [step.op("LogicalOr", hits), on, off])
