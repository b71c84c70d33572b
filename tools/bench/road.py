"""The first road in figures: accuracy, tasks, memory and times of ResNet-50 and the bundled digits.

    python tools/bench/road.py [MODEL.onnx] [--soc Ascend910B3] [--json]

Without MODEL, ResNet-50 with calibrated weights is made by tools/make_models.py. Inputs are three structured pictures:
those of shared/conformance where NPUSIM_DATA has them, else our own. Times: compile and timing in CPU seconds without
imports, a run as the median wall time on two threads, next to onnxruntime's in the same loop; a second process from the
.om file is timed as a whole, with its largest resident memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

SECOND_PROCESS = """
import sys, time
start = time.perf_counter()
import numpy as np
from npusim import InferenceSession, SessionOptions
session = InferenceSession(sys.argv[1], SessionOptions(threads=2))
value = session.run(None, {session.get_inputs()[0].name: np.load(sys.argv[2])})[0]
seconds = time.perf_counter() - start
heavy = sorted({"numba", "onnx", "metadef.passes", "metadef.frontend.onnx"} & set(sys.modules))
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, int(peak) * 1024, ",".join(heavy) or "none")
"""


def picture_maker() -> Callable[[int], np.ndarray]:
    """``picture(seed)`` of the conformance data, or our own where it is absent."""
    path = Path(os.environ.get("NPUSIM_DATA", ROOT.parent / "shared")) / "conformance" / "make_derived.py"
    if path.exists():
        spec = importlib.util.spec_from_file_location("make_derived", path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.picture
    from make_models import picture

    return picture


def reference_session(path: Path) -> Any:
    """onnxruntime on two threads, quiet."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def accuracy(path: Path, soc: str, precision: str, feeds: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """Worst figures over the feeds: end to end against onnxruntime, and of any operator against its own reference."""
    from npusim import InferenceSession, SessionOptions
    from npusim.compare import compare_layers, difference

    session = InferenceSession(path, SessionOptions(soc=soc, precision=precision, threads=2))
    reference = reference_session(path)
    ends = [difference(session.run(None, feed)[0], reference.run(None, feed)[0]) for feed in feeds]
    layers = [task for feed in feeds for task in compare_layers(session, feed, {})]
    session.close()
    return {
        "worst_rel_l2": max(item.rel_l2 for item in ends),
        "worst_cosine": min(item.cosine for item in ends),
        "top1_equal": sum(item.top1_equal for item in ends) / len(ends),
        "worst_layer_rel_l2": max(task.rel_l2 for task in layers),
    }


def speed(path: Path, soc: str, feed: dict[str, np.ndarray], rounds: int) -> dict[str, Any]:
    """Compile, timing and run, warm."""
    from metadef.compiler import CompileOptions, compile_model
    from npusim import InferenceSession, SessionOptions
    from npusim.timing import time_program

    compile_model(path, CompileOptions(soc=soc))
    start = time.process_time()
    compilation = compile_model(path, CompileOptions(soc=soc))
    compile_seconds = time.process_time() - start
    program, target = compilation.model.program, compilation.target
    time_program(program, target)
    start = time.process_time()
    profile = time_program(program, target)
    timing_seconds = time.process_time() - start
    session, reference = InferenceSession(compilation.model, SessionOptions(threads=2)), reference_session(path)
    ours, theirs = [], []
    for _ in range(rounds):
        for runs, call in ((ours, session.run), (theirs, reference.run)):
            start = time.perf_counter()
            call(None, feed)
            runs.append(time.perf_counter() - start)
    session.close()
    return {
        "tasks": len(program.tasks),
        "host_tasks": sum(task.on_host for task in program.tasks),
        "arena_bytes": program.total_size,
        "theory_min": program.theory_min,
        "weights_bytes": program.weights_bytes,
        "plan_optimal": compilation.plan.optimal,
        "predicted_us": round(profile.us, 1),
        "compile_cpu_s": round(compile_seconds, 3),
        "timing_cpu_s": round(timing_seconds, 3),
        "run_wall_s": round(statistics.median(ours), 4),
        "onnxruntime_wall_s": round(statistics.median(theirs), 4),
        "onnxruntime_over_ours": round(statistics.median(theirs) / statistics.median(ours), 3),
    }


def second_process(path: Path, soc: str, feed: dict[str, np.ndarray]) -> dict[str, Any]:
    """A fresh interpreter from the .om to its first result."""
    from metadef.compiler import CompileOptions, compile_model
    from metadef.model import save_om

    with tempfile.TemporaryDirectory() as folder:
        om, array = Path(folder) / "model.om", Path(folder) / "x.npy"
        model = compile_model(path, CompileOptions(soc=soc)).model
        save_om(model, om)
        np.save(array, next(iter(feed.values())))
        command = [sys.executable, "-c", SECOND_PROCESS, str(om), str(array)]
        start = time.perf_counter()
        printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.split()
        whole = time.perf_counter() - start
        program = model.program
    base = program.weights_bytes + program.arena_bytes
    return {
        "om_first_result_s": round(whole, 3),
        "om_rss_bytes": int(printed[1]),
        "om_rss_over_weights_and_arena": int(printed[1]) - base,
        "om_heavy_imports": printed[2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--soc", default="Ascend910B3")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    path = arguments.model
    if path is None:
        from make_models import cached_resnet50

        path = cached_resnet50()
    picture = picture_maker()
    name = reference_session(path).get_inputs()[0].name
    feeds = [{name: picture(seed)} for seed in (1, 2, 3)]
    rows: dict[str, Any] = {"soc": arguments.soc, **speed(path, arguments.soc, feeds[0], arguments.rounds)}
    rows |= second_process(path, arguments.soc, feeds[0])
    rows |= {f"fp16_{key}": value for key, value in accuracy(path, arguments.soc, "fp16", feeds).items()}
    from metadef.dtype import DType
    from metadef.target import load_target

    if DType.FLOAT in load_target(arguments.soc).cube_dtypes:
        rows |= {f"origin_{key}": value for key, value in accuracy(path, arguments.soc, "origin", feeds).items()}
    rows["load_average"] = round(os.getloadavg()[0], 1)
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        for key, value in rows.items():
            print(f"{key:32s} {value:.3e}" if isinstance(value, float) and abs(value) < 1e-2 else f"{key:32s} {value}")


if __name__ == "__main__":
    main()
