"""Whole networks against onnxruntime, and how soon a process has its first result; every line with its bound.

    python tools/bench/speed.py [--only NAME ...] [--rounds N] [--start] [--json]

Models and inputs come from tools/model_zoo.py. Each has a process of its own and four lines: fp16 at rest and the
model's own types (`origin`), on one thread by CPU time and on two by wall time, against onnxruntime on as many threads
in the same loop; medians (minima), `ratio` is its time / ours. --start adds, for ResNet-50: wall time of a new process
from the compiled .om to its first result with a filled kernel store, and with an empty one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from model_zoo import reference_session, zoo_model  # noqa: E402
from tools.bench.measure import WORKERS_REST_S, Report, interleave  # noqa: E402

BOUNDS = {
    "resnet50": 1.05,
    **dict.fromkeys(("densenet121", "inception_v1", "squeezenet", "vgg19", "shufflenet"), 0.9),
    **dict.fromkeys(("ppocr_det", "yolox_text", "centerface", "doc_orientation"), 0.9),
}
ORIGIN_BOUND = 0.9
FIRST_RESULT_S, EMPTY_STORE_S = 1.0, 60.0

FIRST_RESULT = """
import sys, time
start = time.perf_counter()
import numpy as np
from npusim import InferenceSession, SessionOptions
session = InferenceSession(sys.argv[1], SessionOptions(threads=2))
session.run(None, dict(np.load(sys.argv[2])))
print(time.perf_counter() - start)
"""


def measure(name: str, rounds: int) -> list[dict[str, Any]]:
    """The four rows of a model."""
    from npusim import InferenceSession, SessionOptions

    model, rows = zoo_model(name), []
    feeds = dict(model.feeds[0])
    for threads, clock, pause_s in ((1, time.process_time_ns, 0.0), (2, time.perf_counter_ns, WORKERS_REST_S)):
        sessions = {
            precision: InferenceSession(
                str(model.path), SessionOptions(precision=precision, threads=threads, shapes=model.shapes)
            )
            for precision in ("fp16", "origin")
        }
        peer = reference_session(model, threads)
        runs = {key: (lambda s=session: s.run(None, feeds)) for key, session in sessions.items()}
        times = interleave(runs | {"peer": lambda p=peer: p.run(None, feeds)}, rounds, clock, pause_s)
        for precision, session in sessions.items():
            ours, least = times[precision]
            row = {"model": name, "precision": precision, "threads": threads, "ms": ours * 1e3, "least_ms": least * 1e3}
            row |= {"peer_ms": times["peer"][0] * 1e3, "peer_least_ms": times["peer"][1] * 1e3}
            rows.append(row | {"ratio": times["peer"][0] / ours, "ratio_least": times["peer"][1] / least})
            session.close()
    return rows


def in_a_process(name: str, rounds: int) -> list[dict[str, Any]]:
    """The rows of a model that runs alone. Raises SystemExit with the process's last words."""
    command = [sys.executable, __file__, "--row", name, "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return json.loads(done.stdout)


def bench_start(report: Report) -> None:
    """Seconds of a new process to its first result, best of four with a filled store, once with an empty one."""
    from metadef.model import save_om
    from npusim import InferenceSession, SessionOptions

    model = zoo_model("resnet50")
    with tempfile.TemporaryDirectory() as folder:
        om, feeds = Path(folder) / "model.om", Path(folder) / "feeds.npz"
        np.savez(feeds, **dict(model.feeds[0]))
        session = InferenceSession(str(model.path), SessionOptions(precision="fp16", shapes=model.shapes))
        save_om(session.model, om)
        command = [sys.executable, "-c", FIRST_RESULT, str(om), str(feeds)]
        # An installed package has its bytecode.
        filled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        filled["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "bytecode")
        empty = filled | {"NPUSIM_KERNEL_CACHE": str(Path(folder) / "store")}
        for label, env, times, most in (
            ("second process", filled, 4, FIRST_RESULT_S),
            ("empty kernel store", empty, 1, EMPTY_STORE_S),
        ):
            runs = [
                subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=env)
                for _ in range(times)
            ]
            seconds = min(float(run.stdout) for run in runs)
            row = {"model": "resnet50", "start": label, "seconds": seconds, "speed": most / seconds}
            report.line(row, f"resnet50 {label}: first result after {seconds:.2f} s of {most:g}", {"speed": 1.0})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(BOUNDS), metavar="NAME", help="of " + ", ".join(BOUNDS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--start", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--row", choices=list(BOUNDS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(options.row, options.rounds)))
        return
    report = Report()
    with contextlib.redirect_stdout(io.StringIO() if options.json else sys.stdout):
        for name in options.only or BOUNDS:
            for row in in_a_process(name, options.rounds):
                text = f"{name:16} {row['precision']:6} {row['threads']}t {row['ms']:7.1f} ({row['least_ms']:7.1f}) ms"
                text += f"  peer {row['peer_ms']:7.1f} ({row['peer_least_ms']:7.1f})"
                text += f"  ratio {row['ratio']:.2f} ({row['ratio_least']:.2f})"
                bound = BOUNDS[name] if row["precision"] == "fp16" else ORIGIN_BOUND
                report.line(row, text, {"ratio": bound})
        if options.start:
            bench_start(report)
        report.summary()
    if options.json:
        print(json.dumps({"load": os.getloadavg()[0], "rows": report.rows}, indent=2))


if __name__ == "__main__":
    main()
