"""Storage formats: which side element-wise groups take, how many TransData there are, and that all operands agree."""

from __future__ import annotations

from collections import Counter

import pytest

from metadef.format import Format
from metadef.text import parse_graph


def formats(graph) -> dict[str, Format]:
    return {tensor.name: tensor.desc.format for node in graph.nodes for tensor in node.outputs}


def count(graph, op_type: str) -> int:
    return Counter(node.op_type for node in graph.nodes)[op_type]


def test_a_chain_at_the_edge_takes_the_cheaper_side(run):
    graph, _ = run(
        """
graph("edge"):
  %x : float16[1,3,8,8] = Data()
  %y : float16[1,16,8,8] = Data()
  %a = Neg(x=%x)
  %b = Relu(x=%a)
  %w : float16[16,3,1,1] = Const(seed=1)
  %c = Conv2D(x=%b, filter=%w) {strides=[1, 1, 1, 1]}
  %d = Exp(x=%c)
  %e = Add(x1=%d, x2=%y)
  %f = MaxPoolV3(x=%e) {ksize=[1, 1, 2, 2], strides=[1, 1, 2, 2]}
  return (%f as "f")
""",
        "RefineRunningFormat",
    )
    plain_of_three_channels = {formats(graph)[name] for name in "ab"}
    assert plain_of_three_channels == {Format.ND}
    assert {formats(graph)[name] for name in "cdef"} == {Format.NC1HWC0}
    assert count(graph, "TransData") == 3


def test_one_node_of_a_group_may_take_the_other_side(run):
    """The tail reads one value a channel: plain it is one element in sixteen cheaper, and the border is as small."""
    graph, _ = run(
        """
graph("tail"):
  %x : float16[1,16,8,8] = Data()
  %k : float16[1,1,8,8] = Data()
  %w : float16[1,16,1,1] = Const(seed=1)
  %c = Conv2D(x=%x, filter=%w) {strides=[1, 1, 1, 1]}
  %a = Neg(x=%c)
  %b = Exp(x=%a)
  %d = Relu(x=%b)
  return (%d as "d")
""",
        "RefineRunningFormat",
    )
    assert [formats(graph)[name] for name in "cabd"] == [Format.NC1HWC0, Format.NCHW, Format.NCHW, Format.NCHW]
    assert count(graph, "TransData") == 2


@pytest.mark.parametrize(("soc", "blocks"), [("Ascend910B3", 8), ("Ascend310P3", 16)])
def test_float32_has_its_own_block(run, soc, blocks):
    text = """
graph("fp32"):
  %x : float32[1,20,8,8] = Data()
  %p = MaxPoolV3(x=%x) {ksize=[1, 1, 2, 2], strides=[1, 1, 2, 2]}
  %h = Cast(x=%p) {dst_type=DT_FLOAT16}
  %q = MaxPoolV3(x=%h) {ksize=[1, 1, 2, 2], strides=[1, 1, 2, 2]}
  return (%q as "q")
"""
    graph, _ = run(text, "RefineRunningFormat", soc)
    pool = graph.find("p")
    assert pool is not None and pool.output.desc.c0 == blocks
    cast = graph.find("h")
    assert cast is not None and cast.output.desc.is_plain == (blocks == 8)
    assert count(graph, "TransData") == (4 if blocks == 8 else 2)


def test_a_shared_tensor_is_converted_once(run):
    graph, _ = run(
        """
graph("shared"):
  %x : float16[1,16,8,8] = Data()
  %w : float16[16,16,1,1] = Const(seed=1)
  %a = Conv2D(x=%x, filter=%w) {strides=[1, 1, 1, 1]}
  %b = Conv2D(x=%x, filter=%w) {strides=[1, 1, 1, 1]}
  %c = SoftmaxV2(x=%a)
  %d = ReduceMeanD(x=%a) {axes=[1]}
  return (%b as "b", %c as "c", %d as "d", %a as "a")
""",
        "RefineRunningFormat",
    )
    assert count(graph, "TransData") == 3
    graph.verify()
    filters = {id(node.inputs[1]) for node in graph.nodes if node.op_type == "Conv2D"}
    assert len(filters) == 1


def test_a_filter_that_is_computed_gets_a_transdata(run):
    graph, report = run(
        """
graph("dynamic"):
  %x : float16[1,16,8,8] = Data()
  %w : float16[16,16,1,1] = Data()
  %a = Conv2D(x=%x, filter=%w) {strides=[1, 1, 1, 1]}
  return (%a as "a")
""",
        "RefineRunningFormat",
    )
    assert [line for lines in report.notes().values() for line in lines] == [
        "RefineRunningFormat: NCHW -> NC1HWC0: 'a' (Conv2D) reads NC1HWC0",
        "RefineRunningFormat: NCHW -> FRACTAL_Z: 'a' (Conv2D) reads FRACTAL_Z",
        "RefineRunningFormat: NC1HWC0 -> NCHW: output 'a' of the graph is plain",
    ]
    assert count(graph, "TransData") == 3


def test_matrix_operands(run):
    graph, _ = run(
        """
graph("products"):
  %x : float16[4,32] = Data()
  %y : float16[32,8] = Data()
  %w : float16[32,8] = Const(seed=1)
  %a = MatMulV2(x1=%x, x2=%w)
  %b = MatMulV2(x1=%x, x2=%y)
  %g = Add(x1=%a, x2=%b)
  return (%g as "g")
""",
        "RefineRunningFormat",
    )
    stored = [[tensor.desc.format for tensor in node.inputs if tensor] for node in graph.nodes[:2]]
    assert stored == [[Format.ND, Format.FRACTAL_NZ], [Format.ND, Format.ND]]


def test_low_ranks_stay_plain(run):
    text = """
graph("ranks"):
  %x : float16[4,32] = Data()
  %v : float16[32] = Const(seed=1, low=0.5, high=1.0)
  %n = BNInfer(x=%x, scale=%v, offset=%v, mean=%v, variance=%v)
  %r = Relu(x=%n)
  return (%r as "r")
"""
    graph, _ = run(text, "RefineRunningFormat")
    assert formats(graph) == {"n": Format.ND, "r": Format.ND}
    assert len(graph.nodes) == len(parse_graph(text).nodes)


def test_every_change_of_format_says_why_the_other_side_is_plain(run):
    graph, report = run(
        """
graph("why"):
  %x : float16[1,24,8,8] = Data()
  %v : float16[24,24,1,1] = Const(seed=1)
  %w : float16[24,48,1,1] = Const(seed=2)
  %a = Conv2D(x=%x, filter=%v) {strides=[1, 1, 1, 1]}
  %b = Conv2D(x=%a, filter=%v) {strides=[1, 1, 1, 1]}
  %c = ConcatD(x0=%a, x1=%b) {concat_dim=1}
  %t = TransposeD(x=%c) {perm=[0, 1, 3, 2]}
  %d = Conv2D(x=%t, filter=%w) {strides=[1, 1, 1, 1]}
  return (%d as "d")
""",
        "RefineRunningFormat",
    )
    notes = report.record("RefineRunningFormat").notes
    texts = [notes[node.name] for node in graph.nodes if node.op_type == "TransData"]
    assert len(texts) == count(graph, "TransData") == 4
    assert sum("TransposeD knows no other layout" in text for text in texts) == 2


MOVES = {
    "joined off the blocks": ("%m = ConcatD(x0=%a, x1=%a) {concat_dim=1}", 48, True),
    "cut off the blocks": ("%m, %n = SplitVD(x=%a) {split_dim=1, num_split=2, size_splits=[10, 14]}", 10, True),
    "every other channel": ("%m = StridedSliceD(x=%a) {begin=[0, 1], end=[1, 24], strides=[1, 2]}", 12, True),
    "padded": ("%m = PadD(x=%a) {paddings=[0, 0, 3, 5, 0, 0, 0, 0]}", 32, True),
    "shuffled": ("%m = ShuffleChannel(x=%a) {group=3}", 24, True),
    "padded with pixels": ("%m = PadD(x=%a) {paddings=[0, 0, 3, 5, 1, 0, 0, 0]}", 32, False),
    "padded with ones": ("%m = PadD(x=%a) {paddings=[0, 0, 3, 5, 0, 0, 0, 0], constant_values=1.0}", 32, False),
    "cut with pixels": ("%m = StridedSliceD(x=%a) {begin=[0, 1, 1], end=[1, 24, 8], strides=[1, 2, 1]}", 12, False),
}


@pytest.mark.parametrize("name", MOVES)
def test_single_channels_move_in_blocks_if_nothing_else_does(run, name):
    line, channels, blocked = MOVES[name]
    graph, report = run(
        f"""
graph("lanes"):
  %x : float16[1,24,8,8] = Data()
  %v : float16[24,24,1,1] = Const(seed=1)
  %w : float16[24,{channels},1,1] = Const(seed=2)
  %a = Conv2D(x=%x, filter=%v) {{strides=[1, 1, 1, 1]}}
  {line}
  %d = Conv2D(x=%m, filter=%w) {{strides=[1, 1, 1, 1]}}
  return (%d as "d")
""",
        "RefineRunningFormat",
    )
    assert count(graph, "TransData") == (2 if blocked else 4)
    assert len(report.record("RefineRunningFormat").refusals) == (not blocked)


def test_pixels_move_in_blocks_between_convolutions(run):
    graph, _ = run(
        """
graph("pixels"):
  %x : float16[1,3,8,8] = Data()
  %v : float16[40,3,1,1] = Const(seed=1)
  %w : float16[8,24,1,1] = Const(seed=2)
  %a = Conv2D(x=%x, filter=%v) {strides=[1, 1, 1, 1]}
  %b = ResizeNearestNeighborV2D(x=%a) {size=[16, 16]}
  %c = PadD(x=%b) {paddings=[0, 0, 0, 0, 1, 0, 0, 1]}
  %d = StridedSliceD(x=%c) {begin=[0, 16, 1, 0], end=[1, 40, 17, 17], strides=[1, 1, 2, 1]}
  %e = Conv2D(x=%d, filter=%w) {strides=[1, 1, 1, 1]}
  %f = MaxPoolV3(x=%e) {ksize=[1, 1, 2, 2], strides=[1, 1, 2, 2]}
  return (%f as "f")
""",
        "RefineRunningFormat",
    )
    assert {formats(graph)[name] for name in "abcde"} == {Format.NC1HWC0}
    assert count(graph, "TransData") == 2


@pytest.mark.parametrize(("divisor", "fmt"), [("6.0", Format.NC1HWC0), ("0.0", Format.NCHW)])
def test_a_quotient_by_a_number_keeps_zeros(run, divisor, fmt):
    graph, _ = run(
        f"""
graph("quotient"):
  %x : float16[1,3,8,8] = Data()
  %w : float16[24,3,1,1] = Const(seed=1)
  %v : float16[24,24,1,1] = Const(seed=3)
  %k : float16[1] = Const(seed=4, low={divisor}, high={divisor})
  %a = Conv2D(x=%x, filter=%w) {{strides=[1, 1, 1, 1]}}
  %b = RealDiv(x1=%a, x2=%k)
  %c = Conv2D(x=%b, filter=%v) {{strides=[1, 1, 1, 1]}}
  return (%c as "c")
""",
        "RefineRunningFormat",
    )
    assert formats(graph)["b"] is fmt
