"""Selection by order: the first elements of sorted rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metadef.dtype import DType
from metadef.error import InferError
from metadef.format import TensorDesc
from metadef.op import NUMBERS, Attr, AttrKind, Attrs, CostClass, OpDef, Port, VectorWork, register
from metadef.ops.common import array, like, operand
from metadef.ops.geometry import Descs, normal_axis


def _infer(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    axis = normal_axis(attrs["axis"], len(x.origin_shape))
    size = x.origin_shape[axis]
    if attrs["k"] > size:
        raise InferError("more elements than the axis has", code="E14001", expected=f"k <= {size}", got=str(attrs["k"]))
    shape = tuple(attrs["k"] if at == axis else size for at, size in enumerate(x.origin_shape))
    return [like(x, shape), like(x, shape, attrs["indices_dtype"])]


def _reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    """Rows sorted along the axis, k elements of each; the first of equal elements comes first, a NaN is the largest."""
    rows = np.moveaxis(array(inputs), attrs["axis"], -1)
    if attrs["largest"]:
        backwards = np.argsort(rows[..., ::-1], axis=-1, kind="stable")
        order = rows.shape[-1] - 1 - backwards[..., ::-1]
    else:
        order = np.argsort(rows, axis=-1, kind="stable")
    order = order[..., : attrs["k"]]
    found = np.take_along_axis(rows, order, -1), order.astype(attrs["indices_dtype"].numpy)
    return [np.ascontiguousarray(np.moveaxis(item, -1, attrs["axis"])) for item in found]


register(
    OpDef(
        "TopKD",
        (Port("x", NUMBERS, type_var="T"),),
        (Port("values", NUMBERS, type_var="T"), Port("indices", (DType.INT32, DType.INT64))),
        _infer,
        _reference,
        "The k largest or smallest elements along axis in order, and where they are; of equal ones the first first.",
        (
            Attr("k", AttrKind.INT, minimum=0),
            Attr("axis", AttrKind.INT, -1),
            Attr("largest", AttrKind.BOOL, True),
            Attr("indices_dtype", AttrKind.TYPE, DType.INT32, choices=(DType.INT32, DType.INT64)),
        ),
        cost=CostClass.REDUCE,
        work=VectorWork(("max", "min"), computes_fp32=True),
    )
)
