"""Compare predicted times with published measurements of real chips.

    python tools/validate_timing.py [--data DIR] [--json] [--sets NAME ...] [--worst N] [--slow]

Per set: ``rows`` used, ``coverage`` (share of the set's rows that could be expressed), ``median`` and ``p90`` of
|predicted / measured - 1|, ``bias`` (median of predicted / measured) and ``rank_correlation`` (Spearman). Sets that
compile whole networks run with --slow only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from timing_sets import SETS, SLOW, Sample

DATA_VARIABLE = "NPUSIM_DATA"


def data_root(given: str | None = None) -> Path:
    """The directory that holds ``measured/``: the argument, NPUSIM_DATA, or ``shared`` beside the repository."""
    beside = Path(__file__).resolve().parent.parent.parent / "shared"
    return Path(given or os.environ.get(DATA_VARIABLE) or beside)


def validate(data: Path, names: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """Figures of each set by name."""
    return {name: figures(SETS[name](data)) for name in names or [name for name in SETS if name not in SLOW]}


def figures(sample: Sample) -> dict[str, Any]:
    """rows, coverage, median, p90, bias and rank_correlation of a set (None where it has no rows)."""
    pairs = sample.pairs
    if not pairs:
        empty = dict.fromkeys(("median", "p90", "bias", "rank_correlation"))
        return {"rows": 0, "coverage": 0.0, **empty}
    ratio = np.array([pair.predicted / pair.measured for pair in pairs])
    error = np.abs(ratio - 1)
    return {
        "rows": len(pairs),
        "coverage": round(len(pairs) / max(sample.total, 1), 4),
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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help=f"directory with measured/ (default: ${DATA_VARIABLE} or ../shared)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--sets", nargs="+", choices=sorted(SETS), help="only these sets")
    parser.add_argument("--worst", type=int, default=0, help="list the rows with the largest errors of each set")
    parser.add_argument("--slow", action="store_true", help="also the sets that compile whole networks")
    options = parser.parse_args(arguments)
    data = data_root(options.data)
    if not (data / "measured").is_dir():
        print(f"no measurements at {data}: set {DATA_VARIABLE} or pass --data", file=sys.stderr)
        return 2
    names = options.sets or [name for name in SETS if options.slow or name not in SLOW]
    result: dict[str, Any] = {"sets": {}}
    for name in names:
        sample = SETS[name](data)
        result["sets"][name] = row = figures(sample)
        if not options.json:
            print(f"{name:22s} " + "  ".join(f"{key} {value}" for key, value in row.items()))
            _print_worst(sample, options.worst)
    if options.json:
        print(json.dumps(result, indent=2))
    return 0


def _print_worst(sample: Sample, count: int) -> None:
    def error(index: int) -> float:
        pair = sample.pairs[index]
        return abs(float(np.log(pair.predicted / pair.measured)))

    for index in sorted(range(len(sample.pairs)), key=error, reverse=True)[:count]:
        pair = sample.pairs[index]
        ratio = pair.predicted / pair.measured
        print(f"    {ratio:6.2f}  measured {pair.measured:10.1f}  predicted {pair.predicted:10.1f}  {pair.what}")


if __name__ == "__main__":
    sys.exit(main())
