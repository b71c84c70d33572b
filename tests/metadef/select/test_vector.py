"""Vector tiles: they fit UB, cover the work, follow the block_dim rule; every family of operators has units."""

from __future__ import annotations

from itertools import combinations
from math import ceil, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadef.dtype import DType
from metadef.error import TargetError
from metadef.format import Format, TensorDesc
from metadef.graph import Graph
from metadef.kernel import VectorTile
from metadef.select import select
from metadef.select.steps import bare_kernel
from metadef.select.vector import choose_vector_kernel
from metadef.select.vector_shape import vector_shape
from metadef.target import Target, load_target

B2 = load_target("Ascend910B1")  # 48 vector cores, as the parts the block_dim rule was read from
B3, P3 = load_target("Ascend910B3"), load_target("Ascend310P3")


def kernel_of(op_type: str, *operands: TensorDesc, blocked: int = 0, **attrs):
    """The kernel of one operator; ``blocked`` stores all rank-4 operands and results in NC1HWC0 with that C0."""
    graph = Graph("one")
    inputs = [graph.add_input(f"x{slot}", d.origin_shape, d.dtype, d.origin_format) for slot, d in enumerate(operands)]
    for tensor, desc in zip(inputs, operands):
        tensor.desc = desc
    node = graph.add_node(op_type, inputs, attrs)
    for tensor in (*inputs, *node.outputs) if blocked else ():
        if len(tensor.desc.origin_shape) == 4:
            tensor.desc = tensor.desc.stored_as(Format.NC1HWC0, blocked)
    return bare_kernel(node)


def nd(*shape: int, dtype: DType = DType.FLOAT16) -> TensorDesc:
    return TensorDesc(shape, dtype)


def image(*shape: int, dtype: DType = DType.FLOAT16) -> TensorDesc:
    return TensorDesc(shape, dtype, Format.NCHW, Format.NCHW)


def checked(kernel, target: Target = B3) -> VectorTile:
    chosen = choose_vector_kernel(kernel, target)
    tile = chosen.tile
    assert isinstance(tile, VectorTile) and tile.units >= 1 and tile.unit_elements >= 1
    share = ceil(tile.units / chosen.block_dim)
    assert 1 <= chosen.block_dim <= target.vector_cores and ceil(tile.units / share) == chosen.block_dim
    assert 1 <= tile.units_per_tile <= share and (share > tile.units_per_tile or not tile.double_buffer)
    for buffer in tile.buffers:
        assert buffer.memory == "UB" and buffer.offset_bytes % 32 == 0
        assert buffer.copies in (1, 1 + tile.double_buffer)
        assert buffer.offset_bytes + buffer.copies * buffer.size_bytes <= target.buffer_bytes["UB"]
    for first, second in combinations(tile.buffers, 2):
        ends = [item.offset_bytes + item.copies * item.size_bytes for item in (first, second)]
        assert ends[0] <= second.offset_bytes or ends[1] <= first.offset_bytes
    assert str(chosen.block_dim) in chosen.reason and "cycles" in chosen.reason
    return tile


SOCS = st.sampled_from(["Ascend910B3", "Ascend310P3", "Ascend950PR"])
SHAPES = st.lists(st.integers(1, 200), min_size=1, max_size=4).map(tuple)
TYPES = st.sampled_from([DType.FLOAT16, DType.FLOAT, DType.BF16])


@settings(max_examples=60)
@given(shape=SHAPES, dtype=TYPES, repeated=st.sets(st.integers(0, 3)), soc=SOCS)
def test_random_element_wise_kernels(shape, dtype, repeated, soc):
    other = tuple(1 if axis in repeated else size for axis, size in enumerate(shape))
    kernel = kernel_of("Add", nd(*shape, dtype=dtype), nd(*other, dtype=dtype))
    tile = checked(kernel, load_target(soc))
    assert tile.units * tile.unit_elements >= prod(shape)


@settings(max_examples=60)
@given(shape=SHAPES, dtype=TYPES, data=st.data(), soc=SOCS)
def test_random_row_kernels(shape, dtype, data, soc):
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    op_type = data.draw(st.sampled_from(["SoftmaxV2", "ReduceSumD", "ReduceMaxD"]))
    tile = checked(kernel_of(op_type, nd(*shape, dtype=dtype), axes=axes), load_target(soc))
    assert tile.units * tile.unit_elements >= prod(shape)


@settings(max_examples=40)
@given(data=st.data(), blocked=st.booleans(), soc=SOCS)
def test_random_pooling(data, blocked, soc):
    draw = data.draw
    n, c, window, stride = (draw(st.integers(1, high)) for high in (3, 70, 5, 3))
    h, w = (draw(st.integers(window, 120)) for _ in range(2))
    attrs = {"ksize": (1, 1, window, window), "strides": (1, 1, stride, stride), "pads": (0, 0, 0, 0)}
    kernel = kernel_of("MaxPoolV3", image(n, c, h, w), blocked=16 * blocked, **attrs)
    tile = checked(kernel, load_target(soc))
    assert tile.units * tile.unit_elements >= prod(kernel.outputs[0].shape)


FAMILIES = {
    "cast": kernel_of("Cast", nd(100, 1000, dtype=DType.FLOAT), dst_type=DType.FLOAT16),
    "batch norm": kernel_of("BNInfer", image(4, 33, 20, 20), *[nd(33, dtype=DType.FLOAT)] * 4, blocked=16),
    "layer norm": kernel_of("LayerNorm", nd(12, 128, 768), nd(768), nd(768)),
    "rms norm": kernel_of("RmsNorm", nd(512, 4096), nd(4096)),
    "instance norm": kernel_of("InstanceNorm", image(2, 8, 200, 200), nd(8), nd(8)),
    "arg max": kernel_of("ArgMaxD", nd(64, 1000), dimension=1),
    "global pool": kernel_of("GlobalAveragePool", image(1, 2048, 7, 7), blocked=16),
    "large global pool": kernel_of("GlobalAveragePool", image(1, 16, 300, 300), blocked=16),
    "transpose": kernel_of("TransposeD", nd(64, 128, 32), perm=(2, 0, 1)),
    "concat": kernel_of("ConcatD", nd(8, 100), nd(8, 28), nd(8, 3), concat_dim=1),
    "split": kernel_of("SplitD", nd(8, 96), split_dim=1, num_split=3),
    "pad": kernel_of("PadD", nd(30, 40), paddings=(1, 1, 2, 2)),
    "gather rows": kernel_of("GatherV2", nd(3000, 768), nd(128, dtype=DType.INT32)),
    "gather elements": kernel_of("GatherElements", nd(30, 40), nd(30, 40, dtype=DType.INT64), dim=1),
    "int64 add": kernel_of("Add", nd(1000, dtype=DType.INT64), nd(1000, dtype=DType.INT64)),
    "bool": kernel_of("LogicalNot", nd(100, 100, dtype=DType.BOOL)),
    "long rows": kernel_of("SoftmaxV2", nd(3, 500_000, dtype=DType.FLOAT)),
    "empty": kernel_of("Relu", nd(0, 7)),
    "scalar": kernel_of("Relu", TensorDesc((), DType.FLOAT)),
    "nothing reduced": kernel_of("ReduceSumD", nd(0, 5), axes=(0,)),
}  # fmt: skip


@pytest.mark.parametrize("target", [B3, P3], ids=lambda target: target.soc)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_tile(family, target):
    checked(FAMILIES[family], target)


@pytest.mark.parametrize(
    ("elements", "dtype", "cores"),
    [
        (131072, DType.FLOAT, 47),  # 48 cores' share rounded up to 512 bytes leaves one core without work
        (1024, DType.FLOAT, 1),
        (2048, DType.FLOAT16, 1),
        (2049, DType.FLOAT16, 2),
        (10_000, DType.FLOAT, 10),
        (10_000, DType.FLOAT16, 5),
        (10_000_000, DType.FLOAT16, 48),
        (10_000, DType.INT8, 5),  # counted as two bytes an element
    ],
)
def test_block_dim_rule_of_the_vendor(elements, dtype, cores):
    """Published launches: min(cores, ceil(n * max(width, 2) / 4096)), shares in whole 512-byte pieces."""
    assert (
        choose_vector_kernel(kernel_of("Maximum", nd(elements, dtype=dtype), nd(elements, dtype=dtype)), B2).block_dim
        == cores
    )


def test_width_is_that_of_the_widest_type():
    cast = kernel_of("Cast", nd(10_000), dst_type=DType.FLOAT)
    assert choose_vector_kernel(cast, B2).block_dim == 10


def test_rows_go_whole_to_a_core():
    kernel = kernel_of("SoftmaxV2", nd(7, 4000), axes=(-1,))
    chosen = choose_vector_kernel(kernel, B3)
    assert (chosen.tile.units, chosen.tile.unit_elements, chosen.block_dim) == (7, 4000, 7)
    single = choose_vector_kernel(kernel_of("ReduceSumD", nd(1_000_000), axes=()), B3)
    assert single.block_dim == 1 and single.tile.units > 1


def test_broadcast_units_are_the_runs_nobody_repeats():
    shapes = {
        ((6, 50, 40), (40,)): 40,
        ((6, 50, 40), (50, 1)): 40,
        ((6, 50, 40), (6, 1, 1)): 2000,
        ((6, 50, 1), (50, 1)): 50,
    }
    for (full, small), run in shapes.items():
        result = vector_shape(kernel_of("Add", nd(*full), nd(*small)), B3)
        assert (result.units * result.unit_elements, result.unit_elements) == (prod(full), run)


def test_sources_of_an_instruction_start_in_different_bank_groups():
    tile = checked(kernel_of("Add", nd(1000, 1000), nd(1000, 1000)))
    first, second = (item for item in tile.buffers if item.name in ("x0", "x1"))
    assert (second.offset_bytes - first.offset_bytes) % 512 == 256


def test_small_operands_stay_and_large_ones_stream():
    norm = vector_shape(kernel_of("LayerNorm", nd(64, 768), nd(768), nd(768)), B3)
    assert norm.resident == (("x1", 1536), ("x2", 1536)) and [item.name for item in norm.inputs] == ["x0"]
    wide = vector_shape(kernel_of("RmsNorm", nd(4, 100_000), nd(100_000)), B3)
    assert wide.resident == () and len(wide.inputs) == 2


def test_widening_to_fp32_takes_scratch():
    assert any(item.name == "scratch" for item in checked(kernel_of("SoftmaxV2", nd(64, 1000))).buffers)
    assert not any(item.name == "scratch" for item in checked(kernel_of("Relu", nd(64, 1000))).buffers)


def test_operands_that_fill_ub_are_an_error():
    graph = Graph("crowd")
    x = graph.add_input("x", (8, 4, 12_000), DType.FLOAT16)
    small = [graph.add_const(f"c{index}", np.full((1, 1, 12_000), index, np.float16)) for index in range(12)]
    graph.set_outputs([graph.add_node("AccumulateNV2", [x, *small], name="sum").output])
    with pytest.raises(TargetError, match="leave no room for a tile") as caught:
        select(graph, B3)
    assert "node 'sum'" in str(caught.value)
