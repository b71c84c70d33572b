"""Winograd convolutions against direct ones and ONNX Runtime, side by side in one run.

    python tools/bench/winograd.py [--rounds N] [--shape C,H,O ...]

CPU time of one thread, contenders interleaved, median of the rounds. Ours is fp16 at rest; `F2`/`F4` keep the
transformed filter in fp32 (as this computer may compute a direct task), `F2h`/`F4h` round filter and image to fp16 (as
a task that names the algorithm). Figures are microseconds; ratios are direct time / Winograd time. Errors are relative
L2 distances from ONNX Runtime's fp32 result, rounding of ours to fp16 included.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from metadef.winograd import scale_of, transform_filter
from npusim.executor import Executor
from npusim.kernels.conv import Conv2D, conv2d, pack_conv
from npusim.kernels.desc import Call, task_table
from npusim.kernels.winograd import pack_winograd, winograd2d
from tools.bench.measure import interleave, session

SHAPES = [(64, 56, 64), (128, 28, 128), (256, 14, 256), (512, 7, 512), (64, 224, 64), (256, 56, 256), (512, 28, 512)]
RNG = np.random.default_rng(0)


def calls_of(shape: Conv2D, x: np.ndarray, filters: np.ndarray, out: np.ndarray) -> dict[str, Call]:
    """The contenders as calls that write to ``out``."""
    places = (x.ctypes.data, out.ctypes.data)
    calls = {"direct": conv2d(shape, places[0], pack_conv(shape, filters), places[1], ("f16", "f16"))}
    for m in (2, 4):
        for name, half in (("", False), ("h", True)):
            planes = transform_filter(filters if half else filters.astype(np.float32), m)
            packed, rounding = pack_winograd(planes, m), "half" if half else "none"
            calls[f"F{m}{name}"] = winograd2d(
                shape, places[0], packed, places[1], ("f16", "f16"), None, rounding, scale_of(m, half)
            )
    return calls


def bench(channels: int, size: int, outputs: int, rounds: int) -> None:
    """One line of the table."""
    from onnx import helper, numpy_helper

    shape = Conv2D(1, channels, size, size, outputs, (3, 3), pads=(1, 1, 1, 1))
    x = np.maximum(RNG.standard_normal((1, -(-channels // 16), size, size, 16)), 0).astype(np.float16)
    x.reshape(-1, 16)[:, channels % 16 or 16 :] = 0
    filters = (RNG.standard_normal((outputs, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float16)
    out = np.zeros((1, -(-outputs // 16), size, size, 16), np.float16)
    calls = calls_of(shape, x, filters, out)
    executor = Executor(1)
    runs: dict[str, Callable[[], object]] = {}
    results = {}
    for name, call in calls.items():
        table = task_table([call])
        runs[name] = lambda table=table: executor.run(table)
        runs[name]()
        results[name] = out.astype(np.float64)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    weight = numpy_helper.from_array(filters.astype(np.float32), "w")
    peer = session([node], {"x": (1, channels, size, size)}, [weight], 1)
    feed = x.transpose(0, 1, 4, 2, 3).reshape(1, -1, size, size)[:, :channels].astype(np.float32)
    exact = np.asarray(peer.run(None, {"x": feed})[0], np.float64)
    runs["ort"] = lambda: peer.run(None, {"x": feed})
    times = interleave(runs, rounds, time.thread_time_ns)
    base = times["direct"][0]
    line = f"{channels}x{size}x{size}->{outputs}"
    print(f"{line:20} direct {base * 1e6:7.0f} us, ort {times['ort'][0] * 1e6:7.0f} us", end="")
    for name in calls:
        got = results[name].transpose(0, 1, 4, 2, 3).reshape(1, -1, size, size)[:, :outputs]
        error = np.linalg.norm(got - exact) / np.linalg.norm(exact)
        text = f"{name} error {error:.1e}" if name == "direct" else f"{name} {base / times[name][0]:.2f} ({error:.1e})"
        print(f" | {text}", end="")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shape", action="append", metavar="C,H,O")
    arguments = parser.parse_args()
    shapes = [tuple(map(int, text.split(","))) for text in arguments.shape or ()] or SHAPES
    for channels, size, outputs in shapes:
        bench(channels, size, outputs, arguments.rounds)


if __name__ == "__main__":
    main()
