"""Convolutions of large windows by Fourier transforms against direct ones and ONNX Runtime, side by side in one run.

    python tools/bench/fourier.py [--rounds N] [--shape C,H,O,K ...] [--depthwise C,H,K ...] [--edge N ...] [--json]

CPU time of one thread, contenders interleaved, median of the rounds. Ours is fp16 at rest, the peer fp32 (its whole run
of a one-node session). `ort` and `direct` are that contender's time / ours by Fourier transforms of the tile edge that
the host's model chooses (or of each --edge); `choice` says what the model would take with `numerics="fast"`. The error
is the relative L2 distance from the peer's result, rounding of ours to fp16 included.
"""

from __future__ import annotations

import argparse
import contextlib
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
from npusim.kernels.conv import Conv2D, conv2d, pack_conv
from npusim.kernels.desc import Call, task_table
from npusim.kernels.fourier import (
    fourier2d,
    pack_depthwise_spectrum,
    pack_spectrum,
    workspace_bytes,
    workspace_of,
)
from npusim.kernels.plans.algorithm import host_algorithm
from npusim.kernels.plans.fourier import best_edge
from npusim.kernels.plans.site import PlanOptions
from tools.bench.measure import Report, interleave, session

DENSE = [(64, 56, 64, 7), (128, 28, 128, 7), (256, 14, 256, 7), (64, 56, 64, 9), (32, 64, 32, 11), (32, 64, 32, 13)]
SMALL = [(16, 56, 16, 7), (3, 112, 64, 7), (8, 64, 8, 9)]
DEPTHWISE = [(96, 56, 7), (128, 56, 9), (128, 56, 13), (128, 56, 31), (256, 28, 31), (512, 14, 31)]
BOUND = 1.0  # a convolution that the model takes must not be slower than its peers
RNG = np.random.default_rng(0)


def shape_of(sizes: Sequence[int]) -> Conv2D:
    """(C, H, O, K) dense or (C, H, K) depthwise, padded to keep the size."""
    channels, size, *outputs, window = sizes
    groups = 1 if outputs else channels
    return Conv2D(
        1, channels, size, size, (outputs or [channels])[0], (window, window), pads=(window // 2,) * 4, groups=groups
    )


def calls_of(shape: Conv2D, x: np.ndarray, filters: np.ndarray, out: np.ndarray, edge: int) -> dict[str, list[Call]]:
    """The contenders as calls that write to ``out``."""
    places, dtypes = (x.ctypes.data, out.ctypes.data), ("f16", "f16")
    pack = pack_depthwise_spectrum if shape.groups > 1 else pack_spectrum
    spectrum = pack(filters.astype(np.float32), edge)
    workspace = workspace_of(workspace_bytes(shape, edge))
    return {
        "direct": [conv2d(shape, places[0], pack_conv(shape, filters), places[1], dtypes)],
        "fft": fourier2d(shape, places[0], spectrum, places[1], dtypes, workspace),
    }


def bench(report: Report, shape: Conv2D, edge: int, rounds: int) -> None:
    """One line of the table."""
    from onnx import helper, numpy_helper

    size, window = shape.h, shape.kernel[0]
    x = RNG.standard_normal((1, -(-shape.c // 16), size, size, 16)).astype(np.float16)
    x.reshape(-1, size * size, 16)[-1, :, shape.c % 16 or 16 :] = 0
    per = shape.c // shape.groups
    filters = (RNG.standard_normal((shape.o, per, window, window)) / np.sqrt(per) / window).astype(np.float16)
    out = np.zeros((1, -(-shape.o // 16), size, size, 16), np.float16)
    executor, results = Executor(1), {}
    runs: dict[str, Callable[[], object]] = {}
    for name, calls in calls_of(shape, x, filters, out, edge).items():
        table = task_table(calls)
        runs[name] = lambda table=table, calls=calls: executor.run(table)
        runs[name]()
        results[name] = out.astype(np.float64)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=list(shape.pads), group=shape.groups)
    peer = session(
        [node], {"x": (1, shape.c, size, size)}, [numpy_helper.from_array(filters.astype(np.float32), "w")], 1
    )
    feed = x.transpose(0, 1, 4, 2, 3).reshape(1, -1, size, size)[:, : shape.c].astype(np.float32)
    exact = np.asarray(peer.run(None, {"x": feed})[0], np.float64)
    runs["ort"] = lambda: peer.run(None, {"x": feed})
    times = interleave(runs, rounds, time.thread_time_ns)
    ours = times["fft"][0]
    got = results["fft"].transpose(0, 1, 4, 2, 3).reshape(1, -1, size, size)[:, : shape.o]
    choice = host_algorithm(shape, PlanOptions(numerics="fast"))
    kind = "depthwise" if shape.groups > 1 else f"->{shape.o}"
    row: dict[str, Any] = {
        "name": f"{window}x{window} {shape.c}{kind} @{size}",
        "edge": edge,
        "choice": choice,
        "error": np.linalg.norm(got - exact) / np.linalg.norm(exact),
        **{f"{name}_us": pair[0] * 1e6 for name, pair in times.items()},
        **{name: times[name][0] / ours for name in ("direct", "ort")},
    }
    text = f"{row['name']:26} fft_{edge:<2} {ours * 1e6:6.0f} us ({row['error']:.1e}), direct {row['direct']:5.2f}"
    text += f", ort {row['ort']:5.2f}, choice {choice:6}"
    report.line(row, text, {"direct": BOUND, "ort": BOUND} if choice == f"fft_{edge}" else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shape", action="append", metavar="C,H,O,K", default=[])
    parser.add_argument("--depthwise", action="append", metavar="C,H,K", default=[])
    parser.add_argument("--edge", type=int, action="append")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    sizes = [tuple(map(int, text.split(","))) for text in (*arguments.shape, *arguments.depthwise)]
    report = Report()
    with contextlib.redirect_stdout(io.StringIO() if arguments.json else sys.stdout):
        for item in sizes or [*DENSE, *SMALL, *DEPTHWISE]:
            shape = shape_of(item)
            for edge in arguments.edge or [best_edge(shape)[0]]:
                if edge > shape.kernel[0]:
                    bench(report, shape, edge, arguments.rounds)
        report.summary()
    if arguments.json:
        print(json.dumps({"load": os.getloadavg()[0], "rows": report.rows}, indent=2))


if __name__ == "__main__":
    main()
