"""Files are written whole or not at all: under a temporary name beside their place, then renamed.

An interrupted run or a full disk leaves the earlier file as it was.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from metadef.error import UsageError


def atomic_write(path: str | Path, write: Callable[[BinaryIO], object]) -> Path:
    """Write a file under a temporary name beside its place, then rename it.

    Raises:
        UsageError: the folder cannot be made or written, or the disk is full; the earlier file, if any, is untouched.
    """
    path = Path(path)
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as stream:
            write(stream)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(
            f"cannot write '{path}'", got=error.strerror or str(error), hint="choose another --out"
        ) from error
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
    return path


def write_text(path: str | Path, text: str) -> Path:
    """UTF-8 text through :func:`atomic_write`."""
    return atomic_write(path, lambda stream: stream.write(text.encode()))
