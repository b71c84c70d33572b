"""Mixed kernels of split-core chips: both sides of a core simulated and put together.

A cube core and its vector cores work on different rounds at the same time: while one multiplies a tile the others
finish the tile before. A chain of rounds starts and ends alone, and every change of side waits for a flag through
memory. The stages themselves are kernels of the usual kind on workspaces that lie in L2.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import ceil

from metadef.cost.estimate import launch_cycles
from metadef.cost.run import CoreRun, KernelRun, run_kernel
from metadef.cost.stages import Mixed, Stage
from metadef.cost.streams import DIRECT, MemoryState
from metadef.kernel import Kernel
from metadef.target import Target


def run_mixed(
    kernel: Kernel, mixed: Mixed, target: Target, memory: MemoryState, *, protocol: str = "graph", keep: int = 0
) -> KernelRun:
    """Simulate the stages and put their sides together; ``keep`` instructions of the first stage are recorded."""
    kernels = mixed.placed(target)
    runs = [
        run_kernel(kernel, target, stage.surroundings(memory), protocol=protocol, keep=0 if at else keep)
        for at, (stage, kernel) in enumerate(zip(mixed.stages, kernels))
    ]
    sides = [
        _Side([run for stage, run in zip(mixed.stages, runs) if stage.on_cube is on_cube]) for on_cube in (True, False)
    ]
    longer, other = sorted(sides, key=lambda side: -side.cycles)
    # In the first round nothing is hidden.
    seen = ceil((longer.serial + other.serial - longer.cycles) / mixed.rounds)
    turns = sum(left.on_cube != right.on_cube for left, right in pairwise(mixed.stages))
    inside = any(DIRECT in kernel.attrs for kernel in kernels)
    way = sum(_way_cycles(stage, target, inside) for stage in mixed.stages) if mixed.chains > 1 else 0
    flags = mixed.chains * (turns * flag_cycles(target) + way)
    why = longer.causes()
    why["FLAG"] += seen + flags
    return _together(runs, target, longer.cycles + seen + flags, why, longer.busy | other.busy, protocol)


class _Side:
    """The stages of the cube core, or those of its vector cores: rounds overlap, so its fullest pipe sets the pace."""

    def __init__(self, runs: list[KernelRun]) -> None:
        self.serial = sum(run.waves * run.core.cycles for run in runs)
        self.busy: Counter[str] = Counter()
        self.why: Counter[str] = Counter()
        for run in runs:
            self.busy.update({name: count * run.waves for name, count in run.core.busy.items()})
            self.why.update({name: count * run.waves for name, count in run.core.why.items()})
        self.cycles = max(self.busy.values(), default=0) if len(runs) > 1 else self.serial

    def causes(self) -> Counter[str]:
        """``cycles`` by resource, in proportion to what the stages wait for one after another."""
        shares = {name: count * self.cycles // max(self.serial, 1) for name, count in self.why.items()}
        left = self.cycles - sum(shares.values())
        return Counter(shares) + Counter({max(shares, key=lambda name: shares[name]): left} if shares else {})


def _together(
    runs: list[KernelRun], target: Target, total: int, why: Counter[str], busy: Counter[str], protocol: str
) -> KernelRun:
    """One run of all stages: ``total`` cycles of the fullest core and what they are spent on."""
    moved: Counter[str] = Counter()
    core_moved: Counter[str] = Counter()
    for run in runs:
        moved.update(run.moved)
        core_moved.update(run.core.moved)
    cores = runs[0].cores
    started = cores + min(target.vector_share * cores, target.vector_cores)
    core = CoreRun(
        cycles=total,
        why=dict(why),
        busy=dict(busy),
        moved=dict(core_moved),
        l2_bytes=sum(run.core.l2_bytes for run in runs),
        hbm_bytes=sum(run.core.hbm_bytes for run in runs),
        requests=sum(run.core.requests for run in runs),
        intervals=runs[0].core.intervals,
        rows=runs[0].core.rows,
    )
    evenness = min(run.mean_cycles / max(run.waves * run.core.cycles, 1) for run in runs)
    return KernelRun(
        core,
        min(total, round(total * evenness)),
        1,
        cores,
        int(launch_cycles(target, started, protocol) + round(target.value("launch.mixed_us") * target.clock_mhz)),
        dict(moved),
        sum(run.hbm_bytes for run in runs),
        sum(run.l2_bytes for run in runs),
        sum(run.requests for run in runs),
    )


def _way_cycles(stage: Stage, target: Target, inside: bool) -> int:
    """How long a chain's first tile is on its way through workspaces: what the cube reads is loaded ahead, unless it
    is handed over ``inside`` the core."""
    if inside:
        return target.path("L0C->UB" if stage.on_cube else "UB->L1").latency_cycles
    store = "L0C->GM" if stage.on_cube else "UB->GM"
    load = 0 if stage.on_cube else target.path("GM->UB").latency_cycles
    return int(load + target.path(store).latency_cycles)


def flag_cycles(target: Target) -> int:
    """A hand-over from side to side: a flag stored to memory by one core and loaded by another, or within a core."""
    barrier = int(target.value("sync.barrier_cycles"))
    if target.has_direct_path:
        return barrier
    return target.path("UB->GM").latency_cycles + target.path("GM->UB").latency_cycles + barrier
