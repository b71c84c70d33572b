"""Views and data movement: what changes only shape or place, never a value's meaning.

Shapes, axes and sizes are attributes. Views take no task; the others copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from metadef.dtype import DType
from metadef.error import InferError
from metadef.format import Format, Shape, TensorDesc
from metadef.op import (
    ALL_TYPES,
    Attr,
    AttrKind,
    Attrs,
    CostClass,
    FormatRule,
    InferRule,
    OpDef,
    Port,
    Reference,
    VectorWork,
    register,
)
from metadef.ops.common import X_ANY, Y, array, like, operand, plain
from metadef.ops.geometry import Descs, normal_axes, normal_axis
from metadef.ops.numeric import convert

FORMAT_NAMES = tuple(fmt.name for fmt in Format)


def reshaped(shape: Shape, wanted: Sequence[int]) -> Shape:
    """A concrete target shape: one -1 takes what is left.

    Raises:
        InferError: the element counts differ, or -1 is ambiguous.
    """
    unknown = [axis for axis, size in enumerate(wanted) if size == -1]
    known = prod(size for size in wanted if size != -1)
    total = prod(shape)
    result = list(wanted)
    if len(unknown) == 1 and known and total % known == 0:
        result[unknown[0]] = total // known
    if prod(result) != total or any(size < 0 for size in result):
        raise InferError(
            "shape does not hold as many elements as x",
            code="E14001",
            expected=f"{total} elements like {list(shape)}",
            got=str(list(wanted)),
        )
    return tuple(result)


def _infer_reshape(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    return [plain(reshaped(x.origin_shape, attrs["shape"]), x.dtype)]


def _infer_flatten(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    rank = len(x.origin_shape)
    axis = rank if attrs["axis"] == rank else normal_axis(attrs["axis"], rank)
    return [plain((prod(x.origin_shape[:axis]), prod(x.origin_shape[axis:])), x.dtype)]


def _infer_squeeze(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    shape = x.origin_shape
    axes = normal_axes(attrs["axis"], len(shape)) or tuple(axis for axis, size in enumerate(shape) if size == 1)
    wide = [axis for axis in axes if shape[axis] != 1]
    if wide:
        raise InferError(
            "only axes of size 1 can be squeezed", code="E14001", expected="size 1", got=f"axes {wide} of {list(shape)}"
        )
    return [plain(tuple(size for axis, size in enumerate(shape) if axis not in axes), x.dtype)]


def _infer_unsqueeze(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    rank = len(x.origin_shape) + len(attrs["axes"])
    axes = normal_axes(attrs["axes"], rank)
    sizes = iter(x.origin_shape)
    return [plain(tuple(1 if axis in axes else next(sizes) for axis in range(rank)), x.dtype)]


def _view_reference(rule: InferRule) -> Reference:
    def reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
        x = array(inputs)
        (result,) = rule([TensorDesc(x.shape, DType.FLOAT)], attrs)
        return [x.reshape(result.origin_shape)]

    return reference


def _infer_heads(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    shape, heads = x.origin_shape, attrs["heads"]
    if attrs["join"] and len(shape) == 4 and shape[1] == heads:
        return [plain((shape[0], shape[2], heads * shape[3]), x.dtype)]
    if not attrs["join"] and len(shape) == 3 and shape[2] % heads == 0:
        return [plain((shape[0], heads, shape[1], shape[2] // heads), x.dtype)]
    expected = f"[B, {heads}, S, D]" if attrs["join"] else f"[B, S, a multiple of {heads}]"
    raise InferError("heads do not fit x", code="E14001", expected=expected, got=str(list(shape)))


def _heads_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    x = array(inputs)
    if attrs["join"]:
        return [x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)]
    split = x.reshape(*x.shape[:2], attrs["heads"], -1)
    return [np.ascontiguousarray(split.transpose(0, 2, 1, 3))]


def _infer_transpose(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    perm, rank = attrs["perm"], len(x.origin_shape)
    if sorted(perm) != list(range(rank)):
        raise InferError(
            "perm is no permutation of the axes", code="E14001", expected=f"each of 0…{rank - 1} once", got=str(perm)
        )
    return [plain(tuple(x.origin_shape[axis] for axis in perm), x.dtype)]


def _infer_broadcast(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    shape, own = attrs["shape"], x.origin_shape
    padded = (1,) * (len(shape) - len(own)) + own
    if len(shape) < len(own) or any(size not in (1, want) for size, want in zip(padded, shape)):
        raise InferError(
            "x does not stretch to the shape",
            code="E14001",
            expected=f"{list(own)} with axes of size 1",
            got=str(shape),
        )
    return [like(x, shape)]


def _infer_tile(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    multiples = attrs["multiples"]
    if len(multiples) != len(x.origin_shape):
        raise InferError(
            "one multiple per axis is needed",
            code="E14001",
            expected=f"{len(x.origin_shape)} items",
            got=str(multiples),
        )
    return [like(x, tuple(size * times for size, times in zip(x.origin_shape, multiples)))]


def _infer_pad(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    pairs = pad_pairs(x.origin_shape, attrs)
    limit = {"constant": None, "edge": 0, "reflect": 1}[attrs["mode"]]
    for size, pair in zip(x.origin_shape, pairs):
        if limit is not None and any(pair) and max(pair) > (size - limit if limit else max(pair) * bool(size)):
            raise InferError(
                "there is too little to pad from", code="E14001", expected=f"at most {size - limit}", got=str(pair)
            )
    return [like(x, tuple(before + size + after for size, (before, after) in zip(x.origin_shape, pairs)))]


def pad_pairs(shape: Shape, attrs: Attrs) -> list[tuple[int, int]]:
    """(before, after) per axis. Raises InferError if PadD's ``paddings`` does not hold two numbers an axis."""
    flat = attrs["paddings"]
    if len(flat) != 2 * len(shape):
        raise InferError(
            "two paddings per axis are needed", code="E14001", expected=f"{2 * len(shape)} items", got=str(flat)
        )
    return list(zip(flat[::2], flat[1::2]))


def _pad_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    x = array(inputs)
    pairs = pad_pairs(x.shape, attrs)
    if attrs["mode"] == "constant":
        return [np.pad(x, pairs, constant_values=np.asarray(attrs["constant_values"]).astype(x.dtype))]
    return [np.pad(x, pairs, mode=attrs["mode"])]


def _infer_resize(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    shape, size = x.origin_shape, attrs["size"]
    if len(shape) != 4 or any(made % max(own, 1) for own, made in zip(shape[2:], size)):
        raise InferError(
            "only whole factors of H and W of an image can be repeated",
            code="E14001",
            expected=f"multiples of {list(shape[2:])}",
            got=str(list(size)),
        )
    return [plain((*shape[:2], *size), x.dtype, Format.NCHW)]


def _resize_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    x = array(inputs)
    rows, columns = (made // max(own, 1) for own, made in zip(x.shape[2:], attrs["size"]))
    return [x.repeat(rows, axis=2).repeat(columns, axis=3)]


def _infer_cast(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    return [like(operand(inputs), dtype=attrs["dst_type"])]


def _infer_trans_data(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    return [like(operand(inputs))]


def _copy_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    return [array(inputs)]


def _view(op_type: str, attrs: tuple[Attr, ...], infer: InferRule, doc: str) -> None:
    register(
        OpDef(
            op_type, (X_ANY,), (Y,), infer, _view_reference(infer), doc, attrs, inplace=((0, 0),), cost=CostClass.VIEW
        )
    )


def _move(op_type: str, attrs: tuple[Attr, ...], infer: InferRule, reference: Reference, doc: str) -> None:
    work = VectorWork(("copy",))
    register(OpDef(op_type, (X_ANY,), (Y,), infer, reference, doc, attrs, cost=CostClass.MOVE, work=work))


_view(
    "Reshape", (Attr("shape", AttrKind.LIST_INT, minimum=-1),), _infer_reshape, "The same elements under another shape."
)
_view("Flatten", (Attr("axis", AttrKind.INT, 1),), _infer_flatten, "A matrix: axes before axis, axes from axis on.")
_view(
    "Squeeze", (Attr("axis", AttrKind.LIST_INT, ()),), _infer_squeeze, "Drops axes of size 1; all of them without axis."
)
_view(
    "Unsqueeze",
    (Attr("axes", AttrKind.LIST_INT),),
    _infer_unsqueeze,
    "Adds axes of size 1, counted in the result's rank.",
)

register(
    OpDef(
        "FractalHeads",
        (X_ANY,),
        (Y,),
        _infer_heads,
        _heads_reference,
        "[B, S, H*D] as [B, H, S, D], or back with join: no bytes move in FRACTAL_NZ where S and D fill fractals.",
        (Attr("heads", AttrKind.INT, minimum=1), Attr("join", AttrKind.BOOL, False)),
        inplace=((0, 0),),
        cost=CostClass.VIEW,
    )
)

_move("Identity", (), _infer_trans_data, _copy_reference, "The same values in memory of their own.")
_move(
    "TransposeD",
    (Attr("perm", AttrKind.LIST_INT, minimum=0),),
    _infer_transpose,
    lambda inputs, attrs: [np.ascontiguousarray(array(inputs).transpose(attrs["perm"]))],
    "Axis i of the result is axis perm[i] of x.",
)
_move(
    "BroadcastToD",
    (Attr("shape", AttrKind.LIST_INT, minimum=0),),
    _infer_broadcast,
    lambda inputs, attrs: [np.ascontiguousarray(np.broadcast_to(array(inputs), attrs["shape"]))],
    "Stretches axes of size 1, and new leading axes, to shape.",
)
_move(
    "TileD",
    (Attr("multiples", AttrKind.LIST_INT, minimum=0),),
    _infer_tile,
    lambda inputs, attrs: [np.tile(array(inputs), attrs["multiples"])],
    "Repeats x multiples[i] times along axis i.",
)
_move(
    "PadD",
    (
        Attr("paddings", AttrKind.LIST_INT, minimum=0),
        Attr("constant_values", AttrKind.FLOAT, 0.0),
        Attr("mode", AttrKind.STRING, "constant", choices=("constant", "reflect", "edge")),
    ),
    _infer_pad,
    _pad_reference,
    "Adds elements around x; paddings holds (before, after) of each axis in turn; reflect does not repeat the border.",
)
_move(
    "ResizeNearestNeighborV2D",
    (Attr("size", AttrKind.LIST_INT, minimum=1, length=2),),
    _infer_resize,
    _resize_reference,
    "Images (N, C, H, W) enlarged to size by whole factors: every pixel is repeated.",
)
register(
    OpDef(
        "Cast",
        (X_ANY,),
        (Port("y", ALL_TYPES),),
        _infer_cast,
        lambda inputs, attrs: [convert(array(inputs), attrs["dst_type"])],
        "Another element type: to nearest even between floats; toward zero and saturating to integers, NaN gives 0.",
        (Attr("dst_type", AttrKind.TYPE),),
        formats=FormatRule.ANY,
        work=VectorWork(("cast",)),
    )
)
register(
    OpDef(
        "TransData",
        (Port("src", ALL_TYPES, type_var="T"),),
        (Port("dst", ALL_TYPES, type_var="T"),),
        _infer_trans_data,
        _copy_reference,
        "Another storage format; the values in origin layout stay as they are.",
        (
            Attr("src_format", AttrKind.STRING, choices=FORMAT_NAMES),
            Attr("dst_format", AttrKind.STRING, choices=FORMAT_NAMES),
            Attr("groups", AttrKind.INT, 1, minimum=1),
        ),
        formats=FormatRule.TRANS,
        cost=CostClass.MOVE,
        work=VectorWork(("copy",)),
    )
)
