"""The device's memory: one flat address space on the host, with a checked way in and out.

Weights are the model file's own bytes, mapped read-only; arena, inputs and outputs are one zeroed, page-aligned buffer
behind them. Host plans turn device addresses into host addresses once, when a program is loaded; everything else goes
through operands, which know region, address, format and element type.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.error import ContractError, DeviceFault, Problem, UsageError, suggest
from metadef.format import Format, pack, unpack
from metadef.program import Binding, Operand, Program, Region, Span, Task
from npusim.host_memory import available_bytes, check_host_memory, host_memory_error, physical_bytes

POISON = 0x7FF7
"""Fill of unwritten memory, as a 16-bit pattern: a NaN when read as float16, float32 or float64."""


LOAD_BYTES = 8 << 20
"""Streamed weights are copied in pieces of this size, so that few pages of the file are resident at once."""


class Device:
    """Memory of one loaded program.

    Args:
        program: says how large the regions are and where tensors lie.
        weights: the weights region as bytes (uint8), a memory map or an array; it must hold ``program.weights_bytes``.
        memory: arena, inputs and outputs to use, from :func:`page_buffer`; its own when None. Programs that take turns
            (the gears of a model) may share it.

    Raises:
        ContractError: the weights are too short, or an operand lies outside its region or on an impossible address.
        HostMemoryError: this computer has less memory than the device's regions take.
    """

    def __init__(self, program: Program, weights: np.ndarray, memory: np.ndarray | None = None) -> None:
        if weights.nbytes < program.weights_bytes:
            raise ContractError(
                "the weights region is too short",
                expected=f"{program.weights_bytes} bytes",
                got=f"{weights.nbytes} bytes",
                hint="the model file is truncated; compile it again",
            )
        self.program = program
        self.weights = weights.view(np.uint8).reshape(-1)[: program.weights_bytes]
        needed = program.arena_bytes + program.io_bytes
        if memory is not None and memory.nbytes < needed:
            raise ContractError(
                "the shared memory is too short", expected=f"{needed} bytes", got=f"{memory.nbytes} bytes"
            )
        self.memory = _device_memory(program, needed) if memory is None else memory[:needed]
        self._touched = memory is not None
        self._weights_host = self.weights.ctypes.data
        self._memory_host = self.memory.ctypes.data
        _check_operands(program)

    def holds_weights_of(self, other: Device) -> bool:
        """Whether the weights of both are the same memory."""
        return self._weights_host == other._weights_host and self.weights.nbytes == other.weights.nbytes

    # -- addresses ------------------------------------------------------------------------------------------------

    def host_address(self, address: int) -> int:
        """Host address of a device address. Raises DeviceFault outside the address space."""
        base = self.program.weights_bytes
        if 0 <= address < base:
            return self._weights_host + address
        if base <= address <= self.program.memory_bytes:
            return self._memory_host + address - base
        raise DeviceFault(f"address {address:#x} is outside the device's {self.program.memory_bytes:#x} bytes")

    def bytes_at(self, address: int, size: int) -> np.ndarray:
        """A view of ``size`` bytes; read-only in the weights region. Raises DeviceFault outside the address space."""
        base, end = self.program.weights_bytes, self.program.memory_bytes
        if base <= address and address + size <= end:
            return self.memory[address - base : address - base + size]
        if address >= 0 and address + size <= base:
            return self.weights[address : address + size]
        raise DeviceFault(f"bytes {address:#x}..{address + size:#x} cross the borders of the device's regions")

    def read_tensor(self, operand: Operand) -> np.ndarray:
        """The operand's storage array: a view of device memory in its storage shape (bfloat16 as uint16)."""
        raw = self.bytes_at(operand.address, operand.payload_bytes)
        return raw.view(operand.desc.dtype.numpy).reshape(operand.desc.shape)

    def read_origin(self, operand: Operand) -> np.ndarray:
        """The operand in its framework shape; a copy where the storage format differs, else a view."""
        return unpack(self.read_tensor(operand), operand.desc)

    def write_tensor(self, operand: Operand, storage: np.ndarray) -> None:
        """Overwrite an operand with an array of its storage shape and element type. Raises DeviceFault for weights."""
        if operand.region is Region.WEIGHTS:
            raise DeviceFault(f"tensor '{operand.name}' lies in the read-only weights region")
        self.read_tensor(operand)[...] = storage

    def load(self, task: Task) -> None:
        """Copy a streamed weight from the model file into the arena; the file's pages are let go piece by piece."""
        source, target = task.inputs[0], task.outputs[0]
        assert source is not None, "a load reads a weight"
        for first in range(0, source.payload_bytes, LOAD_BYTES):
            size = min(LOAD_BYTES, source.payload_bytes - first)
            piece = self.bytes_at(source.address + first, size)
            self.bytes_at(target.address + first, size)[...] = piece
            release_pages(piece)

    # -- in and out -----------------------------------------------------------------------------------------------

    def copy_in(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Check all feeds, then copy them to the device.

        Raises:
            UsageError: unknown or missing names, wrong shapes or element types; all of them at once.
            HostMemoryError: before the first run, if less memory is free than the device takes.
        """
        arrays = checked_feeds(self.program.inputs, feeds)
        if not self._touched:
            check_host_memory(self.program, available_bytes())
            self._touched = True
        for binding in self.program.inputs:
            self.write_tensor(binding.operand, pack(arrays[binding.name], binding.operand.desc))

    def copy_out(self, names: Iterable[str] | None = None) -> list[np.ndarray]:
        """Copies of outputs in framework shape, by public name (all, in the model's order, when None).

        bfloat16 comes as the type of that name in ml_dtypes, as ONNX's own tools give it.

        Raises:
            UsageError: no output has that name.
        """
        by_name = {binding.name: binding for binding in self.program.outputs}
        wanted = list(by_name) if names is None else list(names)
        check_output_names(wanted, by_name)
        operands = [by_name[name].operand for name in wanted]
        return [public_array(self.read_origin(operand), operand.desc.dtype).copy() for operand in operands]

    # -- checked mode ---------------------------------------------------------------------------------------------

    def poison_arena(self) -> None:
        """Fill the arena with the poison pattern, so that a read of unwritten memory shows as NaN or as a fault."""
        self.memory[: self.program.arena_bytes & ~1].view(np.uint16)[...] = POISON

    def poison_results(self, task: Task) -> None:
        """Poison what a task is about to write, unless it lies on something the task reads (in-place, views)."""
        reads = [Span(item.address, item.payload_bytes) for item in task.inputs if item is not None]
        writes = [Span(item.address, item.payload_bytes) for item in task.outputs]
        for span in (*writes, *task.workspaces):
            if not any(_overlap(span, other) for other in reads):
                raw = self.bytes_at(span.address, span.bytes & ~1)
                raw.view(np.uint16)[...] = POISON

    def check_reads(self, task: Task) -> None:
        """Raises DeviceFault if a task is about to read memory that nothing has written, naming task and tensor."""
        for slot, operand in enumerate(task.inputs):
            if operand is None or operand.region is not Region.ARENA:
                continue
            count = _poisoned(self.read_tensor(operand), operand.desc.dtype)
            if count:
                raise DeviceFault(
                    f"{task.kernel.op_type} reads memory that no task has written",
                    node=task.name,
                    port=f"input {slot} ('{operand.name}')",
                    got=f"{count} of {operand.payload_bytes // operand.desc.dtype.bytes} elements unwritten",
                    hint="the plan let two live tensors share memory, or the producer left part of its result out",
                )


def _device_memory(program: Program, size_bytes: int) -> np.ndarray:
    """Memory for a program. Raises HostMemoryError where this computer has not as much, whatever is free now."""
    check_host_memory(program, physical_bytes())
    try:
        return page_buffer(size_bytes)
    except (OSError, OverflowError, MemoryError) as error:
        raise host_memory_error(program, "what the system grants") from error


def page_buffer(size_bytes: int) -> np.ndarray:
    """Zeroed uint8 memory on its own pages; pages take up physical memory when they are first touched."""
    if size_bytes == 0:
        return np.zeros(0, np.uint8)
    return np.frombuffer(mmap.mmap(-1, size_bytes), np.uint8)


def release_pages(array: np.ndarray) -> None:
    """Let the system drop the resident pages of a file-mapped array; it reads them again when they are touched.

    Arrays that no file stands behind are left alone.
    """
    mapped = _mapping_of(array)
    if mapped is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = array.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


def _mapping_of(array: np.ndarray) -> mmap.mmap | None:
    """The file map an array is a view of, or None (anonymous memory has no file to read the pages from again)."""
    holder: object = array
    while isinstance(holder, np.ndarray | memoryview):
        if isinstance(holder, np.memmap):
            return getattr(holder, "_mmap", None)
        holder = holder.base if isinstance(holder, np.ndarray) else holder.obj
    return None


def public_type(dtype: DType) -> np.dtype:
    """The NumPy type that users see; bfloat16 is that of ml_dtypes, which the onnx package brings."""
    if dtype is DType.BF16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return dtype.numpy


def public_array(array: np.ndarray, dtype: DType) -> np.ndarray:
    """An array of storage elements as users see it: the same bits."""
    return array.view(public_type(dtype)) if dtype is DType.BF16 else array


def checked_feeds(bindings: Iterable[Binding], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Feeds as arrays in the bindings' element types; strided and foreign-endian arrays are taken as they are.

    Raises:
        UsageError: unknown or missing names, wrong shapes or element types; all of them at once.
    """
    wanted = {binding.name: binding for binding in bindings}
    problems = [
        Problem(f"the model has no input '{name}'", hint=suggest(name, wanted)) for name in feeds if name not in wanted
    ]
    arrays = {}
    for name, binding in wanted.items():
        if name not in feeds:
            expected = _described(binding.operand)
            problems.append(Problem("an input is missing", port=name, expected=expected, hint=f"feed '{name}'"))
            continue
        array = np.asarray(feeds[name])
        problem = _feed_problem(binding, array)
        if problem is not None:
            problems.append(problem)
        is_brain = binding.operand.desc.dtype is DType.BF16 and array.dtype.name == "bfloat16"
        arrays[name] = array.view(np.uint16) if is_brain else array
    if problems:
        raise UsageError(problems)
    return arrays


def named_arrays(bindings: Iterable[Binding], feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Feeds as arrays: arrays stay what they are; nested lists and numbers, which state no type, take their input's.

    Raises:
        UsageError: feeds are no mapping from names, or a value is no array (a ragged list, say).
    """
    if not isinstance(feeds, Mapping):
        hint = "pass a dictionary, such as {session.get_inputs()[0].name: array}"
        raise UsageError("feeds want a name each", expected="a mapping of arrays", got=type(feeds).__name__, hint=hint)
    types = {binding.name: public_type(binding.operand.desc.dtype) for binding in bindings}
    arrays: dict[str, np.ndarray] = {}
    problems = []
    for name, value in feeds.items():
        try:
            array = np.asarray(value)
            untyped = not hasattr(value, "dtype") and name in types
            if untyped and np.can_cast(array.dtype, types[name], "same_kind"):
                array = array.astype(types[name])
            arrays[name] = array
        except (TypeError, ValueError) as error:
            problems.append(Problem("a feed is no array", port=str(name), got=str(error)))
    if problems:
        raise UsageError(problems)
    return arrays


def check_output_names(names: Iterable[str], known: Iterable[str]) -> None:
    """Raises UsageError naming every output that does not exist, with near misses."""
    known = list(known)
    problems = [
        Problem(f"the model has no output '{name}'", hint=suggest(name, known)) for name in names if name not in known
    ]
    if problems:
        raise UsageError(problems)


def picture_problem(binding: Binding, array: np.ndarray) -> Problem | None:
    """What is wrong with a feed of an input that takes pictures for AIPP; None also for other inputs.

    Only AIPP reads bytes in NHWC.
    """
    desc = binding.operand.desc
    wrong = array.dtype != np.uint8 or array.shape[1:] != desc.origin_shape[1:]
    if desc.dtype is not DType.UINT8 or desc.origin_format is not Format.NHWC or not wrong:
        return None
    text = "this input takes pictures: AIPP was compiled in (insert_op_conf) and normalises them on the device"
    hint = "feed the picture's bytes as they come, not normalised or transposed; or compile without insert_op_conf"
    got = f"{array.dtype.name}{list(array.shape)}"
    return Problem(text, "E10052", port=binding.name, expected=_described(binding.operand), got=got, hint=hint)


def check_pictures(bindings: Iterable[Binding], feeds: Mapping[str, np.ndarray]) -> None:
    """Raises UsageError for feeds that are no pictures where AIPP wants some, whatever their batch."""
    given = [(binding, np.asarray(feeds[binding.name])) for binding in bindings if binding.name in feeds]
    problems = [problem for problem in (picture_problem(*pair) for pair in given) if problem is not None]
    if problems:
        raise UsageError(problems)


def _feed_problem(binding: Binding, array: np.ndarray) -> Problem | None:
    if problem := picture_problem(binding, array):
        return problem
    operand = binding.operand
    dtype = operand.desc.dtype
    if dtype is not DType.BF16 and array.dtype == dtype.numpy and array.shape == operand.desc.origin_shape:
        return None  # before anything is put into words
    expected, got = _described(operand), f"{array.dtype.name}{list(array.shape)}"
    label = "bfloat16" if dtype is DType.BF16 else dtype.numpy.name
    if array.dtype.name != label and not (dtype is DType.BF16 and array.dtype == np.uint16):
        hint = f"convert it: array.astype('{label}')"
        return Problem("a feed has the wrong element type", port=binding.name, expected=expected, got=got, hint=hint)
    if array.shape != operand.desc.origin_shape:
        shape = ",".join(map(str, array.shape))
        hint = (
            "the program is compiled for this shape; compile again with shapes={name: …} or dims={…} for another one "
            f"(--shape {binding.name}={shape}, if the model allows it)"
        )
        return Problem("a feed has the wrong shape", port=binding.name, expected=expected, got=got, hint=hint)
    return None


def _described(operand: Operand) -> str:
    return f"{operand.desc.dtype.label}{list(operand.desc.origin_shape)}"


def _overlap(one: Span, other: Span) -> bool:
    return one.address < other.address + other.bytes and other.address < one.address + one.bytes


def _poisoned(storage: np.ndarray, dtype: DType) -> int:
    """Unwritten elements. Integers may hold the pattern by right, so only runs of eight such bytes count there."""
    raw = np.ascontiguousarray(storage).reshape(-1).view(np.uint8)
    granule = storage.dtype.itemsize if dtype.is_float else 8
    whole = raw[: raw.size // granule * granule].view(f"u{granule}")
    pattern = np.frombuffer(np.uint16(POISON).tobytes() * 4, f"u{granule}")[0]
    return int(np.count_nonzero(whole == pattern)) * (granule // storage.dtype.itemsize)


def _check_operands(program: Program) -> None:
    limits = {
        Region.WEIGHTS: (0, program.weights_bytes),
        Region.ARENA: (program.arena_base, program.io_base),
        Region.IO: (program.io_base, program.memory_bytes),
    }
    problems = []
    for task in program.tasks:
        for operand in (*task.inputs, *task.outputs):
            if operand is not None:
                problems += _operand_problems(operand, limits[operand.region], task.name)
        for span in task.workspaces:
            if not program.arena_base <= span.address <= span.address + span.bytes <= program.io_base:
                problems.append(
                    Problem("a workspace lies outside the arena", node=task.name, got=f"{span.address:#x}+{span.bytes}")
                )
    for binding in (*program.inputs, *program.outputs):
        problems += _operand_problems(binding.operand, limits[binding.operand.region], "")
    if problems:
        raise ContractError(problems)


def _operand_problems(operand: Operand, limits: tuple[int, int], node: str) -> list[Problem]:
    first, end = limits
    problems = []
    if not first <= operand.address <= operand.address + operand.payload_bytes <= end:
        text = f"'{operand.name}' lies outside the {operand.region.value} region"
        got = f"{operand.address:#x}+{operand.payload_bytes}"
        problems.append(Problem(text, node=node, expected=f"{first:#x}..{end:#x}", got=got))
    if operand.payload_bytes != operand.desc.payload_bytes:
        text = f"'{operand.name}' has the wrong size"
        expected, got = f"{operand.desc.payload_bytes} bytes", f"{operand.payload_bytes} bytes"
        problems.append(Problem(text, node=node, expected=expected, got=got))
    if operand.address % operand.desc.dtype.bytes:
        text = f"'{operand.name}' lies on an address that is not a multiple of its element size"
        problems.append(Problem(text, node=node, got=f"{operand.address:#x}"))
    return problems
