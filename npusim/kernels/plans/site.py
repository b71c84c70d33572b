"""What a planner function sees of a task: host addresses, constants, attributes and the rules of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from metadef.dtype import DType
from metadef.format import Format
from metadef.kernel import Kernel
from metadef.ops.numeric import widen
from metadef.program import Operand, Region, Task
from npusim.device import Device, release_pages
from npusim.kernels.desc import Call

ELEMENT_NAMES = {
    DType.FLOAT: "f32",
    DType.FLOAT16: "f16",
    DType.BF16: "bf16",
    DType.INT8: "i8",
    DType.UINT8: "u8",
    DType.BOOL: "b8",
    DType.INT16: "i16",
    DType.INT32: "i32",
    DType.INT64: "i64",
}


FFT = "fft_"
"""Beginning of the name of an algorithm by Fourier transforms; the edge of its tiles follows."""
T = TypeVar("T")


class NoFastKernel(Exception):
    """No fast kernel exists for this combination; the text says why, and the task runs on its twin."""


@dataclass(frozen=True)
class PlanOptions:
    """How results may be computed; see :class:`npusim.loaded.LoadedProgram`."""

    saturate: bool = False
    numerics: str = "exact"
    deterministic: bool = False


class Site:
    """A task on its device. ``packing``: calls that fill packed weights; they run before the task, once a load."""

    def __init__(
        self,
        task: Task,
        device: Device,
        options: PlanOptions,
        loaded: frozenset[int] = frozenset(),
        packed: dict[object, Any] | None = None,
        chosen: Callable[[int, Callable[[], str]], str] | None = None,
    ) -> None:
        """``loaded`` are tensors in the arena that hold a streamed weight right now; ``packed`` is what programs over
        the same weights share; ``chosen(task id, choose)`` is the algorithm of a task, from earlier where it is known.
        """
        self.task = task
        self.kernel: Kernel = task.kernel
        self.device = device
        self.options = options
        self.loaded = loaded
        self.packing: list[Call] = []
        self._packed: dict[object, Any] = {} if packed is None else packed
        self._chosen = chosen

    def algorithm(self, choose: Callable[[], str]) -> str:
        """How this computer carries the task out: as it was chosen before, or as ``choose`` says."""
        return choose() if self._chosen is None else self._chosen(self.task.id, choose)

    @property
    def attrs(self) -> dict[str, Any]:
        return dict(self.kernel.attrs)

    def has(self, slot: int) -> bool:
        """Whether input ``slot`` is there."""
        return slot < len(self.task.inputs) and self.task.inputs[slot] is not None

    def input(self, slot: int) -> Operand:
        """Input ``slot``. Raises NoFastKernel if it is absent."""
        operand = self.task.inputs[slot] if slot < len(self.task.inputs) else None
        if operand is None:
            raise NoFastKernel(f"input {slot} of {self.kernel.op_type} is absent")
        return operand

    def output(self, slot: int = 0) -> Operand:
        return self.task.outputs[slot]

    def plain_operand(self) -> Operand:
        """Input 0. Raises NoFastKernel if it or the result is blocked, or if the task has a fused chain."""
        x, out = self.input(0), self.output()
        if not (x.desc.is_plain and out.desc.is_plain):
            raise NoFastKernel(f"{self.kernel.op_type} on {(out if x.desc.is_plain else x).desc.format.name}")
        if self.kernel.fused:
            raise NoFastKernel(f"{self.kernel.op_type} with a fused chain")
        return x

    def moved_operand(self) -> Operand:
        """Input 0, plain or in NC1HWC0 as the result is. Raises NoFastKernel otherwise, or for a fused chain."""
        x, out = self.input(0), self.output()
        if x.desc.is_plain and out.desc.is_plain:
            return self.plain_operand()
        blocked = x.desc.format is out.desc.format is Format.NC1HWC0 and x.desc.origin_format is Format.NCHW
        if not blocked or x.desc.c0 != out.desc.c0 or self.kernel.fused:
            raise NoFastKernel(f"{self.kernel.op_type} from {x.desc.format.name} to {out.desc.format.name}")
        return x

    def address(self, operand: Operand) -> int:
        """Host address of an operand."""
        return self.device.host_address(operand.address)

    def element(self, operand: Operand) -> str:
        """Element name in the kernels' words. Raises NoFastKernel for a type without kernels."""
        try:
            return ELEMENT_NAMES[operand.desc.dtype]
        except KeyError:
            raise NoFastKernel(f"no kernels for {operand.desc.dtype.label}") from None

    def is_constant(self, slot: int) -> bool:
        return self.has(slot) and self._holds_weight(self.input(slot))

    def _holds_weight(self, operand: Operand) -> bool:
        return operand.region is Region.WEIGHTS or operand.tensor in self.loaded

    def constant(self, slot: int) -> np.ndarray:
        """A constant operand in framework layout (a copy; bfloat16 as its bits). Raises NoFastKernel if it is computed.

        The mapped pages it came from are let go, so that weights stay in memory once: in the packed form made of this.
        """
        operand = self._constant_operand(slot)
        return self._taken(operand, self.device.read_origin(operand))

    def wide_constant(self, slot: int) -> np.ndarray:
        """A constant float operand as float32, taken as :meth:`constant` takes it."""
        return widen(self.constant(slot), self.input(slot).desc.dtype)

    def stored_constant(self, slot: int) -> np.ndarray:
        """A constant operand in storage layout, taken as :meth:`constant` takes it."""
        operand = self._constant_operand(slot)
        return self._taken(operand, self.device.read_tensor(operand))

    def packed(self, kind: object, slots: Sequence[int], make: Callable[[], T]) -> T:
        """The packed form of constant operands, made once for all tasks and gears that want the same.

        ``kind`` says what the form depends on beside the operands themselves.
        """
        operands = [self.input(slot) if self.has(slot) else None for slot in slots]
        if any(item is not None and item.tensor in self.loaded for item in operands):
            return make()
        key = (kind, *(None if item is None else (item.address, item.desc) for item in operands))
        if key not in self._packed:
            self._packed[key] = make()
        found: T = self._packed[key]
        return found

    def _taken(self, operand: Operand, array: np.ndarray) -> np.ndarray:
        stored = self.device.bytes_at(operand.address, operand.payload_bytes)
        taken = array.copy() if np.may_share_memory(array, stored) else array
        release_pages(stored)
        return taken

    def _constant_operand(self, slot: int) -> Operand:
        operand = self.input(slot)
        if not self._holds_weight(operand):
            raise NoFastKernel(f"input {slot} of {self.kernel.op_type} is not constant")
        return operand
