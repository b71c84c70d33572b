"""All that is known of one task: kernel and reasons, operands and their places, cycles by cause, judgement, advice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from metadef.kernel import phases_of
from metadef.memory.plan import MemoryPlan
from metadef.program import Operand, Task
from metadef.text import fused_types
from npusim.advice import advise, judge
from npusim.profile import TaskProfile
from npusim.session import InferenceSession


@dataclass(frozen=True)
class OperandFacts:
    """Where an operand lies and why. ``life`` is its first and last task; ``shares`` what it shares memory with."""

    port: str
    name: str
    desc: str
    region: str
    address: int
    residue: int
    payload_bytes: int
    slot_bytes: int = 0
    life: tuple[int, int] | None = None
    shares: str = ""


@dataclass(frozen=True)
class TaskFacts:
    """All that is known of one task. ``host`` says how this computer carries it out, whatever the chip does."""

    task: int
    name: str
    op_type: str
    epilogue: str
    origins: tuple[str, ...]
    engine: str
    engine_reason: str
    algorithm: str
    kernel_reason: str
    tile: str
    block_dim: int
    operands: tuple[OperandFacts, ...]
    workspace_bytes: int
    cycles: int
    us: float
    share: float
    causes: dict[str, int]
    pipes: dict[str, int]
    traffic: dict[str, int]
    bound_by: str
    limits: dict[str, int] = field(default_factory=dict)
    verdict: str = ""
    advice: tuple[str, ...] = ()
    host: str = ""


def task_facts(session: InferenceSession, task: Task) -> TaskFacts:
    """Everything about one task of a session that knows its compilation."""
    kernel, profile = task.kernel, session.profile.data
    row = session.task_rows()[task.id]
    limits: dict[str, int] = {}
    verdict = "runs on the host at a fixed cost: its rate is not modelled"
    if task.is_load:
        verdict = "a transfer over the host link at its rate, beside the step before its use"
    if task.is_jump:
        verdict = "a jump of the task scheduler, at what the start of a task costs"
    advice: list[str] = []
    if task.on_device:
        judgement = judge(task, row, session.target)
        limits, verdict = judgement.limits, judgement.verdict
        advice = advise(task, row, session.target)
    return TaskFacts(
        task=task.id,
        name=task.name,
        op_type=kernel.op_type,
        epilogue=fused_types(kernel.fused),
        origins=task.origins,
        engine=kernel.engine.value,
        engine_reason=_engine_reason(session, task),
        algorithm=kernel.algorithm,
        kernel_reason=kernel.reason,
        tile=_tile_text(task),
        block_dim=kernel.block_dim,
        operands=tuple(_operands(session.plan, task)),
        workspace_bytes=sum(span.bytes for span in task.workspaces),
        cycles=row.cycles,
        us=round(profile.to_us(row.cycles), 3),
        share=row.cycles / max(profile.cycles, 1),
        causes=_sorted(row.causes),
        pipes=_sorted(row.pipes),
        traffic=_traffic(row),
        bound_by=row.bound_by,
        limits=limits,
        verdict=verdict,
        advice=tuple(advice),
        host=_host_text(session, task),
    )


def _engine_reason(session: InferenceSession, task: Task) -> str:
    for graph in session.compilation.graph.graphs():
        for node in graph.nodes:
            if node.name == task.name:
                return node.engine_reason
    return ""


def _host_text(session: InferenceSession, task: Task) -> str:
    """The algorithm and kernels of the host plan, or why Python runs the task."""
    plan = session.loaded.plan
    position = next(index for index, item in enumerate(session.program.tasks) if item.id == task.id)
    if position in plan.python_tasks:
        return f"NumPy: {plan.fallbacks.get(task.name, 'a task of the host')}"
    names = list(dict.fromkeys(plan.kernels_of(position)))
    source = "from the stored host plan" if session.loaded.stored_plan.is_stored else "chosen when it was loaded"
    return f"{_host_algorithm(names)} ({source}), kernel {', '.join(names)}" if names else "nothing to compute"


def _host_algorithm(names: Sequence[str]) -> str:
    """The algorithm of a task, from the names of its kernels."""
    for name in names:
        family, *parameters = name.split(":")
        if family == "winograd":
            return f"winograd_f{parameters[2]}"
        if family == "fourier":
            return f"fft_{parameters[-1]}"
    return "direct"


def _operands(plan: MemoryPlan, task: Task) -> Iterable[OperandFacts]:
    for slot, item in enumerate(task.inputs):
        if item is not None:
            yield _operand(plan, f"input {slot}", item)
    for slot, item in enumerate(task.outputs):
        yield _operand(plan, f"output {slot}", item)


def _operand(plan: MemoryPlan, port: str, item: Operand) -> OperandFacts:
    rows = {row.name: row for row in plan.rows if row.tensor >= 0}
    row, names = rows.get(item.name), {row.tensor: row.name for row in plan.rows}
    shares = f"{row.alias_kind} of '{names.get(row.alias_of, '?')}'" if row and row.alias_of >= 0 else ""
    return OperandFacts(
        port,
        item.name,
        str(item.desc),
        item.region.value,
        item.address,
        item.address % 512,
        item.payload_bytes,
        row.slot_bytes if row else 0,
        (row.first, row.last) if row else None,
        shares or (row.no_reuse if row else ""),
    )


def _tile_text(task: Task) -> str:
    """Per phase of the kernel, the tile's fields without its buffers, then the buffers' places."""
    texts = []
    for tile in phases_of(task.kernel.tile):
        fields = ", ".join(
            f"{name}={value}" for name, value in vars(tile).items() if name != "buffers" and value not in ("", False)
        )
        places = [
            f"{item.name}@{item.memory}+{item.offset_bytes} {item.size_bytes} B"
            + f" x{item.copies}" * (item.copies > 1)
            for item in tile.buffers
        ]
        texts.append("; ".join(part for part in (fields, ", ".join(places)) if part))
    return " | ".join(texts)


def _traffic(row: TaskProfile) -> dict[str, int]:
    return {
        **row.bytes,
        "HBM read": row.hbm_read_bytes,
        "HBM write": row.hbm_write_bytes,
        "L2 hit": row.l2_hit_bytes,
        "requests": row.requests,
    }


def _sorted(parts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(parts.items(), key=lambda item: -item[1]))
