"""One task on the chip: what surrounds it in memory, its run, and the rows of the profile made from that."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from metadef.cost.run import KernelRun, run_kernel
from metadef.cost.streams import MemoryState, arithmetic
from metadef.kernel import Engine, FusedOp, Kernel
from metadef.program import Task
from metadef.target import Target
from npusim.profile import CAUSES, TaskProfile
from npusim.timing.l2 import Access

LINE_BYTES = 512
_STEPS = 64
"""Shares of hits are rounded to 1 / 64, so that equal tasks are simulated once."""

HOST_PATH = "host->GM"
"""The path of streamed weights in a profile's bytes."""

CAUSE_OF = {
    "CUBE": "compute",
    "VECTOR": "compute",
    "SCALAR": "pipe wait",
    "MTE1": "pipe wait",
    "FIXPIPE": "pipe wait",
    "FLAG": "pipe wait",
    "MTE2": "memory",
    "MTE3": "memory",
    "L2": "memory",
    "HBM": "memory",
    "MISALIGNED": "misalignment",
    "BANK": "bank conflict",
}
"""The one rule: a cycle on the critical path belongs to the resource that held it."""

RESOURCE_NAMES = {
    "CUBE": "cube",
    "VECTOR": "vector unit",
    "SCALAR": "scalar unit",
    "MTE1": "L1 to L0 (MTE1)",
    "FIXPIPE": "fixpipe",
    "FLAG": "flags between pipes",
    "MTE2": "loads from GM (MTE2)",
    "MTE3": "stores to GM (MTE3)",
    "L2": "L2 bandwidth",
    "HBM": "memory bandwidth",
    "MISALIGNED": "addresses off the line",
    "BANK": "UB banks",
}


def memory_state(task: Task, access: Access) -> MemoryState:
    """Hits and misses of the task's operands, and where they lie on their lines."""
    hits = iter(access.hits)
    cold = []
    for operand in task.inputs:
        if operand is None:
            cold.append(0.0)
            continue
        share = 1 - next(hits) / max(operand.payload_bytes, 1)
        cold.append(round(share * _STEPS) / _STEPS)
    stored = sum(operand.payload_bytes for operand in task.outputs)
    write_back = round(access.written_back / max(stored, 1) * _STEPS) / _STEPS
    return MemoryState(
        tuple(cold),
        write_back,
        tuple(0 if operand is None else operand.address % LINE_BYTES for operand in task.inputs),
        tuple(operand.address % LINE_BYTES for operand in task.outputs),
    )


def simulate(kernel: Kernel, target: Target, memory: MemoryState, protocol: str) -> KernelRun:
    """A kernel's run; equal kernels in equal surroundings are simulated once."""
    return _simulate(_Keyed(kernel), target, memory, protocol)


class _Keyed:
    """A kernel that hashes by its content (attribute maps do not hash by themselves)."""

    __slots__ = ("_key", "kernel")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._key = (
            kernel.op_type, kernel.engine, kernel.inputs, kernel.outputs, _frozen(kernel.attrs), kernel.algorithm,
            tuple(_frozen_op(item) for item in kernel.fused), kernel.tile, kernel.block_dim,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _frozen(attrs: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((name, tuple(item) if isinstance(item, list) else item) for name, item in attrs.items()))


def _frozen_op(item: FusedOp) -> tuple[Any, ...]:
    return item.op_type, _frozen(item.attrs), item.operand


@lru_cache(maxsize=4096)
def _simulate(keyed: _Keyed, target: Target, memory: MemoryState, protocol: str) -> KernelRun:
    return run_kernel(keyed.kernel, target, memory, protocol=protocol)


def _row(task: Task, start: int, cycles: int, **facts: Any) -> TaskProfile:
    """What every row says of its task, and the ``facts`` of this one."""
    return TaskProfile(
        task=task.id,
        name=task.name,
        op_type=task.kernel.op_type,
        engine=task.kernel.engine.value,
        start_cycles=start,
        cycles=cycles,
        origins=task.origins,
        layer=task.layer,
        **facts,
    )


def device_profile(task: Task, target: Target, run: KernelRun, access: Access, start: int) -> TaskProfile:
    """The profile row of a task that ran on the device."""
    why = shared_out(run.core.why, run.mean_cycles)
    imbalance = run.cycles - run.launch_cycles - run.mean_cycles
    launches = run.launch_cycles * access.slices
    causes = dict.fromkeys(CAUSES, 0)
    for name, count in why.items():
        causes[CAUSE_OF[name]] += count
    causes["launch"], causes["imbalance"] = launches, imbalance
    read = sum(operand.payload_bytes for operand in task.inputs if operand is not None)
    misses = max(read - sum(access.hits), 0)
    moved = sum(count for path, count in run.moved.items() if path.startswith("GM->"))
    macs, flops = arithmetic(task.kernel, target)
    return _row(
        task,
        start,
        run.cycles + launches - run.launch_cycles,
        block_dim=task.kernel.block_dim,
        pipes={name: count * run.waves for name, count in run.core.busy.items()},
        causes={name: count for name, count in causes.items() if count},
        bytes=dict(run.moved),
        hbm_read_bytes=misses,
        hbm_write_bytes=access.written_back,
        l2_hit_bytes=max(moved - misses, 0),
        flops=flops,
        energy_pj=_energy(task.kernel, target, run, macs, misses + access.written_back),
        bound_by=_bound_by(causes, why),
        requests=run.requests,
        algorithm=task.kernel.algorithm,
    )


_HOST_COSTS = {
    Engine.AICPU: "launch.aicpu_us",
    Engine.HOST_CPU: "launch.host_us",
    Engine.RTS: "launch.task_us",
}


def host_profile(task: Task, target: Target, start: int) -> TaskProfile:
    """A task on the host, the AI CPU or the task scheduler: one fixed cost, since no rate of theirs is published.

    A jump costs the scheduler what the start of a task costs it.
    """
    key = _HOST_COSTS[task.kernel.engine]
    cycles = target.cycles(target.value(key))
    bound_by = "launch: task scheduler" if task.is_jump else "launch: host"
    return _row(task, start, cycles, block_dim=1, causes={"launch": cycles}, bound_by=bound_by)


def load_profile(task: Task, target: Target, start: int) -> TaskProfile:
    """A streamed weight on its way from the host: its bytes at the rate of the host link, behind one start."""
    moved = task.outputs[0].payload_bytes
    launch = target.cycles(target.value("launch.task_us"))
    transfer = target.cycles(moved / (target.value("host.link_gb_s") * 1e3))
    return _row(
        task,
        start,
        launch + transfer,
        block_dim=1,
        causes={"memory": transfer, "launch": launch},
        bytes={HOST_PATH: moved},
        hbm_write_bytes=moved,
        energy_pj=float(round(moved * target.value("energy.hbm_pj_per_byte"))),
        bound_by="memory: host link",
    )


def shared_out(why: Mapping[str, int], total: int) -> dict[str, int]:
    """Scale a breakdown to ``total``: whole cycles by largest remainder, so that it adds up exactly."""
    whole = sum(why.values())
    if whole == 0 or whole == total:
        return dict(why) if whole == total else {}
    parts = {name: divmod(count * total, whole) for name, count in why.items()}
    missing = total - sum(quotient for quotient, _ in parts.values())
    largest = sorted(parts, key=lambda name: (-parts[name][1], name))[:missing]
    return {name: quotient + (name in largest) for name, (quotient, _) in parts.items()}


def _bound_by(causes: Mapping[str, int], why: Mapping[str, int]) -> str:
    """The largest cause and, within it, the resource with most cycles."""
    cause = max(causes, key=lambda name: causes[name])
    inside = {name: count for name, count in why.items() if CAUSE_OF[name] == cause}
    if not inside:
        return f"{cause}: {'start of task and cores' if cause == 'launch' else 'fullest core'}"
    return f"{cause}: {RESOURCE_NAMES[max(inside, key=lambda name: inside[name])]}"


def _energy(kernel: Kernel, target: Target, run: KernelRun, macs: int, memory_bytes: int) -> float:
    """Picojoules: products, vector cycles, and bytes by path."""
    energy = memory_bytes * target.value("energy.hbm_pj_per_byte") + run.l2_bytes * target.value(
        "energy.l2_pj_per_byte"
    )
    for path, count in run.moved.items():
        energy += count * target.value("energy.l0_pj_per_byte" if "L0" in path else "energy.l1_pj_per_byte")
    if macs:
        first = kernel.multiplied
        assert first is not None
        energy += macs * target.value("energy.mac_pj")[first.dtype.label]
    lanes = run.core.busy.get("VECTOR", 0) * run.cores * target.value("vector.repeat_bytes")
    return float(round(energy + lanes * target.value("energy.vector_pj_per_byte")))
