"""Published measurements read and matched with targets: what the sets of ``timing_sets`` are made of."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from metadef.cost.run import run_kernel
from metadef.cost.streams import MemoryState
from metadef.dtype import DType
from metadef.error import LabError
from metadef.format import Format, TensorDesc
from metadef.kernel import Kernel
from metadef.target import Target, load_target, replaced
from npusim.timing.l2 import L2

CHIPS = {
    "910B1": "Ascend910B1", "910B3": "Ascend910B3", "910B1=910B3": "Ascend910B1", "910B_A2_24c": "Ascend910B1",
    "A3_24c": "Ascend910B1", "910B_A2": "Ascend910B2", "910B2": "Ascend910B2", "910B4": "Ascend910B4",
    "910B_20c": "Ascend910B3", "910B3_or_93": "Ascend910B3", "910B_20c_1650": "Ascend910_9362",
    "910_9362": "Ascend910_9362",
    "310P3": "Ascend310P3",
    "910_gen1_30core": "Ascend910B-30core",
    "950": "Ascend950PR", "950PR": "Ascend950PR",
}  # fmt: skip
"""Names in the data and the target that stands for them. An A3 die and an unnamed A2 part count as their A2 twins."""

MEASURED_MHZ = {"Ascend910B4": 1650, "Ascend910_9362": 1650}
"""Clocks of the measured boards where they are not those of the platform file (from cycles divided by time)."""


BOARD_TB_S = {"cannbench": {"950PR": 1.4}}
"""Memory of boards that are not the platform file's, by source of the data. Those 950 boards move 1.24 to 1.31 TB/s,
reads alone and both ways, where the boards of the vendor's samples move 1.62: a bin of 1.4 TB/s, at nine tenths."""


FAMILIES = {
    "910B": frozenset({
        "910B1", "910B2", "910B3", "910B1=910B3", "910B3_or_93", "910B4", "910B_A2", "910B_A2_24c", "910B_20c",
        "910B_20c_1650", "910B_unspecified", "910_9362", "A3", "A3_24c", "A2_A3",
    }),
    "950": frozenset({"950", "950PR"}),
}  # fmt: skip
"""Names in the data by chip family; A3 dies count as 910B."""


@dataclass(frozen=True)
class Pair:
    """One measurement. ``measured`` and ``predicted`` share a unit (microseconds or cycles)."""

    id: str
    what: str
    measured: float
    predicted: float
    left_out: float | None = None
    """What is predicted if the row's operator types are unknown, by the default list of their cost class; None where no
    list takes part (products, attention)."""


@dataclass(frozen=True)
class Sample:
    """A set: pairs, and how many rows of the chips concerned the data has."""

    pairs: list[Pair]
    total: int


@cache
def chip(name: str, source: str = "") -> Target | None:
    """The target that stands for a chip of the data, as the board of that source has it, or None."""
    soc = CHIPS.get(name)
    if soc is None:
        return None
    target = load_target(soc)
    if soc in MEASURED_MHZ:
        target = replaced(target, {"cores.clock_mhz": MEASURED_MHZ[soc]})
    memory = next((board.get(name) for head, board in BOARD_TB_S.items() if source.startswith(head)), None)
    if memory is not None:
        target = replaced(target, {"memory.hbm_nominal_tb_s": memory, "memory.hbm_efficiency": 0.9})
    return target


def family_of(name: str) -> str:
    """The family of a chip of the data; a chip of no family is its own."""
    return next((family for family, members in FAMILIES.items() if name in members), name)


def measured_file(data: Path, name: str) -> Path:
    """Where a file of measurements lies: in ``measured/`` of a directory, or in the directory itself."""
    inner = data / "measured" / f"{name}.csv"
    return inner if inner.is_file() else data / f"{name}.csv"


def rows_of(data: Path, name: str) -> list[dict[str, str]]:
    """Rows of a file of measurements; none if the directory does not have it."""
    path = measured_file(data, name)
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return [{**row, "id": row.get("id") or f"{name}:{at}"} for at, row in enumerate(csv.DictReader(stream))]


sample_every = 1
"""Of the rows of a set, every n-th is predicted: studies that predict all sets many times take fewer."""


def collect(rows: Iterable[dict[str, str]], predict: Callable[[dict[str, str], Target], Pair | None]) -> Sample:
    """Pairs of all rows whose chip has a target; rows that cannot be expressed, or read, lower the coverage."""
    pairs, total = [], 0
    for row in list(rows)[::sample_every]:
        target = chip(row["soc"], row.get("source", ""))
        if target is None:
            continue
        total += 1
        try:
            pair = predict(row, target)
        except (LabError, LookupError, ValueError, ArithmeticError):
            pair = None
        if pair is not None:
            pairs.append(pair)
    return Sample(pairs, total)


def make_desc(shape: Iterable[int], dtype: DType, fmt: Format = Format.ND, c0: int = 0) -> TensorDesc:
    return TensorDesc(tuple(shape), dtype, Format.NCHW if c0 else Format.ND, fmt, c0)


def memory_of(kernel: Kernel, target: Target, *, cold: bool | Sequence[bool]) -> MemoryState:
    """A kernel on its own: operands cold (all, or by port), or just written by earlier tasks; L2 keeps what it holds.

    The second operand of a product or convolution in a network is a parameter, read once a step: always cold.
    """
    cache = L2(int(target.value("memory.l2_bytes")))
    spans, place = [], 0
    for desc in (*kernel.inputs, *kernel.outputs):
        size = 0 if desc is None else desc.payload_bytes
        spans.append((place, size))
        place += size + 512
    reads, writes = spans[: len(kernel.inputs)], spans[len(kernel.inputs) :]
    ports = cold if isinstance(cold, Sequence) else [cold] * len(reads)
    warm = [span for span, far in zip(reads, ports) if not far]
    if warm:
        cache.touch((), warm)
    access = cache.touch(reads, writes)
    share = tuple(1 - hit / max(size, 1) for hit, (_, size) in zip(access.hits, reads))
    if kernel.op_type in ("Conv2D", "MatMulV2") and len(share) > 1:
        share = (share[0], 1.0)
    stored = sum(size for _, size in writes)
    return MemoryState(share, access.written_back / max(stored, 1))


class Microseconds(float):
    """A predicted time; ``cause`` names what most of it is spent on."""

    cause: str = ""

    def plus(self, more: float) -> Microseconds:
        """The same with ``more`` microseconds."""
        whole = Microseconds(self + more)
        whole.cause = self.cause
        return whole


def kernel_us(kernel: Kernel, target: Target, protocol: str, *, cold: bool | Sequence[bool]) -> Microseconds:
    """Microseconds of a kernel on its own, launch included; ``cold`` as for :func:`memory_of`."""
    run = run_kernel(kernel, target, memory_of(kernel, target, cold=cold), protocol=protocol)
    parts = {"launch": run.launch_cycles}
    for name, count in run.core.why.items():
        parts[name] = parts.get(name, 0) + count * run.waves
    us = Microseconds(run.cycles / target.clock_mhz)
    us.cause = main_cause(parts, run.cycles)
    return us


def main_cause(parts: dict[str, int], cycles: int) -> str:
    """The largest part of a task's cycles, by name and share."""
    name = max(parts, key=lambda key: parts[key])
    return f"{name} {parts[name] / max(cycles, 1):.0%}"


DTYPES = {
    "float16": DType.FLOAT16, "bfloat16": DType.BF16, "float32": DType.FLOAT, "int8": DType.INT8,
    "FLOAT16": DType.FLOAT16, "DT_BF16": DType.BF16, "FLOAT": DType.FLOAT, "INT32": DType.INT32, "INT64": DType.INT64,
    "BOOL": DType.BOOL, "INT8": DType.INT8, "int32": DType.INT32,
    "uint8": DType.UINT8, "uint16": DType.UINT16, "int64": DType.INT64, "NUMBER_TYPE_BEGIN": DType.BOOL,
    "UINT8": DType.UINT8, "UINT16": DType.UINT16, "bool": DType.BOOL, "DOUBLE": DType.DOUBLE,
    "tf32": DType.FLOAT, "mxfp8": DType.INT8,
}  # fmt: skip
"""Element types by their names in the data. Eight-bit floats multiply and move as bytes do; their scales, one for 32
values, are left out."""


def parse_shapes(text: str) -> list[tuple[int, ...]]:
    return [tuple(int(size) for size in part.split(",") if size) for part in text.split(";")]
