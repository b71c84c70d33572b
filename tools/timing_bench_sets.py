"""Benchmark suites of the 910B family: every case as the kernels that the vendor's library runs, operands cold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from metadef.error import LabError
from metadef.target import Target
from timing_chain import Chain
from timing_data import Microseconds, Pair, Sample, collect, rows_of
from timing_recipes import RECIPES, Case

FILE = "op_bench_cases"


def bench_sample(keep: Callable[[dict[str, str]], bool]) -> Callable[[Path], Sample]:
    """Cases that ``keep`` marks; those without a recipe lower the coverage."""

    def build(data: Path) -> Sample:
        rows = [row for row in rows_of(data, FILE) if row["trust"] != "C"]
        return collect([row for row in rows if keep(row)], predict_case)

    return build


def predict_case(row: dict[str, str], target: Target) -> Pair | None:
    us = case_us(row, target)
    if us is None:
        return None
    blind = case_us(row, target, left_out=True)
    what = f"{row['op_type']} {row['input_shapes'][:90]} {row['input_dtypes'].split(';')[0]}"
    return Pair(row["id"], what, float(row["duration_us"]), us, blind)


def case_us(row: dict[str, str], target: Target, *, left_out: bool = False) -> Microseconds | None:
    """Microseconds of a case, or None if no recipe knows its kind."""
    case = Case.of(row, target, left_out)
    build = RECIPES.get(case.kind)
    if build is None:
        return None
    try:
        build(case)
    except (IndexError, KeyError, ValueError) as error:
        raise LabError(f"case {row['op_type']} {row['input_shapes']}: {error!r}") from error
    return _timed(case.chain)


def _timed(chain: Chain) -> Microseconds:
    us = chain.us("benchmark")
    lists = sum(kernel.op_type.startswith("Foreach") for kernel, _, _ in chain.steps)
    if not lists:
        return us
    whole = Microseconds(us + lists * chain.target.value("launch.foreach_us"))
    whole.cause = us.cause
    return whole
