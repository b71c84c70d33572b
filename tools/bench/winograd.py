"""Winograd convolutions against direct ones and ONNX Runtime, side by side in one run.

    python tools/bench/winograd.py [--rounds N] [--shape C,H,O ...] [--json]

CPU time of one thread, contenders interleaved, median of the rounds. Ours is fp16 at rest; `F2`/`F4` keep the
transformed filter in fp32 (as this computer may compute a direct task), `F2h`/`F4h` round filter and image to fp16 (as
a task that names the algorithm); `exact` is the faster of direct and F2. Ratios are ONNX Runtime's time / ours. Errors
are relative L2 distances from ONNX Runtime's fp32 result, rounding of ours to fp16 included.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from metadef.winograd import scale_of, transform_filter
from npusim.executor import Executor
from npusim.kernels.conv import Conv2D, conv2d, pack_conv
from npusim.kernels.desc import Call, task_table
from npusim.kernels.winograd import pack_winograd, winograd2d
from tools.bench.measure import Report, interleave, session

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


def bounds_of(size: int) -> dict[str, float]:
    """What a layer of the benchmarked networks must reach against ONNX Runtime, by edge of its image."""
    if size in (28, 56):
        return {"F2": 1.4, "F4": 2.0}
    return {14: {"exact": 1.3}, 7: {"exact": 1.0}}.get(size, {})


def bench(report: Report, channels: int, size: int, outputs: int, rounds: int) -> None:
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
    base, theirs = times["direct"][0], times["ort"][0]
    row: dict[str, Any] = {
        "name": f"{channels}x{size}x{size}->{outputs}",
        "direct_us": base * 1e6,
        "ort_us": theirs * 1e6,
    }
    row["exact"] = theirs / min(base, times["F2"][0])
    text = f"{row['name']:20} direct {base * 1e6:7.0f} us, ort {theirs * 1e6:7.0f} us"
    for name in calls:
        got = results[name].transpose(0, 1, 4, 2, 3).reshape(1, -1, size, size)[:, :outputs]
        row |= {f"{name}_error": np.linalg.norm(got - exact) / np.linalg.norm(exact), name: theirs / times[name][0]}
        text += f" | {name} {row[name]:.2f} ({row[f'{name}_error']:.1e})"
    report.line(row, text, bounds_of(size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shape", action="append", metavar="C,H,O")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    shapes = [tuple(map(int, text.split(","))) for text in arguments.shape or ()] or SHAPES
    report = Report()
    with contextlib.redirect_stdout(io.StringIO() if arguments.json else sys.stdout):
        for channels, size, outputs in shapes:
            bench(report, channels, size, outputs, arguments.rounds)
        report.summary()
    if arguments.json:
        print(json.dumps({"load": os.getloadavg()[0], "rows": report.rows}, indent=2))


if __name__ == "__main__":
    main()
