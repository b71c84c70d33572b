"""ResNet-50 of random weights as calls of ours and as an ONNX graph: the host kernels without compiler and session.

    python tools/bench/network.py [--rounds N] [--threads N] [--json]

Batch 1, 224 x 224, fp16 at rest against the peer's fp32; values are compared. CPU time on one thread, wall time on
several; medians (minima). Every convolution is direct.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from npusim.executor import Executor
from npusim.kernels.conv import Conv2D, conv2d, pack_conv
from npusim.kernels.desc import Call, task_table
from npusim.kernels.epilogue import Epilogue
from npusim.kernels.matmul import Matrix, matmul, pack_matmul
from npusim.kernels.pool import Pool2D, pool2d
from tools.bench.measure import WORKERS_REST_S, Report, interleave, session

RNG = np.random.default_rng(0)


class Network:
    """ResNet-50 of random weights, built twice: as calls of ours and as an ONNX graph."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.nodes: list[object] = []
        self.constants: list[object] = []
        self.held: list[np.ndarray] = []
        self.image = self.tensor(1, 224)

    def tensor(self, c1: int, size: int) -> np.ndarray:
        x = np.zeros((c1, size, size, 16), np.float16)
        self.held.append(x)
        return x

    def conv(
        self,
        x: np.ndarray,
        name: str,
        c: int,
        o: int,
        k: int,
        stride: int,
        relu: bool,
        add: np.ndarray | None,
        other: str,
    ):
        """One convolution; `add`/`other` name the residual, summed in place before the activation."""
        from onnx import helper, numpy_helper

        size, pad = x.shape[1], k // 2
        shape = Conv2D(1, c, size, size, o, (k, k), (stride, stride), (pad,) * 4)
        scale = np.sqrt((2.0 if relu else 0.5) / (c * k * k))
        weights = (RNG.standard_normal((o, c, k, k)) * scale).astype(np.float16)
        out = add if add is not None else self.tensor(o // 16, shape.out_hw[0])
        rule = Epilogue(0 if add is None else add.ctypes.data, "relu" if relu else "none")
        packed = pack_conv(shape, weights)
        self.calls.append(conv2d(shape, x.ctypes.data, packed, out.ctypes.data, ("f16", "f16"), rule))
        number = len(self.constants)
        self.constants.append(numpy_helper.from_array(weights.astype(np.float32), f"w{number}"))
        label = f"c{number}"
        attributes = {"kernel_shape": [k, k], "strides": [stride, stride], "pads": [pad] * 4}
        self.nodes.append(helper.make_node("Conv", [name, f"w{number}"], [label], **attributes))
        for kind, inputs in (("Add", [label, other]), ("Relu", [label])):
            if (kind == "Add" and other) or (kind == "Relu" and relu):
                after = f"{label}{kind}"
                self.nodes.append(helper.make_node(kind, [label, *inputs[1:]], [after]))
                label = after
        return out, label

    def build(self) -> tuple[np.ndarray, str]:
        from onnx import helper

        x, name = self.conv(self.image, "x", 3, 64, 7, 2, True, None, "")
        out = self.tensor(4, 56)
        window = Pool2D(4, 112, 112, (3, 3), (2, 2), (1, 1, 1, 1))
        self.calls.append(pool2d(window, "max", x.ctypes.data, out.ctypes.data, "f16"))
        self.nodes.append(
            helper.make_node("MaxPool", [name], ["pool"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        )
        x, name, c = out, "pool", 64
        for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
            for block in range(blocks):
                stride = 2 if block == 0 and stage else 1
                side, side_name = x, name
                if block == 0:
                    side, side_name = self.conv(x, name, c, 4 * width, 1, stride, False, None, "")
                y, label = self.conv(x, name, c, width, 1, 1, True, None, "")
                y, label = self.conv(y, label, width, width, 3, stride, True, None, "")
                x, name = self.conv(y, label, width, 4 * width, 1, 1, True, side, side_name)
                c = 4 * width
        return x, name

    def head(self, x: np.ndarray, name: str) -> np.ndarray:
        from onnx import helper, numpy_helper

        pooled, out = self.tensor(128, 1), np.zeros((1, 1000), np.float16)
        self.calls.append(pool2d(Pool2D(128, 7, 7, (7, 7)), "avg", x.ctypes.data, pooled.ctypes.data, "f16"))
        weights = (RNG.standard_normal((2048, 1000)) * 0.02).astype(np.float16)
        left, to = Matrix.nd(pooled.ctypes.data, "f16", 2048), Matrix.nd(out.ctypes.data, "f16", 1000)
        self.calls.append(matmul(1, 2048, 1000, left, pack_matmul(weights), to))
        self.constants.append(numpy_helper.from_array(weights.astype(np.float32), "fc"))
        self.nodes += [
            helper.make_node("GlobalAveragePool", [name], ["g"]),
            helper.make_node("Flatten", ["g"], ["f"]),
            helper.make_node("MatMul", ["f", "fc"], ["y"]),
        ]
        return out


def bench_network(report: Report, rounds: int, threads: int) -> None:
    """ResNet-50, batch 1, 224 x 224: values agree with the peer, CPU time on one thread, wall time on several."""
    network = Network()
    out = network.head(*network.build())
    image = RNG.standard_normal((3, 224, 224)).astype(np.float16)
    network.image[0, :, :, :3] = image.transpose(1, 2, 0)
    start = time.perf_counter()
    table = task_table(network.calls)
    print(f"network: {len(table)} tasks, kernels ready in {time.perf_counter() - start:.2f} s")
    feed = {"x": image[None].astype(np.float32)}
    ways = ((1, time.thread_time_ns, "CPU", 0.0), (threads, time.perf_counter_ns, "wall", WORKERS_REST_S))
    for count, clock, label, pause_s in ways:
        executor = Executor(count)
        peer = session(network.nodes, {"x": (1, 3, 224, 224)}, network.constants, count)
        runs = {"ours": lambda e=executor: e.run(table), "peer": lambda p=peer: p.run(None, feed)}
        result = interleave(runs, rounds, clock, pause_s)
        want = peer.run(None, feed)[0]
        error = np.abs(out - want).max() / np.abs(want).max()
        (ours, best), (theirs, their_best) = result["ours"], result["peer"]
        row = {"name": f"ResNet-50 {count} thread(s)", "us": ours * 1e6, "peer_us": theirs * 1e6}
        row |= {"ratio": theirs / ours, "ratio_least": their_best / best, "error": float(error)}
        text = (
            f"ResNet-50 {count} thread(s), {label}: {ours * 1e3:.1f} ({best * 1e3:.1f}) ms, peer {theirs * 1e3:.1f} "
            f"({their_best * 1e3:.1f}) ms, ratio {theirs / ours:.2f} ({their_best / best:.2f}), error {error:.1e}"
        )
        report.line(row, text, {"ratio": 1.0})
        executor.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = Report()
    with contextlib.redirect_stdout(io.StringIO() if options.json else sys.stdout):
        bench_network(report, options.rounds, options.threads)
    if options.json:
        print(json.dumps({"load": os.getloadavg()[0], "rows": report.rows}, indent=2))


if __name__ == "__main__":
    main()
