"""Moves along the channels: which channel of which operand every channel of a result is, and the channel shuffle.

In NC1HWC0 such a move takes whole blocks where the pieces end at block borders. Elsewhere single lanes change their
places: blocks of 16 pixels are turned so that channels become rows, rows are picked, and turned back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from metadef.error import InferError
from metadef.format import Format, Shape, TensorDesc
from metadef.op import Attr, AttrKind, Attrs, CostClass, OpDef, VectorWork, register
from metadef.ops.common import X_ANY, Y, array, like, operand
from metadef.ops.move import pad_pairs
from metadef.ops.slicing import slice_ranges, split_sizes

if TYPE_CHECKING:
    from metadef.kernel import Kernel

CHANNEL_MOVES = frozenset({"ConcatD", "PadD", "ShuffleChannel", "SplitD", "SplitVD", "StridedSliceD"})
"""Operators that may be moves along the channels."""
ZERO = -1
"""In place of an operand: the channel is zero."""
_CHANNELS = 1


def channel_maps(
    op_type: str, inputs: Sequence[Shape], outputs: Sequence[Shape], attrs: Attrs
) -> list[np.ndarray] | None:
    """(operand, channel) of every channel of every result, int64 (C, 2); None if anything but channels moves.

    Shapes are those of the operands and results in NCHW.
    """
    if op_type not in CHANNEL_MOVES or any(len(shape) != 4 for shape in (*inputs, *outputs)):
        return None
    source = inputs[0]
    if op_type == "ConcatD":
        if attrs["concat_dim"] % 4 != _CHANNELS:
            return None
        return [np.concatenate([_of(slot, np.arange(shape[_CHANNELS])) for slot, shape in enumerate(inputs)])]
    if op_type in ("SplitD", "SplitVD"):
        axis, sizes = split_sizes(source, attrs)
        ends = np.cumsum(sizes)
        pieces = [_of(0, np.arange(end - size, end)) for size, end in zip(sizes, ends)]
        return pieces if axis == _CHANNELS else None
    if op_type == "ShuffleChannel":
        return [_of(0, np.arange(source[_CHANNELS]).reshape(attrs["group"], -1).T.ravel())]
    if op_type == "StridedSliceD":
        ranges = slice_ranges(source, attrs)
        first, step, count = ranges[_CHANNELS]
        alone = all(each == (0, 1, source[axis]) for axis, each in enumerate(ranges) if axis != _CHANNELS)
        return [_of(0, first + step * np.arange(count))] if alone else None
    pairs = pad_pairs(source, attrs)
    zeros = attrs["mode"] == "constant" and attrs["constant_values"] == 0
    if not zeros or any(any(pair) for axis, pair in enumerate(pairs) if axis != _CHANNELS):
        return None
    before, after = (np.full((count, 2), ZERO) for count in pairs[_CHANNELS])
    return [np.concatenate([before, _of(0, np.arange(source[_CHANNELS])), after])]


def _of(slot: int, channels: np.ndarray) -> np.ndarray:
    return np.stack([np.full(len(channels), slot), channels], 1)


def whole_blocks(table: np.ndarray, channels: Sequence[int], c0: int) -> bool:
    """Whether every block of ``c0`` channels of a map is a whole block of an operand, the last one with its padding.

    ``channels`` are those of the operands.
    """
    for start in range(0, len(table), c0):
        block = table[start : start + c0]
        slot, first = int(block[0, 0]), int(block[0, 1])
        run = slot != ZERO and first % c0 == 0 and bool(np.array_equal(block, _of(slot, first + np.arange(len(block)))))
        if not run or (len(block) < c0 and first + len(block) != channels[slot]):
            return False
    return True


def why_lanes_move(op_type: str, shape: Shape, attrs: Attrs, c0: int) -> str:
    """Why moving the pixels of an image touches single lanes of channel blocks too; "" if it does not."""
    if op_type == "PadD":
        if any(attrs["paddings"][2:4]):
            return "it pads the channels, and not only them by zeros"
        zeros = attrs["mode"] == "constant" and attrs["constant_values"] == 0
        return "" if zeros else "it pads with other values than zeros, which the padding lanes must hold"
    if op_type == "StridedSliceD":
        (first, step, count), c = slice_ranges(shape, attrs)[_CHANNELS], shape[_CHANNELS]
        stop = first + count
        whole = step == 1 and first % c0 == 0 and (stop == c or stop % c0 == 0)
        return "" if whole else f"it takes pixels, and of {c} channels {first} to {stop}: no whole blocks of {c0}"
    return ""


def lane_maps(kernel: Kernel) -> list[np.ndarray] | None:
    """The maps of a kernel on NC1HWC0 that moves single lanes; None for any other."""
    descs = [desc for desc in (*kernel.inputs, *kernel.outputs) if desc is not None]
    if kernel.op_type not in CHANNEL_MOVES or any(
        (desc.format, desc.origin_format) != (Format.NC1HWC0, Format.NCHW) for desc in descs
    ):
        return None
    inputs = [desc.origin_shape for desc in kernel.inputs if desc is not None]
    maps = channel_maps(kernel.op_type, inputs, [desc.origin_shape for desc in kernel.outputs], kernel.attrs)
    channels, c0 = [shape[_CHANNELS] for shape in inputs], kernel.outputs[0].c0
    if maps is None or all(whole_blocks(table, channels, c0) for table in maps):
        return None
    return maps


def _infer_shuffle(inputs: Sequence[TensorDesc | None], attrs: Attrs) -> list[TensorDesc]:
    x = operand(inputs)
    if len(x.origin_shape) < 2 or x.origin_shape[_CHANNELS] % attrs["group"]:
        raise InferError(
            "the channels do not fall into groups of equal size",
            code="E14001",
            expected=f"a multiple of {attrs['group']} channels on axis 1",
            got=str(list(x.origin_shape)),
        )
    return [like(x)]


def _shuffle_reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    x = array(inputs)
    n, c, *rest = x.shape
    grouped = x.reshape(n, attrs["group"], c // attrs["group"], *rest)
    return [np.ascontiguousarray(grouped.swapaxes(1, 2)).reshape(x.shape)]


register(
    OpDef(
        "ShuffleChannel",
        (X_ANY,),
        (Y,),
        _infer_shuffle,
        _shuffle_reference,
        "Channels dealt out group by group: channel g of the result's run i is channel i of group g of x (N, C, ...).",
        (Attr("group", AttrKind.INT, 1, minimum=1),),
        cost=CostClass.MOVE,
        work=VectorWork(("copy",)),
    )
)
