"""Compare predicted times with published measurements of real chips.

    python tools/validate_timing.py [--data DIR] [--json] [--sets NAME ...] [--by chip|type ...] [--worst N]
                                    [--plot FILE] [--constants] [--left-out] [--slow] [--readme]

Per set: ``rows`` used, ``coverage`` (share of the set's rows that could be expressed), ``median`` and ``p90`` of
|predicted / measured - 1|, ``bias`` (median of predicted / measured) and ``rank_correlation`` (Spearman).
There is a set for each kind of measurement, and one for each file (``FILE``, and ``FILE:FAMILY`` where a file has
several chip families), whose coverage counts all rows of the file that are not doubtful, of whatever chip.
``--by`` adds the same figures per chip or operator type; ``--left-out`` what the error is for operator types whose own
instruction list is not used. Sets that compile whole networks run with --slow only. ``--readme`` runs everything the
README's table of accuracy is made of, and writes the table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import timing_statement
from timing_data import Pair
from timing_figures import constant_counts, draw, figures, file_sets, grouped, has_measurements, index_rows, left_out
from timing_sets import OWN_SPLIT, SETS, SLOW, Sample

DATA_VARIABLE = "NPUSIM_DATA"


def data_root(given: str | None = None) -> Path:
    """The directory that holds ``measured/``: the argument, NPUSIM_DATA, or ``shared`` beside the repository."""
    beside = Path(__file__).resolve().parent.parent.parent / "shared"
    return Path(given or os.environ.get(DATA_VARIABLE) or beside)


def validate(data: Path, names: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """Figures of each set by name."""
    samples = {name: SETS[name](data) for name in names or [name for name in SETS if name not in SLOW]}
    return {name: figures(sample.pairs, sample.total) for name, sample in samples.items()}


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.readme:
        options.slow = options.left_out = True
        options.sets = None
    data = data_root(options.data)
    if not has_measurements(data):
        print(f"no measurements at {data}: set {DATA_VARIABLE} or pass --data", file=sys.stderr)
        return 2
    names = options.sets or [name for name in SETS if options.slow or name not in SLOW]
    result: dict[str, Any] = {"sets": {}}
    samples: dict[str, Sample] = {}
    for name in names:
        samples[name] = sample = SETS[name](data)
        result["sets"][name] = row = figures(sample.pairs, sample.total)
        if not options.json:
            _print_row(name, row)
            _print_worst(sample.pairs, options.worst)
    pairs = [pair for name, sample in samples.items() if name not in OWN_SPLIT for pair in sample.pairs]
    rows = index_rows(data)
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    if not options.sets:
        tables["sets"] = file_sets(pairs, rows)
        if options.slow:
            own = [samples[name] for name in OWN_SPLIT]
            every = [pair for sample in own for pair in sample.pairs]
            tables["sets"]["own_split_910"] = figures(every, sum(sample.total for sample in own))
        result["sets"] |= tables["sets"]
    for by in options.by:
        tables[by] = {name: figures(*group) for name, group in grouped(pairs, rows, by).items()}
        result[by] = tables[by]
    if options.left_out:
        result["left_out"] = left_out(pairs, rows)
        tables["left_out"] = {
            f"{name} ({kind})": row for name, kinds in result["left_out"].items() for kind, row in kinds.items()
        }
    if not options.json:
        _print_tables(tables)
    if options.constants:
        result["constants"] = constant_counts()
        if not options.json:
            for soc, (count, fitted) in result["constants"].items():
                print(f"{soc:22s} {count} constants, {fitted} of them fitted")
    if options.json:
        print(json.dumps(result, indent=2))
    if options.readme:
        timing_statement.write(result)
    if options.plot:
        draw({name: sample.pairs for name, sample in samples.items()}, Path(options.plot))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data",
        help=f"directory with the files, or with measured/ that has them (default: ${DATA_VARIABLE} or ../shared)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--sets", nargs="+", choices=sorted(SETS), help="only these sets")
    parser.add_argument("--by", nargs="+", default=[], choices=("chip", "type"), help="also per chip or operator type")
    parser.add_argument("--left-out", action="store_true", help="errors of operator types taken as unknown")
    parser.add_argument("--worst", type=int, default=0, help="list the rows with the largest errors of each set")
    parser.add_argument("--plot", help="picture of predicted against measured (png, svg, pdf)")
    parser.add_argument("--constants", action="store_true", help="how many constants each chip has, and fitted ones")
    parser.add_argument(
        "--readme", action="store_true", help="write the README's table of accuracy (everything is run)"
    )
    parser.add_argument("--slow", action="store_true", help="also the sets that compile whole networks")
    return parser


def _print_row(name: str, row: dict[str, Any]) -> None:
    print(f"{name:22s} " + "  ".join(f"{key} {value}" for key, value in row.items()))


def _print_tables(tables: dict[str, dict[str, dict[str, Any]]]) -> None:
    titles = {"sets": "files", "chip": "chips", "type": "operator types", "left_out": "operator types left out"}
    for key, table in tables.items():
        print(f"\n{titles[key]}")
        for name, row in table.items():
            _print_row(name, row)


def _print_worst(pairs: list[Pair], count: int) -> None:
    def error(pair: Pair) -> float:
        return abs(float(np.log(pair.predicted / pair.measured)))

    for pair in sorted(pairs, key=error, reverse=True)[:count]:
        ratio, cause = pair.predicted / pair.measured, getattr(pair.predicted, "cause", "")
        times = f"measured {pair.measured:10.1f}  predicted {pair.predicted:10.1f}"
        print(f"    {ratio:6.2f}  {times}  {pair.what}" + (f"  [{cause}]" if cause else ""))


if __name__ == "__main__":
    sys.exit(main())
