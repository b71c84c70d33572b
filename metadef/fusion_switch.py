"""Reads which passes a user has switched off: GE's ``fusion_switch.cfg`` in both forms, and ``--optimization_switch``.

The plain form has lines ``PassName:off``; the JSON form is ``{"Switch": {"GraphFusion": {...}, "UBFusion": {...}}}``
where a section may name ``ALL``. Names of passes that this compiler does not have are kept: the report lists them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from metadef.error import Problem, UsageError
from metadef.rewrite import GRAPH_FUSION, UB_FUSION, Pass

_SECTIONS = {"GraphFusion": GRAPH_FUSION, "UBFusion": UB_FUSION}


def read_fusion_switch(path: str | Path, passes: Iterable[Pass], optimization_switch: str = "") -> frozenset[str]:
    """Names of the passes that a switch file turns off; ``optimization_switch`` ("P1:on;P2:off") wins over the file.

    Args:
        passes: the pipeline, which ``ALL`` is resolved with (required passes stay on).

    Raises:
        UsageError: the file cannot be read, or lines that are neither ``name:on`` nor ``name:off``, all at once.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read fusion switch file '{path}'", code="E10410", got=str(error)) from None
    return parse_fusion_switch(text, passes, optimization_switch)


def parse_fusion_switch(text: str, passes: Iterable[Pass], optimization_switch: str = "") -> frozenset[str]:
    """The same from the text of the file. Raises UsageError as :func:`read_fusion_switch`."""
    rows = _json_rows(text) if text.lstrip().startswith("{") else _plain_rows(text.splitlines())
    rows += _plain_rows(optimization_switch.split(";"))
    problems = []
    state: dict[str, bool] = {}
    known = list(passes)
    for group, name, value in rows:
        if value.lower() not in ("on", "off"):
            problems.append(
                Problem(f"switch of '{name}' is not understood", expected="PassName:on or PassName:off", got=value)
            )
        elif name == "ALL":
            for item in known:
                if item.group in (GRAPH_FUSION, UB_FUSION) and group in ("", item.group) and not item.required:
                    state[item.name] = value.lower() == "on"
        else:
            state[name] = value.lower() == "on"
    if problems:
        raise UsageError(problems)
    return frozenset(name for name, is_on in state.items() if not is_on)


def _plain_rows(lines: Iterable[str]) -> list[tuple[str, str, str]]:
    """(group "", pass name, value) of lines ``name:value``; a line without a colon has the value ""."""
    rows = []
    for line in lines:
        line = line.split("#", 1)[0].strip()
        if line:
            name, _, value = line.rpartition(":") if ":" in line else (line, "", "")
            rows.append(("", name.strip(), value.strip()))
    return rows


def _json_rows(text: str) -> list[tuple[str, str, str]]:
    try:
        document: Any = json.loads(text)
        switch = document["Switch"]
        sections = [(_SECTIONS[section], table) for section, table in switch.items()]
    except (json.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
        expected = '{"Switch": {"GraphFusion": {"PassName": "off"}, "UBFusion": {…}}}'
        raise UsageError(
            "fusion switch file is not understood", code="E10410", expected=expected, got=str(error)
        ) from None
    rows: list[tuple[str, str, str]] = []
    for group, table in sections:
        if not isinstance(table, Mapping):
            raise UsageError("a section of the fusion switch file is not an object", code="E10410", got=str(table))
        # GE lets a single pass overrule ALL wherever it stands in the section.
        rows += sorted(
            ((group, str(name), str(value)) for name, value in table.items()), key=lambda row: row[1] != "ALL"
        )
    return rows
