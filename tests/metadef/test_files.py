from pathlib import Path

import pytest

from metadef.files import read_sealed, write_sealed


def test_a_sealed_file_gives_back_what_was_written(tmp_path: Path):
    place = tmp_path / "folder" / "kept"
    assert read_sealed(place) is None
    for body in (b"", b"some text", bytes(range(256)) * 40):
        write_sealed(place, body)
        assert read_sealed(place) == body
    assert [path.name for path in place.parent.iterdir()] == ["kept"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "old"])
def test_damage_is_seen(tmp_path: Path, damage: str):
    place = tmp_path / "kept"
    write_sealed(place, b"some text")
    data = place.read_bytes()
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    place.write_bytes({"cut": data[:-1], "flipped": flipped, "empty": b"", "old": b"some text"}[damage])
    assert read_sealed(place) is None


def test_where_nothing_can_be_written_nothing_happens(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    write_sealed(tmp_path / "file" / "kept", b"some text")
    assert read_sealed(tmp_path / "file" / "kept") is None
