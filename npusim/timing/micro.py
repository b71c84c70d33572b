"""Microbenchmarks on the simulated chip: the runs that published board measurements are compared with.

They bypass operators: a pure copy, a matrix product with a given tile. Additions are in ``npusim.timing.additions``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metadef.cost import engine
from metadef.cost.run import CoreRun, KernelRun, run_kernel, run_stream, task_us
from metadef.cost.streams import CoreStream, MemoryState, transfer
from metadef.dtype import DType
from metadef.format import TensorDesc, ceil_div
from metadef.kernel import CubeTile, Engine, Kernel
from metadef.target import Target


@dataclass(frozen=True)
class CopyRun:
    """A copy of ``total_bytes``: one core's run and the task time in microseconds, launch included."""

    core: CoreRun
    total_bytes: int
    us: float

    @property
    def tb_s(self) -> float:
        """Bandwidth by task time, 10^12 bytes per second."""
        return self.total_bytes / self.us / 1e6


def read_copies(
    target: Target,
    total_bytes: int,
    rows: int,
    row_bytes: int,
    *,
    cores: int | None = None,
    path: str = "GM->UB",
    cold: float = 1.0,
    pitch: int = 0,
    residue: int = 0,
    readers: float = 1.0,
    protocol: str = "benchmark",
) -> CopyRun:
    """All cores read their share in transfers of ``rows`` rows of ``row_bytes``, ``pitch`` bytes apart; ``readers`` of
    them ask for the same lines at once."""
    cores = cores or target.cores("L1" in path)
    copies = ceil_div(total_bytes, rows * row_bytes * cores)
    move = transfer(
        target, path, cold=cold, to_memory=cold, residue=residue, pitch=pitch or row_bytes,
        unit_bytes=rows * row_bytes, unit_rows=rows, readers=readers,
    )  # fmt: skip
    stream = CoreStream(4, None, move[None, :], 1, np.zeros((0, len(engine.WORK))), copies, 1, 1, 0)
    core = run_stream(stream, target, cores)
    return CopyRun(core, total_bytes, task_us(core, target, cores, protocol))


def matmul(
    target: Target, m: int, n: int, k: int, tile: CubeTile, *, dtype: DType = DType.FLOAT16, protocol: str = "benchmark"
) -> KernelRun:
    """A plain (ND) matrix product with a given tile, operands cold, results on their way to memory."""
    a, b, c = TensorDesc((m, k), dtype), TensorDesc((k, n), dtype), TensorDesc((m, n), dtype)
    cores = tile.split_batch * tile.split_m * tile.split_n * tile.split_k
    flags = {"transpose_x1": False, "transpose_x2": False}
    kernel = Kernel("MatMulV2", Engine.AICORE, (a, b), (c,), flags, tile=tile, block_dim=cores)
    return run_kernel(kernel, target, MemoryState(cold=(1.0, 1.0), write_back=1.0), protocol=protocol)
