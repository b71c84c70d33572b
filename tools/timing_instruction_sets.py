"""Single instructions: transfers, products and vector instructions of the vendor's tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from metadef.cost import engine
from metadef.cost.run import run_stream
from metadef.cost.streams import CoreStream, transfer
from metadef.target import Target
from timing_data import Pair, Sample, collect, rows_of

_TABLED = {"L1_TO_FB": (15.0, 32.0)}
"""Paths that no kernel here uses, as (start, bytes a cycle) of the table."""
_TABLE_MHZ = {"950": 1650}
"""Clocks of the tables that are not at 1800 MHz."""
_STREAMED = 64
"""Moves behind each other in the 910B1 table of paths into L0; the 910B3 one has single moves, as for mmad."""
_PATHS = {
    "GM_TO_UB": "GM->UB", "UB_TO_GM": "UB->GM", "GM_TO_L1": "GM->L1", "GM_TO_L1_TRANS": "GM->L1 ND2NZ",
    "L1_TO_L0A": "L1->L0A", "L1_TO_L0B": "L1->L0B", "L1_TO_BT": "L1->BT", "L0C_TO_GM": "L0C->GM",
    "L0C_TO_GM_TRANS": "L0C->GM NZ2ND", "GM_TO_L0A": "GM->L0A", "GM_TO_L0B": "GM->L0B", "UB_TO_UB": "UB->UB",
    "L1_TO_UB": "L1->UB", "UB_TO_L1": "UB->L1", "L0C_TO_UB": "L0C->UB", "L0C_TO_L1": "L0C->L1", "L1_TO_GM": "L1->GM",
}  # fmt: skip


def moves(data: Path) -> Sample:
    """One transfer at a time on one core. The 910B1 curve GM->UB was taken cold, the 910B3 one warm."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        size = float(row["x"]) * (512 if row["x_kind"] == "repeat_512B" else 1024)
        path = _PATHS.get(row["path"])
        if row["path"] in _TABLED:
            start, rate = _TABLED[row["path"]]
            return Pair(row["id"], f"{row['path']} {size:.0f} B", _move_cycles(row, size), start + size / rate)
        if path is None:
            return None
        cold = float(row["soc"] == "910B1" and path == "GM->UB")
        move = transfer(target, path, cold=cold, to_memory=cold, unit_bytes=size, unit_rows=1)
        count = _STREAMED if row["soc"] == "910B1" and "L0" in path and path.startswith("GM") else 1
        stream = CoreStream(4, None, move[None, :], 1, np.zeros((0, len(engine.WORK))), count, 1, 1, 0)
        cycles = run_stream(stream, target, 1).cycles / count
        return Pair(row["id"], f"{row['soc']} {path} {size:.0f} B", _move_cycles(row, size), cycles)

    return collect(rows_of(data, "instr_mov"), predict)


def _move_cycles(row: dict[str, str], size: float) -> float:
    """Cycles of a move; where only a rate is printed, at the clock that the table was taken at."""
    clock = _TABLE_MHZ.get(row["soc"], 1800) * 1e6
    return float(row["cycles_per_move"] or 0) or size / (float(row["bandwidth_gbps"]) * 2**30) * clock


def products(data: Path) -> Sample:
    """One mmad: streamed on 910B1 and 950, isolated on 910B3."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        m, k, n = (int(row[name]) for name in "mkn")
        parts = -(-m // 16) * -(-k // 16) * -(-n // 16)
        kind = "isolated" if row["soc"] == "910B3" else "streamed"
        overhead = target.value(f"cube.{kind}_overhead_cycles")
        return Pair(row["id"], f"mmad {m}x{k}x{n}", float(row["cycles_derived"]), parts + overhead)

    return collect(rows_of(data, "instr_mmad"), predict)


# -- vector ------------------------------------------------------------------------------------------------------------

_VECTOR = {
    "VCONV": "cast", "VECTORDUP": "dup", "VCMPVS": "compare_scalar", "VCMPV": "compare", "VSEL": "select",
    "VCADD": "reduce_sum", "VCMAX": "reduce_max", "VCMIN": "reduce_min", "VCGADD": "block_sum", "VCGMAX": "block_max",
    "VCGMIN": "block_min", "VCPADD": "pair_add", "VGATHERB": "gather_block", "VLRELU": "leaky_relu",
    "VADDRELU": "add_relu", "VSHL": "shift_left", "VSHR": "shift_right", "VBRCB": "broadcast_block",
    "VCMP": "compare", "VADDRELUCONV": "add_relu", "VSUBRELU": "add_relu", "VSUBRELUCONV": "add_relu",
    "VMULCONV": "mul", "VMADDRELU": "madd", "VCONVDEQ": "cast", "VCONVVDEQ": "cast",
    "VREDUCE": "squeeze", "VMRGSORT": "merge_sort4",
}  # fmt: skip
_APART = {(name, "FP16_FP16_FP16") for name in ("VADD", "VMUL")}
"""Instructions whose sources the table kept in different bank groups: two-source ones of one cycle a repeat."""
_TWO_SOURCES = {"add", "sub", "mul", "max", "min", "and", "or", "select", "compare", "axpy", "add_relu"}


def _measured_cycles(row: dict[str, str]) -> float:
    """Cycles of one instruction; where the column holds those of a run of a thousand, a thousandth."""
    by_rate = int(row["elements"]) / float(row["elements_per_cycle"])
    cycles = float(row["cycles_per_instr"] or by_rate)
    return cycles / 1000 if cycles > 500 * by_rate else cycles


def vector_instructions(data: Path) -> Sample:
    """One vector instruction; most two-source ones were measured with their sources in one bank group."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        name = _VECTOR.get(row["instr"], row["instr"].removeprefix("V").lower())
        if name not in target.vector_mnemonics:
            return None
        measured = _measured_cycles(row)
        width = 4 if "32" in row["dtypes"].split("_")[0] else 2
        first, further = target.vector_instruction(name, width)
        meet = name in _TWO_SOURCES and further == 1 and (row["instr"], row["dtypes"]) not in _APART
        lost = target.value("vector.bank_conflict_cycles") if meet else 0
        predicted = max(first, (further + lost) * int(row["repeat"]))
        return Pair(row["id"], f"{name} x{row['repeat']}", measured, predicted)

    return collect(rows_of(data, "instr_vec"), predict)
