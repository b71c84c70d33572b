"""The offline model's container: a 256-byte header, a table of partitions, the partitions themselves.

Only bytes are handled here; what the partitions mean is the business of ``metadef.model``. The layout is GE's (all
numbers little endian; offsets count from the end of the table), so that viewers of real .om files open ours. SHA-256
digests fill the header's checksum field: the first covers all but the weights, the second the weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO

import numpy as np

from metadef.error import ModelError
from metadef.files import atomic_write
from metadef.format import round_up

MAGIC = b"IMOD"
HEADER_BYTES = 256
CREATOR = "npusim"
WEIGHTS_ALIGNMENT = 4096
"""Weights begin on a page of the file: mapped pages hold nothing else, and addresses are aligned for kernels."""

_VERSION = 0x20000000
_HEADER = struct.Struct("<4sII64sIBBBB32sI32sII20sB3xQBB62x")
_TABLE = struct.Struct("<II")
_ENTRY = struct.Struct("<IIQQ")
_OLD_ENTRY = struct.Struct("<III")
_TAIL_BYTES = 64
_CHUNK_BYTES = 1 << 22
_CHECKSUM = slice(12, 76)
_MAX_PARTITIONS = 64


class PartitionType(IntEnum):
    """Partition types that we read or write; GE has more."""

    MODEL_DEF = 0
    WEIGHTS_DATA = 1
    TASK_INFO = 2
    TBE_KERNELS = 3
    CUST_AICPU_KERNELS = 4
    SO_BINS = 5


@dataclass(frozen=True)
class Partition:
    """``offset`` counts from the start of the file."""

    kind: int
    offset: int
    size: int


@dataclass(frozen=True)
class OmHeader:
    """The header's fields that carry a meaning for us. ``is_checksum`` is GE's flag: 0 means that it counts."""

    name: str = ""
    version: int = _VERSION
    user_info: str = ""
    platform_version: str = ""
    model_count: int = 1
    model_type: int = 0
    is_encrypted: bool = False
    is_checksum: int = 0
    model_bytes: int = 0
    checksum: bytes = field(default=b"\0" * 64, repr=False)

    @property
    def is_ours(self) -> bool:
        """Whether this project wrote the file (two marks, so that damage to one does not hide it)."""
        return CREATOR in (self.user_info, self.platform_version)


@dataclass(frozen=True)
class OmFile:
    """A container that was opened: header and the first model's partitions. Contents are read when asked for."""

    path: Path
    header: OmHeader
    partitions: tuple[Partition, ...]
    table_end: int

    def find(self, kind: PartitionType) -> Partition | None:
        return next((item for item in self.partitions if item.kind == kind), None)

    def read(self, kind: PartitionType) -> bytes:
        """A partition's bytes; empty if the file has none of that type."""
        part = self.find(kind)
        if part is None:
            return b""
        with self.path.open("rb") as stream:
            stream.seek(part.offset)
            return stream.read(part.size)

    def map_weights(self) -> np.ndarray:
        """The weights as a read-only map of the file, uint8."""
        part = self.find(PartitionType.WEIGHTS_DATA)
        if part is None or part.size == 0:
            empty = np.empty(0, np.uint8)
            empty.flags.writeable = False
            return empty
        return np.memmap(self.path, np.uint8, "r", part.offset, (part.size,))

    def verify(self, *, weights: bool = True) -> None:
        """Compare the digests; ``weights=False`` leaves the large partition unread.

        Raises:
            ModelError: the file was changed after it was written.
        """
        if not self.header.is_ours:
            return
        with self.path.open("rb") as stream:
            head = _digest_around(stream, self.find(PartitionType.WEIGHTS_DATA))
            if head != self.header.checksum[:32]:
                raise _damaged(self.path, "checksum of header, graph and tasks differs")
        if weights and not self._weights_are_whole():
            raise self._damaged_weights()

    def verify_weights_beside(self) -> Callable[[], None]:
        """Begin to compare the weights' digest in a thread of its own; what is returned waits for the outcome.

        Raises:
            ModelError: when waited for: the weights were changed after they were written, or the file has gone.
        """
        whole: list[bool] = []

        def compare() -> None:
            with contextlib.suppress(OSError):
                whole.append(self._weights_are_whole())

        thread = threading.Thread(target=compare, daemon=True)
        thread.start()

        def wait() -> None:
            thread.join()
            if whole != [True]:
                raise self._damaged_weights()

        return wait

    def _weights_are_whole(self) -> bool:
        part = self.find(PartitionType.WEIGHTS_DATA)
        if part is None or not self.header.is_ours:
            return True
        with self.path.open("rb") as stream:
            return _digest_range(stream, part.offset, part.size) == self.header.checksum[32:]

    def _damaged_weights(self) -> ModelError:
        return _damaged(self.path, "checksum of the weights differs")


def write_om(path: str | Path, header: OmHeader, partitions: Mapping[PartitionType, bytes | np.ndarray]) -> Path:
    """Write a container whole or not at all: under a temporary name, then renamed.

    Raises:
        UsageError: the place cannot be written; an earlier file stays as it was.
    """
    table_end = HEADER_BYTES + _TABLE.size + _ENTRY.size * len(partitions)
    blobs = [_as_bytes(data) for data in partitions.values()]
    placed: list[Partition] = []
    end = table_end
    for kind, blob in zip(partitions, blobs):
        start = round_up(end, WEIGHTS_ALIGNMENT) if kind is PartitionType.WEIGHTS_DATA else end
        placed.append(Partition(int(kind), start, blob.nbytes))
        end = start + blob.nbytes
    table = _TABLE.pack(len(placed), 0)
    table += b"".join(_ENTRY.pack(part.kind, 0, part.offset - table_end, part.size) for part in placed)
    opening = _pack_header(header, end + _TAIL_BYTES - HEADER_BYTES) + table

    def write(stream: BinaryIO) -> None:
        head, weights = hashlib.sha256(opening), hashlib.sha256()
        stream.write(opening)
        position = table_end
        for part, blob in zip(placed, blobs):
            gap = b"\0" * (part.offset - position)
            head.update(gap)
            (weights if part.kind == PartitionType.WEIGHTS_DATA else head).update(blob)
            stream.write(gap)
            stream.write(blob)
            position = part.offset + part.size
        tail = b"\0" * _TAIL_BYTES
        head.update(tail)
        stream.write(tail)
        stream.seek(_CHECKSUM.start)
        stream.write(head.digest() + weights.digest())

    return atomic_write(path, write)


def open_om(path: str | Path) -> OmFile:
    """Read header and table of a container, ours or a vendor's, and check that every partition lies inside the file.

    Raises:
        ModelError: not an offline model, truncated, or its table is damaged.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            head = stream.read(HEADER_BYTES)
            header = _parse_header(path, head)
            count_bytes = stream.read(_TABLE.size)
            if len(count_bytes) < _TABLE.size:
                raise _damaged(path, "the file ends before the partition table", got=f"{size} bytes")
            table_end, partitions = _parse_table(path, stream, _TABLE.unpack(count_bytes)[0], size)
    except OSError as error:
        raise ModelError(f"cannot read '{path}'", got=error.strerror or str(error), hint="check the path") from error
    if header.model_bytes and header.is_ours and header.model_bytes != size - HEADER_BYTES:
        raise _damaged(
            path, "the file is truncated or has grown", f"{header.model_bytes + HEADER_BYTES} bytes", f"{size}"
        )
    return OmFile(path, header, partitions, table_end)


def _pack_header(header: OmHeader, model_bytes: int) -> bytes:
    """The header with its checksum still zero."""
    return _HEADER.pack(
        MAGIC, HEADER_BYTES, header.version, b"", model_bytes & 0xFFFFFFFF, int(header.is_encrypted),
        header.is_checksum, header.model_type, 0, _fixed(header.name, 32), 0, _fixed(header.user_info, 32), 0,
        header.model_count, _fixed(header.platform_version, 20), 0, model_bytes, 0, 0,
    )  # fmt: skip


def _as_bytes(data: bytes | np.ndarray) -> memoryview:
    if isinstance(data, bytes):
        return memoryview(data)
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data


def _parse_header(path: Path, head: bytes) -> OmHeader:
    if head[:4] != MAGIC:
        kind = "it looks like an ONNX or another file; compile it first" if head else "the file is empty"
        raise ModelError(f"'{path}' is no offline model", expected="magic IMOD", got=repr(head[:4]), hint=kind)
    if len(head) < HEADER_BYTES:
        raise _damaged(path, "the file ends inside the header", f"{HEADER_BYTES} bytes", f"{len(head)}")
    fields = _HEADER.unpack(head)
    _, head_bytes, version, checksum, length, encrypted, is_checksum, model_type, _, name = fields[:10]
    _, user_info, _, model_count, platform, _, model_bytes, *_ = fields[10:]
    if head_bytes != HEADER_BYTES:
        raise _damaged(path, "wrong header size", f"{HEADER_BYTES}", f"{head_bytes}")
    return OmHeader(
        _text(name), version, _text(user_info), _text(platform), max(model_count, 1), model_type, bool(encrypted),
        is_checksum, model_bytes or length, checksum,
    )  # fmt: skip


def _parse_table(path: Path, stream: BinaryIO, count: int, size: int) -> tuple[int, tuple[Partition, ...]]:
    """Table of the first model. Old files have 32-bit entries right after the count: tried where the new form fails."""
    if not 0 < count <= _MAX_PARTITIONS:
        raise _damaged(path, "implausible partition table", f"1 to {_MAX_PARTITIONS} partitions", f"{count}")
    forms = []
    for entry, start in ((_ENTRY, HEADER_BYTES + _TABLE.size), (_OLD_ENTRY, HEADER_BYTES + 4)):
        end = start + entry.size * count
        stream.seek(start)
        data = stream.read(entry.size * count)
        if len(data) == entry.size * count:
            rows = tuple(Partition(row[0], end + row[-2], row[-1]) for row in entry.iter_unpack(data))
            forms.append((end, rows))
    for end, rows in forms:
        if all(part.offset + part.size <= size for part in rows):
            return end, rows
    if not forms:
        raise _damaged(path, "the file ends inside the partition table", got=f"{size} bytes")
    last = max(forms[0][1], key=lambda part: part.offset + part.size)
    where = f"partition {_kind_name(last.kind)} reaches past the end of the file"
    raise _damaged(path, where, f"at most {size} bytes", f"{last.offset + last.size} bytes")


def _digest_around(stream: BinaryIO, hole: Partition | None) -> bytes:
    """Digest of the whole file without the weights, its checksum field counted as zeros."""
    stream.seek(0)
    head = stream.read(HEADER_BYTES)
    digest = hashlib.sha256(head[: _CHECKSUM.start] + b"\0" * 64 + head[_CHECKSUM.stop :])
    end = stream.seek(0, 2)
    pieces = [(HEADER_BYTES, end)]
    if hole is not None:
        pieces = [(HEADER_BYTES, hole.offset), (hole.offset + hole.size, end)]
    for first, last in pieces:
        _update(digest, stream, first, last - first)
    return digest.digest()


def _digest_range(stream: BinaryIO, offset: int, size: int) -> bytes:
    digest = hashlib.sha256()
    _update(digest, stream, offset, size)
    return digest.digest()


def _update(digest: hashlib._Hash, stream: BinaryIO, offset: int, size: int) -> None:
    stream.seek(offset)
    while size > 0 and (chunk := stream.read(min(size, _CHUNK_BYTES))):
        digest.update(chunk)
        size -= len(chunk)


def _fixed(text: str, size: int) -> bytes:
    """UTF-8 cut to a field with a closing zero, never inside a character."""
    return text.encode()[: size - 1].decode(errors="ignore").encode()


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode(errors="replace")


def _kind_name(kind: int) -> str:
    return PartitionType(kind).name if kind in PartitionType._value2member_map_ else str(kind)


def _damaged(path: Path, what: str, expected: str = "", got: str = "") -> ModelError:
    return ModelError(
        f"'{path}': {what}",
        expected=expected,
        got=got,
        hint="the file is damaged: copy it again, or compile the model again",
    )
