import os
import threading
from pathlib import Path

import pytest

from metadef.error import UsageError
from metadef.files import read_sealed, title_of, write_sealed, write_text


def test_a_link_stays_and_the_file_behind_it_is_written(tmp_path: Path):
    (tmp_path / "link").symlink_to("far")
    for text in ("first", "second"):
        assert write_text(tmp_path / "link", text) == tmp_path / "link"
        assert (tmp_path / "link").is_symlink() and (tmp_path / "far").read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far", "link"]


def test_what_is_no_file_is_written_to_and_never_replaced(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, "through")
    reader.join(10)
    assert found == ["through"] and pipe.is_fifo()
    write_text(os.devnull, "gone")
    assert Path(os.devnull).is_char_device()
    with pytest.raises(UsageError, match="cannot write"):
        write_text(tmp_path, "a folder")
    assert tmp_path.is_dir()


def test_titles_can_be_written_as_text():
    assert title_of(Path("folder/网络.v2.onnx")) == "网络.v2"
    assert title_of(Path(os.fsdecode(b"bad\xff.onnx"))) == "bad\ufffd"


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
