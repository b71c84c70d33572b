"""Figures of timing comparisons: errors of groups of pairs, a picture, and the constants behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from metadef.target import known_targets, load_target
from timing_data import Pair, family_of, measured_file, rows_of

FILES = (
    "op_trace_910_gen1", "op_profiler_910b", "op_bench_cases", "instr_mov", "instr_mmad", "instr_vec", "kernel_pipes",
    "concat_dma_910b", "matmul_bench", "conv_bench", "attention_bench", "mem_copy_bw", "model_infer",
)  # fmt: skip


def figures(pairs: list[Pair], total: int) -> dict[str, Any]:
    """rows, coverage, median, p90, bias and rank_correlation (None where there are no rows)."""
    if not pairs:
        empty = dict.fromkeys(("median", "p90", "bias", "rank_correlation"))
        return {"rows": 0, "coverage": 0.0, **empty}
    ratio = np.array([pair.predicted / pair.measured for pair in pairs])
    error = np.abs(ratio - 1)
    return {
        "rows": len(pairs),
        "coverage": round(len(pairs) / max(total, 1), 4),
        "median": round(float(np.median(error)), 4),
        "p90": round(float(np.quantile(error, 0.9)), 4),
        "bias": round(float(np.median(ratio)), 4),
        "rank_correlation": rank_correlation([pair.measured for pair in pairs], [pair.predicted for pair in pairs]),
    }


def rank_correlation(left: list[float], right: list[float]) -> float | None:
    """Spearman's rank correlation with ties sharing their mean rank; None below three rows."""
    if len(left) < 3:
        return None
    ranks = []
    for values in (left, right):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        last = np.cumsum(counts)
        ranks.append((last - (counts - 1) / 2)[inverse])
    if min(np.std(part) for part in ranks) == 0:
        return None
    return round(float(np.corrcoef(*ranks)[0, 1]), 4)


def index_rows(data: Path) -> dict[str, dict[str, str]]:
    """Every measured row by id, with ``file`` added and without the doubtful ones."""
    found: dict[str, dict[str, str]] = {}
    for name in FILES:
        for row in rows_of(data, name):
            if is_trusted(row):
                found[row["id"]] = {**row, "file": name}
    return found


def is_trusted(row: dict[str, str]) -> bool:
    """Raw profiler data or a published device time (trust A and B), and not suspect."""
    host_timed = row.get("timing") == "host_event" and "s0" in row
    return row.get("trust") != "C" and row.get("suspect", "0") in ("", "0") and not host_timed


def group_key(row: dict[str, str], by: str) -> str:
    """The group of a row of :func:`index_rows`: its ``file``, chip family of a file, ``chip`` or operator ``type``."""
    kind = row.get("op_type") or row.get("path") or row.get("instr") or row.get("kernel") or row.get("model", "")
    kind = kind or row.get("impl", "")
    family = f"{row['file']}:{family_of(row['soc'])}"
    keys = {"file": row["file"], "chip": row["soc"], "type": f"{row['file']}:{kind}", "family": family}
    return keys[by]


def grouped(pairs: Iterable[Pair], rows: dict[str, dict[str, str]], by: str) -> dict[str, tuple[list[Pair], int]]:
    """Pairs and number of measured rows of every group that :func:`group_key` names, in order of name."""
    totals: dict[str, int] = {}
    for row in rows.values():
        totals[group_key(row, by)] = totals.get(group_key(row, by), 0) + 1
    groups: dict[str, list[Pair]] = {}
    for pair in {pair.id: pair for pair in pairs if pair.id in rows}.values():
        groups.setdefault(group_key(rows[pair.id], by), []).append(pair)
    return {name: (groups.get(name, []), totals[name]) for name in sorted(totals)}


def has_measurements(data: Path) -> bool:
    """Whether a directory holds any file of measurements."""
    return any(measured_file(data, name).is_file() for name in FILES)


def file_sets(pairs: Iterable[Pair], rows: dict[str, dict[str, str]]) -> dict[str, dict[str, Any]]:
    """Figures of each file over all its rows that are not doubtful, of whatever chip, and of each chip family in it."""
    pairs = list(pairs)
    whole, parts = grouped(pairs, rows, "file"), grouped(pairs, rows, "family")
    found = {}
    for name, group in whole.items():
        found[name] = figures(*group)
        own = {key: part for key, part in parts.items() if key.startswith(f"{name}:")}
        if len(own) > 1:
            found |= {key: figures(*part) for key, part in own.items() if part[0]}
    return found


def left_out(pairs: Iterable[Pair], rows: dict[str, dict[str, str]]) -> dict[str, dict[str, Any]]:
    """Per file: what the error is when each operator type is predicted without knowing its own instruction list."""
    found = {}
    for name, (group, total) in grouped(pairs, rows, "file").items():
        known = [pair for pair in group if pair.left_out is not None]
        if known:
            blind = [replace(pair, predicted=float(pair.left_out or 0)) for pair in known]
            found[name] = {"fitted": figures(known, total), "left_out": figures(blind, total)}
    return found


def constant_counts() -> dict[str, tuple[int, int]]:
    """Per chip: (constants that its file or an ancestor states, those of them that were fitted)."""
    counts = {}
    for soc in known_targets():
        constants = load_target(soc).constants
        fitted = sum("fit" in item.source.split() or item.source.startswith("fit") for item in constants.values())
        counts[soc] = (len(constants), fitted)
    return counts


def draw(samples: dict[str, list[Pair]], path: Path) -> None:
    """Predicted against measured, both axes logarithmic, a colour per set."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 8))
    for (name, pairs), colour in zip(samples.items(), plt.get_cmap("tab20").colors * 2):
        measured, predicted = [pair.measured for pair in pairs], [pair.predicted for pair in pairs]
        axes.loglog(measured, predicted, ".", markersize=3, color=colour, label=f"{name} ({len(pairs)})")
    low, high = axes.get_xlim()
    for factor, style in ((1.0, "-"), (1.3, ":"), (1 / 1.3, ":")):
        axes.plot([low, high], [low * factor, high * factor], style, color="0.4", linewidth=0.8)
    axes.set(xlabel="measured (us or cycles)", ylabel="predicted", title="Timing against published measurements")
    axes.legend(fontsize=7, markerscale=3)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)
