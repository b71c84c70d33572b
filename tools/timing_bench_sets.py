"""Benchmark suites of 910B and 950: every case as the kernels that the vendor's library runs, operands cold."""

from __future__ import annotations

from pathlib import Path

from metadef.target import Target
from timing_chain import Chain
from timing_data import Microseconds, Pair, Sample, collect, family_of, rows_of
from timing_recipes import RECIPES, Case
from timing_recipes_conv import composed_case, conv_case, is_conv

FILE = "op_bench_cases"


def bench_cases(data: Path, family: str) -> Sample:
    """All cases of a family's chips but single products, which have sets of their own; those without a recipe lower
    the coverage."""
    rows = [row for row in rows_of(data, FILE) if row["trust"] != "C" and not is_product(row)]
    rows = [row for row in rows if family_of(row["soc"]) == family]
    return collect(rows, predict_case)


def is_product(row: dict[str, str]) -> bool:
    """A plain matrix product."""
    kind = row["op_type"]
    plain = kind == "gemm" or "atmul" in kind or "matrix_mult" in kind
    thin = "diagonal" in kind or any("," not in shape for shape in row["input_shapes"].split(";")[:2])
    return (
        plain and not thin and row["composite"] != "1" and not any(word in kind for word in ("quant", "group", "bias"))
    )


def predict_case(row: dict[str, str], target: Target) -> Pair | None:
    chain = case_chain(row, target)
    if chain is None:
        return None
    us, blind = _timed(chain), case_us(row, target, left_out=True) if chain.has_lists else None
    what = f"{row['op_type']} {row['input_shapes'][:90]} {row['input_dtypes'].split(';')[0]}"
    return Pair(row["id"], what, float(row["duration_us"]), us, blind)


def case_us(row: dict[str, str], target: Target, *, left_out: bool = False) -> Microseconds | None:
    """Microseconds of a case, or None if no recipe knows its kind."""
    chain = case_chain(row, target, left_out=left_out)
    return None if chain is None else _timed(chain)


def case_chain(row: dict[str, str], target: Target, *, left_out: bool = False) -> Chain | None:
    """The kernels of a case, or None if no recipe knows its kind."""
    case = Case.of(row, target, left_out)
    build = RECIPES.get(case.kind) or (conv_case if is_conv(case.kind) else None)
    if build is not None:
        build(case)
    elif not composed_case(case):
        return None
    return case.chain


def _timed(chain: Chain) -> Microseconds:
    us = chain.us("benchmark")
    # Optimisers of the framework take lists as well, of one tensor here.
    lists = sum(kernel.op_type.startswith(("Foreach", "ApplyAdam")) for kernel, _, _ in chain.steps)
    return us.plus(lists * chain.target.value("launch.foreach_us"))
