"""Programs as text: a lossless JSON form for the model file, and a listing for people.

In the JSON form descriptors and kernels are tables that tasks point into, since a network repeats its kernels; fields
at their defaults are left out. Attribute values keep their types: element types, tuples, arrays, non-finite numbers.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.error import ContractError, ModelError
from metadef.format import Format, TensorDesc
from metadef.kernel import Buffer, CubeTile, Engine, FusedOp, Kernel, Tile, VectorTile, WinogradTile
from metadef.program import Binding, Operand, Program, Region, Span, Task

FORMAT_VERSION = 1

_TASK_LISTS = ("origins", "waits", "records", "successors")
_PROGRAM_FIELDS = tuple(item.name for item in fields(Program) if item.name not in ("tasks", "inputs", "outputs"))
_LATE_FIELDS = frozenset({"streamed_bytes"})
"""Fields that files of the first version may lack."""
_TILES: dict[str, Any] = {"cube": CubeTile, "vector": VectorTile, "winograd": WinogradTile}
_PHASES = ("input", "product", "output")


def program_to_json(program: Program) -> dict[str, Any]:
    """A JSON-ready object that :func:`program_from_json` turns into an equal program.

    Raises:
        ContractError: an attribute holds a value of a kind that has no JSON form.
    """
    tables = _Tables()
    result: dict[str, Any] = {"format_version": FORMAT_VERSION}
    result |= {name: getattr(program, name) for name in _PROGRAM_FIELDS}
    result["inputs"] = [[item.name, tables.operand(item.operand)] for item in program.inputs]
    result["outputs"] = [[item.name, tables.operand(item.operand)] for item in program.outputs]
    result["tasks"] = [tables.task(task) for task in program.tasks]
    result["kernels"] = tables.kernels
    result["descs"] = [_desc_to_json(desc) for desc in tables.descs]
    return result


def program_from_json(data: Mapping[str, Any]) -> Program:
    """The program of a JSON object.

    Raises:
        ModelError: a field is missing or damaged, or a newer version wrote it.
    """
    version = data.get("format_version")
    if version != FORMAT_VERSION:
        hint = "compile the model again with this version"
        raise ModelError("task list of an unknown version", expected=str(FORMAT_VERSION), got=str(version), hint=hint)
    try:
        descs = [_desc_from_json(row) for row in data["descs"]]
        kernels = [_kernel_from_json(row, descs) for row in data["kernels"]]
        return Program(
            tasks=[_task_from_json(row, kernels, descs) for row in data["tasks"]],
            inputs=[Binding(name, _operand_from_json(row, descs)) for name, row in data["inputs"]],
            outputs=[Binding(name, _operand_from_json(row, descs)) for name, row in data["outputs"]],
            **{name: data[name] for name in _PROGRAM_FIELDS if name in data or name not in _LATE_FIELDS},
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ModelError("the task list is damaged", got=what, hint="compile the model again") from error


def value_to_json(value: Any) -> Any:
    """An attribute value in a form that JSON keeps: lists for tuples, one-key objects for what JSON has no type for.

    Raises:
        ContractError: values of this kind cannot be stored.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, DType):
        return {"dtype": value.label}
    if isinstance(value, (list, tuple)):
        return [value_to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {"map": [[key, value_to_json(item)] for key, item in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return {"strings": [list(value.shape), [value_to_json(item) for item in value.flat]]}
    if isinstance(value, np.ndarray):
        raw = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": [value.dtype.str, list(value.shape), raw]}
    raise ContractError(f"an attribute value of type {type(value).__name__} cannot be stored", got=repr(value)[:80])


def value_from_json(data: Any) -> Any:
    """The inverse of :func:`value_to_json`; every sequence becomes a tuple."""
    if isinstance(data, list):
        return tuple([value_from_json(item) for item in data])
    if not isinstance(data, dict):
        return data
    ((kind, body),) = data.items()
    if kind == "float":
        return float(body)
    if kind == "dtype":
        return DType.parse(body)
    if kind == "map":
        return {key: value_from_json(item) for key, item in body}
    if kind == "bytes":
        return base64.b64decode(body)
    if kind == "strings":
        shape, items = body
        result = np.empty(len(items), object)
        result[:] = [value_from_json(item) for item in items]
        return result.reshape(shape)
    if kind == "array":
        dtype, shape, raw = body
        return np.frombuffer(base64.b64decode(raw), np.dtype(dtype)).reshape(shape)
    raise ValueError(f"unknown value kind '{kind}'")


def fused_to_json(fused: Sequence[FusedOp]) -> list[Any]:
    """Rows (operator type, attributes, operand)."""
    return [[item.op_type, _attrs_to_json(item.attrs), item.operand] for item in fused]


def fused_from_json(rows: Sequence[Any]) -> tuple[FusedOp, ...]:
    """The inverse of :func:`fused_to_json`."""
    return tuple([FusedOp(op_type, _attrs_from_json(attrs), operand) for op_type, attrs, operand in rows])


def print_program(program: Program) -> str:
    """A listing: one head, one line a task with its kernel, its tile and the addresses it reads and writes."""
    sizes = f"weights {program.weights_bytes}, arena {program.arena_bytes}, inputs and outputs {program.io_bytes}"
    lines = [
        f"program {program.name} for {program.soc}, precision {program.precision}",
        f"memory {program.memory_bytes} bytes: {sizes}",
        f"arena plan {program.total_size} bytes, at least {program.theory_min}, without reuse {program.no_reuse}",
    ]
    lines += [f"input  {item.name} = {_operand_text(item.operand)}" for item in program.inputs]
    lines += [line for task in program.tasks for line in _task_lines(task)]
    lines += [f"output {item.name} = {_operand_text(item.operand)}" for item in program.outputs]
    return "\n".join(lines) + "\n"


def tile_text(tile: Tile | None) -> str:
    """A tile in a few words, such as ``m0=128 n0=256 k0=64 k1=256 split m=4 n=5``."""
    if tile is None:
        return ""
    if isinstance(tile, WinogradTile):
        phases = " | ".join(f"{name} {tile_text(getattr(tile, name))}" for name in _PHASES)
        return f"band={tile.band_rows} {phases}"
    if isinstance(tile, VectorTile):
        double = " x2" if tile.double_buffer else ""
        return f"units={tile.units}x{tile.unit_elements} per_tile={tile.units_per_tile}{double}"
    splits = [("batch", tile.split_batch), ("m", tile.split_m), ("n", tile.split_n), ("k", tile.split_k)]
    parts = [f"m0={tile.m0} n0={tile.n0} k0={tile.k0} k1={tile.k1}"]
    if shares := [f"{name}={count}" for name, count in splits if count > 1]:
        parts.append("split " + " ".join(shares))
    parts += [f"resident={tile.resident}"] if tile.resident else []
    parts += [name for name in ("double_l1", "double_l0", "double_l0c") if getattr(tile, name)]
    return " ".join(parts)


class _Tables:
    """Descriptors and kernels seen so far, each once."""

    def __init__(self) -> None:
        self.descs: dict[TensorDesc, int] = {}
        self.kernels: list[dict[str, Any]] = []
        self._index: dict[str, int] = {}
        self._known: dict[int, int] = {}

    def desc(self, desc: TensorDesc) -> int:
        return self.descs.setdefault(desc, len(self.descs))

    def operand(self, item: Operand) -> list[Any]:
        return [item.tensor, item.name, item.region.value, item.address, item.payload_bytes, self.desc(item.desc)]

    def kernel(self, kernel: Kernel) -> int:
        if id(kernel) not in self._known:
            data = {
                "op_type": kernel.op_type,
                "engine": kernel.engine.name,
                "inputs": [None if desc is None else self.desc(desc) for desc in kernel.inputs],
                "outputs": [self.desc(desc) for desc in kernel.outputs],
                "attrs": _attrs_to_json(kernel.attrs),
                "fused": fused_to_json(kernel.fused),
                "algorithm": kernel.algorithm,
                "tile": _tile_to_json(kernel.tile),
                "block_dim": kernel.block_dim,
                "domain": kernel.domain,
                "reason": kernel.reason,
                "opset": kernel.opset,
            }
            key = repr(data)
            if key not in self._index:
                self._index[key] = len(self.kernels)
                self.kernels.append(data)
            self._known[id(kernel)] = self._index[key]
        return self._known[id(kernel)]

    def task(self, task: Task) -> dict[str, Any]:
        data: dict[str, Any] = {
            "id": task.id,
            "name": task.name,
            "kernel": self.kernel(task.kernel),
            "inputs": [None if item is None else self.operand(item) for item in task.inputs],
            "outputs": [self.operand(item) for item in task.outputs],
        }
        if task.workspaces:
            data["workspaces"] = [[span.address, span.bytes] for span in task.workspaces]
        if task.layer:
            data["layer"] = task.layer
        if task.stream:
            data["stream"] = task.stream
        data |= {name: list(value) for name in _TASK_LISTS if (value := getattr(task, name))}
        return data


def _desc_to_json(desc: TensorDesc) -> list[Any]:
    return [list(desc.origin_shape), desc.dtype.label, desc.origin_format.name, desc.format.name, desc.c0]


def _desc_from_json(row: Sequence[Any]) -> TensorDesc:
    shape, dtype, origin_format, fmt, c0 = row
    return TensorDesc(tuple(shape), DType.parse(dtype), Format[origin_format], Format[fmt], c0)


def _operand_from_json(row: Sequence[Any], descs: Sequence[TensorDesc]) -> Operand:
    tensor, name, region, address, payload_bytes, desc = row
    return Operand(tensor, name, Region(region), address, payload_bytes, descs[desc])


def _kernel_from_json(data: Mapping[str, Any], descs: Sequence[TensorDesc]) -> Kernel:
    return Kernel(
        data["op_type"],
        Engine[data["engine"]],
        tuple([None if index is None else descs[index] for index in data["inputs"]]),
        tuple([descs[index] for index in data["outputs"]]),
        _attrs_from_json(data["attrs"]),
        fused_from_json(data["fused"]),
        data["algorithm"],
        _tile_from_json(data["tile"]),
        data["block_dim"],
        data["domain"],
        data["reason"],
        data["opset"],
    )


def _task_from_json(data: Mapping[str, Any], kernels: Sequence[Kernel], descs: Sequence[TensorDesc]) -> Task:
    return Task(
        data["id"],
        data["name"],
        kernels[data["kernel"]],
        tuple([None if row is None else _operand_from_json(row, descs) for row in data["inputs"]]),
        tuple([_operand_from_json(row, descs) for row in data["outputs"]]),
        tuple([Span(address, size) for address, size in data.get("workspaces", ())]),
        layer=data.get("layer", ""),
        stream=data.get("stream", 0),
        **{name: tuple(data[name]) for name in _TASK_LISTS if name in data},
    )


def _attrs_to_json(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value_to_json(value) for name, value in attrs.items()}


def _attrs_from_json(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value_from_json(value) for name, value in data.items()}


def _tile_to_json(tile: Tile | None) -> dict[str, Any] | None:
    if tile is None:
        return None
    data: dict[str, Any] = {"kind": next(name for name, kind in _TILES.items() if isinstance(tile, kind))}
    for item in fields(tile):
        value = getattr(tile, item.name)
        if item.name == "buffers":
            data["buffers"] = [[getattr(buffer, field.name) for field in fields(Buffer)] for buffer in value]
        elif item.name in _PHASES:
            data[item.name] = _tile_to_json(value)
        elif item.default is MISSING or value != item.default:
            data[item.name] = value
    return data


def _tile_from_json(data: dict[str, Any] | None) -> Tile | None:
    if data is None:
        return None
    rest = {name: value for name, value in data.items() if name != "kind"}
    if "buffers" in rest:
        rest["buffers"] = tuple([Buffer(*row) for row in data["buffers"]])
    rest |= {name: _tile_from_json(rest[name]) for name in _PHASES if name in rest}
    tile: Tile = _TILES[data["kind"]](**rest)
    return tile


def _operand_text(item: Operand) -> str:
    return f"{item.name} @{item.address:#x}+{item.payload_bytes} {item.region.value} {item.desc}"


def _task_lines(task: Task) -> list[str]:
    kernel = task.kernel
    chain = "+".join([kernel.op_type, *(item.op_type for item in kernel.fused)])
    where = f" stream {task.stream}" if task.stream else ""
    flags = [
        f"{what} {','.join(map(str, ids))}" for what, ids in (("wait", task.waits), ("record", task.records)) if ids
    ]
    engine = "" if task.on_device else f" on {kernel.engine.value}"
    algorithm = "" if kernel.algorithm == "direct" else f" {kernel.algorithm}"
    head = f"task {task.id} {task.name}: {chain}{algorithm}{engine} block_dim={kernel.block_dim}{where}"
    lines = [" ".join(filter(None, [head, tile_text(kernel.tile), *flags]))]
    lines += [f"    in  {_operand_text(item)}" for item in task.inputs if item is not None]
    lines += [f"    out {_operand_text(item)}" for item in task.outputs]
    lines += [f"    workspace @{span.address:#x}+{span.bytes}" for span in task.workspaces]
    return lines
