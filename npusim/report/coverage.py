"""The coverage table as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_WIDTH = 104


def print_coverage(table: Mapping[str, Any], console: Any) -> None:
    """Print every Ascend operator in a line, then the ONNX types; fits 110 columns."""
    from rich import box
    from rich.table import Table

    entries = table["ascend"]
    fast = sum(entry["fast_kernel"] for entry in entries)
    console.print(
        f"[bold]{len(entries)} Ascend operators[/bold], {fast} with kernels of their own on this host "
        "(the others run on their NumPy reference)",
        highlight=False,
    )
    shown = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1))
    for title, width in (
        ("operator", 24),
        ("runs on", 7),
        ("formats", 8),
        ("inputs", 24),
        ("types of the first", 22),
        ("fast", 4),
    ):
        shown.add_column(title, max_width=width)
    for entry in entries:
        ports = " ".join(item["name"] + _mark(item["kind"]) for item in entry["inputs"])
        first = _types(entry["inputs"][0]["types"]) if entry["inputs"] else ""
        fast_mark = "yes" if entry["fast_kernel"] else ""
        shown.add_row(entry["type"], _where(entry["engine"]), entry["formats"], ports, first, fast_mark)
    console.print(shown)
    console.print("inputs: ? optional, * any number")
    slow = [f"{entry['type']} ({_types(entry['twin_types'])})" for entry in entries if entry["twin_types"]]
    console.print("on the AI cores, yet by the NumPy reference on this host:", highlight=False)
    for line in slow:
        console.print(f"  {line}", highlight=False)
    console.print()
    mapped = [f"{entry['type']}{_opsets(entry['opsets'])}" for entry in table["onnx"]]
    console.print(f"[bold]{len(mapped)} ONNX types are mapped[/bold] (all opsets, unless given):", highlight=False)
    _columns(console, mapped)
    console.print(
        f"\n[bold]{len(table['host'])} ONNX types have no rule[/bold]: folded when compiling, or run on the host:",
        highlight=False,
    )
    _columns(console, table["host"])


def print_type(table: Mapping[str, Any], console: Any) -> None:
    """Print the declaration of one type."""
    for entry in table["ascend"]:
        console.print(f"[bold]{entry['type']}[/bold] (Ascend): {entry['doc']}", highlight=False)
        console.print(f"  runs on    {entry['engine']}, formats {entry['formats']}, cost class {entry['cost']}")
        for side in ("inputs", "outputs"):
            for port in entry[side]:
                console.print(
                    f"  {side[:-1]:10} {port['name']} ({port['kind']}): {_types(port['types'])}", highlight=False
                )
        for attr in entry["attributes"]:
            default = "required" if attr["required"] else f"default {attr['default']}"
            console.print(f"  attribute  {attr['name']}: {attr['kind']}, {default}", highlight=False)
        for source, result in entry["inplace"]:
            console.print(f"  in place   result {result} may take the memory of operand {source}", highlight=False)
        if entry["instructions"]:
            console.print(f"  executes   {', '.join(entry['instructions'])} a 256-byte repeat", highlight=False)
        fast = f"fast for {_types(entry['fast_types'])}" if entry["fast_kernel"] else "NumPy reference"
        console.print(f"  kernel     {fast} on this host", highlight=False)
    for entry in table["onnx"]:
        opsets = ", ".join(f"{first} to {last or 'newest'}" for first, last in entry["opsets"])
        console.print(f"[bold]{entry['type']}[/bold] ({entry['domain']}): mapped for opsets {opsets}", highlight=False)


def _where(engine: str) -> str:
    names = {"AIcoreEngine": "cube", "VectorEngine": "vector", "DNN_VM_GE_LOCAL": "no task"}
    return names.get(engine, "host")


def _mark(kind: str) -> str:
    return {"optional": "?", "dynamic": "*"}.get(kind, "")


def _types(types: Sequence[str]) -> str:
    return "any" if len(types) > 8 else " ".join(types)


def _opsets(ranges: Sequence[Sequence[int | None]]) -> str:
    if any(list(item) == [1, None] for item in ranges):
        return ""
    return " (" + ", ".join(f"{first}-{last or ''}" for first, last in ranges) + ")"


def _columns(console: Any, names: Sequence[str]) -> None:
    """Names filled into lines."""
    import textwrap

    for line in textwrap.wrap("  ".join(name.replace(" ", "\u00a0") for name in names), _WIDTH):
        console.print("  " + line.replace("\u00a0", " "), highlight=False, markup=False)
