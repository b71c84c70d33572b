"""How far the first generation's fitted constants depend on what they were fitted to.

    python tools/timing_refit.py [--data DIR] [--every N] [--json]

The constants of :data:`FITTED` are refitted by one linear step in logarithms (predictions move by elasticities),
on all rows, and with every network or operator type left out in turn. Printed per kind of figure: rows, median, 90th
percentile of |predicted / measured - 1| of the constants as they stand, refitted on all rows, and refitted without the
network or type that is judged. An operator type left out is predicted with the default list of its cost class where it
has a list of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import timing_data
from metadef.target import Target, replaced
from timing_data import Pair, rows_of
from timing_sets import SETS
from timing_training_sets import FILE
from validate_timing import data_root

CHIP = "910_gen1_30core"
FITTED = (
    "launch.task_us", "launch.core_trace_us", "memory.l2_tb_s", "memory.hbm_efficiency", "paths.GM->L1.issue_cycles",
    "paths.GM->L1.bytes_per_cycle", "paths.UB->GM.burst_cycles", "cube.turned_load_factor", "cube.insert_cycles",
    "alignment.scalar_cycles_per_element", "vector.short_run_cycles", "vector.fractal_setup_cycles",
    "vector.pick_cycles", "vector.block_move_cycles",
)  # fmt: skip
SAMPLES = ("vector_traces_910", "conv_910", "conv_dx_910", "conv_dw_910", "matmul_910")
_STEP = 1.1
_LARGEST = np.log(1.5)
_ROUNDS, _RIDGE = 30, 2.0


def chip_with(values: dict[str, float]) -> Callable[..., Target | None]:
    """The comparison's lookup of chips, with some constants of the first generation's changed."""
    original = timing_data.chip.__wrapped__
    changed = replaced(original(CHIP), values)
    return lambda name, source="": changed if name == CHIP else original(name, source)


def pairs_of(data: Path) -> list[Pair]:
    """All pairs of the first generation."""
    return [pair for name in SAMPLES for pair in SETS[name](data).pairs]


def elasticities(data: Path) -> tuple[list[Pair], np.ndarray]:
    """Pairs, and d log(predicted) / d log(constant): (pairs, constants)."""
    lookup = timing_data.chip
    base = pairs_of(data)
    target = lookup(CHIP)
    assert target is not None
    columns = []
    for key in FITTED:
        timing_data.chip = chip_with({key: target.value(key) * _STEP})
        columns.append([np.log(new.predicted / old.predicted) for new, old in zip(pairs_of(data), base)])
        timing_data.chip = lookup
    return base, np.array(columns).T / np.log(_STEP)


def refit(error: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Steps of log(constant) with the smallest absolute error, none beyond a factor of 1.5."""
    step = np.zeros(slopes.shape[1])
    for _ in range(_ROUNDS):
        weight = 1 / np.maximum(np.abs(error + slopes @ step), 0.02)
        normal = (slopes.T * weight) @ slopes + _RIDGE * np.eye(len(step))
        step = np.clip(-np.linalg.solve(normal, (slopes.T * weight) @ error), -_LARGEST, _LARGEST)
    return step


def figures(error: np.ndarray) -> dict[str, float]:
    """Rows, median and 90th percentile of |predicted / measured - 1| from logarithms of the ratio."""
    off = np.abs(np.exp(error) - 1)
    return {"rows": len(off), "median": round(float(np.median(off)), 4), "p90": round(float(np.quantile(off, 0.9)), 4)}


def left_out(error: np.ndarray, slopes: np.ndarray, labels: list[set[str]], blind: np.ndarray) -> np.ndarray:
    """Errors with every label's rows judged by constants that were fitted without them; ``blind`` is added to them."""
    found: list[float] = []
    for label in sorted(set().union(*labels)):
        inside = np.array([label in names for names in labels])
        step = refit(error[~inside], slopes[~inside])
        found += list(error[inside] + blind[inside] + slopes[inside] @ step)
    return np.array(found)


def study(data: Path, every: int) -> dict[str, object]:
    """Figures as they stand, refitted, and left out by network and by operator type."""
    timing_data.sample_every = every
    pairs, slopes = elasticities(data)
    rows = {row["id"]: row for row in rows_of(data, FILE)}
    error = np.array([np.log(pair.predicted / pair.measured) for pair in pairs])
    blind = np.array([np.log(pair.left_out / pair.predicted) if pair.left_out else 0.0 for pair in pairs])
    networks = [
        {name.split("_")[0].rstrip("0123456789") for name in rows[pair.id]["models"].split(";")} for pair in pairs
    ]
    types = [{rows[pair.id]["op_type"]} for pair in pairs]
    step = refit(error, slopes)
    return {
        "constants": {key: round(float(np.exp(value)), 3) for key, value in zip(FITTED, step)},
        "as_they_stand": figures(error),
        "refitted": figures(error + slopes @ step),
        "network_left_out": figures(left_out(error, slopes, networks, np.zeros(len(error)))),
        "type_left_out": figures(left_out(error, slopes, types, blind)),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="directory with measured/")
    parser.add_argument("--every", type=int, default=1, help="take every n-th row")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(arguments)
    data = data_root(options.data)
    if not (data / "measured").is_dir():
        print(f"no measurements at {data}", file=sys.stderr)
        return 2
    result = study(data, options.every)
    if options.json:
        print(json.dumps(result, indent=2))
        return 0
    print(f"{len(FITTED)} constants; factor that a refit would put on each")
    for name, value in result.items():
        print(f"{name:18s} " + "  ".join(f"{key} {item}" for key, item in value.items()))  # type: ignore[attr-defined]
    return 0


if __name__ == "__main__":
    sys.exit(main())
