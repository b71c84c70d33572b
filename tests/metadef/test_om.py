"""The offline model's container: what is written is read back, and damage of any kind is found and named."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadef.error import ModelError, UsageError
from metadef.om import CREATOR, HEADER_BYTES, WEIGHTS_ALIGNMENT, OmHeader, PartitionType, open_om, write_om

OURS = OmHeader(name="net", user_info=CREATOR, platform_version=CREATOR)


def written(path, *, header=OURS, model=b"graph", weights=None, tasks=b"{}"):
    weights = np.arange(300, dtype=np.float32) if weights is None else weights
    partitions = {
        PartitionType.MODEL_DEF: model,
        PartitionType.WEIGHTS_DATA: weights,
        PartitionType.TASK_INFO: tasks,
    }
    return write_om(path, header, partitions)


@given(
    model=st.binary(max_size=200),
    weights=st.binary(max_size=5000),
    tasks=st.binary(max_size=200),
    name=st.text(max_size=40),
)
def test_round_trip(tmp_path_factory, model, weights, tasks, name):
    path = tmp_path_factory.mktemp("om") / "x.om"
    name = name.replace("\0", "").encode(errors="ignore").decode()
    blob = np.frombuffer(weights, np.uint8) if weights else np.empty(0, np.uint8)
    written(
        path, header=OmHeader(name, user_info=CREATOR, platform_version=CREATOR), model=model, weights=blob, tasks=tasks
    )
    file = open_om(path)
    file.verify()
    assert file.read(PartitionType.MODEL_DEF) == model
    assert file.map_weights().tobytes() == weights
    assert file.read(PartitionType.TASK_INFO) == tasks
    assert name.startswith(file.header.name) and len(file.header.name.encode()) < 32
    assert file.header.is_ours


def test_layout_is_the_real_one(tmp_path):
    data = written(tmp_path / "x.om").read_bytes()
    assert data[:4] == b"IMOD"
    assert struct.unpack_from("<I", data, 4) == (HEADER_BYTES,)
    assert struct.unpack_from("<Q", data, 184) == (len(data) - HEADER_BYTES,)
    count, _ = struct.unpack_from("<II", data, HEADER_BYTES)
    assert count == 3
    rows = [struct.unpack_from("<IIQQ", data, HEADER_BYTES + 8 + 24 * row) for row in range(count)]
    end = HEADER_BYTES + 8 + 24 * count
    assert [row[0] for row in rows] == [0, 1, 2]
    assert data[end + rows[0][2] :][: rows[0][3]] == b"graph"
    assert end + rows[-1][2] + rows[-1][3] < len(data), "readers expect bytes after the last partition"


def test_weights_are_a_read_only_aligned_map(tmp_path):
    weights = open_om(written(tmp_path / "x.om")).map_weights()
    assert isinstance(weights, np.memmap)
    assert weights.offset % WEIGHTS_ALIGNMENT == 0 and weights.ctypes.data % 64 == 0
    with pytest.raises(ValueError):
        weights[0] = 1


def test_every_flipped_byte_is_found(tmp_path, rng):
    path = written(tmp_path / "x.om")
    good = path.read_bytes()
    positions = {*range(HEADER_BYTES + 100), *rng.integers(0, len(good), 300).tolist(), len(good) - 1}
    missed = []
    for position in sorted(positions):
        bad = bytearray(good)
        bad[position] ^= 0x5A
        path.write_bytes(bad)
        try:
            open_om(path).verify()
            missed.append(position)
        except ModelError:
            pass
    assert missed == []


@pytest.mark.parametrize("keep", [0, 3, 100, 255, 256, 260, 300, 340, 4096, 5000])
def test_truncated_files_are_refused(tmp_path, keep):
    path = written(tmp_path / "x.om")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"no offline model|ends|truncated|past the end"):
        open_om(path)


def test_grown_file_is_refused(tmp_path):
    path = written(tmp_path / "x.om")
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(ModelError, match="truncated or has grown"):
        open_om(path)


def test_partition_past_the_end_is_refused(tmp_path):
    path = written(tmp_path / "x.om", header=OmHeader("vendor"))
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, HEADER_BYTES + 8 + 16, 1 << 20)
    path.write_bytes(data)
    with pytest.raises(ModelError, match="MODEL_DEF reaches past the end"):
        open_om(path)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "x.om"
    path.write_bytes(b"\x08\x07onnx" * 100)
    with pytest.raises(ModelError, match="magic IMOD") as caught:
        open_om(path)
    assert "compile it first" in str(caught.value)
    with pytest.raises(ModelError, match="cannot read"):
        open_om(tmp_path / "absent.om")


def test_implausible_table_is_refused(tmp_path):
    path = written(tmp_path / "x.om", header=OmHeader("vendor"))
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, HEADER_BYTES, 100_000)
    path.write_bytes(data)
    with pytest.raises(ModelError, match="implausible partition table"):
        open_om(path)


def test_old_tables_with_32_bit_entries(tmp_path):
    path = written(tmp_path / "x.om", header=OmHeader("vendor"))
    table = struct.pack("<I", 1) + struct.pack("<III", 0, 0, 5)
    path.write_bytes(path.read_bytes()[:HEADER_BYTES] + table + b"graph" + bytes(64))
    assert open_om(path).read(PartitionType.MODEL_DEF) == b"graph"


def test_a_file_that_has_gone_is_damaged_weights_and_no_fault_of_a_thread(tmp_path, capfd):
    file = open_om(written(tmp_path / "x.om"))
    file.path.unlink()
    wait = file.verify_weights_beside()
    with pytest.raises(ModelError, match="checksum of the weights differs"):
        wait()
    assert capfd.readouterr().err == ""


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = written(tmp_path / "x.om", model=b"old")
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match="No space left"):
        written(path, model=b"new")
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["x.om"]


def test_real_container(need_data):
    file = open_om(need_data("ge_dumps/root_model.om"))
    assert file.header.name == "test_graph_cache"
    assert not file.header.is_ours
    assert [(part.kind, part.offset, part.size) for part in file.partitions] == [
        (8, 336, 140),
        (0, 476, 1798),
        (2, 2274, 16),
    ]
    file.verify()
