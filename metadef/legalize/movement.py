"""Rules for shapes and movement: views, transposes, joins, cuts, padding, gathers, nearest-neighbour resizing."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor

import numpy as np

from metadef.graph import Tensor
from metadef.legalize.table import Step, Unmapped, rule


@rule("Reshape")
def reshape(step: Step) -> Sequence[Tensor]:
    """Zeros and -1 were resolved when shapes were inferred."""
    return step.out("Reshape", [step[0]], {"shape": step.result().origin_shape})


@rule("Flatten")
def flatten(step: Step) -> Sequence[Tensor]:
    return step.out("Flatten", [step[0]], {"axis": step.attr("axis", 1)})


@rule("Squeeze")
def squeeze(step: Step) -> Sequence[Tensor]:
    axes = step.ints(1, "axes")
    if axes is None:
        axes = tuple(axis for axis, size in enumerate(step.shape()) if size == 1)
    return step.out("Squeeze", [step[0]], {"axis": axes}) if axes else [step[0]]


@rule("Unsqueeze")
def unsqueeze(step: Step) -> Sequence[Tensor]:
    return step.out("Unsqueeze", [step[0]], {"axes": step.ints(1, "axes") or ()})


@rule("Transpose")
def transpose(step: Step) -> Sequence[Tensor]:
    rank = step.rank()
    perm = tuple(step.attr("perm") or reversed(range(rank)))
    return [step[0]] if perm == tuple(range(rank)) else step.out("TransposeD", [step[0]], {"perm": perm})


@rule("Concat")
def concat(step: Step) -> Sequence[Tensor]:
    if len(step.inputs) == 1:
        return [step[0]]
    return step.out("ConcatD", step.inputs, {"concat_dim": step.axis(0)})


@rule("Split")
def split(step: Step) -> Sequence[Tensor]:
    """Sizes are read off the results, whichever way the opset states them."""
    axis = step.axis(0)
    sizes = tuple(tensor.desc.origin_shape[axis] for tensor in step.node.outputs)
    if sum(sizes) != step.shape()[axis]:
        raise Unmapped("trailing pieces are not read")
    if len(sizes) == 1:
        return [step[0]]
    attrs = {"split_dim": axis, "num_split": len(sizes)}
    if len(set(sizes)) == 1:
        return step.out("SplitD", [step[0]], attrs)
    return step.out("SplitVD", [step[0]], {**attrs, "size_splits": sizes})


@rule("Slice")
def slice_(step: Step) -> Sequence[Tensor]:
    starts, ends = step.ints(1, "starts") or (), step.ints(2, "ends") or ()
    axes = step.ints(3, "axes") or tuple(range(len(starts)))
    steps = step.ints(4, "steps") or (1,) * len(starts)
    shape = step.shape()
    cuts = [range(size) for size in shape]
    for start, end, axis, stride in zip(starts, ends, axes, steps):
        cuts[axis] = range(*slice(start, end, stride).indices(shape[axis]))
    return _strided_slice(step, step[0], cuts)


def _strided_slice(step: Step, x: Tensor, cuts: Sequence[range], final: bool = True) -> Sequence[Tensor]:
    """One StridedSliceD, or nothing if everything is taken; an end before the first element is masked."""
    if list(cuts) == [range(size) for size in x.desc.origin_shape]:
        return [x]
    mask = sum(1 << axis for axis, cut in enumerate(cuts) if cut.stop < 0)
    attrs = {
        "begin": tuple(cut.start for cut in cuts),
        "end": tuple(max(cut.stop, 0) for cut in cuts),
        "strides": tuple(cut.step for cut in cuts),
        "end_mask": mask,
    }
    return step.out("StridedSliceD", [x], attrs) if final else [step.op("StridedSliceD", [x], attrs)]


@rule("Pad")
def pad(step: Step) -> Sequence[Tensor]:
    """Negative padding crops first; what is left is padded."""
    mode = step.attr("mode", "constant")
    if mode not in ("constant", "reflect", "edge"):
        raise Unmapped(f"padding mode '{mode}'")
    given = step.ints(1, "pads") or ()
    axes = step.ints(3, "axes") if step.optional(3) is not None else tuple(range(step.rank()))
    assert axes is not None
    pairs = [(0, 0)] * step.rank()
    for position, axis in enumerate(axes):
        pairs[axis] = (given[position], given[position + len(axes)])
    x = step[0]
    if any(min(pair) < 0 for pair in pairs):
        cuts = [range(max(-a, 0), size - max(-b, 0)) for size, (a, b) in zip(step.shape(), pairs)]
        grows = any(max(pair) > 0 for pair in pairs)
        (x,) = _strided_slice(step, x, cuts, final=not grows)
        if not grows:
            return [x]
    flat = tuple(max(item, 0) for pair in pairs for item in pair)
    if not any(flat):
        return [x]
    return step.out("PadD", [x], {"paddings": flat, "mode": mode, "constant_values": step.number(2, "value") or 0.0})


@rule("Expand")
def expand(step: Step) -> Sequence[Tensor]:
    shape = step.result().origin_shape
    return [step[0]] if shape == step.shape() else step.out("BroadcastToD", [step[0]], {"shape": shape})


@rule("Tile")
def tile(step: Step) -> Sequence[Tensor]:
    multiples = step.ints(1, "repeats") or ()
    return [step[0]] if set(multiples) <= {1} else step.out("TileD", [step[0]], {"multiples": multiples})


@rule("Gather")
def gather(step: Step) -> Sequence[Tensor]:
    return step.out("GatherV2", step.inputs, {"axis": step.axis(0)})


@rule("GatherElements")
def gather_elements(step: Step) -> Sequence[Tensor]:
    return step.out("GatherElements", step.inputs, {"dim": step.axis(0)})


@rule("DepthToSpace", "SpaceToDepth")
def space(step: Step) -> Sequence[Tensor]:
    """Two views around a transpose."""
    n, c, h, w = step.shape()
    block = step.attr("blocksize")
    depth_last = step.attr("mode", "DCR") == "DCR"
    if step.node.op_type == "SpaceToDepth":
        wide, perm = (
            (n, c, h // block, block, w // block, block),
            (0, 3, 5, 1, 2, 4) if depth_last else (0, 1, 3, 5, 2, 4),
        )
    elif depth_last:
        wide, perm = (n, block, block, c // block**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        wide, perm = (n, c // block**2, block, block, h, w), (0, 1, 4, 2, 5, 3)
    moved = step.op("TransposeD", [step.reshape(step[0], wide)], {"perm": perm})
    return step.out("Reshape", [moved], {"shape": step.result().origin_shape})


def resize_nearest(step: Step) -> Sequence[Tensor]:
    """Whole factors repeat elements (pixels of images by an operator of their own), all else gathers by index."""
    shape, wanted = step.shape(), step.result().origin_shape
    sources = [_sources(step, axis, size, made) for axis, (size, made) in enumerate(zip(shape, wanted))]
    repeats = [max(made // size, 1) if size else 1 for size, made in zip(shape, wanted)]
    whole = all(
        np.array_equal(source, np.arange(made) // times) for source, made, times in zip(sources, wanted, repeats)
    )
    if whole:
        return _repeat(step, repeats)
    changed = [axis for axis, size in enumerate(shape) if not np.array_equal(sources[axis], np.arange(size))]
    x = step[0]
    for axis in changed[:-1]:
        x = step.op("GatherV2", [x, step.constant(sources[axis], f"rows{axis}")], {"axis": axis})
    last = changed[-1]
    return step.out("GatherV2", [x, step.constant(sources[last], f"rows{last}")], {"axis": last})


def _repeat(step: Step, repeats: Sequence[int]) -> Sequence[Tensor]:
    shape = step.shape()
    if set(repeats) <= {1}:
        return [step[0]]
    if len(shape) == 4 and set(repeats[:2]) == {1}:
        return step.out("ResizeNearestNeighborV2D", [step.images(step[0])], {"size": step.result().origin_shape[2:]})
    thin, wide = [], []
    for size, times in zip(shape, repeats):
        thin += [size] if times == 1 else [size, 1]
        wide += [size] if times == 1 else [size, times]
    stretched = step.op("BroadcastToD", [step.reshape(step[0], thin)], {"shape": tuple(wide)})
    return step.out("Reshape", [stretched], {"shape": step.result().origin_shape})


def _scales(step: Step) -> dict[int, float]:
    """Axis -> scale, as far as scales are given (opset 7 attribute, 9 and 10 operand 1, from 11 operand 2)."""
    if "scales" in step.node.attrs:
        values = step.node.attrs["scales"]
    else:
        position = 1 if step.node.op_type == "Upsample" or step.opset < 11 else 2
        operand = step.optional(position)
        values = () if operand is None else step.value(position, "'scales'").reshape(-1)
    axes = step.attr("axes") or range(step.rank())
    return {axis % step.rank(): float(value) for axis, value in zip(axes, values)}


def _sources(step: Step, axis: int, size: int, made: int) -> np.ndarray:
    """int64 (made,): which element of an axis every result element copies.

    Before opset 11 the next one in a shrinking axis, the one before in a growing one: opset 10's examples, onnxruntime.
    """
    old = step.node.op_type == "Upsample" or step.opset < 11
    pick = {
        "floor": floor,
        "ceil": ceil,
        "round_prefer_floor": lambda x: ceil(x - 0.5),
        "round_prefer_ceil": lambda x: floor(x + 0.5),
    }[
        ("ceil" if _scales(step).get(axis, 1.0) < 1 else "floor")
        if old
        else step.attr("nearest_mode", "round_prefer_floor")
    ]
    return np.clip([pick(place) for place in resize_coordinates(step, axis)], 0, size - 1).astype(np.int64)


def resize_coordinates(step: Step, axis: int) -> list[float]:
    """Where along an axis of x each result element lies. Refuses coordinate transformations that crop.

    The scale is the given one, even where the result's size was rounded; sizes alone imply result / size. So aligned
    corners coincide at the length before rounding, as the specification says (onnxruntime takes the rounded one).
    Computed in float32, as runtimes do: what falls on an element or between two of them depends on it.
    """
    size, made = step.shape()[axis], step.result().origin_shape[axis]
    one, half = np.float32(1), np.float32(0.5)
    scale = np.float32(_scales(step).get(axis, made / size if size else 1.0))
    old = step.node.op_type == "Upsample" or step.opset < 11
    transform = "asymmetric" if old else step.attr("coordinate_transformation_mode", "half_pixel")
    if size == made and scale == 1.0:
        return [float(x) for x in range(made)]
    centre = np.float32(size) * half * (one - made / (scale * size)) if size else np.float32(0)
    place = {
        "asymmetric": lambda x: x / scale,
        "half_pixel": lambda x: (x + half) / scale - half,
        "half_pixel_symmetric": lambda x: centre + (x + half) / scale - half,
        "pytorch_half_pixel": lambda x: (x + half) / scale - half if made > 1 else 0.0,
        "align_corners": lambda x: x * (size - one) / (scale * size - one) if made > 1 else 0.0,
    }.get(transform)
    if place is None:
        raise Unmapped(f"coordinate transformation '{transform}'")
    return [float(place(np.float32(x))) for x in range(made)]
