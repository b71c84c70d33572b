"""Numba as the compiler uses it: compiled functions live in the user's cache folder, never beside the installed
sources.

Files that Numba writes into a package's own folder outlive its removal and hide a later install of the same name; and a
package may lie where nobody can write. Without a writable folder the functions are compiled in memory, once a process;
so they are where a file is damaged, or the disk full.
"""

from __future__ import annotations

import contextlib
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
            made = numba.njit(cache=folder is not None, error_model="numpy", **options)(function)
        finally:
            numba.config.CACHE_DIR = before  # type: ignore[attr-defined]
        if folder is not None:
            _harden(made._cache)
        return made

    return decorate


def _harden(cache: Any) -> None:
    """Make Numba's cache of a function lose what it cannot read or write, where it would raise."""
    load, save = cache.load_overload, cache.save_overload

    def load_or_lose(*arguments: Any) -> Any:
        try:
            return load(*arguments)
        except Exception:  # damaged bytes make unpickling raise anything
            with contextlib.suppress(OSError):
                cache.flush()
            return None

    def save_or_lose(*arguments: Any) -> None:
        with contextlib.suppress(OSError):
            save(*arguments)

    cache.load_overload, cache.save_overload = load_or_lose, save_or_lose
