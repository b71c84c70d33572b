"""Published inference times of whole networks on Ascend310P3, and what the model and a plain roofline predict for them.

    python tools/timing_networks.py [--data DIR] [--only NETWORK ...] [--left-out] [--plot FILE]

Rows: fp16 by the converter's default, not tuned, not doubtful. The networks are those of ``networks``, compiled without
weights once for each batch; where a row states larger pictures than the network takes, AIPP is taken to cut out their
middle and normalise it. That is inferred: the accuracies beside those times are those of the cut; where it is made they
do not say, and the rows call their input RGB_FP32. It decides much: with floats of the network's own size the roofline
of ResNet-18 is far nearer. The roofline takes every task at the larger of its products at the cube's peak and its
operands at the memory's nominal rate: nothing of it is fitted.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from metadef.aipp import AippOp
from metadef.compiler import CompileOptions, compile_model
from metadef.program import Program
from metadef.target import Target
from networks import NETWORKS, build_network
from npusim.timing import time_program
from timing_data import Pair, chip, rows_of
from timing_figures import draw, figures
from timing_networks_fit import LinearFit

SOC = "Ascend310P3"
NOT_BY_DEFAULT = frozenset({"SmallChannelPass", "ShuffleChannelFusion"})
"""ATC pads pictures to a channel block unless ``enable_small_channel`` is given: the published recipes leave it out. A
channel shuffle stays the views and the transpose that exporters write: joining them is our own."""
SOURCES: dict[tuple[str, str], str] = {
    ("AlexNet", ""): "alexnet",
    ("VGG19", ""): "vgg19",
    ("Resnet18_for_PyTorch", ""): "resnet18",
    ("ResNet152", ""): "resnet152",
    ("Wide_ResNet101_2", ""): "wide_resnet101_2",
    ("ResNeXt50", "ACL"): "resnext50",
    ("SE_ResNet50_Pytorch_Infer", ""): "se_resnet50",
    ("Se-Resnext101", ""): "se_resnext101",
    ("RepVGG", ""): "repvgg_a0",
    ("Densenet121_Pytorch_Infer", ""): "densenet121",
    ("InceptionV3_for_Pytorch", ""): "inception_v3",
    ("inceptionv3", ""): "inception_v3",
    ("xception", ""): "xception",
    ("MobileNetV2_for_Pytorch", ""): "mobilenet_v2",
    ("MobileNetV3_large_100", ""): "mobilenet_v3_large",
    ("MobileNetV3_for_Pytorch", ""): "mobilenet_v3_small",
    ("Mnasnet1_0", ""): "mnasnet1_0",
    ("Shufflenetv1", ""): "shufflenet_v1_g3",
    ("GhostNet1.0x", ""): "ghostnet",
    ("HRNet", ""): "hrnet_w18",
    ("Nested_UNet", ""): "nested_unet",
    ("YOLOV3", ""): "yolov3",
    ("YoloX_Tiny_for_Pytorch", ""): "yolox_tiny",
    ("Bert_Base_Uncased_for_Pytorch", ""): "bert_base",
    ("ViT_base", "ViT_base_patch16_224"): "vit_base_patch16_224",
    ("ViT_base", "ViT_base_patch16_384"): "vit_base_patch16_384",
    ("ViT_base", "ViT_base_patch32_224"): "vit_base_patch32_224",
    ("ViT_base", "ViT_base_patch32_384"): "vit_base_patch32_384",
    ("ViT_base", "ViT_base_patch8_224"): "vit_base_patch8_224",
    ("ViT-base", ""): "vit_base_patch8_224",
    ("Swin-Transformer_tiny", ""): "swin_tiny",
}
"""(model, section) of the data and the network; an empty section takes every one of that model."""

IMAGENET = {
    **{f"min_chn_{channel}": 255 * mean for channel, mean in enumerate((0.485, 0.456, 0.406))},
    **{f"var_reci_chn_{channel}": 1 / (255 * deviation) for channel, deviation in enumerate((0.229, 0.224, 0.225))},
}
"""The usual normalisation of pictures of 0 to 255, as AIPP's keys."""


@dataclass(frozen=True)
class Point:
    """One published time of a batch, in microseconds. ``family`` is the data's; ``side`` is that of the stated pictures
    (0: none is stated)."""

    id: str
    family: str
    network: str
    batch: int
    measured_us: float
    source: str
    side: int = 0

    @property
    def case(self) -> tuple[str, int, int]:
        """What is compiled: network, batch, side of the pictures that AIPP cuts (0: the network's own are fed)."""
        return self.network, self.batch, self.side if self.side > NETWORKS[self.network].side else 0


def points(data: Path) -> list[Point]:
    """All published times of the networks; a time that a second page repeats counts once."""
    found: dict[tuple[str, int, str], Point] = {}
    for row in rows_of(data, "model_infer"):
        name = SOURCES.get((row["model"], row["section"])) or SOURCES.get((row["model"], ""))
        if name is None or not _is_usable(row):
            continue
        batch = int(row["batch"])
        us = batch / float(row["value"]) * 1e6
        source = f"{row['model']} {row['section']} {row['soc_label']}".strip()
        side = _stated_side(row["input_shape"])
        found.setdefault((name, batch, row["value"]), Point(row["id"], row["family"], name, batch, us, source, side))
    return list(found.values())


def _stated_side(shape: str) -> int:
    """The side of square pictures in three channels, such as 256 of "Bx3x256x256"; else 0."""
    match = re.fullmatch(r"\w+x3x(\d+)x\1", shape)
    return int(match[1]) if match else 0


def _is_usable(row: dict[str, str]) -> bool:
    plain = row["precision"] == "fp16_default" and row["aoe"] == "0" and row["suspect"] == "0"
    return plain and row["soc"] in ("310P3", "310P") and row["unit"] == "fps" and row["batch"] != ""


@cache
def network_program(name: str, batch: int, pictures: int = 0) -> Program:
    """A network compiled for the chip; ``pictures`` is the side of those that AIPP makes its input of (0: none)."""
    aipp = (middle(pictures, NETWORKS[name].side),) if pictures else ()
    options = CompileOptions(soc=SOC, disabled_passes=NOT_BY_DEFAULT, aipp=aipp)
    return compile_model(build_network(name, batch), options).model.program


def middle(side: int, cut: int) -> AippOp:
    """AIPP for the middle of square RGB pictures, normalised."""
    start = (side - cut) // 2
    sizes = {"src_image_size": side, "load_start_pos": start, "crop_size": cut}
    square = {f"{name}_{axis}": size for name, size in sizes.items() for axis in "hw"}
    return AippOp.of(aipp_mode="static", input_format="RGB888_U8", crop=True, **square, **IMAGENET)


def network_us(name: str, batch: int, pictures: int, target: Target) -> float:
    """Predicted microseconds of one inference in a repeated run."""
    return time_program(network_program(name, batch, pictures), target).us


def roofline_us(name: str, batch: int, pictures: int, target: Target) -> float:
    """Every task at the peak rate of the cube or of memory, whichever takes longer."""
    program = network_program(name, batch, pictures)
    macs_per_us = target.value("cube.macs_per_cycle")["float16"] * target.cube_cores * target.clock_mhz
    bytes_per_us = target.value("memory.hbm_nominal_tb_s") * 1e6
    total = 0.0
    for row, task in zip(time_program(program, target).tasks, program.tasks):
        moved = sum(item.payload_bytes for item in (*task.inputs, *task.outputs) if item is not None)
        total += max(row.flops / 2 / macs_per_us if row.pipes.get("CUBE") else 0.0, moved / bytes_per_us)
    return total


@dataclass(frozen=True)
class Predicted:
    """A point with both predictions."""

    point: Point
    us: float
    roofline_us: float

    @property
    def pair(self) -> Pair:
        return Pair(self.point.id, f"{self.point.network} batch {self.point.batch}", self.point.measured_us, self.us)

    @property
    def roofline_pair(self) -> Pair:
        return Pair(self.point.id, self.point.network, self.point.measured_us, self.roofline_us)


def predict(data: Path, only: list[str] | None = None) -> list[Predicted]:
    """All points with both predictions."""
    target = chip("310P3")
    assert target is not None
    made = []
    for point in points(data):
        if only and point.network not in only:
            continue
        us, plain = (run(*point.case, target) for run in (network_us, roofline_us))
        made.append(Predicted(point, us, plain))
    return made


def print_table(rows: list[Predicted]) -> None:
    """Batch, measured, predicted, roofline, error by network; then figures by family beside the roofline's."""
    for row in sorted(rows, key=lambda row: (row.point.network, row.point.source, row.point.batch)):
        point, ratio, plain = row.point, row.us / row.point.measured_us, row.roofline_us / row.point.measured_us
        print(
            f"{point.network:22s} {point.batch:4d} measured {point.measured_us:10.1f}  predicted {row.us:10.1f}  "
            f"roofline {row.roofline_us:10.1f}  {ratio - 1:+7.1%} (roofline {plain - 1:+7.1%})  {point.source}"
        )
    for name, part in (*_families(rows).items(), ("all", rows)):
        ours = figures([row.pair for row in part], len(part))
        plain = figures([row.roofline_pair for row in part], len(part))
        print(f"{name:12s} rows {ours['rows']:4d}  {_short(ours)}   roofline {_short(plain)}")


def _short(row: dict[str, float]) -> str:
    return f"median {row['median']:.3f} p90 {row['p90']:.3f} bias {row['bias']:.2f}"


def main(arguments: list[str] | None = None) -> int:
    from validate_timing import data_root

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="directory with measured/ (default: $NPUSIM_DATA or ../shared)")
    parser.add_argument("--only", nargs="+", help="only these networks")
    parser.add_argument("--left-out", action="store_true", help="fit the constants again without each network in turn")
    parser.add_argument("--plot", help="picture of predicted against measured, a colour per family (png, svg, pdf)")
    options = parser.parse_args(arguments)
    rows = predict(data_root(options.data), options.only)
    print_table(rows)
    if options.plot:
        draw({name: [row.pair for row in part] for name, part in _families(rows).items()}, Path(options.plot))
    if options.left_out:
        measured = np.array([row.point.measured_us for row in rows])
        fit = LinearFit(SOC, lambda target: _times(rows, target), measured, [row.point.network for row in rows])
        print(fit.report())
    return 0


def _families(rows: list[Predicted]) -> dict[str, list[Predicted]]:
    """Rows by the family that the data file them under, in the order of its name."""
    names = sorted({row.point.family for row in rows})
    return {name: [row for row in rows if row.point.family == name] for name in names}


def _times(rows: list[Predicted], target: Target) -> np.ndarray:
    """Microseconds of all points on a target; programs stay those of the stated constants."""
    made = {case: network_us(*case, target) for case in {row.point.case for row in rows}}
    return np.array([made[row.point.case] for row in rows])


if __name__ == "__main__":
    sys.exit(main())
