"""Cycles of a Winograd convolution: one task of three phases, each a kernel of the usual kind.

On split cores the phases meet at barriers: vector cores transform the image into a workspace, cube cores multiply into
another, vector cores transform back. A barrier is a flag through memory, which every core stores and reads (no faster
one is published). Where cube and vector share a core, every core takes its own tiles through all three phases, because
such chips have no barrier among cores: cores that share the tiles but not the channels transform the image again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from metadef.cost.estimate import launch_cycles
from metadef.cost.run import CoreRun, KernelRun, run_kernel
from metadef.cost.streams import MemoryState, kernel_streams
from metadef.cost.winograd_phases import bands, phase_kernels, working_cores
from metadef.kernel import Kernel
from metadef.target import Target


def run_winograd(
    kernel: Kernel, target: Target, memory: MemoryState, *, protocol: str = "graph", keep: int = 0
) -> KernelRun:
    """Simulate all phases of all bands, one after another. Arguments and errors as for ``run_kernel``."""
    total = _Sum(keep)
    barrier = barrier_cycles(target)
    for rows, count in bands(kernel):
        phases = phase_kernels(kernel, target, rows)
        for phase, around in zip(phases, _surroundings(phases, target, memory)):
            run = run_kernel(phase, target, around, protocol=protocol, keep=max(keep - total.kept, 0))
            total.add(run, count, barrier)
    cores = working_cores(kernel, target)
    return total.finish(cores, int(launch_cycles(target, cores, protocol)))


def instruction_count(kernel: Kernel, target: Target, memory: MemoryState) -> int:
    """Instructions of the fullest core in all phases."""
    total = 0
    for rows, count in bands(kernel):
        for phase in phase_kernels(kernel, target, rows):
            stream = kernel_streams(phase, target, memory)
            assert stream is not None
            total += count * sum(len(batch) for batch in stream.batches())
    return total


def barrier_cycles(target: Target) -> int:
    """A flag from core to core: stored to memory by one, loaded by another; none where cores do not wait."""
    if target.coupled:
        return 0
    flag = target.path("UB->GM").latency_cycles + target.path("GM->UB").latency_cycles
    return int(flag + target.value("sync.barrier_cycles"))


def _surroundings(phases: tuple[Kernel, Kernel, Kernel], target: Target, memory: MemoryState) -> list[MemoryState]:
    """State of memory for each phase: what one phase leaves in a workspace the next finds in L2, as far as it fits."""
    held = sum(phase.outputs[0].payload_bytes for phase in phases[:2])
    lost = max(0.0, 1 - target.value("memory.l2_bytes") / max(held, 1))
    kept = MemoryState(cold=(lost, *memory.cold[1:]), in_residues=(0, *memory.in_residues[1:]), write_back=lost)
    return [
        replace(memory, write_back=lost, out_residues=()),
        kept,
        replace(kept, write_back=memory.write_back, out_residues=memory.out_residues),
    ]


class _Sum:
    """Phases put end to end; the time line is that of the first band's phases."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.kept = self.cycles = self.mean = 0
        self.why: Counter[str] = Counter()
        self.busy: Counter[str] = Counter()
        self.core_moved: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()
        self.core_ports = np.zeros(3, np.int64)
        self.ports = np.zeros(3, np.int64)
        self.intervals: list[np.ndarray] = []
        self.rows: list[np.ndarray] = []

    def add(self, run: KernelRun, count: int, barrier: int) -> None:
        """``count`` equal runs of a phase, each ended by a barrier."""
        core = run.core
        self.intervals.append(core.intervals + self.cycles)
        self.rows.append(core.rows)
        self.kept += len(core.rows)
        self.cycles += (run.waves * core.cycles + barrier) * count
        self.mean += (run.mean_cycles + barrier) * count
        for into, what in ((self.why, core.why), (self.busy, core.busy), (self.core_moved, core.moved)):
            into.update({name: amount * run.waves * count for name, amount in what.items()})
        self.why.update({"FLAG": barrier * count} if barrier else {})
        self.moved.update({name: amount * count for name, amount in run.moved.items()})
        self.core_ports += np.array([core.l2_bytes, core.hbm_bytes, core.requests]) * run.waves * count
        self.ports += np.array([run.l2_bytes, run.hbm_bytes, run.requests]) * count

    def finish(self, cores: int, launch: int) -> KernelRun:
        core = CoreRun(
            cycles=self.cycles,
            why=dict(self.why),
            busy=dict(self.busy),
            moved=dict(self.core_moved),
            l2_bytes=int(self.core_ports[0]),
            hbm_bytes=int(self.core_ports[1]),
            requests=int(self.core_ports[2]),
            intervals=np.concatenate(self.intervals),
            rows=np.concatenate(self.rows),
        )
        l2, hbm, requests = (int(value) for value in self.ports)
        return KernelRun(core, self.mean, 1, cores, launch, dict(self.moved), hbm, l2, requests)
