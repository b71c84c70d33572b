"""Files are written whole or not at all: under a temporary name beside their place, then renamed.

An interrupted run or a full disk leaves the earlier file as it was. What is no file (a device, a pipe) is written to as
it stands, never replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from metadef.error import UsageError

_SEAL_BYTES = hashlib.sha256().digest_size


def cache_folder() -> Path:
    """Where compiled kernels and functions are kept: ``NPUSIM_KERNEL_CACHE``, or the platform's cache folder.

    Without a home folder to put it in, a folder named after the user in the place for temporary files.
    """
    root = os.environ.get("NPUSIM_KERNEL_CACHE")
    if root:
        return Path(root)
    try:
        home = Path.home()
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"npusim-{os.getuid() if hasattr(os, 'getuid') else 'cache'}" / "kernels"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "npusim" / "kernels"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", str(home))) / "npusim" / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "npusim" / "kernels"


def title_of(path: Path) -> str:
    """A file's name without its ending, as text that can be written anywhere: what is no UTF-8 in it is replaced."""
    return os.fsencode(path.stem).decode("utf-8", "replace")


def is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder, which is made if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def atomic_write(path: str | Path, write: Callable[[BinaryIO], object]) -> Path:
    """Write a file under a temporary name beside its place, then rename it. A link stands for the file it leads to.

    Raises:
        UsageError: the folder cannot be made or written, or the disk is full; the earlier file, if any, is untouched.
    """
    path = Path(path)
    try:
        place = Path(os.path.realpath(path))
        if place.exists() and not place.is_file():
            with place.open("wb") as stream:
                write(stream)
        else:
            _replace(place, write)
    except OSError as error:
        raise UsageError(
            f"cannot write '{path}'", got=error.strerror or str(error), hint="choose another place for it, or make room"
        ) from error
    return path


def _replace(place: Path, write: Callable[[BinaryIO], object]) -> None:
    temporary = ""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        with os.fdopen(handle, "wb") as stream:
            write(stream)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, place)
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


def write_text(path: str | Path, text: str) -> Path:
    """UTF-8 text through :func:`atomic_write`."""
    return atomic_write(path, lambda stream: stream.write(text.encode()))


def read_sealed(path: Path) -> bytes | None:
    """What :func:`write_sealed` put in a file of the cache; None where it is absent, damaged or cut short."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    body = data[_SEAL_BYTES:]
    return body if hashlib.sha256(body).digest() == data[:_SEAL_BYTES] else None


def write_sealed(path: Path, body: bytes) -> None:
    """Write a file of the cache behind its checksum. Where that cannot be done nothing happens: it only saves time."""
    with contextlib.suppress(UsageError):
        atomic_write(path, lambda stream: stream.write(hashlib.sha256(body).digest() + body))
