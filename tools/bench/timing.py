"""How fast networks are timed: CPU seconds of timing one compiled network, and simulated core-cycles per CPU second.

    python tools/bench/timing.py [MODEL.onnx ...] [--soc SOC] [--rounds N] [--json]

Every round forgets what earlier ones simulated, so that each distinct task of the network runs through the pipe engine
(compiled code is warm). Core-cycles are cycles of a task times the cores that it occupies. Published figures of others
for ResNet-50: SCALE-Sim 567 s, mNPUsim 364 s, ZigZag 475 s, Vela 7.5 s.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

from metadef.compiler import CompileOptions, compile_model
from npusim.timing import tasks, time_program

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from model_zoo import zoo_folder

ZOO = ("resnet50", "densenet121", "squeezenet")


def bench(path: Path, soc: str, rounds: int) -> dict[str, object]:
    """Median CPU seconds of timing a network, and what was simulated in them."""
    compilation = compile_model(path, CompileOptions(soc=soc, precision="fp16"))
    program, target = compilation.model.program, compilation.target
    time_program(program, target)
    seconds = []
    for _ in range(rounds):
        tasks._simulate.cache_clear()
        start = time.process_time()
        profile = time_program(program, target)
        seconds.append(time.process_time() - start)
    core_cycles = sum(row.cycles * row.block_dim for row in profile.tasks)
    return {
        "model": path.stem, "soc": soc, "tasks": len(program.tasks), "timing_cpu_s": round(median(seconds), 4),
        "core_cycles": core_cycles, "million_core_cycles_per_cpu_s": round(core_cycles / median(seconds) / 1e6, 1),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="ONNX files (default: networks of the model zoo)")
    parser.add_argument("--soc", default="Ascend910B3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(arguments)
    zoo = zoo_folder()
    paths = [Path(name) for name in options.models] or [zoo / f"{name}.onnx" for name in ZOO]
    found = [bench(path, options.soc, options.rounds) for path in paths if path.exists()]
    if not found:
        print("no models: run tools/model_zoo.py make, or name ONNX files", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"models": found}))
        return 0
    for row in found:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
