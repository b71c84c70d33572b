"""Kernels against the machine's multiply-add peak and against ONNX Runtime, side by side in one run.

    python tools/bench/kernels.py [peak] [conv] [matmul] [vector] [network] [--rounds N] [--threads N] [--json]

One-thread figures are CPU time of the calling thread, contenders interleaved, median (minimum) of the rounds; the
network on several threads is wall time. `ratio` is peer time / our time: above 1 we are faster. The share is our
median against the best peak at the register width in use, timed in the same rounds. Ours is fp16 at rest, the peer
fp32. --json prints one object with the load average, the peaks and all rows (times in us), and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from npusim.executor import Executor
from npusim.kernels import store
from npusim.kernels.conv import Conv2D, conv2d, pack_conv
from npusim.kernels.cpu import host
from npusim.kernels.desc import Call, task_table
from npusim.kernels.elementwise import View, elementwise
from npusim.kernels.epilogue import Epilogue
from npusim.kernels.matmul import Matrix, matmul, pack_matmul
from npusim.kernels.pool import Pool2D, pool2d
from npusim.kernels.rows import RowShape, softmax

# (channels in, size, channels out, kernel, stride, padding, times in ResNet-50)
RESNET_CONVS = [
    (3, 224, 64, 7, 2, 3, 1),
    (64, 56, 64, 1, 1, 0, 1),
    (64, 56, 64, 3, 1, 1, 3),
    (64, 56, 256, 1, 1, 0, 4),
    (256, 56, 64, 1, 1, 0, 2),
    (256, 56, 128, 1, 1, 0, 1),
    (128, 56, 128, 3, 2, 1, 1),
    (128, 28, 512, 1, 1, 0, 4),
    (256, 56, 512, 1, 2, 0, 1),
    (512, 28, 128, 1, 1, 0, 3),
    (128, 28, 128, 3, 1, 1, 3),
    (512, 28, 256, 1, 1, 0, 1),
    (256, 28, 256, 3, 2, 1, 1),
    (256, 14, 1024, 1, 1, 0, 6),
    (512, 28, 1024, 1, 2, 0, 1),
    (1024, 14, 256, 1, 1, 0, 5),
    (256, 14, 256, 3, 1, 1, 5),
    (1024, 14, 512, 1, 1, 0, 1),
    (512, 14, 512, 3, 2, 1, 1),
    (512, 7, 2048, 1, 1, 0, 3),
    (1024, 14, 2048, 1, 2, 0, 1),
    (2048, 7, 512, 1, 1, 0, 2),
    (512, 7, 512, 3, 1, 1, 2),
]
MATMULS = [(128, 768, 768), (128, 768, 3072), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (1, 2048, 1000)]
RNG = np.random.default_rng(0)
ROWS: list[dict[str, Any]] = []
"""What has been measured, for --json."""


def interleave(
    contenders: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], int]
) -> dict[str, tuple[float, float]]:
    """(median, minimum) in seconds of each contender, run in turn."""
    times: dict[str, list[int]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(rounds):
        for name, run in contenders.items():
            start = clock()
            run()
            times[name].append(clock() - start)
    return {name: (float(np.median(t)) / 1e9, min(t) / 1e9) for name, t in times.items()}


class Peak:
    """Register-only multiply-adds of one thread, as a contender to be timed beside the others.

    A run lasts about a millisecond: much shorter ones are mostly call overhead and give shares above one.
    """

    def __init__(self, lanes: int, iterations: int = 100_000) -> None:
        self._entry = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(store.kernel_address(f"peak:{lanes}"))
        self._out = np.zeros(64, np.float32)
        self._desc = np.array([iterations, self._out.ctypes.data], np.int64)
        self.flops = iterations * 48 * lanes * 2

    def __call__(self) -> None:
        self._entry(self._desc.ctypes.data, 0, 0)

    def gflops(self) -> float:
        """Best rate over a few rounds."""
        return self.flops / interleave({"peak": self}, 25, time.thread_time_ns)["peak"][1] / 1e9


def session(nodes: Sequence[object], inputs: dict[str, Sequence[int]], constants: Sequence[object], threads: int):
    """An ONNX Runtime session of a graph whose only output is y."""
    import onnxruntime as ort
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs.items()]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(list(nodes), "g", values, [out], list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def compare(
    name: str, calls: Sequence[Call], flops: float, peer: Callable[[], object], rounds: int, peak: Peak
) -> tuple[float, float]:
    """Print one line; returns the medians (ours, peer)."""
    table = task_table(calls)
    executor = Executor(1)
    contenders = {"ours": lambda: executor.run(table), "peer": peer, "peak": peak}
    result = interleave(contenders, rounds, time.thread_time_ns)
    (ours, ours_best), (theirs, theirs_best) = result["ours"], result["peer"]
    rate = ""
    row = {"name": name, "us": ours * 1e6, "peer_us": theirs * 1e6, "ratio": theirs / ours}
    ROWS.append(row | {"ratio_least": theirs_best / ours_best})
    if flops:
        share = flops / ours / (peak.flops / result["peak"][1])
        ROWS[-1] |= {"gflops": flops / ours / 1e9, "share": share}
        rate = f"{flops / ours / 1e9:5.0f} ({flops / ours_best / 1e9:5.0f}) GFLOP/s {share:4.0%} "
    times = f"{ours * 1e6:8.0f} ({ours_best * 1e6:8.0f}) us  {rate}"
    times += f"peer {theirs * 1e6:8.0f} ({theirs_best * 1e6:8.0f}) us"
    print(f"{name:28} {times}  ratio {theirs / ours:.2f} ({theirs_best / ours_best:.2f})", flush=True)
    return ours, theirs


def bench_conv(rounds: int, peak: Peak) -> None:
    from onnx import helper, numpy_helper

    total = [0.0, 0.0]
    for c, size, o, k, stride, pad, times in RESNET_CONVS:
        shape = Conv2D(1, c, size, size, o, (k, k), (stride, stride), (pad,) * 4)
        x = RNG.standard_normal((-(-c // 16), size, size, 16)).astype(np.float16)
        weights = RNG.standard_normal((o, c, k, k)).astype(np.float16)
        out = np.zeros((o // 16, *shape.out_hw, 16), np.float16)
        task = conv2d(shape, x.ctypes.data, pack_conv(shape, weights), out.ctypes.data, ("f16", "f16"))
        node = helper.make_node(
            "Conv", ["x", "w"], ["y"], kernel_shape=[k, k], strides=[stride, stride], pads=[pad] * 4
        )
        constant = numpy_helper.from_array(weights.astype(np.float32), "w")
        peer = session([node], {"x": (1, c, size, size)}, [constant], 1)
        feed = {"x": RNG.standard_normal((1, c, size, size)).astype(np.float32)}
        label = f"conv {k}x{k}/{stride} {c}->{o} @{size}"
        pair = compare(label, [task], 2 * shape.macs, lambda p=peer, f=feed: p.run(None, f), rounds, peak)
        total = [t + p * times for t, p in zip(total, pair, strict=True)]
    print(
        f"all ResNet-50 convolutions: {total[0] * 1e3:.1f} ms, peer {total[1] * 1e3:.1f} ms, "
        f"ratio {total[1] / total[0]:.2f}"
    )


def bench_matmul(rounds: int, peak: Peak) -> None:
    from onnx import helper, numpy_helper

    for m, k, n in MATMULS:
        a, b = RNG.standard_normal((m, k)).astype(np.float16), RNG.standard_normal((k, n)).astype(np.float16)
        out = np.zeros((m, n), np.float16)
        left, to = Matrix.nd(a.ctypes.data, "f16", k), Matrix.nd(out.ctypes.data, "f16", n)
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        peer = session([node], {"x": (m, k)}, [numpy_helper.from_array(b.astype(np.float32), "w")], 1)
        feed = {"x": a.astype(np.float32)}
        task = matmul(m, k, n, left, pack_matmul(b), to)
        compare(f"matmul {m}x{k}x{n}", [task], 2.0 * m * k * n, lambda p=peer, f=feed: p.run(None, f), rounds, peak)


def bench_vector(rounds: int, peak: Peak) -> None:
    from onnx import helper

    shape = (64, 8192)
    x, y = (RNG.standard_normal(shape).astype(np.float16) for _ in range(2))
    out = np.zeros(shape, np.float16)
    view = [View.dense(t.ctypes.data, "f16", shape) for t in (x, y, out)]
    ours = {
        "Add": elementwise("add(x0,x1)", view[:2], view[2], shape),
        "Relu": elementwise("relu(x0)", view[:1], view[2], shape),
        "Sigmoid": elementwise("sigmoid(x0)", view[:1], view[2], shape),
        "Erf": elementwise("erf(x0)", view[:1], view[2], shape),
        "Exp": elementwise("exp(x0)", view[:1], view[2], shape),
        "Softmax": softmax(*RowShape.axis(shape, 1, (x.ctypes.data, "f16"), (out.ctypes.data, "f16"))),
    }
    for name, task in ours.items():
        names = ["x", "z"] if name == "Add" else ["x"]
        peer = session([helper.make_node(name, names, ["y"])], dict.fromkeys(names, shape), [], 1)
        feed = {n: x.astype(np.float32) for n in names}
        compare(
            f"{name} of {shape[0] * shape[1]}",
            [task],
            0,
            lambda peer=peer, feed=feed: peer.run(None, feed),
            rounds,
            peak,
        )


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


def bench_network(rounds: int, threads: int) -> None:
    """ResNet-50, batch 1, 224 x 224: values agree with the peer, CPU time on one thread, wall time on several."""
    network = Network()
    out = network.head(*network.build())
    image = RNG.standard_normal((3, 224, 224)).astype(np.float16)
    network.image[0, :, :, :3] = image.transpose(1, 2, 0)
    start = time.perf_counter()
    table = task_table(network.calls)
    print(f"network: {len(table)} tasks, kernels ready in {time.perf_counter() - start:.2f} s")
    feed = {"x": image[None].astype(np.float32)}
    for count, clock, label in ((1, time.thread_time_ns, "CPU"), (threads, time.perf_counter_ns, "wall")):
        executor = Executor(count)
        peer = session(network.nodes, {"x": (1, 3, 224, 224)}, network.constants, count)
        result = interleave(
            {"ours": lambda e=executor: e.run(table), "peer": lambda p=peer: p.run(None, feed)}, rounds, clock
        )
        want = peer.run(None, feed)[0]
        error = np.abs(out - want).max() / np.abs(want).max()
        (ours, best), (theirs, their_best) = result["ours"], result["peer"]
        row = {"name": f"ResNet-50 {count} thread(s)", "us": ours * 1e6, "peer_us": theirs * 1e6}
        ROWS.append(row | {"ratio": theirs / ours, "ratio_least": their_best / best, "error": float(error)})
        print(
            f"ResNet-50 {count} thread(s), {label}: {ours * 1e3:.1f} ({best * 1e3:.1f}) ms, peer {theirs * 1e3:.1f} "
            f"({their_best * 1e3:.1f}) ms, ratio {theirs / ours:.2f} ({their_best / best:.2f}), error {error:.1e}"
        )
        executor.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="peak conv matmul vector network (all)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with contextlib.redirect_stdout(io.StringIO() if options.json else sys.stdout):
        machine = run(options)
    if options.json:
        print(json.dumps(machine | {"rows": ROWS}, indent=2))


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print what was asked for; returns facts of the machine."""
    what = options.what or ["conv", "matmul", "vector", "network"]
    peaks = {lanes: Peak(lanes) for lanes in (8, 16)}
    peak = peaks[16] if host().wide else peaks[8]
    machine = {"cpu": host().name, "load": os.getloadavg()[0], "peak_gflops": peak.gflops()}
    rates = f"256-bit {peaks[8].gflops():.0f}, 512-bit {peaks[16].gflops():.0f} GFLOP/s"
    print(f"CPU {machine['cpu']}, load {machine['load']:.1f}; multiply-add peak of one thread: {rates}")
    if "conv" in what:
        bench_conv(options.rounds, peak)
    if "matmul" in what:
        bench_matmul(options.rounds, peak)
    if "vector" in what:
        bench_vector(options.rounds, peak)
    if "network" in what:
        bench_network(options.rounds, options.threads)
    return machine


if __name__ == "__main__":
    main()
