"""Operators between int32 sums of quantised products and what they stand for.

A scale is one float32, or one a channel, kept the way the fixpipe reads it: its bits in the low half of a uint64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metadef.dtype import DType
from metadef.format import TensorDesc
from metadef.op import Attr, AttrKind, Attrs, FormatRule, OpDef, Port, VectorWork, register
from metadef.ops.common import array, broadcast_rule
from metadef.ops.geometry import Descs

_SUMS = Port("x", (DType.INT32,))
_SCALE_TYPES = (DType.UINT64,)
LIMITS = {DType.INT8: (-128, 127), DType.UINT8: (0, 255)}
"""Smallest and largest number of the types that values are quantised to."""


def packed_scale(scale: np.ndarray) -> np.ndarray:
    """float32 scales as the uint64 that operands carry."""
    return np.ascontiguousarray(scale, np.float32).view(np.uint32).astype(np.uint64)


def unpacked_scale(packed: np.ndarray) -> np.ndarray:
    """The float32 scales of an operand."""
    return (np.ascontiguousarray(packed) & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32)


def _infer(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    (desc,) = broadcast_rule()(inputs, attrs)
    return [desc.with_dtype(attrs["dtype"])]


def _scaled(inputs: Sequence[np.ndarray | None]) -> np.ndarray:
    return array(inputs, 0).astype(np.float32) * unpacked_scale(array(inputs, 1))


def _dequant(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    return [_scaled(inputs)]


def requantised(value: np.ndarray, offset: int, dtype: DType) -> np.ndarray:
    """Nearest whole numbers (halves to even) plus an offset, saturated to the type."""
    low, high = LIMITS[dtype]
    return np.clip(np.rint(value) + np.float32(offset), low, high).astype(dtype.numpy)


def _requant(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    return [requantised(_scaled(inputs), attrs["offset"], attrs["dtype"])]


register(
    OpDef(
        "AscendDequant",
        inputs=(_SUMS, Port("deq_scale", _SCALE_TYPES)),
        outputs=(Port("y", (DType.FLOAT, DType.FLOAT16, DType.BF16)),),
        attrs=(Attr("dtype", AttrKind.TYPE, DType.FLOAT16, choices=(DType.FLOAT, DType.FLOAT16, DType.BF16)),),
        infer=_infer,
        reference=_dequant,
        formats=FormatRule.ANY,
        work=VectorWork(("cast", "mul"), computes_fp32=True),
        doc="What an int32 sum of quantised products stands for: x * deq_scale in float32, rounded once to dtype. "
        "deq_scale, one or one a channel, holds float32 bits in the low half of a uint64.",
    )
)
register(
    OpDef(
        "AscendRequant",
        inputs=(_SUMS, Port("req_scale", _SCALE_TYPES)),
        outputs=(Port("y", tuple(LIMITS)),),
        attrs=(
            Attr("offset", AttrKind.INT, 0, minimum=-255, maximum=255),
            Attr("dtype", AttrKind.TYPE, DType.INT8, choices=tuple(LIMITS)),
        ),
        infer=_infer,
        reference=_requant,
        formats=FormatRule.ANY,
        work=VectorWork(("cast", "mul", "cast", "adds", "maxs", "mins"), computes_fp32=True),
        doc="An int32 sum of quantised products, quantised anew: the whole number nearest to x * req_scale (halves to "
        "even) plus offset, saturated to dtype. req_scale is kept as deq_scale is.",
    )
)
