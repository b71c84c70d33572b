"""Is a task's time normal, and what to try: the limits of the chip for its work, and rules from causes to advice.

A limit is a time the task cannot beat: products over the cube's peak, bytes over L2's or memory's rate, work of the
vector unit. The share of the largest limit in the task's cycles without launch says how close it comes.
"""

from __future__ import annotations

from dataclasses import dataclass

from metadef.cost.winograd_phases import is_eligible
from metadef.dtype import DType
from metadef.program import Region, Task
from metadef.target import Target
from npusim.profile import TaskProfile
from npusim.report.table import gm_bytes

BLOCK_BYTES = 32
_GOOD, _FAIR, _SMALL = 0.5, 0.25, 0.05


@dataclass(frozen=True)
class Judgement:
    """``limits`` are cycles by resource; ``share`` is the largest over the task's cycles without launch."""

    limits: dict[str, int]
    limit: str
    share: float
    verdict: str


def judge(task: Task, row: TaskProfile, target: Target) -> Judgement:
    """How a device task stands against the chip's limits."""
    limits = _limits(task, row, target)
    limit = max(limits, key=lambda name: limits[name])
    launch = row.causes.get("launch", 0)
    share = limits[limit] / max(row.cycles - launch, 1)
    if launch > row.cycles / 2:
        verdict = f"normal for its size: starting the task and its cores takes {launch / row.cycles:.0%} of the time"
    elif _lost(row) > row.cycles * _FAIR:
        verdict = f"low: addresses, rows or banks cost {_lost(row) / row.cycles:.0%} of the time"
    elif share >= _GOOD:
        verdict = f"good: {share:.0%} of what {limit} allows"
    elif share >= _FAIR:
        verdict = f"fair: {share:.0%} of what {limit} allows"
    else:
        verdict = f"low: only {share:.0%} of what {limit} allows"
    return Judgement(limits, limit, share, verdict)


def _lost(row: TaskProfile) -> int:
    """Cycles that better places of the same data would save."""
    return row.causes.get("misalignment", 0) + row.causes.get("bank conflict", 0)


def _limits(task: Task, row: TaskProfile, target: Target) -> dict[str, int]:
    """Cycles that each resource needs at its peak with the whole chip at work."""
    first = task.kernel.multiplied
    limits = {
        "L2 bandwidth": round(gm_bytes(row) / target.l2_bytes_per_cycle),
        "memory bandwidth": round((row.hbm_read_bytes + row.hbm_write_bytes) / target.hbm_bytes_per_cycle),
    }
    if row.pipes.get("CUBE") and first is not None:
        limits["the cube"] = round(row.flops / (2 * target.macs_per_cycle(first.dtype) * target.cube_cores))
    else:
        useful = max(row.pipes.get("VECTOR", 0) - _lost(row), 0)
        limits["the vector units"] = round(useful * row.block_dim / target.vector_cores)
    return limits


def advise(task: Task, row: TaskProfile, target: Target) -> list[str]:
    """Short advice from the causes of a device task's cycles, most cycles first."""
    causes = sorted(row.causes.items(), key=lambda item: -item[1])
    lines = [_ADVICE[cause](task, row, target) for cause, count in causes if count > _SMALL * row.cycles]
    lines += _padding_advice(task, target)
    return list(dict.fromkeys(line for line in lines if line))[:4]


def _launch(task: Task, row: TaskProfile, target: Target) -> str:
    share = row.causes.get("launch", 0) / max(row.cycles, 1)
    if share < 1 / 3:
        return ""
    what = "mostly start-up" if share > 1 / 2 else f"start-up takes {share:.0%}"
    return f"{what}: larger batches, or a neighbour that it can be fused with, would use the time"


def _misalignment(task: Task, row: TaskProfile, target: Target) -> str:
    for item in (*task.inputs, *task.outputs):
        if item is not None and item.address % BLOCK_BYTES:
            return f"'{item.name}' starts off 32 bytes ({item.address:#x}): keep tensors on 512-byte lines"
    for item in (*task.inputs, *task.outputs):
        if item is not None and item.desc.is_plain and item.desc.shape:
            length, size = item.desc.shape[-1], item.desc.dtype.bytes
            if length * size % BLOCK_BYTES:
                wanted = -(-length * size // BLOCK_BYTES) * BLOCK_BYTES // size
                what = f"rows of '{item.name}' are {length * size} B"
                return f"{what}: pad {length} to {wanted} elements (npusim align --rows)"
    return "rows or addresses off the line cost requests: see npusim align"


def _memory(task: Task, row: TaskProfile, target: Target) -> str:
    if row.hbm_read_bytes > row.l2_hit_bytes:
        return "its operands come from memory, not L2: fewer bytes (fp16, int8) or smaller working sets help"
    fused = "L2 serves it: fusing it with its producer saves a round trip"
    return f"{fused}; larger tiles read operands less often" if "CUBE" in row.pipes else fused


def _imbalance(task: Task, row: TaskProfile, target: Target) -> str:
    cores = target.cores("CUBE" in row.pipes)
    return (
        f"{row.block_dim} pieces on {cores} cores are uneven: sizes that divide by the cores, or larger batches, help"
    )


def _pipe_wait(task: Task, row: TaskProfile, target: Target) -> str:
    pipe = max(row.pipes, key=lambda name: row.pipes[name], default="")
    hints = {
        "MTE1": "L1 to L0 is the busiest pipe: larger M and N per tile reuse what is loaded",
        "FIXPIPE": "moving results out holds it up: a longer K per result, or a smaller result type, helps",
        "SCALAR": "the scalar unit issues too many small instructions: longer rows help",
    }
    return hints.get(pipe, f"{pipe} waits for other pipes: larger tiles overlap better" if pipe else "")


def _compute(task: Task, row: TaskProfile, target: Target) -> str:
    if row.pipes.get("CUBE"):
        share = row.flops / (
            2 * _peak(task, target) * max(row.pipes.get("CUBE", 1), 1) * min(row.block_dim, target.cube_cores)
        )
        if share < _GOOD:
            return f"only {share:.0%} of the cube's products are useful: M, N and channels of whole 16s waste none"
        return f"the cube is at work: only fewer products ({_fewer_products(task, target)}) make it faster"
    if any(item is not None and item.desc.dtype is DType.FLOAT for item in (*task.inputs, *task.outputs)):
        return "the vector unit is at work: fp16 in place of fp32 halves its repeats; fusing saves casts"
    return "the vector unit is at work: only fewer elements, or fusing it with a neighbour, make it faster"


def _fewer_products(task: Task, target: Target) -> str:
    """Ways to fewer products that are still open to a task."""
    kernel = task.kernel
    constant = len(task.inputs) > 1 and task.inputs[1] is not None and task.inputs[1].region is Region.WEIGHTS
    open_to_winograd = kernel.algorithm == "direct" and is_eligible(kernel, target, constant)
    channels = "int8, smaller channels" if kernel.op_type.endswith("Conv2D") else "int8, smaller matrices"
    return f"Winograd by --conv auto, {channels}" if open_to_winograd else channels


def _peak(task: Task, target: Target) -> int:
    first = task.kernel.multiplied
    return target.macs_per_cycle(first.dtype) if first is not None else 1


def _bank(task: Task, row: TaskProfile, target: Target) -> str:
    return "two operands meet in one bank group of UB: buffers half a bank period apart do not"


def _padding_advice(task: Task, target: Target) -> list[str]:
    """Channels that fill their blocks only to a part."""
    lines = []
    for item in (*task.inputs[:1], *task.outputs[:1]):
        if item is None or item.desc.is_plain or not item.desc.payload_bytes:
            continue
        used = item.desc.elements * item.desc.dtype.bytes / item.desc.payload_bytes
        if used < _GOOD:
            lines.append(f"'{item.name}' fills {used:.0%} of its {item.desc.format.name} blocks: channels of whole 16s")
    return lines


_ADVICE = {
    "launch": _launch,
    "misalignment": _misalignment,
    "memory": _memory,
    "imbalance": _imbalance,
    "pipe wait": _pipe_wait,
    "compute": _compute,
    "bank conflict": _bank,
}
