"""Every network by name: how it is built, for which picture, and how many parameters its publication states."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from networks_inception import inception_v3, xception
from networks_mobile import ghostnet, mnasnet, mobilenet_v2, mobilenet_v3_large, mobilenet_v3_small, shufflenet_v1
from networks_residual import Build, alexnet, densenet121, repvgg_a0, resnet, vgg19
from networks_transformer import bert_base, swin_tiny, vit_base
from networks_vision import hrnet_w18, nested_unet, yolov3, yolox_tiny


@dataclass(frozen=True)
class Network:
    """``side`` is the picture's, or a text's length in tokens; ``million`` the published parameters."""

    build: Build
    side: int
    million: float


NETWORKS: dict[str, Network] = {
    "alexnet": Network(alexnet, 224, 61.10),
    "vgg19": Network(vgg19, 224, 143.67),
    "resnet18": Network(resnet("resnet18", (2, 2, 2, 2), bottleneck=False), 224, 11.69),
    "resnet50": Network(resnet("resnet50", (3, 4, 6, 3)), 224, 25.56),
    "resnet152": Network(resnet("resnet152", (3, 8, 36, 3)), 224, 60.19),
    "wide_resnet101_2": Network(resnet("wide_resnet101_2", (3, 4, 23, 3), wide=2), 224, 126.89),
    "resnext50": Network(resnet("resnext50", (3, 4, 6, 3), groups=32, width=128), 224, 25.03),
    "se_resnet50": Network(resnet("se_resnet50", (3, 4, 6, 3), gated=True, early_stride=True), 224, 28.09),
    "se_resnext101": Network(resnet("se_resnext101", (3, 4, 23, 3), groups=32, width=128, gated=True), 224, 48.96),
    "repvgg_a0": Network(repvgg_a0, 224, 9.11),
    "densenet121": Network(densenet121, 224, 7.98),
    "inception_v3": Network(inception_v3, 299, 23.83),
    "xception": Network(xception, 299, 22.86),
    "mobilenet_v2": Network(mobilenet_v2, 224, 3.50),
    "mobilenet_v3_large": Network(mobilenet_v3_large, 224, 5.48),
    "mobilenet_v3_small": Network(mobilenet_v3_small, 224, 2.54),
    "mnasnet1_0": Network(mnasnet, 224, 4.38),
    "shufflenet_v1_g3": Network(shufflenet_v1, 224, 1.87),
    "ghostnet": Network(ghostnet, 224, 5.18),
    "hrnet_w18": Network(hrnet_w18, 224, 21.30),
    "nested_unet": Network(nested_unet, 96, 9.16),
    "yolov3": Network(yolov3, 416, 61.95),
    "yolox_tiny": Network(yolox_tiny, 640, 5.06),
    "bert_base": Network(bert_base, 512, 108.89),
    "vit_base_patch16_224": Network(vit_base(16), 224, 86.57),
    "vit_base_patch16_384": Network(vit_base(16), 384, 86.86),
    "vit_base_patch32_224": Network(vit_base(32), 224, 88.22),
    "vit_base_patch32_384": Network(vit_base(32), 384, 88.30),
    "vit_base_patch8_224": Network(vit_base(8), 224, 86.58),
    "swin_tiny": Network(swin_tiny, 224, 28.29),
}


def build_network(name: str, batch: int = 1, side: int | None = None) -> onnx.ModelProto:
    """A network of ``NETWORKS`` as ONNX without weights.

    Raises:
        KeyError: no network of that name.
    """
    network = NETWORKS[name]
    return network.build(batch, side or network.side)
