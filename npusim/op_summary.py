"""Rows of a profiler's operator table as tasks that can be predicted: kernels from types, shapes and formats.

What a row does not tell (attributes) is deduced from shapes where only one reading is likely; other rows are left out
and counted by reason.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, isqrt
from pathlib import Path
from statistics import median

from metadef.cost.signature_view import signature_kernel
from metadef.dtype import DType
from metadef.error import LabError, UsageError
from metadef.format import Format, TensorDesc
from metadef.kernel import Engine, Kernel
from metadef.op import CostClass, find_op
from metadef.target import Target

NEEDED = ("OP Type", "Task Duration(us)", "Input Shapes", "Input Data Types", "Output Shapes", "Output Data Types")
_OTHER_NAMES = {"Type": "OP Type", "Duration(us)": "Task Duration(us)", "Name": "Op Name", "Block Num": "Block Dim"}
_CLOCK_COLUMNS = (("aic_total_cycles", "aicore_time(us)"), ("aiv_total_cycles", "aiv_time(us)"))
_LEAST_ROWS = 5


@dataclass(frozen=True)
class MeasuredTask:
    """A row that can be predicted: its kernel before cores are chosen, cores (0: not stated) and microseconds."""

    name: str
    kernel: Kernel
    block_dim: int
    measured_us: float


@dataclass(frozen=True)
class Loaded:
    """Rows of a file: those that count, and how many were left out for which reason."""

    tasks: tuple[MeasuredTask, ...]
    skipped: dict[str, int]
    clock_mhz: float | None


def read_tasks(path: Path, target: Target, predict: Callable[[MeasuredTask, Target], float]) -> Loaded:
    """Rows of an op_summary or kernel_details CSV that ``predict`` can tell a time for.

    Raises:
        UsageError: no such file, no CSV of a profiler, or nothing in it can be predicted.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
            table = csv.DictReader(stream)
            rows, columns = list(table), table.fieldnames or ()
    except (OSError, csv.Error) as error:
        raise UsageError(f"cannot read '{path}'", got=str(error), hint="pass an op_summary CSV of msprof") from error
    rows = [{_OTHER_NAMES.get(str(key), str(key)): value for key, value in row.items()} for row in rows]
    known = {_OTHER_NAMES.get(name, name) for name in columns}
    missing = [name for name in NEEDED if name not in known]
    if missing:
        raise UsageError(
            f"'{path}' is no operator table of a profiler", expected="columns " + ", ".join(NEEDED),
            got="without " + ", ".join(missing), hint="use op_summary_*.csv out of mindstudio_profiler_output",
        )  # fmt: skip
    tasks: list[MeasuredTask] = []
    skipped: Counter[str] = Counter()
    for row in rows:
        task = _task_of(row, target, predict)
        if isinstance(task, str):
            skipped[task] += 1
        else:
            tasks.append(task)
    if len(tasks) < _LEAST_ROWS:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.most_common())
        raise UsageError(
            f"'{path}' has too few rows to fit", expected=f"{_LEAST_ROWS} that can be predicted", got=f"{len(tasks)}",
            hint=f"left out: {reasons}" if reasons else "profile a whole network",
        )  # fmt: skip
    return Loaded(tuple(tasks), dict(skipped), _clock(rows))


def _task_of(
    row: dict[str, str], target: Target, predict: Callable[[MeasuredTask, Target], float]
) -> MeasuredTask | str:
    """The row as a task, or why it is left out."""
    try:
        us = float(row["Task Duration(us)"])
        inputs = _descs(row, "Input", target)
        outputs = _descs(row, "Output", target)
        cores = int(float(row.get("Block Dim") or 0))
    except (KeyError, TypeError, ValueError, AttributeError):
        return "rows that are broken"
    if not us > 0 or not isfinite(us) or not outputs:
        return "rows without a duration or a result"
    kind = row["OP Type"]
    try:
        kernel = _kernel_of(kind, inputs, outputs, target)
        if kernel is None:
            return f"of type {kind}"
        task = MeasuredTask(row.get("Op Name") or kind, kernel, cores, us)
        predict(task, target)
    except (LabError, ArithmeticError, LookupError, TypeError, ValueError, AssertionError):
        return f"of type {kind}"
    return task


def _descs(row: dict[str, str], side: str, target: Target) -> list[TensorDesc]:
    """Tensors of a side as they lie in memory."""
    shapes = row[f"{side} Shapes"].strip().strip('"').split(";")
    types = row[f"{side} Data Types"].split(";")
    formats = (row.get(f"{side} Formats") or "").split(";")
    formats += ["ND"] * (len(shapes) - len(formats))
    descs = []
    for text, kind, layout in zip(shapes, types, formats):
        if not text or kind in ("", "N/A"):
            continue
        shape = tuple(int(size) for size in text.split(","))
        descs.append(_stored(shape, _dtype(kind), layout.removeprefix("FORMAT_").partition(":")[0]))
    return descs


def _dtype(name: str) -> DType:
    name = name.removeprefix("DT_")
    return DType[name] if name in DType.__members__ else DType.parse(name.lower())


def _stored(shape: tuple[int, ...], dtype: DType, layout: str) -> TensorDesc:
    if layout == "NC1HWC0" and len(shape) == 5:
        n, c1, h, w, c0 = shape
        return TensorDesc((n, c1 * c0, h, w), dtype, Format.NCHW, Format.NC1HWC0, c0)
    if layout == "FRACTAL_NZ" and len(shape) > 3:
        n1, m1, rows, c0 = shape[-4:]
        return TensorDesc((*shape[:-4], m1 * rows, n1 * c0), dtype, Format.ND, Format.FRACTAL_NZ, c0)
    tag = Format.NCHW if layout == "NCHW" and len(shape) == 4 else Format.ND
    return TensorDesc(shape, dtype, tag, tag)


def _kernel_of(kind: str, inputs: list[TensorDesc], outputs: list[TensorDesc], target: Target) -> Kernel | None:
    """A kernel of types whose attributes the shapes tell: element-wise, softmax over the last axis, products."""
    if kind in ("MatMul", "MatMulV2", "MatMulV3") and len(inputs) > 1:
        a, b, c = inputs[0], inputs[1], outputs[0]
        if len(a.origin_shape) != 2 or len(b.origin_shape) != 2:
            return None
        k = a.elements // c.origin_shape[0]
        turned = {"transpose_x1": a.origin_shape[1] != k, "transpose_x2": b.origin_shape[0] != k}
        return Kernel("MatMulV2", Engine.AICORE, (a, b, None), (c,), turned)
    if kind == "Conv2D":
        return _convolution(inputs, outputs)
    opdef = find_op(kind)
    if not inputs:
        return None
    attrs: dict[str, object] = {}
    if kind == "Cast":
        attrs["dst_type"] = outputs[0].dtype
    elif kind == "SoftmaxV2":
        attrs["axes"] = (-1,)
    elif kind == "TransData":
        attrs = {"src_format": inputs[0].format.name, "dst_format": outputs[0].format.name, "groups": 1}
    elif opdef is None or opdef.cost is not CostClass.ELEMENTWISE:
        return signature_kernel(kind, inputs, outputs, target)
    return Kernel(kind, Engine.VECTOR, tuple(inputs), tuple(outputs[:1]), attrs)


def _convolution(inputs: list[TensorDesc], outputs: list[TensorDesc]) -> Kernel | None:
    """A convolution with a square window, whose size and stride the stored shapes tell; None for any other."""
    x, weight, y = inputs[0], inputs[1], outputs[0]
    if x.format is not Format.NC1HWC0 or y.format is not Format.NC1HWC0 or len(weight.shape) != 4:
        return None
    taps = weight.shape[0] // x.shape[1]
    side, (height, width), (oh, ow) = isqrt(taps), x.origin_shape[2:], y.origin_shape[2:]
    stride = max(round(height / oh), 1)
    if side * side != taps or weight.shape[0] % x.shape[1] or weight.shape[1] * 16 != y.origin_shape[1]:
        return None
    spare = [max((small - 1) * stride + side - big, 0) for big, small in ((height, oh), (width, ow))]
    pads = tuple(part for total in spare for part in (total // 2, total - total // 2))
    filters = TensorDesc(
        (y.origin_shape[1], x.origin_shape[1], side, side), x.dtype, Format.NCHW, Format.FRACTAL_Z, x.c0
    )
    attrs = {
        "strides": (1, 1, stride, stride), "pads": pads, "dilations": (1,) * 4, "groups": 1, "data_format": "NCHW",
    }  # fmt: skip
    return Kernel("Conv2D", Engine.AICORE, (x, filters, None), (y,), attrs)


def _clock(rows: Sequence[dict[str, str]]) -> float | None:
    """MHz from cycles and times of the cores, where the file has both; None else."""
    found = []
    for row in rows:
        for cycles, time in (*_CLOCK_COLUMNS, ("total_cycles", "aicore_time(us)")):
            try:
                count, us = float(row.get(cycles) or 0), float(row.get(time) or 0)
                cores = float(row.get("Block Dim") or 0)
            except ValueError:
                continue
            if count > 0 and us > 5 and cores > 0:
                found.append(count / us / cores)
    return median(found) if len(found) >= _LEAST_ROWS else None
