"""Loops that cannot be whole-array operations: plain Python on lists for small schedules, compiled on arrays for large.

A loop is a module-level function over flat sequences, numbers and two-dimensional arrays, in the part of Python that
Numba knows too. Functions that loops of the same module call are marked with :func:`helper`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

PLAIN_ITEMS = 3_000
"""Up to so many items a loop runs as plain Python, without compiler or compiling."""

_helpers: dict[str, list[Callable[..., Any]]] = {}

Function = TypeVar("Function", bound=Callable[..., Any])


def helper(function: Function) -> Function:
    """Mark a function that loops of its module call, so that it is compiled with them."""
    _helpers.setdefault(function.__module__, []).append(function)
    return function


def run(loop: Callable[..., int], items: int, *columns: Any) -> int:
    """Call a loop, compiled when it has many items to work on; a plain run writes back what it changed.

    Columns are arrays, numbers, or tuples of them.
    """
    if items > PLAIN_ITEMS:
        return int(_compiled(loop)(*columns))
    plain = [_plain(column) for column in columns]
    result = loop(*plain)
    for column, values in zip(columns, plain):
        _write_back(column, values)
    return int(result)


def _plain(column: Any) -> Any:
    if isinstance(column, tuple):
        return tuple(map(_plain, column))
    return column.tolist() if isinstance(column, np.ndarray) and column.ndim == 1 else column


def _write_back(column: Any, values: Any) -> None:
    if isinstance(column, tuple):
        for part, changed in zip(column, values):
            _write_back(part, changed)
    elif isinstance(column, np.ndarray) and isinstance(values, list):
        column[:] = values


@functools.cache
def _compiled(loop: Callable[..., int]) -> Any:
    from metadef.jit import compiled

    return compiled()(_with(loop, _compiled_helpers(loop.__module__)))


@functools.cache
def _compiled_helpers(module: str) -> dict[str, Any]:
    """Helpers of a module, compiled, by name; each may call those that are defined before it."""
    from metadef.jit import compiled

    known: dict[str, Any] = {}
    compile_ = compiled(cache=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)
    for function in _helpers.get(module, ()):
        known[function.__name__] = compile_(_with(function, known))
    return known


def _with(function: Callable[..., Any], names: dict[str, Any]) -> Callable[..., Any]:
    """The function with other values of some of its module's names."""
    assert isinstance(function, FunctionType)
    made = FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    return made
