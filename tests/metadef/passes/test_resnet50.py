"""The whole pipeline on ResNet-50: the task counts that the budgets of the two chips rest on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from metadef.frontend.onnx import load_onnx
from metadef.graph import Graph, Tensor
from metadef.kernel import Engine
from metadef.legalize import legalize
from metadef.passes import PassOptions, run_pipeline
from metadef.target import load_target


class Network:
    """ResNet-50 as a legalised graph: convolutions without bias, batch normalisations, an Add and a Relu a block."""

    def __init__(self) -> None:
        self.graph = Graph("resnet50")
        self.rng = np.random.default_rng(0)

    def const(self, name: str, shape: tuple[int, ...], low: float, high: float) -> Tensor:
        return self.graph.add_const(name, self.rng.uniform(low, high, shape).astype(np.float32))

    def conv(self, x: Tensor, width: int, kernel: int, stride: int, name: str) -> Tensor:
        """Convolution and batch normalisation."""
        fan_in = x.desc.origin_shape[1]
        weight = self.const(f"{name}.weight", (width, fan_in, kernel, kernel), -0.1, 0.1)
        attrs = {"strides": (1, 1, stride, stride), "pads": (kernel // 2,) * 4}
        y = self.graph.add_node("Conv2D", [x, weight], attrs, name, origins=[name]).output
        bounds = {"scale": (0.5, 1.5), "offset": (-1, 1), "mean": (-1, 1), "variance": (0.5, 1.5)}
        statistics = [self.const(f"{name}.bn.{key}", (width,), *value) for key, value in bounds.items()]
        return self.graph.add_node("BNInfer", [y, *statistics], {}, f"{name}.bn", origins=[f"{name}.bn"]).output

    def one(self, op_type: str, *inputs: Tensor, **attrs: object) -> Tensor:
        name = self.graph.unique_name(op_type)
        return self.graph.add_node(op_type, list(inputs), attrs, name, origins=[name]).output

    def block(self, x: Tensor, width: int, stride: int, name: str) -> Tensor:
        y = self.one("Relu", self.conv(x, width, 1, 1, f"{name}.conv1"))
        y = self.one("Relu", self.conv(y, width, 3, stride, f"{name}.conv2"))
        y = self.conv(y, 4 * width, 1, 1, f"{name}.conv3")
        if x.desc.origin_shape[1] != 4 * width:
            x = self.conv(x, 4 * width, 1, stride, f"{name}.downsample")
        return self.one("Relu", self.one("Add", y, x))

    def build(self) -> Graph:
        x = self.graph.add_input("data", (1, 3, 224, 224))
        x = self.one("Relu", self.conv(x, 64, 7, 2, "conv1"))
        x = self.one("MaxPoolV3", x, ksize=(1, 1, 3, 3), strides=(1, 1, 2, 2), pads=(1, 1, 1, 1))
        for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
            for index in range(blocks):
                x = self.block(x, width, 2 if stage > 1 and index == 0 else 1, f"layer{stage}.{index}")
        x = self.one("Flatten", self.one("GlobalAveragePool", x))
        x = self.one("MatMulV2", x, self.const("fc.weight", (1000, 2048), -0.1, 0.1), transpose_x2=True)
        x = self.one("SoftmaxV2", self.one("Add", x, self.const("fc.bias", (1000,), -1, 1)))
        self.graph.set_outputs([x], ["prob"])
        return self.graph


COMMON = {
    "Conv2D": 53,
    "Cast": 2,
    "TransData": 2,
    "MaxPoolV3": 1,
    "GlobalAveragePool": 1,
    "MatMulV2": 1,
    "SoftmaxV2": 1,
}


@pytest.mark.parametrize(("soc", "adds", "tasks"), [("Ascend910B3", 16, 77), ("Ascend310P3", 0, 61)])
def test_task_counts(soc, adds, tasks):
    graph = Network().build()
    report = run_pipeline(graph, load_target(soc), PassOptions(check=True))
    on_device = [node for node in graph.nodes if node.engine is not Engine.GE_LOCAL]
    assert len(on_device) == tasks
    assert Counter(node.op_type for node in on_device) == Counter({**COMMON, "Add": adds} if adds else COMMON)
    assert all(node.engine is not None and node.engine.on_device for node in on_device)
    with_relu = [node for node in on_device if any(item.op_type == "Relu" for item in node.fused)]
    assert len(with_relu) == 49
    assert report.record("ConvBatchnormFusionPass").effect_times == 53
    assert sum(node.op_type == "TransData" for node in graph.nodes) == len(report.record("RefineRunningFormat").notes)
    origins = [name for node in graph.nodes for name in node.origins]
    assert len(origins) == len(set(origins)) == 53 * 2 + 49 + 16 + 6


@pytest.mark.parametrize(("soc", "tasks"), [("Ascend910B3", 77), ("Ascend310P3", 61)])
def test_task_counts_of_the_onnx_model(soc, tasks):
    """The network of ONNX's own tests (weights are not trained, so values say nothing here)."""
    onnx_test = pytest.importorskip("onnx.backend.test")
    path = Path(onnx_test.__file__).parent / "data" / "light" / "light_resnet50.onnx"
    target = load_target(soc)
    graph = legalize(load_onnx(path), target)
    run_pipeline(graph, target, PassOptions(check=True))
    assert sum(node.engine is not Engine.GE_LOCAL for node in graph.nodes) == tasks
    assert all(node.engine is Engine.GE_LOCAL or (node.engine and node.engine.on_device) for node in graph.nodes)


def test_residual_sums_read_what_is_there():
    """On the coupled chip the convolution that takes the sum comes last, so its second operand exists before it."""
    graph = Network().build()
    run_pipeline(graph, load_target("Ascend310P3"), PassOptions(check=True))
    position = {id(node): index for index, node in enumerate(graph.nodes)}
    sums = [node for node in graph.nodes if any(item.op_type == "Add" for item in node.fused)]
    assert len(sums) == 16
    for node in sums:
        (operand,) = [item.operand for item in node.fused if item.operand is not None]
        residual = node.inputs[operand]
        assert residual is not None and residual.producer is not None
        assert position[id(residual.producer)] < position[id(node)]
        assert residual.desc == node.output.desc
