"""What kernels move and compute, seen as products and as units."""

from dataclasses import replace

import numpy as np
import pytest

from metadef.cost.cube_view import CubeView, piece_of
from metadef.cost.run import kernel_cost
from metadef.cost.vector_view import VectorView
from metadef.dtype import DType
from metadef.error import TargetError
from metadef.format import Format, TensorDesc
from metadef.kernel import CubeTile, Engine, FusedOp, Kernel
from metadef.select.vector import choose_vector_kernel
from metadef.target import load_target
from tests.metadef.cost.samples import FP16, conv_kernel, matmul_kernel, vector_kernel

B3, P3 = load_target("Ascend910B3"), load_target("Ascend310P3")
TILE = CubeTile(64, 64, 64, 64)


def test_convolution_is_a_product_per_image():
    view = CubeView.of(conv_kernel(B3, TILE, c=3, oc=64, size=224, window=7, stride=2, n=2), B3)
    assert (view.batch, view.m, view.n, view.k) == (2, 112 * 112, 64, 7 * 7 * 16)
    assert view.shared_b and view.a_path == "GM->L1"
    assert view.macs == 2 * 112 * 112 * 64 * 3 * 49


def test_narrow_groups_share_a_channel_block():
    view = CubeView.of(conv_kernel(B3, TILE, groups=64, size=14), B3)
    assert (view.batch, view.n, view.k) == (4, 16, 9 * 16)
    assert not view.shared_b


@pytest.mark.parametrize(("size", "window", "stride"), [(14, 3, 1), (15, 3, 2), (28, 1, 2), (11, 5, 2)])
def test_input_pixels_are_those_under_the_windows(size, window, stride):
    view = CubeView.of(conv_kernel(B3, TILE, size=size, window=window, stride=stride), B3)
    pad, side = window // 2, view.window.ow
    for start, stop in ((0, 5), (3, side), (side - 1, 3 * side), (0, view.m)):
        rows, columns = set(), set()
        for pixel in range(start, stop):
            rows |= {pixel // side * stride - pad + tap for tap in range(window)}
            columns |= {pixel % side * stride - pad + tap for tap in range(window)}
        height = len(rows & set(range(min(rows), max(rows) + 1)) & set(range(size)))
        span = range(max(min(rows), 0), min(max(rows) + 1, size))
        one_row = start // side == (stop - 1) // side
        wide = range(max(min(columns), 0), min(max(columns) + 1, size))
        expected = len(span) * (len(wide) if one_row else size)
        assert height <= len(span)
        assert int(view.window.input_pixels(np.int64(start), np.int64(stop))) == expected


def test_pieces_cover_the_product():
    view = CubeView.of(matmul_kernel(1000, 500, 300, TILE), B3)
    tile = CubeTile(64, 64, 64, 64, split_m=7, split_n=3, split_k=2)
    most, least = piece_of(view, tile), piece_of(view, tile, smallest=True)
    assert most.m * 7 >= 1000 and most.n * 3 >= 500 and most.k * 2 >= 300
    assert least.m <= most.m and least.n <= most.n and least.k <= most.k
    assert all(size % 16 == 0 for size in (most.m, most.n, most.k))


def test_fp32_product_is_refused_where_the_cube_has_none():
    desc = TensorDesc((64, 64), DType.FLOAT)
    flags = {"transpose_x1": False, "transpose_x2": False}
    kernel = Kernel("MatMulV2", Engine.AICORE, (desc, desc), (desc,), flags, tile=TILE)
    assert CubeView.of(kernel, B3).fractal_k == 8
    with pytest.raises(TargetError, match="--precision fp16"):
        CubeView.of(kernel, P3)


def test_computation_in_fp32_adds_casts():
    names = [item.mnemonic for item in VectorView.of(vector_kernel("Exp", 4096, cores=1, units_per_tile=64), B3).work]
    assert names == ["exp", "cast", "cast"]
    wide = vector_kernel("Exp", 4096, cores=1, units_per_tile=64, dtype=DType.FLOAT)
    assert [item.mnemonic for item in VectorView.of(wide, B3).work] == ["exp"]


def test_softmax_runs_its_list_once_a_row():
    desc = TensorDesc((8, 1000), FP16)
    view = VectorView.of(Kernel("SoftmaxV2", Engine.VECTOR, (desc,), (desc,), {"axes": (-1,)}), B3)
    assert view.rows == 8
    by_name = {item.mnemonic: item for item in view.work}
    assert by_name["exp"].repeats == 8 * -(-1000 * 4 // 256)
    assert by_name["exp"].all_calls == 8


@pytest.mark.parametrize("layout", [Format.ND, Format.FRACTAL_NZ])
def test_first_generation_softmax_divides_once_a_row(layout):
    desc = TensorDesc((12, 128, 128), FP16, Format.ND, layout, 16)
    kernel = Kernel("SoftmaxV2", Engine.VECTOR, (desc,), (desc,), {"axes": (-1,)})
    divided = {}
    for target in (B3, P3):
        work = [item for item in VectorView.of(kernel, target).work if item.mnemonic in ("div", "mul")]
        assert [item.mnemonic for item in work] == ["mul" if target.coupled else "div", "div"]
        divided[target] = sum(item.bytes + 256 * item.repeats for item in work if item.mnemonic == "div")
    assert divided[P3] < divided[B3] / 4


def test_small_operands_are_loaded_once_a_core():
    x, bias = TensorDesc((64, 1024), FP16), TensorDesc((1024,), FP16)
    view = VectorView.of(Kernel("Add", Engine.VECTOR, (x, bias), (x,)), B3)
    assert [item.once for item in view.loads] == [False, True]


@pytest.mark.parametrize(("dtype", "names"), [(FP16, ["transpose"]), (DType.FLOAT, ["transpose", "copy"])])
def test_layout_change_moves_blocks(dtype, names):
    x = TensorDesc((1, 64, 7, 7), dtype, Format.NCHW, Format.NCHW)
    y = x.stored_as(Format.NC1HWC0, 32 // dtype.bytes)
    attrs = {"src_format": "NCHW", "dst_format": "NC1HWC0", "groups": 1}
    view = VectorView.of(Kernel("TransData", Engine.VECTOR, (x,), (y,), attrs), B3)
    assert [item.mnemonic for item in view.work] == names
    assert view.work[0].bytes == y.payload_bytes


@pytest.mark.parametrize("width", [64, 50])
@pytest.mark.parametrize("leaves", [False, True])
def test_planes_of_a_stack_are_put_in_order_as_one_plane_is(width, leaves):
    """A stack of four axes is no picture: its fractals are copied, and odd rows cost a few cycles, not scalar code."""
    plain = TensorDesc((8, 12, 50, width), FP16)
    blocked = plain.stored_as(Format.FRACTAL_NZ, 16)
    x, y = (blocked, plain) if leaves else (plain, blocked)
    attrs = {"src_format": x.format.name, "dst_format": y.format.name, "groups": 1}
    view = VectorView.of(Kernel("TransData", Engine.VECTOR, (x,), (y,), attrs), P3)
    assert {item.mnemonic for item in view.work} == {"copy"}
    assert max(item.bytes for item in view.work) == blocked.payload_bytes
    odd = 8 * 12 * 50 * P3.value("alignment.odd_stack_row_cycles") if width % 16 else 0
    assert sum(item.odd_cycles for item in view.work) == odd


@pytest.mark.parametrize("shape", [(8, 4096, 64), (4096, 64), (64, 4096)])
def test_running_sums_take_steps_as_the_root_of_the_axis(shape):
    """Stretches of an axis are summed side by side: no core waits for as many additions as the axis is long."""
    axis = shape.index(4096)
    desc = TensorDesc(shape, DType.FLOAT16)
    attrs = {"axis": axis, "exclusive": False, "reverse": False}
    kernel = choose_vector_kernel(Kernel("Cumsum", Engine.VECTOR, (desc,), (desc,), attrs), B3)
    assert kernel_cost(kernel, B3) < 4096 * B3.value("vector.dependent_call_cycles")


def test_four_channels_of_several_taps_share_a_fractal():
    x = TensorDesc((1, 3, 224, 224), FP16, Format.NCHW, Format.NC1HWC0_C04, 4)
    w = TensorDesc((64, 3, 7, 7), FP16, Format.NCHW, Format.FRACTAL_Z_C04, 16)
    plain = conv_kernel(B3, TILE, c=3, oc=64, size=224, window=7, stride=2)
    view = CubeView.of(replace(plain, inputs=(x, w, *plain.inputs[2:])), B3)
    assert (view.k, view.a_channels, view.channel_block, view.block_fractals) == (208, 4, 4, 13)
    assert view.a_bytes(0, view.m) * 4 == CubeView.of(plain, B3).a_bytes(0, view.m)


def test_groups_share_a_product_until_blocks_are_whole_on_both_sides():
    def view(groups: int, channels: int, filters: int) -> CubeView:
        return CubeView.of(conv_kernel(P3, TILE, c=channels, oc=filters, groups=groups), P3)

    depthwise, shuffled, wide = view(32, 32, 32), view(3, 240, 60), view(4, 128, 128)
    assert (depthwise.batch, depthwise.n, depthwise.a_channels) == (2, 16, 16)
    assert (shuffled.batch, shuffled.n, shuffled.a_channels) == (1, 60, 240)
    assert (wide.batch, wide.n, wide.a_channels) == (4, 32, 32)


@pytest.mark.parametrize(
    ("soc", "samples", "whole"),
    [("Ascend310P3", 4, False), ("Ascend310P3", 8, True), ("Ascend910A", 16, True), ("Ascend910A", 8, False)],
)
def test_whole_samples_are_dealt_where_they_fill_the_cores(soc, samples, whole):
    target = load_target(soc)
    big, row = (
        TensorDesc(shape, DType.FLOAT16, Format.NCHW, Format.NC1HWC0, 16)
        for shape in ((samples, 64, 32, 32), (1, 64, 1, 1))
    )
    tile = vector_kernel("Relu", samples << 16, cores=target.vector_cores, units_per_tile=16).tile
    kernel = Kernel("Mul", Engine.VECTOR, (big, row), (big,), {}, tile=tile, block_dim=target.vector_cores)
    assert (VectorView.of(kernel, target).deal > 1) == whole


@pytest.mark.parametrize(("shape", "lines"), [((1, 64, 1, 1), 1), ((2, 64, 1, 1), 1), ((1, 64, 28, 1), 28)])
def test_values_a_channel_are_applied_plane_by_plane(shape, lines):
    """A block of channels is read again at stride zero for every pixel, by both factor and summand."""
    big, row = (TensorDesc(size, FP16, Format.NCHW, Format.NC1HWC0, 16) for size in ((2, 64, 28, 28), shape))
    fused = (FusedOp("Add", operand=2), FusedOp("Relu"))
    view = VectorView.of(Kernel("Mul", Engine.VECTOR, (big, row, row), (big,), {}, fused), P3)
    planes = 2 * 4
    assert [item.mnemonic for item in view.work] == ["mul", "add", "relu"]
    for item in view.work:
        assert item.all_calls == planes * lines
        assert item.repeats == planes * lines * -(-28 * 28 // lines * 32 // 256)


@pytest.mark.parametrize(("side", "cycles"), [(16, 0), (7, 2 * 20)])
def test_rows_off_32_bytes_are_transposed_by_two_stores_each(side, cycles):
    x, y = (TensorDesc((2, *order, side, side), FP16) for order in ((20, 3), (3, 20)))
    kernel = Kernel("TransposeD", Engine.VECTOR, (x,), (y,), {"perm": (0, 2, 1, 3, 4)})
    work = VectorView.of(kernel, P3).work
    assert sum(item.odd_cycles for item in work) == 2 * 60 * cycles


@pytest.mark.parametrize(("stride", "turned"), [((1, 2), True), ((2, 1), False), ((1, -1), True)])
def test_a_slice_that_picks_single_elements_turns_blocks(stride, turned):
    x, y = TensorDesc((8, 64, 64), FP16), TensorDesc((8, *(64 // abs(step) for step in stride)), FP16)
    first = tuple(63 if step < 0 else 0 for step in (1, *stride))
    attrs = {"begin": first, "end": (8, 64, 64), "strides": (1, *stride), "begin_mask": 0, "end_mask": 4}
    work = VectorView.of(Kernel("StridedSliceD", Engine.VECTOR, (x,), (y,), attrs), P3).work
    assert [item.bytes for item in work] == ([x.payload_bytes + y.payload_bytes] if turned else [])
