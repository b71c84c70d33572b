"""Make test models without downloads: ResNet-50 and its kin from the onnx package, and small graphs for unit tests.

    python tools/make_models.py resnet50 OUT.onnx [--seed 0]
    python tools/make_models.py light NAME OUT.onnx [--seed 0]       densenet121, vgg19, squeezenet...
    python tools/make_models.py network NAME OUT.onnx [--batch 1]    thirty architectures without weights (networks.py)
    python tools/make_models.py residual_block|mlp|encoder_block|conv_zoo OUT.onnx [--seed 0]

Tests import the functions; `cached_resnet50` keeps its file in the user's cache under a hash of these sources.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from onnx import helper

from fill_light import fill, light_model_names
from networks import NETWORKS, build_network
from onnx_writer import GraphWriter, save_model

SIDE = 224
CALIBRATION_PICTURES = 4


def make_resnet50(path: Path, seed: int = 0) -> Path:
    """Write ResNet-50 (1x3x224x224, opset 9, 25.6 million weights) with seeded, calibrated weights; its path."""
    return make_light("resnet50", path, seed)


def make_light(name: str, path: Path, seed: int = 0) -> Path:
    """The same for any of `light_model_names()`, all 1x3x224x224."""
    save_model(fill(name, [picture(1000 * (seed + 1) + index) for index in range(CALIBRATION_PICTURES)], seed), path)
    return path


def cached_resnet50(seed: int = 0) -> Path:
    """ResNet-50 out of the user's cache, made on first use (some ten seconds)."""
    return cached_light("resnet50", seed)


def cached_light(name: str, seed: int = 0) -> Path:
    """A filled light model out of $XDG_CACHE_HOME/npusim/models; files of older sources are removed."""
    digest = hashlib.sha256(onnx.__version__.encode())
    for source in ("fill_light.py", "make_models.py", "onnx_writer.py"):
        digest.update((Path(__file__).parent / source).read_bytes())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "npusim" / "models"
    path = folder / f"{name}-seed{seed}-{digest.hexdigest()[:16]}.onnx"
    if not path.exists():
        for stale in folder.glob(f"{name}-seed{seed}-*.onnx"):
            stale.unlink(missing_ok=True)
        make_light(name, path, seed)
    return path


def picture(seed: int, side: int = SIDE, channels: int = 3) -> np.ndarray:
    """A structured picture, float32 [1, channels, side, side] of mean 0 and deviation 1.

    Gratings, soft discs and a slope in random colours under a little noise: features differ from picture to picture,
    where white noise of any seed looks the same to a convolution followed by an average.
    """
    rng = np.random.default_rng(seed)
    rows, cols = np.meshgrid(np.linspace(-1, 1, side), np.linspace(-1, 1, side), indexing="ij")
    layers = [rng.uniform(-1, 1) * rows + rng.uniform(-1, 1) * cols]
    for _ in range(4):
        angle, waves, phase = rng.uniform(0, np.pi), rng.uniform(1, 24), rng.uniform(0, 2 * np.pi)
        layers.append(np.sin(np.pi * waves * (np.cos(angle) * rows + np.sin(angle) * cols) + phase))
    for _ in range(6):
        (top, left), radius = rng.uniform(-0.9, 0.9, 2), rng.uniform(0.08, 0.5)
        distance = np.hypot(rows - top, cols - left)
        layers.append(2 / (1 + np.exp(np.clip(30 * (distance - radius), -60, 60))))
    mix = rng.standard_normal((channels, len(layers)))
    image = np.tensordot(mix, np.stack(layers), 1) + 0.1 * rng.standard_normal((channels, side, side))
    return ((image - image.mean()) / image.std()).astype(np.float32)[None]


def random_inputs(model: onnx.ModelProto, seed: int = 0, **dims: int) -> dict[str, np.ndarray]:
    """Normal (float) or small non-negative (integer) feeds for every input; `dims` binds symbolic dimensions."""
    rng, weights = np.random.default_rng(seed), {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        shape = [dims[d.dim_param] if d.dim_param else d.dim_value for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        integer = np.issubdtype(dtype, np.integer)
        feeds[value.name] = (rng.integers(0, 8, shape) if integer else rng.standard_normal(shape)).astype(dtype)
    return feeds


def import_script(path: Path) -> ModuleType:
    """Import a Python file that is in no package, such as a data directory's own tools."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


class Builder(GraphWriter):
    """A graph writer that draws its weights, scaled so that values keep about unit size."""

    def __init__(self, name: str, seed: int):
        super().__init__(name)
        self.rng = np.random.default_rng(seed)

    def draw(self, name: str, *shape: int, scale: float = 1.0, offset: float = 0.0) -> str:
        return self.weight(name, (offset + scale * self.rng.standard_normal(shape)).astype(np.float32))

    def conv(self, x: str, path: str, shape: tuple[int, int, int, int], *, bias: bool = True, **attributes: Any) -> str:
        """Conv with weight [M, C/group, kh, kw]."""
        inputs = [x, self.draw(f"{path}/weight", *shape, scale=float(np.prod(shape[1:])) ** -0.5)]
        if bias:
            inputs.append(self.draw(f"{path}/bias", shape[0], scale=0.3))
        return self.node("Conv", inputs, path, **attributes)

    def norm(self, x: str, path: str, channels: int) -> str:
        scale = self.draw(f"{path}/scale", channels, scale=0.2, offset=1.0)
        shift, mean = (self.draw(f"{path}/{part}", channels, scale=0.3) for part in ("bias", "mean"))
        variance = self.weight(f"{path}/var", self.rng.uniform(0.5, 1.5, channels).astype(np.float32))
        return self.node("BatchNormalization", [x, scale, shift, mean, variance], path, epsilon=1e-5)

    def dense(self, x: str, path: str, width_in: int, width_out: int, out: str | None = None) -> str:
        """MatMul, then Add of the bias, as PyTorch exports a linear layer on three dimensions."""
        weight = self.draw(f"{path}/weight", width_in, width_out, scale=width_in**-0.5)
        product = self.node("MatMul", [x, weight], f"{path}/MatMul")
        return self.node("Add", [product, self.draw(f"{path}/bias", width_out, scale=0.3)], f"{path}/Add", out=out)


def residual_block(seed: int = 0, channels: int = 32, side: int = 14, batch: int | str = 1) -> onnx.ModelProto:
    """`x` -> conv, norm, relu, conv, norm, plus a projected shortcut, relu -> `y`; [batch, channels, side, side]."""
    b = Builder("residual_block", seed)
    x = b.input("x", [batch, channels, side, side])
    square = (channels, channels, 3, 3)
    first = b.conv(x, "block0/conv1", square, bias=False, pads=[1] * 4)
    first = b.node("Relu", [b.norm(first, "block0/bn1", channels)], "block0/relu1")
    second = b.conv(first, "block0/conv2", square, bias=False, pads=[1] * 4)
    short = b.conv(x, "block0/shortcut/conv", (channels, channels, 1, 1), bias=False)
    sides = [b.norm(second, "block0/bn2", channels), b.norm(short, "block0/shortcut/bn", channels)]
    b.node("Relu", [b.node("Add", sides, "block0/add")], "block0/relu2", out="y")
    b.output("y", [batch, channels, side, side])
    return b.model()


def mlp(seed: int = 0, widths: tuple[int, ...] = (50, 96, 33, 10), batch: int | str = "batch") -> onnx.ModelProto:
    """`x` [batch, widths[0]] -> Gemm and Relu for each width -> Softmax `y`."""
    b = Builder("mlp", seed)
    x = b.input("x", [batch, widths[0]])
    for index, (width_in, width_out) in enumerate(pairwise(widths)):
        path = f"layer{index}"
        weight = b.draw(f"{path}/weight", width_out, width_in, scale=(2 / width_in) ** 0.5)
        x = b.node("Gemm", [x, weight, b.draw(f"{path}/bias", width_out, scale=0.3)], f"{path}/fc", transB=1)
        if index < len(widths) - 2:
            x = b.node("Relu", [x], f"{path}/relu")
    b.node("Softmax", [x], "softmax", out="y", axis=-1)
    b.output("y", [batch, widths[-1]])
    return b.model()


def encoder_block(
    seed: int = 0, width: int = 64, heads: int = 4, batch: int | str = "batch", length: int | str = "seq"
) -> onnx.ModelProto:
    """A pre-norm transformer block with exact GELU: `x` [batch, seq, width] -> `y` of the same shape."""
    b = Builder("encoder_block", seed)
    x = b.input("x", [batch, length, width])

    def norm(value: str, path: str) -> str:
        scale = b.draw(f"{path}/scale", width, scale=0.2, offset=1.0)
        return b.node("LayerNormalization", [value, scale, b.draw(f"{path}/bias", width, scale=0.3)], path, axis=-1)

    split = b.weight("attn/split", np.array([0, 0, heads, width // heads]))
    merge = b.weight("attn/merge", np.array([0, 0, width]))
    normal, parts = norm(x, "norm1"), {}
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        rows = b.node("Reshape", [b.dense(normal, f"attn/{name}", width, width), split], f"attn/{name}/Reshape")
        parts[name] = b.node("Transpose", [rows], f"attn/{name}/Transpose", perm=perm)
    scores = b.node("MatMul", [parts["q"], parts["k"]], "attn/scores")
    root = b.weight("attn/root", np.array((width // heads) ** 0.5, np.float32))
    share = b.node("Softmax", [b.node("Div", [scores, root], "attn/scale")], "attn/softmax", axis=-1)
    mixed = b.node("Transpose", [b.node("MatMul", [share, parts["v"]], "attn/mix")], "attn/back", perm=[0, 2, 1, 3])
    attended = b.dense(b.node("Reshape", [mixed, merge], "attn/join"), "attn/out", width, width)
    x = b.node("Add", [x, attended], "attn/residual")
    hidden = b.dense(norm(x, "norm2"), "ffn/up", width, 4 * width)
    two, one, half = (b.weight(f"ffn/gelu/c{i}", np.array(v, np.float32)) for i, v in enumerate((2**0.5, 1.0, 0.5)))
    erf = b.node("Erf", [b.node("Div", [hidden, two], "ffn/gelu/Div")], "ffn/gelu/Erf")
    gate = b.node("Mul", [hidden, b.node("Add", [erf, one], "ffn/gelu/Add")], "ffn/gelu/Mul")
    hidden = b.node("Mul", [gate, half], "ffn/gelu/Mul_1")
    b.node("Add", [x, b.dense(hidden, "ffn/down", 4 * width, width)], "ffn/residual", out="y")
    b.output("y", [batch, length, width])
    return b.model()


# Name, weight shape [M, C/group, kh, kw] for 7 or 24 input channels, attributes: shapes off every granule of the chip.
CONV_ZOO: tuple[tuple[str, tuple[int, int, int, int], dict[str, Any]], ...] = (
    ("pointwise", (13, 7, 1, 1), {}),
    ("pointwise_stride3", (5, 7, 1, 1), {"strides": [3, 3]}),
    ("even_kernel", (17, 7, 2, 4), {"pads": [0, 1, 1, 2]}),
    ("row", (16, 7, 1, 7), {"pads": [0, 3, 0, 3]}),
    ("column", (9, 7, 5, 1), {"strides": [2, 1]}),
    ("asymmetric_pads", (33, 7, 3, 3), {"pads": [2, 0, 1, 3], "strides": [2, 3]}),
    ("dilated", (19, 7, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    ("wide_kernel", (8, 7, 11, 11), {"strides": [4, 4], "pads": [2, 2, 2, 2]}),
    ("same_upper", (12, 7, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("same_lower", (12, 7, 4, 4), {"auto_pad": "SAME_LOWER"}),
    ("whole_picture", (10, 7, 19, 23), {}),
    ("three_by_three", (64, 7, 3, 3), {"pads": [1, 1, 1, 1]}),
    ("grouped", (36, 8, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    ("depthwise", (24, 1, 3, 3), {"group": 24, "pads": [1, 1, 1, 1]}),
    ("depthwise_multiplier", (48, 1, 5, 5), {"group": 24, "strides": [2, 2]}),
    ("single_channel", (1, 24, 3, 3), {"pads": [1, 1, 1, 1]}),
)


def conv_zoo(seed: int = 0, batch: int | str = 1, bias: bool = True) -> onnx.ModelProto:
    """One Conv an output (named as in CONV_ZOO) on `odd` [batch, 7, 19, 23] or `even` [batch, 24, 19, 23]."""
    b = Builder("conv_zoo", seed)
    for name, channels in (("odd", 7), ("even", 24)):
        b.input(name, [batch, channels, 19, 23])
    for name, shape, attributes in CONV_ZOO:
        source = "odd" if shape[1] == 7 else "even"
        b.output(name, [batch, shape[0], f"{name}_h", f"{name}_w"])
        b.conv(source, f"zoo/{name}", shape, bias=bias, out=name, kernel_shape=shape[2:], **attributes)
    return b.model()


SMALL = {"residual_block": residual_block, "mlp": mlp, "encoder_block": encoder_block, "conv_zoo": conv_zoo}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    network = commands.add_parser("network")
    network.add_argument("name", choices=sorted(NETWORKS))
    network.add_argument("out", type=Path)
    network.add_argument("--batch", type=int, default=1)
    for name in ("resnet50", "light", *SMALL):
        command = commands.add_parser(name)
        if name == "light":
            command.add_argument("name", choices=light_model_names())
        command.add_argument("out", type=Path)
        command.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.command == "network":
        model = build_network(args.name, args.batch)
        save_model(model, args.out)
        parameters = int(model.metadata_props[0].value)
        print(f"{parameters / 1e6:.2f} million parameters, published {NETWORKS[args.name].million:.2f}")
    elif args.command in SMALL:
        save_model(SMALL[args.command](args.seed), args.out)
    else:
        make_light("resnet50" if args.command == "resnet50" else args.name, args.out, args.seed)
    print(f"wrote {args.out} ({args.out.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
