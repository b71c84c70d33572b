"""Joining, cutting and indexing: concatenation, splits, slices, gathers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metadef.dtype import DType
from metadef.error import DeviceFault, InferError
from metadef.format import Shape, TensorDesc
from metadef.op import ALL_TYPES, Attr, AttrKind, Attrs, CostClass, OpDef, Port, PortKind, VectorWork, register
from metadef.ops.common import INDEX, X_ANY, Y, array, like, operand, plain
from metadef.ops.geometry import Descs, normal_axis

_COPY = VectorWork(("copy",))
_GATHER = VectorWork(("gather",))
_PIECES = Port("y", ALL_TYPES, PortKind.DYNAMIC, "T")


def _infer_concat(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    first = operand(inputs)
    rank = len(first.origin_shape)
    axis = normal_axis(attrs["concat_dim"], rank, "concat_dim")
    total = 0
    for position in range(len(inputs)):
        shape = operand(inputs, position).origin_shape
        if len(shape) != rank or any(a != b for i, (a, b) in enumerate(zip(shape, first.origin_shape)) if i != axis):
            raise InferError(
                "operands may only differ along concat_dim",
                code="E14001",
                port=f"x{position}",
                expected=f"{list(first.origin_shape)} but for axis {axis}",
                got=str(list(shape)),
            )
        total += shape[axis]
    return [like(first, (*first.origin_shape[:axis], total, *first.origin_shape[axis + 1 :]))]


def _concat_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    return [np.concatenate([array(inputs, position) for position in range(len(inputs))], axis=attrs["concat_dim"])]


def split_sizes(shape: Shape, attrs: Attrs) -> tuple[int, tuple[int, ...]]:
    """(axis, sizes) of SplitD or SplitVD.

    Raises:
        InferError: the sizes do not add up to the axis.
    """
    axis = normal_axis(attrs["split_dim"], len(shape), "split_dim")
    count = attrs["num_split"]
    sizes = attrs.get("size_splits")
    if sizes is None:
        if shape[axis] % count:
            raise InferError(
                "the axis does not split evenly",
                code="E14001",
                expected=f"a multiple of {count}",
                got=str(shape[axis]),
                hint="use SplitVD with the sizes",
            )
        sizes = (shape[axis] // count,) * count
    if len(sizes) != count or sum(sizes) != shape[axis]:
        raise InferError(
            "sizes do not fit the axis", code="E14001", expected=f"{count} sizes, sum {shape[axis]}", got=str(sizes)
        )
    return axis, tuple(sizes)


def _infer_split(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    axis, sizes = split_sizes(x.origin_shape, attrs)
    return [like(x, (*x.origin_shape[:axis], size, *x.origin_shape[axis + 1 :])) for size in sizes]


def _split_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    x = array(inputs)
    axis, sizes = split_sizes(x.shape, attrs)
    return list(np.split(x, np.cumsum(sizes)[:-1], axis=axis))


def slice_ranges(shape: Shape, attrs: Attrs) -> list[tuple[int, int, int]]:
    """(first, step, count) per axis of StridedSliceD.

    ``begin`` and ``end`` count from the back when negative and are clamped to the axis; bit i of ``begin_mask`` or
    ``end_mask`` ignores the bound of axis i. Axes past the end of the lists are taken whole.

    Raises:
        InferError: the lists differ in length, are too long, or a stride is 0.
    """
    begin, end, strides = attrs["begin"], attrs["end"], attrs["strides"]
    if not len(begin) == len(end) == len(strides) <= len(shape):
        raise InferError(
            "begin, end and strides need one entry an axis",
            code="E14001",
            expected=f"equal lengths, at most {len(shape)}",
            got=f"{len(begin)}, {len(end)}, {len(strides)}",
        )
    if 0 in strides:
        raise InferError("a stride is 0", code="E14001", got=str(strides))
    ranges = [(0, 1, size) for size in shape]
    for axis, step in enumerate(strides):
        first = None if attrs["begin_mask"] >> axis & 1 else begin[axis]
        last = None if attrs["end_mask"] >> axis & 1 else end[axis]
        taken = range(*slice(first, last, step).indices(shape[axis]))
        ranges[axis] = (taken.start, step, len(taken))
    return ranges


def _infer_slice(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    return [like(x, tuple(count for _, _, count in slice_ranges(x.origin_shape, attrs)))]


def _slice_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    x = array(inputs)
    cuts = []
    for first, step, count in slice_ranges(x.shape, attrs):
        stop = first + count * step
        cuts.append(slice(first, None if stop < 0 else stop, step) if count else slice(0, 0))
    return [np.ascontiguousarray(x[tuple(cuts)])]


def _infer_gather(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x, indices = operand(inputs), operand(inputs, 1)
    axis = normal_axis(attrs["axis"], len(x.origin_shape))
    return [plain((*x.origin_shape[:axis], *indices.origin_shape, *x.origin_shape[axis + 1 :]), x.dtype)]


def wrapped_indices(indices: np.ndarray, size: int) -> np.ndarray:
    """Non-negative indices.

    Raises:
        DeviceFault: an index lies outside [-size, size).
    """
    bad = (indices < -size) | (indices >= size)
    if bad.any():
        raise DeviceFault(
            "index out of range", port="indices", expected=f"{-size} to {size - 1}", got=str(indices[bad][0])
        )
    return np.where(indices < 0, indices + size, indices)


def _gather_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    x = array(inputs)
    return [np.take(x, wrapped_indices(array(inputs, 1), x.shape[attrs["axis"]]), axis=attrs["axis"])]


def _infer_gather_elements(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x, index = operand(inputs), operand(inputs, 1)
    rank = len(x.origin_shape)
    axis = normal_axis(attrs["dim"], rank, "dim")
    if len(index.origin_shape) != rank:
        raise InferError(
            "index and x differ in rank", code="E14001", port="index", expected=str(rank), got=str(index.origin_shape)
        )
    sizes = zip(index.origin_shape, x.origin_shape)
    if any(own > size for at, (own, size) in enumerate(sizes) if at != axis):
        expected = f"no larger than {list(x.origin_shape)} but along axis {axis}"
        text, got = "index is larger than x", str(list(index.origin_shape))
        raise InferError(text, code="E14001", port="index", expected=expected, got=got)
    return [like(x, index.origin_shape)]


def _gather_elements_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    x, index = array(inputs), array(inputs, 1)
    axis = normal_axis(attrs["dim"], x.ndim)
    window = tuple(slice(None) if i == axis else slice(size) for i, size in enumerate(index.shape))
    return [np.take_along_axis(x[window], wrapped_indices(index, x.shape[axis]), axis=axis)]


def _infer_scatter_update(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    var, indices, updates = operand(inputs), operand(inputs, 1), operand(inputs, 2)
    wanted = (*indices.origin_shape, *var.origin_shape[1:])
    if not var.origin_shape or updates.origin_shape != wanted:
        raise InferError(
            "updates do not fit the slices they replace",
            code="E14001",
            port="updates",
            expected=str(list(wanted)),
            got=str(list(updates.origin_shape)),
        )
    return [like(var, var.origin_shape)]


def _scatter_update_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    var = array(inputs).copy()
    if array(inputs, 1).size:
        var[wrapped_indices(array(inputs, 1), var.shape[0])] = array(inputs, 2)
    return [var]


_SPLIT_DIM = Attr("split_dim", AttrKind.INT)
_NUM_SPLIT = Attr("num_split", AttrKind.INT, minimum=1)

register(
    OpDef(
        "ConcatD",
        (Port("x", ALL_TYPES, PortKind.DYNAMIC, "T"),),
        (Y,),
        _infer_concat,
        _concat_reference,
        "Operands one after another along concat_dim.",
        (Attr("concat_dim", AttrKind.INT),),
        cost=CostClass.MOVE,
        work=_COPY,
    )
)
register(
    OpDef(
        "SplitD",
        (X_ANY,),
        (_PIECES,),
        _infer_split,
        _split_reference,
        "num_split equal pieces along split_dim.",
        (_SPLIT_DIM, _NUM_SPLIT),
        cost=CostClass.MOVE,
        work=_COPY,
    )
)
register(
    OpDef(
        "SplitVD",
        (X_ANY,),
        (_PIECES,),
        _infer_split,
        _split_reference,
        "Pieces of size_splits elements along split_dim; a size may be 0.",
        (Attr("size_splits", AttrKind.LIST_INT, minimum=0), _SPLIT_DIM, _NUM_SPLIT),
        cost=CostClass.MOVE,
        work=_COPY,
    )
)
register(
    OpDef(
        "StridedSliceD",
        (X_ANY,),
        (Y,),
        _infer_slice,
        _slice_reference,
        "Elements begin, begin + stride, … short of end, per axis; bounds clamp; masked bounds mean the whole axis.",
        (
            Attr("begin", AttrKind.LIST_INT),
            Attr("end", AttrKind.LIST_INT),
            Attr("strides", AttrKind.LIST_INT),
            Attr("begin_mask", AttrKind.INT, 0, minimum=0),
            Attr("end_mask", AttrKind.INT, 0, minimum=0),
        ),
        cost=CostClass.MOVE,
        work=_COPY,
    )
)
register(
    OpDef(
        "GatherV2",
        (X_ANY, Port("indices", INDEX)),
        (Y,),
        _infer_gather,
        _gather_reference,
        "Slices of x along axis, picked by indices; negative ones count from the back, others out of range fault.",
        (Attr("axis", AttrKind.INT, 0),),
        cost=CostClass.GATHER,
        work=_GATHER,
    )
)
register(
    OpDef(
        "GatherElements",
        (X_ANY, Port("index", INDEX)),
        (Y,),
        _infer_gather_elements,
        _gather_elements_reference,
        "Elements of x whose coordinate along dim is read from index; the others are the element's own.",
        (Attr("dim", AttrKind.INT, 0),),
        cost=CostClass.GATHER,
        work=_GATHER,
    )
)
register(
    OpDef(
        "ScatterUpdate",
        (
            Port("var", ALL_TYPES, type_var="T"),
            Port("indices", (DType.INT32, DType.INT64)),
            Port("updates", ALL_TYPES, type_var="T"),
        ),
        (Port("var", ALL_TYPES, type_var="T"),),
        _infer_scatter_update,
        _scatter_update_reference,
        "var with its slices along axis 0 at indices replaced by updates; of equal indices the last one counts.",
        inplace=((0, 0),),
        cost=CostClass.GATHER,
        work=_GATHER,
    )
)
