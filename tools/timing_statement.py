"""The README's table of how far predicted times are from measured ones, made of a run of validate_timing.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metadef.files import write_text

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- timing table -->", "<!-- end of timing table -->"
MEASUREMENTS = (
    ("910B: transfers over one path", "instr_mov:910B"),
    ("910B: cube instructions", "instr_mmad:910B"),
    ("910B: vector instructions", "instr_vec"),
    ("910B: sample kernels, copies, additions", "kernel_pipes:910B"),
    ("910B: concat kernels", "concat_dma_910b"),
    ("910B: scans and copies by size", "mem_copy_bw"),
    ("910B: products in 16 bits", "matmul_16bit_910b"),
    ("910B: products in fp32", "matmul_fp32_910b"),
    ("910B: operators of profiles", "op_profiler_910b"),
    ("910B: benchmark cases, composed ones included", "op_bench_cases:910B"),
    ("first generation: operators of training steps, split over cores as published", "op_trace_910_gen1"),
    ("the same, split over cores by rule", "own_split_910"),
    ("first generation: convolutions alone", "conv_910"),
    ("first generation: products alone", "matmul_910"),
    ("310P3: whole networks", "networks_310p3"),
    ("950: transfers over one path", "instr_mov:950"),
    ("950: cube instructions", "instr_mmad:950"),
    ("950: sample kernels, copies, additions", "kernel_pipes:950"),
    ("950: benchmark cases, composed ones included", "op_bench_cases:950"),
)
"""What a line of the table says, and the set it is taken from."""
TYPES_LEFT_OUT = (
    ("910B: operators of profiles, the type taken as unknown", "op_profiler_910b"),
    ("910B and 950: benchmark cases, their types taken as unknown", "op_bench_cases"),
    ("first generation: operators, the type taken as unknown", "op_trace_910_gen1"),
)


def table(result: Mapping[str, Any]) -> str:
    """Markdown of ``result`` (the object that ``--slow --left-out --json`` prints).

    Raises KeyError where a set of the table was not run.
    """
    rows = [(label, result["sets"][name]) for label, name in MEASUREMENTS]
    rows += [(label, result["left_out"][name]["left_out"]) for label, name in TYPES_LEFT_OUT]
    lines = ["| measurements | rows | median | 90th percentile |", "| --- | --- | --- | --- |"]
    for label, row in rows:
        lines.append(f"| {label} | {row['rows']:,} | {row['median']:.1%} | {row['p90']:.0%} |".replace("%", " %"))
    return "\n".join(lines)


def write(result: Mapping[str, Any], readme: Path = README) -> None:
    """Put the table between its two marks in the README.

    Raises ValueError where a mark is missing.
    """
    text = readme.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{readme} has no place for the table: {BEGIN} … {END}")
    write_text(readme, f"{head}{BEGIN}\n{table(result)}\n{END}{tail}")
