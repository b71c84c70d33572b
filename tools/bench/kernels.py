"""Kernels against the machine's multiply-add peak and bandwidth, ONNX Runtime, torch (if installed) and NumPy.

    python tools/bench/kernels.py [conv] [depthwise] [matmul] [vector] [rows] [bandwidth] [--rounds N] [--json]

CPU time of the calling thread, contenders interleaved in one run, medians (minima) of the rounds. `ratio` is peer time
/ our time: above 1 we are faster; `torch` is that of the fastest of its layouts. The share is our median against the
peak at the register width in use, timed in the same rounds. `bandwidth` is against the fastest of four copies: NumPy's
and our own past the caches, of the arrays of the line, which may lie in a large cache in part, and of arrays that no
cache holds (four times the last level), whose best is memory's. Ours is fp16 at rest but where a line says f32, the
peers fp32. Every line ends in its bounds and `ok` or `MISS`.
--json prints one object with load average, peaks and all rows (times in us), and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from npusim.executor import Executor
from npusim.kernels.conv import Conv2D, conv2d, pack_conv
from npusim.kernels.cpu import host, last_cache_bytes
from npusim.kernels.desc import Call, task_table
from npusim.kernels.elementwise import View, elementwise
from npusim.kernels.matmul import Matrix, matmul, pack_matmul
from npusim.kernels.rows import RowShape, layer_norm, softmax
from npusim.kernels.weights import aligned
from tools.bench.measure import Peak, Report, interleave, session

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
MATMULS = [
    (128, 768, 768),
    (128, 768, 3072),
    (128, 3072, 768),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (1, 2048, 1000),
]
DEPTHWISE = [(32, 112, 3, 1), (64, 56, 3, 2), (144, 28, 3, 1), (512, 14, 3, 1), (256, 14, 5, 1)]
ROWS = [
    ("Softmax", 1 << 18, 2),
    ("Softmax", 9408, 49),
    ("Softmax", 1536, 128),
    ("Softmax", 2364, 197),
    ("Softmax", 512, 768),
    ("LayerNormalization", 3136, 96),
    ("LayerNormalization", 197, 768),
    ("LayerNormalization", 128, 1000),
]
LARGE = (1024, 8192)  # eight million elements
RNG = np.random.default_rng(0)
Contenders = dict[str, Callable[[], object]]


class Bench:
    """One run: what is measured against which peak, and the lines so far."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.report, self.executor = rounds, Report(), Executor(1)
        self.peaks = {lanes: Peak(lanes) for lanes in (8, 16)}
        self.peak = self.peaks[16] if host().wide else self.peaks[8]

    def compare(self, name: str, call: Call, flops: float, peers: Contenders, bounds: dict[str, float]) -> None:
        """Time a call beside its peers and print the line; `ratio` is against the peer called onnxruntime."""
        table = task_table([call])
        contenders: Contenders = {"ours": lambda: self.executor.run(table), **peers, "peak": self.peak}
        result = interleave(contenders, self.rounds, time.thread_time_ns)
        ours, best = result["ours"]
        row: dict[str, Any] = {"name": name, "us": ours * 1e6, "least_us": best * 1e6}
        text = f"{name:28} {ours * 1e6:8.0f} ({best * 1e6:8.0f}) us"
        if flops:
            row |= {"gflops": flops / ours / 1e9, "share": flops / ours / (self.peak.flops / result["peak"][0])}
            text += f" {row['gflops']:5.0f} GFLOP/s {row['share']:4.0%}"
        torch = [result[peer] for peer in peers if peer.startswith("torch")]
        named = {"ratio": result.get("onnxruntime"), "numpy": result.get("numpy"), "torch": min(torch, default=None)}
        for key, pair in named.items():
            if pair is not None:
                row |= {key: pair[0] / ours, f"{key}_least": pair[1] / best}
                text += f"  {key} {row[key]:.2f} ({row[f'{key}_least']:.2f})"
        self.report.line(row, text, {key: bound for key, bound in bounds.items() if key in row})


def torch_or_none() -> Any:
    """torch on one thread, or None where it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    torch.set_num_threads(1)
    return torch


def torch_convolution(x: np.ndarray, weights: np.ndarray, stride: int, pad: int, groups: int) -> Contenders:
    """A convolution in torch's three layouts: NCHW, channels last, and packed for oneDNN."""
    torch = torch_or_none()
    if torch is None:
        return {}
    image, filters = torch.from_numpy(x), torch.from_numpy(weights)
    last = image.contiguous(memory_format=torch.channels_last)
    filters_last = filters.contiguous(memory_format=torch.channels_last)
    conv, options = torch.nn.functional.conv2d, {"stride": stride, "padding": pad, "groups": groups}
    runs: Contenders = {
        "torch NCHW": lambda: conv(image, filters, **options),
        "torch channels last": lambda: conv(last, filters_last, **options),
    }
    if groups == 1:
        from torch.utils import mkldnn

        outputs, inputs, height, width = weights.shape
        layer = torch.nn.Conv2d(inputs, outputs, (height, width), stride, pad, bias=False).eval()
        layer.weight.data = filters
        packed, inside = mkldnn.to_mkldnn(layer), image.to_mkldnn()
        runs["torch packed"] = lambda: packed(inside)

    def without_gradients(run: Callable[[], object]) -> Callable[[], object]:
        return torch.inference_mode()(run)

    return {name: without_gradients(run) for name, run in runs.items()}


def convolution(bench: Bench, c: int, size: int, o: int, k: int, stride: int, pad: int, groups: int = 1) -> None:
    """One line: a direct convolution against the whole run of a one-node session, and torch."""
    from onnx import helper, numpy_helper

    shape = Conv2D(1, c, size, size, o, (k, k), (stride, stride), (pad,) * 4, groups=groups)
    x = RNG.standard_normal((-(-c // 16), size, size, 16)).astype(np.float16)
    weights = RNG.standard_normal((o, c // groups, k, k)).astype(np.float16)
    out = np.zeros((-(-o // 16), *shape.out_hw, 16), np.float16)
    call = conv2d(shape, x.ctypes.data, pack_conv(shape, weights), out.ctypes.data, ("f16", "f16"))
    attributes = {"kernel_shape": [k, k], "strides": [stride] * 2, "pads": [pad] * 4, "group": groups}
    wide = weights.astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    peer = session([node], {"x": (1, c, size, size)}, [numpy_helper.from_array(wide, "w")], 1)
    feed = {"x": RNG.standard_normal((1, c, size, size)).astype(np.float32)}
    peers = {"onnxruntime": lambda: peer.run(None, feed), **torch_convolution(feed["x"], wide, stride, pad, groups)}
    deep = c // groups * k * k
    bounds = {"share": 0.75} if deep >= 256 else {}
    if (k, stride) != (3, 1) or groups > 1:  # 3x3 windows of stride 1 are held to their bound as Winograd convolutions
        bounds |= {"ratio": 1.3 if groups > 1 else 1.0, "torch": 1.0}
    label = f"depthwise {k}x{k}/{stride} {c} @{size}" if groups > 1 else f"conv {k}x{k}/{stride} {c}->{o} @{size}"
    bench.compare(label, call, 0 if groups > 1 else 2 * shape.macs, peers, bounds)


def bench_conv(bench: Bench) -> None:
    """The convolutions of ResNet-50, and the ratio of their sum."""
    total = [0.0, 0.0]
    for c, size, o, k, stride, pad, times in RESNET_CONVS:
        convolution(bench, c, size, o, k, stride, pad)
        row = bench.report.rows[-1]
        total = [total[0] + times * row["us"], total[1] + times * row["us"] * row["ratio"]]
    row = {"name": "all ResNet-50 convolutions", "us": total[0], "ratio": total[1] / total[0]}
    text = f"{row['name']}: {total[0] / 1e3:.1f} ms, ratio {row['ratio']:.2f}"
    bench.report.line(row, text, {"ratio": 1.0})


def bench_depthwise(bench: Bench) -> None:
    """Depthwise convolutions of mobile networks."""
    for c, size, k, stride in DEPTHWISE:
        convolution(bench, c, size, c, k, stride, k // 2, c)


def bench_matmul(bench: Bench) -> None:
    """Products with a constant B."""
    from onnx import helper, numpy_helper

    torch = torch_or_none()
    for m, k, n in MATMULS:
        a, b = RNG.standard_normal((m, k)).astype(np.float16), RNG.standard_normal((k, n)).astype(np.float16)
        out, left_wide, right_wide = np.zeros((m, n), np.float16), a.astype(np.float32), b.astype(np.float32)
        left, to = Matrix.nd(a.ctypes.data, "f16", k), Matrix.nd(out.ctypes.data, "f16", n)
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        peer = session([node], {"x": (m, k)}, [numpy_helper.from_array(right_wide, "w")], 1)
        peers: Contenders = {
            "onnxruntime": lambda p=peer, f=left_wide: p.run(None, {"x": f}),
            "numpy": lambda f=left_wide, g=right_wide: f @ g,
        }
        if torch is not None:
            f, g = torch.from_numpy(left_wide), torch.from_numpy(right_wide)
            peers["torch mm"] = lambda f=f, g=g, torch=torch: torch.mm(f, g)
        square = {"share": 0.75, "numpy": 0.95} if m == k == n else {"share": 0.75} if m > 1 else {}
        task = matmul(m, k, n, left, pack_matmul(b), to)
        bench.compare(f"matmul {m}x{k}x{n}", task, 2.0 * m * k * n, peers, {"ratio": 1.0, "torch": 1.0, **square})


def bench_vector(bench: Bench) -> None:
    """Half a million elements: within the caches. Ours once more in fp32, where a function is long."""
    from onnx import helper

    shape = (64, 8192)
    arrays = [RNG.standard_normal(shape).astype(np.float16) for _ in range(3)]
    wide = [a.astype(np.float32) for a in arrays]
    halves, floats = vector_tasks("f16", arrays, shape), vector_tasks("f32", wide, shape)
    lines = {**halves, **{f"{name} f32": floats[name] for name in ("Softmax", "Sigmoid", "Tanh", "Erf", "Exp", "Gelu")}}
    for line, task in lines.items():
        name, _, element = line.partition(" ")
        names = ["x", "z"] if name == "Add" else ["x"]
        domain = {"domain": "com.microsoft"} if name == "Gelu" else {}
        node = helper.make_node(name, names, ["y"], **domain)
        peer, feed = session([node], dict.fromkeys(names, shape), [], 1), dict.fromkeys(names, wide[0])
        peers = {"onnxruntime": lambda p=peer, f=feed: p.run(None, f)}
        bench.compare(f"{name} of {wide[0].size} {element}".strip(), task, 0, peers, {"ratio": 1.0})


def bench_rows(bench: Bench) -> None:
    """Softmax and layer norm of many rows, as attention and transformers have them."""
    from onnx import helper, numpy_helper

    for operator, count, length in ROWS:
        wide = RNG.standard_normal((count, length), np.float32)
        gain = RNG.standard_normal((2, length)).astype(np.float32)
        named = [numpy_helper.from_array(gain[i], name) for i, name in enumerate(("g", "b"))]
        names = ["x"] if operator == "Softmax" else ["x", "g", "b"]
        node = helper.make_node(operator, names, ["y"], axis=-1)
        peer = session([node], {"x": wide.shape}, named[: len(names) - 1], 1)
        peers = {"onnxruntime": lambda p=peer, f=wide: p.run(None, {"x": f})}
        for element, dtype in (("f16", np.float16), ("f32", np.float32)):
            x, gamma, beta = aligned(wide.astype(dtype)), *(aligned(t) for t in gain)  # constants as plans keep them
            out = aligned(np.empty(x.size, dtype))
            places = RowShape.axis(wide.shape, 1, (x.ctypes.data, element), (out.ctypes.data, element))
            if operator == "Softmax":
                task = softmax(*places)
            else:
                task = layer_norm(*places, gamma.ctypes.data, beta.ctypes.data, "f32", 1e-5)
            name = f"{operator.removesuffix('alization')} {count} x {length} {element}"
            bench.compare(name, task, 0, peers, {"ratio": 1.0})


def vector_tasks(element: str, arrays: Sequence[np.ndarray], shape: tuple[int, int]) -> dict[str, Call]:
    """Operators over x, y and an output, by their ONNX names."""
    x, _y, out = arrays
    view = [View.dense(t.ctypes.data, element, shape) for t in arrays]
    return {
        "Add": elementwise("add(x0,x1)", view[:2], view[2], shape),
        "Softmax": softmax(*RowShape.axis(shape, 1, (x.ctypes.data, element), (out.ctypes.data, element))),
        **{
            name: elementwise(f"{name.lower()}(x0)", view[:1], view[2], shape)
            for name in ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Gelu")
        },
    }


def bench_bandwidth(bench: Bench) -> None:
    """Eight million elements: bytes read and written once in our time, against those of the fastest copy.

    `arithmetic` is the time of as many elements of one row, again and again in the caches, over that of the line: what
    is near 1 waits for arithmetic, whatever memory gives.
    """
    memory = memory_copies(bench)
    for element, dtype in (("f16", np.float16), ("f32", np.float32)):
        x, y, out = (aligned(RNG.standard_normal(LARGE, np.float32).astype(dtype)).reshape(LARGE) for _ in range(3))
        calls = vector_calls(element, (x, y, out), LARGE)
        rows = vector_calls(element, (x, y, out), (1, LARGE[1]))
        runs: Contenders = {name: runner(bench, [call]) for name, call in calls.items()}
        runs["numpy"] = lambda o=out, x=x: np.copyto(o, x)
        runs |= memory | {f"{name} in cache": runner(bench, [call] * LARGE[0]) for name, call in rows.items()}
        seconds = {n: median for n, (median, _) in interleave(runs, bench.rounds, time.thread_time_ns).items()}
        rates = {n: x.nbytes * (3 if n == "Add" else 2) / seconds[n] / 1e9 for n in (*calls, "numpy")}
        from_memory = max(memory_bytes() * 2 / seconds[n] / 1e9 for n in memory)
        most = max(from_memory, rates["copy"], rates["numpy"])
        for name in [n for n in calls if n != "copy"]:
            row = {
                "name": f"{name} of {x.size} {element}",
                "us": seconds[name] * 1e6,
                "bandwidth": rates[name] / most,
                "of_memory": rates[name] / from_memory,
                "arithmetic": seconds[f"{name} in cache"] / seconds[name],
            }
            rate = f"{rates[name]:5.1f} GB/s, copy {most:5.1f}: {row['bandwidth']:4.0%}"
            rate += f"; of memory's {row['of_memory']:4.0%}; arithmetic {row['arithmetic']:4.0%}"
            text = f"{row['name']:28} {row['us']:8.0f} us {rate}"
            bench.report.line(row, text, {"bandwidth": 0.8})


def runner(bench: Bench, calls: Sequence[Call]) -> Callable[[], object]:
    """Runs calls one after the other on this thread, and keeps them: the table points to their fields."""
    table = task_table(calls)

    def run() -> object:
        bench.executor.run(table)
        return calls

    return run


def memory_bytes() -> int:
    """Bytes of an array that no cache holds: four times the last level, as is the rule for measuring memory."""
    return 4 * last_cache_bytes()


def memory_copies(bench: Bench) -> Contenders:
    """Copies between two such arrays: NumPy's, and ours past the caches."""
    source, target = (aligned(np.ones(memory_bytes() // 4, np.float32)) for _ in range(2))
    views = [View.dense(t.ctypes.data, "f32", source.shape) for t in (source, target)]
    own = runner(bench, [elementwise("x0", views[:1], views[1], source.shape)])
    return {"memory past caches": own, "memory": lambda: np.copyto(target, source)}


def vector_calls(element: str, arrays: Sequence[np.ndarray], shape: tuple[int, int]) -> dict[str, Call]:
    """Operators over the first elements of x, y and an output, rows along the last axis."""
    x, y, out = arrays
    view = [View.dense(t.ctypes.data, element, shape) for t in (x, y, out)]
    places = (x.ctypes.data, element), (out.ctypes.data, element)
    gain = aligned(np.ones(shape[1], np.float32))  # as plans keep constants
    norm = layer_norm(*RowShape.axis(shape, 1, *places), gain.ctypes.data, gain.ctypes.data, "f32", 1e-5)
    norm.keep.append(gain)
    return {
        "copy": elementwise("x0", view[:1], view[2], shape),
        "Add": elementwise("add(x0,x1)", view[:2], view[2], shape),
        "Relu": elementwise("relu(x0)", view[:1], view[2], shape),
        "Sigmoid": elementwise("sigmoid(x0)", view[:1], view[2], shape),
        "Softmax": softmax(*RowShape.axis(shape, 1, *places)),
        "LayerNorm": norm,
    }


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "conv": bench_conv,
    "depthwise": bench_depthwise,
    "matmul": bench_matmul,
    "vector": bench_vector,
    "rows": bench_rows,
    "bandwidth": bench_bandwidth,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help=" ".join(SECTIONS) + " (all)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    bench = Bench(options.rounds)
    with contextlib.redirect_stdout(io.StringIO() if options.json else sys.stdout):
        machine = {"cpu": host().name, "load": os.getloadavg()[0], "peak_gflops": bench.peak.gflops()}
        rates = ", ".join(f"{lanes * 32}-bit {peak.gflops():.0f}" for lanes, peak in bench.peaks.items())
        print(f"CPU {machine['cpu']}, load {machine['load']:.1f}; multiply-add peak of one thread: {rates} GFLOP/s")
        for name in options.what or SECTIONS:
            SECTIONS[name](bench)
        bench.report.summary()
    if options.json:
        print(json.dumps(machine | {"rows": bench.report.rows}, indent=2))


if __name__ == "__main__":
    main()
