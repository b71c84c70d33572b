"""The planner's promises in one run: figure, limit, ok or MISS, line by line.

    python tools/bench/planner.py [minimalloc] [minimise] [cases] [nets] [oracles] [fuzz] [scale] [methods] [--data DIR]

`minimalloc` is the challenging suite at its nominal capacity (1048576 bytes), `minimise` the two instances whose
capacity is slack, `cases` the proved JSON instances, `nets` the light models that come with onnx with and without
in-place, `oracles` GE's dumps planned anew, `fuzz` small random schedules against CP-SAT (interleaved, both timed),
`scale` generated schedules of every shape (plan and check), `methods` the quick planners on the suite. Seconds are CPU
seconds; the search is compiled before the clock starts; every plan passes the checker. Exit code 1 where one misses.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from metadef.error import PlanError  # noqa: E402
from metadef.frontend.ge import load_ge  # noqa: E402
from metadef.memory import MemoryPlan, check_plan, plan_memory  # noqa: E402
from metadef.memory.cases import load_case, schedule_from_csv  # noqa: E402
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


def warm_up() -> None:
    """Compile the searches, and the checker's loops, on problems that need them."""
    text = "id,lower,upper,size\n" + "".join(
        f"{i},{i * 7 % 11},{i * 7 % 11 + 5},{i * 13 % 17 + 1}\n" for i in range(60)
    )
    plan_memory(schedule_from_csv(text), method="exact", budget_s=0.01)
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


def nets(_: Path) -> None:
    for name in NAMES:
        schedule = light_schedule(name)
        plain, plain_s = timed(schedule, inplace=False)
        best, best_s = timed(schedule)
        for plan, seconds, kind in ((plain, plain_s, "plain"), (best, best_s, "in place")):
            note = "proved" if plan.optimal else "NOT PROVED"
            verdict(f"{name} {kind}", plan.total_size, plan.theory_min, "bytes", note)
            verdict(f"{name} {kind} time", seconds, 0.1, "CPU s")
        limit = IN_PLACE_RATIOS.get(name, 1.0)
        verdict(f"{name} in place / plain", best.total_size / plain.total_size, limit + 0.0005)


IN_PLACE_RATIOS = {
    "squeezenet": 0.623, "inception_v2": 0.625, "inception_v1": 0.723, "resnet50": 0.750, "densenet121": 0.857,
}  # fmt: skip


def oracles(data: Path) -> None:
    """GE's own graphs planned anew; both memory figures of the second are exact."""
    resnet = load_ge(data / "ge_dumps/resnet50_ge_proto_00000062_Build.txt")
    plan, _ = timed(resnet.schedule)
    verdict("resnet50 dump", plan.total_size, 3_614_208, "bytes", "proved" if plan.optimal else "NOT PROVED")
    tail, _ = timed(load_ge(data / "ge_dumps/nms_tail_om.json").schedule)
    for name, size, exact in (("arena", tail.total_size, 1_441_280), ("zero copy", tail.io_bytes, 1_604_608)):
        verdict(f"nms_tail {name}: bytes off", abs(size - exact), 0, "bytes", f"{size:,}")


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
    for count in (10_000, 100_000):
        for name, make in SHAPES.items():
            schedule = make(count)
            quick, quick_s = timed(schedule, method="greedy-by-size")
            start = time.process_time()
            best = plan_memory(schedule)
            check_plan(schedule, best)
            whole_s = time.process_time() - start
            title = f"{count} tensors, {name}"
            if count == 10_000:
                verdict(f"{title}: heuristic", quick_s, 0.2, "CPU s", f"{quick.total_size / quick.theory_min:.4f}")
                verdict(f"{title}: / live set", best.total_size / best.theory_min, 1.01, "", best.method)
            note = f"{best.total_size / best.theory_min:.4f} of the live set"
            verdict(f"{title}: plan and check", whole_s, 1.0 if count == 10_000 else 2.0, "CPU s", note)


def methods(data: Path) -> None:
    print(f"{'inst':>5} {'live set':>8}", *(f"{name:>17}" for name in QUICK_METHODS), f"{'best':>7}")
    for file in sorted((data / "planner/minimalloc").glob("?.*.csv")):
        schedule = load_case(file).schedule
        quick = [timed(schedule, method=name)[0].total_size / CAPACITY for name in QUICK_METHODS]
        plan, _ = timed(schedule, capacity=CAPACITY)
        ratios = "".join(f" {ratio:17.3f}" for ratio in quick)
        print(f"{file.name[0]:>5} {plan.theory_min / CAPACITY:8.4f}{ratios} {plan.total_size / CAPACITY:7.4f}")


SECTIONS: dict[str, Callable[[Path], None]] = {
    "minimalloc": minimalloc, "minimise": minimise, "cases": cases, "nets": nets, "oracles": oracles, "fuzz": fuzz,
    "scale": scale, "methods": methods,
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
        print(f"== {name}", flush=True)
        SECTIONS[name](options.data)
    print(f"missed: {', '.join(missed) or 'nothing'}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
