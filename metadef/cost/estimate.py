"""Closed-form cycles of one core, for ranking many tile candidates at once: the pipe engine's recurrence, summed.

Everything is an array over candidates (NumPy broadcasting); the engine in ``metadef.cost.engine`` is the judge. Loads
are taken to hit L2 as far as they repeat, and to come from memory once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from metadef.cost.cube_view import RESIDENTS, CubeView
from metadef.cost.engine import ND_ROW
from metadef.format import FRACTAL_ROWS
from metadef.target import Target

Array = Any
_SAMPLED_TILES = 4


@dataclass(frozen=True)
class CubeCandidates:
    """Tiles to be ranked: the fields of ``CubeTile`` as integer arrays (or scalars) that broadcast.

    ``resident`` holds indices into ``RESIDENTS``; ``cores`` is how many cores work at once.
    """

    m0: Array
    n0: Array
    k0: Array
    k1: Array
    split_batch: Array = 1
    split_m: Array = 1
    split_n: Array = 1
    split_k: Array = 1
    resident: Array = 0
    double_l1: Array = True
    double_l0: Array = True
    double_l0c: Array = False

    @property
    def pieces(self) -> Array:
        """How many pieces the work is cut into (``block_dim``)."""
        return np.multiply(np.multiply(self.split_batch, self.split_m), np.multiply(self.split_n, self.split_k))


def cube_tile_cycles(
    target: Target, view: CubeView, tiles: CubeCandidates, *, cold: tuple[float, float] = (1.0, 1.0)
) -> np.ndarray:
    """Cycles of the fullest core plus launch, one number per candidate (float64).

    ``cold`` is the share of A and of B that comes from memory, once; the rest is in L2.
    Whether a tile fits the buffers is the caller's business.
    """
    rows, columns = -(-view.m // FRACTAL_ROWS), -(-view.n // FRACTAL_ROWS)
    depth = -(-view.k // view.fractal_k)
    images = _ceil(view.batch, tiles.split_batch)
    m = _ceil(rows, tiles.split_m) * FRACTAL_ROWS
    n = _ceil(columns, tiles.split_n) * FRACTAL_ROWS
    k = _ceil(depth, tiles.split_k) * view.fractal_k
    tm, tn = _ceil(m, tiles.m0), _ceil(n, tiles.n0)
    steps, blocks = _ceil(k, tiles.k0), _ceil(k, tiles.k1)
    count = images * tm * tn
    cores = np.minimum(tiles.pieces, target.cube_cores)
    size = view.element_bytes

    # Parts too small to stream wait for their own accumulator (the barrier rule of the cube).
    fractals = np.multiply(np.minimum(tiles.m0, m), np.minimum(tiles.n0, n)) // 256
    small = fractals < target.value("cube.accumulate_barrier_fractals")
    overhead = np.where(
        small, target.value("cube.isolated_overhead_cycles"), target.value("cube.streamed_overhead_cycles")
    )
    products = (m // FRACTAL_ROWS) * (n // FRACTAL_ROWS) * (k // view.fractal_k)
    cube = images * products * view.fractal_cycles(target) + count * steps * overhead

    a_rate, b_rate = view.l0_rates(target)
    mte1 = images * (m * k * size * tn / a_rate + n * k * size * tm / b_rate) + count * steps * 4

    mte2, first = _loads(target, view, tiles, (images, m, n, k, tm, tn, blocks), cores, cold)
    out = _result(target, view, count, tiles, (images, m, n))
    chain = np.where(tiles.double_l0, np.maximum(cube, mte1), cube + mte1)
    # Two blocks in L1: each comes round once in two blocks, latency of its load included.
    loads = count * blocks
    latency = max(target.path(view.a_path).latency_cycles, target.path(view.b_path).latency_cycles)
    streamed = np.asarray(tiles.resident) == 0
    mte2 = np.where(streamed, np.maximum(mte2, (loads * latency + mte2 + chain) / 2), mte2)
    serial_out = chain + out
    chain = np.where(tiles.double_l0c, np.maximum(chain, out), serial_out)
    total = np.where(tiles.double_l1, np.maximum(chain, mte2), chain + mte2)
    waves = _ceil(tiles.pieces, target.cube_cores)
    return np.asarray(waves * (total + first + out / count) + launch_cycles(target, cores), np.float64)


def _loads(
    target: Target,
    view: CubeView,
    tiles: CubeCandidates,
    sizes: tuple[Array, ...],
    cores: Array,
    cold: tuple[float, float],
) -> tuple[Array, Array]:
    """(MTE2 cycles of the core, cycles before the first product can start)."""
    images, m, n, k, tm, tn, blocks = sizes
    size = view.element_bytes
    limit = target.buffer_bytes["L1"]
    a_tile = _mean_tile(view, tiles.m0, m) * (k / view.k)
    a_all = view.a_bytes(np.zeros_like(m), np.minimum(m, view.m)) * (k / view.k)
    b_tile, b_all = k * tiles.n0 * size, k * n * size
    resident = np.asarray(tiles.resident)
    is_a, is_b, is_a_panel, is_b_panel = (
        resident == RESIDENTS.index(name) for name in ("a", "b", "a_panel", "b_panel")
    )
    a_once = is_a | is_a_panel | (is_b & (b_all + a_tile <= limit))
    b_once = is_b | is_b_panel | (is_a & (a_all + b_tile <= limit))
    a_times = np.where(a_once, 1, tn)
    b_times = np.where(b_once, 1, tm)
    b_images = np.where(is_b & view.shared_b, 1, images)
    a_bytes = images * np.where(is_a, a_all, tm * a_tile) * np.where(is_a, 1, a_times) * view.a_share
    b_bytes = b_images * b_all * b_times * view.b_share
    cycles: Array = 0.0
    share = np.minimum(target.value("memory.l2_core_bytes_per_cycle"), target.l2_bytes_per_cycle / cores)
    same = target.value("alignment.same_line_l1") - 1
    a_side = (a_bytes, view.a_path, tiles.m0, tiles.split_n)
    b_side = (b_bytes, view.b_path, tiles.k1, np.multiply(tiles.split_m, tiles.split_batch if view.shared_b else 1))
    for amount, name, rows, readers in (a_side, b_side):
        path = target.path(name)
        rate = np.minimum(share / (1 + same * (1 - 1 / readers)), path.sustained_bytes_per_cycle)
        block = np.maximum(amount / np.maximum(images * tm * tn * blocks, 1), 1)
        issue = path.issue_cycles + (rows * path.burst_cycles if name.endswith("ND2NZ") else 0)
        cycles = cycles + amount * np.maximum(1 / rate, issue / block)
    if (each := view.made_cycles(target)) > 0:
        spread = view.window.spread if view.window is not None else 1
        blocks_in = a_bytes / view.a_share * spread / (view.element_bytes * target.c0(view.dtype))
        cycles = cycles + blocks_in * each
    by_columns = is_a | is_b_panel | ((resident == 0) & (view.n > view.m))
    cycles = np.maximum(cycles, _memory_cycles(target, view, tiles, (a_bytes, b_bytes), by_columns, cold))
    latency = max(target.path(view.a_path).latency_cycles, target.path(view.b_path).latency_cycles)
    return cycles, latency + (a_tile * view.a_share + b_tile) / blocks / share


def _mean_tile(view: CubeView, m0: Array, m: Array) -> Array:
    """Bytes of A under a tile over the whole of K: the mean of the first few, which begin anywhere in a row."""
    rows = np.minimum(m0, view.m)
    if view.window is None:
        return view.a_bytes(np.zeros_like(m), rows)
    starts = [np.minimum(index * rows, view.m - rows) for index in range(_SAMPLED_TILES)]
    return sum(view.a_bytes(start, start + rows) for start in starts) / _SAMPLED_TILES


def _memory_cycles(
    target: Target,
    view: CubeView,
    tiles: CubeCandidates,
    loaded: tuple[Array, Array],
    by_columns: Array,
    cold: tuple[float, float],
) -> Array:
    """Cycles a core waits for memory: what is cold once, and what L2 lost when the inner loop comes back to it."""
    a_unique = view.batch * np.minimum(view.a_bytes(0, view.m), view.m * view.k * view.element_bytes) * view.a_share
    b_unique = (1 if view.shared_b else view.batch) * view.k * view.n * view.element_bytes
    again: list[Array] = []
    for amount, unique in zip(loaded, (a_unique, b_unique)):
        lost = np.maximum(0.0, 1 - target.value("memory.l2_bytes") / np.maximum(unique, 1))
        again.append(lost * np.maximum(amount * tiles.pieces - unique, 0))
    amount = cold[0] * a_unique + cold[1] * b_unique + np.where(by_columns, again[0], again[1])
    cores = np.minimum(tiles.pieces, target.cube_cores)
    rate = np.minimum(target.hbm_bytes_per_cycle, target.value("memory.dram_core_cube_bytes_per_cycle") * cores)
    return amount / rate / _ceil(tiles.pieces, target.cube_cores)


def _result(target: Target, view: CubeView, count: Array, tiles: CubeCandidates, sizes: tuple[Array, ...]) -> Array:
    """Cycles to move the results of the core out, epilogue included."""
    images, m, n = sizes
    elements = images * m * n
    if target.has_fixpipe:
        path = target.path("L0C->GM NZ2ND" if view.plain_out else "L0C->GM")
        rows = images * m * _ceil(n, np.minimum(tiles.n0, ND_ROW)) * path.burst_cycles if view.plain_out else 0
        return np.maximum(elements * 4 / path.sustained_bytes_per_cycle, rows) + count * path.latency_cycles
    to_ub, to_gm = target.path("L0C->UB"), target.path("UB->GM")
    repeats = elements * 4 / target.value("vector.repeat_bytes")
    call = target.value("vector.dependent_call_cycles")
    work = sum(target.vector_instruction(name, 4)[1] for name in view.epilogue) + (1 if view.has_bias else 0)
    vector = elements * 4 / to_ub.bytes_per_cycle + repeats * work + count * call * (1 + len(view.epilogue))
    store = elements * view.out_bytes / to_gm.sustained_bytes_per_cycle
    extra = elements * sum(view.extra_bytes) / target.path("GM->UB").sustained_bytes_per_cycle
    return np.maximum(vector, store + extra) + count * to_gm.latency_cycles


def vector_tile_cycles(
    target: Target,
    loads_bytes: Array,
    stores_bytes: Array,
    repeat_cycles: Array,
    calls: Array,
    tiles: Array,
    cores: Array,
    double_buffer: Array = True,
) -> np.ndarray:
    """Cycles of the fullest core of a vector kernel plus launch, one number per candidate (float64).

    ``loads_bytes`` and ``stores_bytes`` are those of one tile, ``repeat_cycles`` what its vector instructions take by
    their repeats, ``calls`` how many dependent calls it makes, ``tiles`` how many tiles the fullest core has, ``cores``
    how many cores work at once.
    """
    load_path, store_path = target.path("GM->UB"), target.path("UB->GM")
    share = np.minimum(target.value("memory.l2_core_bytes_per_cycle"), target.l2_bytes_per_cycle / np.asarray(cores))
    load = load_path.latency_cycles + np.divide(loads_bytes, np.minimum(share, load_path.bytes_per_cycle))
    work = np.asarray(repeat_cycles) + np.multiply(calls, target.value("vector.dependent_call_cycles"))
    store = store_path.latency_cycles + np.divide(stores_bytes, np.minimum(share, store_path.sustained_bytes_per_cycle))
    handoff = target.value("sync.handoff_cycles")
    first = load + work + store + 3 * handoff
    # Two buffers: a pipe works on every tile, and a buffer comes round once in two tiles, latency included.
    pipes = np.maximum(np.maximum(load - load_path.latency_cycles, work), store - store_path.latency_cycles)
    rounds = np.maximum(load + work, work + store) / 2 + handoff
    overlapped = first + (np.asarray(tiles) - 1) * np.maximum(pipes, rounds)
    cycles = np.where(double_buffer, overlapped, tiles * first)
    return np.asarray(cycles + launch_cycles(target, cores), np.float64)


def launch_cycles(target: Target, cores: Array, protocol: str = "graph") -> Array:
    """Start of a task: a fixed part plus a part per core that starts. ``protocol`` is graph (a sunk
    graph that repeats), trace (host-driven steps), benchmark or loop."""
    us = target.value("launch.task_us") + target.value(f"launch.core_{protocol}_us") * np.asarray(cores)
    return np.rint(us * target.clock_mhz)


def _ceil(value: Array, by: Array) -> Array:
    return -(-np.asarray(value) // np.asarray(by))
