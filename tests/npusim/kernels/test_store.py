import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from npusim.kernels import store

NAME = "map:f32:f32:neg(x0)"
SCRIPT = """
import sys
from npusim.kernels import store
names = []
store.set_progress(lambda name, index, count: names.append((name, index, count)))
address = store.kernel_address({name!r})
assert address and "numba" not in sys.modules
print(len(names), store.cache_directory())
"""


def python(code: str, **environment: str) -> str:
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_second_process_compiles_nothing_and_damage_is_repaired(tmp_path: Path) -> None:
    code, where = SCRIPT.format(name=NAME), {"NPUSIM_KERNEL_CACHE": str(tmp_path)}
    first, directory = python(code, **where).split(" ", 1)
    assert first == "1"
    assert python(code, **where).split(" ", 1)[0] == "0"
    (file,) = Path(directory).glob("*.o")
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(bytes(data))
    assert python(code, **where).split(" ", 1)[0] == "1"
    file.write_bytes(b"")
    assert python(code, **where).split(" ", 1)[0] == "1"
    assert [p.name for p in Path(directory).iterdir()] == [file.name], "no temporary file is left"


def test_unwritable_directory_falls_back_to_memory(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    assert python(SCRIPT.format(name=NAME), NPUSIM_KERNEL_CACHE=str(blocked)).startswith("1 ")


def test_another_cpu_has_another_key(tmp_path: Path) -> None:
    code = "from npusim.kernels import store; print(store.store_key())"
    usual = python(code, NUMBA_CPU_NAME="host")
    assert python(code, NUMBA_CPU_NAME="generic") != usual
    assert python(code, NUMBA_CPU_NAME="host") == usual


def test_concurrent_threads_agree() -> None:
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(store.kernel_address("map:f32:f32:abs(neg(x0))")))
        for _ in range(6)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 6 and len(set(found)) == 1


def test_progress_hook_is_told_once_and_can_be_replaced() -> None:
    seen: list[str] = []
    previous = store.set_progress(lambda name, index, count: seen.append(name))
    try:
        store.prepare([NAME, NAME])
        store.prepare([NAME])
    finally:
        assert store.set_progress(previous) is not None
    assert seen in ([], [NAME])
    assert NAME in store.loaded()


def test_unknown_family() -> None:
    with pytest.raises(KeyError, match="unknown kernel family 'nothing'"):
        store.kernel_address("nothing:at:all")
