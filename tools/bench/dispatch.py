"""Cost of one tiny operator in a long chain: the compiled loop against ONNX Runtime and NumPy, side by side.

    python tools/bench/dispatch.py [--length N] [--elements N] [--rounds N] [--threads N] [--json]

A chain of alternating Relu and Add on a few elements, so that nearly all of the time is the price of dispatch. Figures
are nanoseconds an operator: CPU time of the calling thread, contenders interleaved, median (minimum) of the rounds.
`ratio` is peer time / our time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from npusim.executor import Executor
from npusim.kernels.desc import Call, task_table
from npusim.kernels.elementwise import View, elementwise
from npusim.kernels.weights import aligned
from tools.bench.measure import Report, interleave, session


def chain(length: int, elements: int) -> tuple[list[Call], list[np.ndarray]]:
    """Calls of the chain over two buffers, which must stay alive."""
    shape = (elements,)
    buffers = [aligned(np.zeros(elements, np.float32)) for _ in range(2)]
    views = [View.dense(b.ctypes.data, "f32", shape) for b in buffers]
    calls = []
    for number in range(length):
        source, target = views[number % 2], views[1 - number % 2]
        if number % 2:
            calls.append(elementwise("add(x0,x1)", [source, source], target, shape))
        else:
            calls.append(elementwise("relu(x0)", [source], target, shape))
    return calls, buffers


def peer_chain(length: int, elements: int, threads: int) -> Any:
    """The same chain as an ONNX Runtime session."""
    from onnx import helper

    names = ["x", *(f"t{n}" for n in range(length - 1)), "y"]
    nodes = [
        helper.make_node("Add" if n % 2 else "Relu", [names[n]] * (2 if n % 2 else 1), [names[n + 1]])
        for n in range(length)
    ]
    return session(nodes, {"x": (elements,)}, [], threads)


def measure(length: int, elements: int, rounds: int, threads: int) -> dict[str, Any]:
    """Nanoseconds an operator of every contender, and ratios."""
    calls, buffers = chain(length, elements)
    table = task_table(calls)
    executor = Executor(threads)
    peer = peer_chain(length, elements, threads)
    feed = {"x": np.zeros(elements, np.float32)}

    def with_numpy() -> None:
        x, y = buffers
        for number in range(length):
            if number % 2:
                np.add(y, y, out=x)
            else:
                np.maximum(x, 0, out=y)

    contenders = {
        "ours": lambda: executor.run(table),
        "onnxruntime": lambda: peer.run(None, feed),
        "numpy": with_numpy,
    }
    result = interleave(contenders, rounds, time.thread_time_ns)
    executor.close()
    row: dict[str, Any] = {"length": length, "elements": elements, "threads": threads, "load": os.getloadavg()[0]}
    for name, (median, least) in result.items():
        row |= {f"{name}_ns": median / length * 1e9, f"{name}_least_ns": least / length * 1e9}
    row["ratio"] = row["onnxruntime_ns"] / row["ours_ns"]
    row["ratio_least"] = row["onnxruntime_least_ns"] / row["ours_least_ns"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--elements", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    row = measure(options.length, options.elements, options.rounds, options.threads)
    if options.json:
        print(json.dumps(row, indent=2))
        return
    print(
        f"{row['length']} operators of {row['elements']} elements, {row['threads']} thread(s), load {row['load']:.1f}"
    )
    for name in ("ours", "onnxruntime", "numpy"):
        print(f"{name:12} {row[f'{name}_ns']:8.1f} ({row[f'{name}_least_ns']:8.1f}) ns an operator")
    Report().line(row, f"ratio to onnxruntime {row['ratio']:.1f} ({row['ratio_least']:.1f})", {"ratio": 10.0})


if __name__ == "__main__":
    main()
