"""Schedules for the planner's tests: a residual network, and random ones with every relation (hypothesis)."""

from __future__ import annotations

from hypothesis import strategies as st

from metadef.schedule import (
    Group,
    InPlace,
    Schedule,
    ScheduleTensor,
    Step,
    TensorKind,
    View,
    Workspace,
)


class Maker:
    """Builds a schedule step by step; every step writes one tensor."""

    def __init__(self, name: str = "net") -> None:
        self.schedule = Schedule(name, "Ascend910B3")

    def tensor(self, name: str, size: int, kind: TensorKind = TensorKind.FEATURE, **fields: object) -> int:
        tensors = self.schedule.tensors
        tensors.append(ScheduleTensor(len(tensors), name, size, kind, **fields))  # type: ignore[arg-type]
        if kind == TensorKind.INPUT:
            self.schedule.inputs.append(tensors[-1].id)
        if kind == TensorKind.OUTPUT:
            self.schedule.outputs.append(tensors[-1].id)
        return tensors[-1].id

    def step(
        self,
        name: str,
        reads: list[int],
        size: int,
        *,
        kind: TensorKind = TensorKind.FEATURE,
        inplace: tuple[int, ...] = (),
        workspace: int = 0,
        **fields: object,
    ) -> int:
        written = self.tensor(name, size, kind)
        steps = self.schedule.steps
        scratch = (Workspace(workspace),) if workspace else ()
        steps.append(Step(len(steps), name, tuple(reads), (written,), workspaces=scratch, **fields))  # type: ignore[arg-type]
        self.schedule.inplace += [InPlace(steps[-1].id, read, written) for read in inplace]
        return written


def residual_network() -> Schedule:
    """ResNet-50's activations in fp16: stem, sixteen bottlenecks whose additions may run in place, head."""
    make = Maker("resnet50")
    x = make.tensor("x", 3 * 224 * 224 * 4, TensorKind.INPUT)
    c = make.step("trans_Cast", [x], 3 * 224 * 224 * 2)
    c = make.step("trans_TransData", [c], 16 * 224 * 224 * 2)
    c = make.step("conv1", [c, make.tensor("conv1.w", 7 * 7 * 16 * 64 * 2, TensorKind.WEIGHT)], 64 * 112 * 112 * 2)
    c = make.step("pool", [c], 64 * 56 * 56 * 2)
    side = 56
    for stage, (blocks, channels) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
        for block in range(blocks):
            name = f"stage{stage}/block{block}"
            half = side // 2 if block == 0 and stage else side
            wide = 4 * channels * half * half * 2
            a = make.step(f"{name}/conv1", [c], channels * side * side * 2)
            a = make.step(f"{name}/conv2", [a], channels * half * half * 2, workspace=4096 if block else 0)
            a = make.step(f"{name}/conv3", [a], wide)
            skip = make.step(f"{name}/down", [c], wide) if block == 0 else c
            c = make.step(f"{name}/add", [a, skip], wide, inplace=(a, skip))
            side = half
    c = make.step("mean", [c], 2048 * 2)
    flat = make.tensor("flat", 2048 * 2)
    make.schedule.views.append(View(flat, c))
    c = make.step("fc", [flat, make.tensor("fc.w", 2048 * 1000 * 2, TensorKind.WEIGHT)], 2000)
    make.step("trans_Cast_1", [c], 4000, kind=TensorKind.OUTPUT)
    return make.schedule


@st.composite
def random_schedules(draw: st.DrawFn, *, relations: bool = True, control: bool = False) -> Schedule:
    """A few steps over random sizes; with relations, views, groups, in-place permissions, pins-free grids, no-reuse.

    ``control`` adds branches, loops and streams with events.
    """
    make = Maker("random")
    exact = draw(st.booleans())
    alive = [make.tensor("x", draw(st.integers(1, 2000)), TensorKind.INPUT)]
    for index in range(draw(st.integers(1, 9))):
        reads = draw(st.lists(st.sampled_from(alive), min_size=1, max_size=3, unique=True))
        features = [t for t in reads if make.schedule.tensors[t].kind == TensorKind.FEATURE]
        same = features and relations and draw(st.booleans())
        size = make.schedule.tensors[features[0]].payload_bytes if same else draw(st.integers(0, 3000))
        fields: dict[str, object] = {}
        if control:
            fields["branch"] = draw(st.sampled_from(["", "", "c0:then", "c0:else", "c1:then/c0:else"]))
            fields["loop_depth"] = draw(st.sampled_from([0, 0, 1, 2]))
        kind = TensorKind.OUTPUT if draw(st.integers(0, 5)) == 0 else TensorKind.FEATURE
        permitted = tuple(features) if same else ()
        scratch = draw(st.sampled_from([0, 0, 100, 1024]))
        written = make.step(f"s{index}", reads, size, kind=kind, inplace=permitted, workspace=scratch, **fields)
        alive.append(written)
        if relations and size > 1 and draw(st.integers(0, 4)) == 0:
            view = make.tensor(f"v{index}", size // 2, slot_bytes=0)
            make.schedule.views.append(View(view, written, draw(st.integers(0, size - size // 2))))
            alive.append(view)
    if relations:
        _vary_tensors(draw, make.schedule, exact)
        _add_group(draw, make)
    if control and draw(st.booleans()):
        _spread_over_streams(draw, make.schedule)
    return make.schedule


def _vary_tensors(draw: st.DrawFn, schedule: Schedule, exact: bool) -> None:
    viewed = {t for view in schedule.views for t in (view.tensor, view.base)}
    for i, tensor in enumerate(schedule.tensors):
        if tensor.id in viewed or tensor.kind != TensorKind.FEATURE:
            continue
        schedule.tensors[i] = ScheduleTensor(
            tensor.id,
            tensor.name,
            tensor.payload_bytes,
            alignment=draw(st.sampled_from([1, 32, 64])) if exact else 512,
            residue=draw(st.sampled_from([0, 0, 0, 32])),
            slot_bytes=tensor.payload_bytes if exact else 0,
            no_reuse=draw(st.sampled_from(["", "", "", "", "asked for"])),
        )


def _add_group(draw: st.DrawFn, make: Maker) -> None:
    """A contiguous group of two features that no other relation touches; a last step reads its parent, if any."""
    schedule = make.schedule
    taken = {t for view in schedule.views for t in (view.tensor, view.base)}
    free = [
        t.id for t in schedule.tensors
        if t.kind == TensorKind.FEATURE and t.id not in taken and t.payload_bytes and not t.no_reuse and not t.residue
    ]  # fmt: skip
    if len(free) < 2 or draw(st.booleans()):
        return
    members = tuple(draw(st.permutations(free))[:2])
    padded = draw(st.booleans())
    parent = -1
    if draw(st.booleans()):
        sizes = [schedule.tensors[t].payload_bytes for t in members]
        parent = make.tensor("whole", sum(sizes) if not padded else 4 * 512 * (2 + sum(sizes) // 512))
        steps = schedule.steps
        steps.append(Step(len(steps), "read_whole", (parent,), ()))
        order = sorted(members, key=lambda t: next(s.id for s in steps if t in s.writes))
        members = tuple(order)
    schedule.groups.append(Group(parent, members, padded=padded))


def _spread_over_streams(draw: st.DrawFn, schedule: Schedule) -> None:
    """Put steps on two streams and order every producer and reader on different streams by an event."""
    streams = [draw(st.integers(0, 1)) for _ in schedule.steps]
    bases = {view.tensor: view.base for view in schedule.views}
    writer: dict[int, int] = {}
    waits: list[set[int]] = [set() for _ in streams]
    for step in schedule.steps:
        for tensor in step.reads:
            source = writer.get(bases.get(tensor, tensor) if tensor is not None else -1)
            if source is not None and streams[source] != streams[step.id]:
                waits[step.id].add(source)
        writer.update(dict.fromkeys(step.writes, step.id))
    needed = set().union(*waits)
    for i, step in enumerate(schedule.steps):
        schedule.steps[i] = Step(
            step.id, step.name, step.reads, step.writes, workspaces=step.workspaces, stream=streams[i],
            waits=tuple(sorted(waits[i])), records=(i,) if i in needed else (),
        )  # fmt: skip
