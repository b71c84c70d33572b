"""First layers of at most four channels: where they move to the C04 formats, where not and why."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.format import Format
from metadef.passes import PIPELINE, PassOptions
from metadef.rewrite import run_passes
from metadef.target import load_target
from metadef.text import parse_graph
from tests.metadef.passes.nets import first_layer

NET = first_layer("float16[1,3,64,64]")


def refusals(report) -> list[str]:
    return [item.reason for item in report.record("SmallChannelPass").refusals]


@pytest.mark.parametrize("soc", ["Ascend910B3", "Ascend310P3"])
def test_a_first_layer_moves_where_that_is_faster(run, soc):
    graph, report = run(NET, soc=soc)
    change, layer = graph.nodes[:2]
    assert change.attrs["dst_format"] == "NC1HWC0_C04" and change.output.desc.shape == (1, 1, 64, 64, 4)
    assert layer.inputs[1].desc.format is Format.FRACTAL_Z_C04 and layer.inputs[1].desc.shape == (3, 2, 16, 16)
    assert "cycles with NC1HWC0_C04" in report.record("SmallChannelPass").notes["a"]
    assert layer.name == "ab"
    assert any("NC1HWC0_C04" in text for text in report.about(change.name))


def test_a_chip_with_the_older_load_keeps_whole_blocks(run):
    graph, report = run(NET, soc="Ascend910A")
    assert graph.nodes[0].output.desc.format is Format.NC1HWC0
    assert refusals(report) == ["Ascend910A reads whole channel blocks only (load3d v1)"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("[32,3,3,3] = Const(seed=1)", "[32,3,3,3] = Data()"), "its filter is no constant"),
        (("%a = Conv2D(x=%x,", "%r = MaxPoolV3(x=%x) {ksize=[1, 1, 2, 2], strides=[1, 1, 2, 2]}\n  %a = Conv2D(x=%r,"),
         "its operand is made in NC1HWC0 by 'r' (MaxPoolV3)"),
        (("[32,3,3,3]", "[33,1,3,3]"), "its channels are grouped"),
    ],
)  # fmt: skip
def test_refusals_name_the_reason(run, change, reason):
    text = NET.replace(*change)
    if "grouped" in reason:
        text = text.replace("pads=[1, 1, 1, 1]", "pads=[1, 1, 1, 1], groups=3")
    _, report = run(text)
    assert refusals(report) == [reason]


def test_winograd_asked_for_keeps_whole_blocks():
    graph = parse_graph(NET.replace("strides=[1, 1, 2, 2]", "strides=[1, 1, 1, 1]"))
    report = run_passes(PIPELINE, graph, load_target("Ascend910B3"), PassOptions(conv="winograd_f2", check=True))
    assert "is asked for" in refusals(report)[0]


def test_other_readers_keep_their_tensor_and_shared_filters_are_copied(run):
    pooled = (
        "%p = MaxPoolV3(x=%x) {ksize=[1, 1, 4, 4], strides=[1, 1, 4, 4]}\n"
        "  %q = Conv2D(x=%p, filter=%w) {strides=[1, 1, 1, 1], pads=[3, 3, 3, 3]}\n  return"
    )
    text = NET.replace("return", pooled).replace('"b")', '"b", %q as "q")').replace("32,3,3,3", "128,3,7,7")
    graph, _ = run(text.replace("64,64", "256,256").replace("[1, 1, 2, 2], pads=[1, 1, 1, 1]", "[1, 1, 1, 1]"))
    formats = [node.output.desc.format for node in graph.nodes if node.op_type == "TransData"]
    assert formats.count(Format.NC1HWC0) == 1 and formats.count(Format.NC1HWC0_C04) == 1
    filters = {node.name: node.inputs[1].desc.format for node in graph.nodes if node.op_type == "Conv2D"}
    assert sorted(filters.values()) == [Format.FRACTAL_Z, Format.FRACTAL_Z_C04]
    assert np.array_equal(*(node.inputs[1].const for node in graph.nodes if node.op_type == "Conv2D"))
