"""Rows off 32 bytes: what they cost, and that they keep values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from npusim.align_rows import RowCost, row_costs, with_rows
from npusim.align_values import odd_row_values
from npusim.session import InferenceSession


def row_study(session: InferenceSession, feeds: Mapping[str, np.ndarray]) -> list[RowCost]:
    """:func:`row_costs` of the session's program, with values, on what its tasks read when it runs on these feeds."""
    program, target = session.program, session.target
    costs = {row.task: row for row in row_costs(program, target)}
    for item in session.run_layers(feeds):
        row = costs.get(item.task.id)
        if row is not None:
            kernel = item.task.kernel if row.own == "off" else with_rows(item.task.kernel, False)
            values = odd_row_values(item, kernel, program.soc, target.overflow)
            costs[row.task] = replace(row, values=values)
    return list(costs.values())
