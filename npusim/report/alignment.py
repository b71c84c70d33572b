"""An alignment study as text and as a picture: slowdown of every operator against the residue of its tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.align import ELEMENT, AlignStudy, OperatorStudy
from npusim.align_micro import MicroEffect
from npusim.align_rows import RowCost
from npusim.report.pictures import new_figure
from npusim.report.units import show_bytes, show_us

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LABELLED = 12


def print_study(study: AlignStudy, console: Any, *, top: int = 20) -> None:
    """Print totals and the ``top`` operators that lose most cycles; fits 110 columns."""
    count = len(study.tensors)
    console.print(
        f"[bold]{study.model}[/bold] on {study.soc}: {count} tensors moved off the 512-byte line "
        f"({', '.join(study.tensors[:3])}{', …' if count > 3 else ''})",
        highlight=False,
    )
    _print_totals(study, console)
    if study.equal:
        console.print(f"values: results of all {len(study.operators)} tasks are equal bit for bit at every residue\n")
    else:
        for total in study.totals:
            if total.differing:
                console.print(f"values differ at residue {total.residue}: {', '.join(total.differing[:8])}")
    _print_operators(study, console, top)


def _print_totals(study: AlignStudy, console: Any) -> None:
    table = _table("address mod 512", "cycles", "time", "slowdown", "extra requests", "arena", "values")
    for total in study.totals:
        table.add_row(
            _residue(total.residue),
            f"{total.cycles:,}",
            show_us(total.us),
            f"x{total.slowdown:.3f}",
            f"{total.extra_requests:,}",
            show_bytes(total.arena_bytes),
            "differ" if total.differing else "equal",
        )
    console.print(table)


def _print_operators(study: AlignStudy, console: Any, top: int) -> None:
    residues = [total.residue for total in study.totals[1:]]
    worst = sorted(study.operators, key=lambda item: item.aligned_cycles - item.worst.cycles)[:top]
    table = _table("#", "operator", "from", "aligned", *residues, "extra req.", "cause, at worst", left=(1, 2))
    table.columns[2].max_width = 22
    for column in table.columns[:2]:
        column.no_wrap = True
    table.columns[-1].justify = "left"
    for operator in sorted(worst, key=lambda item: item.task):
        table.add_row(
            str(operator.task),
            operator.op_type,
            source_of(operator.name, operator.origins),
            f"{operator.aligned_cycles:,}",
            *(f"{operator.shifted[residue].slowdown:.2f}" for residue in residues),
            f"{operator.worst.extra_requests:,}",
            operator.worst.cause,
        )
    console.print(f"slowdown of the {len(worst)} operators that lose most, of {len(study.operators)}, in program order")
    console.print("(extra requests cost nothing where an operator waits for another pipe):")
    console.print(table)


def print_rows(rows: Sequence[RowCost], console: Any, *, top: int = 20) -> None:
    """Print what rows off 32 bytes cost; fits 110 columns."""
    if not rows:
        console.print("rows: no operator has plain operands of several rows")
        return
    shown = sorted(rows, key=lambda row: row.on_cycles - row.off_cycles)[:top]
    console.print(f"rows off 32 bytes, {len(shown)} of {len(rows)} operators with plain rows:")
    table = _table(
        "#", "operator", "from", "row", "other", "on 32 B", "off 32 B", "slowdown", "extra req.", "values",
        left=(1, 2, 9),
    )  # fmt: skip
    table.columns[2].max_width = 24
    for row in sorted(shown, key=lambda row: row.task):
        table.add_row(
            str(row.task),
            row.op_type,
            source_of(row.name, row.origins),
            f"{row.row_bytes:,} B{' odd' if row.own == 'off' else ''}",
            f"{row.other_bytes:,} B",
            f"{row.on_cycles:,}",
            f"{row.off_cycles:,}",
            f"x{row.slowdown:.2f}",
            f"{row.extra_requests:,}",
            row.values.partition(":")[0],
        )
    console.print(table)
    reasons = Counter(row.values.partition(": ")[2] for row in rows if ":" in row.values)
    for reason, count in reasons.most_common():
        console.print(f"not run, {count} of {len(rows)}: {reason}", highlight=False)


def print_micro(soc: str, effects: Sequence[MicroEffect], console: Any) -> None:
    """Print the single effects beside their published size; fits 110 columns."""
    console.print(f"[bold]Misalignment of single copies on {soc}[/bold] (302 MB, all cores)", highlight=False)
    table = _table("effect", "aligned", "misaligned", "slowdown", "published", "source", left=(0, 5))
    for effect in effects:
        table.add_row(
            effect.effect,
            show_us(effect.aligned_us),
            show_us(effect.misaligned_us),
            f"x{effect.ratio:.2f}",
            f"x{effect.published:.2f}",
            effect.source,
        )
    console.print(table)


def source_of(name: str, origins: Sequence[str]) -> str:
    """The source nodes of a task, or its own name in parentheses if the compiler added it."""
    return " + ".join(origins) if origins else f"({name})"


def alignment_figure(study: AlignStudy) -> Figure:
    """Slowdown per operator (across) and residue (up); below, cycles of the whole network by residue."""
    residues = [total.residue for total in study.totals[1:]]
    figure = new_figure(11, 6)
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 1.2))
    values = np.array([[item.shifted[residue].slowdown for item in study.operators] for residue in residues])
    image = upper.imshow(
        values, aspect="auto", cmap="YlOrRd", vmin=1.0, vmax=max(float(values.max(initial=1.0)), 1.05), origin="lower"
    )
    upper.set_yticks(range(len(residues)), [_residue(item) for item in residues])
    upper.set_ylabel("address mod 512")
    named = _most_hurt(study.operators)
    upper.set_xticks(
        [item.task for item in named], [_short(item) for item in named], rotation=60, ha="right", fontsize=7
    )
    upper.set_title(
        f"{study.model} on {study.soc}: slowdown of every operator with its tensors off the line",
        fontsize=10,
        loc="left",
    )
    figure.colorbar(image, ax=upper, label="slowdown", fraction=0.03, pad=0.01)
    labels = [_residue(total.residue) if total.residue != "0" else "aligned" for total in study.totals]
    base = study.totals[0].us
    bars = lower.barh(labels, [total.us for total in study.totals], color="#5AA2D8")
    lower.bar_label(bars, [f" {show_us(total.us)}  x{total.us / base:.3f}" for total in study.totals], fontsize=8)
    lower.set_xlim(0, max(total.us for total in study.totals) * 1.2)
    lower.set_xlabel("time of the whole network (us)")
    return figure


def _most_hurt(operators: Sequence[OperatorStudy]) -> list[OperatorStudy]:
    """Operators that get a name under the picture: those that lose most, not closer than their labels allow."""
    gap = max(len(operators) // 40, 1)
    named: list[OperatorStudy] = []
    for item in sorted(operators, key=lambda item: item.aligned_cycles - item.worst.cycles):
        if len(named) < _LABELLED and all(abs(item.task - other.task) > gap for other in named):
            named.append(item)
    return named


def _short(operator: OperatorStudy) -> str:
    label = operator.origins[0] if operator.origins else operator.name
    return f"{operator.op_type} {label if len(label) <= 16 else '…' + label[-15:]}"


def _residue(residue: str) -> str:
    return "one element" if residue == ELEMENT else f"{residue} B"


def _table(*titles: str, left: Sequence[int] = (0,)) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1))
    for index, title in enumerate(titles):
        table.add_column(title, justify="left" if index in left else "right")
    return table
