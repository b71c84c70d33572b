"""Shared input generator and runner of the kernel tests.

`values` makes arrays with the awkward numbers in them; `run_both` executes a task at one and at three threads and
asserts that every output byte agrees.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Callable, Sequence

import numpy as np

from npusim.executor import OK, Executor
from npusim.kernels.desc import Call, task_table
from tests.npusim.kernels.twins import DTYPES, name_of

_MARGIN = 256
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 6e-8, -3e-5, 65504.0, -65504.0, 1.0)


def values(rng: np.random.Generator, shape: Sequence[int], dtype: str, special: bool = False) -> np.ndarray:
    """Random array of a kernel dtype; with `special`, NaN, infinities, subnormals and huge values are among them."""
    kind = DTYPES[dtype]
    if dtype == "b8":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype[0] in "iu":
        info = np.iinfo(kind)
        low, high = max(info.min, -1000), min(info.max, 1000)
        return rng.integers(low, high, shape, endpoint=True).astype(kind)
    x = np.asarray(rng.standard_normal(shape)).astype(kind)
    if special and x.size:
        places = rng.integers(0, x.size, max(1, min(x.size // 8, 20)))
        x.reshape(-1)[places] = rng.choice(np.array(SPECIAL, kind), places.size)
    return x


def stored(x: np.ndarray) -> tuple[np.ndarray, str]:
    """What packing functions take of weights: their elements (bfloat16 as bits) and the name of their type."""
    name = name_of(x.dtype)
    return x.view(np.uint16) if name == "bf16" else x, name


@functools.cache
def executor(threads: int) -> Executor:
    """An executor kept for the whole session."""
    return Executor(threads)


def run(calls: Sequence[Call] | Call, threads: int = 1) -> None:
    """Execute calls in order; the status must be good."""
    todo = [calls] if isinstance(calls, Call) else list(calls)
    status = executor(threads).run(task_table(todo))
    assert status.code == OK, status


def run_both(make: Callable[[np.ndarray], Sequence[Call] | Call], out: np.ndarray) -> np.ndarray:
    """Run `make(output)` into copies of `out` at one and three threads; returns the common result.

    The copies lie between margins that must stay as they are.
    """
    results = []
    for threads in (1, 3):
        memory = np.full(out.nbytes + 2 * _MARGIN, 0xA5, np.uint8)
        target = memory[_MARGIN : _MARGIN + out.nbytes].view(out.dtype).reshape(out.shape)
        target[...] = out
        run(make(target), threads)
        edges = np.concatenate([memory[:_MARGIN], memory[_MARGIN + out.nbytes :]])
        assert (edges == 0xA5).all(), "bytes outside the output were written"
        results.append(target)
    assert results[0].tobytes() == results[1].tobytes(), "results depend on the number of threads"
    return results[0]


def at_end_of_memory(x: np.ndarray) -> np.ndarray:
    """A copy of an array whose last byte is the last one that may be touched (where the system protects pages)."""
    page = mmap.PAGESIZE
    size = -(-x.nbytes // page) * page
    memory = mmap.mmap(-1, size + page)
    whole = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    if libc is not None:
        none = ctypes.c_void_p(address(whole) + size), ctypes.c_size_t(page), 0
        assert libc.mprotect(*none) == 0, os.strerror(ctypes.get_errno())
    copy = whole[size - x.nbytes : size].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def address(x: np.ndarray) -> int:
    """Address of an array's first element, views included."""
    return int(x.__array_interface__["data"][0])
