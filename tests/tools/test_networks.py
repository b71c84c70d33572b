"""Networks without weights: parameters are those published, graphs are sound, and the compiler takes them."""

import onnx
import pytest

from metadef.compiler import CompileOptions, compile_model
from networks import NETWORKS, build_network


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_are_those_of_the_publication(name):
    model = build_network(name)
    (parameters,) = (int(item.value) for item in model.metadata_props if item.key == "parameters")
    assert parameters / 1e6 == pytest.approx(NETWORKS[name].million, rel=3e-3)
    onnx.checker.check_model(model, full_check=True)
    assert len(model.SerializeToString()) < 300_000


def test_every_parameter_is_a_weight_of_its_own():
    made = compile_model(build_network("resnet18", 2), CompileOptions(soc="Ascend310P3"))
    assert made.model.program.weights_bytes > 2 * 11.6e6


def test_patches_larger_than_a_channel_block_of_l1_are_cut_by_rows():
    made = compile_model(build_network("vit_base_patch32_224"), CompileOptions(soc="Ascend310P3"))
    patches = next(task.kernel for task in made.model.program.tasks if task.kernel.op_type == "Conv2D")
    assert patches.tile.k1 < 32 * 32 * 16
