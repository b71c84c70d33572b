"""Seventeen networks in figures, a row each: accuracy, tasks, fusion, format changes, memory and times.

    python tools/bench/models.py [--only NAME ...] [--soc Ascend910B3] [--quick] [--json]

Models and inputs come from tools/model_zoo.py (`make` fetches them). Every model has a process of its own. `origin` is
the worst relative L2 distance of an output from onnxruntime with the model's own types, `fp16` the worst task against
its operator in float64, `cosine` and `top-1` compare the fp16 outputs with onnxruntime's. Times of a warm run and of
onnxruntime are medians of the same loop: CPU on one thread, wall on two. `RSS` is a second process that runs the .om
file, beside its bound: weights once, the arena and 400 MB. --quick leaves times and RSS out.
"""

from __future__ import annotations

import argparse
import json
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

from model_zoo import CLASSIFIERS, LIGHT, NAMES, NotMade, ZooModel, reference_session, zoo_model  # noqa: E402
from tools.bench.measure import WORKERS_REST_S, interleave  # noqa: E402

ORIGIN_LIMIT, LAYER_LIMIT, COSINE_LIMIT = 1e-4, 1e-3, 0.999
RSS_SPARE_BYTES = 400 << 20
ROUNDS = 15

SECOND_PROCESS = """
import sys
import numpy as np
from npusim import InferenceSession, SessionOptions
session = InferenceSession(sys.argv[1], SessionOptions(threads=2))
session.run(None, dict(np.load(sys.argv[2])))
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak) * 1024)
"""


def measure(model: ZooModel, soc: str, quick: bool) -> dict[str, Any]:
    """The row of one model. Raises LabError of any family."""
    from npusim import InferenceSession, SessionOptions
    from npusim.compare import compare_layers

    start = time.process_time()
    options = SessionOptions(soc=soc, precision="fp16", threads=1, shapes=model.shapes)
    session = InferenceSession(str(model.path), options)
    row = {"model": model.name, "load_cpu_s": time.process_time() - start, "compile_peak_bytes": _peak_bytes()}
    row |= _structure(session)
    reference = reference_session(model)
    wanted = [reference.run(None, dict(feeds)) for feeds in model.feeds]
    layers = compare_layers(session, model.feeds[0], {})
    row |= {"fp16_layer_rel_l2": layers[0].rel_l2, "fp16_worst_task": f"{layers[0].op_type} {layers[0].name}"}
    ours = _differences(session, model, wanted)
    row |= {
        "fp16_rel_l2": max(item.rel_l2 for item in ours),
        "cosine": min(item.cosine for item in ours),
        "top1_equal": all(item.top1_equal for item in ours),
    }
    origin = InferenceSession(
        str(model.path), SessionOptions(soc=soc, precision="origin", threads=1, shapes=model.shapes)
    )
    gaps = [item.rel_l2 for item in _differences(origin, model, wanted)]
    row |= {"origin_rel_l2": max(gaps), "origin_host": _host(origin), "origin_trans_data": _count(origin, "TransData")}
    if not quick:
        row |= _times(model, soc, {"ours": session, "origin": origin})
        row |= _second_process(model, session)
    row["holds"] = _holds(row, model)
    return row


def _differences(session: Any, model: ZooModel, wanted: list[list[np.ndarray]]) -> list[Any]:
    """Every output of every input against onnxruntime's."""
    from npusim.compare import difference

    runs = [session.run(None, feeds) for feeds in model.feeds]
    return [difference(a, b) for ours, theirs in zip(runs, wanted) for a, b in zip(ours, theirs, strict=True)]


def _structure(session: Any) -> dict[str, Any]:
    """What the compiler made: counts, bytes, predicted time."""
    program, profile, compilation = session.program, session.profile.data, session.compilation
    trans = sum(task.cycles for task in profile.tasks if task.op_type == "TransData")
    report = compilation.report
    silent = [
        node.name
        for node in compilation.graph.nodes
        if node.op_type == "TransData" and not any(node.name in item.notes for item in report.passes)
    ]
    return {
        "nodes": len({name for task in program.tasks for name in task.origins}),
        "tasks": len(program.tasks),
        "fused": sum(len(task.kernel.fused) for task in program.tasks),
        "notask_concats": sum(len(group.members) > 0 for group in compilation.schedule.groups),
        "trans_data": _count(session, "TransData"),
        "trans_data_share": trans / max(sum(task.cycles for task in profile.tasks), 1),
        "trans_data_without_reason": silent,
        "total_bytes": program.total_size,
        "theory_min_bytes": program.theory_min,
        "weights_bytes": program.weights_bytes,
        "compile_cpu_s": sum(compilation.stage_seconds.values()),
        "predicted_us": profile.us,
        "host": _host(session),
    }


def _count(session: Any, op_type: str) -> int:
    return sum(task.kernel.op_type == op_type for task in session.program.tasks)


def _host(session: Any) -> list[str]:
    """Nodes that Python runs: by the placer's choice, or for want of a kernel on this computer."""
    return [f"{task.kernel.op_type} {task.name}" for task in session.loaded.host_tasks]


def _times(model: ZooModel, soc: str, one_thread: dict[str, Any]) -> dict[str, float]:
    """Medians in milliseconds, each against onnxruntime in the same loop."""
    from npusim import InferenceSession, SessionOptions

    feeds = dict(model.feeds[0])
    peers = {key: _runner(session, feeds) for key, session in one_thread.items()}
    runs = peers | {"onnxruntime": _runner(reference_session(model, 1), feeds)}
    cpu = interleave(runs, ROUNDS, time.process_time_ns)
    session = InferenceSession(
        str(model.path), SessionOptions(soc=soc, precision="fp16", threads=2, shapes=model.shapes)
    )
    double = _runner(reference_session(model, 2), feeds)
    runs = {"ours": _runner(session, feeds), "onnxruntime": double}
    wall = interleave(runs, ROUNDS, time.perf_counter_ns, WORKERS_REST_S)
    session.close()
    return {
        "run_cpu_ms": cpu["ours"][0] * 1e3,
        "run_origin_cpu_ms": cpu["origin"][0] * 1e3,
        "onnxruntime_cpu_ms": cpu["onnxruntime"][0] * 1e3,
        "run_wall_ms": wall["ours"][0] * 1e3,
        "onnxruntime_wall_ms": wall["onnxruntime"][0] * 1e3,
    }


def _runner(session: Any, feeds: dict[str, np.ndarray]) -> Callable[[], Any]:
    return lambda: session.run(None, feeds)


def _second_process(model: ZooModel, session: Any) -> dict[str, Any]:
    """Largest resident memory of a process that maps the compiled model and runs it."""
    from metadef.model import save_om

    with tempfile.TemporaryDirectory() as folder:
        om, feeds = Path(folder) / "model.om", Path(folder) / "feeds.npz"
        save_om(session.model, om)
        np.savez(feeds, **dict(model.feeds[0]))
        command = [sys.executable, "-c", SECOND_PROCESS, str(om), str(feeds)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    program = session.program
    bound = program.weights_bytes + program.total_size + program.io_bytes + RSS_SPARE_BYTES
    return {"run_peak_bytes": int(done.stdout), "run_peak_limit_bytes": bound}


def _peak_bytes() -> int:
    """Largest resident memory of this process so far."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1024


def _holds(row: dict[str, Any], model: ZooModel) -> list[str]:
    """What is not as it must be; empty if all is well."""
    checks = {
        "host-run node": not row["host"] and not row["origin_host"],
        f"origin beyond {ORIGIN_LIMIT}": row["origin_rel_l2"] <= ORIGIN_LIMIT,
        f"a task beyond {LAYER_LIMIT}": row["fp16_layer_rel_l2"] <= LAYER_LIMIT,
        f"cosine below {COSINE_LIMIT}": not model.real or row["cosine"] >= COSINE_LIMIT,
        "top-1 differs": model.name not in CLASSIFIERS or row["top1_equal"],
        "a TransData without a reason": not row["trans_data_without_reason"],
        "resident memory": row.get("run_peak_bytes", 0) <= row.get("run_peak_limit_bytes", 0),
    }
    return [name for name, good in checks.items() if not good]


def _top1(row: dict[str, Any]) -> str:
    """Only classifiers have one."""
    if row["model"] not in (*LIGHT, *CLASSIFIERS):
        return "-"
    return "same" if row["top1_equal"] else "differs"


COLUMNS: tuple[tuple[str, str, Callable[[dict[str, Any]], str]], ...] = (
    ("nodes", "", lambda r: str(r["nodes"])),
    ("tasks", "", lambda r: str(r["tasks"])),
    ("fused", "", lambda r: str(r["fused"])),
    ("no-task", "", lambda r: str(r["notask_concats"])),
    ("TransData", "share", lambda r: f"{r['trans_data']} {100 * r['trans_data_share']:.1f}%"),
    ("arena/min", "MB", lambda r: f"{r['total_bytes'] / 1e6:.2f}/{r['theory_min_bytes'] / 1e6:.2f}"),
    ("compile", "CPU s", lambda r: f"{r['compile_cpu_s']:.2f}"),
    ("predicted", "us", lambda r: f"{r['predicted_us']:.0f}"),
    ("run/ort", "1t CPU ms", lambda r: f"{r['run_cpu_ms']:.1f}/{r['onnxruntime_cpu_ms']:.1f}"),
    ("run/ort", "2t wall ms", lambda r: f"{r['run_wall_ms']:.1f}/{r['onnxruntime_wall_ms']:.1f}"),
    ("origin", "rel L2", lambda r: f"{r['origin_rel_l2']:.1e}"),
    ("fp16 task", "rel L2", lambda r: f"{r['fp16_layer_rel_l2']:.1e}"),
    ("cosine", "", lambda r: f"{r['cosine']:.6f}"),
    ("top-1", "", _top1),
    ("host", "", lambda r: str(len(r["host"]) + len(r["origin_host"]))),
    ("RSS/bound", "MB", lambda r: f"{r['run_peak_bytes'] / 1e6:.0f}/{r['run_peak_limit_bytes'] / 1e6:.0f}"),
    ("compile RSS", "MB", lambda r: f"{r['compile_peak_bytes'] / 1e6:.0f}"),
    ("holds", "", lambda r: "yes" if not r["holds"] else "; ".join(r["holds"])),
)


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [["model", *(head for head, _, _ in COLUMNS)], ["", *(unit for _, unit, _ in COLUMNS)]]
    for row in rows:
        if "error" in row:
            lines.append([row["model"], row["error"]])
            continue
        cells = []
        for _, _, text in COLUMNS:
            try:
                cells.append(text(row))
            except KeyError:
                cells.append("-")
        lines.append([row["model"], *cells])
    full = [line for line in lines if len(line) == len(COLUMNS) + 1]
    widths = [max(len(line[at]) for line in full) for at in range(len(COLUMNS) + 1)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def _row_in_a_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--row", name, "--soc", options.soc, *(["--quick"] if options.quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"model": name, "error": lines[-1], "holds": ["it did not run"]}
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, metavar="NAME", help="of " + ", ".join(NAMES))
    parser.add_argument("--soc", default="Ascend910B3")
    parser.add_argument("--quick", action="store_true", help="no times of runs, no second process")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--row", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        try:
            print(json.dumps(measure(zoo_model(options.row), options.soc, options.quick)))
        except NotMade as reason:
            sys.exit(str(reason))
        return 0
    rows = []
    for name in options.only or NAMES:
        rows.append(_row_in_a_process(name, options))
        print(name, *rows[-1]["holds"], file=sys.stderr, flush=True)
    print(json.dumps({"models": rows}, indent=1) if options.json else _table(rows))
    return int(any(row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
