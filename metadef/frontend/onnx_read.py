"""Reading ONNX: from a path, bytes or a ModelProto to a parsed model, and from its tensors to arrays without copies.

What can be wrong with the file itself is said here: missing, empty, truncated, another format, absent external data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, TypeProto, helper, numpy_helper

from metadef.error import ModelError, Problem
from metadef.files import title_of

_FOREIGN_STARTS = {
    b"PK\x03\x04": ("a ZIP archive (a PyTorch checkpoint, perhaps)", "export the model with torch.onnx.export"),
    b"\x89HDF": ("an HDF5 file (a Keras model, perhaps)", "convert it with tf2onnx"),
    b"version https://git-lfs": ("a Git LFS pointer, not the file it points to", "run git lfs pull"),
    b"<": ("an HTML or XML page", "check how the file was downloaded"),
    b"IMOD": ("an offline model (.om)", "load it as an .om file"),
    b"\x80": ("a Python pickle (a PyTorch checkpoint, perhaps)", "export the model with torch.onnx.export"),
}
MAIN = ("", "ai.onnx")
MOST_AXES = 64
"""Of an array of NumPy."""
_FIRST_FIELD = b"\x08"


@dataclass(frozen=True)
class OnnxSource:
    """A parsed model, its name for messages, and the folder that its external data lies in (None without a path)."""

    model: onnx.ModelProto
    name: str
    folder: Path | None


def read_model(source: str | Path | bytes | onnx.ModelProto) -> OnnxSource:
    """Parse a model.

    Raises:
        ModelError: no such file (E10410), empty (E13015), truncated or another format (E10041), no graph (E16004).
    """
    if isinstance(source, onnx.ModelProto):
        found = OnnxSource(source, source.graph.name or "model", None)
    elif isinstance(source, bytes):
        found = OnnxSource(_parse(source, "model"), "model", None)
    else:
        path = Path(source)
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist"
            raise ModelError(f"'{path}' {what}", code="E10410", hint=_neighbours(path))
        found = OnnxSource(_parse(path.read_bytes(), str(path)), title_of(path), path.parent)
    if not found.model.HasField("graph"):
        raise ModelError(
            f"'{found.name}' has no graph",
            code="E16004",
            expected="an ONNX model",
            hint="the file may be cut off, or not be ONNX",
        )
    return found


def _neighbours(path: Path) -> str:
    there = sorted(item.name for item in path.parent.glob("*.onnx")) if path.parent.is_dir() else []
    return f"models in that folder: {', '.join(there[:8])}" if there else "check the path"


def _parse(data: bytes, name: str) -> onnx.ModelProto:
    if not data:
        raise ModelError(f"'{name}' is empty", code="E13015", hint="copy or export the model again")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        for start, (what, hint) in _FOREIGN_STARTS.items():
            if data.startswith(start):
                raise ModelError(f"'{name}' is not ONNX", code="E10041", got=what, hint=hint) from None
        if data.startswith(_FIRST_FIELD):
            raise ModelError(
                f"'{name}' is cut off or damaged",
                code="E10041",
                got=f"{len(data)} bytes that begin like ONNX",
                hint="compare the size with the original's and copy it again",
            ) from None
        raise ModelError(
            f"'{name}' is not ONNX",
            code="E10041",
            got=f"bytes {data[:8].hex(' ')} …",
            hint="give a file that was exported as ONNX",
        ) from None
    return model


class TensorReader:
    """Turns TensorProtos into arrays; raw data is viewed, external data mapped."""

    def __init__(self, source: OnnxSource) -> None:
        self._name = source.name
        self._folder = source.folder

    def array(self, tensor: TensorProto) -> np.ndarray:
        """The elements under the tensor's shape; read-only where they are views of the file.

        Raises:
            ModelError: the data does not fill the shape, or cannot be reached (E10041).
        """
        if min(tensor.dims, default=0) < 0:
            raise ModelError(
                f"constant '{tensor.name}' has a negative dimension",
                code="E10041",
                expected="sizes of 0 or more",
                got=str(list(tensor.dims)),
            )
        if len(tensor.dims) > MOST_AXES:
            text, got = f"constant '{tensor.name}' has more axes than an array can have", f"{len(tensor.dims)} axes"
            raise ModelError(text, code="E10041", expected=f"{MOST_AXES} axes at most", got=got)
        if tensor.data_location == TensorProto.EXTERNAL:
            return self._external(tensor)
        dtype = self._dtype(tensor)
        raw = tensor.raw_data
        if raw and dtype.itemsize * prod(tensor.dims) == len(raw):
            return np.frombuffer(raw, dtype).reshape(tuple(tensor.dims))
        try:
            return numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise ModelError(
                f"constant '{tensor.name}' is damaged",
                code="E10041",
                expected=f"{prod(tensor.dims)} elements of shape {list(tensor.dims)}",
                got=str(error),
            ) from None

    @staticmethod
    def _dtype(tensor: TensorProto) -> np.dtype:
        try:
            return helper.tensor_dtype_to_np_dtype(tensor.data_type)
        except KeyError:
            raise ModelError(
                f"constant '{tensor.name}' has no known element type", code="E10041", got=str(tensor.data_type)
            ) from None

    def _external(self, tensor: TensorProto) -> np.ndarray:
        where = {entry.key: entry.value for entry in tensor.external_data}
        path = self.external_path(tensor)
        dtype = self._dtype(tensor)
        count = prod(tensor.dims)
        stated = where.get("offset", "0"), where.get("length", str(count * dtype.itemsize))
        offset, wanted = (int(text) if text.isascii() and text.isdigit() else -1 for text in stated)
        room = path.stat().st_size
        if min(offset, wanted) < 0 or wanted != count * dtype.itemsize or offset + wanted > room:
            raise ModelError(
                f"external data of '{tensor.name}' does not fit",
                code="E10041",
                expected=f"{count * dtype.itemsize} bytes for shape {list(tensor.dims)}",
                got=f"offset {stated[0]}, length {stated[1]} in a file of {room} bytes",
            )
        if count == 0:
            return np.empty(tuple(tensor.dims), dtype)
        return np.memmap(path, dtype, mode="r", offset=offset, shape=tuple(tensor.dims))

    def external_path(self, tensor: TensorProto) -> Path:
        """The file an external tensor lies in.

        Raises:
            ModelError: there is no folder to look in, the path leaves it, or the file is missing.
        """
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        if self._folder is None:
            raise ModelError(
                f"'{tensor.name}' lies in the external file '{location}'",
                code="E10041",
                hint="give the model as a path, so that files beside it can be found",
            )
        path = (self._folder / location).resolve()
        if not path.is_relative_to(self._folder.resolve()):
            raise ModelError(
                f"external data of '{tensor.name}' lies outside the model's folder", code="E10041", got=location
            )
        if not path.is_file():
            raise ModelError(f"external data of '{tensor.name}' is missing", code="E10041", expected=f"file '{path}'")
        return path

    def check_external(self, tensors: Iterable[TensorProto]) -> None:
        """Raises ModelError naming every constant whose external file cannot be reached."""
        problems: list[Problem] = []
        for tensor in tensors:
            if tensor.data_location == TensorProto.EXTERNAL:
                try:
                    self.external_path(tensor)
                except ModelError as error:
                    problems += error.problems
        if problems:
            raise ModelError(problems)

    def sparse(self, tensor: onnx.SparseTensorProto) -> np.ndarray:
        """A sparse constant as a dense array."""
        values, indices = self.array(tensor.values), self.array(tensor.indices)
        dense = np.zeros(tuple(tensor.dims), values.dtype)
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
        return dense


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Graphs that a node carries as attributes (branches, loop bodies)."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes of a graph and of all graphs nested in it."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def captured_names(node: onnx.NodeProto) -> list[str]:
    """Outer values that a node's subgraphs read, in order of first use."""
    names: dict[str, None] = {}
    for graph in subgraphs(node):
        made = {item.name for item in (*graph.input, *graph.initializer)}
        for inner in graph.node:
            made.update(inner.output)
        for inner in graph.node:
            for name in (*inner.input, *captured_names(inner)):
                if name and name not in made:
                    names[name] = None
        for output in graph.output:
            if output.name not in made:
                names[output.name] = None
    return list(names)


def label_of(node: onnx.NodeProto) -> str:
    """What messages call a node: its name, or its type and first result in the place of a name."""
    if node.name:
        return node.name.strip("/")
    made = next((name for name in node.output if name), "")
    head, _, tail = made.strip("/").rpartition("/")
    own = f"{node.op_type}_{tail}" if tail else node.op_type
    return f"{head}/{own}" if head else own


def live_nodes(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """Nodes that the outputs depend on, without results that nobody reads at their end."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if not wanted.intersection(node.output):
            continue
        if node.output[-1] not in wanted and not any(True for _ in subgraphs(node)):
            node = _trimmed(node, wanted)
        wanted.update(name for name in (*node.input, *captured_names(node)) if name)
        kept.append(node)
    return kept[::-1]


def _trimmed(node: onnx.NodeProto, wanted: set[str]) -> onnx.NodeProto:
    """A copy without the unread results at the node's end."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    while copy.output[-1] not in wanted:
        copy.output.pop()
    return copy


def shape_of(type_proto: TypeProto) -> tuple[int, ...] | None:
    """Concrete sizes of a tensor type, or None if any is open."""
    if not type_proto.tensor_type.HasField("shape"):
        return None
    dims = type_proto.tensor_type.shape.dim
    if any(not dim.HasField("dim_value") for dim in dims):
        return None
    return tuple(dim.dim_value for dim in dims)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Attributes as the onnx package gives them (strings as bytes, tensors and graphs as protos)."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
