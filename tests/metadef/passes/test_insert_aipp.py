"""InsertAipp: which inputs take pictures, what the formats behind it become, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from metadef.aipp import AippOp
from metadef.dtype import DType
from metadef.error import UsageError
from metadef.format import Format
from metadef.graph import Graph
from metadef.ops.evaluate import evaluate
from metadef.passes import PassOptions, PassReport, run_pipeline
from metadef.target import load_target
from metadef.text import parse_graph, print_graph
from tests.metadef.passes.nets import first_layer

NET = first_layer("float32[2,3,20,24]")
TWO = """
graph("two"):
  %x : float32[1,3,8,8] = Data()
  %mask : float32[1,1,8,8] = Data()
  %ids : int64[1,3,8,8] = Data()
  %row : float32[5] = Data()
  %a = Mul(x1=%x, x2=%mask)
  return (%a as "a", %ids as "i", %row as "r")
"""


def block(**given: Any) -> AippOp:
    return AippOp.of(**{"aipp_mode": "static", "input_format": "RGB888_U8", **given})


FUSION = "TbeAippConvReluMaxpoolingFusion"


def compiled(
    text: str,
    *blocks: AippOp,
    soc: str = "Ascend310P3",
    precision: str = "fp16",
    disabled: str = "",
    conv: str = "direct",
) -> tuple[Graph, PassReport]:
    graph = parse_graph(text)
    options = PassOptions(precision, frozenset(filter(None, [disabled])), check=True, conv=conv, aipp=blocks)
    return graph, run_pipeline(graph, load_target(soc), options)


@pytest.mark.parametrize("soc", ["Ascend310P3", "Ascend910A", "Ascend910B3"])
def test_an_input_takes_pictures_and_nothing_else_is_added(soc):
    cut = {"crop": True, "src_image_size_h": 32, "src_image_size_w": 40, "load_start_pos_h": 5}
    graph, report = compiled(NET, block(**cut), soc=soc)
    (x,), first = graph.inputs, graph.nodes[0]
    assert (x.desc.dtype, x.desc.origin_format, x.desc.origin_shape) == (DType.UINT8, Format.NHWC, (2, 32, 40, 3))
    assert first.inputs[0] is x
    assert [node.op_type for node in graph.nodes] == ["AippConv2D", "TransData", "Cast"]
    assert report.record("InsertAipp").effect_times == 1
    assert "takes pictures RGB888_U8 [2, 32, 40, 3]" in report.about("aipp_x")[0]
    apart, _ = compiled(NET, block(**cut), soc=soc, disabled=FUSION)
    assert [node.op_type for node in apart.nodes] == ["Aipp", "Conv2D", "TransData", "Cast"]


@pytest.mark.parametrize(("precision", "dtype", "c0"), [("fp16", DType.FLOAT16, 16), ("origin", DType.FLOAT, 8)])
def test_its_result_has_the_type_that_the_network_computes_in(precision, dtype, c0):
    graph, _ = compiled(NET, block(), soc="Ascend910B3", precision=precision, disabled=FUSION)
    desc = graph.nodes[0].output.desc
    assert graph.nodes[0].attrs["dst_type"] is desc.dtype is dtype
    assert desc.origin_shape == (2, 3, 20, 24) and desc.format in (Format.NC1HWC0, Format.NC1HWC0_C04)
    assert desc.c0 in (c0, 4)


def test_without_a_configuration_nothing_happens():
    graph, report = compiled(NET)
    assert all(node.op_type != "Aipp" for node in graph.nodes) and not report.record("InsertAipp").changed


def test_values_are_those_of_the_network_on_what_aipp_makes(rng):
    graph, plain = parse_graph(NET), parse_graph(NET)
    blocks = (block(min_chn_0=120.0, var_reci_chn_1=0.5, mean_chn_2=7),)
    run_pipeline(graph, load_target("Ascend910B3"), PassOptions(precision="origin", aipp=blocks))
    images = rng.integers(0, 256, (2, 20, 24, 3)).astype(np.uint8)
    x = np.moveaxis(images.astype(np.float32), 3, 1)
    x = (x - np.float32([120, 0, 7]).reshape(3, 1, 1)) * np.float32([1, 0.5, 1]).reshape(3, 1, 1)
    wanted = evaluate(plain, {"x": x})["b"]
    np.testing.assert_allclose(evaluate(graph, {"x": images})["b"], wanted, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("soc", ["Ascend310P3", "Ascend910A", "Ascend910B3"])
def test_the_first_convolution_takes_aipp_into_its_load(soc):
    graph, report = compiled(NET, block(min_chn_1=3.5), soc=soc)
    node = graph.nodes[0]
    assert node.name == "aipp_xab"
    assert [item.op_type for item in node.fused] == ["Relu"]
    assert node.attrs["min_chn"][1] == 3.5 and node.attrs["strides"] == (1, 1, 2, 2)
    assert report.record(FUSION).effect_times == 1


@pytest.mark.parametrize(
    ("change", "conv", "reason"),
    [
        (("  %b = Relu(x=%a)", "  %c = Sigmoid(x=%x)\n  %b = Relu(x=%a)"), "direct", "is also read by"),
        (("return (", 'return (%x as "x", '), "direct", "is also read by 'trans_TransData'"),
        (("Const(seed=1)", "Data()"), "direct", "its filter is no constant"),
        (("[32,3,3,3]", "[33,1,3,3]", "{strides", "{groups=3, strides"), "direct", "its channels are grouped"),
        (("strides=[1, 1, 2, 2]", "strides=[1, 1, 1, 1]"), "winograd", "Winograd's algorithm"),
    ],
)
def test_where_it_stays_apart(change, conv, reason):
    text = NET
    for old, new in zip(change[::2], change[1::2]):
        assert old in text
        text = text.replace(old, new)
    if "%c" in text:
        text = text.replace("return (", 'return (%c as "c", ')
    graph, report = compiled(text, block(), conv=conv)
    assert graph.nodes[0].op_type == "Aipp"
    assert reason in report.record(FUSION).refusals[0].reason


def test_numbers_past_float16_keep_it_apart():
    graph, report = compiled(NET, block(var_reci_chn_2=300))
    assert graph.nodes[0].op_type == "Aipp"
    assert "leaves the range of float16" in report.record(FUSION).refusals[0].reason


def test_a_plain_reader_gets_plain_images():
    graph, _ = compiled(TWO, block())
    types = [node.op_type for node in graph.nodes]
    assert types[0] == "Aipp" and "TransData" in types
    assert graph.outputs[0].desc.is_plain


def test_two_inputs_by_rank_and_by_name():
    grey = block(input_format="YUV400_U8", related_input_name="mask")
    graph, report = compiled(TWO, grey, block(related_input_rank=0))
    assert [tensor.desc.dtype for tensor in graph.inputs[:2]] == [DType.UINT8] * 2
    assert [tensor.desc.origin_shape[3] for tensor in graph.inputs[:2]] == [3, 1]
    assert report.record("InsertAipp").effect_times == 2


def test_all_blocks_that_do_not_fit_are_told_at_once():
    blocks = (
        block(related_input_rank=7),
        block(related_input_name="masks"),
        block(related_input_rank=2),
        block(related_input_rank=3),
        block(src_image_size_w=64),
        block(),
    )
    with pytest.raises(UsageError) as caught:
        compiled(TWO, *blocks)
    found = [(problem.code, problem.message) for problem in caught.value.problems]
    assert [code for code, _ in found] == ["E10052", "E10017", "E10034", "E10052", "E10052", "E10052"]
    assert "no input number 7" in found[0][1] and "no input 'masks'" in found[1][1]
    assert "does not take floats" in found[2][1]
    assert (
        "images only" in found[3][1] and "makes 64 pixels along W" in found[4][1] and "a block already" in found[5][1]
    )
    assert "did you mean 'mask'" in caught.value.problems[1].hint


def test_channels_that_the_pictures_do_not_have():
    with pytest.raises(UsageError, match="RGB888_U8 has no 1 channels"):
        compiled(TWO, block(related_input_name="mask"))


def test_the_pass_cannot_be_switched_off():
    with pytest.raises(UsageError, match="InsertAipp cannot be switched off"):
        run_pipeline(parse_graph(NET), load_target("Ascend310P3"), PassOptions(disabled=frozenset({"InsertAipp"})))


def test_the_text_form_reads_back():
    text = """graph("first"):
  %x : float32[2,3,20,24] = Data()
  %a = Relu(x=%x)
  return (%a as "a")
"""
    graph, _ = compiled(text, block(min_chn_0=123.675, padding=True, top_padding_size=2))
    printed = print_graph(graph)
    assert "min_chn=[123.6875, 0.0, 0.0, 0.0]" in printed and print_graph(parse_graph(printed)) == printed
