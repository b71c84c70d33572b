"""Numba as the compiler uses it: compiled functions live in the user's cache folder, never beside the installed
sources.

Files that Numba writes into a package's own folder outlive its removal and hide a later install of the same name; and a
package may lie where nobody can write. Without a writable folder the functions are compiled in memory, once a process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from metadef.files import cache_folder, is_writable


@functools.cache
def _folder() -> Path | None:
    folder = cache_folder() / "numba"
    return folder if is_writable(folder) else None


def compiled(*, cache: bool = True, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit`` with NumPy's error model; ``cache`` keeps the machine code on disk. Other options are Numba's."""

    def decorate(function: Callable[..., Any]) -> Any:
        folder = _folder() if cache else None
        before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
        numba.config.CACHE_DIR = "" if folder is None else str(folder)  # type: ignore[attr-defined]
        try:
            return numba.njit(cache=folder is not None, error_model="numpy", **options)(function)
        finally:
            numba.config.CACHE_DIR = before  # type: ignore[attr-defined]

    return decorate
