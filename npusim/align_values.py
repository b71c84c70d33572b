"""Values of rows off 32 bytes: an operator run with its rows one behind the other, and again row by row.

Rows of an odd length start anywhere when they lie densely; a row that is alone starts on 512 bytes. Both must give the
same bits. The rows compared are the first, the second and the last one. Operators whose rows are not made one by one
(by their reference's own account) are named with the reason instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from metadef.error import LabError
from metadef.format import TensorDesc, pack, round_up, slot_bytes, unpack
from metadef.kernel import Kernel
from metadef.op import CostClass, get_op
from metadef.program import Operand, Program, Region, Task
from npusim.loaded import LoadedProgram, TaskRun
from npusim.twin import run_wide

EQUAL, DIFFERENT = "equal", "different"
Arrays = Sequence[np.ndarray | None]


def odd_row_values(item: TaskRun, kernel: Kernel, soc: str, overflow: str) -> str:
    """``equal``, ``different``, or why a kernel with odd rows (and no more elements than the task) cannot be compared.

    Its operands are those that the task was run on, cut to its shapes.
    """
    try:
        whole = _settled(kernel)
    except LabError as error:
        return f"not run: {error.problems[0].message}"
    first = whole.inputs[0]
    if first is None or not all(desc.is_plain for desc in (first, *whole.outputs)):
        return "not run: it works on blocks"
    constant = [operand is not None and operand.region is Region.WEIGHTS for operand in item.task.inputs]
    operands = [
        None if array is None or own is None or desc is None else _cut(unpack(array, own), desc)
        for array, own, desc in zip(item.inputs, item.task.kernel.inputs, whole.inputs, strict=True)
    ]
    dense = _run(whole, operands, constant, soc, overflow)
    for place in _places(whole.outputs[0]):
        alone = [array if _is_table(whole, slot) else _row(array, whole.outputs[0], place)
                 for slot, array in enumerate(operands)]  # fmt: skip
        descs = [_as(desc, array) for desc, array in zip(whole.inputs, alone, strict=True)]
        try:
            single = _settled(replace(whole, inputs=tuple(descs)))
        except LabError:
            return "not run: its rows are not made one by one"
        if not _independent(whole, operands, single, alone, place):
            return "not run: its rows are not made one by one"
        made = _run(single, alone, constant, soc, overflow)
        if made[0].tobytes() != np.ascontiguousarray(_at(dense[0], place)).tobytes():
            return DIFFERENT
    return EQUAL


def _settled(kernel: Kernel) -> Kernel:
    """The kernel with the results that follow from its operands. Raises LabError if they do not fit."""
    base = len(kernel.inputs) - sum(item.operand is not None for item in kernel.fused)
    found = get_op(kernel.op_type).infer(kernel.inputs[:base], kernel.attrs)
    outputs = tuple(
        replace(desc, origin_shape=own.origin_shape) for desc, own in zip(kernel.outputs, found, strict=True)
    )
    return replace(kernel, outputs=outputs)


def _places(result: TensorDesc) -> Iterator[tuple[int, ...]]:
    """Positions of the first, the second and the last row."""
    lead = result.shape[:-1]
    count = int(np.prod(lead))
    for number in sorted({0, min(1, count - 1), count - 1}):
        yield tuple(int(at) for at in np.unravel_index(number, lead))


def _cut(array: np.ndarray, desc: TensorDesc) -> np.ndarray:
    return np.ascontiguousarray(array[tuple(map(slice, desc.origin_shape))])


def _is_table(kernel: Kernel, slot: int) -> bool:
    """Whether all rows read an operand alike: the second one of a matrix product."""
    desc = kernel.inputs[slot]
    matrix = desc is not None and len(desc.origin_shape) == 2
    return slot == 1 and matrix and get_op(kernel.op_type).cost is CostClass.MATMUL


def _row(array: np.ndarray | None, result: TensorDesc, place: tuple[int, ...]) -> np.ndarray | None:
    """An operand for one row: axes that run with the result's leading axes (counted from the back) are cut to one."""
    if array is None:
        return None
    cut = [slice(None)] * array.ndim
    for axis in range(array.ndim - 1):
        back = axis - array.ndim + len(result.shape)
        if 0 <= back < len(place) and array.shape[axis] == result.shape[back] != 1:
            cut[axis] = slice(place[back], place[back] + 1)
    return np.ascontiguousarray(array[tuple(cut)])


def _as(desc: TensorDesc | None, array: np.ndarray | None) -> TensorDesc | None:
    return None if desc is None or array is None else replace(desc, origin_shape=array.shape)


def _at(array: np.ndarray, place: tuple[int, ...]) -> np.ndarray:
    return array[tuple(slice(at, at + 1) for at in place)]


def _independent(whole: Kernel, operands: Arrays, single: Kernel, alone: Arrays, place: tuple[int, ...]) -> bool:
    """Whether the reference says that the row alone is the row among the others."""
    if single.outputs[0].shape != (*(1 for _ in place), whole.outputs[0].shape[-1]):
        return False
    among = run_wide(whole, operands, wide=np.float64)[0]
    own = run_wide(single, alone, wide=np.float64)[0]
    return bool(np.allclose(_at(among, place), own, rtol=1e-9, atol=1e-12, equal_nan=True))


def _stored(array: np.ndarray, kernel: Kernel, slot: int) -> np.ndarray:
    desc = kernel.inputs[slot]
    assert desc is not None
    return pack(array, desc)


def _run(kernel: Kernel, operands: Arrays, constant: Sequence[bool], soc: str, overflow: str) -> list[np.ndarray]:
    """A program of this one task, run with its operands; results in storage layout."""
    weights = bytearray()
    inputs: list[Operand | None] = []
    fed: Mapping[int, np.ndarray] = {slot: array for slot, array in enumerate(operands) if array is not None}
    for slot, array in fed.items():
        if constant[slot]:
            stored = _stored(array, kernel, slot)
            weights += stored.tobytes().ljust(round_up(max(stored.nbytes, 1), 512), b"\0")
    address, held = len(weights), 0
    for slot, desc in enumerate(kernel.inputs):
        if desc is None or slot not in fed:
            inputs.append(None)
            continue
        size = desc.payload_bytes
        at = held if constant[slot] else address
        region = Region.WEIGHTS if constant[slot] else Region.ARENA
        inputs.append(Operand(slot, f"x{slot}", region, at, size, desc))
        held += round_up(max(size, 1), 512) if constant[slot] else 0
        address += 0 if constant[slot] else slot_bytes(size)
    outputs = []
    for slot, desc in enumerate(kernel.outputs):
        outputs.append(Operand(len(inputs) + slot, f"y{slot}", Region.ARENA, address, desc.payload_bytes, desc))
        address += slot_bytes(desc.payload_bytes)
    task = Task(0, kernel.op_type, kernel, tuple(inputs), tuple(outputs))
    total = address - len(weights)
    program = Program("row", soc, [task], [], [], weights_bytes=len(weights), arena_bytes=total)
    loaded = LoadedProgram(program, np.frombuffer(bytes(weights), np.uint8), threads=1, overflow=overflow)
    for operand in inputs:
        if operand is not None and operand.region is Region.ARENA:
            loaded.device.write_tensor(operand, _stored(fed[operand.tensor], kernel, operand.tensor))
    loaded.run({}, [])
    results = [loaded.device.read_tensor(operand).copy() for operand in outputs]
    loaded.close()
    return results
