"""Planner on known instances: peak against the live set, by method, with CPU seconds.

    python tools/bench/planner.py [minimalloc] [cases] [nets] [scale] [minimise] [--data DIR]

`minimalloc` is the challenging suite at its nominal capacity (1048576 bytes), `cases` the proved JSON instances, `nets`
the light models that come with onnx with and without in-place, `scale` generated graphs, `minimise` the two instances
whose capacity is slack. Ratios are peak / largest live set. The search is compiled before the clock starts; every plan
but those of `scale` passes the checker outside the clock.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from metadef.error import PlanError  # noqa: E402
from metadef.memory import MemoryPlan, check_plan, plan_memory  # noqa: E402
from metadef.memory.cases import load_case, schedule_from_csv  # noqa: E402
from metadef.schedule import Schedule, ScheduleTensor, Step  # noqa: E402
from tools.bench.light_schedules import NAMES, light_schedule  # noqa: E402

CAPACITY, MIB = 1_048_576, 1 << 20
QUICK_METHODS = ("greedy-by-size", "greedy-by-breadth", "execution-order", "block-pool")
SECTIONS = ("minimalloc", "cases", "nets", "scale", "minimise")


def timed(schedule: Schedule, **options: object) -> tuple[MemoryPlan, float]:
    """A checked plan and the CPU seconds that planning took."""
    plan, seconds = planned(schedule, **options)
    check_plan(schedule, plan)
    return plan, seconds


def planned(schedule: Schedule, **options: object) -> tuple[MemoryPlan, float]:
    """A plan and the CPU seconds that it took; for schedules so large that the checker would take minutes."""
    start = time.process_time()
    plan = plan_memory(schedule, **options)  # type: ignore[arg-type]
    return plan, time.process_time() - start


def warm_up() -> None:
    """Compile the search on a problem that the quick planners do not solve."""
    text = "id,lower,upper,size\n" + "".join(
        f"{i},{i * 7 % 11},{i * 7 % 11 + 5},{i * 13 % 17 + 1}\n" for i in range(60)
    )
    plan_memory(schedule_from_csv(text), method="exact", budget_s=0.01)
    plan_memory(generated(3_000, 100))


def minimalloc(data: Path) -> None:
    print(
        f"{'inst':>5} {'n':>4} {'live set':>8}",
        *(f"{name:>17}" for name in QUICK_METHODS),
        f"{'best':>7} {'CPU s':>6}  method",
    )
    total = 0.0
    for file in sorted((data / "planner/minimalloc").glob("?.*.csv")):
        schedule = load_case(file).schedule
        quick = [timed(schedule, method=name)[0].total_size / CAPACITY for name in QUICK_METHODS]
        plan, seconds = timed(schedule, capacity=CAPACITY)
        total += seconds
        ratios = "".join(f" {ratio:17.3f}" for ratio in quick)
        proved = " (proved)" if plan.optimal else ""
        print(
            f"{file.name[0]:>5} {len(schedule.tensors):4} {plan.theory_min / CAPACITY:8.4f}{ratios}"
            f" {plan.total_size / CAPACITY:7.4f} {seconds:6.3f}  {plan.method}{proved}"
        )
    print(f"sum of best: {total:.2f} CPU s; ratios are peak / {CAPACITY}")


def minimise(data: Path) -> None:
    for name, budget_s in (("C", 10), ("D", 30)):
        schedule = load_case(data / f"planner/minimalloc/{name}.1048576.csv").schedule
        plan, seconds = timed(schedule, minimise=True, budget_s=budget_s)
        state = "proved" if plan.optimal else f"gap {plan.total_size - plan.theory_min} to {plan.theory_min}"
        print(f"{name}: {plan.total_size} ({state}), {seconds:.1f} CPU s of {budget_s}")


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
        print(f"{'ok' if agrees else 'WRONG':>5} {time.process_time() - start:6.3f} s  {file.stem}: {answer}")


def nets(_: Path) -> None:
    print(
        f"{'model':>13} {'tensors':>7} {'no reuse MiB':>12} {'peak MiB':>9} {'/ live set':>10} {'CPU s':>6}"
        f" {'in place MiB':>12} {'/ live set':>10} {'CPU s':>6} {'in place / plain':>16}"
    )
    for name in NAMES:
        schedule = light_schedule(name)
        plain, plain_s = timed(schedule, inplace=False)
        best, best_s = timed(schedule)
        proved = "proved" if plain.optimal and best.optimal else "not proved"
        print(
            f"{name:>13} {len(schedule.tensors):7} {plain.no_reuse / MIB:12.2f} {plain.total_size / MIB:9.3f}"
            f" {plain.total_size / plain.theory_min:10.4f} {plain_s:6.3f} {best.total_size / MIB:12.3f}"
            f" {best.total_size / best.theory_min:10.4f} {best_s:6.3f} {best.total_size / plain.total_size:16.3f}"
            f"  {proved}"
        )


def scale(_: Path) -> None:
    for count, reach in ((1_000, 100), (10_000, 0), (10_000, 100), (10_000, 1_000), (100_000, 0), (100_000, 1_000)):
        schedule = generated(count, reach)
        quick, quick_s = planned(schedule, method="greedy-by-size")
        best, best_s = planned(schedule)
        print(
            f"{count:6} tensors, long skips up to {reach:4} steps: greedy {quick.total_size / quick.theory_min:.4f} in "
            f"{quick_s:.2f} s, best {best.total_size / best.theory_min:.4f} in {best_s:.2f} s ({best.method})"
        )


def generated(count: int, reach: int) -> Schedule:
    """A chain of steps; one in ten also reads a tensor from up to ``reach`` steps before (0: none does)."""
    draw = random.Random(count)
    schedule = Schedule(f"generated{count}", "")
    for i in range(count):
        schedule.tensors.append(ScheduleTensor(i, f"t{i}", draw.choice((1, 2, 4, 8, 16)) * draw.randint(1, 4) * 4096))
        reads = [i - 1] if i else []
        if i > 1 and reach and draw.random() < 0.1:
            reads.append(draw.randint(max(0, i - reach), i - 2))
        schedule.steps.append(Step(i, f"s{i}", tuple(reads), (i,)))
    return schedule


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("sections", nargs="*", default=SECTIONS, metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("NPUSIM_DATA") or ROOT.parent / "shared"))
    options = parser.parse_args()
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"no section {unknown[0]}: {', '.join(SECTIONS)}")
    warm_up()
    for name in options.sections:
        print(f"== {name}")
        {"minimalloc": minimalloc, "cases": cases, "nets": nets, "scale": scale, "minimise": minimise}[name](
            options.data
        )


if __name__ == "__main__":
    main()
