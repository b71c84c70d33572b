"""What no card holds is refused with sizes and names, and a chip with more memory takes it."""

import pytest
from onnx import TensorProto, helper

from metadef.compiler import CompileOptions, compile_model
from metadef.error import PlanError
from metadef.target import known_targets, load_target


def wide_model(*shape: int) -> bytes:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape) for name in "xy"]
    graph = helper.make_graph(nodes, "wide", ports[:1], ports[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def test_a_network_larger_than_the_card_is_refused():
    with pytest.raises(PlanError) as caught:
        compile_model(wide_model(20_000, 1_000_000))
    text = str(caught.value)
    assert "Ascend910B3" in text and "68,719,476,736" in text and "x (io)" in text and "--shape" in text
    assert caught.value.exit_code == 1


def test_the_size_of_the_card_decides():
    source = wide_model(9_000, 1_000_000)
    assert compile_model(source).plan.io_bytes > 36e9 - 1
    for soc in ("Ascend910B4", "Ascend310P3", "Ascend910A"):
        with pytest.raises(PlanError, match=soc):
            compile_model(source, CompileOptions(soc=soc))


@pytest.mark.parametrize("soc", known_targets())
def test_every_chip_states_its_memory(soc):
    least = 8 << 30 if soc == "Ascend310" else 24e9
    most = (128 if soc == "Ascend950PR" else 64) << 30
    assert least <= load_target(soc).device_bytes <= most
