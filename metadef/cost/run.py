"""Running streams: cycles of a core with their breakdown, and of a kernel with launch, waves and imbalance."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from metadef.cost import engine
from metadef.cost.estimate import launch_cycles
from metadef.cost.streams import WARM, CoreStream, MemoryState, even_pieces, heavy_share, kernel_streams
from metadef.error import ContractError
from metadef.kernel import CubeTile, Kernel
from metadef.target import Target

_SETTLE_RUNS = 3
_OUT_OF_STEP_ROUNDS = 4


@dataclass(frozen=True)
class CoreRun:
    """What a core did. ``why`` splits ``cycles`` by resource (names of ``engine.RESOURCES``), and adds up to them.

    ``busy`` are cycles per pipe, ``moved`` bytes per path, ``l2_bytes``/``hbm_bytes`` what passed the shared ports,
    ``requests`` what the core asked of global memory; ``intervals`` holds (start, end) of the first instructions if
    they were asked for, ``rows`` the instructions.
    """

    cycles: int
    why: dict[str, int]
    busy: dict[str, int]
    moved: dict[str, int]
    l2_bytes: int
    hbm_bytes: int
    requests: int = 0
    intervals: np.ndarray = field(repr=False, default_factory=lambda: np.zeros((0, 2), np.int64))
    rows: np.ndarray = field(repr=False, default_factory=lambda: np.zeros((0, engine.N_FIELDS), np.int64))


@dataclass(frozen=True)
class KernelRun:
    """A kernel on the chip: the fullest core decides; ``mean_cycles`` is what an average core takes (both without
    launch). ``waves`` is how many pieces a core runs one after another."""

    core: CoreRun
    mean_cycles: int
    waves: int
    cores: int
    launch_cycles: int
    moved: dict[str, int]
    hbm_bytes: int
    l2_bytes: int
    requests: int = 0

    @property
    def cycles(self) -> int:
        return self.waves * self.core.cycles + self.launch_cycles


def run_stream(stream: CoreStream, target: Target, cores: float, *, keep: int = 0) -> CoreRun:
    """Execute a stream while ``cores`` cores share L2 and memory; ``keep`` instructions are recorded with their times.

    Every core has an even share of the bandwidth. Cores that repeat many tiles fall out of step: what one leaves
    unused serves the others, so the share grows by the idle part of the port, up to what one core can pull.

    Raises:
        ContractError: flags are not paired.
    """
    on_cube = stream.plan is not None
    limits = bandwidth_shares(target, 1, on_cube=on_cube)
    shares = even = bandwidth_shares(target, cores, on_cube=on_cube)
    run = _execute(stream, target, shares, keep)
    for _ in range(_SETTLE_RUNS if stream.rounds >= _OUT_OF_STEP_ROUNDS else 0):
        used = [max(count / run.cycles, 1e-9) for count in (run.l2_bytes, run.hbm_bytes)]
        grown = [min(limit, max(fair, fair * own / load)) for limit, fair, own, load in zip(limits, even, shares, used)]
        waits = sum(run.why.get(name, 0) for name in ("L2", "HBM"))
        if waits * 50 < run.cycles or all(new < old * 1.02 for new, old in zip(grown, shares)):
            break
        shares = (grown[0], grown[1])
        run = _execute(stream, target, shares, keep)
    return _within_ports(run, even)


def _within_ports(run: CoreRun, even: tuple[float, float]) -> CoreRun:
    """The run, made as long as its bytes take at an even share: bursts may exceed that, the sum of a port may not."""
    bound = {
        name: ceil(count / share) for name, count, share in zip(("L2", "HBM"), (run.l2_bytes, run.hbm_bytes), even)
    }
    name = max(bound, key=lambda port: bound[port])
    late = bound[name] - run.cycles
    if late <= 0:
        return run
    return replace(run, cycles=bound[name], why={**run.why, name: run.why.get(name, 0) + late})


def _execute(stream: CoreStream, target: Target, shares: tuple[float, float], keep: int) -> CoreRun:
    sustained = [target.paths[name].sustained_bytes_per_cycle if name in target.paths else 1.0 for name in engine.PATHS]
    names = ("sync.flag_cycles", "sync.handoff_cycles", "sync.scalar_issue_cycles")
    flag, handoff, issue = (int(target.value(name)) for name in names)
    core = engine.new_core(stream.events, np.asarray(sustained), shares, (flag, handoff, issue))
    intervals, rows, kept = np.zeros((keep, 2), np.int64), [], 0
    for batch in stream.batches():
        part = intervals[kept:]
        status = engine.execute(core, batch, len(batch), part)
        if status != engine.OK:
            fault = {engine.FLAG_OVERFLOW: "a flag is set too often", engine.FLAG_UNDERFLOW: "a flag is never set"}
            raise ContractError(f"instruction stream: {fault[status]}")
        if kept < keep:
            rows.append(batch[: keep - kept].copy())
            kept = min(keep, kept + len(batch))
    if np.any(core.flag_count[:, 0] != core.flag_count[:, 1]):
        raise ContractError("instruction stream: a flag is set and never waited for")
    return CoreRun(
        int(core.clock[1]),
        {name: int(core.end_why[index]) for index, name in enumerate(engine.RESOURCES) if core.end_why[index]},
        {name: int(core.busy[index]) for index, name in enumerate(engine.PIPES) if core.busy[index]},
        {name: int(core.moved[index]) for index, name in enumerate(engine.PATHS) if core.moved[index]},
        int(core.moved[engine.NO_PATH + 1]),
        int(core.moved[engine.NO_PATH + 2]),
        int(core.moved[engine.NO_PATH + 3]),
        intervals[:kept],
        np.concatenate(rows) if rows else np.zeros((0, engine.N_FIELDS), np.int64),
    )


def bandwidth_shares(target: Target, cores: float, *, on_cube: bool = False) -> tuple[float, float]:
    """(L2, memory) bytes per cycle that one of ``cores`` working cores gets, its own limit included."""
    l2 = min(target.value("memory.l2_core_bytes_per_cycle"), target.l2_bytes_per_cycle / cores)
    own = target.value(f"memory.dram_core_{'cube_' if on_cube else ''}bytes_per_cycle")
    dram = min(own, target.hbm_bytes_per_cycle / cores)
    return float(l2), float(dram)


def run_kernel(
    kernel: Kernel, target: Target, memory: MemoryState = WARM, *, protocol: str = "graph", keep: int = 0
) -> KernelRun:
    """Simulate the fullest and the emptiest core and put the chip together.

    Raises:
        ContractError: no tile, or flags not paired. TargetError: the chip lacks what the kernel uses.
    """
    from metadef.cost.composed import run_composed

    composed = run_composed(kernel, target, memory, protocol, keep)
    if composed is not None:
        return composed
    cores, waves, sharing = _dealt(kernel, target)
    even = even_pieces(kernel, target)
    core = _fullest(kernel, target, memory, sharing, keep)
    least = kernel_streams(kernel, target, memory, smallest=True)
    total = kernel.block_dim
    mean = core.cycles * even / total
    moved = {name: round(count * even) for name, count in core.moved.items()}
    hbm, l2, requests = (round(count * even) for count in (core.hbm_bytes, core.l2_bytes, core.requests))
    share = 1.0
    if least is not None:
        light = run_stream(least, target, sharing)
        share = heavy_share(kernel, target)
        mean = round(core.cycles * share + light.cycles * (1 - share))

        def mix(full: int, small: int) -> int:
            return round(total * (full * share + small * (1 - share)))

        moved = {name: mix(count, light.moved.get(name, 0)) for name, count in core.moved.items()}
        hbm, l2 = mix(core.hbm_bytes, light.hbm_bytes), mix(core.l2_bytes, light.l2_bytes)
        requests = mix(core.requests, light.requests)
    mean = min(core.cycles * waves, round(mean * kernel.block_dim / cores))
    launch = int(launch_cycles(target, cores, protocol))
    return KernelRun(core, mean, waves, cores, launch, moved, hbm, l2, requests)


def _dealt(kernel: Kernel, target: Target) -> tuple[int, int, float]:
    """Cores in use, pieces that one of them runs one after another, and how many cores share the bandwidth."""
    cores = min(kernel.block_dim, target.cores(isinstance(kernel.tile, CubeTile)))
    waves = -(-kernel.block_dim // cores)
    # Cores with less to do leave their bandwidth to the others when they are done.
    return cores, waves, max(1.0, min(even_pieces(kernel, target) / waves, cores))


def _fullest(kernel: Kernel, target: Target, memory: MemoryState, sharing: float, keep: int = 0) -> CoreRun:
    stream = kernel_streams(kernel, target, memory)
    assert stream is not None
    return run_stream(stream, target, sharing, keep=keep)


def task_us(core: CoreRun, target: Target, cores: int, protocol: str) -> float:
    """Microseconds of a task whose ``cores`` cores all run like this one, launch included."""
    return (core.cycles + int(launch_cycles(target, cores, protocol))) / target.clock_mhz


def kernel_cost(kernel: Kernel, target: Target, memory: MemoryState = WARM) -> int:
    """Cycles of a task, launch included, with operands in L2: what choices between kernels are made by."""
    from metadef.cost.composed import run_composed

    composed = run_composed(kernel, target, memory, "graph", 0)
    if composed is not None:
        return composed.cycles
    cores, waves, sharing = _dealt(kernel, target)
    return waves * _fullest(kernel, target, memory, sharing).cycles + int(launch_cycles(target, cores))
