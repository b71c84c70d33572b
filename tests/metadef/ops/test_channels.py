"""Moves along the channels: where every channel comes from agrees with the operators' references."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.error import InferError
from metadef.format import Format, TensorDesc
from metadef.graph import infer_outputs
from metadef.kernel import Engine, Kernel
from metadef.op import get_op
from metadef.ops.channels import channel_maps, lane_maps, whole_blocks

CASES = {
    "ConcatD": ([(2, 3, 2, 2), (2, 5, 2, 2)], {"concat_dim": -3}),
    "SplitD": ([(1, 12, 2, 3)], {"split_dim": 1, "num_split": 3}),
    "SplitVD": ([(1, 12, 2, 3)], {"split_dim": 1, "num_split": 2, "size_splits": (5, 7)}),
    "StridedSliceD": ([(1, 12, 2, 3)], {"begin": (0, 11), "end": (1, 1), "strides": (1, -2)}),
    "PadD": ([(1, 4, 2, 3)], {"paddings": (0, 0, 2, 1, 0, 0, 0, 0)}),
    "ShuffleChannel": ([(2, 12, 3, 1)], {"group": 4}),
}


@pytest.mark.parametrize("op_type", CASES)
def test_maps_agree_with_the_references(op_type, rng):
    shapes, given = CASES[op_type]
    opdef = get_op(op_type)
    attrs = opdef.complete_attrs(given)
    operands = [rng.standard_normal(shape) for shape in shapes]
    results = opdef.reference(operands, attrs)
    maps = channel_maps(op_type, shapes, [result.shape for result in results], attrs)
    assert maps is not None
    for result, table in zip(results, maps, strict=True):
        for channel, (slot, source) in enumerate(table):
            wanted = np.zeros_like(result[:, channel]) if slot < 0 else operands[slot][:, source]
            np.testing.assert_array_equal(result[:, channel], wanted)


def test_what_moves_more_than_channels_has_no_map():
    pad, cut = get_op("PadD"), get_op("StridedSliceD")
    for attrs in ({"paddings": (0, 0, 1, 1, 1, 0, 0, 0)}, {"paddings": (0,) * 8, "constant_values": 2.0}):
        assert channel_maps("PadD", [(1, 4, 2, 2)], [(1, 6, 3, 2)], pad.complete_attrs(attrs)) is None
    attrs = cut.complete_attrs({"begin": (0, 0, 1), "end": (1, 2, 2), "strides": (1, 1, 1)})
    assert channel_maps("StridedSliceD", [(1, 4, 2, 2)], [(1, 2, 1, 2)], attrs) is None
    assert channel_maps("ConcatD", [(4, 4)], [(4, 4)], {"concat_dim": 1}) is None
    assert channel_maps("Relu", [(1, 4, 2, 2)], [(1, 4, 2, 2)], {}) is None


@pytest.mark.parametrize(
    ("sizes", "whole"), [((32, 16, 5), True), ((16,), True), ((5,), True), ((5, 16), False), ((16, 5, 16), False)]
)
def test_whole_blocks_end_at_block_borders(sizes, whole):
    shapes = [(1, size, 2, 2) for size in sizes]
    (table,) = channel_maps("ConcatD", shapes, [(1, sum(sizes), 2, 2)], {"concat_dim": 1})
    assert whole_blocks(table, sizes, 16) is whole


def test_the_first_half_of_a_block_is_no_whole_block():
    descs = [TensorDesc((1, size, 4, 4), DType.FLOAT16, Format.NCHW, Format.NC1HWC0, 16) for size in (32, 24)]
    attrs = get_op("StridedSliceD").complete_attrs({"begin": (0, 0), "end": (1, 24), "strides": (1, 1)})
    kernel = Kernel("StridedSliceD", Engine.VECTOR, (descs[0],), (descs[1],), attrs)
    assert lane_maps(kernel) is not None
    plain = [TensorDesc(desc.origin_shape, desc.dtype) for desc in descs]
    assert lane_maps(Kernel("StridedSliceD", Engine.VECTOR, (plain[0],), (plain[1],), attrs)) is None


def test_groups_must_divide_the_channels():
    opdef = get_op("ShuffleChannel")
    with pytest.raises(InferError, match="groups of equal size"):
        infer_outputs(opdef, [TensorDesc((1, 10, 2, 2), DType.FLOAT)], {"group": 4}, "s")
