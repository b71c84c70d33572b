"""What every kernel builder returns: a `Call`, one future row of the task table, with all its descriptor points to.

A descriptor is an int64 array; field 0 is always the scratch memory in bytes that a thread needs for one part. Other
fields are addresses, sizes, strides in bytes, or a float32 in the low half. `task_table` turns calls into the table the
executor runs; the calls must live as long as the table is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npusim.kernels.ir import SIZE
from npusim.kernels.store import kernel_address, prepare

__all__ = ["NUMPY", "SIZE", "Call", "call", "element_name", "float_bits", "int64_table", "split_count", "task_table"]

NUMPY = {
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "b8": np.dtype(np.bool_),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
}


@dataclass
class Call:
    """One task for the executor: kernel name, number of parts, descriptor, and what must stay alive with it.

    `followed_by(expression, address)`, where there is one, makes the call that also does an elementwise expression of
    `x0` on its rounded results and stores those at another address of the device. `preceded_by(type, address)` makes
    the one that reads elements of another type from another address and rounds them to its own.
    """

    kernel: str
    parts: int
    desc: np.ndarray
    keep: list[object] = field(default_factory=list)
    followed_by: Callable[[str, int], Call] | None = None
    preceded_by: Callable[[str, int], Call] | None = None

    def row(self) -> tuple[int, int, int]:
        """(kernel address, parts, descriptor address); compiles the kernel where needed."""
        return kernel_address(self.kernel), self.parts, self.desc.ctypes.data


def call(kernel: str, parts: int, scratch_bytes: int, fields: Sequence[Any]) -> Call:
    """Build a Call: ints are stored as they are, floats as float32 bits, arrays by address (and kept alive)."""
    values = [int(scratch_bytes)]
    keep: list[object] = []
    for value in fields:
        if isinstance(value, np.ndarray):
            keep.append(value)
            values.append(value.ctypes.data)
        elif isinstance(value, float):
            values.append(float_bits(value))
        elif isinstance(value, (int, np.integer)):
            values.append(int(value))
        else:
            raise TypeError(f"a descriptor field is an int, a float or an array, not {type(value).__name__}")
    return Call(kernel, int(parts), np.array(values, np.int64), keep)


def float_bits(value: float) -> int:
    """Bits of a float32 as a non-negative int (values beyond its range become infinity)."""
    with np.errstate(over="ignore"):
        return int(np.float32(value).view(np.uint32))


def task_table(calls: Iterable[Call]) -> np.ndarray:
    """int64 [n, 3] table of the calls, all kernels compiled or loaded, descriptors moved together."""
    items = list(calls)
    prepare(c.kernel for c in items)
    _lay_together(items)
    return np.array([c.row() for c in items], np.int64).reshape(-1, 3)


def _lay_together(calls: Sequence[Call]) -> None:
    """Put the descriptors of calls that no table holds yet one behind the other, in the order they are read.

    A chain of small tasks waits for little else than the memory its descriptors lie in.
    """
    loose = list({id(call): call for call in calls if call.desc.base is None}.values())
    block = np.empty(sum(call.desc.size for call in loose), np.int64)
    end = 0
    for call in loose:
        first, end = end, end + call.desc.size
        block[first:end] = call.desc
        call.desc = block[first:end]


def int64_table(rows: Sequence[Sequence[int]] | Sequence[int]) -> np.ndarray:
    """Contiguous int64 array with at least one element, to be pointed to by a descriptor."""
    table = np.array(rows, np.int64)
    return table if table.size else np.zeros(1, np.int64)


def element_name(dtype: np.dtype | type) -> str:
    """Kernel dtype name of a NumPy dtype; raises ValueError for one no kernel knows."""
    wanted = np.dtype(dtype)
    for name, known in NUMPY.items():
        if known == wanted:
            return name
    raise ValueError(f"no kernel works on {wanted}; known are {', '.join(map(str, NUMPY.values()))}")


def split_count(work_us: float, limit: int, most: int = 8) -> int:
    """Number of parts for a task: one below about 20 us of work, up to `most`, never above `limit`."""
    wanted = 1 if work_us < 20 else min(most, max(4, int(work_us / 20)))
    return max(1, min(wanted, limit))
