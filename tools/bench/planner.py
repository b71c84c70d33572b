"""The planner's promises in one run: figure, limit, ok or MISS, line by line.

    python tools/bench/planner.py [SECTION ...] [--data DIR]

`minimalloc` is the challenging suite at its nominal capacity (1048576 bytes), `minimise` the two instances whose
capacity is slack, `cases` the proved JSON instances, `nets` the light models that come with onnx with and without
in-place, and reordered, `oracles` GE's dumps planned anew, `mutants` broken plans before the checker, `fuzz` small
random schedules against CP-SAT (interleaved, both timed), `quick` the heuristics alone at 500 tensors, `scale`
generated schedules of every shape (plan and check), `first` processes without compiled code, `methods` the quick
planners on the suite. Seconds are CPU seconds; apart from `first` the search is compiled before the clock starts; every
plan passes the checker. A busy machine makes seconds longer: its load is printed. Exit code 1 where one misses.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from metadef.error import PlanError  # noqa: E402
from metadef.frontend.ge import load_ge  # noqa: E402
from metadef.memory import MemoryPlan, check_plan, plan_memory  # noqa: E402
from metadef.memory.cases import load_case, schedule_from_csv  # noqa: E402
from metadef.reorder import reorder  # noqa: E402
from metadef.schedule import Schedule  # noqa: E402
from tools.bench.light_schedules import NAMES, light_schedule  # noqa: E402
from tools.bench.plan_shapes import SHAPES  # noqa: E402

CAPACITY, MIB = 1_048_576, 1 << 20
QUICK_METHODS = ("greedy-by-size", "greedy-by-breadth", "execution-order", "block-pool")

missed: list[str] = []


def verdict(name: str, figure: float, limit: float, unit: str = "", note: str = "") -> None:
    """Print a figure beside its upper limit."""
    holds = figure <= limit
    if not holds:
        missed.append(name)
    shown, bound = (f"{v:,}" if isinstance(v, int) else f"{v:.4f}" for v in (figure, limit))
    print(f"{'ok' if holds else 'MISS':>4}  {name:46} {shown:>12} of {bound:>12} {unit:8} {note}", flush=True)


def timed(schedule: Schedule, **options: object) -> tuple[MemoryPlan, float]:
    """A checked plan and the CPU seconds that planning took."""
    start = time.process_time()
    plan = plan_memory(schedule, **options)  # type: ignore[arg-type]
    seconds = time.process_time() - start
    check_plan(schedule, plan)
    return plan, seconds


def hard_schedule() -> Schedule:
    """Sixty rows that no quick planner fits into their live set."""
    rows = "".join(f"{i},{i * 7 % 11},{i * 7 % 11 + 5},{i * 13 % 17 + 1}\n" for i in range(60))
    return schedule_from_csv("id,lower,upper,size\n" + rows)


def warm_up() -> None:
    """Compile the searches, and the checker's loops, on problems that need them."""
    plan_memory(hard_schedule(), method="exact", budget_s=0.01)
    for make in SHAPES.values():
        schedule = make(2_600)
        plan_memory(schedule, method="greedy-by-size")
        timed(schedule)


def minimalloc(data: Path) -> None:
    total = 0.0
    for file in sorted((data / "planner/minimalloc").glob("?.*.csv")):
        plan, seconds = timed(load_case(file).schedule, capacity=CAPACITY)
        total += seconds
        verdict(f"{file.name[0]} in {CAPACITY}", plan.total_size, CAPACITY, "bytes", plan.method)
        verdict(f"{file.name[0]} time", seconds, 3.0, "CPU s")
    verdict("suite time", total, 8.0, "CPU s")


def minimise(data: Path) -> None:
    for name, limit, budget_s in (("C", 1_039_360, 10), ("D", 1_026_048, 30)):
        schedule = load_case(data / f"planner/minimalloc/{name}.1048576.csv").schedule
        plan, seconds = timed(schedule, minimise=True, budget_s=budget_s)
        state = "proved" if plan.optimal else f"gap {plan.total_size - plan.theory_min} to {plan.theory_min}"
        verdict(f"{name} minimised", plan.total_size, limit, "bytes", f"{state}, {seconds:.1f} CPU s")
        if name == "C":
            verdict("C not proved", int(not plan.optimal), 0)


def cases(data: Path) -> None:
    for file in sorted((data / "planner/cases").glob("*.json")):
        case = load_case(file)
        start = time.process_time()
        try:
            plan = plan_memory(case.schedule, capacity=case.capacity)
            check_plan(case.schedule, plan)
            found = {name: pool.total_size for name, pool in plan.pools.items()}
            optimum = case.fields["optimum"]
            agrees = found == (optimum if isinstance(optimum, dict) else {"HBM": optimum}) and plan.optimal
            answer = f"{plan.total_size} {plan.method}"
        except PlanError as error:
            agrees = case.fields["expect"] == "infeasible"
            answer = f"refused: {error.problems[0].message}"
        verdict(f"{file.stem}: wrong", int(not agrees), 0, "", f"{time.process_time() - start:.3f} CPU s  {answer}")


def proved(name: str, plan: MemoryPlan) -> None:
    verdict(f"{name}: not proved", int(not plan.optimal), 0)


def nets(_: Path) -> None:
    for name in NAMES:
        schedule = light_schedule(name)
        plain, plain_s = timed(schedule, inplace=False)
        best, best_s = timed(schedule)
        for plan, seconds, kind in ((plain, plain_s, "plain"), (best, best_s, "in place")):
            verdict(
                f"{name} {kind}: above the live set",
                plan.total_size - plan.theory_min,
                0,
                "bytes",
                f"{plan.total_size:,}",
            )
            proved(f"{name} {kind}", plan)
            verdict(f"{name} {kind} time", seconds, 0.1, "CPU s")
        limit = IN_PLACE_RATIOS.get(name, 1.0)
        verdict(f"{name} in place / plain", round(best.total_size / plain.total_size, 3), limit)
        moved = timed(reorder(schedule), inplace=False)[0]
        verdict(f"{name} reordered / plain", moved.total_size / plain.total_size, REORDER_RATIOS.get(name, 1.0))


IN_PLACE_RATIOS = {
    "squeezenet": 0.623, "inception_v2": 0.625, "inception_v1": 0.723, "resnet50": 0.750, "densenet121": 0.857,
}  # fmt: skip
REORDER_RATIOS = {"shufflenet": 0.93}


def oracles(data: Path) -> None:
    """GE's own graphs planned anew; both memory figures of the second are exact."""
    resnet = load_ge(data / "ge_dumps/resnet50_ge_proto_00000062_Build.txt")
    plan, _ = timed(resnet.schedule)
    verdict("resnet50 dump", plan.total_size, 3_614_208, "bytes", "GE: 4,221,440")
    proved("resnet50 dump", plan)
    tail, _ = timed(load_ge(data / "ge_dumps/nms_tail_om.json").schedule)
    for name, size, exact in (("arena", tail.total_size, 1_441_280), ("zero copy", tail.io_bytes, 1_604_608)):
        verdict(f"nms_tail {name}: bytes off", abs(size - exact), 0, "bytes", f"{size:,}")


def mutants(_: Path) -> None:
    """Plans with one thing changed; an oracle in pairs says which of them break a rule."""
    from tests.metadef.memory.test_mutants import verdicts

    broken, sound, wrong = verdicts(MUTANTS)
    verdict("wrong verdicts on mutants", len(wrong), 0, "", f"{broken} break a rule, {sound} do not")


MUTANTS = 1000


def quick(_: Path) -> None:
    """Heuristics without any search at 500 tensors, and what the default adds to them."""
    for name, make in SHAPES.items():
        schedule = make(500)
        greedy = timed(schedule, method="greedy-by-size")[0]
        found, seconds = timed(schedule, budget_s=0.0)
        best = timed(schedule)[0]
        verdict(f"500 tensors, {name}: heuristics", seconds, 0.1, "CPU s")
        for kind, plan in (("heuristics", found), ("default", best)):
            verdict(f"500 tensors, {name}: {kind}", plan.total_size, greedy.total_size, "bytes", plan.method)


FIRST_USES = {
    "a network": "light_schedule('densenet121')",
    "60 tensors to search": "hard_schedule()",
    "10000 tensors, random lives": "SHAPES['random lives'](10_000)",
    "10000 tensors, mixed, 3 streams": "SHAPES['mixed, 3 streams'](10_000)",
}
"""What somebody may plan first on a machine; all four together compile nearly all there is."""


def first(_: Path) -> None:
    """Each first use by itself: a new process plans and checks with an empty cache, another with what that left."""
    for name, source in FIRST_USES.items():
        script = f"from tools.bench.planner import *; timed({source})"
        with tempfile.TemporaryDirectory() as folder:
            spent = [_cpu_seconds(script, folder) for _turn in range(2)]
        verdict(f"compilation for {name}", spent[0] - spent[1], 15.0, "CPU s")


def _cpu_seconds(script: str, cache: str) -> float:
    """Of a new process that keeps compiled code in a folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "NPUSIM_KERNEL_CACHE": cache, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def fuzz(_: Path) -> None:
    """Our time and CP-SAT's on the same seeds, one after the other."""
    from tests.metadef.memory.cpsat import optimum
    from tests.metadef.memory.test_optimum import mixed_schedule

    wrong, ours, theirs = 0, 0.0, 0.0
    for seed in range(FUZZ_SEEDS):
        schedule = mixed_schedule(seed)
        start = time.process_time()
        wanted = optimum(schedule)
        theirs += time.process_time() - start
        start = time.process_time()
        try:
            plan = plan_memory(schedule)
            found = plan.total_size
        except PlanError:
            found = None
        ours += time.process_time() - start
        wrong += found != wanted
    verdict(f"{FUZZ_SEEDS} seeds that differ from CP-SAT", wrong, 0, "", f"ours {ours:.1f} CPU s, CP-SAT {theirs:.1f}")


FUZZ_SEEDS = 500


def scale(_: Path) -> None:
    for count, quick_s, whole_s in ((10_000, 0.2, 1.0), (100_000, 2.0, 2.0)):
        for name, make in SHAPES.items():
            schedule = make(count)
            title = f"{count} tensors, {name}"
            found, seconds = timed(schedule, method="greedy-by-size")
            verdict(f"{title}: heuristic", seconds, quick_s, "CPU s", f"{found.total_size / found.theory_min:.4f}")
            start = time.process_time()
            best = plan_memory(schedule)
            check_plan(schedule, best)
            seconds = time.process_time() - start
            ratio = best.total_size / best.theory_min
            verdict(f"{title}: plan and check", seconds, whole_s, "CPU s", f"{ratio:.4f} of the live set")
            if count == 10_000:
                verdict(f"{title}: / live set", ratio, 1.01, "", best.method)


def methods(data: Path) -> None:
    print(f"{'inst':>5} {'live set':>8}", *(f"{name:>17}" for name in QUICK_METHODS), f"{'best':>7}")
    for file in sorted((data / "planner/minimalloc").glob("?.*.csv")):
        schedule = load_case(file).schedule
        quick = [timed(schedule, method=name)[0].total_size / CAPACITY for name in QUICK_METHODS]
        plan, _ = timed(schedule, capacity=CAPACITY)
        ratios = "".join(f" {ratio:17.3f}" for ratio in quick)
        print(f"{file.name[0]:>5} {plan.theory_min / CAPACITY:8.4f}{ratios} {plan.total_size / CAPACITY:7.4f}")


SECTIONS: dict[str, Callable[[Path], None]] = {
    "minimalloc": minimalloc, "minimise": minimise, "cases": cases, "nets": nets, "oracles": oracles,
    "mutants": mutants, "fuzz": fuzz, "quick": quick, "scale": scale, "first": first, "methods": methods,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("sections", nargs="*", default=[*SECTIONS], metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("NPUSIM_DATA") or ROOT.parent / "shared"))
    options = parser.parse_args()
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"no section {unknown[0]}: {', '.join(SECTIONS)}")
    warm_up()
    for name in options.sections:
        print(f"== {name}   (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)", flush=True)
        SECTIONS[name](options.data)
    print(f"missed: {', '.join(missed) or 'nothing'}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
