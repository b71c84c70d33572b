"""What the benchmarks share: contenders run in turn, the multiply-add peak, the peer's sessions, lines with bounds.

A figure is measured side by side with what it is held against; a line ends in its bound and `ok` or `MISS`.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from npusim.kernels import store

WORKERS_REST_S = 0.15  # onnxruntime keeps its workers spinning for 60 ms after a run


@dataclass
class Report:
    """Lines that were printed, as rows for --json (times in us)."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def line(self, row: dict[str, Any], text: str, bounds: dict[str, float]) -> None:
        """Print a line with the bounds on fields of its row, and keep the row."""
        missed = {name: bound for name, bound in bounds.items() if row[name] < bound}
        verdicts = "  ".join(f"{name} >= {bound:g}" for name, bound in bounds.items())
        verdict = ("MISS " + ", ".join(missed) if missed else "ok") if bounds else ""
        self.rows.append(row | {"bounds": bounds, "holds": not missed})
        print(f"{text}  [{verdicts}] {verdict}" if bounds else text, flush=True)

    def summary(self) -> None:
        """How many lines hold their bounds."""
        bound = [row for row in self.rows if row["bounds"]]
        print(f"{sum(row['holds'] for row in bound)} of {len(bound)} lines hold their bounds")


def interleave(
    contenders: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], int], pause_s: float = 0.0
) -> dict[str, tuple[float, float]]:
    """(median, minimum) in seconds of each contender, run in turn.

    `pause_s` rests before each run: workers of a pool spin for some milliseconds after theirs, and on a machine of as
    many cores as threads they would take one from the contender that comes next.
    """
    times: dict[str, list[int]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(rounds):
        for name, run in contenders.items():
            time.sleep(pause_s)
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
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
