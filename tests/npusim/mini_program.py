"""Programs of a single task built by hand, so that host plans can be tested without the compiler.

Also the one accuracy rule of the device: a result may differ from the float64 twin by its own rounding and by what an
fp32 computation of the operator may lose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.format import IMAGE_FORMATS, Format, TensorDesc, pack, round_up, slot_bytes
from metadef.graph import infer_outputs
from metadef.kernel import Engine, FusedOp, Kernel
from metadef.op import get_op
from metadef.ops.numeric import narrow
from metadef.program import Binding, Operand, Program, Region, Task
from npusim.loaded import LoadedProgram

GUARD = 0xA5


@dataclass(frozen=True)
class Value:
    """An operand: its values in framework layout (any float type) and how it is stored."""

    values: np.ndarray
    dtype: DType = DType.FLOAT16
    format: Format = Format.ND
    c0: int = 0
    const: bool = False

    @property
    def desc(self) -> TensorDesc:
        blocked = self.format in (*IMAGE_FORMATS, Format.FRACTAL_Z, Format.FRACTAL_Z_C04)
        tag = Format.NCHW if blocked else Format.ND if self.format is Format.FRACTAL_NZ else self.format
        return TensorDesc(self.values.shape, self.dtype, tag, self.format, self.c0)

    @property
    def storage(self) -> np.ndarray:
        return pack(narrow(self.values, self.dtype), self.desc)


@dataclass
class MiniTask:
    """A loaded one-task program with its operands already on the device."""

    loaded: LoadedProgram
    task: Task
    inputs: list[np.ndarray | None]

    def run(self) -> list[np.ndarray]:
        """Fresh operands in, the task's results in storage layout out."""
        device = self.loaded.device
        device.memory[...] = GUARD
        for operand, array in zip(self.task.inputs, self.inputs, strict=True):
            if operand is not None and array is not None and operand.region is not Region.WEIGHTS:
                device.write_tensor(operand, array)
        self.loaded.run({}, [])
        return [device.read_tensor(operand).copy() for operand in self.task.outputs]

    def untouched(self) -> bool:
        """Whether every byte between the tensors is still what it was before the run."""
        device, program = self.loaded.device, self.loaded.program
        free = np.ones(device.memory.size, bool)
        for operand in (*self.task.inputs, *self.task.outputs):
            if operand is not None and operand.region is not Region.WEIGHTS:
                start = operand.address - program.weights_bytes
                free[start : start + operand.payload_bytes] = False
        return bool(np.all(device.memory[free] == GUARD))


def mini_task(
    op_type: str,
    operands: Sequence[Value | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    fused: Sequence[FusedOp] = (),
    out: tuple[Format, int] | None = None,
    inplace: int | None = None,
    overflow: str = "inf",
    threads: int = 1,
    numerics: str = "exact",
    engine: Engine = Engine.VECTOR,
) -> MiniTask:
    """One task; ``out`` is the storage format of the results (default: that of operand 0), ``inplace`` an input slot
    whose memory result 0 takes."""
    opdef = get_op(op_type)
    complete = opdef.complete_attrs(attrs or {})
    descs = tuple(None if item is None else item.desc for item in operands)
    base = descs[: len(descs) - sum(item.operand is not None for item in fused)]
    opdef.check_inputs(base)
    first = next(item for item in operands if item is not None)
    fmt, c0 = out or (first.format, first.c0)
    results = []
    for desc in infer_outputs(opdef, base, complete, op_type):
        tag = desc.origin_format if fmt in IMAGE_FORMATS or fmt is desc.origin_format else Format.ND
        plain = TensorDesc(desc.origin_shape, desc.dtype, tag, tag)
        results.append(plain.stored_as(fmt, c0) if fmt not in (Format.ND, Format.NCHW) else plain)
    kernel = Kernel(op_type, engine, descs, tuple(results), complete, tuple(fused))
    storages = [None if item is None else item.storage for item in operands]
    consts = [item is not None and item.const for item in operands]
    return _load(kernel, storages, consts, inplace, overflow=overflow, threads=threads, numerics=numerics)


def _load(
    kernel: Kernel, storages: list[np.ndarray | None], consts: list[bool], inplace: int | None, **options: Any
) -> MiniTask:
    weights: list[bytes] = []
    weights_bytes = arena = 0
    places: list[tuple[Region, int] | None] = []
    for storage, const in zip(storages, consts, strict=True):
        if storage is None:
            places.append(None)
        elif const:
            size = round_up(storage.nbytes, 512)
            weights.append(storage.tobytes().ljust(size, b"\0"))
            places.append((Region.WEIGHTS, weights_bytes))
            weights_bytes += size
        else:
            places.append((Region.ARENA, arena))
            arena += slot_bytes(storage.nbytes)
    inputs = []
    for slot, (place, desc) in enumerate(zip(places, kernel.inputs, strict=True)):
        if place is None or desc is None:
            inputs.append(None)
        else:
            base = 0 if place[0] is Region.WEIGHTS else weights_bytes
            inputs.append(Operand(slot, f"x{slot}", place[0], base + place[1], desc.payload_bytes, desc))
    outputs = []
    for slot, desc in enumerate(kernel.outputs):
        address = weights_bytes + arena
        if inplace is not None and slot == 0:
            address = inputs[inplace].address
        else:
            arena += slot_bytes(desc.payload_bytes)
        outputs.append(Operand(100 + slot, f"y{slot}", Region.ARENA, address, desc.payload_bytes, desc))
    task = Task(0, kernel.op_type, kernel, tuple(inputs), tuple(outputs))
    program = Program(
        "mini",
        "Ascend910B3",
        [task],
        [],
        [Binding(f"y{slot}", operand) for slot, operand in enumerate(outputs)],
        weights_bytes=weights_bytes,
        arena_bytes=arena,
    )
    blob = np.frombuffer(b"".join(weights), np.uint8)
    return MiniTask(LoadedProgram(program, blob, **options), task, storages)
